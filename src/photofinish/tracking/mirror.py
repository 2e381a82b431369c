"""A run's files in MLflow: each is sent once, and again only if it changed or was deleted there."""

from __future__ import annotations

import json
import math
import platform
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
from mlflow import entities
from mlflow.entities import DatasetInput, InputTag, LoggedModelOutput, LoggedModelStatus, Metric, Run
from mlflow.models import Model, ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types import Schema, TensorSpec

from photofinish.files import sha256_of_bytes, sha256_of_file
from photofinish.own_code import Reference, imports_forgotten
from photofinish.params.networks import OwnModel
from photofinish.results import records
from photofinish.source_code import PACKAGE, users_files
from photofinish.tracking import documents
from photofinish.tracking.documents import TAG_CURRENT, TAG_MIRRORED, Artifact, Point, RunDocument, RunFacts
from photofinish.tracking.store import Store

if TYPE_CHECKING:
    from torch import nn

_MOST_METRICS_A_CALL = 1000
_MOST_TAGS_A_CALL = 100
_AT = "@"
"""no experiment's name has it"""
_HARDWARE = ("host.cpu", "host.usable_cores", "host.accelerator")
_REQUIREMENTS = ("mlflow", "numpy", "torch", "torchvision")
"""what it takes to load a logged model"""


def create_run(store: Store, facts: RunFacts, tags: dict[str, str], started_ms: int | None = None) -> str:
    """With all its tags in the one call: it is found by them if this is cut off in the next moment.

    Where others may share the store, its name says where it ran. Who ran it elsewhere isn't known here.
    """
    here = platform.node()
    host = facts.tags.get("host.name", "" if documents.TAG_RESTORED in tags else here)
    own = {"mlflow.user": psutil.Process().username()} if host == here else {}
    name = f"{facts.name}{_AT}{host}" if store.local_artifacts is None and host else facts.name
    tags = {**own, **facts.tags, **tags}
    run = store.client.create_run(store.experiment_id, start_time=started_ms, tags=tags, run_name=name)
    run_id = str(run.info.run_id)
    write_facts(store.client, run_id, facts)
    return run_id


def write_facts(client: MlflowClient, run_id: str, facts: RunFacts) -> None:
    """What the run doesn't show yet of its tags, parameters and data set."""
    run = client.get_run(run_id)
    tags = [entities.RunTag(key, value) for key, value in facts.tags.items() if run.data.tags.get(key) != value]
    params = [entities.Param(key, value) for key, value in facts.params.items() if key not in run.data.params]
    for start in range(0, max(len(tags), len(params)), _MOST_TAGS_A_CALL):
        part = slice(start, start + _MOST_TAGS_A_CALL)
        client.log_batch(run_id, tags=tags[part], params=params[part])
    if facts.dataset and not run.inputs.dataset_inputs:
        dataset = DatasetInput(entities.Dataset(**facts.dataset), [InputTag("mlflow.data.context", "training")])
        client.log_inputs(run_id, [dataset])


def write_points(client: MlflowClient, run_id: str, points: Iterable[Point], model_id: str | None = None) -> None:
    """As metrics of the run, whatever it has of them, and of its model, if one is named."""
    metrics = [Metric(point.key, point.value, point.timestamp_ms, point.step, model_id) for point in points]
    for start in range(0, len(metrics), _MOST_METRICS_A_CALL):
        client.log_batch(run_id, metrics=metrics[start : start + _MOST_METRICS_A_CALL])


def mirror_run(store: Store, run_id: str, document: RunDocument) -> None:
    """Everything in the document, each thing once; the tag that says so comes last."""
    client = store.client
    write_facts(client, run_id, document.facts)
    for earlier in _replaced(store, document.facts):
        client.set_tag(earlier.info.run_id, TAG_CURRENT, "false")
    client.set_tag(run_id, TAG_CURRENT, "true")
    run = client.get_run(run_id)
    model_id = (model_of(run) or _create_model(store, run, document)) if document.learned else None
    _write_missing_points(client, run, document.points, model_id)
    _mirror_artifacts(store, run, document.artifacts)
    if document.learned and model_id and not _is_ready(store, model_id):
        with imports_forgotten():
            _write_model(store, run, model_id, document.learned, document.facts.tags)
    client.set_tag(run_id, documents.TAG_RESULT, document.result)
    # From the job's start, its duration: not until what was measured after the job, or until MLflow was back.
    ended_ms = run.info.start_time + document.duration_ms if document.duration_ms is not None else None
    client.set_terminated(run_id, "FINISHED", ended_ms)
    client.set_tag(run_id, TAG_MIRRORED, document.mirrored)


