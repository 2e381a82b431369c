"""The command `photofinish`: in a user's repository, from a wheel, and in this project."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path

import pytest
import warm_python
from conftest import ROOT, CustomFiles, clone_project, replace_mlflow, run_command

from photofinish.commands.cli import main
from photofinish.commands.init import copy_example, find_scripts, write_network
from photofinish.config.loader import read_params
from photofinish.errors import EXIT_MISTAKE, ConfigError
from photofinish.planning.checks import check_custom_code_calls, check_paths
from photofinish.reporting.answers import Answers, write_answers


@dataclass(frozen=True)
class Repository:
    """Folder of a user, and the environment that has the wheel."""

    root: Path
    programs: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, which is not activated."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "MLFLOW_", "DVC_"))
        }
        environment["GIT_CEILING_DIRECTORIES"] = str(self.root.parent)
        program = str(self.programs / command[0])
        return run_command([program, *command[1:]], self.root, environment)

    def photofinish(self, *arguments: str) -> str:
        """Run the command, which must succeed, and return what it printed."""
        ran = self.run("photofinish", *arguments)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel of a clone, and install it beside the packages that it needs."""
    clone = clone_project(tmp_path_factory.mktemp("clone")).root
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    needed = [path for path in sys.path if path.endswith("-packages")]
    (packages / "needed.pth").write_text("\n".join(needed), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install"]
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, *options, str(clone)], check=True)
    replace_mlflow(packages / "photofinish")
    return folder / "bin"


@pytest.fixture
def repository(tmp_path: Path, programs: Path) -> Repository:
    repository = Repository(tmp_path / "repository", programs)
    repository.root.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=repository.root, check=True)
    return repository


