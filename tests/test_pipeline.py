"""The whole pipeline: `dvc repro` runs the stages that a change touches, and no others."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ONE_THREAD, ROOT, Project, clone_project
from dvc.repo import Repo
from test_scripts import WITH_LINE, WITHOUT
from training_stage import contents

pytestmark = pytest.mark.slow

_INHERITS, _OWN = "inherits-epochs", "own-epochs"
_PARAMS: dict[str, Any] = {
    "defaults": {
        "seed": 0,
        "epochs": 2,
        "batch_size": 128,
        "optimizer": {"name": "sgd", "lr": 0.1},
        "model": "./net.py:net",
        "input": {"name": "loader"},
        "metrics": ["./scores.py:hits"],
    },
    "devices": ONE_THREAD,
    "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
    "experiments": {
        _INHERITS: {"dataset": "digits"},
        _OWN: {"dataset": "digits", "epochs": 3, "optimizer": {"lr": 0.05}},
    },
    "scripts": {
        "timed": {
            "command": "python timed.py {device}",
            "deps": ["timed.py"],
            "metrics": "metrics.json",
        },
        "whole": {"command": "python whole.py {device}", "deps": ["whole.py"]},
    },
}
_EACH = ("train-cpu", "train-gpu", "evaluate")
_IMPORT = 'photofinish = __import__("photofinish")\n'
_FILES = {
    "net.py": "import torch\nfrom blocks import head\n\n\n"
    "def net(classes):\n    return torch.nn.Sequential(torch.nn.Flatten(), head(classes))\n",
    "blocks.py": "import torch\n\n\ndef head(classes):\n    return torch.nn.Linear(64, classes)\n",
    "scores.py": "def hits(outputs, targets):\n    return (outputs.argmax(1) == targets).sum()\n",
    # The package is a part of this clone, and is no dependency of a user's script.
    "timed.py": WITH_LINE.replace("import photofinish\n", _IMPORT),
    "whole.py": WITHOUT.replace("import photofinish\n", _IMPORT),
}
_WORKER = Path("src/photofinish/tracking/mlflow_worker.py")
_EVERY_TIME = {"plan"}
_TRAIN = {"train-cpu", "train-gpu"}
_MEASURE = {"measure-cpu", "measure-gpu"}
_SCRIPTS = {f"script-{device}@{name}" for device in ("cpu", "gpu") for name in ("timed", "whole")}
_ONCE = {"download@digits", "split@digits", "download-weights", "compare"}


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Make one project for the module, run everything once and commit dvc.lock.

    It has two experiments of seconds, on a machine whose NVIDIA GPUs are hidden. The first
    output and Git's status after it lie beside it.
    """
    project = clone_project(tmp_path_factory.mktemp("pipeline") / "project").without_mlflow()
    project.environment["CUDA_VISIBLE_DEVICES"] = ""
    for name, text in _FILES.items():
        (project.root / name).write_text(text, encoding="utf-8")
    project.write_params(_PARAMS)
    project.commit()
    ran = project.run("photofinish", "run", "--verbose")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    first = ran.stdout, project.git("status", "--porcelain")
    project.root.with_name("first.json").write_text(json.dumps(first), encoding="utf-8")
    project.commit()
    return project


@pytest.fixture
def project(reproduced: Project) -> Project:
    """Restore the project to its commit after the previous test."""
    changed = reproduced.git("status", "--porcelain")
    reproduced.git("checkout", ".")
    if " M dvc.lock\n" in changed:
        _dvc(reproduced, "checkout", "--force")
    return reproduced


def _stages_run(output: str) -> set[str]:
    return set(re.findall(r"^Running stage '(.*)'", output, re.MULTILINE))


def _stages_restored(output: str) -> set[str]:
    return set(re.findall(r"^Stage '(.*)' is cached - skipping run", output, re.MULTILINE))


def _of(experiment: str) -> set[str]:
    return {f"{stage}@{experiment}" for stage in _EACH}


def _stages_to_run(project: Project) -> set[str]:
    """Return the stages that `dvc repro` would run now, without names."""
    plan = yaml.safe_load((project.root / "dvc.lock").read_text(encoding="utf-8"))["stages"]["plan"]
    planned = project.run("sh", "-c", plan["cmd"])
    assert planned.returncode == 0, planned.stdout + planned.stderr
    with Repo(str(project.root)) as repo:
        names = {name.rpartition(":")[2].partition("@")[0] for name in repo.status()}
    return names - _EVERY_TIME


