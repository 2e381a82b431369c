"""A Python without packages that a bare GPU machine lacks. Put this folder on PYTHONPATH."""

from __future__ import annotations

import sys

for _name in ("pydantic", "dvc", "mlflow", "ruamel"):
    sys.modules[_name] = None  # type: ignore[assignment]  # then its import fails
