"""Settings of scripts with a custom training loop: section `scripts` of params.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from photofinish.config.base import Duration, Name, PositiveFloat, PositiveInt, Record, Settings

PLACEHOLDER = "{device}"
"""Part of a command that becomes cpu, then torch's name of the accelerator."""


class Script(Settings):
    """Training command that runs once on each device."""

    command: str
    """Shell command, which runs in the folder of params.yaml."""
    deps: Annotated[tuple[str, ...], Field(min_length=1)]
    """Files and folders that the script reads. It runs again if one of them changes."""
    metrics: str | None = None
    """JSON file of numbers that the script writes. The report compares them across devices."""
    epochs: PositiveInt | None = None
    """Epochs of the whole job, where the command trains fewer."""
    time_limit: Duration | None = None
    """Time after which the command is stopped. The rest of its job is extrapolated."""


class ScriptPlan(Record):
    """Plan of one script: data/plan/scripts/<name>.json."""

    name: Name
    command: str
    metrics: str | None
    epochs: PositiveInt | None = None
    time_limit: PositiveFloat | None = None
    files: dict[str, str]
    """SHA-256 of each file that the script reads or imports, and version of each package."""
