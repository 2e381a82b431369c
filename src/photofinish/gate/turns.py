"""Turns of a training: a few timed steps at a time, or whole epochs."""

from __future__ import annotations

import torch

from photofinish.files import sha256_of_bytes
from photofinish.gate.change import Turn
from photofinish.machine.load import waited_for_core_seconds
from photofinish.training.torch_device import is_accelerator
from photofinish.training.trainer import Trainer


class Turns:
    """Trains in turns, each of which begins an epoch and takes the parts that `measure` times.

    Turns of both sides therefore have the same batches, also if an epoch's last is smaller.
    """

    def __init__(self, trainer: Trainer) -> None:
        trainer.prepare()
        self._trainer = trainer
        self._epochs = 0

    def take(self, steps: int) -> Turn:
        """Train for so many steps, or for whole epochs if those are short or loaded ahead.

        Within an epoch, its start is not timed. On the CPU, time in which a thread waited for a
        core is subtracted, since other programs caused it. An accelerator may compute meanwhile.
        """
        trainer, loader = self._trainer, self._trainer.experiment.input
        whole = steps + trainer.steps.at_once >= trainer.steps_per_epoch
        whole = whole or (loader.name == "loader" and loader.workers > 0)
        done, losses = 0.0, list[torch.Tensor]()
        began_seconds = trainer.clock.now_seconds()
        waited_seconds = waited_for_core_seconds()
        for _ in range(-(-steps // trainer.steps_per_epoch)):
            self._epochs += 1
            for part in trainer.parts(self._epochs, None if whole else steps):
                losses += part.losses
                if part.timed.holds == "start":
                    began_seconds = part.ended_seconds
                    waited_seconds = waited_for_core_seconds()
                    continue
                done += part.timed.steps
                break
        # Waits are read within the timed span, so that no wait is longer than it.
        all_waits = waited_for_core_seconds()
        took_seconds = trainer.clock.now_seconds() - began_seconds
        if not is_accelerator(trainer.device):
            # Threads wait for each other, so the longest wait of a thread counts.
            waits = [
                seconds - waited_seconds.get(thread, 0.0) for thread, seconds in all_waits.items()
            ]
            took_seconds -= max(waits, default=0.0)
        values = torch.cat([loss.reshape(-1) for loss in losses]).cpu().double()
        epoch_seconds = took_seconds / done * trainer.training.image_count
        epoch_seconds /= trainer.training.batch_size
        sha256 = sha256_of_bytes(values.numpy().tobytes())
        return Turn(took_seconds, epoch_seconds, values.numel(), sha256)
