"""The command `photofinish`: from a wheel, in a user's repository and this one, without extras."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
import webbrowser
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import warm_python
from conftest import (
    ONE_THREAD,
    ROOT,
    CustomFiles,
    Project,
    clone_project,
    replace_mlflow,
    run_command,
)
from packaging.requirements import Requirement

from photofinish.commands.cli import main
from photofinish.commands.init import copy_example, find_scripts, write_network
from photofinish.config.loader import read_params
from photofinish.errors import EXIT_MISTAKE, ConfigError
from photofinish.planning.checks import check_custom_code_calls, check_paths
from photofinish.reporting.answers import Answers
from photofinish.results.records import write_record


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


def environment(folder: Path) -> Path:
    """Make an environment without packages, and return the folder for them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel of a clone, and install it beside the packages that it needs."""
    clone = clone_project(tmp_path_factory.mktemp("clone")).root
    folder = tmp_path_factory.mktemp("environment")
    packages = environment(folder)
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
    kept = [job.root / "dvc.yaml", job.root / "data/mine.csv"]
    before = [path.read_bytes() for path in kept]
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
    assert [path.read_bytes() for path in kept] == before
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


Command = Callable[..., tuple[object, str, str]]


@pytest.fixture
def command(
    custom_files: CustomFiles, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Run `photofinish` in this process and folder. Return its status, and what it printed."""

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setenv("PATH", os.environ["PATH"])  # which a command changes
        monkeypatch.setattr(sys, "argv", ["photofinish", *arguments])
        monkeypatch.chdir(custom_files.folder)
        status: object = None
        try:
            main()
        except SystemExit as ended:
            status = ended.code
        return status, *capfd.readouterr()

    return run


def test_the_first_params_yaml_has_the_script_that_trains(
    custom_files: CustomFiles, command: Command
) -> None:
    custom_files.write("fit.py", LIGHTNING)
    _, printed, _ = command("init")
    params = read_params(Path("params.yaml"), check_custom_code_calls, check_paths)
    assert [script.command for script in params.scripts.values()] == ["python fit.py"]
    assert not params.experiments
    assert "photofinish ask python fit.py" in printed


def test_a_new_network_or_example_overwrites_another_example_but_no_file_of_the_user(
    custom_files: CustomFiles,
) -> None:
    custom_files.write("net.py", "mine")
    with pytest.raises(ConfigError):
        write_network("net.py")
    assert Path("net.py").read_text(encoding="utf-8") == "mine"
    custom_files.write("examples/own-network/losses.py", "mine")
    params = Path("params.yaml")
    examples = ROOT / "examples/mnist-mlp.yaml", ROOT / "src/photofinish/commands" / params
    for shipped in (None, *examples):
        if shipped:
            shutil.copyfile(shipped, params)
        copy_example("own-network")
        assert params.read_bytes() == (ROOT / "examples/own-network.yaml").read_bytes()
    assert Path("examples/own-network/losses.py").read_text(encoding="utf-8") == "mine"
    assert read_params(params).experiments
    custom_files.write("params.yaml", "mine: 3")
    with pytest.raises(ConfigError, match="did you mean 'mnist-mlp'"):
        copy_example("mnist-mpl")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Mine"]):
        user = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
        subprocess.run(["git", *user, *words], check=True)
    with pytest.raises(ConfigError, match="move it away"):
        copy_example("mnist-mlp")
    assert params.read_text(encoding="utf-8") == "mine: 3"
    # What is committed is replaced in a clone of this project alone.
    custom_files.write("src/photofinish/commands/params.yaml", "the first")
    copy_example("mnist-mlp")
    assert params.read_bytes() == (ROOT / "examples/mnist-mlp.yaml").read_bytes()


