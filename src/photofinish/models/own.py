"""Custom networks and timm's: built from the seed, and refused if they differ each time."""

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

from photofinish.custom_code import TIMM, users_code, with_what_it_takes
from photofinish.errors import UserError

if TYPE_CHECKING:
    from photofinish.config.networks import CustomModel
    from photofinish.data import Dtype

Shape = tuple[int, ...]
"""shape of an item; for images, channels, height, width"""


def build_own(model: CustomModel, shape: Shape, classes: int, dtype: Dtype, weights: Path | None = None) -> nn.Module:
    """Return the network with its lazy modules initialized. All generators must be seeded already.

    `weights` is the file of timm's published weights.
    """
    reference = model.reference
    if reference.module == TIMM:
        from timm import create_model  # an optional package

        build: Any = partial(create_model, reference.name)
        given = {"num_classes": classes, "in_chans": shape[0]} | model.arguments | {"pretrained": weights is not None}
        if weights is not None:  # timm adapts them to the classes and channels
            given["pretrained_cfg_overlay"] = {"file": str(weights)}
    else:
        build = reference.load()
        given = with_what_it_takes(build, {"classes": classes, "shape": tuple(shape)}, model.arguments)
    with users_code(f"model {model.name} can't be built"):
        network = build(**given)
    if not isinstance(network, nn.Module):
        raise UserError(f"model {model.name} gives a {type(network).__name__}: it must give a torch.nn.Module")
    if any(map(is_lazy, (*network.parameters(), *network.buffers()))):
        with users_code(f"model {model.name} can't take an image of shape {tuple(shape)}"), torch.no_grad():
            network.eval()(blank(shape, dtype))
    for key, value in network.state_dict().items():
        if not isinstance(value, torch.Tensor):
            problem = f"a {type(value).__name__}, as get_extra_state gives: keep it in a buffer (register_buffer)"
        elif value.is_meta:
            problem = "on the meta device: give it values in __init__ (to_empty, then its first values)"
        elif value.layout != torch.strided:
            problem = "a sparse tensor: make it dense, or leave it out (register_buffer, persistent=False)"
        else:
            continue
        raise UserError(f"model {model.name} can't be saved: its state_dict has {key}, which is {problem}")
    return network.train()


def blank(shape: Shape, dtype: Dtype) -> torch.Tensor:
    """Return a batch of one item of zeros, as a network gets items that are packed as `dtype`."""
    return torch.zeros(1, *shape, dtype=torch.int64 if dtype == "int64" else torch.float32)


@contextmanager
def generators_seeded(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and PyTorch's generators; restore their states afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def check_same_network(name: str, first: nn.Module, build: Callable[[], nn.Module]) -> None:
    """Raise UserError if the network has other weights when it is built again: devices would train different ones."""
    here, there = first.state_dict(), build().state_dict()
    differing = [key for key in {**here, **there} if not same_bits(here.get(key), there.get(key))]
    if differing:
        raise UserError(
            f"model {name} is another one each time it is built from the same seed: {differing[0]} differs. "
            f"torch, numpy.random and random are seeded before it is built: draw from these, or seed what you draw from"
        )


def tensors_in(output: Any) -> list[torch.Tensor]:
    """Return all dense tensors in a module's output, be it a tensor, a collection or a mapping."""
    if isinstance(output, torch.Tensor):
        return [output] if output.layout == torch.strided else []
    if isinstance(output, dict):
        output = output.values()
    if isinstance(output, str) or not isinstance(output, Iterable):  # a string contains strings
        return []
    return [tensor for each in output for tensor in tensors_in(each)]


def same_bits(here: torch.Tensor | None, there: torch.Tensor | None) -> bool:
    """Return True if both exist and hold the same bits, NaN included."""
    if here is None or there is None or here.shape != there.shape or here.dtype != there.dtype:
        return False
    return torch.equal(*(tensor.detach().flatten().contiguous().view(torch.uint8) for tensor in (here, there)))
