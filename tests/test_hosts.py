"""The fingerprint of the machine holds what determines speed and bits, and nothing that changes by itself."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pynvml
import pytest
from pydantic import ValidationError

from photofinish.errors import MistakeError
from photofinish.machine import accelerators
from photofinish.machine import fingerprint as hosts
from photofinish.machine import host as facts
from photofinish.machine.accelerators import AcceleratorFacts
from photofinish.params.devices import CpuDevice, Devices, GpuDevice

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
QUOTA, PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
H200_BYTES = 150_754_820_096
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def pretend_files(monkeypatch: pytest.MonkeyPatch, files: dict[Path, str]) -> None:
    """The system's own files are these and no others."""
    read = facts.read_or_empty

    def pretend(path: Path) -> str:
        return files.get(path, "") if path.parts[1] in ("proc", "sys") else read(path)

    for module in (facts, accelerators):
        monkeypatch.setattr(module, "read_or_empty", pretend)


def pretend_cores(monkeypatch: pytest.MonkeyPatch, usable: Iterable[int], files: dict[Path, str]) -> None:
    """This process may use these, and nothing but the system's files says otherwise."""
    pretend_files(monkeypatch, files)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(facts.os, "sched_getaffinity", lambda _: set(usable), raising=False)


def pretend_system(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)