def test_an_example_is_the_first_params_yaml_with_its_code_where_it_names_it(
    custom_files: CustomFiles, command: Command
) -> None:
    custom_files.write("report/mine.txt", "")
    custom_files.write("fit.py", LIGHTNING)
    assert command("init", "--example", "own-network")[0] is None
    os.chdir("photofinish")
    assert Path("params.yaml").read_bytes() == (ROOT / "examples/own-network.yaml").read_bytes()
    assert read_params(Path("params.yaml"), check_custom_code_calls, check_paths).experiments


def test_the_last_answers_are_printed_again_or_opened_from_the_top_of_a_repository(
    custom_files: CustomFiles, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: not opened.append(address))
    custom_files.write("photofinish/stages/plan.py", "")
    assert "photofinish run" in command("report")[-1]
    answers = Answers(summary="No.", answers={}, reasons=(), legend=(), overview=())
    write_record(custom_files.folder / "photofinish/report/answers.json", answers)
    monkeypatch.setattr(Answers, "__str__", lambda self: f"all: {self.summary}")
    page = Path("photofinish/report/index.html")
    assert command("report") == (None, f"all: No.\nThe report: {page}\n", "")
    file = custom_files.folder / page.with_name("answers.json")
    assert command("report", "--json") == (None, file.read_text(encoding="utf-8"), "")
    assert command("report", "--open") == (None, f"The report: {page}\n", "")
    assert opened == [(custom_files.folder / page).as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    status, _, printed = command("report", "--open")
    assert status
    assert str(page) in printed


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("run", "experiments"),
        ("init --example own-netwerk", "own-network"),
    ],
)
def test_a_mistype_is_answered_with_the_nearest_before_anything_is_written(
    custom_files: CustomFiles, command: Command, words: str, nearest: str
) -> None:
    shutil.copytree(ROOT / "stages", custom_files.folder / "stages")
    custom_files.write("params.yaml", "experimets: {}\n")
    before = {*custom_files.folder.iterdir()}
    status, printed, problem = command(*words.split())
    assert (status, printed) == (EXIT_MISTAKE, "")
    assert f"did you mean '{nearest}'" in problem
    assert {*custom_files.folder.iterdir()} == before


def test_a_line_of_run_reaches_a_pipe_before_what_a_stage_prints(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/plan.py").write_text("raise SystemExit('a mistake')", encoding="utf-8")
    command = f"{sys.executable} -m photofinish run --example mnist-mlp 2>&1"
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    output = run_command(["sh", "-c", command], tmp_path, environment).stdout
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


# -- an installation without extras ----------

TRAINS = """
import torch
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(50):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
BEYOND = "torch torchvision dvc mlflow yaml sklearn scipy pandas matplotlib"
PRINTS_FOUND = "import sys, importlib.util as u; print(*filter(u.find_spec, sys.argv[1:]))"


def distributions_of(requirements: Iterable[str]) -> set[str]:
    """Return the names of these distributions, and of all that they require without extras."""
    found: set[str] = set()
    queue = [Requirement(one) for one in requirements]
    while queue:
        one = queue.pop()
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(one.name)
            queue += map(Requirement, distribution(one.name).requires or [])
    return found


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Environment with photofinish and the packages that it requires without extras."""
    folder = tmp_path_factory.mktemp("light")
    packages = environment(folder)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert len(project["dependencies"]) <= 10
    for name in distributions_of(project["dependencies"]):
        for top in {file.parts[0] for file in distribution(name).files or ()} - {".."}:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution(name).locate_file(top))
    (packages / "photofinish.pth").write_text(str(ROOT / "src"), encoding="utf-8")
    return folder / "bin"


