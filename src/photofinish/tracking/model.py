"""Trained networks in the form that MLflow loads and serves."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Run
from mlflow.models import Model, ModelSignature
from mlflow.pytorch import save_model
from mlflow.types import Schema, TensorSpec
from torch import nn

from photofinish.config.networks import CustomModel
from photofinish.custom.imports import PACKAGE, custom_files
from photofinish.custom.reference import CodeReference
from photofinish.custom.running import forget_imports
from photofinish.data.tasks import TASKS
from photofinish.errors import UserError
from photofinish.nested import leaf_names, leaves
from photofinish.results import records
from photofinish.results.learned import load_network
from photofinish.tracking import first_line
from photofinish.tracking.documents import RunDocument
from photofinish.tracking.run_metrics import ONCE
from photofinish.tracking.store import Store

_REQUIREMENTS = ("mlflow", "numpy", "torch", "torchvision")


def log_model(store: Store, run: Run, document: RunDocument) -> None:
    """Log the model as an output of the run, or complete an unfinished model."""
    assert document.model
    client, run_id = store.client, str(run.info.run_id)
    name = document.name.replace("/", "-")  # MLflow refuses slashes
    record = records.read_record(document.model / records.RECORD, records.TrainingRecord)
    with forget_imports(), tempfile.TemporaryDirectory() as folder:
        network = load_network(document.model, record)
        logged = store.logged_model(run)  # an unfinished model, or one whose files were deleted
        if logged is None:
            logged = client.create_logged_model(store.experiment_id, name, run_id)
            client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=ONCE)])
        model_id, place = str(logged.model_id), logged.artifact_location
        model = Model(artifact_path=place, run_id=run_id, model_uuid=model_id, model_id=model_id)
        _save(Path(folder), model, network, record, document.tags)
        client.log_model_artifacts(model_id, str(Path(folder, "model")))
    client.finalize_logged_model(model_id, LoggedModelStatus.READY)


def _save(
    folder: Path,
    model: Model,
    network: nn.Module,
    record: records.TrainingRecord,
    tags: dict[str, str],
) -> None:
    """Save the network for `mlflow.pytorch.load_model` and `mlflow models serve`."""
    versions = {package: tags[f"package.{package}"] for package in _REQUIREMENTS}
    for name, version in record.custom_code.items():
        if name.startswith(PACKAGE):
            versions[name.removeprefix(PACKAGE)] = version
    code = folder / "code"
    if isinstance(record.experiment.model, CustomModel):
        files, _ = custom_files([CodeReference.of(record.experiment.model.name)])
        for place, path in files.items():
            (code / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, code / place)
    served = as_served(network, record.mean, record.std, record.dtype, len(record.image_shape))
    try:
        save_model(  # log_model would read the history of every metric and load the saved model
            served.eval(),
            str(folder / "model"),
            mlflow_model=model,
            serialization_format="pickle",  # the default traces the network with the example
            signature=_signature(record),
            input_example=_example(record),
            pip_requirements=[f"{package}=={one}" for package, one in sorted(versions.items())],
            code_paths=sorted(map(str, code.glob("*"))) or None,
        )
    except (pickle.PicklingError, AttributeError, RuntimeError, TypeError) as error:
        raise UserError(f"it can't be pickled: {first_line(error)}") from error


def _signature(record: records.TrainingRecord) -> ModelSignature:
    """Return the shapes and dtypes of inputs and outputs. Sides of any length are -1."""
    names = leaf_names(record.dtype)
    inputs = []
    for name, dtype, shape in zip(names, leaves(record.dtype), _shapes(record), strict=True):
        # JSON becomes floats, because as bytes, 0.5 would silently become 0.
        served = np.dtype(np.int64 if dtype == "int64" else np.float32)
        sides = [-1 if side is None else side for side in shape]
        inputs.append(TensorSpec(served, (-1, *sides), name or None))
    outputs = TASKS[record.task].output_shape(record.class_names, record.target_shape)
    if outputs is None:
        return ModelSignature(inputs=Schema(inputs))
    return ModelSignature(
        inputs=Schema(inputs), outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, *outputs))])
    )


def _shapes(record: records.TrainingRecord) -> list[Any]:
    is_one = isinstance(record.dtype, str)
    return [record.image_shape] if is_one else leaves(record.image_shape)


def _example(record: records.TrainingRecord) -> Any:
    """Return an example input, or None for several inputs, which MLflow can't serve."""
    if not isinstance(record.dtype, str):
        return None
    shape = [side or 1 for side in _shapes(record)[0]]
    if record.dtype == "int64":
        return np.zeros((1, *shape), np.int64)
    return np.full((1, *shape), 0.5, np.float32)


def as_served(
    network: nn.Module,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    dtype: Any,
    dimensions: int,
) -> nn.Module:
    """Return the network with the normalisation of its training.

    Images are bytes, or floats from 0 to 1. The class is defined in this function so that it is
    pickled with its code, and loads without this package.
    """
    takes_images = dtype == "uint8"
    if not takes_images and not mean:
        return network

    class Served(nn.Module):
        mean: torch.Tensor
        std: torch.Tensor

        def __init__(self, network: nn.Module, mean: torch.Tensor, std: torch.Tensor) -> None:
            super().__init__()
            self.network = network
            self.register_buffer("mean", mean)
            self.register_buffer("std", std)

        def forward(self, items: torch.Tensor) -> torch.Tensor:
            """Normalise the inputs as in training, then apply the network."""
            if takes_images and items.dtype == torch.uint8:
                items = items.float() / 255
            elif takes_images:
                is_float = items.is_floating_point()
                if not is_float or bool(((items < 0) | (items > 1)).any()):
                    raise ValueError(
                        "images must be bytes (uint8), or floats from 0 to 1: divide pixels by 255"
                    )
            return self.network((items.float() - self.mean) / self.std)  # type: ignore[no-any-return]

    shape = (-1, *[1] * (dimensions - 1))
    return Served(network, torch.tensor(mean).view(shape), torch.tensor(std).view(shape))
