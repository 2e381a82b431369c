"""Announcement of a long `photofinish run`, before it starts."""

from __future__ import annotations

from contextlib import suppress

from dvc.exceptions import DvcException

from photofinish.asking.experiments import PLAN, planned_host
from photofinish.asking.forecast import LONG_SECONDS, Planned, forecast
from photofinish.commands import pipeline
from photofinish.config.loader import read_params
from photofinish.errors import UserError
from photofinish.machine.fingerprint import GpuTarget, Machine, mismatches
from photofinish.results.records import DEVICE_LABELS


def announce() -> None:
    """Print how long the stages that DVC will run take, if that is long.

    What keeps it from being known is reported by the run that follows.
    """
    with suppress(UserError, DvcException):
        _announce()


def _announce() -> None:
    trainings, untimed = _jobs(pipeline.changed_stages())
    if sum(each.most_seconds for each in trainings) <= LONG_SECONDS:
        return
    names = list(dict.fromkeys(each.name for each in trainings))
    stages = pipeline.stages_before(read_params(pipeline.PARAMS), names)
    if pipeline.repro(["--quiet", *stages]):
        return  # the run ends with it, too
    if line := forecast(trainings, untimed):
        print(line, flush=True)


def _jobs(changed: set[str]) -> tuple[list[Planned], list[str]]:
    """Return the trainings of changed stages on devices that are here, and the jobs without a time.

    These are scripts, and trainings by several processes.
    """
    here = Machine.here()
    trainings: list[Planned] = []
    untimed: list[str] = []
    for device in DEVICE_LABELS:
        host = planned_host(device)
        is_missing = isinstance(host, GpuTarget) and host.missing
        if is_missing or mismatches(host, here):
            continue
        scripts = _names("scripts")
        untimed += [name for name in scripts if f"script-{device}@{name}" in changed]
        for name in _names("experiments"):
            planned = Planned.read(name, device)
            if not changed & {f"train-{device}@{name}", f"split@{planned.settings.dataset}"}:
                continue
            if host.processes > 1:
                untimed.append(name)
            else:
                trainings.append(planned)
    return trainings, list(dict.fromkeys(untimed))


def _names(folder: str) -> list[str]:
    return sorted(path.stem for path in (PLAN / folder).glob("*.json"))
