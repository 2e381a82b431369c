"""Run custom code, and show its errors from the user's first line on."""

from __future__ import annotations

import inspect
import os
import random
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import Any

from photofinish.errors import TerminatedError, UserError

_INSTALLED = re.compile(r"/(site|dist)-packages/(?P<package>\w*)")
OURS = str(Path(__file__).parent.parent)


def accepted_arguments(
    build: Callable[..., Any], offered: Mapping[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """Return `given`, plus the keys of `offered` that `build` accepts."""
    names = inspect.signature(build).parameters
    return {name: value for name, value in offered.items() if name in names} | given


def as_function(custom: Any, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    return custom(**arguments) if isinstance(custom, type) else partial(custom, **arguments)


def seed_generators(seed: int) -> None:
    """Seed Python's, NumPy's and torch's CPU generators, which custom code draws from.

    torch.manual_seed would also seed the GPU's generator, which training uses.
    """
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


@contextmanager
def forget_imports() -> Iterator[None]:
    """Unload custom modules at the end: other experiments may have files with equal names."""
    before, paths = set(sys.modules), [*sys.path]
    try:
        yield
    finally:
        sys.path[:] = paths
        for name in sys.modules.keys() - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and is_custom_file(file):
                del sys.modules[name]


@contextmanager
def run_custom_code(what: str) -> Iterator[None]:
    """Run custom code. Turn any exception into a UserError with `what` and its traceback.

    Afterwards the working directory is restored, since results have relative paths.
    """
    folder = os.getcwd()  # noqa: PTH109  # faster, and it runs for each item of a transform
    try:
        yield
    except (UserError, KeyboardInterrupt, TerminatedError):
        raise
    except BaseException as error:  # also sys.exit, by a file that reads a command line
        raise UserError(f"{what}:\n{user_traceback(error)}") from error
    finally:
        os.chdir(folder)


def user_traceback(error: BaseException) -> str:
    """Return the traceback from the user's first line on, or only the error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = list(dropwhile(lambda frame: not is_user_file(frame.filename), frames))
    lines = [*traceback.format_list(own), *traceback.format_exception_only(error)]
    return "".join(lines).rstrip()


def has_user_frame(error: BaseException) -> bool:
    """Return True if the traceback has a line outside photofinish, PyTorch and Python."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(is_user_file(frame.filename) for frame in frames)


def is_user_file(filename: str) -> bool:
    """Return True if the file is not part of photofinish, PyTorch or Python."""
    if installed := _INSTALLED.search(filename):
        return installed["package"] != "torch"
    ours = (OURS, sysconfig.get_path("stdlib"), "<")
    return not filename.startswith(ours)


def is_custom_file(filename: str) -> bool:
    """Return True if the file is custom code outside any installed package."""
    return is_user_file(filename) and not _INSTALLED.search(filename)
