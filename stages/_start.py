"""Start of each stage's script, before any other import of photofinish.

From here on, Ctrl-C and a Python that is not the environment's end the stage in one line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_OLDEST = (3, 11)


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    # Libraries may swallow a KeyboardInterrupt that is raised while they are imported.
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(130)


# A background job ignores Ctrl-C. A spawned process runs this as __mp_main__: it has to clean up.
is_stage = "__mp_main__" not in sys.modules
if is_stage and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupted)

try:
    if sys.version_info < _OLDEST:
        raise ImportError(f"it is older than Python {_OLDEST[0]}.{_OLDEST[1]}")
    # It needs an installed package, psutil.
    from photofinish.stage.process import run_stage as run_stage
except ImportError as error:
    sys.exit(
        f"error: {sys.executable} can't run this stage ({error}): activate the environment that "
        f"photofinish was installed into (`source .venv/bin/activate`), then run again"
    )

# This folder comes last on the path, since packages and users' files may have its names, such as
# split. It stays there for processes that multiprocessing starts, which run the script again.
_FOLDER = str(Path(__file__).parent)
sys.path.remove(_FOLDER)
sys.path.append(_FOLDER)


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show a line on a terminal while this block runs. It is drawn once, so nothing timed waits."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(Text(text), console=Console(stderr=True), auto_refresh=False, transient=True):
        yield
