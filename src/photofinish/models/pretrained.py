"""What `download-weights` leaves for an experiment, read back and checked. No torch here."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from photofinish.errors import UserError
from photofinish.files import sha256_of_file
from photofinish.params.networks import FetchedWeights, InitialWeights, Model, published_weights

RECORD = "weights.json"
_ADVICE = "run `dvc repro --force download-weights`"


def fetched_weights(model: Model, folder: Path | None) -> FetchedWeights | None:
    """Those that `model` asks for; where it asks for none, nobody need have been there."""
    wanted = published_weights(model)
    if wanted is None:
        return None
    if folder is None:
        raise UserError(f"model {wanted.model} starts from {wanted.weights}: give its folder with --weights")
    path = folder / RECORD
    try:
        published = InitialWeights.model_validate_json(path.read_bytes()).published
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} can't be read: {_ADVICE} ({error})") from error
    if published is None or (published.model, published.weights) != (wanted.model, wanted.weights):
        raise UserError(f"{path} isn't of {wanted.model}'s {wanted.weights}: {_ADVICE}")
    return published


def checked_file(fetched: FetchedWeights, folder: Path) -> Path:
    """The weights' file, which has the sha256 that its record says."""
    path = folder / fetched.file
    if not path.is_file() or sha256_of_file(path) != fetched.sha256:
        raise UserError(f"{path} is missing or damaged: {_ADVICE}")
    return path
