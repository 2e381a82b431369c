"""Which builds of torch and torchvision are installed, as their version.py tells. To import them takes seconds; to
import what lists Python's packages takes as long as all else that the stage `surroundings` imports."""

from __future__ import annotations

import ast
from functools import cache
from importlib import util
from pathlib import Path

from photofinish.hardware.cpus import read_or_empty


def torch_version() -> str:
    return _version("torch")


def torchvision_version() -> str:
    return _version("torchvision")


def torch_cuda_version() -> str | None:
    """The CUDA (or ROCm) version torch was built for."""
    build = _build("torch").get("cuda") or torch_rocm_version()
    return str(build) if build else None


def torch_rocm_version() -> str | None:
    build = _build("torch").get("hip")
    return str(build) if build else None


def _version(package: str) -> str:
    return str(_build(package).get("__version__", "unknown"))


@cache
def _build(package: str) -> dict[str, object]:
    """The plain values in its version.py, which isn't run: torchvision's would import torch."""
    spec = util.find_spec(package)
    if spec is None or spec.origin is None:
        return {}
    source = read_or_empty(Path(spec.origin).parent / "version.py")
    return {
        name.id: line.value.value
        for line in ast.parse(source).body
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(line.value, ast.Constant)
        for name in (line.targets if isinstance(line, ast.Assign) else [line.target])
        if isinstance(name, ast.Name)
    }
