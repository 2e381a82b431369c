"""Read every item of a map-style data set once, from first to last, and check it.

All sources take this path. Faulty items are reported together, each with its index or file.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from photofinish.config.datasets import LONGEST_CLASS_NAME, DatasetPlan
from photofinish.custom_code import user_traceback, users_code
from photofinish.data import Dtype, PartName, Task
from photofinish.data.images import UNREADABLE, Int64Array, LabelledImages, pixels_of
from photofinish.display import ReadingDisplay
from photofinish.errors import ConfigError, UserError
from photofinish.files import explained_when_full
from photofinish.wording import shortened

_MOST_FAULTS = 10
_MOST_CHANNELS = 4

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Source:
    """Map-style data set of (input, target) pairs, and what its source knows about it."""

    dataset: Any
    named: Any
    """object whose attribute `classes` or `target_names`, if any, names the targets"""
    own_parts: Mapping[PartName, Int64Array] = field(default_factory=dict)
    """rows of each part, if the source itself has parts"""
    name_of: Callable[[int], str] = "item {}".format
    """returns how errors call the item of an index"""
    origins: Sequence[str] = ()
    faults: Sequence[str] = ()
    """faults that were found before any item is read, a line each"""
    advice: str = ""
    """advice for items of differing shapes"""
    workers: int = 0
    """processes that read"""
    seed: int | None = None
    """seed of what custom code draws while it reads; None for built-in sources"""


def read_items(plan: DatasetPlan, source: Source, folder: Path) -> LabelledImages:
    """Return all items, kept in an unnamed file in `folder` until they are packed."""
    with explained_when_full(folder, f"data set '{plan.name}'"), tempfile.TemporaryFile(dir=folder) as file:
        first, targets = _written(plan, source, file)
        file.flush()
        shape, dtype = first.input.shape, first.input.dtype
        items: Array = np.asarray(np.memmap(file, dtype=dtype, mode="r", shape=(len(targets), *shape)))
    found = named_targets(f"data set '{plan.name}'", targets, source.named)
    notes = [*found.notes]
    if source.seed is not None:
        notes += _notes(first, source.dataset)
    return LabelledImages(
        shape,
        found.array,
        found.names,
        lambda rows: items[rows],
        source.own_parts,
        source.origins,
        notes,
        found.task,
        _packed_dtype(first.input),
    )


class _Item(NamedTuple):
    """Item as it is packed, with the dtype that it came in."""

    input: Array
    target: Array
    dtype: np.dtype[Any]

    def kinds(self) -> dict[str, str]:
        """Return what all items must share."""
        kinds = {}
        for what, shape, dtype in (
            ("input", self.input.shape, self.dtype),
            ("target", self.target.shape, self.target.dtype),
        ):
            kinds[what] = f"{dtype} of shape {shape}" if shape else f"a single {dtype}"
        return kinds


def _written(plan: DatasetPlan, source: Source, file: IO[bytes]) -> tuple[_Item, list[Array]]:
    """Write all inputs to `file`; return the first item and all targets."""
    first: _Item | None = None
    targets, faults, advice = [], list(source.faults), ""
    for name, item in _items_of(plan, source):
        fault = "" if isinstance(item, _Item) else item
        if isinstance(item, _Item):
            if first is None:
                first, first_name, kinds = item, name, item.kinds()
            for what, kind in item.kinds().items():
                if kind != kinds[what]:
                    fault = f"its {what} is {kind}, that of {first_name} {kinds[what]}"
                    advice = source.advice
                    break
        if isinstance(item, _Item) and not fault:
            file.write(np.ascontiguousarray(item.input).data)
            targets.append(item.target)
            continue
        faults.append(f"{name}: {fault}")
        if len(faults) >= _MOST_FAULTS:
            break
    if faults:
        lines = faults[:_MOST_FAULTS]
        if len(faults) >= _MOST_FAULTS:
            lines.append("and it was read no further")
        if advice:
            lines.append(advice)
        message = "\n".join(lines)
        raise ConfigError(f"data set '{plan.name}' ({plan.dataset.source}) can't be packed:\n{message}")
    assert first is not None
    return first, targets


def _items_of(plan: DatasetPlan, source: Source) -> Iterator[tuple[str, _Item | str]]:
    """Yield each item with its name, or its fault."""
    if len(source.faults) >= _MOST_FAULTS:
        return
    items: Any = _Items(source.dataset, source.seed)
    read: Iterator[_Item | str] = (items[index] for index in range(len(items)))
    if source.workers:
        read = iter(DataLoader(items, batch_size=None, num_workers=source.workers, collate_fn=_unchanged))
    with ReadingDisplay(plan.name, len(items), "items") as display:
        try:
            for index, item in enumerate(read):
                yield source.name_of(index), item
                display.advance()
        except RuntimeError as error:
            raise UserError(f"{plan.dataset.source} can't be read with workers: {source.workers}: {error}") from error


def _unchanged(item: Any) -> Any:
    return item


class _Items(Dataset[Any]):
    """Items converted and checked in the process that reads them, each from its own seed."""

    def __init__(self, dataset: Any, seed: int | None) -> None:
        self._dataset, self._seed = dataset, seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> _Item | str:
        """Return the item, or its fault."""
        if self._seed is not None:
            seed_generators(int(np.random.SeedSequence((self._seed, index)).generate_state(1)[0]))
        try:
            given = self._dataset[index]
        except UserError as error:
            return str(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # custom code may raise anything
            return f"it raises\n{user_traceback(error)}"
        try:
            return _item_of(given)
        except ValueError as error:
            return str(error)
        except (TypeError, RuntimeError, *UNREADABLE) as error:  # a sparse tensor, an image that is decoded here
            return f"it can't be made an array: {error}"


def seed_generators(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators, which custom code draws from."""
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


