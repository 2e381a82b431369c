"""photofinish's trainer, as the training stage uses it: training and validation, losses and accuracy of each epoch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from benchmarks.data import Part as Images
from benchmarks.timing import NowSeconds
from benchmarks.workloads import Workload
from photofinish.data.images import PartName
from photofinish.measuring.rehearsal import warm_up
from photofinish.training.batches import Batches, Normaliser, Part
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU, apply_policy
from photofinish.training.trainer import Trainer


def run(workload: Workload, now_seconds: NowSeconds) -> tuple[list[float], nn.Module]:
    def batches(name: PartName, images: Images) -> Batches:
        normalise = Normaliser(workload.data.mean, workload.data.std)
        return make_batches(workload.experiment(), Part(name, images.images, images.labels, normalise), CPU)

    training, validation = batches("train", workload.data.train), batches("validation", workload.data.validation)
    apply_policy(CPU, "fp32", torch.get_num_threads())
    trainer = Trainer(workload.experiment(), workload.network(), training, validation, CPU)
    warm_up(trainer)
    ends = [now_seconds()]
    trainer.train(lambda _metrics, _timing: ends.append(now_seconds()))
    return [end - start for start, end in pairwise(ends)], trainer.network
