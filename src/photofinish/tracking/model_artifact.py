"""A trained network as MLflow's own model format, so that `mlflow.pytorch.load_model` opens it anywhere.

`mlflow.pytorch.log_model` would do the same, but imports torch for seconds in a process that needs nothing
else of it; here the trainer, which has torch at hand, pickles the network, and MLflow's pieces pack the file.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import mlflow.pyfunc
import numpy as np
from mlflow.entities import LoggedModelOutput
from mlflow.models import Model
from mlflow.models.signature import ModelSignature
from mlflow.types.schema import Schema, TensorSpec

from photofinish.results import records
from photofinish.tracking.store import Store

MODEL = "model"
_PICKLE_MODULE = "mlflow.pytorch.pickle_module"
_REQUIREMENTS = ("mlflow", "numpy", "torch", "torchvision")


def log_model(
    store: Store,
    run_id: str,
    model_id: str | None,
    pickled: Path,
    record: records.Training,
    versions: dict[str, str],
) -> None:
    """Log the pickled network as the run's model, or give `model_id` its files back.

    A half-written model is no output of its run yet, so it is logged anew.
    """
    client = store.client
    new_id = (
        model_id
        or client.create_logged_model(
            store.experiment_id, name=MODEL, source_run_id=run_id, params={"model": record.experiment.model.name}
        ).model_id
    )
    with tempfile.TemporaryDirectory() as folder:
        _save(Path(folder) / MODEL, pickled, record, versions, Model(run_id=run_id, model_id=new_id))
        client.log_model_artifacts(new_id, str(Path(folder) / MODEL))
    if model_id is None:
        client.finalize_logged_model(new_id, "READY")
        client.log_outputs(run_id, [LoggedModelOutput(new_id, step=record.experiment.epochs)])


def _save(folder: Path, pickled: Path, record: records.Training, versions: dict[str, str], model: Model) -> None:
    data = folder / "data"
    data.mkdir(parents=True)
    shutil.copyfile(pickled, data / "model.pth")
    (data / "pickle_module_info.txt").write_text(_PICKLE_MODULE, encoding="utf-8")
    requirements = [f"{name}=={versions[name]}" for name in _REQUIREMENTS]
    (folder / "requirements.txt").write_text("\n".join(requirements) + "\n", encoding="utf-8")
    model.signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(np.float32), (-1, *record.image_shape))]),
        outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, len(record.class_names)))]),
    )
    model.metadata = {"mean": list(record.mean), "std": list(record.std), "class_names": list(record.class_names)}
    model.add_flavor("pytorch", model_data="data", pytorch_version=versions["torch"], code=None)
    mlflow.pyfunc.add_to_model(
        model,
        loader_module="mlflow.pytorch",
        data="data",
        pickle_module_name=_PICKLE_MODULE,
        model_config={"device": None},
    )
    model.save(str(folder / "MLmodel"))
