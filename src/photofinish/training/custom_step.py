"""Custom training steps, and batch transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from photofinish.config.pytorch_names import CONSTANT, TRANSFORMS
from photofinish.custom.reference import CodeReference
from photofinish.custom.running import accepted_arguments, as_function, run_custom_code
from photofinish.errors import UserError
from photofinish.models.custom import generators_seeded
from photofinish.training.batches import SEEDS, Batch, derived_seed

if TYPE_CHECKING:
    from photofinish.config import experiment as params


class CustomStep:
    """Custom function of (network, batch), and of the optimizers if it steps them itself."""

    def __init__(self, settings: params.StepSettings, *, trains: bool = True) -> None:
        self._name, self.trains = settings.name, trains
        self._call: Callable[..., Any] = as_function(
            CodeReference.of(settings.name).load(), settings.arguments
        )

    def __call__(self, *arguments: Any) -> torch.Tensor:
        """Return the batch's loss. Raise UserError if the loss is not a scalar."""
        with run_custom_code(f"step {self._name} fails"):
            loss = self._call(*arguments)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise UserError(
                f"step {self._name} returns {loss!r:.100}: it must return one number, a tensor "
                f"without dimensions, the mean loss of the batch"
            )
        return loss


def step_with_a_loss(experiment: params.Experiment) -> CustomStep | None:
    """Return the custom step of (network, batch) that returns a loss, or None."""
    validation, settings = experiment.validation_step, experiment.validation_step or experiment.step
    return CustomStep(settings, trains=not validation) if settings else None


def check_several_optimizers(experiment: params.Experiment) -> None:
    if not (experiment.step and experiment.validation_step):
        raise UserError(
            f"optimizer {experiment.optimizer.name} returns several, so params.yaml needs a "
            f"`step` that steps them, and a `validation_step` that returns the validation loss"
        )
    settings = {
        "schedule": experiment.schedule.name != CONSTANT,
        "warmup_steps": experiment.warmup_steps > 0,
        "clip_grad_norm": experiment.clip_grad_norm is not None,
        "accumulate": experiment.accumulate > 1,
        "precision: fp16": experiment.precision == "fp16",
    }
    if unusable := [name for name, is_set in settings.items() if is_set]:
        raise UserError(
            f"{', '.join(unusable)} in params.yaml needs one optimizer, and "
            f"{experiment.optimizer.name} returns several: do this in the step, or leave it out"
        )


class BatchTransform:
    """Transform of training batches on the device, seeded by (seed, epoch, batch)."""

    def __init__(
        self,
        settings: params.BatchTransformSettings,
        seed: int,
        classes: int,
    ) -> None:
        self._name, self._seed = settings.name, seed
        custom = TRANSFORMS.reference(settings.name).load()
        with run_custom_code(f"batch_transform {settings.name} can't be made"):
            offered = {"num_classes": classes}
            arguments = accepted_arguments(custom, offered, settings.arguments)
            self._call = as_function(custom, arguments)

    def __call__(self, batch: Batch, epoch: int, number: int) -> Batch:
        seed = derived_seed("batch", self._seed, epoch, number) % SEEDS
        failing = f"batch_transform {self._name} fails on batch {number} of epoch {epoch + 1}"
        with generators_seeded(seed), run_custom_code(failing):
            inputs, targets = self._call(*batch)
        return inputs, targets
