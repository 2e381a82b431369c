"""Settings of scripts with a training loop of their own: section `scripts` of params.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from photofinish.config.base import Name, Record, Settings
from photofinish.config.kinds import KINDS

PLACEHOLDER = "{device}"


def _check_command(command: str) -> str:
    if PLACEHOLDER not in command:
        raise ValueError(
            f"must contain {PLACEHOLDER}, which becomes cpu and then one of {', '.join(KINDS)}: "
            f"python train.py --device {PLACEHOLDER}"
        )
    return command


class Script(Settings):
    """A command that trains, run once on each device."""

    command: Annotated[str, AfterValidator(_check_command)]
    """Command of a shell, in the folder of params.yaml."""
    deps: Annotated[tuple[str, ...], Field(min_length=1)]
    """Files and folders that it reads: it runs again when one of them changes."""
    metrics: str | None = None
    """JSON file of numbers that it writes. The devices' are set beside each other."""


class ScriptPlan(Record):
    """Plan of one script: data/plan/scripts/<name>.json."""

    name: Name
    command: str
    metrics: str | None
    files: dict[str, str]
    """SHA-256 of each file that it reads or imports, and version of each package."""
