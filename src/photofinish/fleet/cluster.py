"""Workers as jobs of SLURM's. dask-jobqueue's SLURMCluster was tried: it tells of no job that ends without a worker.

So of dask-jobqueue only the job is used, with `python -m photofinish.fleet.worker` as its command: it knows what a site
has set in ~/.config/dask, writes the script, submits and cancels. Which jobs there are, the head asks SLURM itself.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from contextlib import AbstractContextManager, nullcontext
from importlib import util
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from photofinish.errors import MistakeError, UserError
from photofinish.files import state_folder
from photofinish.fleet.jobs import clone_at
from photofinish.fleet.trainings import HERE, Task
from photofinish.params.base import PositiveInt, Settings
from photofinish.params.mistakes import mistakes_of
from photofinish.params.yaml_reader import YamlDocument

_LOOK_SECONDS = 10.0
"""between two questions to SLURM, which many users ask at once"""
_PATIENCE_SECONDS = 60
"""after which a worker ends that finds no head: the head was killed, or can't be reached"""


class JobSettings(Settings):
    """slurm.yaml: how many jobs at most, each of one worker, and what SLURMCluster of dask-jobqueue calls so, too."""

    jobs: PositiveInt
    cores: PositiveInt
    memory: str
    queue: str | None = None
    account: str | None = None
    walltime: str | None = None
    job_extra_directives: tuple[str, ...] = ()
    job_script_prologue: tuple[str, ...] = ()


def read_job_settings(path: Path) -> JobSettings:
    """The file, or one MistakeError that lists every mistake in it."""
    if util.find_spec("dask_jobqueue") is None:
        raise UserError("jobs of SLURM's need dask-jobqueue: `python -m pip install dask-jobqueue`, on the head alone")
    document = YamlDocument(path)
    given = document.value if isinstance(document.value, dict) else {}
    mistakes = document.faulty_keys
    try:
        settings = JobSettings.model_validate_json(json.dumps(given, default=str))
    except ValidationError as error:
        mistakes += mistakes_of(error, JobSettings)
    if mistakes:
        raise MistakeError(f"{path} can't be used; nothing was started\n{document.in_words(mistakes)}")
    try:
        _job(settings, "", "", Path())
    except (TypeError, ValueError, OverflowError):  # of its memory, which alone Dask looks into
        at = f"{path}:{document.line_of(('memory',))}  memory = {settings.memory}"
        raise MistakeError(f"{at}\n    must be a size above 0, such as 32GiB") from None
    return settings


def _job(settings: JobSettings, name: str, head: str, folder: Path) -> Any:
    """One that isn't submitted yet."""
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    from dask_jobqueue.slurm import SLURMJob

    signal.signal(signal.SIGINT, on_ctrl_c)  # which the import has made end this process as if all were well
    given = settings.model_dump(exclude={"jobs"})
    # Slurm starts a job where it was submitted; a worker is at home in a clone that no other has.
    given["job_extra_directives"] = [f"--chdir={folder.resolve()}", *settings.job_extra_directives]
    return SLURMJob(
        **given,
        scheduler=head,
        name=name,
        job_name="photofinish",
        processes=1,
        death_timeout=_PATIENCE_SECONDS,
        worker_command="photofinish.fleet.worker",
        log_directory=str(_folder() / "logs"),
        job_directives_skip=["#SBATCH -e "],  # one file tells all
    )


def _folder() -> Path:
    return state_folder() / "cluster"


def cluster_for(tasks: list[Task], head: str, settings: JobSettings | None) -> AbstractContextManager[Cluster | None]:
    """The jobs that are to train them, where there are settings for jobs."""
    if settings is None:
        return nullcontext()
    if all(task.where == HERE for task in tasks):
        print("all of that is this machine's: no job is submitted (devices.gpu: {machine: ...} or ON=...)", flush=True)
    for task in tasks:
        if task.where != HERE and task.nodes > settings.jobs:  # which would wait for ever
            takes = f"{task.job.title} takes {task.nodes} machines at once"
            raise UserError(f"{takes}: the file of jobs has jobs: {settings.jobs}")
    return Cluster(settings, head, tasks[0].job.commit)


class Cluster:
    """The head's jobs, as many as there is work for; none is left afterwards."""

    def __init__(self, settings: JobSettings, head: str, commit: str) -> None:
        self._settings, self._head, self._commit = settings, head, commit
        self._jobs: dict[int, Any] = {}
        """by the number of the clone that each has"""
        self._submitted = 0
        self._arrived: set[str] = set()
        self._looked_seconds = -_LOOK_SECONDS

    def __enter__(self) -> Self:
        own = str(_folder().resolve())
        left = [number for number, folder in (_jobs_at_slurm() or {}).items() if folder.startswith(f"{own}/")]
        if left:  # by a head that was killed: they have the clones
            subprocess.run(["scancel", *left], check=False)
        return self

    def __exit__(self, *_: object) -> None:
        for clone in list(self._jobs):
            self._cancel(clone)

    def keep(self, wanted: int, arrived: set[str], busy: set[str]) -> None:
        """Have as many jobs as are wanted, within the settings; `arrived` and `busy` are names of workers."""
        self._arrived |= arrived
        if time.monotonic() - self._looked_seconds < _LOOK_SECONDS:
            return
        self._looked_seconds = time.monotonic()
        self._forget_ended()
        for clone, job in list(self._jobs.items()):
            if len(self._jobs) > wanted and job.name not in busy:
                self._cancel(clone)
        while len(self._jobs) < min(wanted, self._settings.jobs):
            self._submit(next(clone for clone in range(self._settings.jobs) if clone not in self._jobs))

    def _submit(self, clone: int) -> None:
        folder = _folder() / str(clone)
        clone_at(Path(), folder, self._commit)
        self._submitted += 1
        job = _job(self._settings, f"slurm-{self._submitted}", self._head, folder)
        try:
            asyncio.run(job.start())
        except RuntimeError as error:
            told = str(error).rpartition("stderr:")[2].strip()
            raise UserError(f"SLURM doesn't take a job: {told}") from None
        self._jobs[clone] = job
        print(f"{job.name} is SLURM's job {job.job_id}: {_log(job)} tells what it does", flush=True)

    def _forget_ended(self) -> None:
        """Jobs end by their walltime, too; but one whose worker was never here has something wrong with it."""
        submitted = _jobs_at_slurm() if self._jobs else None
        if submitted is None:  # SLURM is busy: the next time tells
            return
        for clone, job in list(self._jobs.items()):
            if job.job_id not in submitted:
                del self._jobs[clone]
                if job.name not in self._arrived:
                    raise UserError(
                        f"SLURM's job {job.job_id} ended before its worker had reached {self._head}: {_log(job)} tells "
                        f"why; LISTEN=... must be an address of this machine that the cluster's nodes reach"
                    )

    def _cancel(self, clone: int) -> None:
        asyncio.run(self._jobs.pop(clone).close())


def _jobs_at_slurm() -> dict[str, str] | None:
    """The user's jobs that wait or run, with the folder that each starts in; None where SLURM doesn't tell."""
    asked = ["squeue", "--me", "--noheader", "--format=%i %Z"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    except subprocess.CalledProcessError:
        return None
    except FileNotFoundError:
        raise UserError("there is no squeue here: run this where jobs are submitted to SLURM") from None
    return dict(line.split(" ", 1) for line in told.splitlines())


def _log(job: Any) -> Path:
    return _folder() / "logs" / f"photofinish-{job.job_id}.out"
