"""What the targets of a data set of the user's own are: classes, values or labels, and what these are called."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from photofinish.data.images import Task
from photofinish.errors import MistakeError
from photofinish.own_code import users_code
from photofinish.params.datasets import LONGEST_CLASS_NAME
from photofinish.wording import shortened

Array = npt.NDArray[Any]


class Targets(NamedTuple):
    """Of all items."""

    task: Task
    array: Array
    """int64 (count,) of classes; else float32 (count, numbers)"""
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def as_target(value: Any) -> Array:
    """An item's: a whole number, a float, or a vector; raises ValueError for anything else."""
    import torch  # it is there already, since the user's code has run

    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
    array: Array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"its target is a {type(value).__name__}: give a class's number, a float, or a vector of them")
    if array.ndim > 1 or array.size == 0:
        raise ValueError(f"its target is of shape {array.shape}: give a number or a vector")
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise ValueError(f"its target is not finite: {value}")
        return array
    if array.ndim and not np.isin(array, (0, 1)).all():
        raise ValueError(
            "its target is a vector of whole numbers other than 0 and 1: give floats for values, one number for a class"
        )
    return array.astype(np.int64)


def told_targets(where: str, targets: list[Array], dataset: Any) -> Targets:
    """All targets, which are of one kind, with the names that the data set has for what they tell."""
    array = np.stack(targets)
    if array.dtype != np.int64:
        array = array.reshape(len(array), -1)
        count = array.shape[1]
        numbered = tuple(f"value-{index}" for index in range(count)) if count > 1 else ("value",)
        return Targets("values", array, _names(where, dataset, "target_names", count) or numbered)
    if array.ndim == 2:
        count = array.shape[1]
        numbered = tuple(f"label-{index}" for index in range(count))
        return Targets("labels", array.astype(np.float32), _names(where, dataset, "classes", count) or numbered)
    if names := _names(where, dataset, "classes", None):
        if array.min() < 0 or array.max() >= len(names):
            raise MistakeError(
                f"{where}: the classes of its items go from {array.min()} to {array.max()}, and its attribute "
                f"`classes` names {len(names)}, from 0 to {len(names) - 1}"
            )
        return Targets("classes", array, names)
    found, numbers = np.unique(array, return_inverse=True)
    shown = shortened(", ".join(map(str, found[:100])))
    is_mapped = found[0] != 0 or found[-1] != len(found) - 1
    notes = (f"the classes' numbers are {shown}: class 0 is {found[0]}, and so on",) if is_mapped else ()
    return Targets("classes", numbers.astype(np.int64), tuple(map(str, found.tolist())), notes)


def _names(where: str, dataset: Any, attribute: str, count: int | None) -> tuple[str, ...] | None:
    """What the data set calls them; None where it doesn't."""
    with users_code(f"{where}: its attribute `{attribute}` can't be read"):
        given = getattr(dataset, attribute, None)
    if not isinstance(given, list | tuple) or not given or not all(isinstance(name, str) for name in given):
        return None
    if count is not None and len(given) != count:
        raise MistakeError(f"{where}: its attribute `{attribute}` has {len(given)} names, and targets {count} numbers")
    if len(set(given)) != len(given) or "" in given or max(map(len, given)) > LONGEST_CLASS_NAME:
        raise MistakeError(
            f"{where}: its attribute `{attribute}` must have another name for each, of 1 to {LONGEST_CLASS_NAME} "
            f"characters"
        )
    return tuple(given)
