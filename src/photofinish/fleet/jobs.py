"""One training as a head asks a worker for it, the clone that it is done in, and the process that does it.

`python -m photofinish.fleet.jobs` is that process, in the clone, with the job on standard input. When that is closed,
it ends with all that it has started.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from configparser import ConfigParser
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from photofinish.errors import UserError, run_stage
from photofinish.files import finished_folder, state_folder, write_summed, write_text_atomically
from photofinish.params.base import Name, Record
from photofinish.params.networks import RECORD
from photofinish.results.records import DeviceLabel

PLAN = Path("data/plan")
_OF_NO_TRAINING = ("dvc.lock", "metrics", "plots", "reference")
_LOCK = Path("dvc.lock")
_LAST_LINES = 5
_NOT_PUSHED = 9
_REPRO_AND_PUSH = f"""
import sys
from dvc.cli import main  # which `dvc` runs: started once for both, it takes a third less of each training's cost
stage = sys.argv[1]
sys.exit(main(["repro", "--single-item", stage]) or (main(["push", "--run-cache", stage]) and {_NOT_PUSHED}))
"""
_MEETING_SECONDS = 60
_GRACE_SECONDS = 5
"""in which a part may say what it failed of itself, once another one has"""
is_leaving = threading.Event()
"""set when this worker leaves its head: what it trains has not failed then, but goes to another"""
_running: list[subprocess.Popen[str]] = []
_changing = threading.Lock()


class Part(Record):
    """What one machine does of a training that several share."""

    node: int
    """from 0, which leads: its DVC has the result"""
    attempt: str
    """by which the parts find each other"""


class Job(Record):
    """One training, as a worker is sent it: text alone."""

    title: str
    """for people, and no other job's"""
    experiment: Name
    device: DeviceLabel
    dataset: Name
    commit: str
    plan: dict[str, str]
    """the files that the head planned, by their paths below data/plan: a worker may see neither the user's images nor
    their mirror"""
    lock: str
    """of dvc.lock what tells which data those are"""
    weights: str | None
    """the record that it starts from no published weights, so that there are none to fetch"""
    tracked_in: str
    """the name of MLflow's experiment, for a server that both see"""
    part: Part | None = None
    """where several machines share it"""

    @property
    def stage(self) -> str:
        """As DVC calls it."""
        return f"train-{self.device}@{self.experiment}"


def run_job(text: str) -> None:
    """What Dask runs, by this name: the training that `text` asks for. Nothing is given back but what went wrong."""
    from distributed import get_client

    job = Job.model_validate_json(text)
    others = _Others(job.part, get_client()) if job.part else None
    try:
        _run(job, others)
    except UserError as error:
        if others:
            others.over.set()
        raise RuntimeError(str(error)) from None
    if others and others.part.node == 0:
        others.over.set()


def _run(job: Job, others: _Others | None) -> None:
    from distributed import Reschedule

    clone = state_folder() / "worker"
    node = others.meet() if others else {}
    clone_at(Path(), clone, job.commit)
    environment = {"MLFLOW_EXPERIMENT_NAME": job.tracked_in, **node, **environment_of(clone)}
    command, pipe = [sys.executable, "-m", "photofinish.fleet.jobs"], subprocess.PIPE
    with _changing:
        if is_leaving.is_set():
            raise Reschedule
        process = subprocess.Popen(
            command, cwd=clone, env=environment, stdin=pipe, stderr=pipe, text=True, start_new_session=True
        )
        _running[:] = [process]
    if others:
        others.end_with_them(process)
    with process:
        assert process.stdin is not None
        assert process.stderr is not None
        with suppress(OSError, ValueError):  # it has ended already, or is to end
            process.stdin.write(f"{job.model_dump_json()}\n")  # and left open: it ends when this process does
            process.stdin.flush()
        told = process.stderr.read().strip()
    if is_leaving.is_set():
        raise Reschedule
    if process.returncode and (told or not others or not others.over.is_set()):  # else it was ended for others
        raise UserError(told.removeprefix("error: ") or f"it ended with status {process.returncode}")


