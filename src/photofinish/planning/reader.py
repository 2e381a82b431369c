"""Read back what `plan` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from photofinish.errors import UserError

_ModelT = TypeVar("_ModelT", bound=BaseModel)


def read_plan(path: Path, schema: type[_ModelT]) -> _ModelT:
    try:
        return schema.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} is not a plan that can be read: run `dvc repro plan` ({error})") from error