def refusing(code: int) -> Mock:
    """In place of a function of NVIDIA's driver."""
    return Mock(side_effect=pynvml.NVMLError(code))


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A machine with one NVIDIA GPU; how its driver was `opened` and `closed`."""
    driver = Mock()
    answers: dict[str, Any] = {
        "nvmlInit": driver.opened,
        "nvmlShutdown": driver.closed,
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index:08x}-0000",
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=H200_BYTES),
        "nvmlDeviceGetMigMode": refusing(pynvml.NVML_ERROR_NOT_SUPPORTED),  # for it isn't divided
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.setattr(accelerators, "torch_cuda_version", lambda: "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return driver


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch, one_gpu: Mock) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 4)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda index: f"GPU {index}")
    assert not one_gpu.opened.called


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Linux machine without an accelerator of any kind."""
    monkeypatch.setattr(pynvml, "nvmlInit", refusing(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    monkeypatch.setattr(accelerators, "_amd_gpus", list)
    monkeypatch.setattr(accelerators, "_NODES", ())
    for name in VISIBLE:
        monkeypatch.delenv(name, raising=False)
    pretend_system(monkeypatch, "Linux", "x86_64")


@pytest.fixture
def apple_silicon(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_system(monkeypatch, "Darwin", "arm64")
    monkeypatch.setattr(accelerators, "mac_cpu_name", lambda: "Apple M4 Pro")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.5", ("", "", ""), "arm64"))


def host_of(**gpu: Any) -> hosts.GpuHost:
    """The fingerprint with these settings of the GPU."""
    return hosts.fingerprint(Devices(gpu=GpuDevice(**gpu)))[1]


def threads_of(**cpu: Any) -> int:
    """On the CPU, with these settings of it."""
    return hosts.fingerprint(Devices(cpu=CpuDevice.model_validate(cpu)))[0].threads


def found_here(kind: str) -> tuple[list[AcceleratorFacts], str | None]:
    wanted = GpuDevice.model_validate({"kind": kind, "count": "all"})
    return accelerators.accelerators_to_use(wanted, accelerators.all_accelerators())


def why_none(kind: str) -> str:
    found, missing = found_here(kind)
    assert found == []
    return str(missing)


def python(code: str) -> str:
    """What the code prints in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def test_the_fingerprint_is_the_same_at_every_call_and_in_another_process() -> None:
    here = hosts.fingerprint(Devices())
    code = (
        "from photofinish.machine import fingerprint as hosts; from photofinish.params.devices import Devices; "
        "print(hosts.fingerprint(Devices())[0].model_dump_json())"
    )
    assert hosts.fingerprint(Devices()) == here
    assert python(code) == here[0].model_dump_json()


@pytest.mark.usefixtures("one_gpu")
def test_the_fingerprint_holds_only_what_stays_the_same() -> None:
    documents = [json.loads(host.model_dump_json()) for host in hosts.fingerprint(Devices())]
    variables = set().union(*(document["software"]["variables"] for document in documents))
    assert keys_of(documents) - variables == {
        "processes", "keep_freed_memory", "threads", "cpu", "software", "kind", "count", "strategy", "missing",
        "device_ids", "output_device", "if_missing", "accelerators", "model", "architecture", "usable_cores", "system",
        "cgroup_cores_limit", "instruction_sets", "python", "torch", "torchvision", "cuda", "variables", "name",
        "memory_bytes", "driver",
    }  # fmt: skip
    assert variables <= set(facts.GPU_VARIABLES)


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("cpu", "cores"), 2), (("cpu", "usable_cores"), "2"), (("software", "cudnn"), "9"), (("software", "torch"), 2),
        (("accelerators", 0, "watts"), 700), (("accelerators", 0, "memory_bytes"), "80 GB"),
    ],
    ids=str,
)  # fmt: skip
def test_a_fingerprint_reads_back_as_it_was_and_with_nothing_unknown_or_of_another_type(
    place: tuple[Any, ...], value: Any
) -> None:
    for host in hosts.fingerprint(Devices()):
        text = host.model_dump_json()
        assert type(host).model_validate_json(text) == host
        assert type(host).model_validate_json(text).model_dump_json() == text
        document = json.loads(text)
        if place[0] in document:
            *around, key = place
            functools.reduce(lambda inner, step: inner[step], around, document)[key] = value
            with pytest.raises(ValidationError):
                type(host).model_validate_json(json.dumps(document))


def test_the_threads_follow_the_variable_that_torch_heeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert threads_of() == 7


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "KMP_AFFINITY"])
def test_a_variable_that_changes_speed_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name, raising=False)
    without, _ = hosts.fingerprint(Devices())
    monkeypatch.setenv(name, "1")
    with_one, _ = hosts.fingerprint(Devices())
    assert without != with_one
    assert with_one.software.variables[name] == "1"


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    ("name", "value"),
    [("EDITOR", "another"), ("CUDA_VISIBLE_DEVICES", "0")],
    ids=["of another program", "which GPU is chosen: what it is counts, not its number"],
)
def test_any_other_variable_leaves_the_fingerprint_as_it_is(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    before = hosts.fingerprint(Devices())
    monkeypatch.setenv(name, value)
    assert hosts.fingerprint(Devices()) == before


@pytest.mark.parametrize(
    "code",
    [
        "from photofinish.machine.fingerprint import Devices, fingerprint; fingerprint(Devices())",
        "import photofinish.params.reader",
        "import photofinish.plan",
        "import photofinish.comparing.pairs",
    ],
)
def test_what_needs_no_network_to_train_imports_neither_torch_nor_mlflow(code: str) -> None:
    heavy = python(f"{code}; import sys; print({{'torch', 'torchvision', 'mlflow', 'sklearn'}} & sys.modules.keys())")
    assert heavy == "set()"


# -- accelerators -------------------------------------------------------------------------------------


def test_an_nvidia_gpu_is_found_by_its_driver_which_is_closed_again(one_gpu: Mock) -> None:
    gpu = AcceleratorFacts("cuda", "NVIDIA H200", H200_BYTES, driver="580.65.06")
    assert found_here("auto") == ([gpu], None)
    assert (one_gpu.opened.call_count, one_gpu.closed.call_count) == (1, 1)


@pytest.mark.usefixtures("one_gpu")
def test_the_host_of_a_gpu_has_the_cpu_and_the_software_beside_it() -> None:
    cpu_host, gpu_host = hosts.fingerprint(Devices(cpu=CpuDevice(threads=1)))
    assert gpu_host.cpu == cpu_host.cpu
    assert gpu_host.software
    assert gpu_host.software.torch == cpu_host.software.torch
    assert gpu_host.missing is None
    assert cpu_host.threads == 1
    assert gpu_host.threads == threads_of()  # the setting is about training on the CPU


@pytest.mark.usefixtures("one_gpu")
def test_a_gpu_of_another_kind_than_asked_for_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_system(monkeypatch, "Linux", "x86_64")
    assert why_none("mps") == "mps: this is not Apple silicon"


@pytest.mark.usefixtures("no_gpu")
def test_without_an_accelerator_the_host_says_why_of_each_kind_and_holds_nothing_of_the_cpu() -> None:
    host = host_of(if_missing="fail")
    assert (host.accelerators, host.threads, host.cpu, host.software) == ((), None, None, None)
    assert host.if_missing == "fail"
    assert host.missing is not None
    assert [reason.partition(":")[0] for reason in host.missing.split("; ")] == ["cuda", "mps", "xpu"]
    assert "no NVIDIA driver answers" in host.missing


@pytest.mark.usefixtures("one_gpu")
def test_a_gpu_without_memory_of_its_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", refusing(pynvml.NVML_ERROR_NOT_SUPPORTED))
    assert [gpu.memory_bytes for gpu in found_here("cuda")[0]] == [None]


@pytest.mark.parametrize("call", ["nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName"])
def test_a_driver_that_fails_is_a_reason_and_no_crash(
    monkeypatch: pytest.MonkeyPatch, one_gpu: Mock, call: str
) -> None:
    monkeypatch.setattr(pynvml, call, refusing(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert why_none("cuda").startswith("cuda: the NVIDIA driver can't describe its GPUs (GPU is lost")
    assert one_gpu.closed.call_count == 1


@pytest.mark.usefixtures("one_gpu")
def test_neither_a_driver_without_a_gpu_nor_a_torch_without_cuda_counts_as_no_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as without_cuda:
        without_cuda.setattr(accelerators, "torch_cuda_version", lambda: None)
        assert "driver 580.65.06 lists NVIDIA H200, but this torch" in why_none("cuda")
        assert "built without CUDA: install" in why_none("cuda")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 0)
    assert why_none("cuda") == "cuda: the NVIDIA driver lists no GPU"


# -- several accelerators -----------------------------------------------------------------------------


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("settings", "names", "processes"),
    [
        ({}, ["GPU 0"], 1),
        ({"count": 3}, ["GPU 0", "GPU 1", "GPU 2"], 3),
        ({"count": "all"}, ["GPU 0", "GPU 1", "GPU 2", "GPU 3"], 4),
        ({"count": 2, "strategy": "data_parallel"}, ["GPU 0", "GPU 1"], 1),
        ({"count": 2, "strategy": "data_parallel", "device_ids": (3, 1)}, ["GPU 3", "GPU 1"], 1),
        ({"strategy": "data_parallel", "device_ids": (3, 1)}, ["GPU 3", "GPU 1"], 1),
        ({"strategy": "data_parallel", "count": "all", "output_device": 3}, [f"GPU {index}" for index in range(4)], 1),
    ],
    ids=str,
)
def test_the_fingerprint_holds_the_gpus_that_are_used_and_how_many_processes_use_them(
    settings: dict[str, Any], names: list[str], processes: int
) -> None:
    host = host_of(**settings)
    assert [gpu.name for gpu in host.accelerators] == names
    assert (host.count, host.processes, host.missing) == (len(names), processes, None)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"count": 5}, "5 GPUs asked for (devices.gpu.count), 4 here"),
        (
            {"count": 2, "strategy": "data_parallel", "device_ids": (0, 4)},
            "devices.gpu.device_ids names GPU 4, and the GPUs here are numbered 0 to 3",
        ),
    ],
    ids=str,
)
def test_more_gpus_than_there_are_leave_none_to_use(settings: dict[str, Any], reason: str) -> None:
    host = host_of(**settings)
    assert (host.accelerators, host.missing, host.processes) == ((), reason, 1)


@pytest.mark.usefixtures("four_gpus")
def test_an_output_device_beyond_all_the_gpus_is_a_mistake() -> None:
    with pytest.raises(MistakeError, match=r"output_device .* is 30: must be one of the GPUs in use: 0, 1, 2, 3$"):
        host_of(count="all", strategy="data_parallel", output_device=30)


@pytest.mark.usefixtures("no_gpu", "apple_silicon")
def test_data_parallel_is_a_mistake_where_auto_stands_for_another_kind() -> None:
    with pytest.raises(MistakeError, match=r"is for cuda, and the accelerator here is mps: .*strategy to ddp"):
        host_of(strategy="data_parallel")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("settings", "count"), [({}, 1), ({"device_ids": (0, 1)}, 2)])
def test_gpus_are_counted_where_no_count_is_given(settings: dict[str, Any], count: int) -> None:
    assert host_of(strategy="data_parallel", **settings).count == count


@pytest.mark.usefixtures("one_gpu")
def test_how_gpus_talk_to_each_other_is_part_of_their_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    cpu_host, gpu_host = hosts.fingerprint(Devices())
    assert gpu_host.software
    assert gpu_host.software.variables["NCCL_ALGO"] == "Ring"
    assert "NCCL_ALGO" not in cpu_host.software.variables


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("visible", "names", "missing"),
    [
        ("2", ["GPU 2"], None),
        ("3, 0", ["GPU 3", "GPU 0"], None),
        ("1,9,2", ["GPU 1"], None),
        ("GPU-00000002", ["GPU 2"], None),
        ("7", [], "cuda: CUDA_VISIBLE_DEVICES=7 hides every GPU"),
        ("1,2,1", [], "cuda: CUDA_VISIBLE_DEVICES=1,2,1 hides every GPU"),  # the driver then shows none
        *((nothing, [], "cuda: CUDA_VISIBLE_DEVICES hides every GPU") for nothing in ("", " ", "-1")),
    ],
)
def test_only_the_gpus_that_cuda_may_see_count(
    monkeypatch: pytest.MonkeyPatch, visible: str, names: list[str], missing: str | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found, reason = found_here("cuda")
    assert ([gpu.name for gpu in found], reason) == (names, missing)


@pytest.mark.usefixtures("no_gpu")
def test_an_amd_gpu_counts_as_cuda_as_it_does_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = AcceleratorFacts("cuda", "AMD GPU", memory_bytes=None, driver="6.8")
    monkeypatch.setattr(accelerators, "_amd_gpus", lambda: [("GPU-1", gpu)])
    monkeypatch.setattr(accelerators, "torch_rocm_version", lambda: "7.0")
    assert found_here("auto") == ([gpu], None)
    monkeypatch.setattr(accelerators, "torch_rocm_version", lambda: None)
    assert "for the AMD GPU this torch" in why_none("cuda")


@pytest.mark.usefixtures("no_gpu", "apple_silicon")
def test_the_gpu_of_apple_silicon_goes_by_the_name_of_its_chip() -> None:
    chip = AcceleratorFacts("mps", "Apple M4 Pro", memory_bytes=None, driver="15.5")
    assert found_here("auto") == ([chip], None)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, ["gfx90a 0", "gfx90a 1", "gfx1036", "gfx1036"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["gfx90a 1"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["gfx90a 1"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["gfx90a 0"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000b1,0"}, ["gfx90a 1", "gfx90a 0"]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, ["gfx1036"]),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, ["gfx1036", "gfx1036"]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
    ],
    ids=str,
)
def test_rocms_own_variables_hide_gpus_too(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], names: list[str]
) -> None:
    alike = (0, "gfx1036")  # which has no number of its own
    gpus = [
        (f"GPU-{number:016x}", AcceleratorFacts("cuda", name, None, "6.8"))
        for number, name in ((176, "gfx90a 0"), (177, "gfx90a 1"), alike, alike)
    ]
    monkeypatch.setattr(accelerators, "_amd_gpus", lambda: gpus)
    monkeypatch.setattr(accelerators, "torch_rocm_version", lambda: "7.0")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen, missing = found_here("cuda")
    assert [gpu.name for gpu in seen] == names
    assert missing == (None if names else "cuda: ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES hides every GPU")


def test_a_package_without_metadata_is_left_out_of_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    version = facts.metadata.version

    def lacking(name: str) -> str:
        if name in ("dvc", "mlflow"):
            raise facts.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(facts.metadata, "version", lacking)
    versions = facts.package_versions()
    assert {"torch", "numpy", "pydantic"} < versions.keys()
    assert not {"dvc", "mlflow"} & versions.keys()


# -- where NVML doesn't tell, CUDA's own driver is asked ------------------------------------------------

SLICE = ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10 * 2**30)
ORIN = ("Orin", 7 * 2**30)


class FakeCuda:
    """CUDA's driver, of two devices; each function gives a status, or fills what it is given."""

    def __init__(self, failing: str = "") -> None:
        self._failing = failing

    def __getattr__(self, function: str) -> Any:
        fill = {
            "cuDriverGetVersion": lambda version: setattr(version.contents, "value", 12060),
            "cuDeviceGetCount": lambda count: setattr(count.contents, "value", 2),
            "cuDeviceGet": lambda device, number: setattr(device.contents, "value", 10 + number),
            "cuDeviceGetName": lambda name, _size, device: setattr(name, "value", f"GPU {device.value}".encode()),
            "cuDeviceTotalMem_v2": lambda size, device: setattr(size.contents, "value", device.value * 2**30),
        }.get(function, lambda *_: None)
        return lambda *arguments: 100 if function == self._failing else fill(*arguments) or 0


@pytest.fixture
def asked_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Makes CUDA's driver list these devices, or say why it can't; gives the command that it is asked by."""
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release\n")
    monkeypatch.setattr(accelerators, "_KERNEL_MODULE", tmp_path / "version")
    monkeypatch.setattr(accelerators, "torch_cuda_version", lambda: "13.0")

    def answer(*devices: tuple[str, int], error: str = "") -> list[str]:
        command: list[str] = []

        def run(started: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            command[:] = started
            return subprocess.CompletedProcess(started, int(bool(error)), json.dumps(["12.6", devices]), error)

        monkeypatch.setattr(accelerators, "subprocess", SimpleNamespace(run=run))
        return command

    return answer


@pytest.mark.usefixtures("no_gpu")
def test_without_nvml_cuda_itself_is_asked_where_the_kernel_shows_a_gpu(
    monkeypatch: pytest.MonkeyPatch, asked_cuda: Callable[..., list[str]]
) -> None:
    asked_cuda(ORIN)
    assert found_here("cuda")[0] == []
    monkeypatch.setattr(accelerators, "_NODES", ("null",))
    assert found_here("cuda") == ([AcceleratorFacts("cuda", *ORIN, "540.4.0")], None)
    asked_cuda(error="cuInit gives error 100")
    assert re.search(r"no NVIDIA driver answers \(.*\), and cuInit gives error 100", why_none("cuda"))
    asked_cuda()
    assert why_none("cuda").endswith("; CUDA lists none")


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize("visible", [None, "0", "MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"])
def test_of_a_gpu_that_is_divided_the_slice_counts_that_cuda_has(
    monkeypatch: pytest.MonkeyPatch, asked_cuda: Callable[..., list[str]], visible: str | None
) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", lambda index: [int(index == 2), 0])
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    asked_cuda(SLICE)
    assert found_here("cuda") == ([AcceleratorFacts("cuda", *SLICE, "580.65.06")], None)
    asked_cuda(error="CUDA's driver can't be loaded")
    assert why_none("cuda") == "cuda: a GPU is divided (MIG), and CUDA's driver can't be loaded"


def test_cudas_driver_tells_names_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators.ctypes, "CDLL", lambda _name: FakeCuda())
    assert accelerators.cuda_gpus_in_this_process() == ("12.6", [("GPU 10", 10 * 2**30), ("GPU 11", 11 * 2**30)])
    monkeypatch.setattr(accelerators.ctypes, "CDLL", lambda _name: FakeCuda(failing="cuInit"))
    with pytest.raises(SystemExit, match="can't be used: cuInit gives error 100"):
        accelerators.cuda_gpus_in_this_process()


@pytest.mark.usefixtures("no_gpu")
def test_cudas_driver_is_asked_in_a_process_of_its_own_whose_last_word_counts(
    monkeypatch: pytest.MonkeyPatch, asked_cuda: Callable[..., list[str]]
) -> None:
    monkeypatch.setattr(accelerators, "_NODES", ("null",))
    monkeypatch.setattr(accelerators, "_KERNEL_MODULE", Path("/nowhere"))
    command = asked_cuda(ORIN)
    assert found_here("cuda")[0] == [AcceleratorFacts("cuda", *ORIN, "CUDA 12.6")]
    assert command[1:] == ["-m", "photofinish.machine.accelerators"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # for real, maybe without a driver
    assert ran.returncode == 0 or re.match(r"CUDA's driver can't be (loaded|used): ", ran.stderr)


# -- the CPU ------------------------------------------------------------------------------------------


def test_a_mac_has_no_proc_and_is_asked_for_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Mock(return_value=SimpleNamespace(stdout="Apple M4 Pro\n"))
    pretend_files(monkeypatch, {})
    pretend_system(monkeypatch, "Darwin", "arm64")
    monkeypatch.setattr(facts.subprocess, "run", run)
    monkeypatch.delattr(facts.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None if logical else 12)
    assert facts.cpu_facts() == facts.CpuFacts(
        model="Apple M4 Pro",
        architecture="arm64",
        usable_cores=12,
        cgroup_cores_limit=None,
        instruction_sets=(),
        system="Darwin",
    )
    assert {call.args[0][0] for call in run.call_args_list} == {"sysctl"}


@pytest.mark.parametrize(
    ("info", "model", "instruction_sets"),
    [
        (
            "processor\t: 0\nmodel name\t: AMD EPYC 9654\nflags\t\t: fpu sse4_2 avx2 avx avx512f fma rdtscp\n",
            "AMD EPYC 9654",
            ("avx", "avx2", "avx512f", "fma", "sse4_2"),
        ),
        ("processor\t: 0\nFeatures\t: fp asimd sve2 bf16 crc32\n", "an unnamed CPU", ("asimd", "bf16", "sve2")),
    ],
)
def test_the_instruction_sets_that_change_bits_are_read_from_proc(
    monkeypatch: pytest.MonkeyPatch, info: str, model: str, instruction_sets: tuple[str, ...]
) -> None:
    pretend_files(monkeypatch, {Path("/proc/cpuinfo"): info})
    pretend_system(monkeypatch, "Linux", "x86_64")
    monkeypatch.setattr(platform, "processor", lambda: "an unnamed CPU")
    of_cpu = facts.cpu_facts()
    assert (of_cpu.model, of_cpu.instruction_sets) == (model, instruction_sets)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({CPU_MAX: "200000 100000\n"}, 2.0),
        ({CPU_MAX: "150000 100000\n"}, 1.5),
        ({CPU_MAX: "max 100000\n"}, None),
        ({QUOTA: "400000\n", PERIOD: "100000\n"}, 4.0),
        ({QUOTA: "-1\n", PERIOD: "100000\n"}, None),
        ({CPU_MAX: "nonsense"}, None),
        ({}, None),
    ],
)
def test_the_limit_of_a_container_is_read_in_cores(
    monkeypatch: pytest.MonkeyPatch, files: dict[Path, str], limit: float | None
) -> None:
    pretend_files(monkeypatch, files)
    assert facts.cpu_facts().cgroup_cores_limit == limit


def test_two_hardware_threads_of_a_core_count_once_as_torch_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = Path("/sys/devices/system/cpu")
    siblings = {
        topology / f"cpu{each}/topology/thread_siblings_list": f"{each % 4},{each % 4 + 4}\n" for each in range(8)
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
        ({"threads": "auto"}, 8, "50000", 1),
        ({"threads": "auto"}, 2, "400000", 2),
        ({"threads": 6}, 8, "400000", 6),
        ({"processes": 4}, 8, "max", 2),
        ({"processes": 4, "threads": 8}, 8, "max", 8),
    ],
    ids=str,
)
def test_auto_threads_are_the_cores_this_process_may_use_and_several_divide_among_them(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], cores: int, quota: str, threads: int
) -> None:
    pretend_cores(monkeypatch, range(cores), {CPU_MAX: f"{quota} 100000"})
    cpu = CpuDevice.model_validate(settings)
    host, _ = hosts.fingerprint(Devices(cpu=cpu))
    assert (host.threads, host.processes) == (threads, cpu.processes)
