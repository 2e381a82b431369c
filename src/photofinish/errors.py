"""Expected errors, and how a stage exits on them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

EXIT_MISTAKE = 2
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class UserError(Exception):
    """Error whose message names the file, key or value, and what to do."""

    exit_code = EXIT_FAILED


class ConfigError(UserError):
    """Error in what the user wrote. Nothing was started or written."""

    exit_code = EXIT_MISTAKE


class SettingError(ValueError):
    """Setting that is refused, and facts of it.

    config/messages.py has a sentence for each kind. No stage reads it, so that another word trains
    nothing again.
    """

    def __init__(self, kind: str, **facts: Any) -> None:
        super().__init__(kind)
        self.kind, self.facts = kind, facts


class TerminatedError(BaseException):
    """Arrival of SIGTERM. Not an Exception, so that no code handles it as a failure."""


def run_stage(main: Callable[[], None]) -> None:
    """Run a stage's main function. Print expected errors without a traceback."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _stop_timer()
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except TerminatedError as error:
        _stop_timer()
        print(f"stopped: {error}", file=sys.stderr)
        sys.exit(EXIT_TERMINATED)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror or error}{where}", file=sys.stderr)
        sys.exit(EXIT_FAILED)


def _stop_timer() -> None:
    """Stop processes.end_on_sigterm from raising again."""
    if hasattr(signal, "setitimer"):  # Windows has none
        signal.setitimer(signal.ITIMER_REAL, 0)