def _item_of(given: Any) -> _Item:
    """Return an item as arrays; raise ValueError if it can't be packed."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(f"it is a {type(given).__name__}: an item is a pair, (input, target)")
    array = pixels_of(given[0]) if isinstance(given[0], Image.Image) else _from_tensor(given[0])
    if not isinstance(array, np.ndarray):
        raise ValueError(f"its input is a {type(given[0]).__name__}: give a tensor, a NumPy array or a PIL image")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"its input is of {array.dtype}: give real numbers")
    if array.size == 0 or array.ndim == 0:
        raise ValueError(f"its input is of shape {array.shape}: give a vector of one number at least")
    with np.errstate(over="ignore"):
        packed = array.astype(_packed_dtype(array))
    if array.dtype.kind == "f" and not np.isfinite(packed).all():
        raise ValueError(f"its input is not finite in {np.count_nonzero(~np.isfinite(packed)):,} places")
    return _Item(packed, _as_target(given[1]), array.dtype)


def _packed_dtype(array: Array) -> Dtype:
    """Return the dtype to pack in: uint8 for images, else what networks take."""
    if array.dtype == np.uint8 and array.ndim == 3:
        return "uint8"
    return "float32" if array.dtype.kind == "f" else "int64"


def _from_tensor(value: Any) -> Any:
    """Return a tensor as an array, anything else unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # NumPy has no bfloat16


def _as_target(value: Any) -> Array:
    """Return a whole number, a float or a vector as an array; raise ValueError for anything else."""
    array: Array = np.asarray(_from_tensor(value))
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


def _notes(first: _Item, dataset: Any) -> Iterator[str]:
    """Yield warnings about items that are valid but unlikely to be meant so."""
    shape = first.input.shape
    if first.input.dtype == np.uint8 and shape[0] > _MOST_CHANNELS >= shape[2]:
        yield f"images are of shape {shape}, taken as channels x height x width: do the channels come last?"
    again = _Items(dataset, seed=None)[0]
    if isinstance(again, _Item):
        is_equal = np.array_equal(again.input, first.input) and np.array_equal(again.target, first.target)
        if not is_equal:
            yield "item 0 is another one when it is read again: all are packed as they came the first time"


class Targets(NamedTuple):
    """Targets of all items."""

    task: Task
    array: Array
    """int64 (count,) of classes; else float32 (count, numbers)"""
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def named_targets(where: str, targets: list[Array], dataset: Any) -> Targets:
    """Return all targets, which are of one kind, with the names that the data set has for them."""
    array = np.stack(targets)
    if array.dtype == np.int64 and array.ndim == 1:
        return _named_classes(where, array, dataset)
    task: Task = "labels" if array.dtype == np.int64 else "values"
    array = array.reshape(len(array), -1).astype(np.float32)
    count = array.shape[1]
    names = _names(where, dataset, "classes" if task == "labels" else "target_names")
    if names and len(names) != count:
        raise ConfigError(f"{where}: its items have {count} {task}, and it has {len(names)} names for them")
    word = task.removesuffix("s")
    numbered = (word,) if task == "values" and count == 1 else tuple(f"{word}-{index}" for index in range(count))
    return Targets(task, array, names or numbered)


def _named_classes(where: str, array: Array, dataset: Any) -> Targets:
    if names := _names(where, dataset, "classes"):
        if array.min() < 0 or array.max() >= len(names):
            raise ConfigError(
                f"{where}: the classes of its items go from {array.min()} to {array.max()}, and its attribute "
                f"`classes` names {len(names)}, from 0 to {len(names) - 1}"
            )
        return Targets("classes", array, names)
    found, numbers = np.unique(array, return_inverse=True)
    shown = shortened(", ".join(map(str, found[:100])))
    is_mapped = found[0] != 0 or found[-1] != len(found) - 1
    notes = (f"the classes' numbers are {shown}: class 0 is {found[0]}, and so on",) if is_mapped else ()
    return Targets("classes", numbers.astype(np.int64), tuple(map(str, found.tolist())), notes)


def _names(where: str, dataset: Any, attribute: str) -> tuple[str, ...] | None:
    """Return the data set's names for its targets, or None if it has none."""
    with users_code(f"{where}: its attribute `{attribute}` can't be read"):
        given = getattr(dataset, attribute, None)
    if not isinstance(given, list | tuple) or not given or not all(isinstance(name, str) for name in given):
        return None
    if len(set(given)) != len(given) or "" in given or max(map(len, given)) > LONGEST_CLASS_NAME:
        raise ConfigError(
            f"{where}: its attribute `{attribute}` must have another name for each, of 1 to {LONGEST_CLASS_NAME} "
            f"characters"
        )
    return tuple(given)
