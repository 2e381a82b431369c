"""The machine: constant facts that determine speed and bits, what makes it busy, and its memory."""

from __future__ import annotations

import itertools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pynvml
import pytest
import result_files
import torch
from conftest import CustomFiles, MakeRun

from photofinish.config.devices import CpuDevice, Devices, GpuDevice
from photofinish.config.kinds import KINDS
from photofinish.machine import accelerators, host
from photofinish.machine import fingerprint as hosts
from photofinish.machine import host as facts
from photofinish.machine.accelerators import AcceleratorFacts
from photofinish.machine.host import available_memory_bytes
from photofinish.machine.load import (
    LoadMonitor,
    load_warnings,
    nvidia_gpu_state,
    nvidia_gpu_works,
)
from photofinish.measure import loader_tries
from photofinish.measure.loader_tries import resident_batches
from photofinish.runs import setup
from photofinish.training.input_paths import LoaderBatches
from photofinish.training.torch_device import CPU
from photofinish.training.world import World

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
GPUS = [f"GPU {number}" for number in range(4)]


def pretend_files(monkeypatch: pytest.MonkeyPatch, files: dict[Path, str]) -> None:
    """Replace the system's files."""
    read = facts.read_or_empty

    def pretend(path: Path) -> str:
        return files.get(path, "") if path.parts[1] in ("proc", "sys") else read(path)

    monkeypatch.setattr(facts, "read_or_empty", pretend)


def pretend_accelerators(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    here = {"cuda": "no NVIDIA GPU", "mps": "no Apple silicon", "xpu": "no Intel GPU"} | found
    monkeypatch.setattr(hosts, "all_accelerators", lambda: here)


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(AcceleratorFacts("cuda", name, 2**37, "580.65.06") for name in GPUS)
    pretend_accelerators(monkeypatch, cuda=gpus)


def host_of(**gpu: Any) -> hosts.GpuTarget:
    return hosts.fingerprint(Devices(gpu=GpuDevice(**gpu)))[1]


def threads_of(**cpu: Any) -> int:
    return hosts.fingerprint(Devices(cpu=CpuDevice.model_validate(cpu)))[0].threads


def test_the_versions_are_those_of_torch() -> None:
    assert facts.build_version("torch") == torch.__version__
    assert facts.software_facts().cuda == (torch.version.cuda or torch.version.hip)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("name", "value", "devices"),
    [
        ("OMP_NUM_THREADS", "7", ["cpu", "gpu"]),
        ("KMP_AFFINITY", "compact", ["cpu", "gpu"]),
        ("NCCL_ALGO", "Ring", ["gpu"]),
        ("CUDA_VISIBLE_DEVICES", "0", []),  # the selected GPU counts, not its number
        ("EDITOR", "another", []),
    ],
)
def test_a_variable_changes_the_fingerprint_of_the_devices_whose_speed_or_bits_it_changes(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, devices: list[str]
) -> None:
    monkeypatch.delenv(name, raising=False)
    before = hosts.fingerprint(Devices())
    monkeypatch.setenv(name, value)
    pairs = zip(("cpu", "gpu"), before, hosts.fingerprint(Devices()), strict=True)
    assert [device for device, old, new in pairs if old != new] == devices
    assert name != "OMP_NUM_THREADS" or threads_of() == 7


FAKE_TORCH = """
from pathlib import Path
from types import SimpleNamespace as Thing

with Path({log!r}).open("a") as log:
    log.write("asked\\n")
class version:
    cuda, hip = {cuda!r}, None
def gpu(index):
    return Thing(name=f"GPU {{index}}", total_memory=1024 * (index + 1))
def init():
    if {error!r}:
        raise RuntimeError({error!r})
__version__ = "9.9"
cuda = Thing(init=init, device_count=lambda: {count}, get_device_properties=gpu)
backends = Thing(mps=Thing(is_available=lambda: False))
xpu = Thing(is_available=lambda: False)
"""


@dataclass
class FakeMachine:
    """Machine with made-up device nodes and torch. Subprocesses import the real torch."""

    folder: Path

    def torch_lists(self, count: int = 0, error: str = "", cuda: str | None = "13.0") -> None:
        log = str(self.folder / "log")
        text = FAKE_TORCH.format(log=log, count=count, error=error, cuda=cuda)
        (self.folder / "torch.py").write_text(text, encoding="utf-8")

    def add_node(self, name: str) -> None:
        node = self.folder / "dev" / name
        node.parent.mkdir(parents=True, exist_ok=True)
        node.touch()

    @property
    def times_asked(self) -> int:
        log = self.folder / "log"
        return len(log.read_text(encoding="utf-8").splitlines()) if log.is_file() else 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachine:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # torch.py may change twice in a second
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(accelerators, "DEVICES", tmp_path / "dev")
    return FakeMachine(tmp_path)


