"""Try the remedy that the results on disk suggest for an experiment; nothing of theirs is touched."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import photofinish
from photofinish.comparing.diagnosis import Diagnosis, diagnose
from photofinish.comparing.remedies import Remedy, times
from photofinish.errors import MistakeError, UserError, run_stage
from photofinish.files import write_text_atomically
from photofinish.machine.fingerprint import fingerprint
from photofinish.params.reader import Params, read_params
from photofinish.params.yaml_reader import YamlDocument
from photofinish.processes import end_on_sigterm
from photofinish.results import records
from photofinish.results.records import DeviceLabel, Timings
from photofinish.wording import nearest_name, seconds


@dataclass(frozen=True)
class Prescription:
    experiment: str
    device: DeviceLabel
    diagnosis: Diagnosis
    remedy: Remedy
    params_file: Path
    results: Path
    total_seconds: float
    """of the job on record"""


def prescribe(experiment: str, device: DeviceLabel, params_file: Path, results: Path) -> Prescription:
    params = read_params(params_file)
    if experiment not in params.experiments:
        nearest = nearest_name(experiment, params.experiments)
        hint = f"; did you mean '{nearest}'?" if nearest else ""
        raise MistakeError(
            f"{params_file} has no experiment '{experiment}', only {', '.join(params.experiments)}{hint}"
        )
    folder = results / experiment / device
    if not (folder / records.LEARNED / records.RECORD).is_file():
        raise UserError(f"{folder} has no results yet to find a remedy by: run `dvc repro` first")
    record = records.read_training(folder / records.LEARNED)
    if isinstance(record, records.Unavailable):
        raise UserError(f"{experiment} was not trained on the {device}, so nothing can be remedied: {record.reason}")
    timings = records.read_record(folder / records.TIMED / records.TIMINGS, records.Timings)
    cpu_host, gpu_host = fingerprint(params.devices)
    is_of_these_devices = timings.host == (cpu_host if device == "cpu" else gpu_host)
    if params.experiments[experiment] != record.experiment or not is_of_these_devices:
        raise UserError(
            f"{folder} is of other settings or another machine than `dvc repro` would use now: run it first"
        )
    diagnoses = diagnose(experiment, record, timings)
    for diagnosis in diagnoses:
        if diagnosis.remedy:
            total_seconds = timings.total_seconds
            return Prescription(experiment, device, diagnosis, diagnosis.remedy, params_file, results, total_seconds)
    told = [f"{diagnosis.sentence} ({diagnosis.cause}); {diagnosis.no_remedy}" for diagnosis in diagnoses]
    raise UserError(f"there is nothing to remedy in {experiment} on the {device}: {'. '.join(told) or 'no diagnosis'}")


def with_line(params_file: Path, remedy: Remedy, copy: Path) -> Params:
    """The settings with the remedy's line in place: written to a copy, in which they are checked like any other."""
    settings: dict[str, Any] = YamlDocument(params_file).value
    block = settings
    *above, key = remedy.key.split(".")
    for name in above:
        block[name] = block.get(name) or {}
        block = block[name]
    block[key] = remedy.value
    copy.write_text(json.dumps(settings, default=str), encoding="utf-8")  # JSON is YAML too
    return read_params(copy)


_CHEAP_SECONDS = 60.0
"""A job that takes no longer is trained twice each way, in turn: a machine is not as fast at one time as at another."""
_WORTH_REPEATING_SECONDS = 600.0
"""One that takes no longer is trained once each way; the remedy of a longer one is held against the results on disk."""


@dataclass(frozen=True)
class Outcome:
    """Of one training."""

    record: records.Training
    timings: records.Timings
    validation_accuracy: float


@dataclass(frozen=True)
class Outcomes:
    without: tuple[Outcome, ...]
    with_remedy: tuple[Outcome, ...]
    is_without_from_disk: bool


def try_out(prescribed: Prescription) -> Outcomes:
    root = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="photofinish-remedy-") as name:
        folder = Path(name)
        original = _Variant(prescribed, read_params(prescribed.params_file), root, folder / "without")
        changed = with_line(prescribed.params_file, prescribed.remedy, folder / "params.yaml")
        remedied = _Variant(prescribed, changed, root, folder / "with")
        if prescribed.total_seconds > _WORTH_REPEATING_SECONDS:
            on_disk = read_outcome(prescribed.results / prescribed.experiment / prescribed.device)
            return Outcomes((on_disk,), (remedied.train(folder, 1),), is_without_from_disk=True)
        without, with_remedy = [], []
        for number in range(1, 1 + (2 if prescribed.total_seconds <= _CHEAP_SECONDS else 1)):
            without.append(original.train(folder, number))
            with_remedy.append(remedied.train(folder, number))
        return Outcomes(tuple(without), tuple(with_remedy), is_without_from_disk=False)


