"""A SLURM of one node on this machine, of Debian's packages, for as long as a test needs it."""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from training_stage import wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
_CONFIG = """
ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
KillWait=10
NodeName={node} NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000
PartitionName=main Nodes={node} Default=YES State=UP
"""


def missing_programs() -> list[str]:
    """Which of SLURM's are not installed; its daemons are where only root looks for programs."""
    return [program for program in PROGRAMS if not shutil.which(program, path=_path())]


@contextmanager
def slurm() -> Iterator[dict[str, str]]:
    """Gives the environment in which SLURM's commands find it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp")))
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        node, user = platform.node().partition(".")[0], getpass.getuser()
        config = folder / "slurm.conf"
        config.write_text(_CONFIG.format(node=node, user=user, folder=folder, ports=free_ports()), encoding="utf-8")
        environment = {**os.environ, "SLURM_CONF": str(config), "PATH": _path()}
        munge = {"key-file": "key", "socket": "munge.socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        files = [f"--{option}={folder / name}" for option, name in munge.items()]
        for command in (
            ["munged", "--foreground", "--force", *files],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D", "-c", "-N", node],
        ):
            log = stack.enter_context((folder / f"{command[0]}.log").open("w", encoding="utf-8"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            if command[0] == "munged":
                wait_for((folder / "munge.socket").exists)
        wait_for(lambda: "idle" in _nodes(environment))
        yield {"SLURM_CONF": str(config), "PATH": _path()}


def _nodes(environment: dict[str, str]) -> str:
    return subprocess.run(["sinfo"], env=environment, capture_output=True, text=True, check=False).stdout


def _path() -> str:
    return os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


def free_ports() -> list[int]:
    """Two that nothing listens at."""
    with socket.socket() as first, socket.socket() as second:
        for listener in (first, second):
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in (first, second)]
