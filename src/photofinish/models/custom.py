"""Custom networks and timm's, and tools that compare networks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from photofinish.custom.reference import TIMM
from photofinish.custom.running import accepted_arguments, run_custom_code, seed_generators
from photofinish.errors import UserError
from photofinish.nested import Nested, call_with, map_nested

if TYPE_CHECKING:
    from photofinish.config.networks import CustomModel
    from photofinish.data import Dtype


def build_custom(
    model: CustomModel,
    shape: Any,
    classes: int,
    dtype: Nested[Dtype],
    weights: Path | None = None,
) -> nn.Module:
    """Build the network and initialize its lazy modules. All generators must be seeded before."""
    reference = model.reference
    if reference.module == TIMM:
        from timm import create_model  # an optional package

        build: Any = partial(create_model, reference.name)
        offered: dict[str, Any] = {"num_classes": classes, "in_chans": shape[0]}
        arguments = offered | model.arguments | {"pretrained": weights is not None}
        if weights is not None:  # timm adapts them to the classes and channels
            arguments["pretrained_cfg_overlay"] = {"file": str(weights)}
    else:
        build = reference.load()
        offered = {"classes": classes, "shape": shape}
        arguments = accepted_arguments(build, offered, model.arguments)
    with run_custom_code(f"model {model.name} can't be built"):
        network: nn.Module = build(**arguments)
    if any(map(is_lazy, (*network.parameters(), *network.buffers()))):
        what = f"model {model.name} can't take a sample of shape {shape}"
        with run_custom_code(what), torch.no_grad():
            call_with(network.eval(), blank(shape, dtype))
    if model.output is not None:
        _choose_output(network, model.output)
    return network.train()


def _choose_output(network: nn.Module, output: int | str) -> None:
    """Let a network return one part of its outputs, wherever it is called.

    A hook adds no level to the names of weights. MLflow pickles the hook with its code, so that it
    loads without this package. So the hook uses no name of this module.
    """

    def choose(_network: nn.Module, _inputs: Any, outputs: Any) -> Any:
        try:
            if isinstance(output, int) or hasattr(outputs, "keys"):
                return outputs[output]
            return getattr(outputs, output)
        except (AttributeError, IndexError, KeyError, TypeError):
            has = f"the keys {', '.join(outputs)}" if hasattr(outputs, "keys") else ""
            has = has or (f"{len(outputs)} parts" if isinstance(outputs, tuple) else "no parts")
            raise ValueError(
                f"model.output is {output!r} in params.yaml, and the network returns a "
                f"{type(outputs).__name__} with {has}"
            ) from None

    network.register_forward_hook(choose)


def blank(shape: Any, dtype: Nested[Dtype]) -> Any:
    """Return a batch with one sample of zeros, in the dtypes that networks get.

    A side that differs between samples has length 1.
    """

    def zeros(kind: Dtype, sides: Any) -> torch.Tensor:
        return torch.zeros(1, *(side or 1 for side in sides), dtype=getattr(torch, kind))

    # Images in a tuple stay bytes.
    return map_nested(zeros, "float32" if dtype == "uint8" else dtype, shape)


@contextmanager
def generators_kept() -> Iterator[None]:
    torch_state = torch.default_generator.get_state()
    numpy_state = np.random.get_state()
    python_state = random.getstate()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.default_generator.set_state(torch_state)


@contextmanager
def generators_seeded(seed: int) -> Iterator[None]:
    """Seed the CPU generators, and restore their states at the end."""
    with generators_kept():
        seed_generators(seed)
        yield


def check_same_network(name: str, first: nn.Module, build: Callable[[], nn.Module]) -> None:
    """Raise UserError if a second build has other weights, as devices would then differ."""
    one, other = first.state_dict(), build().state_dict()
    for key in one | other:
        if not same_bits(one.get(key), other.get(key)):
            raise UserError(
                f"model {name} differs each time it is built, in {key}: draw from torch, "
                f"numpy.random or random, which are seeded"
            )


def tensors_in(output: Any) -> list[torch.Tensor]:
    """Return all dense tensors in a module's output, which may be nested."""
    if isinstance(output, torch.Tensor):
        return [output] if output.layout == torch.strided else []
    if isinstance(output, dict):
        output = output.values()
    if isinstance(output, str) or not isinstance(output, Iterable):  # a string contains strings
        return []
    return [tensor for item in output for tensor in tensors_in(item)]


def same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Return True if neither tensor is None and both hold the same bits, NaN included."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    as_bytes = [tensor.detach().flatten().contiguous().view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*as_bytes)
