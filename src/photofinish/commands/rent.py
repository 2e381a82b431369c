"""`photofinish rent T4`: how to train on a rented GPU, and bring its record back.

It prints a task for SkyPilot, then the commands for SkyPilot and for plain SSH. It starts nothing.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import textwrap
import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import LiteralScalarString

from photofinish.commands import pipeline
from photofinish.config.compare import accelerators
from photofinish.config.loader import read_params
from photofinish.config.scripts import PLACEHOLDER
from photofinish.errors import ConfigError, UserError
from photofinish.files import OWN_FOLDER
from photofinish.reporting.answers import Answers, read_answers
from photofinish.scripts.script_record import ANSWER, FOLDER
from photofinish.wording import listed, money, seconds, unknown_name

_SETUP = """\
set -e
export PATH="$HOME/.local/bin:$PATH"  # where SkyPilot installs uv
[ -d ~/photofinish-env ] || uv venv --seed --python 3.12 ~/photofinish-env
"""
_ACTIVATE = ". ~/photofinish-env/bin/activate"
_COMMANDS = Template("""
With SkyPilot, after saving the task above as rent.yaml:
  sky launch --cluster photofinish rent.yaml
  rsync --archive ${options}photofinish:sky_workdir/$there $here/
  sky down photofinish

Or over SSH, on any machine with a GPU driver and Python 3.11 or newer:
  $copy
  ssh user@machine $script
  rsync --archive ${options}user@machine:photofinish-job/$there $here/

$then
""")
_STOP = (
    f'import json, sys; answer = json.load(open("{ANSWER}"))[-1]["answer"]["answer"]; '
    f'sys.exit("Not trained: " + answer if answer.startswith("No") else 0)'
)
"""Program that fails if the answer is No."""
_PROCESSES = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_](?:processes|gpus))[= ](\d+)")
"""Option of a launcher with the number of processes, each on a GPU."""
_IMPORTED = """\
import ast, sys
from importlib.metadata import packages_distributions, version
from pathlib import Path

files, names = [Path(sys.argv[1])], set()
for file in files:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            modules = modules or [node.module or ""]
            names.update(each.partition(".")[0] for each in modules)
            beside = [files[0].parent.joinpath(*each.split(".")) for each in modules if each]
            for path in [*(each.with_suffix(".py") for each in beside), *beside]:
                found = [path] if path.is_file() else path.glob("*.py")
                files += [each for each in found if each not in files]
installed = packages_distributions()
if "torch" in names - installed.keys():
    sys.exit("no torch")
packages = {each for name in names for each in installed.get(name, [])[:1]}
for package in sorted(packages - {"photofinish"}):
    print(f"{package}=={version(package).partition('+')[0]}")
