"""What devices and experiments ask of each other, as far as params.yaml alone tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from photofinish.params.devices import Devices, GpuDevice
from photofinish.params.mistakes import Mistake
from photofinish.params.training import Experiment


def misfits(devices: Devices, experiments: Mapping[str, Experiment]) -> Iterator[Mistake]:
    """A batch with less than one image for each device, and a strategy without the kind of device or the precision."""
    yield from _data_parallel_misfits(devices.gpu, experiments)
    gpus = devices.gpu.wanted_count
    wanted = [("devices.cpu.processes", devices.cpu.processes)]
    if gpus != "all":  # how many that are, only the machine knows: checked when the training starts
        wanted.append(("devices.gpu.count", gpus))
    key, most = max(wanted, key=lambda key_and_count: key_and_count[1])
    for name, experiment in experiments.items():
        if experiment.batch_size < most:
            yield Mistake(
                ("experiments", name, "batch_size"),
                f"must be at least {most}: {key} is {most}, and each of them takes a share of every batch",
                experiment.batch_size,
            )


def _data_parallel_misfits(gpu: GpuDevice, experiments: Mapping[str, Experiment]) -> Iterator[Mistake]:
    if gpu.strategy != "data_parallel":
        return
    if gpu.kind in ("mps", "xpu"):
        yield Mistake(
            ("devices", "gpu", "strategy"), f"data_parallel is for cuda, and kind is {gpu.kind}: use ddp", gpu.strategy
        )
    for name, experiment in experiments.items():
        if experiment.precision == "bf16":
            yield Mistake(
                ("experiments", name, "precision"),
                "torch computes in fp16 instead, without a word, where devices.gpu.strategy is data_parallel: "
                "use strategy ddp, which computes in bf16, or precision fp16",
                experiment.precision,
            )
