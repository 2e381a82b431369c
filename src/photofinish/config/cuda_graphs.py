"""Settings whose training steps can be captured in CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from photofinish.config.pytorch_names import FUSED, OPTIMIZERS, may_be_fused
from photofinish.custom.reference import is_reference

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment

TURNED_OFF = "params.yaml says so"


def why_not_captured(experiment: Experiment) -> str | None:
    """Return why steps with these settings are not captured, or None if they are.

    `cuda_graphs: auto` also refuses settings for which a trial can't prove equal bits later on.
    """
    if experiment.cuda_graphs == "off":
        return TURNED_OFF
    if experiment.input.name == "loader" and experiment.input.collate:
        return "collate may give batches of other shapes"
    if experiment.step or experiment.batch_transform:
        return "a custom step or a batch transform may do something else in each step"
    loss = experiment.loss
    if loss and getattr(loss, "weight", None) and getattr(loss, "label_smoothing", 0.0):
        return "label_smoothing with weights reads values back from the device"
    optimizer, arguments = experiment.optimizer, experiment.optimizer.arguments
    if is_reference(optimizer.name) or OPTIMIZERS.reference(optimizer.name).name not in FUSED:
        return f"steps of the optimizer {optimizer.name} are not captured"
    if not may_be_fused(arguments):
        return f"its {optimizer.name} is not fused, so its learning rate is fixed in a capture"
    if arguments.get("momentum") and arguments.get("dampening"):
        return "with dampening, the first step differs from the others"
    schedule = experiment.schedule
    if is_reference(schedule.name) or schedule.arguments.get("cycle_momentum"):
        return f"the schedule {schedule.name} may change more than the learning rate"
    if experiment.cuda_graphs == "on":
        return None
    if not experiment.deterministic:
        return "deterministic is false: no two steps need have the same bits"
    if is_reference(experiment.model.name) or (loss and is_reference(loss.name)):
        return "custom code may do something else in a later step"
    return None
