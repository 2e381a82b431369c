"""Samples of a source, read once, in order. The first faulty samples are reported together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, cast

import numpy as np
from rich.console import Console
from rich.progress import track
from torch.utils.data import DataLoader

from photofinish.config.datasets import DatasetPlan
from photofinish.data import Dtype, PartName, Shape, TaskName
from photofinish.data.images import Int64Array
from photofinish.data.packed import Array, Column
from photofinish.data.ragged import Ragged
from photofinish.data.sources import Sample, Samples, Source, named_targets, open_source
from photofinish.errors import ConfigError
from photofinish.nested import Nested, as_nested, leaves, map_nested

_MOST_FAULTS = 10


@dataclass(frozen=True)
class RawData:
    """All samples of a data set, which may be larger than memory."""

    inputs: Nested[Column]
    """Inputs of all samples. Images have the shape (count, channels, height, width)."""
    labels: Nested[Column]
    """Class numbers, float32 (count, numbers) for values or labels, or a tuple or dict."""
    class_names: tuple[str, ...]
    own_parts: Mapping[PartName, Int64Array] = field(default_factory=dict)
    """Rows of each part that the source is already divided into."""
    name_of: Callable[[int], str] = "item {}".format
    """Function that returns the name of a row for messages."""
    task: TaskName = "classes"

    @property
    def shape(self) -> Nested[Shape]:
        return cast("Nested[Shape]", map_nested(lambda column: column.shape[1:], self.inputs))

    @property
    def dtype(self) -> Nested[Dtype]:
        return cast("Nested[Dtype]", map_nested(lambda column: column.dtype.name, self.inputs))


def read_raw(plan: DatasetPlan, folder: Path) -> RawData:
    """Read every sample. Until they are packed, inputs are in unnamed files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    source = open_source(plan)
    with ExitStack() as files:
        first, columns = _read_all(
            plan, source, lambda: files.enter_context(TemporaryFile(dir=folder))
        )
        arrays = [column.read() for column in columns]
    inputs = as_nested(arrays, first.input)
    targets = as_nested(arrays[len(leaves(first.input)) :], first.target)
    where = f"data set '{plan.name}'"
    task, labels, names = named_targets(where, targets, source.names, plan.dataset.given_task)
    return RawData(inputs, labels, names, source.own_parts, source.name_of, task)


class _Written:
    """Unnamed file with one array of each sample."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._dtype = np.dtype(np.int64)
        self._shapes: list[tuple[int, ...]] = []

    def add(self, array: Array) -> None:
        self._dtype = array.dtype
        self._shapes.append(array.shape)
        self._file.write(np.ascontiguousarray(array).data)

    def read(self) -> Column:
        """Return all arrays, memory-mapped. The file may be closed afterwards."""
        self._file.flush()
        sizes = sum(map(math.prod, self._shapes))
        values: Array = np.asarray(np.memmap(self._file, self._dtype, "r", shape=(sizes,)))
        shape = self._shapes[0]
        if all(other == shape for other in self._shapes):
            return values.reshape(len(self._shapes), *shape)
        return Ragged(values, np.array(self._shapes, dtype=np.int64))


def _read_all(
    plan: DatasetPlan, source: Source, new_file: Callable[[], IO[bytes]]
) -> tuple[Sample, list[_Written]]:
    """Write the samples to files. Return the first sample, and the column of each of its arrays."""
    samples = Samples(source.dataset, source.seed)
    read: Iterable[Sample | str] = map(samples.__getitem__, range(len(samples)))
    if source.workers:
        workers = source.workers
        read = DataLoader(samples, batch_size=1, num_workers=workers, collate_fn=itemgetter(0))
    first: Sample | None = None
    columns: list[_Written] = []
    faults: list[str] = []
    is_live = plan.dataset.decode == "each_epoch"
    must_have_one_shape = not is_live and plan.dataset.has_one_shape
    console = Console(stderr=True)
    bar = track(read, plan.name, len(samples), console=console, disable=not console.is_terminal)
    for row, sample in enumerate(bar):
        if len(faults) >= _MOST_FAULTS:
            break
        if isinstance(sample, str):
            faults.append(f"{source.name_of(row)}: {sample}")
            continue
        if first is None:
            first = sample
            columns = [_Written(new_file()) for _ in sample.arrays()]
        if difference := sample.difference(first, shapes=must_have_one_shape):
            faults.append(f"{source.name_of(row)}: {difference}")
            continue
        for column, array in zip(columns, sample.arrays(), strict=True):
            column.add(array)
    if faults or first is None:
        lines = "\n".join(faults or ["it has no items"])
        if getattr(plan.dataset, "size", 0) is None:
            lines += f"\nImages of many sizes need datasets.{plan.name}.size in params.yaml."
        raise ConfigError(
            f"data set '{plan.name}' ({plan.dataset.source}) can't be packed:\n{lines}"
        )
    if source.seed is not None and not is_live:
        again = Samples(source.dataset)[0]
        if isinstance(again, str) or not all(map(np.array_equal, again.arrays(), first.arrays())):
            raise ConfigError(
                f"data set '{plan.name}' ({plan.dataset.source}): item 0 differs when it is read "
                f"again, and every epoch would get the same changes. Move them to transform: of "
                f"input: {{name: loader}}, or set datasets.{plan.name}.decode: each_epoch in "
                f"params.yaml"
            )
    return first, columns
