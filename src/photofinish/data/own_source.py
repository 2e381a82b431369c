"""A data set of the user's own, read once from its first item to its last: each is looked at, and faulty ones are told
with their index. It runs here alone, in this process unless workers are asked for: it may hold open files then, and
need not be pickled."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from photofinish.data import Dtype, PartName, Task
from photofinish.data.images import UNREADABLE, LabelledImages, pixels_of
from photofinish.display import ReadingDisplay
from photofinish.errors import MistakeError, UserError
from photofinish.files import explained_when_full, write_json_atomically
from photofinish.own_code import users_code, users_traceback, with_what_it_takes
from photofinish.params.datasets import LONGEST_CLASS_NAME, PART, DatasetPlan, OwnDataset
from photofinish.source_code import refuse_changed_code
from photofinish.wording import shortened

_RECORD = "source.json"
_MOST_FAULTS = 10
_MOST_CHANNELS = 4

Array = npt.NDArray[Any]


def fetch(plan: DatasetPlan, folder: Path) -> None:
    """Note what `split` is to read: nothing of it runs yet."""
    dataset = _own(plan)
    write_json_atomically(folder / _RECORD, {"source": dataset.source, "arguments": dataset.arguments})


def read(plan: DatasetPlan, folder: Path) -> LabelledImages:
    """All items of all parts, kept on disk beside `folder` until they are packed, in a file without a name."""
    refuse_changed_code(plan.own_code)
    _seed(plan.dataset.seed)
    parts = _made(_own(plan))
    made = list(parts.values())
    with explained_when_full(folder, f"data set '{plan.name}'"), tempfile.TemporaryFile(dir=folder.parent) as file:
        first, targets = _written(plan, parts, file)
        file.flush()
        shape = first.input.shape
        items: Array = np.asarray(np.memmap(file, dtype=first.packed, mode="r", shape=(len(targets), *shape)))
    _refuse_other_names(plan, parts)
    told = told_targets(f"data set '{plan.name}'", targets, made[0])
    rows_of_parts = np.split(np.arange(len(targets)), np.cumsum([*map(len, made)]))
    own_parts = dict(zip(parts, rows_of_parts, strict=False)) if len(parts) > 1 else {}
    return LabelledImages(
        shape,
        told.array,
        told.names,
        lambda rows: items[rows],
        own_parts,
        notes=(*told.notes, *_notes(first, made[0])),
        task=told.task,
        dtype=first.packed,
    )


def _own(plan: DatasetPlan) -> OwnDataset:
    assert isinstance(plan.dataset, OwnDataset)
    return plan.dataset


def _refuse_other_names(plan: DatasetPlan, parts: dict[PartName, Any]) -> None:
    """Of classes or values: a part that numbers what it has itself would be judged by others' numbers."""
    named = {part: [getattr(each, key, None) for key in ("classes", "target_names")] for part, each in parts.items()}
    if other := next((part for part, names in named.items() if names != named["train"]), None):
        raise MistakeError(
            f"data set '{plan.name}' ({_own(plan).source}): its {other} part has other `classes` or `target_names` "
            f"than its train part: number them alike in all parts"
        )


def _seed(seed: int) -> None:
    """What is drawn while it is made and read repeats, as far as it comes from these."""
    import torch  # takes seconds, and only data sets of one's own need it here

    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


def _made(dataset: OwnDataset) -> dict[PartName, Any]:
    """By part, if it has parts of its own and no size says that one is to be drawn; else all of it as `train`."""
    build, parts = dataset.reference.load(), ["train"]
    if dataset.makes_parts:
        sizes = {"validation": dataset.validation, "test": dataset.test}
        parts += [part for part, size in sizes.items() if size is None]
    made: dict[Any, Any] = {}
    for part in parts:
        given = with_what_it_takes(build, {PART: part, "seed": dataset.seed}, dataset.arguments)
        of_part = f", {part}" if dataset.makes_parts else ""
        with users_code(f"data set {dataset.source}{of_part} can't be made"):
            made[part] = build(**given)
            if not (hasattr(made[part], "__getitem__") and hasattr(made[part], "__len__")):
                raise UserError(
                    f"{dataset.source} gives a {type(made[part]).__name__}: it must give a map-style data set, with "
                    f"__len__ and __getitem__"
                )
            count = len(made[part])
        if count == 0:
            raise MistakeError(f"data set {dataset.source}{of_part} has no items: its length is 0")
    return made