def _replaced(store: Store, facts: RunFacts) -> list[Run]:
    """The runs whose result this one takes the place of. Where others may share the store, another machine's stays
    beside it."""
    found = store.find_runs(f"tags.`{TAG_CURRENT}` = 'true' and attributes.run_name LIKE '{facts.name}%'")
    found = [run for run in found if run.info.run_name.partition(_AT)[0] == facts.name]
    if store.local_artifacts:
        return found
    return [run for run in found if all(run.data.tags.get(tag) == facts.tags.get(tag) for tag in _HARDWARE)]


def is_whole(store: Store, run: Run, document: RunDocument) -> bool:
    """Whether MLflow has all of it; artifacts in a folder of this machine may have been deleted."""
    if run.data.tags.get(TAG_MIRRORED) != document.mirrored or run.info.status != "FINISHED":
        return False
    if document.learned and not ((model_id := model_of(run)) and _is_ready(store, model_id)):
        return False
    return all(_is_there(store, run, artifact) for artifact in document.artifacts)


def _write_missing_points(client: MlflowClient, run: Run, points: list[Point], model_id: str | None) -> None:
    """MLflow keeps a step that is logged twice twice; a resumed run repeats the epochs after its checkpoint. Of a step
    with several values it shows the latest, so one that has changed comes after what is there.

    Points of the last step, test scores among them, are the model's too.
    """
    run_id = str(run.info.run_id)
    latest: dict[tuple[str, int], Metric] = {}
    for key in {point.key for point in points} & run.data.metrics.keys():
        for metric in sorted(client.get_metric_history(run_id, key), key=lambda metric: metric.timestamp):
            latest[key, metric.step] = metric
    missing = []
    for point in points:
        there = latest.get((point.key, point.step))
        if there is None:
            missing.append(point)
        elif there.value != point.value and not (math.isnan(there.value) and math.isnan(point.value)):
            missing.append(replace(point, timestamp_ms=max(point.timestamp_ms, there.timestamp + 1)))
    last_step = max((point.step for point in points), default=0)
    write_points(client, run_id, [point for point in missing if point.step < last_step])
    write_points(client, run_id, [point for point in missing if point.step == last_step], model_id)


def _mirror_artifacts(store: Store, run: Run, artifacts: list[Artifact]) -> None:
    """Folder by folder: the tag that names a folder's content comes last, so what was cut off is sent anew."""
    run_id = str(run.info.run_id)
    by_folder = defaultdict(list)
    for artifact in artifacts:
        by_folder[artifact[1]].append(artifact)
    for folder, files in by_folder.items():
        tag = f"{TAG_MIRRORED}.{folder}"
        named = [[path.name, sha256_of_file(path)] for path, _ in files]
        content = sha256_of_bytes(json.dumps(named).encode())
        is_sent = run.data.tags.get(tag) == content
        for artifact in files:
            if not is_sent or not _is_there(store, run, artifact):
                store.client.log_artifact(run_id, str(artifact[0]), folder)
        if not is_sent:
            store.client.set_tag(run_id, tag, content)


def _is_there(store: Store, run: Run, artifact: Artifact) -> bool:
    """Artifacts in a folder of this machine may have been deleted; a server is trusted to keep what it got."""
    path, folder = artifact
    if store.local_artifacts is None:
        return True
    return (store.local_artifacts / str(run.info.run_id) / "artifacts" / folder / path.name).is_file()


def model_of(run: Run) -> str | None:
    """The number of the model that was made of its weights, if there is one."""
    return next((str(output.model_id) for output in run.outputs.model_outputs), None)


def _is_ready(store: Store, model_id: str) -> bool:
    if store.client.get_logged_model(model_id).status != LoggedModelStatus.READY:
        return False
    artifacts = store.local_artifacts
    return artifacts is None or (artifacts / "models" / model_id / "artifacts" / "MLmodel").is_file()


