"""Download published weights: torchvision's by torch.hub, timm's from the Hugging Face hub."""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath
from urllib.parse import urlparse

from photofinish.config.networks import (
    RECORD,
    FetchedWeights,
    InitialWeights,
    PublishedWeights,
    WeightsPlan,
)
from photofinish.custom.reference import TIMM
from photofinish.errors import UserError
from photofinish.files import sha256_of_file, write_text_atomically


def download_weights(plan: WeightsPlan, folder: Path) -> None:
    """Write a folder for each experiment, so that training depends on its own weights only."""
    folder.mkdir(parents=True, exist_ok=True)
    if not plan.experiments:  # of an empty folder, DVC warns
        write_text_atomically(folder / "none.txt", "No experiment needs weights.\n")
    for name, wanted in plan.experiments.items():
        own_folder = folder / name
        own_folder.mkdir(parents=True, exist_ok=True)
        record = InitialWeights(published=_fetched(wanted, own_folder) if wanted else None)
        write_text_atomically(own_folder / RECORD, record.model_dump_json(indent=2) + "\n")


def _fetched(wanted: PublishedWeights, folder: Path) -> FetchedWeights:
    is_timm = wanted.model.startswith(f"{TIMM}:")
    try:
        file, cached = _from_hugging_face(wanted) if is_timm else _from_torch_hub(wanted)
    except Exception as error:  # each downloading library raises its own errors
        raise UserError(
            f"can't download the weights {wanted.weights} of {wanted.model}: {error}. "
            f"Without internet, copy the file into torch.hub's cache (TORCH_HOME), "
            f"or for timm's networks into huggingface_hub's cache (HF_HOME)"
        ) from error
    shutil.copyfile(cached, folder / file)
    sha256 = sha256_of_file(folder / file)
    return FetchedWeights(**wanted.model_dump(), file=file, sha256=sha256)


def _from_torch_hub(wanted: PublishedWeights) -> tuple[str, Path]:
    """Return the file's name and its path in the cache. The name contains the sha256 to check."""
    import torch
    from torchvision.models import get_model_weights

    weights = get_model_weights(wanted.model)[wanted.weights]
    weights.get_state_dict(progress=True, check_hash=True)
    file = PurePosixPath(urlparse(weights.url).path).name
    return file, Path(torch.hub.get_dir()) / "checkpoints" / file


def _from_hugging_face(wanted: PublishedWeights) -> tuple[str, Path]:
    from huggingface_hub import hf_hub_download
    from timm import get_pretrained_cfg

    config = get_pretrained_cfg(wanted.model.partition(":")[2], allow_unregistered=False)
    file = config.hf_hub_filename or "model.safetensors"
    cached = hf_hub_download(config.hf_hub_id, file, endpoint=os.environ.get("HF_ENDPOINT"))
    return f"{PurePosixPath(config.hf_hub_id).name}.safetensors", Path(cached)
