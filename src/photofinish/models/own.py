"""Networks that users wrote themselves, or that a package has: built from the seed, the same each time or refused."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from photofinish.errors import UserError
from photofinish.own_code import TIMM, is_users_file, users_code, with_what_it_takes

if TYPE_CHECKING:
    from photofinish.data import Dtype
    from photofinish.params.networks import OwnModel

Shape = tuple[int, ...]
"""of an item; of an image, channels, height, width"""
_DRAWING = ("urandom", "time", "time_ns", "perf_counter", "getpid")
"""what gives another answer each time: a generator without a seed asks the first"""


def build_own(model: OwnModel, shape: Shape, classes: int, dtype: Dtype, weights: Path | None = None) -> nn.Module:
    """The network, its lazy modules made definite; Python's, NumPy's and torch's generators are seeded already.

    `weights` is the file of published ones, of timm's networks; without it, the same network, to load a trained one's.
    """
    reference = model.reference
    if reference.module == TIMM:
        from timm import create_model  # which few have, and takes seconds

        build: Any = partial(create_model, reference.name)
        given = {"num_classes": classes, "in_chans": shape[0]} | model.arguments | {"pretrained": weights is not None}
        if weights is not None:  # what doesn't fit the data set's classes and channels, timm leaves out or adapts
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
            raise UserError(
                f"model {model.name} has a {type(value).__name__} in its state_dict ({key}), as get_extra_state gives: "
                f"the files of weights hold tensors alone. Make it a tensor, or keep it in a buffer (register_buffer)"
            )
        if value.is_meta:
            raise UserError(
                f"model {model.name} has no values in its state_dict yet ({key} is on the meta device): give it some "
                f"in its __init__ (to_empty, then its first values), as each device begins with the same"
            )
        if value.layout != torch.strided:
            raise UserError(
                f"model {model.name} has a sparse tensor in its state_dict ({key}), and files of weights hold dense "
                f"ones alone: make it dense, or leave it out of the state_dict (register_buffer, persistent=False)"
            )
    return network.train()


def blank(shape: Shape, dtype: Dtype) -> torch.Tensor:
    """A batch of one item of zeros, as a network gets items that are packed as `dtype`."""
    return torch.zeros(1, *shape, dtype=torch.int64 if dtype == "int64" else torch.float32)


@contextmanager
def generators_seeded(seed: int) -> Iterator[None]:
    """Python's, NumPy's and torch's own, as they were before once it is over."""
    python, numpy = random.getstate(), np.random.get_state()  # the one that users' code draws from
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def refuse_another_network(name: str, first: nn.Module, build: Callable[[], nn.Module]) -> None:
    """Built again, it must have the same weights: else no two devices would train the same network."""
    with _drawing_noted() as drawing:
        again = build()
    here, there = first.state_dict(), again.state_dict()
    differing = [key for key in {**here, **there} if not same_bits(here.get(key), there.get(key))]
    if differing:
        where = f" ({', '.join(dict.fromkeys(drawing))})" if drawing else ""
        raise UserError(
            f"model {name} is another one each time it is built from the same seed: {differing[0]} differs{where}. "
            f"torch, numpy.random and random are seeded before it is built: draw from these, or seed what you draw from"
        )


@contextmanager
def _drawing_noted() -> Iterator[list[str]]:
    """The user's lines that lead to what no seed of ours reaches."""
    lines: list[str] = []

    def note(frame: FrameType, event: str, called: Any) -> None:
        name = getattr(called, "__name__", "") if event == "c_call" else frame.f_code.co_name
        if event not in ("c_call", "call") or name not in _DRAWING:
            return
        caller: FrameType | None = frame
        while caller and not is_users_file(caller.f_code.co_filename):
            caller = caller.f_back
        if caller:
            lines.append(f"{os.path.relpath(caller.f_code.co_filename)}, line {caller.f_lineno}, asks {name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield lines
    finally:
        sys.setprofile(before)


def tensors_in(output: Any) -> list[torch.Tensor]:
    """Those that a module gives, be it one, several or named ones; none that hold but some of their values."""
    if isinstance(output, torch.Tensor):
        return [output] if output.layout == torch.strided else []
    if isinstance(output, dict):
        output = output.values()
    if isinstance(output, str) or not isinstance(output, Iterable):  # a string is made of strings, without an end
        return []
    return [tensor for each in output for tensor in tensors_in(each)]


def same_bits(here: torch.Tensor | None, there: torch.Tensor | None) -> bool:
    """Whether both are there and hold the same, NaN for NaN."""
    if here is None or there is None or here.shape != there.shape or here.dtype != there.dtype:
        return False
    return torch.equal(*(tensor.detach().flatten().contiguous().view(torch.uint8) for tensor in (here, there)))
