"""Expected errors, with the exit code of each."""

from __future__ import annotations

from typing import Any

EXIT_MISTAKE = 2
EXIT_FAILED = 1
EXIT_NOT_COMPARED = 125
"""With which `git bisect run` skips a commit."""
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class UserError(Exception):
    """Error whose message names the file, key or value, and what to do."""

    exit_code = EXIT_FAILED


class ConfigError(UserError):
    """Error in what the user wrote. Nothing was started or written."""

    exit_code = EXIT_MISTAKE


class NotComparedError(UserError):
    """Comparison of commits that could not be made, or is not clear."""

    exit_code = EXIT_NOT_COMPARED


class SettingError(ValueError):
    """Refused setting: the kind of error, and facts for its message.

    config/problems.py has a sentence for each kind. No training reads that file, so a reworded
    message reruns none.
    """

    def __init__(self, kind: str, **facts: Any) -> None:
        super().__init__(kind)
        self.kind, self.facts = kind, facts


class TerminatedError(BaseException):
    """Arrival of SIGTERM. Not an Exception, so that no code handles it as a failure."""