def test_torch_is_asked_once(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    absent = {name: kind.absent for name, kind in KINDS.items()}
    assert accelerators.all_accelerators() == absent
    with monkeypatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        hidden = "CUDA_VISIBLE_DEVICES hides every GPU"
        assert accelerators.all_accelerators()["cuda"] == hidden
    assert machine.times_asked == 0
    machine.add_node("nvidia0")
    machine.torch_lists(2)
    found = accelerators.all_accelerators()
    gpus = [gpu for gpu in found["cuda"] if not isinstance(gpu, str)]
    assert [(gpu.name, gpu.memory_bytes) for gpu in gpus] == [("GPU 0", 1024), ("GPU 1", 2048)]
    assert found["mps"] == "this is not Apple silicon"
    assert [*found] == [*KINDS]
    machine.torch_lists(1)
    assert accelerators.all_accelerators() == found
    assert machine.times_asked == 1
    machine.add_node("nvidia1")
    assert len(accelerators.all_accelerators()["cuda"]) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(accelerators, "build_version", lambda _package: "9.9")
    accelerators.all_accelerators()
    accelerators.all_accelerators()
    assert machine.times_asked == 3


@pytest.mark.parametrize(
    ("node", "torch", "visible", "reason", "times_asked"),
    [
        ("nvidia0", {"error": "Found no driver\nTry"}, None, r"^Found no driver$", 2),
        ("nvidia0", {"cuda": None}, None, r"torch \(9.9\) is built without CUDA", 2),
        ("nvidia0", {"count": 1}, "-1", r"^CUDA_VISIBLE_DEVICES hides every GPU$", 1),
        ("dri/renderD128", {"error": "Found no driver"}, None, r"^Found no driver$", 1),
    ],
)
def test_a_gpu_that_torch_cannot_use_has_a_reason_which_is_cached_if_it_is_certain(
    machine: FakeMachine,
    monkeypatch: pytest.MonkeyPatch,
    node: str,
    torch: dict[str, Any],
    visible: str | None,
    reason: str,
    times_asked: int,
) -> None:
    machine.add_node(node)
    machine.torch_lists(**torch)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for _ in range(2):
        assert re.search(reason, str(accelerators.all_accelerators()["cuda"]))
    assert machine.times_asked == times_asked


def test_without_torch_nvidias_driver_lists_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Mock(NVMLError=RuntimeError)
    driver.nvmlDeviceGetCount.return_value = 2
    driver.nvmlDeviceGetName.return_value = "NVIDIA L4"
    driver.nvmlDeviceGetMemoryInfo.return_value.total = 24 << 30
    driver.nvmlSystemGetDriverVersion.return_value = "580.1"
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr("photofinish.machine.load.pynvml", driver)
    monkeypatch.setattr(accelerators.util, "find_spec", lambda _: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = accelerators.listed_by_torch()
    assert found["cuda"] == (AcceleratorFacts("cuda", "NVIDIA L4", 24 << 30, "580.1"),) * 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    driver.nvmlDeviceGetHandleByIndex.side_effect = lambda place: place
    driver.nvmlDeviceGetName.side_effect = ["NVIDIA L4", "NVIDIA H100"].__getitem__
    (first,) = accelerators.listed_by_torch()["cuda"]
    assert isinstance(first, AcceleratorFacts)
    assert first.name == "NVIDIA H100"
    driver.nvmlInit.side_effect = RuntimeError
    assert "without torch" in accelerators.listed_by_torch()["cuda"]


TOO_MANY = "devices.gpu.count asks for 5 GPUs, and this machine has 4"
NO_FIFTH = "devices.gpu.device_ids names GPU 4, but the GPUs here are numbered 0 to 3"


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("settings", "names", "processes", "missing"),
    [
        ({}, GPUS[:1], 1, None),
        ({"count": 3}, GPUS[:3], 3, None),
        ({"count": "all"}, GPUS, 4, None),
        ({"count": 2, "strategy": "data_parallel"}, GPUS[:2], 1, None),
        ({"strategy": "data_parallel", "device_ids": (3, 1)}, ["GPU 3", "GPU 1"], 1, None),
        ({"kind": "mps"}, [], 1, "mps: no Apple silicon"),
        ({"count": 5}, [], 1, TOO_MANY),
        ({"count": 2, "strategy": "data_parallel", "device_ids": (0, 4)}, [], 1, NO_FIFTH),
    ],
    ids=str,
)
def test_the_fingerprint_holds_the_gpus_in_use_or_why_none_is_used(
    settings: dict[str, Any],
    names: list[str],
    processes: int,
    missing: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = host_of(**settings)
    assert [gpu.name for gpu in host.accelerators] == names
    assert (host.processes, host.missing) == (processes, missing)
    if names:
        assert host.count == len(names)
        return
    pretend_accelerators(monkeypatch)
    host = host_of(if_missing="fail")
    assert (host.accelerators, host.threads, host.cpu, host.software) == ((), None, None, None)
    assert host.if_missing == "fail"
    assert host.missing == "cuda: no NVIDIA GPU; mps: no Apple silicon; xpu: no Intel GPU"


@pytest.mark.parametrize(
    ("info", "model", "instruction_sets"),
    [
        ("model name\t: EPYC\nflags\t\t: fpu avx2 fma rdtscp\n", "EPYC", ("avx2", "fma")),
        ("Features\t: fp asimd bf16 crc32\n", "an unnamed CPU", ("asimd", "bf16")),
    ],
)
def test_the_instruction_sets_that_change_bits_are_read_from_proc(
    monkeypatch: pytest.MonkeyPatch, info: str, model: str, instruction_sets: tuple[str, ...]
) -> None:
    pretend_files(monkeypatch, {Path("/proc/cpuinfo"): info})
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "processor", lambda: "an unnamed CPU")
    of_cpu = facts.cpu_facts()
    assert (of_cpu.model, of_cpu.instruction_sets) == (model, instruction_sets)


def pretend_cores(
    monkeypatch: pytest.MonkeyPatch, usable: Iterable[int], files: dict[Path, str]
) -> None:
    pretend_files(monkeypatch, files)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(facts.os, "sched_getaffinity", lambda _: set(usable), raising=False)


def test_two_hardware_threads_of_a_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    siblings = {
        Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"): f"{core % 4}\n"
        for core in range(8)
    }
    for usable, cores in ((range(8), 4), ((0, 4, 5), 2)):
        pretend_cores(monkeypatch, usable, siblings)
        assert threads_of() == cores


@pytest.mark.parametrize(
    ("settings", "cores", "quota", "threads"),
    [
        ({"threads": "auto"}, 8, "max", 8),
        ({"threads": "auto"}, 8, "400000", 4),
        ({"threads": "auto"}, 8, "150000", 1),
        ({"processes": 4}, 8, "max", 2),
        ({"processes": 4, "threads": 8}, 8, "max", 8),
    ],
    ids=str,
)
def test_auto_threads_are_the_usable_cores_divided_by_processes(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], cores: int, quota: str, threads: int
) -> None:
    pretend_cores(monkeypatch, range(cores), {CPU_MAX: f"{quota} 100000"})
    cpu = CpuDevice.model_validate(settings)
    host, _ = hosts.fingerprint(Devices(cpu=cpu))
    assert (host.threads, host.processes) == (threads, cpu.processes)


