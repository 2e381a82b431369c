"""A split of a few samples, to try code on before all samples are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from torch.utils.data import Subset

from photofinish.config.datasets import DatasetPlan
from photofinish.custom.opened import unnamed_files_reported
from photofinish.data import PartName
from photofinish.data.images import Int64Array
from photofinish.data.raw_data import read_raw
from photofinish.data.sources import open_source
from photofinish.data.split import split
from photofinish.data.tasks import TASKS

_MOST = 64


def split_few(plan: DatasetPlan, folder: Path) -> bool:
    """Pack some samples from the whole length of a data set, into parts that are disjoint.

    Return False if the data set has classes that it does not name, of which some may be missing.
    """
    with unnamed_files_reported(f"datasets.{plan.name}", plan.named_files()):
        source = open_source(plan)
    count = min(len(source.dataset), _MOST)
    rows = np.linspace(0, len(source.dataset) - 1, count).astype(int).tolist()
    few = replace(
        source,
        dataset=Subset(source.dataset, rows),
        own_parts={},
        name_of=lambda row: source.name_of(rows[row]),
    )
    order = np.arange(count)
    parts: dict[PartName, Int64Array] = {
        "train": order[::2],
        "validation": order[1:-1:2],
        "test": order[-1:],
    }
    raw = replace(read_raw(plan, folder, few), own_parts=parts)
    unsized = {"validation": None, "test": None, "allow_duplicates": True}
    changes = {key: value for key, value in unsized.items() if hasattr(plan.dataset, key)}
    split(plan.model_copy(update={"dataset": plan.dataset.model_copy(update=changes)}), raw, folder)
    task = TASKS[raw.task]
    return not task.is_one_of_many or bool(getattr(source.names, task.names_attribute, None))
