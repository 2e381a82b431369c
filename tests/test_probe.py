"""`make probe`: a few epochs tell what the whole job takes, with an interval that holds; the project stays as it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm_python
import yaml
from conftest import ONE_THREAD, ROOT, MakeResult
from result_files import BUSY, trained, write_result
from stand_in_stages import StandInStages
from training_stage import contents

from photofinish.comparing import trial
from photofinish.comparing.trial import estimate, probe, probe_told, sum_interval
from photofinish.errors import MistakeError, UserError
from photofinish.params.compare import Comparing, Prices

NAME = "digits-linear"
PARAMS: dict[str, Any] = {
    "defaults": {"epochs": 100, "batch_size": 128},
    "devices": ONE_THREAD,
    "datasets": {"digits": {"source": "digits", "validation": 0.2, "test": 0.2}},
    "experiments": {
        NAME: {"dataset": "digits", "model": "linear", "optimizer": {"name": "sgd", "lr": 0.1}, "repeats": 3}
    },
    "compare": {"prices": {"cpu_hour": 3.6}},
}


def test_the_job_is_what_happens_once_and_its_epochs_at_their_mean(make_result: MakeResult) -> None:
    timings = trained(make_result, epoch_seconds=(2.0, 4.0, 3.0), total_seconds=30.0).timings
    found = estimate(timings, 100)
    between = 0.07 / 3  # of the made-up overhead
    assert found.epoch_seconds == pytest.approx(3.1 + between)  # with 0.1 s of validation
    assert found.once_seconds == pytest.approx(30.0 - 3 * (3.1 + between))
    assert found.job_seconds == pytest.approx(found.once_seconds + 100 * found.epoch_seconds)


def test_the_interval_is_students_with_what_a_run_may_be_off(make_result: MakeResult) -> None:
    timings = trained(make_result, epoch_seconds=(2.0, 4.0, 3.0), total_seconds=30.0).timings
    found = estimate(timings, 100)
    off = 4.303 * 1.0 * (100**2 / 3 + 100) ** 0.5  # of the epochs' spread, 1 s
    assert found.interval[1] == pytest.approx((found.job_seconds + off) * 1.05, rel=1e-5)
    assert found.interval[0] == pytest.approx((found.job_seconds - off) / 1.05, rel=1e-5)
    busy = estimate(timings.model_copy(update={"load": (BUSY,)}), 100)
    assert busy.interval[1] == pytest.approx((found.job_seconds + off) * 2, rel=1e-5)


@pytest.mark.parametrize("tried", [2, 3, 5])
def test_the_sum_of_what_comes_lies_in_the_interval_95_times_of_100(tried: int) -> None:
    random, count, held = np.random.default_rng(tried), 30, 0
    for _ in range(1000):
        values = random.normal(1.0, 0.02, tried + count)
        low, high = sum_interval(values[:tried].tolist(), count)
        held += low <= values[tried:].sum() <= high
    assert 930 <= held <= 970


def test_it_is_told_as_an_estimate_with_its_cost(make_result: MakeResult) -> None:
    run = trained(make_result, epoch_seconds=(3.0, 3.0), total_seconds=10.0)
    text = probe_told("x", run, estimate(run.timings, 1000), Comparing(prices=Prices(cpu_hour=3.6)))
    assert text.splitlines()[0] == "x on the CPU (Some CPU), estimated from 2 epochs:"
    assert "the whole job of 1,000 epochs takes 3,1" in text
    assert "95 % interval" in text
    assert "It costs 3.1" in text
    assert "USD" in text.splitlines()[2]
    assert len(text.splitlines()) == 3


def test_without_a_price_no_cost_is_told_and_a_busy_machine_is(make_result: MakeResult) -> None:
    run = trained(make_result, epoch_seconds=(3.0, 3.0), total_seconds=10.0)
    run = replace(run, timings=run.timings.model_copy(update={"load": (BUSY,)}))
    lines = probe_told("x", run, estimate(run.timings, 1000), Comparing()).splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("Take it with care: other programs used 40% of the cores")


def test_no_job_takes_less_than_nothing() -> None:
    assert sum_interval([0.1, 5.0], 3)[0] == 0.0


@pytest.mark.parametrize(
    ("name", "epochs", "told"),
    [
        (NAME, 1, "EPOCHS=1 tells nothing"),
        ("digit-linear", 2, "/params.yaml has no experiment 'digit-linear'.* did you mean 'digits-linear'"),
    ],
)
def test_what_cannot_be_probed_is_told(params_file: Path, name: str, epochs: int, told: str) -> None:
    params_file.write_text(yaml.safe_dump(PARAMS), encoding="utf-8")
    with pytest.raises(MistakeError, match=told):
        probe(name, "cpu", epochs, params_file)


_PLAN = "plan params=APART/params.yaml results=APART/results out=APART/plan"
_TRAIN = (
    f"train device=cpu out=APART/results/{NAME}/cpu experiment=APART/plan/experiments/{NAME}.json "
    "host=APART/plan/hosts/cpu.json data={data} weights={weights}"
)
_DOWNLOAD = "download dataset=APART/plan/datasets/digits.json out=APART/raw/digits"
_SPLIT = "split dataset=APART/plan/datasets/digits.json raw=APART/raw/digits out=APART/splits/digits"
_WEIGHTS = "download_weights plan=APART/plan/weights.json out=APART/weights"
_OWN = {"data": "PROJECT/data/splits/digits", "weights": f"PROJECT/data/weights/{NAME}"}
_APART = {"data": "APART/splits/digits", "weights": f"APART/weights/{NAME}"}


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_result: MakeResult) -> StandInStages:
    """Of a project, the current directory, whose data are as they are planned now."""
    project = tmp_path / "project"
    for root in (tmp_path / "planned", project / "data/plan"):
        (root / "datasets").mkdir(parents=True)
        (root / "datasets/digits.json").write_text("the data set", encoding="utf-8")
        (root / "weights.json").write_text("no weights", encoding="utf-8")
    (project / "data/splits/digits").mkdir(parents=True)
    (project / "data/splits/digits/manifest.json").write_text("{}", encoding="utf-8")
    (project / "data/weights" / NAME).mkdir(parents=True)
    (project / "params.yaml").write_text(yaml.safe_dump(PARAMS), encoding="utf-8")
    write_result(tmp_path / "learned", trained(make_result, NAME, epoch_seconds=(3.0, 3.0, 3.0), total_seconds=20.0))
    leaves = {"plan": tmp_path / "planned", "train": tmp_path / "learned" / NAME / "cpu"}
    monkeypatch.chdir(project)
    return StandInStages.put(
        project, tmp_path / "told", {**leaves, **dict.fromkeys(("download", "split", "download_weights"))}
    )


def test_a_probe_trains_its_epochs_once_on_the_projects_own_data_and_tells_of_the_whole_job(
    stages: StandInStages, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trial", "probe", NAME])
    monkeypatch.setattr(trial, "end_on_sigterm", lambda: None)
    trial.main()
    assert stages.told == [_PLAN, _TRAIN.format(**_OWN)]
    apart = json.loads(stages.read("plan", "params"))
    assert apart["experiments"][NAME] == {**PARAMS["experiments"][NAME], "epochs": 3, "repeats": 1, "seeds": 1}
    told = capsys.readouterr().out
    assert told.startswith(f"{NAME} on the CPU (Some CPU), estimated from 3 epochs:")
    assert "the whole job of 100 epochs takes " in told
    assert "It costs 0." in told
    monkeypatch.setattr(sys, "argv", ["trial", "probe", NAME, "--device", "gpu", "--epochs", "1"])
    with pytest.raises(MistakeError, match="EPOCHS=1"):
        trial.main()


@pytest.mark.parametrize(
    ("changed", "made", "where"),
    [
        ("data/plan/datasets/digits.json", (_DOWNLOAD, _SPLIT), {**_OWN, "data": _APART["data"]}),
        ("data/plan/weights.json", (_WEIGHTS,), {**_OWN, "weights": _APART["weights"]}),
    ],
)
@pytest.mark.parametrize("change", ["other", "missing"])
def test_what_is_planned_otherwise_now_or_is_not_there_is_made_apart(
    stages: StandInStages, changed: str, change: str, made: tuple[str, ...], where: dict[str, str]
) -> None:
    if change == "missing":
        Path(changed).unlink()
    else:
        Path(changed).write_text("planned otherwise", encoding="utf-8")
    probe(NAME, "cpu", 2, Path("params.yaml"))
    assert stages.told == [_PLAN, *made, _TRAIN.format(**where)]


def test_data_that_were_split_before_they_were_planned_as_now_are_split_apart(stages: StandInStages) -> None:
    os.utime("data/splits/digits/manifest.json", (0, 0))
    probe(NAME, "cpu", 2, Path("params.yaml"))
    assert stages.told == [_PLAN, _DOWNLOAD, _SPLIT, _TRAIN.format(**_APART | {"weights": _OWN["weights"]})]


@pytest.mark.usefixtures("stages")
def test_a_stage_that_fails_ends_the_probe() -> None:
    Path("stages/plan.py").write_text("raise SystemExit(1)", encoding="utf-8")
    with pytest.raises(UserError, match=r"^the probe failed, as told above$"):
        probe(NAME, "cpu", 2, Path("params.yaml"))


def test_a_training_that_fails_ends_the_probe(stages: StandInStages) -> None:
    Path("stages/train.py").write_text("raise SystemExit(1)", encoding="utf-8")
    with pytest.raises(UserError, match=r"^the probe failed, as told above$"):
        probe(NAME, "cpu", 2, Path("params.yaml"))
    assert stages.told == [_PLAN]


@pytest.mark.slow
def test_a_probe_trains_beside_the_project_and_changes_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(PARAMS), encoding="utf-8")
    (tmp_path / "reference").mkdir()
    shutil.copytree(ROOT / "stages", tmp_path / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    before = contents(tmp_path)
    command = [warm_python.executable(), "-m", "photofinish.comparing.trial", "probe", NAME, "--epochs", "2"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert contents(tmp_path) == before
    assert f"{NAME} on the CPU" in ran.stdout
    assert "the whole job of 100 epochs takes " in ran.stdout
