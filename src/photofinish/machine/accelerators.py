"""The accelerators of this machine, as torch lists them.

`plan` runs every time and must not wait seconds for `import torch`. So a subprocess asks torch
(`python -m photofinish.machine.accelerators`), and its answer is cached.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from photofinish.config.kinds import KINDS, Kind
from photofinish.files import project_root, write_json_atomically
from photofinish.machine.host import build_version, mac_cpu_name, read_or_empty

if TYPE_CHECKING:
    from photofinish.config.devices import GpuDevice

DEVICES = Path("/dev")
_NVIDIA_VERSION = Path("/sys/module/nvidia/version")
_MOST_SECONDS = 120.0  # by hand, for a first import of torch from a slow disk
HIDDEN = "CUDA_VISIBLE_DEVICES hides every GPU"
_WITHOUT_TORCH = "only NVIDIA's GPUs are found without torch: install torch beside photofinish"


@dataclass(frozen=True)
class AcceleratorFacts:
    """Facts of an accelerator that determine speed and bits."""

    kind: Kind
    name: str
    memory_bytes: int | None
    """None if the accelerator shares the CPU's memory."""
    driver: str


Accelerators = dict[str, tuple[AcceleratorFacts, ...] | str]
"""For each kind, the accelerators of this machine, or the reason why there are none."""
_ACCELERATORS: TypeAdapter[Accelerators] = TypeAdapter(Accelerators)


def all_accelerators() -> Accelerators:
    """Return the accelerators of this machine, from the cache if nothing they depend on changed."""
    nodes: list[str] = []
    variables: list[str] = []
    for kind in KINDS.values():
        nodes += [str(node) for pattern in kind.nodes for node in DEVICES.glob(pattern)]
        variables += [*kind.hidden_by, *kind.visibility_variables]
    if platform.system() == "Linux" and not nodes:
        absent: Accelerators = {name: kind.absent for name, kind in KINDS.items()}
        return absent | {"cuda": HIDDEN} if _are_hidden() else absent
    # GPUs in the order of nvidia-smi. Training sets this too, unless the user does.
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | os.environ
    key = {
        "boot": read_or_empty(Path("/proc/sys/kernel/random/boot_id")).strip(),
        "driver": read_or_empty(_NVIDIA_VERSION).strip() or platform.release(),
        "nodes": sorted(nodes),
        "torch": build_version("torch"),
        "variables": {name: environment.get(name) for name in variables},
    }
    file = project_root() / ".photofinish" / "accelerators.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged
        cached = json.loads(file.read_bytes())
        if cached["key"] == key:
            return _ACCELERATORS.validate_python(cached["accelerators"])
    command = [sys.executable, "-m", "photofinish.machine.accelerators"]
    answer = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, check=True, timeout=_MOST_SECONDS
    )
    listed = _ACCELERATORS.validate_json(answer.stdout.splitlines()[-1])
    # A driver that fails now may work a minute later, so failures are not cached.
    only_graphics = all("dri/" in node for node in nodes)
    if isinstance(listed["cuda"], tuple) or _are_hidden() or only_graphics:
        accelerators = _ACCELERATORS.dump_python(listed, mode="json")
        with suppress(OSError):  # `ask` may run in a folder that can't be written
            write_json_atomically(file, {"key": key, "accelerators": accelerators})
    return listed


def _are_hidden() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


def accelerators_to_use(
    gpu: GpuDevice, here: Accelerators
) -> tuple[list[AcceleratorFacts], str | None]:
    """Return the accelerators that the settings select, or an empty list and the reason."""
    reasons = []
    for kind in here if gpu.kind == "auto" else (gpu.kind,):
        available = here[kind]
        if not isinstance(available, str):
            break
        reasons.append(f"{kind}: {available}")
    else:
        return [], "; ".join(reasons)
    count = len(available)
    if gpu.device_ids is not None:
        if (highest := max(gpu.device_ids)) >= count:
            return [], (
                f"devices.gpu.device_ids names GPU {highest}, "
                f"but the GPUs here are numbered 0 to {count - 1}"
            )
        return [available[index] for index in gpu.device_ids], None
    wanted = count if gpu.wanted_count == "all" else gpu.wanted_count
    if wanted > count:
        return [], f"devices.gpu.count asks for {wanted} GPUs, and this machine has {count}"
    return list(available[:wanted]), None


# -- in the subprocess --


def listed_by_torch() -> Accelerators:
    """Return the accelerators that torch lists here, or drivers without torch."""
    if util.find_spec("torch") is None:
        apple = _WITHOUT_TORCH if platform.system() == "Darwin" else KINDS["mps"].absent
        return {"cuda": _nvidia_gpus(), "mps": apple, "xpu": _WITHOUT_TORCH}
    return {"cuda": _cuda_gpus(), "mps": _apple_gpu(), "xpu": _intel_gpus()}


def _nvidia_gpus() -> tuple[AcceleratorFacts, ...] | str:
    """Return the GPUs that NVIDIA's driver lists, in the order of CUDA_VISIBLE_DEVICES."""
    import pynvml

    from photofinish.machine.load import nvidia_handle

    if _are_hidden():
        return HIDDEN
    gpus: list[AcceleratorFacts] = []
    with suppress(pynvml.NVMLError):  # CUDA sees no GPU from the first unknown name on
        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "").split(",")
        every = map(str, range(pynvml.nvmlDeviceGetCount()))
        for place in filter(None, visible if any(visible) else every):
            gpu = nvidia_handle(place)
            name = pynvml.nvmlDeviceGetName(gpu)
            memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
            gpus.append(AcceleratorFacts("cuda", name, int(memory.total), _nvidia_driver()))
    return tuple(gpus) or _WITHOUT_TORCH


def _cuda_gpus() -> tuple[AcceleratorFacts, ...] | str:
    """Return the GPUs of NVIDIA or AMD, which PyTorch both calls cuda."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built without CUDA: install a torch with CUDA"
    if _are_hidden():
        return HIDDEN
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        driver = _nvidia_driver() if torch.version.hip is None else platform.release()
        count = torch.cuda.device_count()
        gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
    except RuntimeError as error:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        reason = str(error).partition("\n")[0]
        return f"{reason} (CUDA_VISIBLE_DEVICES={visible})" if visible else reason
    return tuple(AcceleratorFacts("cuda", gpu.name, gpu.total_memory, driver) for gpu in gpus)


def _nvidia_driver() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:  # a container with CUDA's driver only
        return read_or_empty(_NVIDIA_VERSION).strip() or platform.release()


def _apple_gpu() -> tuple[AcceleratorFacts, ...] | str:
    import torch

    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return KINDS["mps"].absent
    if not torch.backends.mps.is_available():
        return "torch can't use the GPU of this Mac"
    name = mac_cpu_name() or "Apple GPU"
    return (AcceleratorFacts("mps", name, None, platform.mac_ver()[0]),)


def _intel_gpus() -> tuple[AcceleratorFacts, ...] | str:
    import torch

    if not torch.xpu.is_available():
        return f"this torch ({torch.__version__}) sees no Intel GPU"
    count = torch.xpu.device_count()
    gpus: list[Any] = [torch.xpu.get_device_properties(index) for index in range(count)]
    return tuple(
        AcceleratorFacts("xpu", gpu.name, gpu.total_memory, gpu.driver_version) for gpu in gpus
    )


if __name__ == "__main__":
    print(_ACCELERATORS.dump_json(listed_by_torch()).decode())
