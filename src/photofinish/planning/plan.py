"""Write the plan: one file for each experiment, data set, device and stage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from photofinish.config.base import CallsCode
from photofinish.config.compare import ComparePlan
from photofinish.config.datasets import CustomDataset, DatasetPlan
from photofinish.config.devices import BudgetPlan
from photofinish.config.experiment import ExperimentPlan, custom_code_of, on_cpu, step_settings
from photofinish.config.loader import Params
from photofinish.config.losses_and_metrics import MetricsPlan
from photofinish.config.networks import WeightsPlan, published_weights
from photofinish.config.scripts import Script, ScriptPlan
from photofinish.custom.code_text import keep_hashes, sha256_of_code
from photofinish.custom.imports import custom_code_hashes, name_of, script_hashes
from photofinish.data.local_files import files_below, sha256_of_local_files, state_of_file
from photofinish.files import (
    LARGE_FILE_BYTES,
    found,
    kept_copy,
    project_root,
    sha256_of_bytes,
)
from photofinish.machine.fingerprint import Machine, fingerprint
from photofinish.planning.source_code import stage_code

_MADE = (
    *("data/plan", "data/raw", "data/splits", "data/weights", "results", "report", "metrics"),
    *("plots", "mlruns", "mlflow.db", "dvc.lock"),
)
"""Paths that the pipeline writes. They count only if `deps` names them, or a folder in them."""
_BY_CONTENT = ".py", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg"
"""Code and settings. A folder may hold millions of other files, too many to read."""


def write_plan(
    params: Params,
    folder: Path,
    stages: Path,
    machines: Mapping[str, Machine] | None = None,
    results: Path = Path("results"),
) -> None:
    """Write the files that changed, and remove files that params.yaml no longer needs.

    This runs at every `dvc repro`, since DVC sees neither the machine nor local images and sources.
    """
    keep_results_of(params.scripts, results)
    cpu_host, gpu_host = fingerprint(params.devices, machines)
    plans = _plans(params, stages) | {"hosts/cpu": cpu_host, "hosts/gpu": gpu_host}
    paths = {folder / f"{name}.json": plan for name, plan in plans.items()}
    for path, plan in paths.items():
        text = plan.model_dump_json(indent=2) + "\n"
        if not path.is_file() or path.read_bytes() != text.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())  # without Windows' line endings
    keep_hashes()
    for former in folder.glob("*/*"):
        if former.is_file() and former not in paths:
            former.unlink()


def keep_results_of(scripts: Iterable[str], results: Path) -> None:
    """Copy the results of scripts. An earlier one stays if a script fails again."""
    for name in scripts:
        for folder in results.glob(f"{name}/*/measured"):
            with suppress(OSError):  # a full disk
                shutil.copytree(folder, kept_copy(folder), dirs_exist_ok=True)


def _plans(params: Params, stages: Path) -> dict[str, BaseModel]:
    local_files = sha256_of_local_files(params.datasets)
    scripts = {name: script_plan(name, one) for name, one in params.scripts.items()}
    weights = {name: published_weights(one.model) for name, one in params.experiments.items()}
    plans: dict[str, BaseModel] = {
        "compare": ComparePlan(
            **dict(params.comparing),
            experiments=tuple(params.experiments),
            scripts=tuple(scripts.values()),
        ),
        "budget": BudgetPlan(
            **params.comparing.prices.model_dump(include={"currency", "cpu_hour", "gpu_hour"}),
            budget=params.comparing.budget,
        ),
        "weights": WeightsPlan(experiments=weights),
    }
    for script in stages.glob("[!_]*.py"):
        if script.stem != "plan":  # `plan` runs every time
            plans[f"code/{script.stem}"] = stage_code(script)
    for name, experiment in params.experiments.items():
        metrics, monitored = experiment.metrics, experiment.monitored_metric()
        limit_seconds = experiment.time_limit or params.devices.cpu.time_limit
        deps = dep_hashes(experiment.deps)
        elsewhere = {"metrics": (), "time_limit": None, "deps": ()}
        experiment = experiment.model_copy(update=elsewhere)
        parts = custom_code_of(experiment) | ({("monitor",): monitored} if monitored else {})
        plan = partial(ExperimentPlan, monitored=monitored)
        code = _hashes(parts.values()) | deps
        plans[f"experiments/{name}"] = plan(**dict(experiment), custom_code=code)
        plans[f"on_cpu/{name}"] = plan(
            **dict(on_cpu(experiment)), custom_code=code, time_limit_seconds=limit_seconds
        )
        steps = step_settings(experiment)
        judged = [monitored] if monitored else []  # validation computes it
        code = _hashes([*custom_code_of(steps).values(), *judged]) | deps
        for kind, each in {"steps": steps, "steps_on_cpu": on_cpu(steps)}.items():
            plans[f"{kind}/{name}"] = plan(**dict(each), custom_code=code)
        code = custom_code_hashes([metric.reference for metric in metrics])
        plans[f"metrics/{name}"] = MetricsPlan(metrics=metrics, custom_code=code)
    for name, dataset in params.datasets.items():
        code = {}
        if isinstance(dataset, CustomDataset):
            code = custom_code_hashes([dataset.reference]) | dep_hashes(dataset.deps)
        plans[f"datasets/{name}"] = DatasetPlan(
            name=name, dataset=dataset, local_files=local_files.get(name), custom_code=code
        )
    plans |= {f"scripts/{name}": script for name, script in scripts.items()}
    return plans


def _hashes(parts: Iterable[CallsCode]) -> dict[str, str]:
    """Hash custom code. Classes of PyTorch need none: the device's file has PyTorch's version."""
    return custom_code_hashes([part.reference for part in parts if part.is_custom])


def script_plan(name: str, script: Script) -> ScriptPlan:
    """Return the plan of a script, with a hash of each file that it depends on.

    Small files are hashed by content, and so are the imports of Python files. Large ones, and
    data in folders, are hashed by size and time.
    """
    files = {}
    for dep in script.deps:
        path = found(dep)
        if path.is_dir():
            states = []
            for file in _files_below(path):
                is_code = file.suffix in _BY_CONTENT
                state = _hash(file) if is_code else state_of_file(file.parent, file.name)
                states.append(f"{file.relative_to(path).as_posix()}\0{state}")
            files[dep] = sha256_of_bytes("\n".join(states).encode(errors="surrogateescape"))
        elif path.suffix == ".py":
            files |= script_hashes(path)
        else:
            files[dep] = _hash(path)
    settings = script.model_dump(exclude={"deps"})
    return ScriptPlan(**settings, name=name, files=dict(sorted(files.items())))


def dep_hashes(deps: Iterable[str]) -> dict[str, str]:
    """Return the hash of each file, and of each file in a folder: of all content but comments.

    Files are named by their path from the project's folder, or an absolute one if outside.
    """
    hashes = {}
    for dep in deps:
        path = found(dep)
        for file in _files_below(path) if path.is_dir() else [path]:
            hashes[name_of(file)] = sha256_of_code(file)
    return hashes


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield a folder's files, but hidden, compiled and the pipeline's."""
    here = Path.cwd(), project_root()
    made = tuple(os.path.relpath(root / each, folder) + os.sep for root in here for each in _MADE)
    for name in files_below(folder):
        if (name + os.sep).startswith(made):
            continue
        is_hidden = any(part.startswith((".", "__pycache__")) for part in Path(name).parts)
        if not is_hidden and (folder / name).is_file():  # no broken link
            yield folder / name


def _hash(path: Path) -> str:
    """Return the sha256 of a small file, or of the size and time of a large one.

    The time is another in an experiment's copy, so its script runs again, as after a change.
    """
    if path.stat().st_size <= LARGE_FILE_BYTES:
        return sha256_of_code(path)
    return sha256_of_bytes(state_of_file(path.parent, path.name).encode(errors="surrogateescape"))