def _dvc(project: Project, *arguments: str) -> str:
    ran = project.run("dvc", *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_a_run_goes_from_nothing_to_the_answers(project: Project) -> None:
    output, git_status = json.loads(project.root.with_name("first.json").read_bytes())
    measured = {f"{stage}@{name}" for stage in _MEASURE for name in (_INHERITS, _OWN)}
    every = _EVERY_TIME | _ONCE | _SCRIPTS | measured | _of(_INHERITS) | _of(_OWN)
    assert _stages_run(output) == every
    ends = r"(.*-.*s|as busy as now(; .* when idle)?)"  # as other programs run or not
    line = rf"{_OWN} on cpu: about .* for 3 epochs \({ends}\), without MLflow's start-up"
    training = f"train-cpu@{_OWN}"
    assert re.search(f"^{line}$(\n.*)*^Running stage '{training}'", output, re.MULTILINE)
    assert output.splitlines()[-1].startswith("Next: `photofinish report --open`")
    assert (project.root / "report" / "index.html").is_file()
    assert git_status == "?? dvc.lock\n?? metrics.json\n?? metrics/\n?? plots/\n"
    with (project.root / "report" / "comparison.csv").open(encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 8
    trained = {row["experiment"] for row in rows if row["status"] == "trained"}
    assert trained == {_INHERITS, _OWN, "timed", "whole"}


@pytest.mark.parametrize(
    ("lines", "stages"),
    [
        (
            {
                "src/photofinish/config/problems.py": "added = 1",
                "src/photofinish/training/step.py": "'A docstring.'  # and a comment",
                "blocks.py": "# a comment",
                "timed.py": "# a comment",
            },
            set(),
        ),
        (
            {"src/photofinish/config/tables/prices.csv": "", "scores.py": "added = 1"},
            {"compare", "evaluate"},
        ),
        ({"src/photofinish/measure/take_parts.py": "added = 1"}, _MEASURE),
        ({"blocks.py": "'A string.'"}, _MEASURE | _TRAIN),
    ],
)
def test_edited_files_run_the_stages_that_import_them(
    project: Project, lines: dict[str, str], stages: set[str]
) -> None:
    for edited, line in lines.items():
        with (project.root / edited).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    assert _stages_to_run(project) == stages


def test_a_setting_of_the_gpu_and_a_time_limit_of_the_cpu_run_on_theirs(project: Project) -> None:
    pinned = {"input": {"name": "loader", "pin_memory": True, "non_blocking": True}}
    longer = _PARAMS["experiments"] | {_OWN: _PARAMS["experiments"][_OWN] | {"time_limit": "1 h"}}
    defaults = _PARAMS["defaults"] | pinned
    project.write_params({**_PARAMS, "defaults": defaults, "experiments": longer})
    assert _stages_to_run(project) == {"measure-gpu", "train-gpu", "train-cpu"}


def test_other_epochs_train_in_a_copy_that_logs_here(
    project: Project, empty_database: Path
) -> None:
    shutil.copy(ROOT / _WORKER, project.root / _WORKER)
    shutil.copy(empty_database, project.root)
    state = project.root / ".photofinish"
    git_status, locks_before = project.git("status", "--porcelain"), set(state.rglob("*.lock"))
    changes = ("defaults.epochs=3", "defaults.optimizer.lr=0.05")
    options = [part for change in changes for part in ("--set-param", change)]
    output = _dvc(project, "exp", "run", "--temp", "--name", "longer", *options)
    assert _stages_run(output) == {*_EVERY_TIME, "compare"} | _of(_INHERITS)
    assert project.git("status", "--porcelain") == git_status
    with closing(sqlite3.connect(project.root / "mlflow.db")) as connection:
        addresses = [str(row[0]) for row in connection.execute("SELECT artifact_uri FROM runs")]
    assert len(addresses) >= 2  # the training and the comparison
    assert all(address.startswith((project.root / "mlruns").as_uri()) for address in addresses)
    assert list(project.root.rglob("mlflow.db")) == [project.root / "mlflow.db"]
    assert set(state.rglob("*.lock")) - locks_before  # locks and checkpoints are this project's too

    _dvc(project, "exp", "apply", "longer")
    assert _stages_run(project.repro()) == _EVERY_TIME


def test_scripts_run_once_and_a_failure_is_shown(project: Project) -> None:
    metrics = json.loads((project.root / "metrics" / "timed.json").read_text())
    assert metrics["cpu"]["loss"] == 0.5
    assert "| whole | **No" in (project.root / "report" / "comparison.md").read_text()
    (project.root / "whole.py").write_text("raise KeyError('mine')", encoding="utf-8")
    ran = project.run("dvc", "repro", "script-cpu")
    assert ran.returncode != 0
    assert _stages_run(ran.stdout) == {*_EVERY_TIME, "script-cpu@whole"}
    assert "KeyError: 'mine'" in ran.stdout + ran.stderr
    assert "exit status 1" in ran.stdout + ran.stderr


def test_a_price_trains_nothing_and_a_removed_job_leaves_the_report(project: Project) -> None:
    compare = {"target_accuracy": 0.5, "prices": {"cpu_hour": 3.6}}
    project.write_params(
        {**_PARAMS, "compare": compare, "experiments": {_OWN: _PARAMS["experiments"][_OWN]}}
    )
    assert _stages_run(project.repro()) == {*_EVERY_TIME, "download-weights", "compare"}
    with (project.root / "report" / "comparison.csv").open(encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["device"] == "cpu")
    assert float(row["cost"]) == pytest.approx(float(row["total_seconds"]) / 1000)
    assert float(row["target_seconds"]) < float(row["total_seconds"])
    metrics = {path.stem for path in (project.root / "metrics").iterdir()}
    assert metrics == {_OWN, "timed", "whole"}
    for name in ("index.html", "comparison.csv", "history.csv", "confusion.csv"):
        text = (project.root / "report" / name).read_text(encoding="utf-8")
        assert _OWN in text, name
        assert _INHERITS not in text, name


def test_on_another_host_the_cpu_trains_and_back_home_all_is_restored(project: Project) -> None:
    timings = project.root / "results" / _OWN / "cpu" / "timings"
    before = contents(timings)
    training = f"train-cpu@{_OWN}"
    assert _stages_run(project.repro(training, OMP_NUM_THREADS="2")) == {*_EVERY_TIME, training}
    assert contents(timings) != before
    back = project.repro()
    assert _stages_run(back) == _EVERY_TIME
    assert training in _stages_restored(back)
    assert contents(timings) == before
    assert project.git("status", "--porcelain") == ""


def test_a_lock_that_was_cut_in_writing_is_named_and_can_be_deleted(project: Project) -> None:
    lock = project.root / "dvc.lock"
    whole = lock.read_text(encoding="utf-8")
    lock.write_text(whole[: whole.rindex("    - pa") + 8], encoding="utf-8")
    ran = project.run("photofinish", "run")
    assert ran.returncode
    assert "dvc.lock" in ran.stdout + ran.stderr
    lock.unlink()
    ran = project.run("photofinish", "run", "--verbose")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    again = {"compare"}  # DVC caches no stage with metrics
    assert _stages_run(ran.stdout) == _EVERY_TIME | again
    assert lock.read_text(encoding="utf-8") == whole


def test_results_that_a_full_disk_cut_off_are_restored_or_trained_again(project: Project) -> None:
    training, result = f"train-cpu@{_OWN}", project.root / "results" / _OWN / "cpu"
    learned = contents(result / "model")
    for file in ("model/record.json", "timings/timings.json"):
        (result / file).write_bytes((result / file).read_bytes()[:100])
    assert training in _stages_restored(project.repro(training))
    assert contents(result / "model") == learned
    (result / "timings/timings.json").write_bytes(b"")
    cache = project.root / ".dvc/cache"
    cache.rename(cache.with_name("kept"))
    try:
        assert training in _stages_run(project.repro("--single-item", training))
    finally:
        shutil.rmtree(cache)
        cache.with_name("kept").rename(cache)
    assert contents(result / "model") == learned
    assert json.loads((result / "timings/timings.json").read_bytes())["epochs"]


def test_ask_answers_for_experiments_and_scripts_and_leaves_all_as_it_was(project: Project) -> None:
    arguments = ["--seconds", "1", "--json", ".photofinish/answers.json", _OWN, "whole"]
    ran = project.run("photofinish", "ask", *arguments)
    assert f"{_OWN}, 3 epochs:\nNo" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == 0, ran.stderr
    answers = json.loads((project.root / ".photofinish/answers.json").read_bytes())
    assert answers[0]["job"]["name"] == _OWN
    assert len(answers) > 1, ran.stdout
    measured = [answer["records"]["cpu"] for answer in answers]
    assert measured[0]["operations"]["flops"] > 0
    assert all(each["parts"] for each in measured)
    assert project.git("status", "--porcelain") == ""
    assert not _stages_to_run(project)


def test_dvc_shows_the_metrics_and_draws_the_plots(project: Project) -> None:
    metrics = json.loads(_dvc(project, "metrics", "show", "--json"))[""]["data"]
    own = metrics[f"metrics/{_OWN}.json"]["data"]["cpu"]
    assert own["test_accuracy"] > 0.8
    assert own["total_seconds"] > 0
    drawn = project.run("dvc", "plots", "show")
    assert drawn.returncode == 0
    assert "failed" not in drawn.stdout + drawn.stderr
    page = (project.root / "dvc_plots" / "index.html").read_text(encoding="utf-8")
    assert f"{_OWN} cpu" in page
    assert project.git("status", "--porcelain") == ""


def test_mistakes_in_params_stop_everything_at_once_before_dvcs_parser(project: Project) -> None:
    before = contents(project.root / "data")
    renamed = {
        {"experiments": "experimets", "datasets": "data_sets"}.get(key, key): _PARAMS[key]
        for key in _PARAMS
    }
    project.write_params({**renamed, "devices": {"cpu": {"threads": 0}}})
    ran = project.run("dvc", "repro")
    output = ran.stdout + ran.stderr
    assert ran.returncode != 0
    assert _stages_run(output) == _EVERY_TIME
    assert "params.yaml has 3 mistakes; nothing was started" in output
    for meant in ("experiments", "datasets"):
        assert f"did you mean '{meant}'" in output
    assert "Traceback" not in output
    assert contents(project.root / "data") == before
    assert project.git("status", "--porcelain") == " M params.yaml\n"
