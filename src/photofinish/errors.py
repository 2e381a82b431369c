"""What can go wrong through no fault of the code, and how a stage ends when it does."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from photofinish.wording import printable

EXIT_MISTAKE = 2
EXIT_FAILED = 1
EXIT_PEER_LOST = 3
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
PEER_LOST = "the connection to another process of this training was lost"
"""How the words of one begin that failed only since another had; that one's tell more."""


class UserError(Exception):
    """A fault that its message explains in full: which file, key or value, and what to do."""

    exit_code = EXIT_FAILED


class MistakeError(UserError):
    """Something the user wrote is wrong; nothing was started and nothing was written."""

    exit_code = EXIT_MISTAKE


class TerminatedError(BaseException):
    """SIGTERM arrived; not an Exception, so that nothing mistakes it for a failure to handle."""


def run_stage(main: Callable[[], None]) -> None:
    """Run a stage's main function; faults that explain themselves end it in a message, not a traceback."""
    try:
        main()
    except UserError as error:
        print("error:", "\n".join(map(printable, str(error).split("\n"))), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)  # the signal was heard: see processes.end_on_sigterm
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except TerminatedError as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(f"stopped: {error}", file=sys.stderr)
        sys.exit(EXIT_TERMINATED)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror or error}{where}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
