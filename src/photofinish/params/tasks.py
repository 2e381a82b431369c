"""What a network is to tell of an item, and which losses fit that. `plan` asks where the task is known, and the
training asks in any case; it does without pydantic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from photofinish.own_code import is_reference

if TYPE_CHECKING:
    from photofinish.data.images import Task

LOSSES: dict[Task, tuple[str, ...]] = {
    "classes": ("cross_entropy",),
    "values": ("mse", "l1", "smooth_l1"),
    "labels": ("bce_with_logits",),
}
"""of each task, the one that is taken by default first"""
GIVEN_TO_TORCHMETRICS = ("task", "num_classes", "num_labels")
"""what a function of torchmetrics is given where it takes it"""
_IN_WORDS: dict[Task, str] = {
    "classes": "one class of an image",
    "values": "values (floats)",
    "labels": "several labels, each yes or no",
}


def loss_problem(loss: str | None, task: Task) -> str | None:
    """Why a training can't go by this loss; one's own may be for whatever it likes."""
    if loss is None or is_reference(loss) or loss in LOSSES[task]:
        return None
    of = next(task for task, losses in LOSSES.items() if loss in losses)
    return (
        f"loss {loss} is for {_IN_WORDS[of]}; the targets of this data set are {_IN_WORDS[task]}: "
        f"take {' or '.join(LOSSES[task])}, or leave loss out"
    )