def over(attempt: str, client: Any) -> Any:
    """The event on which all parts of a training end."""
    from distributed import Event

    return Event(f"{attempt} is over", client=client)


class _Others:
    """The other parts of a training, found through the scheduler: workers may not reach each other's Dask."""

    def __init__(self, part: Part, client: Any) -> None:
        self.part, self._client = part, client
        self.over = over(part.attempt, client)

    def meet(self) -> dict[str, str]:
        """The first says where; what each tells its training of that."""
        from distributed import Variable

        place = Variable(f"{self.part.attempt} meets at", client=self._client)
        if self.part.node == 0:
            place.set(_own_free_address(self._client.scheduler.address))
        try:
            return {"MEETS_AT": place.get(timeout=_MEETING_SECONDS)}
        except TimeoutError:
            raise UserError(f"the first machine did not say within {_MEETING_SECONDS} s where to meet") from None

    def end_with_them(self, process: subprocess.Popen[str]) -> None:
        """End this part's process once another part has ended too early, or all have."""

        def wait() -> None:
            with suppress(OSError):  # the head is gone, and so this ends as well
                self.over.wait()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
            assert process.stdin is not None
            process.stdin.close()

        threading.Thread(target=wait, name="others", daemon=True).start()


def _own_free_address(head: str) -> str:
    """Where this machine can be met by those that reach the head, at a port that is free now."""
    towards = urlsplit(head)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, socket.socket() as listening:
        asking.connect((towards.hostname, towards.port))  # which sends nothing
        listening.bind((asking.getsockname()[0], 0))
        return "{}:{}".format(*listening.getsockname())


def stop_training() -> None:
    """Its checkpoints stay."""
    with _changing:
        is_leaving.set()
        for process in _running:
            assert process.stdin is not None
            process.stdin.close()


def end_with_input(and_group: bool) -> None:
    """End this process, and the group that it leads, when whoever holds the other end of standard input is gone."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        if and_group:
            os.killpg(0, signal.SIGTERM)
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def train(job: Job) -> None:
    """Train in the present folder, a clone at the job's commit, with data from DVC's remote, and push the result."""
    for name, text in job.plan.items():
        write_summed(PLAN / name, text.encode())
    _LOCK.write_text(job.lock, encoding="utf-8")
    data = [f"data/splits/{job.dataset}"]
    weights = Path("data/weights") / job.experiment
    if job.weights is None:
        data.append(str(weights))
    else:
        write_text_atomically(weights / RECORD, job.weights)
    pulled = state_folder() / "pulled" / job.dataset
    if not all(map(os.path.isdir, data)) or not pulled.is_file() or pulled.read_text(encoding="utf-8") != job.lock:
        _run_shown([sys.executable, "-m", "dvc", "pull", "--force", *data], "dvc pull")
        pulled.parent.mkdir(parents=True, exist_ok=True)
        pulled.write_text(job.lock, encoding="utf-8")
    if job.part and job.part.node:
        _run_shown(shlex.split(_command_of(job)), "the training")
        return
    _run_shown([sys.executable, "-c", _REPRO_AND_PUSH, job.stage], f"dvc repro and push of {job.stage}")
    shutil.rmtree(finished_folder(), ignore_errors=True)  # DVC has it


def _command_of(job: Job) -> str:
    """The stage's own, as DVC runs it for the first of several machines, which has the result."""
    stages: dict[str, Any] = yaml.load(Path("dvc.yaml").read_bytes(), yaml.CSafeLoader)["stages"]
    command: str = stages[f"train-{job.device}"]["do"]["cmd"]
    return command.replace("${key}", job.experiment).replace("${item.dataset}", job.dataset)


