"""ResNet-18's batch shared by two processes of the CPU, in the place of several GPUs."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import resnet18

_BATCH, _STEPS = 256, 2


def step_seconds(processes: int) -> float:
    """Return the time of a step of 256 images that some processes share over gloo."""
    threads = max(1, torch.get_num_threads() // processes)
    with tempfile.TemporaryDirectory() as folder:
        arguments = processes, threads, folder
        spawn(_rank, arguments, nprocs=processes)  # type: ignore[no-untyped-call]
        return float((Path(folder) / "seconds").read_text(encoding="utf-8"))


def _rank(rank: int, processes: int, threads: int, folder: str) -> None:
    torch.set_num_threads(threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=processes)
    torch.manual_seed(0)
    network = DistributedDataParallel(resnet18(num_classes=10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)
    images = torch.randn(_BATCH // processes, 3, 32, 32)
    labels = torch.randint(10, (len(images),))
    for step in range(1 + _STEPS):
        if step == 1:  # after a warm-up
            distributed.barrier()
            began_seconds = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    distributed.barrier()
    seconds = (time.perf_counter() - began_seconds) / _STEPS
    if rank == 0:
        (Path(folder) / "seconds").write_text(str(seconds), encoding="utf-8")
    distributed.destroy_process_group()