@pytest.fixture
def warm_programs(programs: Path, tmp_path: Path) -> Path:
    """Make programs that run the wheel's code in a warm Python, to save a minute of imports."""
    (packages,) = programs.parent.glob("lib/python*/site-packages")
    (folder := tmp_path / "bin").mkdir()
    for name, options in (("python", ""), ("photofinish", "-m photofinish ")):
        run = f'PYTHONPATH={packages}:$PYTHONPATH exec {warm_python.executable()} {options}"$@"'
        (folder / name).write_text(f"#!/bin/sh\n{run}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.slow
def test_without_git_the_pipeline_is_set_up_and_nothing_of_our_names_is_overwritten(
    repository: Repository,
) -> None:
    shutil.rmtree(repository.root / ".git")
    for name in ("report", "photofinish"):
        (repository.root / name).mkdir()
    refused = repository.run("photofinish", "init")
    assert refused.returncode == EXIT_MISTAKE
    assert "report, photofinish/" in refused.stderr
    assert not (repository.root / ".dvc").exists()
    for name in ("report", "photofinish"):
        (repository.root / name).rmdir()
    assert "git init" in repository.photofinish("init")
    assert "digits-cnn:" in (repository.root / "params.yaml").read_text(encoding="utf-8")
    assert repository.photofinish("plan").startswith("1 job, on this CPU only (cuda: ")
    assert not (repository.root / ".dvc/config.local").exists()  # so that `--unset` helps
    assert "./mine.py:Net" in repository.photofinish("new", "mine.py")


@pytest.mark.slow
def test_the_notebook_answers_by_two_commands_beside_a_pipeline_that_keeps_its_data(
    repository: Repository, warm_programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = repository.programs.parent
    repository = Repository(repository.root, warm_programs)
    job = Repository(repository.root / "my-job", warm_programs)
    (job.root / "data").mkdir(parents=True)
    (job.root / "dvc.yaml").write_text("stages: {mine: {cmd: echo}}\n", encoding="utf-8")
    (job.root / "data/mine.csv").touch()
    before = {
        path: path.read_bytes() for path in (job.root / "dvc.yaml", job.root / "data/mine.csv")
    }
    where = repository.run("python", "-c", "import photofinish; print(photofinish.__file__)")
    assert Path(where.stdout).is_relative_to(packages)
    monkeypatch.setenv("PATH", f"{warm_programs}{os.pathsep}{os.environ['PATH']}")
    notebook = (ROOT / "examples/colab.ipynb").read_text(encoding="utf-8")
    notebook = notebook.replace('(\\"params', '(\\"photofinish/params')
    notebook = notebook.replace("./net.py:", "../net.py:")
    (repository.root / "colab.ipynb").write_text(notebook, encoding="utf-8")
    execute = "from nbclient.cli import main; main()"
    ran = repository.run("python", "-c", execute, "colab.ipynb", "--output", "executed.ipynb")
    assert ran.returncode == 0, ran.stderr
    committed, executed = (
        json.loads((repository.root / name).read_text(encoding="utf-8"))["cells"]
        for name in ("colab.ipynb", "executed.ipynb")
    )
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in committed)
    outputs = {cell["id"]: cell.get("outputs") for cell in executed}
    assert outputs["install"] == []
    (shown,) = outputs["report"]
    assert shown["data"]["text/plain"][0].startswith("Net ")
    assert ">Net</td>" in "".join(shown["data"]["text/html"])
    assert "trained" in "".join(outputs["table"][0]["data"]["text/plain"])
    asked = "".join(line for each in outputs["ask"] for line in each["text"])
    assert "the whole run:" in asked
    assert "Same model: not checked where no GPU ran." in asked

    refused = job.run("photofinish", "init")
    assert (refused.returncode, refused.stderr.count("\n")) == (EXIT_MISTAKE, 1)
    shutil.rmtree(job.root / "photofinish/results/Net/gpu")
    job.photofinish("reference", "--machine", "mine")  # of what one device alone has trained
    record = json.loads((job.root / "photofinish/reference/mine/Net.cpu.json").read_bytes())
    assert record["scores"]["test_accuracy"] > 0.5

    network = (job.root / "net.py").read_text(encoding="utf-8")
    (job.root / "net.py").write_text(network.replace("=32", "=9"), encoding="utf-8")
    again = job.photofinish("run", "--dry", "train-cpu")
    assert re.findall("Running stage '(.*)'", again) == ["plan", "train-cpu@Net"]
    assert {path: path.read_bytes() for path in before} == before
    made = {path.name for path in job.root.iterdir() if not path.name.startswith((".", "__"))}
    assert made == {"dvc.yaml", "data", "net.py", "photofinish", "train.py"}


LOOP = """\
import torch
from resnet import resnet18
def main():
    model = resnet18()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for images, labels in [(torch.ones(2, 3), torch.ones(2))]:
        model(images).sum().backward()
        optimizer.step()
"""
MAIN = 'if __name__ == "__main__":\n    main()\n'
LIGHTNING = "import lightning as L\ntrainer = L.Trainer(max_epochs=3)\ntrainer.fit(None)\n"


@pytest.mark.parametrize(
    ("files", "scripts"),
    [
        ({"resnet.py": "def resnet18(): ...", "train.py": LOOP + MAIN}, ["train.py"]),
        ({"loop.py": LOOP, "run.py": f"from loop import main\n{MAIN}"}, ["run.py"]),
        ({"fit.py": LIGHTNING, "tests/fit.py": LIGHTNING}, ["fit.py"]),
        ({"env/pyvenv.cfg": "", "env/fit.py": LIGHTNING, "2.py": "print 'Python 2'"}, []),
        ({"resnet.py": "def resnet18(): ...", "show.py": f"import resnet\n{MAIN}"}, []),
    ],
)
def test_a_script_with_a_training_loop_is_found(
    custom_files: CustomFiles, files: dict[str, str], scripts: list[str]
) -> None:
    for name, text in files.items():
        custom_files.write(name, text)
    assert [str(script) for script in find_scripts(Path())] == scripts


def test_the_first_params_yaml_has_the_script_that_trains(custom_files: CustomFiles) -> None:
    custom_files.write("fit.py", LIGHTNING)
    ran = photofinish("init", cwd=custom_files.folder)
    params = read_params(Path("params.yaml"), check_custom_code_calls, check_paths)
    assert [script.command for script in params.scripts.values()] == ["python fit.py"]
    assert not params.experiments
    assert "photofinish ask python fit.py" in ran.stdout


def photofinish(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_command([sys.executable, "-m", "photofinish", *arguments], cwd)


def test_a_new_network_or_example_overwrites_another_example_but_no_file_of_the_user(
    custom_files: CustomFiles,
) -> None:
    custom_files.write("net.py", "mine")
    with pytest.raises(ConfigError):
        write_network("net.py")
    assert Path("net.py").read_text(encoding="utf-8") == "mine"
    custom_files.write("examples/own-network/losses.py", "mine")
    params = Path("params.yaml")
    for shipped in (
        None,
        ROOT / "examples/mnist-mlp.yaml",
        ROOT / "src/photofinish/commands" / params,
    ):
        if shipped:
            shutil.copyfile(shipped, params)
        copy_example("own-network")
        assert params.read_bytes() == (ROOT / "examples/own-network.yaml").read_bytes()
    assert Path("examples/own-network/losses.py").read_text(encoding="utf-8") == "mine"
    assert read_params(params).experiments
    custom_files.write("params.yaml", "mine: 3")
    with pytest.raises(ConfigError, match="move it away"):
        copy_example("mnist-mlp")
    with pytest.raises(ConfigError, match="did you mean 'mnist-mlp'"):
        copy_example("mnist-mpl")
    assert params.read_text(encoding="utf-8") == "mine: 3"


def test_only_in_a_clone_of_this_project_a_committed_params_yaml_is_replaced(
    custom_files: CustomFiles,
) -> None:
    custom_files.write("params.yaml", "mine: 3")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Mine"]):
        user = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
        subprocess.run(["git", *user, *words], check=True)
    with pytest.raises(ConfigError, match="move it away"):
        copy_example("mnist-mlp")
    custom_files.write("src/photofinish/commands/params.yaml", "the first")
    copy_example("mnist-mlp")
    assert Path("params.yaml").read_bytes() == (ROOT / "examples/mnist-mlp.yaml").read_bytes()


def test_an_example_is_the_first_params_yaml_with_its_code_where_it_names_it(
    custom_files: CustomFiles,
) -> None:
    custom_files.write("report/mine.txt", "")
    custom_files.write("fit.py", LIGHTNING)
    refused = photofinish("init", "--example", "own-netwerk", cwd=custom_files.folder)
    assert refused.returncode == EXIT_MISTAKE
    assert "did you mean 'own-network'" in refused.stderr
    assert not Path("photofinish").exists()
    ran = photofinish("init", "--example", "own-network", cwd=custom_files.folder)
    assert ran.returncode == 0, ran.stderr
    os.chdir("photofinish")
    assert Path("params.yaml").read_bytes() == (ROOT / "examples/own-network.yaml").read_bytes()
    assert read_params(Path("params.yaml"), check_custom_code_calls, check_paths).experiments


def test_the_last_answers_are_printed_again_or_opened_from_the_top_of_a_repository(
    custom_files: CustomFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["photofinish", "report", *options])
        monkeypatch.chdir(custom_files.folder)
        main()
        return capsys.readouterr().out

    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: not opened.append(address))
    custom_files.write("photofinish/stages/plan.py", "")
    with pytest.raises(SystemExit):
        report()
    assert "photofinish run" in capsys.readouterr().err
    answers = Answers(summary="No.", answers={}, reasons=(), legend=(), overview=())
    write_answers(custom_files.folder / "photofinish/report", answers)
    monkeypatch.setattr(Answers, "__str__", lambda self: f"all: {self.summary}")
    page = Path("photofinish/report/index.html")
    assert report().splitlines() == ["all: No.", f"The report: {page}"]
    file = custom_files.folder / page.with_name("answers.json")
    assert report("--json") == file.read_text(encoding="utf-8")
    assert report("--open") == f"The report: {page}\n"
    assert opened == [(custom_files.folder / page).as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    with pytest.raises(SystemExit):
        report("--open")
    assert str(page) in capsys.readouterr().err


def test_a_mistyped_command_is_answered_with_the_nearest(tmp_path: Path) -> None:
    ran = photofinish("reprot", "--json", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (EXIT_MISTAKE, "")
    assert "did you mean 'report'" in ran.stderr


def test_mistakes_in_params_yaml_end_a_run_before_dvc_reads_it(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "stages", tmp_path / "stages")
    (tmp_path / "params.yaml").write_text("experimets: {}\n", encoding="utf-8")
    ran = photofinish("run", cwd=tmp_path)
    assert ran.returncode == EXIT_MISTAKE
    assert "did you mean 'experiments'" in ran.stderr


def test_a_line_of_run_reaches_a_pipe_before_what_a_stage_prints(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/plan.py").write_text("raise SystemExit('a mistake')", encoding="utf-8")
    command = [sys.executable, "-m", "photofinish", "run", "--example", "mnist-mlp"]
    output = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    ).stdout
    assert output.index("params.yaml is now the example") < output.index("a mistake")


def test_every_make_target_of_the_pipeline_calls_the_command() -> None:
    # `make test` runs this test too, and its own make would print the folder.
    outside = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    command = ["make", "--dry-run", "--old-file", "setup", "repro", "ui", "EXAMPLE=one", "PORT=1"]
    ran = run_command(command, ROOT, outside)
    assert ran.stdout.splitlines() == [
        "python -m photofinish run --example one",
        "python -m photofinish ui --port 1",
    ]
