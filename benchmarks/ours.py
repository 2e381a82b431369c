"""Training with photofinish's trainer, as in the training stage."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from benchmarks.timing import NowSeconds
from benchmarks.workloads import Workload
from photofinish.training.torch_device import CPU, configure_torch


def run(workload: Workload, now_seconds: NowSeconds) -> tuple[list[float], nn.Module]:
    configure_torch(CPU, "fp32", torch.get_num_threads())
    trainer = workload.trainer()
    trainer.prepare()
    ends = [now_seconds()]
    for _ in trainer.epochs():
        ends.append(now_seconds())
    return [end - start for start, end in pairwise(ends)], trainer.network
