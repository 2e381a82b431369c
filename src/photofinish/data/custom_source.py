"""Source of a custom map-style data set."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset

from photofinish.config.datasets import PART, CustomDataset, DatasetPlan
from photofinish.custom.imports import check_code_unchanged
from photofinish.custom.running import accepted_arguments, run_custom_code, seed_generators
from photofinish.data.samples import Source
from photofinish.errors import ConfigError, UserError


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