class _Item(NamedTuple):
    """As it is packed, and what it was."""

    input: Array
    target: Array
    dtype: np.dtype[Any]

    @property
    def packed(self) -> Dtype:
        """The type it is packed in: images as they are, everything else as networks take it."""
        if self.dtype == np.uint8 and self.input.ndim == 3:
            return "uint8"
        return "float32" if self.dtype.kind == "f" else "int64"

    @property
    def kinds(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """What all items of a data set have alike."""
        return {"input": (self.input.shape, self.dtype), "target": (self.target.shape, self.target.dtype)}


def _written(plan: DatasetPlan, parts: dict[PartName, Any], file: IO[bytes]) -> tuple[_Item, list[Array]]:
    """Write all inputs, or tell of all that is wrong: the first item, and all targets."""
    first: tuple[str, _Item] | None = None
    targets, faults = [], []
    for name, item in _items_of(plan, parts):
        if isinstance(item, _Item):
            first = first or (name, item)
            item = _difference(item, *first) or item  # what is wrong with it takes its place
        if isinstance(item, _Item):
            file.write(np.ascontiguousarray(item.input).data)
            targets.append(item.target)
        else:
            faults.append(f"{name}: {item}")
        if len(faults) == _MOST_FAULTS:
            faults.append("and it was read no further")
            break
    if faults:
        told = "\n".join(faults)
        raise MistakeError(f"data set '{plan.name}' ({_own(plan).source}) can't be packed:\n{told}")
    assert first is not None  # no part is empty
    return first[1], targets


def _difference(item: _Item, first_name: str, first: _Item) -> str | None:
    expected = first.kinds
    for what, kind in item.kinds.items():
        if kind != expected[what]:
            here, there = (
                f"{dtype} of shape {shape}" if shape else f"a single {dtype}" for shape, dtype in (kind, expected[what])
            )
            return f"its {what} is {here}, that of {first_name} {there}"
    return None


def _items_of(plan: DatasetPlan, parts: dict[PartName, Any]) -> Iterator[tuple[str, _Item | str]]:
    """Each in its turn with its name, or what is wrong with it; read in as many processes as are asked for."""
    import torch
    from torch.utils.data import DataLoader

    dataset = _own(plan)
    for part, made in parts.items():
        what = f"{part} item" if len(parts) > 1 else "item"
        items: Any = _Items(made, dataset.seed)
        loader = DataLoader(
            items,
            batch_size=None,
            num_workers=dataset.workers,
            collate_fn=_as_it_is,
            generator=torch.Generator(),  # else it draws from the one that is seeded for the user's code
        )
        with ReadingDisplay(plan.name, len(made), f"{what}s") as display:
            try:
                for index, item in enumerate(loader):
                    yield f"{what} {index}", item
                    display.advance()
            except RuntimeError as error:
                raise UserError(f"{dataset.source} can't be read with workers: {dataset.workers}: {error}") from error


def _as_it_is(item: Any) -> Any:
    return item


@dataclass(frozen=True)
class _Items:
    """What a process reads: each item from a seed of its own, so that it is the same by any number of workers."""

    dataset: Any
    seed: int

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> _Item | str:
        """The item, or what is wrong with it."""
        _seed(int(np.random.SeedSequence((self.seed, index)).generate_state(1)[0]))
        try:
            given = self.dataset[index]
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the user's code may raise anything
            return f"it raises\n{users_traceback(error)}"
        try:
            return _item_of(given)
        except ValueError as error:
            return str(error)
        except (TypeError, RuntimeError, *UNREADABLE) as error:  # of a sparse tensor, of an image as it is decoded
            return f"it can't be made an array: {error}"


def _item_of(given: Any) -> _Item:
    """What an item of a data set holds, as arrays; raises ValueError where it can't be packed."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(f"it is a {type(given).__name__}: an item is a pair, (input, target)")
    array = pixels_of(given[0]) if isinstance(given[0], Image.Image) else _from_tensor(given[0])
    if not isinstance(array, np.ndarray):
        raise ValueError(f"its input is a {type(given[0]).__name__}: give a tensor, a NumPy array or a PIL image")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"its input is of {array.dtype}: give real numbers")
    if array.size == 0 or array.ndim == 0:
        raise ValueError(f"its input is of shape {array.shape}: give a vector of one number at least")
    item = _Item(array, _as_target(given[1]), array.dtype)
    if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise ValueError("its input has whole numbers of more than 63 bits")
    with np.errstate(over="ignore"):
        item = item._replace(input=array.astype(item.packed))
    if not np.isfinite(item.input).all():
        raise ValueError(f"its input is not finite in {np.count_nonzero(~np.isfinite(item.input)):,} places")
    return item


def _from_tensor(value: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    import torch  # it is there already, since the user's code has run

    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # NumPy has none


def _notes(first: _Item, dataset: Any) -> list[str]:
    """What is odd about items that are whole in themselves."""
    notes, shape = [], first.input.shape
    if first.packed == "uint8" and shape[0] > _MOST_CHANNELS >= shape[2]:
        notes.append(f"images are of shape {shape}, taken as channels x height x width: do the channels come last?")
    try:
        again = _item_of(dataset[0])
    except Exception:  # noqa: BLE001  # whatever else it does on second thoughts: it has been read
        return notes
    if not (np.array_equal(again.input, first.input) and np.array_equal(again.target, first.target)):
        notes.append("item 0 is another one when it is read again: all are packed as they came the first time")
    return notes


class Targets(NamedTuple):
    """Of all items."""

    task: Task
    array: Array
    """int64 (count,) of classes; else float32 (count, numbers)"""
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def _as_target(value: Any) -> Array:
    """An item's: a whole number, a float, or a vector; raises ValueError for anything else."""
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
