"""A Python without packages that a bare GPU machine lacks. Put this folder on PYTHONPATH."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

_MISSING = {"pydantic", "dvc", "mlflow", "ruamel"}


class _Missing(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in _MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, _Missing())
