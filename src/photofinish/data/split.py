"""Split of a source into packed parts, for every data set.

1. `open_source` returns a map-style data set of (input, target) pairs.
2. `read_raw` reads each pair once, in order. The first faulty ones are reported together.
3. `divide` draws the parts that the source does not have itself.
4. `split` packs each part into one file of inputs and one of targets, and writes a manifest.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import numpy as np
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader

from photofinish.config.datasets import CustomDataset, DatasetPlan, LocalDataset, drawn_counts
from photofinish.data import MANIFEST, Dtype, PartName, Task
from photofinish.data.images import Int64Array
from photofinish.data.packed import Manifest, part_file
from photofinish.data.samples import Array, Sample, Samples, Source, named_targets
from photofinish.data.sources import open_source
from photofinish.display import ReadingDisplay
from photofinish.errors import ConfigError
from photofinish.files import sha256_of_file, write_bytes_atomically

_MOST_FAULTS = 10
_SHADES = 256
_BYTES_AT_A_TIME = 16 << 20
_HASH_BYTES = 8


@dataclass(frozen=True)
class RawData:
    """All samples of a data set, which may be larger than memory."""

    shape: tuple[int, ...]
    """Shape of a sample; for images, channels, height, width."""
    labels: Array
    """Class numbers; for other tasks, float32 (count, numbers)."""
    class_names: tuple[str, ...]
    read: Callable[[Int64Array], Array]
    """Returns the inputs of the given rows."""
    own_parts: Mapping[PartName, Int64Array] = field(default_factory=dict)
    """Rows of each part that the source itself has."""
    name_of: Callable[[int], str] = "item {}".format
    """Returns the name of a row in messages."""
    task: Task = "classes"
    dtype: Dtype = "uint8"


def read_raw(plan: DatasetPlan, folder: Path) -> RawData:
    """Read every sample. Inputs lie in an unnamed file in `folder` until they are packed."""
    source = open_source(plan)
    folder.mkdir(parents=True, exist_ok=True)
    where = f"data set '{plan.name}'"
    with tempfile.TemporaryFile(dir=folder) as file:
        first, targets = _read_all(plan, source, file)
        file.flush()
        dtype, shape = first.input.dtype, first.input.shape
        inputs: Array = np.asarray(np.memmap(file, dtype, "r", shape=(len(targets), *shape)))
    task, labels, names = named_targets(where, targets, source.names)
    packed_dtype: Any = dtype.name
    return RawData(
        shape,
        labels,
        names,
        inputs.__getitem__,
        source.own_parts,
        source.name_of,
        task,
        packed_dtype,
    )


def _read_all(plan: DatasetPlan, source: Source, file: IO[bytes]) -> tuple[Sample, list[Array]]:
    """Write all inputs to `file`. Return the first sample and all targets."""
    samples = Samples(source.dataset, source.seed)
    read: Iterable[Sample | str] = map(samples.__getitem__, range(len(samples)))
    if source.workers:
        workers = source.workers
        read = DataLoader(samples, batch_size=1, num_workers=workers, collate_fn=itemgetter(0))
    first: Sample | None = None
    targets, faults = [], list(source.faults)
    with ReadingDisplay(plan.name, len(samples), "items") as display:
        for row, sample in enumerate(read):
            if len(faults) >= _MOST_FAULTS:
                break
            display.advance()
            if isinstance(sample, str):
                faults.append(f"{source.name_of(row)}: {sample}")
                continue
            first = first or sample
            if difference := sample.difference(first):
                faults.append(f"{source.name_of(row)}: {difference}")
                continue
            file.write(np.ascontiguousarray(sample.input).data)
            targets.append(sample.target)
    if faults or first is None:
        lines = "\n".join(faults[:_MOST_FAULTS] or ["it has no items"])
        if getattr(plan.dataset, "size", 0) is None:
            lines += f"\nImages of many sizes need datasets.{plan.name}.size in params.yaml."
        raise ConfigError(
            f"data set '{plan.name}' ({plan.dataset.source}) can't be packed:\n{lines}"
        )
    if source.seed is not None:
        again = Samples(source.dataset)[0]
        if isinstance(again, str) or not all(map(np.array_equal, again, first)):
            print("note: item 0 differs when it is read again: each item is packed as read first")
    return first, targets


def divide(raw: RawData, plan: DatasetPlan) -> dict[PartName, Int64Array]:
    """Return the rows of each part, in the raw data's order.

    Parts that the source lacks are drawn by the seed alone, in the proportions of the classes.
    """
    own, dataset, where = raw.own_parts, plan.dataset, f"datasets.{plan.name}"
    rest = own.get("train", np.arange(len(raw.labels), dtype=np.int64))
    for part, size in (("test", dataset.test), ("validation", dataset.validation)):
        if (part in own) == (size is not None):
            problem = "must be left out: the source has it" if part in own else "is required"
            raise ConfigError(f"{where}.{part} {problem} in params.yaml")
    try:
        counts = drawn_counts(dataset, len(rest))
    except ValueError as error:
        raise ConfigError(f"{error}: correct {where} in params.yaml") from None
    parts = {**own}
    for part, count in counts.items():
        labels = raw.labels[rest] if raw.task == "classes" else None
        try:
            rest, chosen = train_test_split(
                rest, test_size=count, random_state=dataset.seed, shuffle=True, stratify=labels
            )
        except ValueError as error:
            raise ConfigError(
                f"a {part} part of {count} images can't be drawn evenly in params.yaml, "
                f"{where}: {error}"
            ) from None
        parts[part] = np.sort(chosen)
    return {"train": np.sort(rest), "validation": parts["validation"], "test": parts["test"]}


def split(plan: DatasetPlan, raw: RawData, folder: Path) -> Manifest:
    """Write the packed split into `folder` and return its manifest."""
    mean, std = plan.dataset.mean, plan.dataset.std
    channels = 0 if raw.dtype == "int64" else raw.shape[0]
    if mean is not None and len(mean) != channels:
        raise ConfigError(
            f"datasets.{plan.name}.mean has {len(mean)} numbers in params.yaml; "
            f"the items have {channels} channels to normalise"
        )
    folder.mkdir(parents=True, exist_ok=True)
    rows = divide(raw, plan)
    hashes, shades = {}, {}
    for part, chosen in rows.items():
        hashes[part], shades[part] = _pack(part, raw, chosen, folder)
    _check_duplicates(plan, raw, rows, hashes)
    own_mean, own_std = _mean_and_std(shades["train"])
    manifest = Manifest(
        task=raw.task,
        class_names=raw.class_names,
        shape=raw.shape,
        dtype=raw.dtype,
        counts={part: len(chosen) for part, chosen in rows.items()},
        mean=mean or own_mean,
        std=std or own_std,
        sha256={path.name: sha256_of_file(path) for path in sorted(folder.glob("*.npy"))},
    )
    write_bytes_atomically(folder / MANIFEST, f"{manifest.model_dump_json(indent=2)}\n".encode())
    return manifest


def _pack(part: PartName, raw: RawData, rows: Int64Array, folder: Path) -> tuple[Array, Array]:
    """Write a part's files, some samples at a time.

    Return a hash of each input and, for images, how often each channel has each of 256 shades.
    """
    np.save(folder / part_file(part, "labels"), raw.labels[rows])
    np.save(folder / part_file(part, "rows"), rows)
    dtype, is_images = np.dtype(raw.dtype), raw.dtype == "uint8"
    hashes = bytearray()
    shades = np.zeros((raw.shape[0] if is_images else 0, _SHADES), dtype=np.int64)
    step = max(1, _BYTES_AT_A_TIME // (math.prod(raw.shape) * dtype.itemsize))
    header = {"descr": dtype.str, "fortran_order": False, "shape": (len(rows), *raw.shape)}
    with (folder / part_file(part, "images")).open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(rows), step):
            inputs = np.ascontiguousarray(raw.read(rows[start : start + step]))
            file.write(inputs.data)
            for sample in inputs:
                hashes += hashlib.blake2b(sample, digest_size=_HASH_BYTES).digest()
            for channel in range(len(shades)):
                shades[channel] += np.bincount(inputs[:, channel].ravel(), minlength=_SHADES)
    return np.frombuffer(hashes, dtype=np.uint64), shades


def _mean_and_std(shades: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the exact mean and standard deviation per channel, on the scale from 0 to 1."""
    values = np.arange(_SHADES) / (_SHADES - 1)
    means, stds = [], []
    for counts in shades:
        share = counts / max(1, counts.sum())
        mean = float(share @ values)
        std = float(np.sqrt(share @ (values - mean) ** 2))
        means.append(mean)
        stds.append(std if std > 0 else 1.0)  # a channel of one value is divided by 1
    return tuple(means), tuple(stds)


def _check_duplicates(
    plan: DatasetPlan,
    raw: RawData,
    rows: Mapping[PartName, Int64Array],
    hashes: Mapping[PartName, Array],
) -> None:
    """Print which parts share inputs. Raise ConfigError if the user divided them so."""
    dataset = plan.dataset
    may_raise = isinstance(dataset, LocalDataset | CustomDataset) and not dataset.allow_duplicates
    what = "images" if raw.dtype == "uint8" else "items"
    for first, second in combinations(rows, 2):
        shared = np.flatnonzero(np.isin(hashes[second], hashes[first]))
        if not len(shared):
            continue
        one = rows[first][hashes[first] == hashes[second][shared[0]]][0]
        names = f"{raw.name_of(one)} and {raw.name_of(rows[second][shared[0]])}"
        warning = (
            f"{second} {what} that are {first} {what} too: "
            f"{len(shared):,} of {len(rows[second]):,}, such as {names}"
        )
        if may_raise and {first, second} <= raw.own_parts.keys():
            raise ConfigError(
                f"data set '{plan.name}': {warning}. Keep them in one part, "
                f"or set datasets.{plan.name}.allow_duplicates: true in params.yaml"
            )
        print(f"note: {warning}")
