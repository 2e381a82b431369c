"""What is known of this machine's CPU, and of it what stays the same from run to run."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_TOPOLOGY = Path("/sys/devices/system/cpu")
_INSTRUCTION_SETS = re.compile(r"^(avx|avx2|avx512.*|avx_vnni|amx_.*|fma|sse4_2|asimd.*|sve.*|bf16|i8mm)$")


@dataclass(frozen=True)
class CpuFacts:
    """What of a CPU determines speed and bits."""

    model: str
    architecture: str
    usable_cores: int
    cgroup_cores_limit: float | None
    instruction_sets: tuple[str, ...]
    system: str


def cpu_facts() -> CpuFacts:
    """What determines the speed and bits of this machine's CPU, within the limits of this process."""
    info = read_or_empty(Path("/proc/cpuinfo"))
    flags = set(_first_match(r"^(?:flags|Features)\s*:\s*(.*)$", info).split())
    return CpuFacts(
        model=_first_match(r"^model name\s*:\s*(.*)$", info) or mac_cpu_name() or platform.processor() or "unknown",
        architecture=platform.machine(),
        usable_cores=_usable_cores(),
        cgroup_cores_limit=_cgroup_cores_limit(),
        instruction_sets=tuple(sorted(flag for flag in flags if _INSTRUCTION_SETS.match(flag))),
        system=platform.system(),
    )


def usable_threads(cpu: CpuFacts, processes: int, variables: Mapping[str, str]) -> int:
    """Threads for each of so many processes: OMP_NUM_THREADS, as torch heeds it too, or a share of the usable cores."""
    asked = variables.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return max(1, allowed_cores(cpu) // processes)


def allowed_cores(cpu: CpuFacts) -> int:
    """How many whole cores this process may use, within the limit of the container."""
    return max(1, int(min(cpu.usable_cores, cpu.cgroup_cores_limit or cpu.usable_cores)))


def _usable_cores() -> int:
    """Whole cores, as torch counts them for its own number of threads: two hardware threads of a core share its units,
    and arithmetic gains nothing by the second one."""
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is None:
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    siblings = {number: _TOPOLOGY / f"cpu{number}/topology/thread_siblings_list" for number in affinity(0)}
    return len({read_or_empty(path).strip() or str(number) for number, path in siblings.items()})


def _cgroup_cores_limit() -> float | None:
    quota, _, period = read_or_empty(Path("/sys/fs/cgroup/cpu.max")).partition(" ")
    if not quota:
        quota = read_or_empty(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
        period = read_or_empty(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))
    try:
        cores = int(quota) / int(period)
    except ValueError:
        return None
    return cores if cores > 0 else None


def mac_cpu_name() -> str:
    """The name of a Mac's chip; nothing on other systems."""
    if platform.system() != "Darwin":
        return ""
    asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def _first_match(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match.group(1).strip() if match else ""


def read_or_empty(path: Path) -> str:
    """The text of a file of the system; nothing where there is none or it may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
