"""Sources of data, map-style data sets of (input, target) pairs, and their samples.

Samples are checked and converted one at a time, and their targets are named.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset

from photofinish.config.base import read_plan
from photofinish.config.datasets import PART, CustomDataset, DatasetPlan
from photofinish.custom.imports import check_code_unchanged
from photofinish.custom.running import accepted_arguments, run_custom_code, seed_generators
from photofinish.data import IGNORED_CLASS, PartName, TaskName
from photofinish.data.images import UNREADABLE, Int64Array, pixels_of
from photofinish.data.packed import Array, Column, PackedSplit, part_file
from photofinish.data.ragged import Ragged
from photofinish.data.tasks import TASKS
from photofinish.errors import ConfigError, UserError
from photofinish.files import write_json_atomically
from photofinish.nested import Nested, leaf_names, leaves, map_nested
from photofinish.wording import listed

LIVE_PLAN = "dataset.json"
"""File with the data set's plan, in a split without packed inputs."""


@dataclass(frozen=True)
class Source:
    """Map-style data set of (input, target) pairs, with its parts and names."""

    dataset: Any
    names: Any = None
    """Object whose attribute `classes` or `target_names`, if any, names the targets."""
    own_parts: Mapping[PartName, Int64Array] = field(default_factory=dict)
    """Rows of each part that the source is already divided into."""
    name_of: Callable[[int], str] = "item {}".format
    """Function that returns the name of a row for messages."""
    workers: int = 0
    seed: int | None = None
    """Seed for custom code that draws random numbers. None for built-in sources."""


class Sample(NamedTuple):
    """Sample in the dtypes of packed files."""

    input: Nested[Array]
    target: Nested[Array]

    def difference(self, first: Sample, *, shapes: bool) -> str | None:
        """Return how this sample's dtypes or shapes differ from the first sample's, or None."""
        if self.names() != first.names():
            return f"it has {listed(self.names())}, the first sample has {listed(first.names())}"
        for name, mine, wanted in zip(self.names(), self.arrays(), first.arrays(), strict=True):
            is_alike = (mine.dtype, mine.ndim) == (wanted.dtype, wanted.ndim)
            if not is_alike or (shapes and mine.shape != wanted.shape):
                return (
                    f"its {name} is {mine.dtype} of shape {mine.shape}, "
                    f"the first sample's is {wanted.dtype} of shape {wanted.shape}"
                )
        return None

    def arrays(self) -> list[Array]:
        """Return the arrays of the input, then the arrays of the target."""
        return [*leaves(self.input), *leaves(self.target)]

    def names(self) -> list[str]:
        """Return the name of each array, for messages."""
        names = [f"input {leaf}" for leaf in leaf_names(self.input)]
        names += [f"target {leaf}" for leaf in leaf_names(self.target)]
        return [name.rstrip() for name in names]


class Samples(Dataset[Sample | str]):
    """Samples of a map-style data set. Generators are seeded by (seed, row) before each sample."""

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


