"""Sources of data: each opens as a map-style data set of (input, target) pairs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import cast

from photofinish.config.datasets import DatasetPlan
from photofinish.data.samples import Source
from photofinish.files import write_json_atomically


def download(plan: DatasetPlan, folder: Path) -> None:
    """Download the data set if its source requires it. Record every source in `folder`."""
    dataset = plan.dataset
    if dataset.is_downloaded:
        open_source(plan)
    folder.mkdir(parents=True, exist_ok=True)
    record = {"source": dataset.source, "arguments": dataset.arguments}
    write_json_atomically(folder / "source.json", record)


def open_source(plan: DatasetPlan) -> Source:
    """Return the map-style data set that params.yaml names."""
    module, _, function = plan.dataset.opens.partition(".")
    return cast("Source", getattr(import_module(f"photofinish.data.{module}"), function)(plan))
