"""Time limits on the CPU, and recorded trainings that ended too early for today's limit.

The limit is not part of a training's cache key. A new limit reruns a training only if an earlier
limit ended it and another epoch now has time. The cache key then contains the replaced weights'
sha256, and keeps it as long as the new result is valid.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from photofinish.config.experiment import Experiment
from photofinish.config.loader import Params
from photofinish.results import EpochTiming, passed_seconds


def time_limits(params: Params) -> dict[str, float]:
    """Return the seconds of each limited experiment: its own limit, or the device's."""
    device = params.devices.cpu.time_limit
    limits = {name: one.time_limit or device for name, one in params.experiments.items()}
    return {name: limit for name, limit in limits.items() if limit is not None}


def to_replace(experiment: Experiment, result: Path, limit_seconds: float | None) -> str | None:
    """Return the sha256 of the recorded weights if this limit allows another epoch.

    Otherwise return what the recorded training itself replaced. A result of other settings is
    ignored, because DVC replaces it anyway.
    """
    record, timings = _read(result / "model/record.json"), _read(result / "timings/timings.json")
    if not timings or record.get("experiment") != json.loads(experiment.model_dump_json()):
        return None
    if timings.get("epochs_left") and _has_time(timings, limit_seconds):
        weights: str = record["weights_sha256"]
        return weights
    replaced: str | None = timings.get("replaces")
    return replaced


def _read(file: Path) -> dict[str, Any]:
    """Return a JSON object, or nothing if a full disk has cut it off, for example.

    It is not validated, because `plan` takes under a second, and the stages validate these files.
    """
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _has_time(timings: dict[str, Any], limit_seconds: float | None) -> bool:
    """Return True if another epoch would end before the limit, or if there is no limit."""
    if limit_seconds is None:
        return True
    epochs = [EpochTiming(**epoch) for epoch in timings["epochs"]]
    next_epoch_seconds = passed_seconds(epochs) / len(epochs)
    is_in_time: bool = timings["total_seconds"] + next_epoch_seconds <= limit_seconds
    return is_in_time
