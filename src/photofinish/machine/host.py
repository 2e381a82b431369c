"""Facts of the host: CPU, software versions, environment variables and the Git commit."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata, util
from pathlib import Path

import psutil

from photofinish.config.kinds import KINDS
from photofinish.errors import UserError
from photofinish.git import git

_TOPOLOGY = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_INSTRUCTION_SETS = re.compile(
    r"^(avx|avx2|avx512.*|avx_vnni|amx_.*|fma|sse4_2|asimd.*|sve.*|bf16|i8mm)$"
)
CPU_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT",
    "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_PRELOAD", "MALLOC_CONF", "MKL_CBWR", "MKL_DYNAMIC",
    "MKL_NUM_THREADS", "OMP_DYNAMIC", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND",
    "OMP_WAIT_POLICY", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip
GPU_VARIABLES = (
    *CPU_VARIABLES, *sorted(name for kind in KINDS.values() for name in kind.variables)
)  # fmt: skip
"""Variables that matter to a GPU, but its selectors: its name and memory are recorded."""


@dataclass(frozen=True)
class CpuFacts:
    """Facts of a CPU that determine speed and bits."""

    model: str
    architecture: str
    usable_cores: int
    cgroup_cores_limit: float | None
    instruction_sets: tuple[str, ...]
    system: str


@dataclass(frozen=True)
class Software:
    """Versions and environment variables that determine speed and bits."""

    python: str
    torch: str
    torchvision: str
    cuda: str | None
    """CUDA or ROCm version that torch was built for."""
    variables: dict[str, str]

    def of_cpu(self) -> Software:
        """Return a copy without the variables that the CPU ignores."""
        kept = {name: self.variables[name] for name in self.variables if name in CPU_VARIABLES}
        return replace(self, variables=kept)


def cpu_facts() -> CpuFacts:
    """Return the facts of this machine's CPU, within the limits of this process."""
    info = dict(
        re.findall(r"^(\S[^:\n]*?)[ \t]*:[ \t]*(.*)$", read_or_empty(Path("/proc/cpuinfo")), re.M)
    )
    flags = set((info.get("flags") or info.get("Features", "")).split())
    quota, _, period = read_or_empty(_CGROUPS / "cpu.max").partition(" ")
    model = info.get("model name", "").strip() or mac_cpu_name() or platform.processor()
    return CpuFacts(
        model=model or "unknown",
        architecture=platform.machine(),
        usable_cores=_usable_cores(),
        cgroup_cores_limit=int(quota) / int(period) if quota.isdecimal() else None,
        instruction_sets=tuple(sorted(flag for flag in flags if _INSTRUCTION_SETS.match(flag))),
        system=platform.system(),
    )


def software_facts() -> Software:
    return Software(
        python=platform.python_version(),
        torch=build_version("torch"),
        torchvision=build_version("torchvision"),
        cuda=_build("torch").get("cuda") or _build("torch").get("hip"),
        variables={name: os.environ[name] for name in GPU_VARIABLES if name in os.environ},
    )


def usable_threads(cpu: CpuFacts, processes: int, variables: Mapping[str, str]) -> int:
    """Return the threads of each process: OMP_NUM_THREADS, or an equal share of the cores."""
    wanted = variables.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    return max(1, allowed_cores(cpu) // processes)


def allowed_cores(cpu: CpuFacts) -> int:
    """Return the number of whole cores that this process may use, also in a container."""
    return max(1, int(min(cpu.usable_cores, cpu.cgroup_cores_limit or cpu.usable_cores)))


def _usable_cores() -> int:
    """Return the number of physical cores, as torch counts its threads."""
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is None:
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    cores = set()
    for number in affinity(0):
        siblings = read_or_empty(_TOPOLOGY / f"cpu{number}/topology/thread_siblings_list")
        cores.add(siblings.strip() or str(number))
    return len(cores)


def available_memory_bytes() -> int:
    """Return the free memory, within the limits of this process's control groups (version 2).

    In a container, the listed group may be a path on the host. The outermost folder has its limit.
    """
    available_bytes = psutil.virtual_memory().available
    own = Path(read_or_empty(_OWN_CGROUP).strip().rpartition("::/")[2])
    for folder in (_CGROUPS / part for part in (own, *own.parents)):
        limit = read_or_empty(folder / "memory.max").strip()
        if limit.isdecimal():
            lines = read_or_empty(folder / "memory.stat").splitlines()
            used_bytes = int(dict(line.split() for line in lines).get("anon", 0))
            available_bytes = min(available_bytes, max(0, int(limit) - used_bytes))
    return available_bytes


def mac_cpu_name() -> str:
    if platform.system() != "Darwin":
        return ""
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def read_or_empty(path: Path) -> str:
    """Return the text of a system file, or nothing if it is missing or unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def build_version(package: str) -> str:
    """Return the version of torch or torchvision with its build (`2.14.1+cu130`)."""
    return _build(package).get("__version__", "unknown")


@cache
def _build(package: str) -> dict[str, str]:
    """Return the strings in a package's version.py. Importing the package would take seconds."""
    spec = util.find_spec(package)
    source = read_or_empty(Path(spec.origin).parent / "version.py") if spec and spec.origin else ""
    return dict(re.findall(r"""^(\w+)(?: *:[^=]*)? *= *['"](.*)['"]""", source, re.MULTILINE))


def package_versions() -> dict[str, str]:
    names = (
        "dvc", "mlflow", "numpy", "pandas", "pydantic", "safetensors", "scikit-learn", "torch",
        "torchvision",
    )  # fmt: skip
    versions = {name: package_version(name) for name in names}
    return {name: version for name, version in versions.items() if version}


def package_version(name: str) -> str | None:
    """Return the version in the package's metadata, or None if it has none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """Return the current commit, with `-dirty` if files other than dvc.lock differ."""
    try:
        head = git(Path(), "rev-parse", "HEAD", timeout_seconds=10)
        changed = git(
            Path(),
            "status",
            *("--porcelain", "--untracked-files=no", "--", ":/", ":!dvc.lock"),
            timeout_seconds=10,
        )
    except (OSError, UserError, subprocess.TimeoutExpired):
        return None
    return f"{head}-dirty" if changed else head