def _create_model(store: Store, run: Run, document: RunDocument) -> str:
    """An output of the run from its first moment, so that one that is cut off is found, and completed, again."""
    facts = document.facts
    name, run_id = facts.name.replace("/", "-"), str(run.info.run_id)  # which a model's name must not hold
    tags = {key: value for key, value in run.data.tags.items() if key.startswith(("mlflow.user", "mlflow.source."))}
    model = store.client.create_logged_model(store.experiment_id, name, run_id, tags, facts.params)
    model_id = str(model.model_id)
    store.client.log_outputs(run_id, [LoggedModelOutput(model_id, step=max(point.step for point in document.points))])
    return model_id


def _write_model(store: Store, run: Run, model_id: str, learned: Path, tags: dict[str, str]) -> None:
    """As `mlflow.pytorch.load_model` opens it anywhere, and `mlflow models serve` serves it."""
    from mlflow.pytorch import save_model

    from photofinish.results.learned import load_network

    record = records.read_record(learned / records.RECORD, records.Training)
    needed = {package: tags[f"package.{package}"] for package in _REQUIREMENTS}
    needed |= {name.removeprefix(PACKAGE): is_at for name, is_at in record.own_code.items() if name.startswith(PACKAGE)}
    shape, network = record.image_shape, load_network(learned, record)
    classifier = as_served(network, record.mean, record.std, record.dtype, len(shape)).eval()
    # What comes as JSON becomes floats, which can be checked: as bytes, 0.5 would become 0.
    example = np.zeros((1, *shape), np.int64) if record.dtype == "int64" else np.full((1, *shape), 0.5, np.float32)
    client = store.client
    model = Model(
        artifact_path=client.get_logged_model(model_id).artifact_location,
        run_id=str(run.info.run_id),
        model_uuid=model_id,
        model_id=model_id,
    )
    with tempfile.TemporaryDirectory() as folder:
        own_files = _copied(record, Path(folder, "own")) if isinstance(record.experiment.model, OwnModel) else []
        save_model(  # not log_model, which asks a server for the history of every metric, and loads what it has saved
            classifier,
            path := str(Path(folder, "model")),
            mlflow_model=model,
            serialization_format="pickle",  # MLflow's default traces the network with an example of its input
            signature=ModelSignature(
                inputs=Schema([TensorSpec(example.dtype, (-1, *shape))]),
                outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, len(record.class_names)))]),
            ),
            input_example=example,
            metadata={"mean": list(record.mean), "std": list(record.std), "class_names": list(record.class_names)},
            pip_requirements=[f"{package}=={version}" for package, version in sorted(needed.items())],
            code_paths=own_files or None,
        )
        client.log_model_artifacts(model_id, path)
    client.finalize_logged_model(model_id, LoggedModelStatus.READY)


def as_served(
    network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], dtype: str, dimensions: int
) -> nn.Module:
    """The network as MLflow loads and serves it: it takes what its data set gives, packed as `dtype`, and does to it
    itself what the training did. Images are of bytes, or of floats from 0 to 1.

    A class that is made here is pickled with its code, so that it loads where this package isn't installed.
    """
    import torch
    from torch import nn

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
            """The network's answer to the items, normalised as its training items were."""
            if takes_images and items.dtype == torch.uint8:
                items = items.float() / 255
            elif takes_images and (not items.is_floating_point() or bool(((items < 0) | (items > 1)).any())):
                raise ValueError("images are to be of bytes (uint8), or of floats from 0 to 1: divide pixels by 255")
            return self.network((items.float() - self.mean) / self.std)  # type: ignore[no-any-return]

    shape = (-1, *[1] * (dimensions - 1))
    return Served(network, torch.tensor(mean).view(shape), torch.tensor(std).view(shape))


def _copied(record: records.Training, folder: Path) -> list[str]:
    """The user's files that the network is made of, wherever they lie, as Python finds them from `folder`; what lies
    directly in it."""
    files, _ = users_files([Reference.of(record.experiment.model.name)])
    for within, path in files.items():
        place = folder / within
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    return sorted(map(str, folder.glob("*")))
