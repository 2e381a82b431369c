"""Source files that each stage runs and reads: it runs again when one of them changes.

Each stage depends on one file, written by `plan`, that lists them. If dvc.yaml listed them, DVC
would take 6 s instead of 1 s to see that nothing changed in 15 experiments.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import RootModel

from photofinish.files import sha256_of_bytes, sha256_of_file

_EVERY_STAGE = ("errors", "files", "custom", "config", "planning/__init__", "processes", "wording")
_NETWORKS = (
    "data/__init__",
    "data/packed",
    "data/ragged",
    "machine",
    "models",
    "nested",
    "results",
)
_LIVE_DATA = (
    *("data/images", "data/live", "data/local_files", "data/local_images", "data/samples"),
    *("data/sources", "data/torchvision_source", "locks"),
)
"""Modules that read data sets, which training and evaluation may do in each epoch."""
_INFERENCE = (
    "training/__init__",
    "training/batches",
    "training/custom_step",
    "training/loading",
    "training/losses",
    "training/parts",
    "training/torch_device",
)
CODE_OF_STAGES = {
    "plan": ("data", "machine", "planning"),
    "download": ("data", "locks", "nested"),
    "split": ("data", "locks", "nested"),
    "download_weights": ("models",),
    "train": (
        *(*_NETWORKS, *_LIVE_DATA),
        *("planning/source_code", "profiling", "runs", "training"),
    ),
    "script": (
        *("data/__init__", "locks", "machine", "models/__init__", "models/custom"),
        *("models/registry", "nested", "profiling/__init__", "profiling/counting"),
        *("profiling/precision", "profiling/script_step", "results", "scripts"),
    ),
    "evaluate": (
        *_NETWORKS,
        *_LIVE_DATA,
        *_INFERENCE,
        "evaluation",
    ),
    "compare": (
        *("comparing", "data/__init__", "machine", "nested"),
        *("reporting", "results", "tracking"),
    ),
    "remote": ("remote", "machine", "planning/source_code"),
}
"""Packages and modules of photofinish that each stage runs. Tests compare them with the imports.

Training also imports `tracking`, which copies results into MLflow and does not influence them.
"""
_DATA_OF_STAGES = {"compare": ("config/tables", "reporting/templates")}
"""Folders whose files a stage reads."""
_HERE = Path(__file__).parent.parent


class StageCode(RootModel[dict[str, str]]):
    """SHA-256 of each source file of a stage, by its path."""

    @property
    def sha256(self) -> str:
        """Return the sha256 of the whole list."""
        return sha256_of_bytes(self.model_dump_json().encode())


def stage_code(script: Path) -> StageCode:
    """Return the files that a stage's script runs: the script, and those of photofinish."""
    name = f"{script.parent.name}/{script.name}"
    return StageCode({**our_code(script.stem).root, name: _sha256(script)})


def our_code(stage: str) -> StageCode:
    """Return the files of photofinish that a stage runs."""
    files = [_HERE / "__init__.py"]
    for name in (*_EVERY_STAGE, *CODE_OF_STAGES.get(stage, ())):
        path = _HERE / name
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    for name in _DATA_OF_STAGES.get(stage, ()):
        files += sorted((_HERE / name).iterdir())
    names = {path.relative_to(_HERE.parent).as_posix(): path for path in files}
    return StageCode({name: _sha256(path) for name, path in names.items()})


_sha256 = cache(sha256_of_file)
