"""A training in a folder of its own: what its stage is told, and what is made of what it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import MakeResult
from result_files import trained, write_result

from photofinish.comparing.device_results import Recorded
from photofinish.comparing.trial import run_apart, train_apart, with_values
from photofinish.errors import MistakeError, UserError

_STAGE = """\
import json, os, pathlib, sys
told = {"arguments": sys.argv[1:], "environment": dict(os.environ)}
pathlib.Path(os.environ["DVC_ROOT"], "told.json").write_text(json.dumps(told))
print("of the stage")
sys.exit(os.environ.get("FAILS") == "yes")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is to leave its files, beside a project whose stages write down what they are told."""
    (tmp_path / "project/stages").mkdir(parents=True)
    for stage in ("train", "split"):
        (tmp_path / f"project/stages/{stage}.py").write_text(_STAGE)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("DVC_ROOT", "of the project")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "of the project")
    monkeypatch.setenv("DVC_STAGE", "of the project")
    monkeypatch.setenv("OF_THE_USER", "kept")
    return tmp_path / "folder"


_PARAMS = """\
defaults: {epochs: 10, batch_size: 128}
datasets: {digits: {source: digits, validation: 0.2, test: 0.2}}
experiments: {mine: {dataset: digits, model: linear, optimizer: {name: sgd, lr: 0.1}}}
"""


def test_values_elsewhere_are_settings_like_any_other_and_the_users_file_stays(
    params_file: Path, tmp_path: Path
) -> None:
    params_file.write_text(_PARAMS, encoding="utf-8")
    values = {"experiments.mine.epochs": 3, "experiments.mine.optimizer.lr": 0.5, "devices.cpu.threads": 1}
    params = with_values(params_file, values, tmp_path / "copy.yaml")
    experiment = params.experiments["mine"]
    assert (experiment.epochs, experiment.batch_size, experiment.optimizer.lr) == (3, 128, 0.5)
    assert params.devices.cpu.threads == 1
    assert params_file.read_text(encoding="utf-8") == _PARAMS
    with pytest.raises(MistakeError, match=r"epochs"):
        with_values(params_file, {"experiments.mine.epochs": -1}, tmp_path / "copy.yaml")


def test_a_stage_runs_with_its_own_folder_as_the_root_and_no_word_of_the_projects_mlflow(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_apart("train", folder, "it", device="cpu", data=folder / "data")
    told = json.loads((folder / "told.json").read_text())
    assert told["arguments"] == ["--device", "cpu", "--data", str(folder / "data")]
    assert told["environment"]["DVC_ROOT"] == str(folder)
    assert told["environment"]["OF_THE_USER"] == "kept"
    assert not {"MLFLOW_TRACKING_URI", "DVC_STAGE"} & told["environment"].keys()
    assert capfd.readouterr().out == "of the stage\n"
    run_apart("split", folder, "it")
    assert capfd.readouterr().out == ""


def test_a_training_is_what_its_stage_left(folder: Path, make_result: MakeResult) -> None:
    write_result(folder / "results", trained(make_result, "small-mlp", epoch_seconds=(5.0,)))
    run = train_apart("small-mlp", "cpu", folder, "the remedy", data=folder / "data")
    assert isinstance(run, Recorded)
    assert (run.experiment, run.timings.epochs[0].training_seconds) == ("small-mlp", 5.0)
    arguments = json.loads((folder / "told.json").read_text())["arguments"]
    out = folder / "results/small-mlp/cpu"
    assert arguments == ["--device", "cpu", "--out", str(out), "--data", str(folder / "data")]


def test_one_that_failed_or_found_no_device_says_so(
    folder: Path, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_result(folder / "results", make_result("small-mlp", "gpu", unavailable="no driver"))
    with pytest.raises(UserError, match=r"^the remedy found no such device: no driver$"):
        train_apart("small-mlp", "gpu", folder, "the remedy")
    monkeypatch.setenv("FAILS", "yes")
    with pytest.raises(UserError, match=r"^the remedy failed, as told above$"):
        train_apart("small-mlp", "gpu", folder, "the remedy")
