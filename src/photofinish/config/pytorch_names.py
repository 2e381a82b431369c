"""Short names of PyTorch's classes in params.yaml: `sgd`, `RMSprop`, `huber`.

Names are read from PyTorch's source files, so that `plan` need not import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from photofinish.custom.reference import CodeReference, is_reference, names_in_module
from photofinish.errors import SettingError


@dataclass(frozen=True)
class Namespace:
    """Module whose classes have short names: no underscores, no capitals, no suffix."""

    what: str
    """Name of the setting, used in messages."""
    module: str
    suffix: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Further short names, and their classes."""
    excluded: frozenset[str] = frozenset()

    def reference(self, name: str) -> CodeReference:
        """Return the custom code or class for a name. Raise SettingError if there is none."""
        if is_reference(name):
            return CodeReference.of(name)
        classes = _classes(self)
        class_name = self.aliases.get(name) or classes.get(self._plain(name))
        if class_name is None:
            allowed = (*self.aliases, *classes.values())
            raise SettingError("unknown class", what=self.what, name=name, allowed=allowed)
        return CodeReference(self.module, class_name)

    def _plain(self, name: str) -> str:
        return name.replace("_", "").lower().removesuffix(self.suffix.lower())


@cache
def _classes(namespace: Namespace) -> dict[str, str]:
    names = names_in_module(namespace.module)
    classes = [name for name in names if name[0].isupper() and name not in namespace.excluded]
    return {namespace._plain(name): name for name in classes}


OPTIMIZERS = Namespace(
    "optimizer",
    "torch.optim",
    # LBFGS computes the loss several times in each step.
    excluded=frozenset({"Optimizer", "LBFGS"}),
)
SCHEDULES = Namespace(
    "schedule",
    "torch.optim.lr_scheduler",
    "LR",
    {"cosine": "CosineAnnealingLR", "reduce_on_plateau": "ReduceLROnPlateau"},
    # Their arguments are functions or schedulers, so only custom code can build them.
    frozenset({"LRScheduler", "LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler"}),
)
LOSSES = Namespace("loss", "torch.nn.modules.loss", "Loss")
TRANSFORMS = Namespace("transform", "torchvision.transforms.v2")

FUSED = ("SGD", "Adam", "AdamW")
"""Optimizers with fused kernels, whose steps can be captured."""
CONSTANT = "constant"
"""Schedule without a class, which keeps the learning rate."""
MOVED_BY_STEPS = ("OneCycleLR", "CyclicLR")
"""Schedules that PyTorch steps after each batch. Others step after each epoch."""
GIVEN_TO_SCHEDULES = ("T_max", "total_steps", "epochs", "steps_per_epoch", "cycle_momentum")
"""Arguments that a schedule gets if its signature has them and params.yaml does not."""
GIVEN_TO_BATCH_TRANSFORMS = ("num_classes",)


def may_be_fused(arguments: Mapping[str, Any]) -> bool:
    """Return True unless an optimizer's arguments refuse fused steps."""
    others = ("foreach", "differentiable")
    return bool(arguments.get("fused", True)) and not any(map(arguments.get, others))
