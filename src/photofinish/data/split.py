"""Split of raw data into packed parts: training, validation and test."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from photofinish.config.datasets import DatasetPlan
from photofinish.data import MANIFEST, PART_NAMES, PartName, Shape
from photofinish.data.images import Int64Array
from photofinish.data.packed import Array, Column, Content, Manifest, part_file, shapes_file
from photofinish.data.ragged import Ragged
from photofinish.data.raw_data import RawData
from photofinish.data.sources import LIVE_PLAN, numbers_of_no_class
from photofinish.errors import ConfigError
from photofinish.files import sha256_of_file, write_bytes_atomically
from photofinish.nested import Nested, leaf_names, leaves, map_nested, samples_in

_SHADES = 256
_BYTES_AT_A_TIME = 16 << 20
_HASH_BYTES = 8


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
                leading = before[len(hashes)] if before else b""
                hashes.append(_hash_of(leading + _hash_of(sample)) if leading else _hash_of(sample))
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
    dataset = plan.dataset
    may_raise = not getattr(dataset, "allow_duplicates", True)
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