def _run_shown(command: list[str], name: str) -> None:
    """Its output is shown as it comes; where it fails, the words of the stage are told, or else its own last ones."""
    told, last = [], deque[str](maxlen=_LAST_LINES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last.append(line.strip())
            if line.startswith("error: "):
                told.append(line.strip().removeprefix("error: "))
    if process.returncode == _NOT_PUSHED:
        told = [f"{' '.join(last)}. It is trained, and kept on its machine until DVC's remote has room and takes it"]
    if process.returncode:
        raise UserError("; ".join(told) or f"{name}: {' '.join(filter(None, last))}")


def git(folder: Path, *arguments: str) -> str:
    """What it prints; its own words where it fails."""
    ran = _run_git(folder, *arguments)
    if ran.returncode:
        raise UserError(f"git {arguments[0]} in {folder.resolve()}: {ran.stderr.strip() or 'failed'}")
    return ran.stdout.strip()


def committed(folder: Path) -> str:
    """The commit that the project is at. Changes beside it would train nowhere else, so they are refused."""
    changed = git(folder, "status", "--porcelain", "--", ".", *(f":!{path}" for path in _OF_NO_TRAINING))
    if changed:
        raise UserError(
            f"these aren't committed, so no other machine has them: commit them (and push), then run again\n{changed}"
        )
    return git(folder, "rev-parse", "HEAD")


def clone_at(source: Path, folder: Path, commit: str) -> None:
    """Bring `folder`, a clone of the project in `source` with its DVC remotes and cache, to a commit."""
    source = source.resolve()
    if not (folder / ".git").is_dir():
        git(source, "clone", "--quiet", "--no-checkout", str(source), str(folder.resolve()))
    if not _has(folder, commit):
        _fetch(source, folder, commit)
    if not (folder / "dvc.yaml").is_file() or git(folder, "rev-parse", "HEAD") != commit:
        git(folder, "checkout", "--quiet", "--force", "--detach", commit)
    _share_dvc(source / ".dvc", folder / ".dvc")


def environment_of(clone: Path) -> dict[str, str]:
    """For programs in a clone: the Python that runs this, with the clone's own code."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("DVC_")}
    for name, folder in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", (clone / "src").resolve())):
        own[name] = os.pathsep.join(filter(None, [str(folder), own.get(name)]))
    return own


def _has(folder: Path, commit: str) -> bool:
    return not _run_git(folder, "cat-file", "-e", f"{commit}^{{commit}}").returncode


def _run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A clone that was cut off is not taken for the project around it, whose files would be overwritten."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    command = ["git", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _fetch(source: Path, folder: Path, commit: str) -> None:
    """From the project's own clone, or from where that was cloned from."""
    origins = [str(source)]
    if "origin" in git(source, "remote").split():
        origins.append(git(source, "remote", "get-url", "origin"))
    for origin in origins:
        git(folder, "fetch", "--quiet", origin, "+HEAD:refs/fleet/HEAD", "+refs/heads/*:refs/fleet/*")
        if _has(folder, commit):
            return
    raise UserError(f"the commit {commit[:12]} is not in {origins[-1]}: `git push` it there, then `make spread` again")


def _share_dvc(own: Path, clones: Path) -> None:
    """Remotes and cache as the project has them, its local settings included; relative paths made absolute."""
    settings = ConfigParser(interpolation=None)
    settings.read_dict({"cache": {"dir": "cache"}})
    settings.read([own / "config", own / "config.local"], encoding="utf-8")
    for section in settings.sections():
        for key in {"url", "dir"} & set(settings[section]):
            place = settings[section][key]
            if "://" not in place and not place.startswith("~"):
                settings[section][key] = str((own / place).resolve())
    with (clones / "config.local").open("w", encoding="utf-8") as file:
        settings.write(file)


def main() -> None:
    """Train what standard input asks for."""
    job = Job.model_validate_json(sys.stdin.buffer.readline())
    end_with_input(and_group=True)
    train(job)


if __name__ == "__main__":
    run_stage(main)
