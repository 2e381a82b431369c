"""Workers as jobs of SLURM's: how many there are, what is told of them, and a spread by a real SLURM."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import warm_python
from conftest import ROOT, clone_project
from fleet_parts import task
from slurm_cluster import missing_programs, slurm

from photofinish.errors import MistakeError, UserError
from photofinish.fleet import cluster
from photofinish.fleet.cluster import Cluster, JobSettings, cluster_for, read_job_settings
from photofinish.fleet.trainings import HERE

HEAD = "tcp://127.0.0.1:8786"
SETTINGS = JobSettings(jobs=2, cores=8, memory="32GiB", queue="gpu", job_extra_directives=("--gres=gpu:1",))


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What SLURM's commands do: each job is a file of its number, with its script in it."""
    programs, jobs = tmp_path / "programs", tmp_path / "jobs"
    for folder in (programs, jobs, tmp_path / ".dvc"):
        folder.mkdir()
    for name, does in (
        ("sbatch", f"n=$(ls {jobs} | wc -l); cp $1 {jobs}/1$n; echo Submitted batch job 1$n"),
        ("squeue", f"cd {jobs}; for job in $(grep -L ended *); do echo $job $(sed -n s/.*chdir=//p $job); done"),
        ("scancel", f"echo ended >> {jobs}/$1"),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "clone_at", lambda _source, folder, _commit: folder.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.0)
    return jobs


def running(jobs: Path) -> list[str]:
    return sorted(job.name for job in jobs.iterdir() if "ended" not in job.read_text(encoding="utf-8"))


def test_there_are_as_many_jobs_as_there_is_work_for_and_none_afterwards(jobs: Path) -> None:
    with Cluster(SETTINGS, HEAD, "c0ffee") as slurms:
        slurms.keep(1, set(), set())
        assert running(jobs) == ["10"]
        slurms.keep(5, {"slurm-1"}, set())
        assert running(jobs) == ["10", "11"]
        slurms.keep(1, {"slurm-1", "slurm-2"}, busy={"slurm-2"})
        assert running(jobs) == ["11"]
    assert running(jobs) == []


def test_a_job_asks_for_what_the_file_says_and_starts_a_worker_in_a_clone_of_its_own(
    jobs: Path, tmp_path: Path
) -> None:
    with Cluster(SETTINGS, HEAD, "c0ffee") as slurms:
        slurms.keep(2, set(), set())
        first, second = ((jobs / name).read_text(encoding="utf-8") for name in ("10", "11"))
    for line in (
        "-p gpu",
        "--cpus-per-task=8",
        "--mem=32G",
        "--gres=gpu:1",
        f"--chdir={tmp_path}/.photofinish/cluster/0",
    ):
        assert f"#SBATCH {line}\n" in first
    assert f"-m photofinish.fleet.worker {HEAD} --name slurm-1 " in first
    assert f"--chdir={tmp_path}/.photofinish/cluster/1\n" in second


def test_a_job_whose_time_is_up_gives_way_to_another_but_one_whose_worker_never_came_is_told(jobs: Path) -> None:
    with Cluster(SETTINGS, HEAD, "c0ffee") as slurms:
        slurms.keep(1, set(), set())
        slurms.keep(1, {"slurm-1"}, set())
        subprocess.run(["scancel", "10"], check=True)
        slurms.keep(1, set(), set())
        assert running(jobs) == ["11"]
        subprocess.run(["scancel", "11"], check=True)
        with pytest.raises(UserError, match=r"job 11 ended before its worker .*photofinish-11\.out tells why"):
            slurms.keep(1, set(), set())


def test_what_a_killed_head_has_left_of_jobs_is_cancelled_and_no_other_jobs(jobs: Path, tmp_path: Path) -> None:
    (jobs / "10").write_text(f"#SBATCH --chdir={tmp_path}/.photofinish/cluster/0\n", encoding="utf-8")
    (jobs / "11").write_text("#SBATCH --chdir=/home/me\n", encoding="utf-8")
    with Cluster(SETTINGS, HEAD, "c0ffee"):
        assert running(jobs) == ["11"]


