"""`photofinish ask NAME`: samples of an experiment's training, and whole jobs by them."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import MakeExperiment
from result_files import pair_of

from photofinish.asking.epochs import SampledSteps, sample_of
from photofinish.asking.trial import sample_training
from photofinish.commands.ask_experiments import are_experiments
from photofinish.comparing.decision import decide
from photofinish.comparing.device_results import Sampled
from photofinish.comparing.speedups import job_interval
from photofinish.data.packed import PackedSplit
from photofinish.errors import ConfigError
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results import records
from photofinish.runs.run import Run
from photofinish.training.torch_device import CPU
from photofinish.training.world import World


@pytest.mark.parametrize("seconds", [1e-6, 600.0])
def test_a_sample_answers_for_all_epochs_and_keeps_nothing(
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    packed_split: PackedSplit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
) -> None:
    monkeypatch.chdir(tmp_path)
    schedule = {"name": "one_cycle", "max_lr": 0.1}
    experiment = make_experiment(epochs=12, seeds=2, schedule=schedule)
    run = Run("small", "cpu", experiment, cpu_host, packed_split.folder, tmp_path / "out")
    sample_training(run, CPU, World(CPU), seconds, 0.0)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert files == ["out/record.json", "out/timings.json"]

    record = records.read_record(run.out / "record.json", records.TrainingRecord)
    timings = records.read_record(run.out / "timings.json", records.Timings)
    assert timings.planned_epochs == 12
    is_part = seconds < 1
    assert (timings.epochs_left > 0, timings.sampled_steps) == (is_part, 2 if is_part else 60)
    assert timings.operations
    low, high = job_interval(timings)
    assert low < timings.whole_seconds < high
    assert timings.seeds_seconds == pytest.approx(timings.whole_seconds - timings.once_seconds)
    own = decide(pair_of(Sampled("small", record, timings, ()))).own
    assert own.cpu_seconds == timings.whole_seconds


def test_a_part_of_an_epoch_counts_its_start_once_and_all_of_validation() -> None:
    start = SampledSteps(0, is_first=True, steps=1, seconds=6.0)
    rest = [SampledSteps(0, is_first=False, steps=2, seconds=seconds) for seconds in (1.0, 3.0)]
    sample = sample_of([start, *rest], 10.5, 4.0)
    (epoch,) = sample.epochs
    assert (epoch.training_seconds, epoch.validation_seconds) == (5.0 + 10.5, 4.0)
    assert sample.steps == 5
    assert [part.training_seconds for part in sample.parts] == [5.0 + 5.25, 5.0 + 15.75]


def test_a_first_epoch_that_fills_a_cache_counts_once() -> None:
    parts = [
        SampledSteps(epoch, is_first=step == 0, steps=1, seconds=1.0 if epoch else 3.0)
        for epoch in range(2)
        for step in range(4)
    ]
    sample = sample_of(parts, 4.0, 0.0)
    assert sample.epochs[0].training_seconds == 4.0
    assert sample.once_seconds == 4 * 2.0


def test_names_of_params_yaml_are_told_from_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not are_experiments(["python", "train.py"])
    with pytest.raises(ConfigError, match="name a command"):
        are_experiments([])
    (tmp_path / "params.yaml").write_text("[another, program's]\n")
    (tmp_path / "photofinish/stages").mkdir(parents=True)
    (tmp_path / "photofinish/stages/plan.py").touch()
    params = tmp_path / "photofinish/params.yaml"
    params.write_text("experiments: {small: }\nscripts: {timed: }\n")
    for names in ([], ["small"], ["timed", "small"]):
        assert are_experiments(names)
    assert not are_experiments(["python", "small"])
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        are_experiments(["smal"])
