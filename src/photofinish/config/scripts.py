"""Settings of scripts with a custom training loop: section `scripts` of params.yaml."""

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
    """Training command that runs once on each device."""

    command: Annotated[str, AfterValidator(_check_command)]
    """Shell command, which runs in the folder of params.yaml."""
    deps: Annotated[tuple[str, ...], Field(min_length=1)]
    """Files and folders that the script reads. It runs again if one of them changes."""
    metrics: str | None = None
    """JSON file of numbers that the script writes. The report compares them across devices."""


class ScriptPlan(Record):
    """Plan of one script: data/plan/scripts/<name>.json."""

    name: Name
    command: str
    metrics: str | None
    files: dict[str, str]
    """SHA-256 of each file that the script reads or imports, and version of each package."""
