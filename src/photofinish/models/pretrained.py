"""What `download-weights` leaves for an experiment, read back and checked. No torch here."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from photofinish.errors import UserError
from photofinish.files import sha256_of_file
from photofinish.params.networks import FetchedWeights, InitialWeights, Model, TorchvisionModel

RECORD = "weights.json"
_ADVICE = "run `dvc repro --force download-weights`"


def fetched_weights(model: Model, folder: Path | None) -> FetchedWeights | None:
    """Those that `model` asks for; where it asks for none, nobody need have been there."""
    if not isinstance(model, TorchvisionModel) or model.weights is None:
        return None
    if folder is None:
        raise UserError(f"model {model.name} starts from {model.weights}: give its folder with --weights")
    path = folder / RECORD
    try:
        published = InitialWeights.model_validate_json(path.read_bytes()).published
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} can't be read: {_ADVICE} ({error})") from error
    if published is None or (published.model, published.weights) != (model.name, model.weights):
        raise UserError(f"{path} isn't of {model.name}'s {model.weights}: {_ADVICE}")
    return published


def checked_file(fetched: FetchedWeights, folder: Path) -> Path:
    """The weights' file, which has the sha256 that its record says."""
    path = folder / fetched.file
    if not path.is_file() or sha256_of_file(path) != fetched.sha256:
        raise UserError(f"{path} is missing or damaged: {_ADVICE}")
    return path
