"""Tasks: the kinds of targets, each with its losses, predictions and scores.

Torch is not imported, although outputs and targets are tensors, because reports read tasks too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from photofinish.data import IGNORED_CLASS, TaskName
from photofinish.errors import UserError
from photofinish.nested import leaves, samples_in

if TYPE_CHECKING:
    from torch import Tensor

    Pair = tuple[Tensor, Tensor]
    """Outputs and targets."""


class Task:
    """Task of custom targets, a tuple or dict that only custom code can interpret."""

    name: TaskName = "custom"
    losses: tuple[str, ...] = ()
    """Losses for this task, the default first."""
    has_accuracy: bool = False
    """True if a prediction is right or wrong."""
    is_all_or_nothing: bool = False
    """True if a sample is right only if all its predictions are."""
    is_one_of_many: bool = False
    """True if a target is a class number."""
    names_attribute: str = "classes"
    """Attribute of a data set that names the classes, labels or values."""
    predicted_dtype: Literal["int64", "float64"] = "int64"
    """Dtype of predictions in predictions.csv."""
    ignore_index: int = IGNORED_CLASS
    """Class of ignored positions, for a task with a class at each position."""
    torchmetrics: str | None = None
    """Argument `task` for metrics of torchmetrics."""

    def read_by(self, loss: Any) -> Task:  # noqa: ARG002
        """Return the task for outputs as a loss reads them. `loss` is its settings, or None."""
        return self

    def num_predictions(self, targets: Any) -> Tensor | int:
        """Return the number of samples, or of positions with a class."""
        return samples_in(targets)

    def by_position(self, outputs: Tensor, targets: Tensor) -> Pair:
        """Return outputs and targets with a row for each prediction."""
        return outputs, targets

    def num_correct(self, outputs: Any, targets: Any) -> Tensor:  # noqa: ARG002
        """Return the number of correct predictions, or 0 for a task without accuracy."""
        first: Tensor = leaves(outputs)[0]
        return first.float().new_zeros(())

    def predicted(self, outputs: Tensor) -> Tensor:
        """Return the predictions for a network's outputs."""
        return outputs

    def metric_inputs(self, outputs: Tensor, targets: Tensor) -> Pair:
        """Return predictions and targets in the form that torchmetrics accepts."""
        return outputs, targets

    def output_shape(
        self,
        names: tuple[str, ...],
        target_shape: tuple[Any, ...],  # noqa: ARG002
    ) -> list[int] | None:
        """Return the expected shape of a sample's outputs, or None if unknown. -1 is any side."""
        return [len(names)] if self.losses else None


class Classes(Task):
    """Task with a class for each sample, or for each position of a sample."""

    name = "classes"
    losses = ("cross_entropy",)
    has_accuracy = True
    is_one_of_many = True
    torchmetrics = "multiclass"

    def __init__(self, ignore_index: int = IGNORED_CLASS) -> None:
        self.ignore_index = ignore_index

    def num_predictions(self, targets: Tensor) -> Tensor | int:
        return (
            (targets != self.ignore_index).sum() if has_positions(targets) else samples_in(targets)
        )

    def by_position(self, outputs: Tensor, targets: Tensor) -> Pair:
        if has_positions(targets):
            return classes_of_positions(outputs, targets)
        return outputs, targets

    def num_correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs, targets = self.by_position(outputs, targets)
        if targets.is_floating_point():
            targets = targets.argmax(dim=1)
        is_correct = outputs.argmax(dim=1) == targets
        if self.ignore_index >= 0:  # no prediction is negative
            is_correct = is_correct & (targets != self.ignore_index)
        return is_correct.sum()

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(dim=1)

    def metric_inputs(self, outputs: Tensor, targets: Tensor) -> Pair:
        return outputs.softmax(1), targets.long()

    def output_shape(self, names: tuple[str, ...], target_shape: tuple[Any, ...]) -> list[int]:
        if target_shape:  # classes come first or last
            return [-1] * (1 + len(target_shape))
        return [len(names)]


class Labels(Task):
    """Task with a yes (1) or no (0) for each label of a sample."""

    name = "labels"
    losses = ("bce_with_logits",)
    has_accuracy = True
    is_all_or_nothing = True
    torchmetrics = "multilabel"

    def __init__(self, *, of_probabilities: bool = False) -> None:
        self._of_probabilities = of_probabilities
        self._threshold = 0.5 if of_probabilities else 0.0

    def read_by(self, loss: Any) -> Task:
        return Labels(of_probabilities=True) if loss and loss.name == "torch.nn:BCELoss" else self

    def num_correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the number of correct predictions. A sample counts as a share of its labels."""
        return ((outputs > self._threshold) == (targets > 0)).float().mean(dim=1).sum()

    def predicted(self, outputs: Tensor) -> Tensor:
        return (outputs > self._threshold).long()

    def metric_inputs(self, outputs: Tensor, targets: Tensor) -> Pair:
        return outputs if self._of_probabilities else outputs.sigmoid(), targets.long()


class Values(Task):
    """Task with one or several floats for each sample."""

    name = "values"
    losses = ("mse", "l1", "smooth_l1")
    names_attribute = "target_names"
    predicted_dtype = "float64"

    def __init__(self, *, of_logarithms: bool = False) -> None:
        self._of_logarithms = of_logarithms

    def read_by(self, loss: Any) -> Task:
        is_log = False
        if loss and loss.name == "torch.nn:PoissonNLLLoss":
            is_log = loss.arguments.get("log_input", True)
        elif loss and loss.name == "torch.nn:KLDivLoss":  # with log_target, targets are logarithms
            is_log = not loss.arguments.get("log_target", False)
        return Values(of_logarithms=is_log)

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs.exp() if self._of_logarithms else outputs

    def metric_inputs(self, outputs: Tensor, targets: Tensor) -> Pair:
        return self.predicted(outputs).squeeze(1), targets.squeeze(1)


TASKS: dict[TaskName, Task] = {task.name: task for task in (Classes(), Values(), Labels(), Task())}


def has_positions(targets: Tensor) -> bool:
    """Return True if targets have a class at each position, False if they have one per sample."""
    return targets.dim() > 1 and not targets.is_floating_point()


def classes_of_positions(outputs: Tensor, targets: Tensor) -> Pair:
    """Return the outputs and the class of each position, one row per position.

    Positions are the dimensions that outputs and targets share. In the outputs, classes come before
    them, as in PyTorch's cross_entropy, or after them, as in most sequence networks.
    """
    positions = targets.shape[1:]
    come_first = outputs.shape[2:] == positions
    come_last = outputs.shape[1:-1] == positions
    if come_first == come_last:
        why = "as many classes as positions" if come_first else "the positions differ"
        raise UserError(
            f"the network returns {tuple(outputs.shape)} for targets of shape "
            f"{tuple(targets.shape)}: {why}. Its outputs must be (batch, classes, positions) or "
            f"(batch, positions, classes), and the two numbers must differ"
        )
    if come_first:
        outputs = outputs.movedim(1, -1)
    return outputs.flatten(0, -2), targets.flatten()
