"""The report: findings as words, tables and pictures. `photofinish.report()` reads the answers."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from photofinish.report.answers import Answers


class _CallablePackage(ModuleType):
    """This package, which notebooks call: `photofinish.report()`."""

    def __call__(self) -> Answers:
        """Return the answers of this folder's report, which a notebook shows."""
        from photofinish.report.answers import read_answers

        return read_answers()


sys.modules[__name__].__class__ = _CallablePackage
