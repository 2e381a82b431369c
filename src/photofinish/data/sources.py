"""Sources of data: each opens as a map-style data set of (input, target) pairs."""

from __future__ import annotations

from bisect import bisect_right
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch.utils.data import ConcatDataset

from photofinish.config.base import read_plan
from photofinish.config.datasets import PART, CustomDataset, DatasetPlan
from photofinish.custom.imports import check_code_unchanged
from photofinish.custom.running import accepted_arguments, run_custom_code, seed_generators
from photofinish.data import PartName
from photofinish.data.images import UNREADABLE
from photofinish.data.packed import Array, PackedSplit, part_file
from photofinish.data.samples import Source, to_sample
from photofinish.data.tasks import TASKS
from photofinish.errors import ConfigError, UserError
from photofinish.files import write_json_atomically
from photofinish.nested import Nested

LIVE_PLAN = "dataset.json"
"""File with the data set's plan, in a split without packed inputs."""


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
    """Return the map-style data set that params.yaml names."""
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
