"""Read back what `plan` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from photofinish.errors import UserError
from photofinish.hosts import CpuHost, GpuHost
from photofinish.params import Dataset, Experiment

_ModelT = TypeVar("_ModelT", bound=BaseModel)


def read_experiment(path: Path) -> Experiment:
    return _read(path, Experiment)


def read_dataset(path: Path) -> Dataset:
    return _read(path, Dataset)


def read_cpu_host(path: Path) -> CpuHost:
    return _read(path, CpuHost)


def read_gpu_host(path: Path) -> GpuHost:
    return _read(path, GpuHost)


def _read(path: Path, schema: type[_ModelT]) -> _ModelT:
    try:
        return schema.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} is not a plan that can be read: run `dvc repro plan` ({error})") from error
