"""A source's samples, checked and converted one at a time, and the names of their targets."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Dataset

from photofinish.custom_code import run_custom_code
from photofinish.data import PartName, Task
from photofinish.data.images import UNREADABLE, Int64Array, pixels_of
from photofinish.errors import ConfigError, UserError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Source:
    """Map-style data set of (input, target) pairs, and what is known about it."""

    dataset: Any
    names: Any = None
    """Object whose attribute `classes` or `target_names`, if any, names the targets."""
    own_parts: Mapping[PartName, Int64Array] = field(default_factory=dict)
    """Rows of each part that the source itself has."""
    name_of: Callable[[int], str] = "item {}".format
    """Returns the name of a row in messages."""
    workers: int = 0
    """Processes that read it."""
    seed: int | None = None
    """Seed for what custom code draws while it is read. None for built-in sources."""


class Sample(NamedTuple):
    """Sample in the dtypes that it is packed in."""

    input: Array
    target: Array

    def difference(self, first: Sample) -> str | None:
        """Return how its dtypes or shapes differ from the first sample's, or None."""
        for name, mine, wanted in zip(self._fields, self, first, strict=True):
            if (mine.dtype, mine.shape) != (wanted.dtype, wanted.shape):
                return (
                    f"its {name} is {mine.dtype} of shape {mine.shape}, "
                    f"the first one's is {wanted.dtype} of shape {wanted.shape}"
                )
        return None


class Samples(Dataset[Sample | str]):
    """Samples of a map-style data set. A seed is combined with the row of each sample."""

    def __init__(self, dataset: Any, seed: int | None = None) -> None:
        self._dataset, self._seed = dataset, seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> Sample | str:
        """Return the sample, or why it cannot be packed."""
        if self._seed is not None:
            seed_generators(int(np.random.SeedSequence((self._seed, row)).generate_state(1)[0]))
        try:
            with run_custom_code("it raises"):
                pair = self._dataset[row]
            return to_sample(pair)
        except (UserError, TypeError, RuntimeError, *UNREADABLE) as error:
            return str(error)


def seed_generators(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators, which custom code draws from."""
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


def to_sample(pair: Any) -> Sample:
    """Convert an (input, target) pair to arrays. Raise ValueError if it cannot be packed."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"it is a {type(pair).__name__}: an item is a pair, (input, target)")
    value, target = pair
    array = pixels_of(value) if isinstance(value, Image.Image) else _to_array(value)
    array, kind = np.atleast_1d(array), array.dtype.kind
    if kind not in "biuf":
        raise ValueError(f"its input is a {type(value).__name__} of {array.dtype}: give numbers")
    if array.dtype != np.uint8 or array.ndim != 3:  # no image: as networks take it
        with np.errstate(over="ignore"):
            array = array.astype(np.float32 if kind == "f" else np.int64)
    if array.dtype == np.float32 and not np.isfinite(array).all():
        raise ValueError("its input has numbers that are not finite")
    return Sample(array, _to_target(target))


def _to_array(value: Any) -> Array:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        # NumPy has no bfloat16.
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return np.asarray(value)


def _to_target(value: Any) -> Array:
    """Convert a whole number, a float or a vector. Raise ValueError for anything else."""
    array = _to_array(value)
    if array.dtype.kind not in "biuf" or array.ndim > 1:
        raise ValueError(
            f"its target is a {type(value).__name__} of shape {array.shape}: "
            f"give a class's number, a float, or a vector of them"
        )
    with np.errstate(over="ignore"):
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    if not np.isfinite(array).all():
        raise ValueError(f"its target is not finite: {value}")
    if array.dtype == np.int64 and array.ndim and not np.isin(array, (0, 1)).all():
        raise ValueError(
            "its target is a vector of whole numbers other than 0 and 1: "
            "give floats for values, one number for a class"
        )
    return array


def named_targets(
    where: str, targets: list[Array], named: Any
) -> tuple[Task, Array, tuple[str, ...]]:
    """Return the task, all targets, and the names that `named` or their numbers give them.

    Class numbers are int64 (count,); other targets float32 (count, numbers).
    """
    array = np.stack(targets)
    task: Task = "values"
    if array.dtype == np.int64:
        task = "classes" if array.ndim == 1 else "labels"
    attribute = "target_names" if task == "values" else "classes"
    names = getattr(named, attribute, None)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        names = ()
    if len(set(names)) != len(names):
        raise ConfigError(f"{where}: its attribute `{attribute}` has a name twice")
    if task == "classes":
        if not names:
            classes, array = np.unique(array, return_inverse=True)
            names = [str(number) for number in classes]
        elif array.min() < 0 or array.max() >= len(names):
            raise ConfigError(
                f"{where}: its classes are numbered {array.min()} to {array.max()}, "
                f"and its attribute `classes` names {len(names)}, from 0"
            )
        return task, array.astype(np.int64), tuple(names)
    array = array.reshape(len(array), -1).astype(np.float32)
    count, word = array.shape[1], task.removesuffix("s")
    if not names:
        names = [f"{word}-{number}" for number in range(count)]
        if task == "values" and count == 1:
            names = [word]
    elif len(names) != count:
        raise ConfigError(f"{where}: its items have {count} {task}, and it names {len(names)}")
    return task, array, tuple(names)