"""
"""Program that prints the packages that a script and the modules beside it import."""


class _Job(NamedTuple):
    about: str
    packages: Sequence[str]
    """Arguments of `pip install`, besides photofinish."""
    run: Sequence[str]
    there: str
    """Folder of the results on the machine."""
    here: str
    then: str
    options: str = ""
    """Options of rsync, which brings the results back."""
    gpu_count: int | str = 1


def rent(gpu: str, command: Sequence[str] = ()) -> tuple[str, str]:
    """Return the task for SkyPilot, and the commands to run it.

    It is about a command, else about the trainings of the pipeline.
    """
    top = Path.cwd()
    if not command:
        pipeline.enter()
    if gpu not in accelerators():
        raise ConfigError(f"{gpu}: {unknown_name('accelerator', gpu, list(accelerators()))}")
    job = _script(gpu, command) if command else _trainings(gpu, top)
    source, mounts = _source(top, "" if command else "[pipeline]")
    packages = " ".join(map(shlex.quote, job.packages))
    install = f'pip install --quiet "{source}" {packages}'.rstrip()
    about = (
        f"{job.about}Setting up the machine adds a few minutes. Files in .gitignore aren't copied; "
        f"add file_mounts for data among them."
    )
    comment = textwrap.fill(about, 100, initial_indent="# ", subsequent_indent="# ")
    task = f"{comment}\n{_task(gpu, job, install, mounts)}"
    make_environment = "python3 -m venv ~/photofinish-env"
    script = ["cd photofinish-job", make_environment, _ACTIVATE, install, *job.run]
    commands = _COMMANDS.substitute(
        copy="\n  ".join(
            f"rsync --archive --filter=':- .gitignore' {shlex.quote(path)} user@machine:{to}"
            for path, to in [("./", "photofinish-job"), *mounts]
        ),
        script=shlex.quote(" && ".join(script)),
        **job._asdict(),
    )
    return task, commands


def _trainings(gpu: str, top: Path) -> _Job:
    records = (Path.cwd() / "reference").relative_to(top).as_posix()
    params = read_params(pipeline.PARAMS)
    if not params.experiments:
        raise UserError(
            "params.yaml has no experiments. For a script: photofinish rent GPU -- python train.py"
        )
    settings = [*params.experiments.values(), *params.datasets.values()]
    if Path.cwd() == top and any("'../" in repr(setting) for setting in settings):
        is_own = Path.cwd().name == OWN_FOLDER.name
        remedy = "run `photofinish rent` in the folder above" if is_own else "move them into it"
        raise UserError(
            f"params.yaml names files above this folder, which wouldn't be copied: {remedy}"
        )
    # Repeats and further seeds are trained on the rented GPU, too.
    trainings = {
        name: experiment.repeats + experiment.seeds - 1
        for name, experiment in params.experiments.items()
    }
    count = params.devices.gpu.wanted_count
    names = listed(list(trainings)) if len(trainings) <= 3 else f"{len(trainings)} experiments"
    answers = read_answers()
    estimate = _estimate(answers, gpu, trainings)
    if count != 1:
        estimate = "Time and cost are estimated for one GPU only."
    about = f"Trains {names} on a {gpu}, and records the results to compare with. {estimate} "
    against = [
        name
        for name, each in answers.answers.items()
        if name in trainings and each.answer == "No" and each.about in ("renting", "any GPU")
    ]
    if against:
        about += f"The report advises against renting for {listed(against)}. "
    if params.scripts:
        about += "Scripts are left out, as only experiments are recorded. "
    has_requirements = (top / "requirements.txt").is_file()
    return _Job(
        about,
        ["--requirement", "requirements.txt"] if has_requirements else [],
        ["photofinish run measure-gpu train-gpu", "photofinish reference"],
        there=f"{records}/",
        here=records,
        then="Then `photofinish run` here uses the GPU's record for its answers.",
        gpu_count=1 if count == "all" else count,
    )


def _script(gpu: str, command: Sequence[str]) -> _Job:
    # A path of an environment is only of this machine.
    python, there, program = "python", [*command], Path(command[0])
    if re.fullmatch(r"python[\d.]*(\.exe)?", program.name):
        python, there[0] = command[0], "python"
    elif program.parent.name == "bin":
        python, there[0] = str(program.with_name("python")), program.name
    asked, here = shlex.join(there), f"{FOLDER}{gpu}"
    launched = _PROCESSES.search(asked)
    count = int(launched[1]) if launched else 1
    gpus = f"{count} {gpu}s" if count > 1 else f"a {gpu}"
    about = (
        f"Asks on {gpus} whether it is worth it for {asked}, "
        f"then trains unless the answer is No. "
        f"For an estimate of time and cost, run `photofinish ask` here. "
    )
    return _Job(
        about,
        _requirements(python, command),
        [
            f"photofinish ask --json {ANSWER} -- {asked}",
            f"python -c {shlex.quote(_STOP)}",
            asked.replace(PLACEHOLDER, "cuda"),
        ],
        there="",
        here=here,
        then=f"Then {here} has the files that the training wrote, and {ANSWER}, which the next "
        f"`photofinish ask` here uses.",
        options="--prune-empty-dirs --compare-dest=.. ",  # only what is not here
        gpu_count=count,
    )


def _requirements(python: str, command: Sequence[str]) -> list[str]:
    """Return what `pip install` needs for a command, from the folder or what it imports."""
    if Path("requirements.txt").is_file():
        return ["--requirement", "requirements.txt"]
    settings = Path("pyproject.toml")
    text = settings.read_text(encoding="utf-8") if settings.is_file() else ""
    project = tomllib.loads(text).get("project")
    if project is not None and project.get("name") != "photofinish":  # which needs no torch
        return ["."]
    words = " ".join(command).split()  # a shell gets its command line as one argument
    script = next((word for word in words if word.endswith(".py") and Path(word).is_file()), None)
    if script:
        program = [python, "-c", _IMPORTED, script]
        ended = subprocess.run(program, capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            return ended.stdout.split()
    raise UserError(
        f"couldn't find in {python} what {shlex.join(command)} imports. Name the Python that you "
        f"train with, or write requirements.txt here, for example with `pip freeze`"
    )


def _task(gpu: str, job: _Job, install: str, mounts: Iterable[tuple[str, str]]) -> str:
    resources = CommentedMap(accelerators={gpu: job.gpu_count}, use_spot=False, autostop=10)
    resources.yaml_add_eol_comment("an interrupted training isn't recorded", "use_spot")
    resources.yaml_add_eol_comment(
        "stops after 10 idle minutes; `sky down` deletes the machine", "autostop"
    )
    task: dict[str, Any] = {"name": "photofinish", "workdir": ".", "resources": resources}
    if copied := {f"~/{to}": path for path, to in mounts}:
        task["file_mounts"] = copied
    task["setup"] = LiteralScalarString(f"{_SETUP}{_ACTIVATE}\n{install}\n")
    task["run"] = LiteralScalarString("\n".join(["set -e", _ACTIVATE, *job.run, ""]))
    YAML().dump(task, text := io.StringIO())
    return text.getvalue()


def _estimate(answers: Answers, gpu: str, trainings: dict[str, int]) -> str:
    offers = [
        (name, count, offer)
        for name, count in trainings.items()
        if name in answers.answers
        for offer in answers.answers[name].candidates
        if offer.accelerator == gpu
    ]
    if small := [name for name, _, offer in offers if offer.fits == "no"]:
        raise UserError(f"a {gpu} has too little memory for {listed(small)}: rent another GPU")
    times = [count * offer.job_seconds.value for _, count, offer in offers if offer.job_seconds]
    if len(times) < len(trainings):
        return f"Time and cost on a {gpu} are not known: report/index.html says why."
    text = f"Estimated: {seconds(sum(times))} of training"
    if price := offers[0][-1].hour_price:
        amount = sum(count * (offer.cost or 0.0) for _, count, offer in offers)
        cost = money(amount, price.currency)
        hour = money(price.amount, price.currency)
        where = f"{price.where}, {price.as_of}" if price.as_of else price.where
        text += f", {cost} at {hour} an hour ({where})"
    return f"{text}."


def _source(top: Path, extra: str) -> tuple[str, list[tuple[str, str]]]:
    """Return what pip installs on the rented machine, and the local path to copy there, if any.

    It is the version, Git address, local wheel or folder that is installed here (PEP 610).
    """
    package = metadata.distribution("photofinish")
    text = package.read_text("direct_url.json")
    if text is None:
        return f"photofinish{extra}=={package.version}", []
    origin = json.loads(text)
    url = origin["url"]
    if git := origin.get("vcs_info"):
        return f"photofinish{extra} @ {git['vcs']}+{url}@{git['commit_id']}", []
    if not url.startswith("file:"):
        return f"photofinish{extra} @ {url}", []
    path = Path(url2pathname(urlsplit(url).path))
    if path == top:
        return f".{extra}", []
    if path.is_file():
        return f"$HOME/{path.name}{extra}", [(str(path), path.name)]
    return f"$HOME/photofinish-source{extra}", [(f"{path}/", "photofinish-source")]