BURN_A_CORE = "import time\nwhile time.process_time() < 0.3:\n    pass"
QUIET = result_files.BUSY.model_copy(
    update={"cores": 4, "others_cpu_seconds": 1.0, "waited_for_core_seconds": 0.5}
)
BUSY = QUIET.model_copy(update={"others_cpu_seconds": 40.0})

OTHERS = "other programs used 50% of the cores"
WAITED = "its threads waited for a core 50% of the time they wanted one"
READ_BACK = "memory was read back from a disk"
A_FEW_TICKS = {"wall_seconds": 0.1, "own_cpu_seconds": 0.1, "others_cpu_seconds": 0.08}


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({}, None),
        ({"others_cpu_seconds": 20.0}, None),  # a quarter of the cores is idle
        ({"own_cpu_seconds": 20.0, "others_cpu_seconds": 20.0}, OTHERS),
        ({"waited_for_core_seconds": 10.0}, WAITED),
        ({"swapped_pages": 5000}, READ_BACK),
        ({"major_page_faults": 5000, "swapped_pages": None}, READ_BACK),
        ({"gpu_slowdowns": ("heat",)}, "the GPU reduced its clock (heat)"),
        ({"gpu_others": 1}, "other programs were on the GPU"),
        ({**A_FEW_TICKS, "waited_for_core_seconds": 0}, None),  # no evidence
    ],
    ids=str,
)
def test_what_makes_times_unreliable_is_named(figures: dict[str, Any], reason: str | None) -> None:
    reasons = [f"for 100% of the run, {reason}"] if reason else []
    assert load_warnings([QUIET.model_copy(update=figures)]) == reasons


def test_what_happened_in_less_than_a_tenth_of_the_time_or_was_not_watched_does_not_count() -> None:
    busy = "for 20% of the run, other programs used 100% of the cores"
    assert load_warnings([BUSY, *[QUIET] * 4]) == [busy]
    assert load_warnings([BUSY, *[QUIET] * 19]) == []
    assert load_warnings([]) == []


