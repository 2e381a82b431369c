"""Writes the plan: one file for each experiment, data set, device and stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from photofinish.config.base import CallsCode
from photofinish.config.catalogue import GIVEN_TO_TORCHMETRICS
from photofinish.config.compare import ComparePlan
from photofinish.config.datasets import GIVEN_TO_DATASETS, PART, SIZES, DatasetPlan, OwnDataset
from photofinish.config.experiment import TORCHMETRICS, CustomTransform, ExperimentPlan, MetricsPlan, own_code_of
from photofinish.config.mistakes import REQUIRED, ConfigProblem, unknown_name
from photofinish.config.networks import GIVEN_TO_NETWORKS, CustomModel, WeightsPlan, published_weights
from photofinish.config.reader import Params
from photofinish.custom_code import Signature
from photofinish.data.local_files import sha256_of_local_files
from photofinish.machine.fingerprint import Machine, fingerprint
from photofinish.source_code import code_of_users, stage_code

SWEEPS_PAY_FROM = 100
"""With so many experiments, DVC itself takes more than half a minute to train one of them again."""


def write_plan(params: Params, folder: Path, stages: Path, machines: Mapping[str, Machine] | None = None) -> None:
    """Write the files that changed, and remove those that params.yaml no longer needs.

    It runs at every `dvc repro`, since DVC does not see the machine, the user's images and the sources by itself.
    """
    cpu_host, gpu_host = fingerprint(params.devices, machines)
    planned = {"hosts/cpu": cpu_host, "hosts/gpu": gpu_host, **_planned(params, stages)}
    texts = {folder / f"{name}.json": settings.model_dump_json(indent=2) + "\n" for name, settings in planned.items()}

    for path, text in texts.items():
        if not path.is_file() or path.read_bytes() != text.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for own_folder in {path.parent for path in texts} - {folder}:
        for path in own_folder.iterdir():
            if path.is_file() and path not in texts:
                path.unlink()


def _planned(params: Params, stages: Path) -> dict[str, BaseModel]:
    """Return the contents of all files except those of the devices, by their names."""
    local_files = sha256_of_local_files(params.datasets)
    weights = {name: published_weights(experiment.model) for name, experiment in params.experiments.items()}
    planned: dict[str, BaseModel] = {
        "compare": ComparePlan(**dict(params.comparing), experiments=tuple(params.experiments)),
        "weights": WeightsPlan(experiments=weights),
        **{f"code/{script.stem}": stage_code(script) for script in stages.glob("[!_]*.py")},
    }
    for name, experiment in params.experiments.items():
        custom_code = code_of_users([part.reference for part in own_code_of(experiment)])
        planned[f"experiments/{name}"] = ExperimentPlan(**dict(experiment), custom_code=custom_code)
        custom_code = code_of_users([metric.reference for metric in experiment.metrics])
        planned[f"metrics/{name}"] = MetricsPlan(metrics=experiment.metrics, custom_code=custom_code)
    for name, dataset in params.datasets.items():
        custom_code = code_of_users([dataset.reference]) if isinstance(dataset, OwnDataset) else {}
        planned[f"datasets/{name}"] = DatasetPlan(
            name=name, dataset=dataset, local_files=local_files.get(name), custom_code=custom_code
        )
    return planned


def faults_in_own_code(params: Params) -> Iterator[ConfigProblem]:
    """Yield mistakes in how params.yaml calls custom code, as far as its source shows them."""
    for where, code in params.custom_code.items():
        reference, arguments = code.reference, code.arguments
        if problem := reference.problem():
            yield ConfigProblem(where, problem, f"{reference.module}:{reference.name}")
            continue
        takes = reference.takes()
        if takes is None:
            continue
        settings = type(code).model_fields if isinstance(code, OwnDataset) else {}
        for argument, value in arguments.items():
            if argument not in takes.names and not takes.any_more:
                problem = unknown_name("argument", argument, (*takes.names, *settings))
                yield ConfigProblem((*where, argument), problem, value)
        for argument in sorted(takes.required - arguments.keys() - _given_to(code, takes)):
            problem = f"{reference.name} in {reference.module} takes {argument}, and has no default for it: give one"
            if argument in settings:
                problem = f"{reference.name} takes {argument}, which is a key of its own here: rename the argument"
            yield ConfigProblem((*where, argument), problem)
    for name, dataset in params.datasets.items():
        if isinstance(dataset, OwnDataset) and dataset.reference.takes() and not dataset.makes_parts:
            for part, size in (("validation", dataset.validation), ("test", dataset.test)):
                if size is None:
                    problem = f"{REQUIRED}: {SIZES}; or let {dataset.reference.name} take an argument {PART}"
                    yield ConfigProblem(("datasets", name, part), problem)


def _given_to(code: CallsCode, takes: Signature) -> frozenset[str]:
    """Return the arguments that photofinish itself gives."""
    if isinstance(code, CustomModel):
        return GIVEN_TO_NETWORKS
    if isinstance(code, OwnDataset):
        return GIVEN_TO_DATASETS
    count = 1 if isinstance(code, CustomTransform) else 2  # an item; or outputs and targets
    given = () if takes.is_class else takes.names[:count]
    return frozenset((*given, *GIVEN_TO_TORCHMETRICS) if code.reference.module == TORCHMETRICS else given)


def advise_sweeps(params: Params) -> None:
    """Print how to save DVC's time if there are many experiments."""
    count = len(params.experiments)
    if count >= SWEEPS_PAY_FROM:
        print(
            f"{count} experiments in one dvc.lock, which DVC rewrites after each stage: from {SWEEPS_PAY_FROM} on, "
            f"folders of their own take less time (docs/sweeps.md)"
        )
