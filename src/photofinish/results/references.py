"""Records of runs on other machines, as files in reference/: whole, of a known schema, and nobody's in particular."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes, to_json, write_text_atomically
from photofinish.params.base import Name
from photofinish.results import records
from photofinish.results.epochs import EpochMetrics

SCHEMA_VERSION = 1
_SHA256 = "sha256"


class Reference(BaseModel):
    """One experiment on one device of a machine."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    schema_version: Literal[1] = 1
    machine: Name
    """the name of the folder it lies in"""
    experiment: Name
    recorded_at_unix_seconds: float
    photofinish_version: str
    training: records.Training
    timings: records.Timings
    scores: records.DeviceEvaluation
    history: tuple[EpochMetrics, ...]

    @property
    def file_name(self) -> str:
        return f"{self.experiment}.{self.training.device}.json"

    @model_validator(mode="after")
    def _is_whole_and_nobodys(self) -> Self:
        if self.timings.host_name:
            raise ValueError("it names the host it was recorded on, which nobody else should learn")
        if not len(self.history) == len(self.timings.epochs) == self.training.experiment.epochs:
            raise ValueError("it hasn't a loss and a time for each epoch of the experiment")
        return self


def write_reference(folder: Path, reference: Reference) -> Path:
    """Under reference/, with a sha256 of its content."""
    content = reference.model_dump(mode="json")
    path = folder / reference.machine / reference.file_name
    write_text_atomically(path, to_json({**content, _SHA256: _sha256(content)}))
    return path


def read_references(folder: Path, chosen: Literal["all", "none"] | Iterable[str]) -> list[Reference]:
    """Of the chosen machines, in the order of their files. A file that isn't a record as it was made is refused."""
    if chosen == "none" or not folder.is_dir():
        return []
    machines = sorted(path.name for path in folder.iterdir() if path.is_dir())
    names = machines if chosen == "all" else list(chosen)
    unknown = [name for name in names if name not in machines]
    if unknown:
        there_are = ", ".join(machines) or "none"
        raise UserError(f"compare.references names {', '.join(unknown)}; {folder}/ has no such folder ({there_are})")
    return [_read(path) for name in names for path in sorted((folder / name).glob("*.json"))]


def _read(path: Path) -> Reference:
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        version = content.get("schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is {version!r}, and this photofinish reads {SCHEMA_VERSION}")
        if content.pop(_SHA256, None) != _sha256(content):
            raise ValueError("its sha256 is not that of its content: it was damaged or changed")
        reference = Reference.model_validate_json(json.dumps(content))
        if path.parts[-2:] != (reference.machine, reference.file_name):
            raise ValueError(f"it belongs in {reference.machine}/{reference.file_name}")
    except (OSError, ValueError, ValidationError) as error:
        raise UserError(
            f"{path} is not a reference that can be read: {error}. Remove it, or set compare.references in params.yaml"
        ) from error
    return reference


def _sha256(content: dict[str, Any]) -> str:
    return sha256_of_bytes(to_json(content).encode())
