"""`photofinish rent T4`: how to train on a rented GPU, and bring its record back.

It prints a task for SkyPilot, then the commands for SkyPilot and for plain SSH. It starts nothing.
"""

from __future__ import annotations

import io
import json
import shlex
import textwrap
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import LiteralScalarString

from photofinish.commands import pipeline
from photofinish.config.compare import accelerators
from photofinish.config.loader import read_params
from photofinish.errors import ConfigError, UserError
from photofinish.reporting.answers import Answers, read_answers
from photofinish.wording import listed, money, printable, seconds, unknown_name

_CLUSTER = "photofinish"
_SETUP = """\
set -e
export PATH="$HOME/.local/bin:$PATH"  # where SkyPilot installs uv
[ -d ~/photofinish-env ] || uv venv --seed --python 3.12 ~/photofinish-env
. ~/photofinish-env/bin/activate
"""
_RUN = """\
set -e
. ~/photofinish-env/bin/activate
photofinish run measure-gpu train-gpu
photofinish reference
"""
_COMMANDS = Template("""
By SkyPilot, with the task above in rent.yaml:
  sky launch --cluster $cluster rent.yaml
  rsync --archive $cluster:sky_workdir/$records/ $records/
  sky down $cluster

Or on a machine of yours with a driver and Python 3.11 or newer, by SSH:
  $copy
  ssh user@machine $script
  rsync --archive user@machine:photofinish-job/$records/ $records/

Then `photofinish run` here answers by the GPU's record.
""")


def rent(gpu: str) -> tuple[str, str]:
    """Return the task for SkyPilot, and the commands to run it."""
    top = Path.cwd()
    pipeline.enter()
    pipeline.check_age()
    records = (Path.cwd() / "reference").relative_to(top).as_posix()
    if gpu not in accelerators():
        raise ConfigError(f"{gpu}: {unknown_name('accelerator', gpu, list(accelerators()))}")
    params = read_params(pipeline.PARAMS)
    if not params.experiments:
        raise UserError("params.yaml has no experiments: a script leaves no record to bring back")
    # Repeats and further seeds are trained on the rented GPU, too.
    trainings = {name: each.repeats + each.seeds - 1 for name, each in params.experiments.items()}
    count = params.devices.gpu.wanted_count
    source, mounts = _source(top)
    install = f'pip install --quiet "{source}"'
    if (top / "requirements.txt").is_file():
        install += " --requirement requirements.txt"
    names = listed(list(trainings)) if len(trainings) <= 3 else f"{len(trainings)} experiments"
    answers = read_answers()
    estimate = _estimate(answers, gpu, trainings)
    if count != 1:
        estimate = "Time and cost are estimated for one GPU only."
    about = (
        f"Trains {names} on a {gpu}, for a record to compare with. {estimate} "
        f"{_advice(answers, trainings)}"
        f"{'Scripts are left out: they leave no record. ' if params.scripts else ''}"
        "The minutes to start and set up the machine come on top. Files that .gitignore names "
        "stay here: for data among them, add file_mounts."
    )
    # U+2028 in a price's name would end the comment: to YAML it is a line break.
    about = printable(" ".join(about.split()))
    comment = textwrap.fill(about, 100, initial_indent="# ", subsequent_indent="# ")
    task = f"{comment}\n{_task(gpu, 1 if count == 'all' else count, install, mounts)}"
    script = [
        "cd photofinish-job",
        "python3 -m venv ~/photofinish-env",
        ". ~/photofinish-env/bin/activate",
        install,
        "photofinish run measure-gpu train-gpu",
        "photofinish reference",
    ]
    commands = _COMMANDS.substitute(
        cluster=_CLUSTER,
        records=records,
        copy="\n  ".join(
            f"rsync --archive --filter=':- .gitignore' {shlex.quote(path)} user@machine:{to}"
            for path, to in [("./", "photofinish-job"), *mounts]
        ),
        script=shlex.quote(" && ".join(script)),
    )
    return task, commands


def _task(gpu: str, count: int, install: str, mounts: Iterable[tuple[str, str]]) -> str:
    """Return the task for SkyPilot as YAML."""
    resources = CommentedMap(accelerators={gpu: count}, use_spot=False, autostop=10)
    resources.yaml_add_eol_comment("an interrupted training's record would be left out", "use_spot")
    resources.yaml_add_eol_comment(
        "stops after 10 idle minutes; `sky down` deletes the machine", "autostop"
    )
    task: dict[str, Any] = {"name": _CLUSTER, "workdir": ".", "resources": resources}
    if copied := {f"~/{to}": path for path, to in mounts}:
        task["file_mounts"] = copied
    task["setup"] = LiteralScalarString(f"{_SETUP}{install}\n")
    task["run"] = LiteralScalarString(_RUN)
    YAML().dump(task, text := io.StringIO())
    return text.getvalue()


def _estimate(answers: Answers, gpu: str, trainings: dict[str, int]) -> str:
    """Return the time and cost of all trainings on a GPU, by the report's estimates."""
    found = {
        name: each
        for name in trainings
        if name in answers.answers
        for each in answers.answers[name].candidates
        if each.accelerator == gpu
    }
    not_known = f"Time and cost on a {gpu} are not known: report/index.html says why."
    if len(found) < len(trainings):
        return not_known
    if small := [name for name, each in found.items() if each.fits == "no"]:
        raise UserError(f"{listed(small)} needs more memory than a {gpu} has: rent another GPU")
    times = [each.job_seconds.value for each in found.values() if each.job_seconds]
    if len(times) < len(trainings):
        return not_known
    counts = trainings.values()
    spent_seconds = sum(each * count for each, count in zip(times, counts, strict=True))
    text = f"Estimated: {seconds(spent_seconds)} of training"
    price = next(iter(found.values())).hour_price
    if price:
        amount = sum((each.cost or 0.0) * trainings[name] for name, each in found.items())
        cost, hour = money(amount, price.currency), money(price.amount, price.currency)
        where = f"{price.where}, {price.as_of}" if price.as_of else price.where
        text += f", {cost} at {hour} an hour ({where})"
    return f"{text}."


def _advice(answers: Answers, trainings: Iterable[str]) -> str:
    """Return the trainings for which renting is not worth it, according to the report."""
    against = [name for name in trainings if name in answers.not_worth_renting]
    return f"The report says no to renting for {listed(against)}. " if against else ""


def _source(top: Path) -> tuple[str, list[tuple[str, str]]]:
    """Return what pip installs on the rented machine, and the local path to copy there, if any.

    It is the version, Git address, local wheel or folder that is installed here (PEP 610).
    """
    package = metadata.distribution("photofinish")
    text = package.read_text("direct_url.json")
    if text is None:
        return f"photofinish[pipeline]=={package.version}", []
    origin = json.loads(text)
    url = origin["url"]
    if git := origin.get("vcs_info"):
        return f"photofinish[pipeline] @ {git['vcs']}+{url}@{git['commit_id']}", []
    if not url.startswith("file:"):
        return f"photofinish[pipeline] @ {url}", []
    path = Path(url2pathname(urlsplit(url).path))
    if path == top:
        return ".[pipeline]", []
    if path.is_file():
        return f"$HOME/{path.name}[pipeline]", [(str(path), path.name)]
    return "$HOME/photofinish-source[pipeline]", [(f"{path}/", "photofinish-source")]
