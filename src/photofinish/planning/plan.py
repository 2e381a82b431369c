"""Write the plan: one file for each experiment, data set, device and stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from photofinish.config import timm_names
from photofinish.config.base import CallsCode
from photofinish.config.catalogue import GIVEN_TO_TORCHMETRICS
from photofinish.config.compare import ComparePlan
from photofinish.config.datasets import GIVEN_TO_DATASETS, CustomDataset, DatasetPlan
from photofinish.config.experiment import (
    BatchTransform,
    ExperimentPlan,
    Optimizer,
    Schedule,
    custom_code_of,
)
from photofinish.config.loader import Params
from photofinish.config.metrics import TORCHMETRICS, MetricsPlan
from photofinish.config.networks import (
    GIVEN_TO_NETWORKS,
    CustomModel,
    WeightsPlan,
    published_weights,
)
from photofinish.config.problems import ConfigProblem, KeyPath, unknown_name
from photofinish.config.pytorch_names import GIVEN_TO_BATCH_TRANSFORMS, GIVEN_TO_SCHEDULES
from photofinish.custom.imports import custom_code_hashes
from photofinish.custom.reference import TIMM, Signature
from photofinish.data.local_files import sha256_of_local_files
from photofinish.machine.fingerprint import Machine, fingerprint
from photofinish.planning.script_deps import script_plan
from photofinish.planning.source_code import stage_code


def write_plan(
    params: Params, folder: Path, stages: Path, machines: Mapping[str, Machine] | None = None
) -> None:
    """Write the files that changed, and remove those that params.yaml no longer needs.

    This runs at every `dvc repro`, since DVC sees neither the machine nor local images and sources.
    """
    cpu_host, gpu_host = fingerprint(params.devices, machines)
    plans = {"hosts/cpu": cpu_host, "hosts/gpu": gpu_host, **_plans(params, stages)}
    paths = {folder / f"{name}.json": plan for name, plan in plans.items()}
    for path, plan in paths.items():
        text = plan.model_dump_json(indent=2) + "\n"
        if not path.is_file() or path.read_bytes() != text.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())  # without Windows' line ends
    for former in folder.glob("*/*"):
        if former.is_file() and former not in paths:
            former.unlink()


def _plans(params: Params, stages: Path) -> dict[str, BaseModel]:
    """Return the contents of all files except those of the devices, by name."""
    local_files = sha256_of_local_files(params.datasets)
    weights = {name: published_weights(one.model) for name, one in params.experiments.items()}
    plans: dict[str, BaseModel] = {
        "compare": ComparePlan(
            **dict(params.comparing),
            experiments=tuple(params.experiments),
            scripts=tuple(params.scripts),
        ),
        "weights": WeightsPlan(experiments=weights),
    }
    for script in stages.glob("[!_]*.py"):
        plans[f"code/{script.stem}"] = stage_code(script)
    for name, experiment in params.experiments.items():
        metrics = experiment.metrics
        parts = custom_code_of(experiment.model_copy(update={"metrics": ()}))
        # Named classes of PyTorch are part of its version, which the device's file has.
        references = [part.reference for part in parts.values() if part.is_custom]
        code = custom_code_hashes(references)
        plans[f"experiments/{name}"] = ExperimentPlan(**dict(experiment), custom_code=code)
        code = custom_code_hashes([metric.reference for metric in metrics])
        plans[f"metrics/{name}"] = MetricsPlan(metrics=metrics, custom_code=code)
    for name, dataset in params.datasets.items():
        code = custom_code_hashes([dataset.reference]) if isinstance(dataset, CustomDataset) else {}
        plans[f"datasets/{name}"] = DatasetPlan(
            name=name, dataset=dataset, local_files=local_files.get(name), custom_code=code
        )
    for name, settings in params.scripts.items():
        plans[f"scripts/{name}"] = script_plan(name, settings)
    return plans


def check_custom_code_calls(params: Params) -> Iterator[ConfigProblem]:
    """Yield problems in how params.yaml calls custom code, as far as its source shows them."""
    for path, code in params.custom_code.items():
        reference, arguments = code.reference, code.arguments
        if problem := reference.problem():
            yield ConfigProblem(path, problem, f"{reference.module}:{reference.name}")
            continue
        signature = reference.takes()
        if reference.module == TIMM:
            yield from _timm_problems(path, code)
        if signature is None:
            continue
        settings = CustomDataset.model_fields if isinstance(code, CustomDataset) else {}
        offered = _offered(code, signature)
        for name, value in arguments.items():
            if name not in signature.names and not signature.any_more:
                names = [name for name in signature.names if name not in offered]
                problem = unknown_name("argument", name, (*names, *settings))
                own = (*path, name)
                yield ConfigProblem(params.inherited.get(own, own), problem, value)
        for name in sorted(signature.required - arguments.keys() - offered):
            problem = (
                f"{reference.name} in {reference.module} takes {name}, and has no default for it"
            )
            if name in settings:
                problem = (
                    f"{reference.name} takes {name}, which is a key of its own here: rename it"
                )
            yield ConfigProblem((*path, name), problem)


def _timm_problems(path: KeyPath, code: CallsCode) -> Iterator[ConfigProblem]:
    """Yield a network that timm does not have, or arguments that nothing in its source takes."""
    name = code.reference.name
    if problem := timm_names.network_problem(name):
        yield ConfigProblem(path, problem, f"{TIMM}:{name}")
    taken = timm_names.arguments(name)
    for argument, value in code.arguments.items():
        if taken and argument not in taken:
            yield ConfigProblem((*path, argument), unknown_name("argument", argument, taken), value)


def _offered(code: CallsCode, signature: Signature) -> frozenset[str]:
    """Return the arguments that photofinish passes if they are accepted."""
    if isinstance(code, CustomModel):
        return GIVEN_TO_NETWORKS
    if isinstance(code, CustomDataset):
        return GIVEN_TO_DATASETS
    names = signature.names[: code.positional_arguments]
    if signature.is_class and not isinstance(code, Optimizer | Schedule):
        names = ()  # its instance is called with them
    if isinstance(code, Schedule):
        names = (*names, *GIVEN_TO_SCHEDULES)
    if isinstance(code, BatchTransform):
        names = (*names, *GIVEN_TO_BATCH_TRANSFORMS)
    if code.reference.module == TORCHMETRICS:
        names = (*names, *GIVEN_TO_TORCHMETRICS)
    return frozenset(names)