def to_sample(pair: Any) -> Sample:
    """Convert an (input, target) pair to arrays. Raise ValueError if it cannot be packed."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(
            f"it is a {type(pair).__name__}: an item is a pair, (input, target). "
            f"Several inputs are a tuple or a dict: ((one, other), target)"
        )
    value, target = pair
    nested = _parts_of(value)
    inputs = map_nested(_to_input, nested)
    if not isinstance(nested, tuple | dict):
        inputs = np.atleast_1d(inputs)
    nested = _parts_of(target)
    if isinstance(nested, tuple | dict):
        return Sample(inputs, map_nested(_to_numbers, nested))
    numbers = _to_numbers(target)
    if numbers.ndim > 1 and numbers.dtype == np.float32:
        raise ValueError(
            f"its target is floats of shape {numbers.shape}: give a float, a vector of floats, "
            f"whole numbers for a class at each position, or a dict of arrays"
        )
    return Sample(inputs, numbers)


def _parts_of(value: Any) -> Any:
    """Return a tuple or dict of several arrays. A list of numbers is one array."""
    if isinstance(value, Mapping):
        return dict(value)
    arrays = torch.Tensor, np.ndarray, Image.Image
    if isinstance(value, tuple | list) and any(isinstance(part, arrays) for part in value):
        return tuple(value)
    return list(value) if isinstance(value, tuple) else value


def _to_input(value: Any) -> Array:
    array = pixels_of(value) if isinstance(value, Image.Image) else _to_array(value, "input")
    is_image = array.dtype == np.uint8 and array.ndim == 3
    return array if is_image else _to_numbers(array, "input")


def _to_array(value: Any, what: str) -> Array:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        # NumPy has no bfloat16.
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"its {what} can't be an array ({error}): give numbers, or a tuple of tensors"
        ) from error


def _to_numbers(value: Any, what: str = "target") -> Array:
    """Convert to int64 or float32. Raise ValueError if the value has other or infinite numbers."""
    array = _to_array(value, what)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"its {what} is an array of {array.dtype}: give numbers")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    if not np.isfinite(array).all():
        raise ValueError(f"its {what} has numbers that are not finite")
    return array


def named_targets(
    where: str, column: Nested[Column], named: Any, given_task: TaskName | None = None
) -> tuple[TaskName, Nested[Column], tuple[str, ...]]:
    """Return the task, the targets, and their names from `named`, or else from their numbers.

    Class numbers are int64 of shape (count,) or (count, *positions). Other targets are float32 of
    shape (count, numbers). A tuple or dict of targets stays, named by its keys or indices.
    """
    if isinstance(column, tuple | dict):
        return "custom", column, tuple(leaf_names(column))
    numbers = column.values if isinstance(column, Ragged) else column
    task = given_task or _task_of(numbers, len(column.shape) - 1)
    attribute = TASKS[task].names_attribute
    names = getattr(named, attribute, None)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        names = ()
    if len(set(names)) != len(names):
        raise ConfigError(f"{where}: its attribute `{attribute}` contains a name twice")
    if TASKS[task].is_one_of_many:
        is_flat = not isinstance(column, Ragged) and column.ndim == 2
        if numbers.dtype != np.int64 or (given_task and is_flat and _is_one_hot(numbers)):
            if isinstance(column, Ragged) or column.ndim != 2 or not _is_one_hot(column):
                raise ConfigError(
                    f"{where}: its task is classes, so its targets must be whole numbers, or "
                    f"one-hot rows"
                )
            classes: Array = column.argmax(axis=1).astype(np.int64)
            column = numbers = classes
        return task, *_named_classes(where, column, numbers, tuple(names))
    if isinstance(column, Ragged) or column.ndim > 2:
        raise ConfigError(
            f"{where}: its targets are {task} of shape {column.shape[1:]}: "
            f"give each item a vector of the same length, or set task: classes"
        )
    array = column.reshape(len(column), -1).astype(np.float32)
    if task == "labels" and not np.isin(array, (0, 1)).all():
        raise ConfigError(f"{where}: its task is labels, so its targets must be 0 or 1")
    count, word = array.shape[1], task.removesuffix("s")
    if not names:
        names = [f"{word}-{number}" for number in range(count)]
        if task == "values" and count == 1:
            names = [word]
    elif len(names) != count:
        raise ConfigError(f"{where}: its items have {count} {task}, but it names {len(names)}")
    return task, array, tuple(names)


def _is_one_hot(rows: Array) -> bool:
    return bool((np.isin(rows, (0, 1)).all(axis=1) & (rows.sum(axis=1) == 1)).all())


def _task_of(numbers: Array, dimensions: int) -> TaskName:
    """Return the task of the targets, by their dtype and values.

    Whole numbers are classes, but vectors of 0 and 1 are labels. Floats are values, but labels if
    all are 0 or 1, as binary cross-entropy takes them.
    """
    are_zeros_and_ones = bool(np.isin(numbers, (0, 1)).all())
    if numbers.dtype == np.int64:
        return "labels" if dimensions == 1 and are_zeros_and_ones else "classes"
    return "labels" if are_zeros_and_ones else "values"


def _named_classes(
    where: str, column: Column, numbers: Array, names: tuple[str, ...]
) -> tuple[Column, tuple[str, ...]]:
    """Return the class numbers and their names. Classes of positions keep their numbers."""
    has_positions = len(column.shape) > 1
    if not names and not has_positions:
        assert isinstance(column, np.ndarray)
        if IGNORED_CLASS in column:
            item = int((column == IGNORED_CLASS).argmax())
            raise ConfigError(
                f"{where}: the target of item {item} is {IGNORED_CLASS}, which PyTorch ignores: "
                f"leave it out"
            )
        classes, column = np.unique(column, return_inverse=True)
        return column.astype(np.int64), tuple(str(number) for number in classes)
    names = names or tuple(map(str, range(numbers.max() + 1)))
    others = numbers_of_no_class(numbers, len(names))
    if len(others) > has_positions:
        raise ConfigError(
            f"{where}: its targets contain {listed([str(number) for number in others[:3]])}, but "
            f"its classes are numbered from 0 to {len(names) - 1}. With a class at each position, "
            f"one other number may be cross_entropy's ignore_index"
        )
    return column, names


def numbers_of_no_class(numbers: Array, classes: int) -> list[int]:
    """Return the numbers in targets that are not class numbers, from 0 to `classes` - 1."""
    outside = numbers[(numbers < 0) | (numbers >= classes)]
    return [int(number) for number in np.unique(outside)]


def download(plan: DatasetPlan, folder: Path) -> None:
    """Download the data set if its source requires it. Record every source in `folder`."""
    dataset = plan.dataset
    if dataset.is_downloaded:
        open_source(plan)
    folder.mkdir(parents=True, exist_ok=True)
    arguments = dataset.arguments if isinstance(dataset, CustomDataset) else {}
    record = {"source": dataset.source, "arguments": arguments}
    write_json_atomically(folder / "source.json", record)


def open_source(plan: DatasetPlan) -> Source:
    module, _, function = plan.dataset.opens.partition(".")
    return cast("Source", getattr(import_module(f"photofinish.data.{module}"), function)(plan))


def open_custom(plan: DatasetPlan) -> Source:
    """Return a custom data set, built once, or once for each part if its code takes `part`."""
    dataset = plan.dataset
    assert isinstance(dataset, CustomDataset)
    check_code_unchanged(plan.custom_code)
    seed_generators(dataset.seed)
    build, names = dataset.reference.load(), ["train"]
    takes = dataset.reference.takes()
    if takes is not None and PART in takes.names and PART not in dataset.arguments:
        sizes = {"validation": dataset.validation, "test": dataset.test}
        names += [part for part, size in sizes.items() if size is None]
    parts: dict[Any, Any] = {}
    for part in names:
        offered = {PART: part, "seed": dataset.seed}
        arguments = accepted_arguments(build, offered, dataset.arguments)
        with run_custom_code(f"data set {dataset.source} can't be built"):
            parts[part] = built = build(**arguments)
        if not (hasattr(built, "__getitem__") and hasattr(built, "__len__")):
            raise UserError(
                f"{dataset.source} returns a {type(built).__name__}, but must return "
                f"a map-style data set, with __len__ and __getitem__"
            )
        for key in ("classes", "target_names"):
            if getattr(built, key, None) != getattr(parts["train"], key, None):
                raise ConfigError(
                    f"data set '{plan.name}' ({dataset.source}): `{key}` of its {part} part and of "
                    f"its train part differ. Number them alike in all parts"
                )
    workers, seed = dataset.workers, dataset.seed
    if len(parts) == 1:
        return Source(parts["train"], parts["train"], workers=workers, seed=seed)
    joined: Any = ConcatDataset(parts.values())
    starts = [0, *joined.cumulative_sizes[:-1]]
    rows = np.split(np.arange(len(joined)), starts[1:])

    def name_of(row: int) -> str:
        number = bisect_right(starts, row) - 1
        return f"{names[number]} item {row - starts[number]}"

    own_parts = dict(zip(parts, rows, strict=True))
    return Source(joined, parts["train"], own_parts, name_of, workers=workers, seed=seed)


class LiveSamples:
    """Samples of one part, read in each epoch from the data set that params.yaml names.

    `split` leaves the data set's plan, the row of each sample and the targets.
    """

    def __init__(self, split: PackedSplit, part: PartName) -> None:
        plan = read_plan(split.folder / LIVE_PLAN, DatasetPlan)
        self.dataset = open_source(plan).dataset  # workers get a pickled copy
        self._rows = np.load(split.folder / part_file(part, "rows"))
        self._labels = split.labels(part)
        self._task = TASKS[split.manifest.task]

    def __call__(self, row: int) -> tuple[Any, Nested[Array]]:
        """Read a sample. Its class number is from the split, which numbers the classes."""
        number = int(self._rows[row])
        try:
            sample = to_sample(self.dataset[number])
        except UNREADABLE as error:
            raise UserError(f"item {number} of the data set: {error}") from error
        if isinstance(sample.target, tuple | dict):
            return sample.input, sample.target
        if self._task.is_one_of_many:
            is_one = isinstance(self._labels, np.ndarray) and self._labels.ndim == 1
            return sample.input, self._labels[row] if is_one else sample.target
        return sample.input, sample.target.reshape(-1).astype(np.float32)
