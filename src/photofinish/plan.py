"""Write the plan: one file an experiment, data set, device and stage, so that each stage depends on just its own."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel

from photofinish.data import MANIFEST
from photofinish.data.local_files import sha256_of_local_files
from photofinish.files import write_text_atomically
from photofinish.machine.accelerators import Accelerators
from photofinish.machine.fingerprint import fingerprint
from photofinish.machine.memory import Room, planned_split_size, refuse_too_large, room_ever
from photofinish.params.datasets import DatasetPlan, TorchvisionDataset
from photofinish.params.networks import Model, PublishedWeights, TorchvisionModel, WeightsPlan
from photofinish.params.reader import Params
from photofinish.source_code import stage_code


def write_plan(
    params: Params, folder: Path, splits: Path, stages: Path, accelerators: Accelerators | None = None
) -> None:
    """Bring `folder` in line with `params`: what is right already stays untouched, what is no longer asked for goes.

    Nothing is written if some experiment's images can't fit into the memory that it asks to hold them.
    """
    local_files = sha256_of_local_files(params.datasets)
    cpu_host, gpu_host = fingerprint(params.devices, accelerators)
    wanted: dict[Path, BaseModel] = {
        folder / "hosts" / "cpu.json": cpu_host,
        folder / "hosts" / "gpu.json": gpu_host,
        folder / "weights.json": _weights_plan(params),
        **{folder / "code" / f"{script.stem}.json": stage_code(script) for script in stages.glob("*.py")},
        folder / "compare.json": params.comparing,
        **{
            folder / "datasets" / f"{name}.json": _dataset_plan(name, params, local_files.get(name))
            for name in params.datasets
        },
        **{folder / "experiments" / f"{name}.json": experiment for name, experiment in params.experiments.items()},
    }
    _refuse_too_large(params, wanted, folder, splits, room_ever(cpu_host, gpu_host))
    for path, settings in wanted.items():
        text = _text(settings)
        if not path.is_file() or path.read_bytes() != text.encode():
            write_text_atomically(path, text)
    for own_folder in {path.parent for path in wanted} - {folder}:
        for path in own_folder.iterdir():
            if path.is_file() and path not in wanted:
                path.unlink()


def _refuse_too_large(
    params: Params, wanted: dict[Path, BaseModel], folder: Path, splits: Path, rooms: list[Room]
) -> None:
    for name, experiment in params.experiments.items():
        dataset = experiment.dataset
        file = folder / "datasets" / f"{dataset}.json"
        size = planned_split_size(params.datasets[dataset], file, _text(wanted[file]), splits / dataset / MANIFEST)
        if size:
            refuse_too_large(name, experiment, size, rooms)


def _text(settings: BaseModel) -> str:
    return settings.model_dump_json(indent=2) + "\n"


def _dataset_plan(name: str, params: Params, local_files: str | None) -> DatasetPlan:
    """The mirror is left out where nothing is fetched: another one is then no reason to begin anew."""
    dataset = params.datasets[name]
    mirror = _mirror(params) if isinstance(dataset, TorchvisionDataset) else None
    return DatasetPlan(name=name, dataset=dataset, mirror=mirror, local_files=local_files)


def _weights_plan(params: Params) -> WeightsPlan:
    """Without a mirror where no weights are asked for, likewise."""
    wanted = {name: _published_weights(experiment.model) for name, experiment in params.experiments.items()}
    return WeightsPlan(mirror=_mirror(params) if any(wanted.values()) else None, experiments=wanted)


def _published_weights(model: Model) -> PublishedWeights | None:
    if isinstance(model, TorchvisionModel) and model.weights is not None:
        return PublishedWeights(model=model.name, weights=model.weights)
    return None


def _mirror(params: Params) -> str | None:
    return os.environ.get("PHOTOFINISH_MIRROR") or params.mirror