class _Variant:
    """The files that a training stage reads, for one set of settings."""

    def __init__(self, prescribed: Prescription, params: Params, root: Path, folder: Path) -> None:
        self._name, self._device, self._root, self._folder = prescribed.experiment, prescribed.device, root, folder
        self._dataset = params.experiments[self._name].dataset
        cpu_host, gpu_host = fingerprint(params.devices)
        host = cpu_host if self._device == "cpu" else gpu_host
        write_text_atomically(self._experiment_file, params.experiments[self._name].model_dump_json())
        write_text_atomically(self._host_file, host.model_dump_json())

    @property
    def _experiment_file(self) -> Path:
        return self._folder / "experiments" / f"{self._name}.json"

    @property
    def _host_file(self) -> Path:
        return self._folder / f"{self._device}.json"

    def train(self, working_folder: Path, number: int) -> Outcome:
        out = self._folder / str(number) / self._name / self._device
        arguments = {
            "device": self._device,
            "experiment": self._experiment_file,
            "host": self._host_file,
            "data": self._root / "data" / "splits" / self._dataset,
            "weights": self._root / "data" / "weights" / self._name,
            "out": out,
        }
        print(f"{self._folder.name} the remedy, training {number}", file=sys.stderr, flush=True)
        command = [sys.executable, str(self._root / "stages" / "train.py")]
        command += [text for name, value in arguments.items() for text in (f"--{name}", str(value))]
        ran = subprocess.run(command, cwd=working_folder, env=_environment(), check=False)
        if ran.returncode:
            raise UserError(f"the training {self._folder.name} the remedy failed, as told above")
        return read_outcome(out)


def read_outcome(folder: Path) -> Outcome:
    record = records.read_training(folder / records.LEARNED)
    if isinstance(record, records.Unavailable):
        raise UserError(f"the device is not there any more: {record.reason}")
    timings = records.read_record(folder / records.TIMED / records.TIMINGS, records.Timings)
    history = records.read_history(folder / records.LEARNED)
    return Outcome(record, timings, history[-1].validation_accuracy)


def _environment() -> dict[str, str]:
    """Without what points to the user's project or MLflow, with this package wherever the stage is started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))}
    places = [str(Path(photofinish.__file__).parent.parent), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(places)}


def told(prescribed: Prescription, outcomes: Outcomes) -> str:
    remedy, found = prescribed.remedy, prescribed.diagnosis
    what, measured = _measured_by(prescribed)
    before, after = (_median(each, measured) for each in (outcomes.without, outcomes.with_remedy))
    where = " (the results on disk)" if outcomes.is_without_from_disk else ""
    return "\n".join(
        [
            f"{prescribed.experiment} on the {prescribed.device}: {found.sentence} ({found.cause}).",
            f"predicted: {remedy.prediction}. {remedy.why}.",
            f"really:    {times(before / after)} as fast; {what} took {seconds(before)} without{where}, "
            f"{seconds(after)} with.",
            _accuracy(outcomes),
            _change(prescribed, outcomes.with_remedy[-1]),
            f"The line:  {remedy.line}",
        ]
    )


def _measured_by(prescribed: Prescription) -> tuple[str, Callable[[Timings], float]]:
    """What the prediction is of."""
    if prescribed.remedy.of == "an epoch":
        return "an epoch", lambda timings: timings.median_epoch_seconds
    return "the job, for each of its epochs,", lambda timings: timings.total_seconds / len(timings.epochs)


def _median(outcomes: tuple[Outcome, ...], measured: Callable[[Timings], float]) -> float:
    return statistics.median(measured(outcome.timings) for outcome in outcomes)


def _accuracy(outcomes: Outcomes) -> str:
    without, with_remedy = outcomes.without[-1], outcomes.with_remedy[-1]
    if without.record.weights_sha256 == with_remedy.record.weights_sha256:
        return "learned:   the same, bit for bit."
    before, after = without.validation_accuracy, with_remedy.validation_accuracy
    return f"learned:   something else: validation accuracy {after:.2%}, without the remedy {before:.2%}."


def _change(prescribed: Prescription, outcome: Outcome) -> str:
    before = prescribed.diagnosis
    now = [found for found in diagnose(prescribed.experiment, outcome.record, outcome.timings) if found.of == before.of]
    if not now:
        return f"diagnosis: no longer {before.cause}."
    changed = f"still {before.cause}" if now[0].cause == before.cause else f"now {now[0].cause}, not {before.cause}"
    return f"diagnosis: {changed}: {now[0].sentence}."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m photofinish.comparing.trial", description=__doc__)
    parser.add_argument("experiment", help="its name in params.yaml")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    args = parser.parse_args()
    end_on_sigterm()
    prescribed = prescribe(args.experiment, args.device, Path("params.yaml"), Path("results"))
    print(told(prescribed, try_out(prescribed)))


if __name__ == "__main__":
    run_stage(main)
