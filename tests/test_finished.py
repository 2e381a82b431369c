"""A result that DVC does not have yet is handed over without training, also where several processes would train it."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import MakeExperiment
from training_process import NoTracker
from training_stage import TrainingStage, contents

from photofinish.data.packed import PackedSplit
from photofinish.files import write_summed
from photofinish.machine.fingerprint import CpuHost
from photofinish.results.finished import keep
from photofinish.runs import stage
from photofinish.runs.run import Run


@pytest.mark.parametrize("processes", [1, 2])
def test_a_finished_result_is_handed_over_before_anything_is_started(
    make_experiment: MakeExperiment,
    cpu_host: CpuHost,
    packed_split: PackedSplit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_STAGE", "train-cpu@small")
    monkeypatch.setattr(stage, "Tracker", NoTracker)
    monkeypatch.setattr(stage, "machine_to_itself", None)  # whatever trains calls it
    host, experiment = cpu_host.model_copy(update={"processes": processes}), make_experiment()
    files = TrainingStage.prepare(tmp_path, experiment, host, packed_split.folder)
    for part in ("learned", "timed"):
        write_summed(tmp_path / "finished" / part / "figures.json", b"{}\n")
    run = Run("small", "cpu", experiment, host, files.data, files.out, processes=processes)
    keep(run.key(), tmp_path / "finished")
    stage.train("cpu", tmp_path / "small.json", tmp_path / "cpu.json", files.data, None, files.out)
    assert contents(files.out) == contents(tmp_path / "finished")
