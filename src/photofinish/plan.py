"""Write the plan: one file an experiment, a data set and a device, so that each stage depends on just its own."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from photofinish.files import write_text_atomically
from photofinish.hosts import fingerprint
from photofinish.params_reader import Params


def write_plan(params: Params, folder: Path) -> None:
    """Bring `folder` in line with `params`: what is right already stays untouched, what is no longer asked for goes."""
    cpu_host, gpu_host = fingerprint(params.devices)
    wanted: dict[Path, BaseModel] = {
        folder / "hosts" / "cpu.json": cpu_host,
        folder / "hosts" / "gpu.json": gpu_host,
        **{folder / "datasets" / f"{name}.json": dataset for name, dataset in params.datasets.items()},
        **{folder / "experiments" / f"{name}.json": experiment for name, experiment in params.experiments.items()},
    }
    for path, settings in wanted.items():
        text = settings.model_dump_json(indent=2) + "\n"
        if not path.is_file() or path.read_bytes() != text.encode():
            write_text_atomically(path, text)
    for own_folder in {path.parent for path in wanted}:
        for path in own_folder.iterdir():
            if path.is_file() and path not in wanted:
                path.unlink()
