"""Train an experiment with its remedy and without, in turn, in a folder of its own that is thrown away.

Each is a training stage as DVC runs it: it waits for the machine to itself, and leaves results, checkpoints and
MLflow's store where it was started. So nothing of the user's is touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import photofinish
from photofinish.errors import UserError
from photofinish.files import write_text_atomically
from photofinish.hardware.hosts import fingerprint
from photofinish.params.reader import Params, read_params
from photofinish.remedy.prescription import Prescription, with_line
from photofinish.results import records

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
