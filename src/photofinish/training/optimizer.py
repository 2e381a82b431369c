"""PyTorch's optimizers with its names and defaults, and custom ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from photofinish.config.pytorch_names import (
    CONSTANT,
    FUSED,
    OPTIMIZERS,
    may_be_fused,
)
from photofinish.custom.reference import is_reference
from photofinish.custom.running import run_custom_code
from photofinish.errors import UserError
from photofinish.training.torch_device import is_accelerator

if TYPE_CHECKING:
    from photofinish.config import experiment as params


def build_optimizers(
    settings: params.Optimizer, network: nn.Module, *, loss_is_scaled: bool = False
) -> list[Optimizer]:
    """Build PyTorch's optimizer, or call a custom function, which may return several.

    A custom function gets the network, and a custom class the parameters, as PyTorch's classes do.
    """
    arguments = settings.arguments
    reference = OPTIMIZERS.reference(settings.name)
    if not is_reference(settings.name):
        with run_custom_code(f"optimizer {settings.name} can't be made"):
            groups = _parameter_groups(network, settings.weight_decay_exclude)
            return [_pytorch_optimizer(reference.name, groups, arguments, loss_is_scaled)]
    custom = reference.load()
    is_class = isinstance(custom, type)
    with run_custom_code(f"optimizer {settings.name} can't be made"):
        built = custom(list(network.parameters()) if is_class else network, **arguments)
    return list(built) if isinstance(built, list | tuple) else [built]


def _parameter_groups(network: nn.Module, without_decay: str | None) -> list[dict[str, Any]]:
    """Return the parameters in one group, or in two if some have no weight decay.

    Norms and biases are recognised as in timm and nanoGPT, by having at most one dimension.
    """
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in network.named_parameters():
        is_excluded = without_decay and (parameter.dim() <= 1 or name.endswith(".bias"))
        groups[1 if is_excluded else 0]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def _pytorch_optimizer(
    name: str, groups: list[dict[str, Any]], arguments: dict[str, Any], loss_is_scaled: bool
) -> Optimizer:
    """Build an optimizer of torch.optim.

    SGD (except on the CPU, benchmarks/README.md), Adam and AdamW are fused, unless params.yaml asks
    for another implementation. On an accelerator, fused optimizers get their state here, because a
    captured step can't create it.
    """
    if name not in FUSED:
        return cast("Optimizer", getattr(torch.optim, name)(groups, **arguments))
    parameters = [parameter for group in groups for parameter in group["params"]]
    on_accelerator = is_accelerator(parameters[0].device)
    momentum, dampening = (arguments.get(key, 0) for key in ("momentum", "dampening"))
    is_damped = momentum > 0 and dampening > 0
    defaults = {"fused": may_be_fused(arguments)}
    if name == "SGD":
        # Fused SGD with dampening does not write its momentum if the first scaled loss overflows.
        may_fuse = on_accelerator and not (is_damped and loss_is_scaled)
        defaults = {"foreach": False, "fused": defaults["fused"] and may_fuse}
    optimizer = getattr(torch.optim, name)(groups, **(defaults | arguments))
    if on_accelerator and optimizer.defaults["fused"] and not is_damped:
        for parameter in parameters:
            if parameter.requires_grad:
                optimizer.state[parameter] = _first_state(name, parameter, arguments)
    return cast("Optimizer", optimizer)


def _first_state(
    name: str, parameter: nn.Parameter, arguments: dict[str, Any]
) -> dict[str, torch.Tensor]:
    if name == "SGD":
        names = ["momentum_buffer"] if arguments.get("momentum") else []
        return {name: torch.zeros_like(parameter) for name in names}
    names = ["exp_avg", "exp_avg_sq"]
    if arguments.get("amsgrad"):
        names.append("max_exp_avg_sq")
    step = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return {"step": step, **{name: torch.zeros_like(parameter) for name in names}}


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
