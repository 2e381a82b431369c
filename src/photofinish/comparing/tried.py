"""Suggestions that were tried: their predicted gain, and the gain that was then measured.

A suggestion is stored with the sha256 of the training that would follow it. A later result of that
training shows the gain, in the project or in a copy by `dvc exp run --temp`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from photofinish.comparing.device_results import Trained
from photofinish.comparing.pairs import TrainedPair
from photofinish.comparing.remedies import Remedy
from photofinish.comparing.speedups import Interval, ratio_interval, widened
from photofinish.config.base import Record, spelled_out
from photofinish.config.experiment import Experiment
from photofinish.files import sha256_of_bytes, to_json, write_text_atomically
from photofinish.machine.host import allowed_cores
from photofinish.results.records import DeviceLabel

_NOT_COMPARED = {"epochs", "repeats", "seeds"}
"""Settings that do not change an epoch's time."""
_MOST_PROMISES = 50


class Promise(Record):
    """Suggestion at the time it was made."""

    device: DeviceLabel
    settings: dict[str, Any]
    """Keys of params.yaml, and their values."""
    promised: Interval | None
    """Predicted gain of an epoch, or None if it was not known."""
    epoch_seconds: tuple[float, ...]
    """Times of epochs before the change."""
    followed_sha256: str
    """SHA-256 of the training that follows the suggestion, apart from its data's content."""
    data_sha256: str
    """SHA-256 of the data before the change."""


class Promises(Record):
    """Suggestions for one experiment: .photofinish/suggestions/<experiment>.json."""

    promises: tuple[Promise, ...] = ()


@dataclass(frozen=True)
class Tried:
    """Suggestion that was followed."""

    promise: Promise
    measured: float
    """Speed-up of an epoch since the suggestion."""
    interval: Interval | None


def follow_up(pairs: Iterable[TrainedPair], folder: Path) -> dict[str, list[Tried]]:
    """Return the suggestions that each experiment's results follow. Store current suggestions."""
    tried = {}
    for pair in pairs:
        file = folder / f"{pair.experiment}.json"
        kept = _read(file)
        tried[pair.experiment] = [found for run in pair.trained for found in _followed(run, kept)]
        current = {(each.device, each.followed_sha256): each for each in _promises(pair)}
        older = [each for each in kept if (each.device, each.followed_sha256) not in current]
        if promises := (*older, *current.values()):
            written = Promises(promises=promises[-_MOST_PROMISES:])
            write_text_atomically(file, to_json(written.model_dump(mode="json")))
    return tried


def _read(file: Path) -> tuple[Promise, ...]:
    try:
        return Promises.model_validate_json(file.read_bytes()).promises
    except (FileNotFoundError, ValidationError):  # another version of photofinish wrote the file
        return ()


def _promises(pair: TrainedPair) -> Iterable[Promise]:
    for run in pair.trained:
        for found in pair.diagnoses[run.device]:
            for remedy in filter(None, (found.remedy, found.second)):
                yield Promise(
                    device=run.device,
                    settings=remedy.settings,
                    promised=(remedy.predicted.low, remedy.predicted.high),
                    epoch_seconds=tuple(run.timings.epoch_seconds),
                    followed_sha256=_followed_sha256(run, remedy),
                    data_sha256=run.record.data_sha256,
                )


def _followed(run: Trained, promises: Sequence[Promise]) -> Iterable[Tried]:
    now, sha256 = run.timings.epoch_seconds, _sha256(_what_trained(run))
    for promise in promises:
        is_same_data = run.record.data_sha256 == promise.data_sha256
        is_it = (promise.device, promise.followed_sha256) == (run.device, sha256)
        changes_data = any(key.startswith("datasets.") for key in promise.settings)
        if is_it and is_same_data != changes_data:
            interval = ratio_interval(promise.epoch_seconds, now)
            ratio = statistics.median(promise.epoch_seconds) / statistics.median(now)
            yield Tried(promise, ratio, interval and widened(interval))


def _what_trained(run: Trained) -> dict[str, Any]:
    """Return everything that determines the time of an epoch, apart from the data's content."""
    record, timings = run.record, run.timings
    return {
        "settings": record.experiment.model_dump(mode="json"),
        "threads": timings.host.threads,
        "device": timings.device_name,
        "samples": dict(record.samples),
        "decode": record.decode,
        "stored_shape": record.stored_shape,
        "code": record.custom_code,
    }


def _followed_sha256(run: Trained, remedy: Remedy) -> str:
    """Return the sha256 of the training that follows a suggestion."""
    what = _what_trained(run)
    for key, value in remedy.settings.items():
        section, _, setting = key.rpartition(".")
        if section == "devices.cpu":
            cpu = run.timings.host.cpu
            cores = allowed_cores(cpu) if cpu else None
            what["threads"] = cores if value == "auto" else value
        elif section.startswith("experiments."):
            what["settings"][setting] = spelled_out(value) if setting == "input" else value
        elif setting == "decode":
            what["decode"] = value
        elif setting == "size":  # height and width
            what["stored_shape"] = [*what["stored_shape"][:1], *value]
    settings = Experiment.model_validate_json(to_json(what["settings"]))
    return _sha256(what | {"settings": settings.model_dump(mode="json")})


def _sha256(what: dict[str, Any]) -> str:
    settings = {key: value for key, value in what["settings"].items() if key not in _NOT_COMPARED}
    return sha256_of_bytes(to_json(what | {"settings": settings}).encode())