def test_a_script_in_another_environment_is_answered_without_the_pipelines_packages(
    light: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    others = environment(tmp_path / "theirs")
    (others / "all.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    ours, theirs = Repository(tmp_path, light), Repository(tmp_path, tmp_path / "theirs/bin")
    Path("train.py").write_text(TRAINS, encoding="utf-8")
    printed = ours.run("python", "-c", PRINTS_FOUND, "photofinish", *BEYOND.split())
    assert printed.stdout == "photofinish\n"
    assert theirs.run("python", "-c", PRINTS_FOUND, "photofinish").stdout == "\n"
    options = ["--steps", "500", "--html", "page.html"]
    command = ["ask", *options, str(theirs.programs / "python"), "train.py"]
    asked = ours.run("python", "-m", "photofinish", *command)
    assert asked.returncode == 0, asked.stderr
    page = Path("page.html").read_text(encoding="utf-8")
    assert asked.stdout.splitlines()[2] in html.unescape(page)
    assert "<svg" not in page
    assert "500 steps (--steps):" in asked.stdout
    assert "Watched 50 steps." in asked.stdout


def test_what_needs_the_pipelines_packages_ends_with_their_name_and_writes_nothing(
    light: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ours, commands = Repository(tmp_path, light), ["init"]
    for _ in range(2):
        before = sorted(Path().rglob("*"))
        for command in commands:
            ended = ours.run("python", "-m", "photofinish", *command.split())
            assert ended.returncode == 1
            (line,) = ended.stderr.splitlines()
            assert "pip install 'photofinish[" in line
        assert sorted(Path().rglob("*")) == before
        Path("stages").mkdir(exist_ok=True)
        shutil.copy(ROOT / "stages/plan.py", "stages")
        shutil.copy(ROOT / "params.yaml", "params.yaml")
        commands = ["run", "plan", "ask", "gate", "report", "rent T4", "ui", "spread", "worker"]


# -- a measurement that is killed ----------

NETWORK = """\
import os
from pathlib import Path
from torch import nn

class Net(nn.Module):
    calls = 0

    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(64, classes)

    def forward(self, images):
        Net.calls += 1
        if Net.calls == 30 and (kill := Path("kill.txt")).is_file():
            number = int(kill.read_text())
            kill.unlink()
            os.kill(os.getpid(), number)
        return self.linear(images.flatten(1))
"""

PARAMS: dict[str, Any] = {
    "defaults": {"batch_size": 64, "optimizer": {"name": "sgd", "lr": 0.05}},
    "devices": ONE_THREAD,
    "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
    "experiments": {"mine": {"dataset": "digits", "model": "./net.py:Net", "epochs": 2}},
}


@pytest.mark.slow
def test_a_killed_measurement_leaves_nothing_behind_and_the_next_run_takes_it_and_answers(
    project: Project,
) -> None:
    (project.root / "net.py").write_text(NETWORK, encoding="utf-8")
    project.write_params(PARAMS)
    project.without_mlflow()
    folder, kill = project.root / "results/mine/cpu/measured", project.root / "kill.txt"
    for number in (signal.SIGTERM, signal.SIGKILL):
        kill.write_text(str(int(number)), encoding="utf-8")
        ran = project.run("photofinish", "run")
        assert ran.returncode == 255  # DVC's
        assert "failed to reproduce 'measure-cpu@mine'" in ran.stderr
        assert "Running stage" not in ran.stdout
        assert not kill.exists(), ran.stdout + ran.stderr  # it was killed while it measured
        assert not list(folder.rglob("*"))
    ran = project.run("photofinish", "run")
    output = ran.stdout
    assert (ran.returncode, ran.stderr) == (0, "")  # without waiting for a killed one's lock
    assert output.index("\nmine on cpu: about ") < output.index("\nmine on cpu  2 epochs, ")
    *lines, last = output.splitlines()
    assert len(lines) < 20, output
    assert last.startswith("Next: `photofinish report --open` shows pictures")
    answers = project.run("photofinish", "report").stdout.splitlines()[:-1]
    assert lines[-len(answers) :] == answers
    assert [file.name for file in folder.rglob("*")] == ["measured.json"]
    assert "\nmine," in (project.root / "report/comparison.csv").read_text(encoding="utf-8")
