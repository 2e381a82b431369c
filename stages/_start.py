"""What each stage's script imports before anything of photofinish: from here on Ctrl-C ends it in one line, and so does
a Python that is not the environment's."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

_OLDEST = (3, 11)


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    """At once: nothing has begun yet, and libraries make of an exception in their midst what they like."""
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started it wants it deaf
    signal.signal(signal.SIGINT, _interrupted)

try:
    if sys.version_info < _OLDEST:
        raise ImportError(f"it is older than Python {_OLDEST[0]}.{_OLDEST[1]}")
    import photofinish.processes  # noqa: F401  # with what this needs, all is there
    from photofinish.errors import run_stage as run_stage
except ImportError as error:
    sys.exit(
        f"error: `python` is {sys.executable}, which can't run this stage ({error}): activate the environment that "
        f"photofinish was installed into (`source .venv/bin/activate`), then run again"
    )

# The last place to look: this folder's files have names that packages and users' files may have too. A process that
# multiprocessing starts runs the script again, and must find this file.
_FOLDER = str(Path(__file__).parent)
sys.path.remove(_FOLDER)
sys.path.append(_FOLDER)