def test_children_count_as_the_process_itself_and_others_for_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each core is busy for 10 s more at each reading."""
    readings_seconds = itertools.count(0.0, 10.0)

    def cpu_times(*, percpu: bool) -> list[SimpleNamespace]:
        assert percpu
        busy_seconds = next(readings_seconds)
        core = SimpleNamespace(user=busy_seconds / 2, steal=busy_seconds / 2, idle=busy_seconds)
        return [core] * (os.cpu_count() or 1)

    monkeypatch.setattr("psutil.cpu_times", cpu_times)
    monitor = LoadMonitor(nvidia_gpu_state(None))
    subprocess.run([sys.executable, "-c", BURN_A_CORE], check=True)
    # Its parent ends at once, so it belongs to no process of the test.
    orphan = f'"{sys.executable}" -c "{BURN_A_CORE}" &'
    # Until it closes its output.
    subprocess.run(["sh", "-c", orphan], capture_output=True, check=True)
    monitor.epoch_ended()
    monitor.training_ended()
    (seen,) = monitor.windows
    assert 0.25 < seen.own_cpu_seconds < 0.55
    assert seen.others_cpu_seconds == pytest.approx(10 * seen.cores - seen.own_cpu_seconds)
    assert seen.wall_seconds > 0.6


def test_short_epochs_share_a_window() -> None:
    monitor = LoadMonitor(nvidia_gpu_state(None))
    for _ in range(999):
        monitor.epoch_ended()
    assert monitor.windows == []
    monitor.training_ended()
    monitor.training_ended()
    assert len(monitor.windows) == 1


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace functions of NVIDIA's driver, whose names begin with nvml."""

    def replace(**functions: Any) -> None:
        for name, function in ({"Init": lambda: None} | functions).items():
            monkeypatch.setattr(pynvml, f"nvml{name}", function)

    return replace


def test_what_slows_a_gpu_is_read_from_its_driver(nvml: Callable[..., None]) -> None:
    power_cap_and_heat = (
        pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    )
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    processes = [os.getpid(), child.pid, os.getppid(), 2**22 + 1]  # the last is of no process
    nvml(
        DeviceGetHandleByUUID=lambda uuid: uuid,
        DeviceGetCurrentClocksThrottleReasons={"GPU-a-b": power_cap_and_heat}.get,
        DeviceGetComputeRunningProcesses=lambda _: [
            SimpleNamespace(pid=process) for process in processes
        ],
    )
    monitor = LoadMonitor(nvidia_gpu_state("a-b"))
    monitor.sample()
    child.communicate(b"\n")
    assert monitor.windows[0].gpu_slowdowns == ("heat",)
    assert monitor.windows[0].gpu_others == 1


@pytest.mark.parametrize(
    ("percents", "works"), [([60, 0, 9, 40, 80, 70], True), ([99, 99, 60, 20, 0, 0], False)]
)
def test_a_gpu_works_if_it_does_so_until_the_end_of_a_second(
    nvml: Callable[..., None], monkeypatch: pytest.MonkeyPatch, percents: list[int], *, works: bool
) -> None:
    rates = Mock(side_effect=[SimpleNamespace(gpu=each) for each in percents])
    nvml(DeviceGetHandleByIndex=lambda place: place, DeviceGetUtilizationRates=rates)
    monkeypatch.setattr("photofinish.machine.load._READING_SECONDS", 0.0)
    assert nvidia_gpu_works("0") is works


SMALL = 2**26
"""Memory that every machine has."""
AROUND = {"job/memory.max": "9000", "job/memory.stat": "anon 4000\nfile 5000"}


def test_resident_batches_must_fit(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = setup.Setup(make_run(input={"name": "loader"}), World(CPU)).new_trainer()
    batches = trainer.training
    assert isinstance(batches, LoaderBatches)
    assert resident_batches(trainer, batches, batches.dataset.part) is not None
    monkeypatch.setattr(loader_tries, "available_memory_bytes", lambda: 1000)
    assert resident_batches(trainer, batches, batches.dataset.part) is None


@pytest.mark.parametrize(
    ("own_group", "files", "available"),
    [
        ("0::/", {"memory.max": "max"}, SMALL),
        ("0::/job/step", AROUND | {"job/step/memory.max": "max"}, 5000),
        ("0::/of-the-host", {"memory.max": "9000", "memory.stat": "file 1\nanon 9500"}, 0),
    ],
    ids=["no limit", "the group around it", "in a container"],
)
def test_a_control_group_limits_the_memory(
    custom_files: CustomFiles,
    monkeypatch: pytest.MonkeyPatch,
    own_group: str,
    files: dict[str, str],
    available: int,
) -> None:
    for name, text in ({"../own": own_group} | files).items():
        custom_files.write(f"groups/{name}", f"{text}\n")
    monkeypatch.setattr(host, "_CGROUPS", custom_files.folder / "groups")
    monkeypatch.setattr(host, "_OWN_CGROUP", custom_files.folder / "own")
    assert min(available_memory_bytes(), SMALL) == available
