"""Runs that were asked about on this machine: equal ones show how its speed differs."""

from __future__ import annotations

import json
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pydantic import ValidationError

from photofinish.answer.times import squared_difference
from photofinish.answer.uncertainty import error_of_mean
from photofinish.config.base import Record
from photofinish.files import sha256_of_bytes, to_json, user_state_folder, write_text_atomically
from photofinish.machine.load import load_warnings
from photofinish.results.measured import Measured
from photofinish.results.records import DeviceLabel
from photofinish.results.timed_parts import epoch_by_parts

_MOST = 200
"""Number of runs that are remembered, by hand."""


class Asked(Record):
    """Run of a command on a quiet machine."""

    what: str
    """SHA-256 of the command, its files and the machine."""
    device: DeviceLabel
    step_seconds: float
    variance: float
    """Variance of its logarithm."""


class _All(Record):
    asked: tuple[Asked, ...] = ()


def readings_with(
    records: Sequence[Measured], command: Sequence[str], files: Mapping[str, str]
) -> dict[DeviceLabel, tuple[float, ...]]:
    """Remember these runs. Return the readings of each device, by all that are remembered."""
    path = user_state_folder() / f"{platform.node()}.asked.json"
    before = _All()
    with suppress(OSError, ValidationError):  # none yet, or of another version: it begins again
        before = _All.model_validate_json(path.read_bytes())
    found = [_asked(command, files, record) for record in records]
    asked = (*before.asked, *filter(None, found))[-_MOST:]
    with suppress(OSError):  # the machine's lock has named a folder that can't be written
        write_text_atomically(path, to_json(_All(asked=asked).model_dump(mode="json")))
    return _readings(asked)


def _asked(command: Sequence[str], files: Mapping[str, str], record: Measured) -> Asked | None:
    """Return what to remember of a run, or None if it was too short or the machine was busy.

    Without files, a run of changed code would count as the same.
    """
    steps = epoch_by_parts(record.parts, 1.0)
    if len(steps.values) < 2 or not files or load_warnings(record.load):
        return None
    variance = error_of_mean(steps.values).variance
    what = sha256_of_bytes(
        json.dumps([[*command], {**files}, record.host.model_dump(mode="json")]).encode()
    )
    return Asked(what=what, device=record.device, step_seconds=steps.seconds, variance=variance)


def _readings(asked: Sequence[Asked]) -> dict[DeviceLabel, tuple[float, ...]]:
    last: dict[tuple[str, DeviceLabel], Asked] = {}
    found: dict[DeviceLabel, list[float]] = defaultdict(list)
    for each in asked:
        if before := last.get((each.what, each.device)):
            within = before.variance + each.variance
            apart = squared_difference(before.step_seconds, each.step_seconds, within)
            found[each.device].append(apart)
        last[each.what, each.device] = each
    return {device: tuple(values) for device, values in found.items()}