def test_what_slurm_does_not_take_is_told_in_its_words(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch = jobs.with_name("programs") / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition: gpu' >&2; exit 1", encoding="utf-8")
    with (
        Cluster(SETTINGS, HEAD, "c0ffee") as slurms,
        pytest.raises(UserError, match="take a job: sbatch: error: inval"),
    ):
        slurms.keep(1, set(), set())
    monkeypatch.setenv("PATH", str(jobs))
    with pytest.raises(UserError, match="there is no squeue here"), Cluster(SETTINGS, HEAD, "c0ffee"):
        pass


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jobs: 2\ncores: 8\nmemory: 32GiB\npartition: gpu\n", r"slurm\.yaml:4  partition = \"gpu\"\n.*unknown key"),
        ("jobs: 0\ncores: 8\n", r"(?s)slurm\.yaml:1  jobs = 0\n.*slurm\.yaml:1  memory\n +this key is required"),
        *(
            (f"jobs: 1\ncores: 8\nmemory: {size}\n", rf"slurm\.yaml:3  memory = {size}\n +must be a size above 0")
            for size in ("much", "0GB", "-5GB", "1e400GB")
        ),
        ("jobs: 1\ncores: 8\nmemory: 1GiB\nwalltime: 60\n", r"slurm\.yaml:4  walltime = 60\n +must be text, so in quo"),
        ("- 1\n", r"slurm\.yaml:1  jobs\n +this key is required"),
    ],
)
def test_what_is_wrong_with_the_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "slurm.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(MistakeError, match=said):
        read_job_settings(tmp_path / "slurm.yaml")


def test_the_file_in_the_documentation_is_one_that_is_taken(tmp_path: Path) -> None:
    page = (ROOT / "docs/many-machines.md").read_text(encoding="utf-8")
    (tmp_path / "slurm.yaml").write_text(
        page.partition("```yaml\n# slurm.yaml\n")[2].partition("```")[0], encoding="utf-8"
    )
    settings = read_job_settings(tmp_path / "slurm.yaml")
    assert (settings.walltime, settings.job_extra_directives) == ("4:00:00", ("--gres=gpu:1", "--exclusive"))


@pytest.mark.parametrize(("jobs", "where", "is_refused"), [(2, "lab", True), (3, "lab", False), (2, HERE, False)])
def test_a_training_over_more_machines_than_jobs_is_refused(jobs: int, where: str, is_refused: bool) -> None:
    shared = task("small", where=where)
    shared = replace(shared, host=shared.host.model_copy(update={"nodes": 3}))
    told = "small takes 3 machines at once: the file of jobs has jobs: 2"
    with pytest.raises(UserError, match=told) if is_refused else nullcontext():
        cluster_for([shared], HEAD, SETTINGS.model_copy(update={"jobs": jobs}))


def test_ctrl_c_still_interrupts_though_dask_jobqueue_takes_it_for_a_good_end(tmp_path: Path) -> None:
    (tmp_path / "slurm.yaml").write_text("jobs: 1\ncores: 8\nmemory: 1GiB\n", encoding="utf-8")
    reads = "from pathlib import Path; from photofinish.fleet.cluster import read_job_settings as read; "
    ends = "read(Path('slurm.yaml')); import signal; signal.raise_signal(signal.SIGINT)"
    ran = subprocess.run(
        [sys.executable, "-c", reads + ends], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "KeyboardInterrupt" in ran.stderr


def test_without_dask_jobqueue_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match="python -m pip install dask-jobqueue"):
        read_job_settings(Path("slurm.yaml"))


PARAMS: dict[str, Any] = {
    "defaults": {"epochs": 1, "batch_size": 128, "optimizer": {"name": "sgd", "lr": 0.1}},
    "devices": {"cpu": {"machine": "node"}},
    "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
    "experiments": {"small": {"dataset": "digits", "model": "linear"}},
}


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_programs()), reason=f"SLURM isn't installed: {', '.join(missing_programs())}")
def test_a_real_slurms_job_trains_and_is_gone_afterwards(tmp_path: Path) -> None:
    head = clone_project(tmp_path / "head")
    head.environment["CUDA_VISIBLE_DEVICES"] = ""
    node = head.run("python", "-m", "photofinish.machine.fingerprint", OMP_NUM_THREADS="1", OMP_DYNAMIC="false")
    (head.root / "machines").mkdir()
    (head.root / "machines/node.json").write_text(node.stdout, encoding="utf-8")
    head.write_params(PARAMS)
    (head.root / "slurm.yaml").write_text(
        "jobs: 2\ncores: 1\nmemory: 500MiB\nqueue: main\nwalltime: 0:10:00\n"
        "job_script_prologue: [export OMP_NUM_THREADS=1 OMP_DYNAMIC=false]\n",
        encoding="utf-8",
    )
    head.run("dvc", "remote", "add", "--default", "shared", str(tmp_path / "remote"))
    head.commit()
    with slurm() as environment:
        environment["PATH"] = f"{warm_python.path(head.environment['PATH'])}{os.pathsep}{environment['PATH']}"
        spread = (
            "python",
            "-m",
            "photofinish.fleet.spread",
            "--cluster",
            "slurm.yaml",
            "--listen",
            HEAD,
        )
        told = head.run(*spread, **environment)
        assert told.returncode == 0, told.stdout + told.stderr
        assert "small on cpu of node: done by slurm-1" in told.stdout
        assert "Traceback" not in told.stdout + told.stderr
        assert not head.run("squeue", "--noheader", "--states=PENDING,RUNNING", **environment).stdout
