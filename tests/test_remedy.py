"""`make remedy`: the line that is suggested is tried beside the user's own files, none of which it touches."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import warm_python
import yaml
from conftest import ROOT, MakeExperiment, MakeResult
from result_files import changed_history, made_up_attribution, trained, write_result
from stand_in_stages import StandInStages
from training_stage import contents

from photofinish.comparing import trial
from photofinish.comparing.device_results import Recorded
from photofinish.comparing.trial import Prescription, prescribe, remedy_told, try_out, with_values
from photofinish.data.packed import PackedSplit
from photofinish.errors import MistakeError, UserError
from photofinish.files import sha256_of_bytes
from photofinish.machine.fingerprint import fingerprint
from photofinish.params.devices import Devices
from photofinish.params.experiment import Experiment
from photofinish.params.reader import read_params
from photofinish.results.records import Timings, read_record, write_record

NAME = "digits-linear"
SGD, LOSS = {"name": "sgd", "lr": 0.1}, {"name": "./loss.py:loss"}
LOSS_FILE = "from torch.nn.functional import cross_entropy as loss\n"
PARAMS: dict[str, Any] = {
    "defaults": {"epochs": 3, "batch_size": 16, "input": {"name": "loader", "workers": 0}},
    "datasets": {"small": {"source": "digits", "validation": 0.2, "test": 0.2}},
    "experiments": {NAME: {"dataset": "small", "model": "linear", "loss": LOSS, "optimizer": SGD}},
}


@pytest.fixture
def experiment(make_experiment: MakeExperiment) -> Experiment:
    """As the params file has it."""
    settings = {"model": {"name": "linear"}, "loss": LOSS, "optimizer": SGD}
    return make_experiment(**settings, input={"name": "loader", "workers": 0})


@pytest.fixture
def folder(tmp_path: Path, make_result: MakeResult, experiment: Experiment, packed_split: PackedSplit) -> Path:
    """A project with a loss of its own that has trained, by a slow loader: of each of its 38 steps, 90 ms are that."""
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(PARAMS), encoding="utf-8")
    (tmp_path / "loss.py").write_text(LOSS_FILE, encoding="utf-8")
    attribution = made_up_attribution(waiting=0.09)
    made_up = trained(
        make_result,
        NAME,
        epoch_seconds=(3.8,) * 3,
        total_seconds=700.0,
        step_seconds=(0.01,) * 3,
        attribution=attribution,
    )
    own_code = {"loss.py": sha256_of_bytes(LOSS_FILE.encode())}
    record = made_up.record.model_copy(update={"experiment": experiment, "own_code": own_code})
    host, _ = fingerprint(Devices())
    timings = made_up.timings.model_copy(update={"host": host})
    write_result(tmp_path / "results", replace(made_up, record=record, timings=timings))
    write_result(tmp_path / "results", make_result(NAME, "gpu", unavailable="no accelerator: made up"))
    shutil.copytree(packed_split.folder, tmp_path / "data" / "splits" / "small")
    (tmp_path / "data" / "weights" / NAME).mkdir(parents=True)
    (tmp_path / "stages").symlink_to(ROOT / "stages")
    return tmp_path


def remedy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [warm_python.executable(), "-m", "photofinish.comparing.trial", "remedy", *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def prescribed_in(folder: Path) -> Prescription:
    return prescribe(NAME, "cpu", folder / "params.yaml", folder / "results")


@pytest.mark.slow
def test_a_remedy_is_tried_and_told_and_nothing_of_the_users_is_touched(folder: Path) -> None:
    before = contents(folder)
    ran = remedy(folder, NAME)
    assert ran.returncode == 0, ran.stderr
    assert contents(folder) == before
    first, predicted, really, learned, diagnosis, line = ran.stdout.splitlines()[-6:]
    assert first.startswith(f"{NAME} on the cpu: the loader takes 90% of an epoch's time")
    assert predicted.startswith("predicted: 8.33 to 12 times as fast (an epoch).")
    assert "times as fast; an epoch took 3.80 s without (the results on disk)," in really
    assert learned.startswith("learned:   something else")  # than the made-up results
    assert "diagnosis: " in diagnosis
    assert line == f"The line:  experiments.{NAME}.input: resident"


@pytest.mark.parametrize(("job_seconds", "ways"), [
    (600.1, ["with"]), (600.0, ["without", "with"]), (60.1, ["without", "with"]),
    (60.0, ["without", "with", "without", "with"]),
])  # fmt: skip
def test_a_short_job_is_trained_both_ways_by_turns_and_a_long_one_held_against_its_results(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    job_seconds: float,
    ways: list[str],
) -> None:
    monkeypatch.chdir(folder)
    (folder / "stages").unlink()
    stages = StandInStages.put(
        folder, tmp_path_factory.mktemp("apart") / "told", {"train": folder / "results" / NAME / "cpu"}
    )
    found = prescribe(NAME, "cpu", Path("params.yaml"), Path("results"))
    timings = found.run.timings.model_copy(update={"total_seconds": job_seconds})
    without, with_remedy = try_out(replace(found, run=replace(found.run, timings=timings)))
    assert (len(without), len(with_remedy)) == (ways.count("without"), ways.count("with"))
    assert stages.told == [
        f"train device=cpu out=APART/results/{NAME}/cpu experiment=APART/experiments/{NAME}.json host=APART/cpu.json "
        f"data=PROJECT/data/splits/small weights=PROJECT/data/weights/{NAME}"
        for _ in ways
    ]
    told = capfd.readouterr().err.splitlines()
    assert [line.split(" the remedy: ")[0] for line in told] == ways
    planned = json.loads(stages.read("train", "experiment"))  # the last's, which is with the remedy
    assert planned["input"]["name"] == "resident"
    assert list(planned["own_code"]) == ["loss.py"]


def test_the_command_tells_of_the_device_that_it_names(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(trial, "end_on_sigterm", lambda: None)
    (folder / "stages").unlink()
    StandInStages.put(folder, tmp_path / "told", {"train": folder / "results" / NAME / "cpu"})
    monkeypatch.setattr(sys, "argv", ["trial", "remedy", NAME])
    trial.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{NAME} on the cpu: ")
    assert lines[-1] == f"The line:  experiments.{NAME}.input: resident"
    monkeypatch.setattr(sys, "argv", ["trial", "remedy", NAME, "--device", "gpu"])
    with pytest.raises(UserError, match="was not trained on the gpu"):
        trial.main()


@pytest.mark.parametrize("arguments", [[], ["repair", NAME], ["remedy"], ["remedy", NAME, "--device", "tpu"]])
def test_another_command_is_refused_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trial", *arguments])
    with pytest.raises(SystemExit, match="2"):
        trial.main()
    assert capsys.readouterr().err.startswith("usage: python -m photofinish.comparing.trial")


def test_each_command_tells_of_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["probe", "--help"]):
        monkeypatch.setattr(sys, "argv", ["trial", *arguments])
        with pytest.raises(SystemExit, match="0"):
            trial.main()
    words = " ".join(capsys.readouterr().out.split())
    assert " ".join(str(trial.__doc__).split()) in words
    assert " experiment its name in params.yaml " in words
    assert words.endswith("--epochs EPOCHS how many to train")


def test_a_training_that_fails_is_told_with_what_it_was_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "stages").unlink()
    (folder / "stages").mkdir()
    (folder / "stages" / "train.py").write_text("raise SystemExit(1)", encoding="utf-8")
    with pytest.raises(UserError, match=r"^the training with the remedy failed, as told above$"):
        try_out(prescribe(NAME, "cpu", Path("params.yaml"), Path("results")))


def test_the_line_changes_one_setting_in_a_copy(folder: Path, experiment: Experiment) -> None:
    before = (folder / "params.yaml").read_bytes()
    found = prescribed_in(folder)
    changed = with_values(folder / "params.yaml", {found.remedy.key: found.remedy.value}, folder / "copy.yaml")
    changed = changed.experiments[NAME]
    assert changed.input.name == "resident"
    assert changed.model_copy(update={"input": experiment.input}) == experiment
    assert (folder / "params.yaml").read_bytes() == before


def test_a_date_is_in_the_copy_what_it_is_in_the_file(params_file: Path, tmp_path: Path) -> None:
    mine = {"dataset": "small", "model": {"name": "net.py:Net", "since": datetime.date(2026, 1, 1)}, "optimizer": SGD}
    params_file.write_text(yaml.safe_dump({**PARAMS, "experiments": {"mine": mine}}), encoding="utf-8")
    changed = with_values(params_file, {"experiments.mine.epochs": 5}, tmp_path / "copy.yaml").experiments["mine"]
    assert changed.model_copy(update={"epochs": 3}) == read_params(params_file).experiments["mine"]


def test_what_was_gained_and_learned_and_whether_the_diagnosis_changed_is_told(
    folder: Path, make_result: MakeResult, experiment: Experiment
) -> None:
    prescribed = prescribed_in(folder)

    def outcome(waiting: float, epoch_seconds: float, sha256: str) -> Recorded:
        attribution = made_up_attribution(waiting=waiting)
        epochs, steps = (epoch_seconds,) * 3, (0.01,) * 3
        made_up = trained(make_result, NAME, epoch_seconds=epochs, step_seconds=steps, attribution=attribution)
        record = made_up.record.model_copy(update={"experiment": experiment, "weights_sha256": sha256})
        history = changed_history(made_up, validation_accuracy=[0.5 if sha256 == "a" else 0.25] * 3)
        return replace(made_up, record=record, history=history)

    slow, slower, quick = outcome(0.09, 3.8, "a"), outcome(0.09, 4.2, "a"), outcome(0.001, 0.4, "a")
    text = remedy_told(prescribed, (slow, slower), (quick, quick))
    assert "really:    10 times as fast; an epoch took 4.00 s without, 400 ms with." in text
    assert "learned:   the same, bit for bit." in text
    assert "not input-bound" in text
    text = remedy_told(replace(prescribed, run=slow), (), (outcome(0.09, 3.8, "b"),))
    assert "really:    1.00 times as fast; an epoch took 3.80 s without (the results on disk), 3.80 s with." in text
    assert "validation accuracy 25.00%, without the remedy 50.00%" in text
    assert "still input-bound" in text


def test_of_values_the_loss_is_told_and_where_nothing_slows_it_any_more_that(
    folder: Path, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    prescribed = prescribed_in(folder)

    def outcome(sha256: str, last_loss: float) -> Recorded:
        made_up = trained(make_result, NAME, epoch_seconds=(3.8,) * 3)
        record = made_up.record.model_copy(update={"task": "values", "weights_sha256": sha256})
        return replace(made_up, record=record, history=changed_history(made_up, validation_loss=[9.0, 8.0, last_loss]))

    monkeypatch.setattr(trial, "diagnose", lambda _: [])
    text = remedy_told(prescribed, (outcome("a", 0.123456),), (outcome("b", 12345.6),))
    assert "learned:   something else: validation loss 1.235e+04, without the remedy 0.1235." in text
    assert "diagnosis: no longer input-bound" in text


def test_no_results_an_unknown_name_and_a_missing_device_are_told(folder: Path) -> None:
    params, results = folder / "params.yaml", folder / "results"
    with pytest.raises(
        MistakeError, match=rf"{params} has no experiment 'digit-linear'.* did you mean 'digits-linear'"
    ):
        prescribe("digit-linear", "cpu", params, results)
    with pytest.raises(UserError, match="has no results yet to find a remedy by: run `dvc repro` first"):
        prescribe(NAME, "cpu", params, folder / "elsewhere")
    with pytest.raises(UserError, match="was not trained on the gpu, so nothing can be remedied: no accelerator"):
        prescribe(NAME, "gpu", params, results)


@pytest.mark.parametrize(
    "changed", [{"defaults": {**PARAMS["defaults"], "epochs": 4}}, {"devices": {"cpu": {"threads": 3}}}]
)
def test_results_of_other_settings_than_the_file_has_now_are_refused(folder: Path, changed: dict[str, Any]) -> None:
    (folder / "params.yaml").write_text(yaml.safe_dump({**PARAMS, **changed}), encoding="utf-8")
    with pytest.raises(UserError, match=r"is of other settings or another machine than `dvc repro` would use now"):
        prescribed_in(folder)


def test_where_there_is_nothing_to_remedy_the_reason_is_told(folder: Path) -> None:
    file = folder / "results" / NAME / "cpu" / "timed" / "timings.json"
    unknown = {"attribution": None, "not_attributed": "several processes train together"}
    write_record(file, read_record(file, Timings).model_copy(update=unknown))
    with pytest.raises(UserError, match=r"nothing to remedy in digits-linear on the cpu: .*several processes"):
        prescribed_in(folder)


@pytest.mark.parametrize(
    ("reasons", "told"), [((), "no diagnosis"), (("slow", "slower"), "slow; nothing helps. slower; nothing helps")]
)
def test_all_that_cannot_be_remedied_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reasons: tuple[str, ...], told: str
) -> None:
    found = prescribed_in(folder).diagnosis
    without = [
        replace(found, remedy=None, cause="not known", sentence=reason, no_remedy="nothing helps") for reason in reasons
    ]
    monkeypatch.setattr(trial, "diagnose", lambda _: without)
    with pytest.raises(UserError, match=f"nothing to remedy in {NAME} on the cpu: {told}$"):
        prescribed_in(folder)
