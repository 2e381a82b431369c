"""A result that DVC does not have, or has under another name, is handed over without training, also where several
processes would train it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import MakeExperiment
from result_files import change_a_digit
from training_process import NoTracker
from training_stage import TrainingStage, contents

from photofinish.data.packed import PackedSplit
from photofinish.files import write_summed
from photofinish.machine.fingerprint import CpuHost
from photofinish.runs import stage
from photofinish.runs.run import Run, keep

_ENTRY = "schema: '2.0'\nstages:\n  train-cpu@small:\n    cmd: python stages/train.py\n"


@dataclass(frozen=True)
class ReadyStage:
    """One that DVC starts, and that may not train: what is there already is to be handed over."""

    files: TrainingStage
    run: Run
    result: Path
    """whole, and of this very training"""

    def start(self) -> dict[str, bytes]:
        """Its result."""
        folder, files = self.files.folder, self.files
        stage.train("cpu", folder / "small.json", folder / "cpu.json", files.data, None, files.out)
        return contents(files.out)


@pytest.fixture(params=[1, 2], ids=["one process", "two processes"])
def ready(
    make_experiment: MakeExperiment,
    cpu_host: CpuHost,
    packed_split: PackedSplit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> ReadyStage:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_STAGE", "train-cpu@small")
    monkeypatch.setattr(stage, "Tracker", NoTracker)
    monkeypatch.setattr(stage, "machine_to_itself", _refuse_to_train)
    host, experiment = cpu_host.model_copy(update={"processes": request.param}), make_experiment()
    files = TrainingStage.prepare(tmp_path, experiment, host, packed_split.folder)
    run = Run("small", "cpu", experiment, host, files.data, files.out, processes=request.param)
    result = tmp_path / ".photofinish" / "removed" / "old" / "cpu"
    write_summed(result / "learned" / "record.json", b"{}\n")
    write_summed(result / "timed" / "timings.json", f'{{"identity": "{run.identity()}"}}\n'.encode())
    return ReadyStage(files, run, result)


class _TrainsError(Exception):
    pass


def _refuse_to_train(_what: str) -> None:
    """In place of what is called before each training."""
    raise _TrainsError


def test_a_finished_result_is_handed_over_before_anything_is_started(ready: ReadyStage) -> None:
    finished = contents(ready.result)
    keep(ready.run.key(), ready.result)
    shutil.rmtree(ready.result)
    assert ready.start() == finished


def test_a_later_result_of_the_same_training_takes_the_place_of_the_earlier(ready: ReadyStage) -> None:
    keep(ready.run.key(), ready.result)
    write_summed(ready.result / "learned" / "record.json", b'{"trained": "again"}\n')
    later = contents(ready.result)
    keep(ready.run.key(), ready.result)
    shutil.rmtree(ready.result)
    assert ready.start() == later


def test_a_renamed_experiment_takes_over_the_result_of_its_old_name_once(ready: ReadyStage) -> None:
    renamed = contents(ready.result)
    assert ready.start() == renamed
    Path("dvc.lock").write_text(_ENTRY, encoding="utf-8")  # DVC has it
    with pytest.raises(_TrainsError):  # as --force demands
        ready.start()


def test_another_training_or_a_damaged_one_or_one_that_is_forced_takes_over_nothing(ready: ReadyStage) -> None:
    change_a_digit(ready.result / "learned" / "SHA256SUMS")
    with pytest.raises(_TrainsError):
        ready.start()
    write_summed(ready.result / "learned" / "record.json", b"{}\n")
    Path("dvc.lock").write_text(_ENTRY, encoding="utf-8")
    with pytest.raises(_TrainsError):
        ready.start()
    Path("dvc.lock").unlink()
    write_summed(ready.result / "timed" / "timings.json", b'{"identity": "of other settings"}\n')
    with pytest.raises(_TrainsError):
        ready.start()
