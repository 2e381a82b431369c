"""Tasks: what the targets of a data set are, and what follows for losses, predictions and scores.

Outputs and targets are tensors, but torch is not imported: reports read tasks, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from photofinish.data import IGNORED_CLASS, TaskName
from photofinish.errors import UserError
from photofinish.nested import leaves, samples_in

if TYPE_CHECKING:
    import torch


class Task:
    """Targets whose meaning only custom code knows: a tuple or dict."""

    name: TaskName = "custom"
    losses: tuple[str, ...] = ()
    """Losses that fit, the default first."""
    has_accuracy: bool = False
    """True if a prediction is right or wrong."""
    is_all_or_nothing: bool = False
    """True if a sample is right only if all its predictions are."""
    is_one_of_many: bool = False
    """True if a target is the number of a class, which the split gives."""
    names_attribute: str = "classes"
    """Attribute of a data set that names the classes, labels or values."""
    predicted_dtype: Literal["int64", "float64"] = "int64"
    """Dtype of predictions in predictions.csv."""
    torchmetrics: str | None = None
    """Argument `task` of a metric of torchmetrics that takes one."""

    def num_predictions(self, targets: Any) -> torch.Tensor | int:
        """Return the number of samples, or of positions whose class isn't ignored."""
        return samples_in(targets)

    def by_position(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs and targets with a row for each prediction."""
        return outputs, targets

    def num_correct(self, outputs: Any, targets: Any) -> torch.Tensor:  # noqa: ARG002
        """Return the number of correct predictions, 0 for a task without an accuracy."""
        first: torch.Tensor = leaves(outputs)[0]
        return first.float().new_zeros(())

    def predicted(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return what a network predicts by its outputs."""
        return outputs

    def metric_inputs(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return predictions and targets as torchmetrics takes them."""
        return outputs, targets

    def output_shape(
        self,
        names: tuple[str, ...],
        target_shape: tuple[Any, ...],  # noqa: ARG002
    ) -> list[int] | None:
        """Return the shape of a sample's outputs, -1 for any side, or None if it is not known."""
        return [len(names)] if self.losses else None


class Classes(Task):
    """A class for each sample, or for each position of one."""

    name = "classes"
    losses = ("cross_entropy",)
    has_accuracy = True
    is_one_of_many = True
    torchmetrics = "multiclass"

    def __init__(self, ignore_index: int = IGNORED_CLASS) -> None:
        self.ignore_index = ignore_index
        """Class of the positions that do not count."""

    def num_predictions(self, targets: torch.Tensor) -> torch.Tensor | int:
        return (
            (targets != self.ignore_index).sum() if has_positions(targets) else samples_in(targets)
        )

    def by_position(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if has_positions(targets):
            return classes_of_positions(outputs, targets)
        return outputs, targets

    def num_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        outputs, targets = self.by_position(outputs, targets)
        if targets.is_floating_point():
            targets = targets.argmax(dim=1)
        is_correct = outputs.argmax(dim=1) == targets
        if self.ignore_index >= 0:  # no prediction is negative
            is_correct = is_correct & (targets != self.ignore_index)
        return is_correct.sum()

    def predicted(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.argmax(dim=1)

    def metric_inputs(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs.softmax(1), targets.long()

    def output_shape(self, names: tuple[str, ...], target_shape: tuple[Any, ...]) -> list[int]:
        if target_shape:  # classes come first or last
            return [-1] * (1 + len(target_shape))
        return [len(names)]


class Labels(Task):
    """Yes or no for each label of a sample, as 1 or 0."""

    name = "labels"
    losses = ("bce_with_logits",)
    has_accuracy = True
    is_all_or_nothing = True
    torchmetrics = "multilabel"

    def num_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the number of correct predictions. A sample counts by its correct labels."""
        return ((outputs > 0) == (targets > 0)).float().mean(dim=1).sum()

    def predicted(self, outputs: torch.Tensor) -> torch.Tensor:
        return (outputs > 0).long()

    def metric_inputs(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs.sigmoid(), targets.long()


class Values(Task):
    """One or several floats for each sample."""

    name = "values"
    losses = ("mse", "l1", "smooth_l1")
    names_attribute = "target_names"
    predicted_dtype = "float64"

    def metric_inputs(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs.squeeze(1), targets.squeeze(1)


TASKS: dict[TaskName, Task] = {task.name: task for task in (Classes(), Values(), Labels(), Task())}


def has_positions(targets: torch.Tensor) -> bool:
    """Return True for a class at each position, False for one a sample, or its probabilities."""
    return targets.dim() > 1 and not targets.is_floating_point()


def classes_of_positions(
    outputs: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a row of outputs for each position, and the class of each.

    The positions are the dimensions that outputs and targets share. The classes come before them,
    as in PyTorch's cross_entropy, or after them, as most networks of sequences return them.
    """
    positions = targets.shape[1:]
    come_first, come_last = outputs.shape[2:] == positions, outputs.shape[1:-1] == positions
    if come_first == come_last:
        why = "as many classes as positions" if come_first else "other positions"
        raise UserError(
            f"the network gives {tuple(outputs.shape)} for targets of shape "
            f"{tuple(targets.shape)}: {why}. Its outputs must be (batch, classes, positions) or "
            f"(batch, positions, classes), and the two numbers must differ"
        )
    if come_first:
        outputs = outputs.movedim(1, -1)
    return outputs.flatten(0, -2), targets.flatten()
