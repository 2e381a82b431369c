"""Checks of params.yaml that read data, scripts and custom code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from photofinish.config.base import CallsCode
from photofinish.config.catalogue import GIVEN_TO_TORCHMETRICS
from photofinish.config.datasets import GIVEN_TO_DATASETS, CustomDataset
from photofinish.config.experiment import BatchTransformSettings, Optimizer, Schedule
from photofinish.config.loader import Params
from photofinish.config.losses_and_metrics import TORCHMETRICS
from photofinish.config.networks import GIVEN_TO_NETWORKS, CustomModel
from photofinish.config.problems import ConfigProblem
from photofinish.config.pytorch_names import GIVEN_TO_BATCH_TRANSFORMS, GIVEN_TO_SCHEDULES
from photofinish.custom.reference import TIMM, Signature, file_of_module
from photofinish.files import in_project, project_root
from photofinish.wording import did_you_mean, unknown_name

_NETWORK = re.compile(r"^@register_model\ndef (\w+)\(", re.MULTILINE)
"""Network of timm in its source files, as `plan` need not import it."""


def check_paths(params: Params, references: Path = Path("reference")) -> Iterator[ConfigProblem]:
    """Yield the paths that can't be used, and the names that reference/ lacks."""
    project = project_root().resolve()
    for name, dataset in params.datasets.items():
        for place in dataset.paths():
            key, path = ("datasets", name, *place.key), place.path
            is_of_kind = {"folder": path.is_dir, "CSV file": path.is_file}
            if not is_of_kind.get(place.kind, path.exists)():
                problem = f"no such {place.kind} ({path}): create it, or correct the path"
                yield ConfigProblem(key, problem, place.given)
            elif not dataset.is_downloaded and path.resolve() in (project, *project.parents):
                problem = "this folder contains the project: name one with only the samples"
                yield ConfigProblem(key, problem, place.given)
    sections: dict[str, Mapping[str, Any]] = {
        "scripts": params.scripts,
        "experiments": params.experiments,
        "datasets": params.datasets,
    }
    for section, entries in sections.items():
        for name, entry in entries.items():
            for number, dep in enumerate(getattr(entry, "deps", ())):
                path = in_project(dep)
                if not path.exists():
                    problem = f"no such file or folder ({path}): create it, or correct the path"
                    yield ConfigProblem((section, name, "deps", number), problem, dep)
    chosen = params.comparing.references
    if isinstance(chosen, str):  # "all" or "none"
        return
    folders = references.iterdir() if references.is_dir() else ()
    machines = sorted(path.name for path in folders if path.is_dir())
    for number, name in enumerate(chosen):
        if name not in machines:
            problem = f"{references}/ has no folder yet"
            if machines:
                problem = unknown_name("folder", name, machines)
            yield ConfigProblem(("compare", "references", number), problem, name)


def check_custom_code_calls(params: Params) -> Iterator[ConfigProblem]:
    for path, code in params.custom_code.items():
        reference, arguments = code.reference, code.arguments
        if problem := reference.problem():
            yield ConfigProblem(path, problem, f"{reference.module}:{reference.name}")
            continue
        if reference.module == TIMM and (problem := network_problem(reference.name)):
            yield ConfigProblem(path, problem, f"{TIMM}:{reference.name}")
        signature = reference.takes()
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
            problem = f"{reference.name} in {reference.module} needs {name}: add this argument"
            yield ConfigProblem((*path, name), problem)


def network_problem(name: str) -> str | None:
    """Return why timm has no such network, or None. The part after a dot names weights."""
    network, names_of_files = name.partition(".")[0], _networks_of_timm()
    if not names_of_files or any(network in names for names in names_of_files.values()):
        return None
    if any(f"'{network}'" in file.read_text(encoding="utf-8") for file in names_of_files):
        return None  # an old name
    networks = [name for names in names_of_files.values() for name in names]
    hint = did_you_mean(network, networks)
    return f"timm has no network {network};{hint} timm.list_models() lists all"


@cache
def _networks_of_timm() -> dict[Path, list[str]]:
    package = file_of_module(f"{TIMM}.models")
    if package is None:
        return {}
    files = sorted(package.parent.glob("*.py"))
    return {file: _NETWORK.findall(file.read_text(encoding="utf-8")) for file in files}


def _offered(code: CallsCode, signature: Signature) -> frozenset[str]:
    """Return the arguments that photofinish passes if they are accepted."""
    if isinstance(code, CustomModel):
        return GIVEN_TO_NETWORKS
    if isinstance(code, CustomDataset):
        return GIVEN_TO_DATASETS
    names = signature.names[: code.positional_arguments]
    if signature.is_class and not isinstance(code, Optimizer | Schedule):
        names = ()  # the class's instance is called with them
    if isinstance(code, Schedule):
        names = (*names, *GIVEN_TO_SCHEDULES)
    if isinstance(code, BatchTransformSettings):
        names = (*names, *GIVEN_TO_BATCH_TRANSFORMS)
    if code.reference.module == TORCHMETRICS:
        names = (*names, *GIVEN_TO_TORCHMETRICS)
    return frozenset(names)
