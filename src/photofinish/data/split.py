"""Split of a source into packed parts: training, validation and test.

Samples are read once, in order. The first faulty samples are reported together.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, cast

import numpy as np
from rich.console import Console
from rich.progress import track
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader

from photofinish.config.datasets import DatasetPlan
from photofinish.data import MANIFEST, PART_NAMES, Dtype, PartName, Shape, TaskName
from photofinish.data.images import Int64Array
from photofinish.data.packed import Array, Column, Content, Manifest, part_file, shapes_file
from photofinish.data.ragged import Ragged
from photofinish.data.sources import (
    LIVE_PLAN,
    Sample,
    Samples,
    Source,
    named_targets,
    numbers_of_no_class,
    open_source,
)
from photofinish.errors import ConfigError
from photofinish.files import sha256_of_file, write_bytes_atomically
from photofinish.nested import Nested, as_nested, leaf_names, leaves, map_nested, samples_in

_MOST_FAULTS = 10
_SHADES = 256
_BYTES_AT_A_TIME = 16 << 20
_HASH_BYTES = 8


@dataclass(frozen=True)
class RawData:
    """All samples of a data set, which may be larger than memory."""

    inputs: Nested[Column]
    """Inputs of all samples. Images have the shape (count, channels, height, width)."""
    labels: Nested[Column]
    """Class numbers, float32 (count, numbers) for values or labels, or a tuple or dict."""
    class_names: tuple[str, ...]
    own_parts: Mapping[PartName, Int64Array] = field(default_factory=dict)
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
    given_task = getattr(plan.dataset, "task", None)  # by default, the targets determine it
    task, labels, names = named_targets(where, targets, source.names, given_task)
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


def divide(raw: RawData, plan: DatasetPlan) -> dict[PartName, Int64Array]:
    """Return the rows of each part, in the raw data's order.

    Missing parts are drawn by the seed alone, stratified if each sample has a class. There is no
    validation part if its size is 0.
    """
    own, dataset, where = raw.own_parts, plan.dataset, f"datasets.{plan.name}"
    rest = own.get("train", np.arange(samples_in(raw.labels), dtype=np.int64))
    parts, total = {**own}, len(rest)
    sizes: dict[PartName, float | None] = {"test": dataset.test, "validation": dataset.validation}
    for part, size in sizes.items():
        if (part in own) == (size is not None):
            problem = "is required" if size is None else "must be removed: the source has that part"
            raise ConfigError(f"{where}.{part} in params.yaml {problem}")
        if not size:
            continue
        count = size if isinstance(size, int) else max(1, round(size * total))
        labels = None
        if isinstance(raw.labels, np.ndarray) and raw.labels.ndim == 1:  # a class for each sample
            labels = raw.labels[rest]
        try:
            rest, chosen = train_test_split(
                rest, test_size=count, random_state=dataset.seed, shuffle=True, stratify=labels
            )
        except ValueError as error:
            raise ConfigError(
                f"a {part} part of {count} samples can't be drawn evenly for "
                f"{where} in params.yaml: {error}"
            ) from None
        parts[part] = np.sort(chosen)
    parts["train"] = np.sort(rest)
    return {part: parts[part] for part in PART_NAMES if part in parts}


def split(plan: DatasetPlan, raw: RawData, folder: Path) -> Manifest:
    mean, std = plan.dataset.mean, plan.dataset.std
    channels = _channels(raw)
    if mean == "auto" and not channels:
        raise ConfigError(
            f"datasets.{plan.name}.mean is auto, but only images and single arrays of floats can "
            f"be normalised"
        )
    if mean not in (None, "auto") and len(mean) != channels:
        raise ConfigError(
            f"datasets.{plan.name}.mean has {len(mean)} numbers, but the items have {channels} "
            f"channels to normalise"
        )
    folder.mkdir(parents=True, exist_ok=True)
    rows = divide(raw, plan)
    hashes, shades = {}, {}
    is_live = plan.dataset.decode == "each_epoch"
    for part, chosen in rows.items():
        hashes[part], shades[part] = _pack(part, raw, chosen, folder, with_inputs=not is_live)
    if is_live:
        write_bytes_atomically(folder / LIVE_PLAN, plan.model_dump_json(indent=2).encode())
    _check_duplicates(plan, raw, rows, hashes)
    own_mean, own_std = _mean_and_std(shades["train"])
    if mean == "auto":
        mean = None
        if raw.dtype != "uint8":
            scaler = StandardScaler()
            for values in _some_at_a_time(cast("Column", raw.inputs), rows["train"]):
                scaler.partial_fit(np.moveaxis(values, 1, -1).reshape(-1, values.shape[1]))
            own_mean = tuple(scaler.mean_.tolist())
            own_std = tuple(scaler.scale_.tolist())
    manifest = Manifest(
        task=raw.task,
        class_names=raw.class_names,
        shape=raw.shape,
        dtype=raw.dtype,
        target_shape=_target_shape(raw.labels),
        ignored_class=_ignored_class(raw),
        target_parts=map_nested(lambda part: part.dtype.name, raw.labels)
        if isinstance(raw.labels, tuple | dict)
        else None,
        counts={part: len(chosen) for part, chosen in rows.items()},
        mean=mean or own_mean,
        std=std or own_std,
        decode=plan.dataset.decode,
        sha256={
            path.name: sha256_of_file(path)
            for path in sorted([*folder.glob("*.npy"), *folder.glob(LIVE_PLAN)])
        },
    )
    write_bytes_atomically(folder / MANIFEST, f"{manifest.model_dump_json(indent=2)}\n".encode())
    return manifest


def _target_shape(labels: Nested[Column]) -> Shape:
    """Return the shape of a target. For a tuple or dict, only if a side differs between samples."""
    if not isinstance(labels, tuple | dict):
        return labels.shape[1:]
    columns: list[Column] = leaves(labels)
    return (None,) if any(isinstance(column, Ragged) for column in columns) else ()


def _ignored_class(raw: RawData) -> int | None:
    """Return the number that marks positions without a class, or None."""
    if raw.task != "classes" or isinstance(raw.labels, tuple | dict) or len(raw.labels.shape) < 2:
        return None
    values = raw.labels.values if isinstance(raw.labels, Ragged) else raw.labels
    return next(iter(numbers_of_no_class(values, len(raw.class_names))), None)


def _channels(raw: RawData) -> int:
    """Return the number of channels to normalise: 0 for whole numbers and for tuples."""
    if isinstance(raw.inputs, tuple | dict) or raw.dtype == "int64":
        return 0
    return raw.inputs.shape[1] or 0


def _pack(
    part: PartName, raw: RawData, rows: Int64Array, folder: Path, *, with_inputs: bool
) -> tuple[Array, Array]:
    """Write a part's files, some samples at a time.

    Return a hash of each input and, for images, a histogram of 256 shades for each channel.
    """
    np.save(folder / part_file(part, "rows"), rows)
    targets: list[Column] = leaves(raw.labels)
    for leaf, column in zip(leaf_names(raw.labels), targets, strict=True):
        for _ in _written(column, rows, folder, (part, "labels", leaf)):
            pass
    is_images = raw.dtype == "uint8"
    shades = np.zeros((_channels(raw) if is_images else 0, _SHADES), dtype=np.int64)
    hashes: list[bytes] = []
    columns: list[Column] = leaves(raw.inputs)
    for leaf, column in zip(leaf_names(raw.inputs), columns, strict=True):
        before, hashes = hashes, []
        chunks = _some_at_a_time(column, rows)
        if with_inputs:
            chunks = _written(column, rows, folder, (part, "images", leaf))
        for inputs in chunks:
            for sample in inputs:
                own = _hash_of(sample)
                hashes.append(_hash_of(before[len(hashes)] + own) if before else own)
            for channel in range(len(shades)):
                shades[channel] += np.bincount(inputs[:, channel].ravel(), minlength=_SHADES)
    return np.frombuffer(b"".join(hashes), dtype=np.uint64), shades


def _hash_of(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()


def _written(
    column: Column, rows: Int64Array, folder: Path, name: tuple[PartName, Content, str]
) -> Iterator[Array]:
    shape = (len(rows), *column.shape[1:])
    if isinstance(column, Ragged):
        shapes = column.shapes[rows]
        shape = (int(shapes.prod(axis=1).sum()),)
        np.save(folder / shapes_file(*name), shapes)
    header = {"descr": column.dtype.str, "fortran_order": False, "shape": shape}
    with (folder / part_file(*name)).open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for some in _some_at_a_time(column, rows):
            file.write(some.data)
            yield some


def _some_at_a_time(column: Column, rows: Int64Array) -> Iterator[Array]:
    """Yield these rows in arrays of many samples, or of one sample if shapes differ."""
    if isinstance(column, Ragged):
        for row in rows:
            yield np.ascontiguousarray(column[int(row)])[np.newaxis]
        return
    bytes_each = math.prod(column.shape[1:]) * column.dtype.itemsize
    step = max(1, _BYTES_AT_A_TIME // max(1, bytes_each))
    for start in range(0, len(rows), step):
        yield np.ascontiguousarray(column[rows[start : start + step]])


def _mean_and_std(shades: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the exact mean and standard deviation per channel, on the scale from 0 to 1."""
    values = np.arange(_SHADES) / (_SHADES - 1)
    means, stds = [], []
    for counts in shades:
        share = counts / max(1, counts.sum())
        mean = float(share @ values)
        std = float(np.sqrt(share @ (values - mean) ** 2))
        means.append(mean)
        stds.append(std if std > 0 else 1.0)  # a constant channel is divided by 1
    return tuple(means), tuple(stds)


def _check_duplicates(
    plan: DatasetPlan,
    raw: RawData,
    rows: Mapping[PartName, Int64Array],
    hashes: Mapping[PartName, Array],
) -> None:
    """Print which parts share inputs. Raise ConfigError if the user divided them so."""
    may_raise = not getattr(plan.dataset, "allow_duplicates", True)
    what = "images" if raw.dtype == "uint8" else "items"
    for first, second in combinations(rows, 2):
        shared = np.flatnonzero(np.isin(hashes[second], hashes[first]))
        if not len(shared):
            continue
        one = rows[first][hashes[first] == hashes[second][shared[0]]][0]
        names = f"{raw.name_of(one)} and {raw.name_of(rows[second][shared[0]])}"
        warning = (
            f"{len(shared):,} of {len(rows[second]):,} {second} {what} are also {first} {what}, "
            f"such as {names}"
        )
        if may_raise and {first, second} <= raw.own_parts.keys():
            raise ConfigError(
                f"data set '{plan.name}': {warning}. Keep them in one part, "
                f"or set datasets.{plan.name}.allow_duplicates: true in params.yaml"
            )
        print(f"note: {warning}")
