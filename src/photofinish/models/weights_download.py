"""Download the published weights that experiments start from: torchvision's by torch.hub, timm's from its hub."""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath
from urllib.parse import urlparse

from photofinish.config.networks import RECORD, FetchedWeights, InitialWeights, PublishedWeights, WeightsPlan
from photofinish.custom_code import TIMM
from photofinish.errors import ConfigError, UserError
from photofinish.files import sha256_of_file, whole_folder, write_text_atomically


def download_weights(plan: WeightsPlan, folder: Path) -> None:
    """Write a folder per experiment, so that each training stage depends on its own alone; all of them, or none."""
    with whole_folder(folder) as unfinished:
        for name, wanted in plan.experiments.items():
            own_folder = unfinished / name
            own_folder.mkdir()
            record = InitialWeights(published=_fetched(wanted, own_folder) if wanted else None)
            write_text_atomically(own_folder / RECORD, record.model_dump_json(indent=2) + "\n")


def _fetched(wanted: PublishedWeights, folder: Path) -> FetchedWeights:
    try:
        if wanted.model.startswith(f"{TIMM}:"):
            file, cached = _from_timms_hub(wanted)
        else:
            file, cached = _from_torch_hub(wanted)
    except UserError:
        raise
    except Exception as error:  # each library that downloads has its own errors
        raise UserError(
            f"can't download the weights {wanted.weights} of {wanted.model}: {error}. Without internet, copy the file "
            f"into the cache of torch.hub (TORCH_HOME), for timm's networks into that of huggingface_hub (HF_HOME)"
        ) from error
    shutil.copyfile(cached, folder / file)
    return FetchedWeights(**wanted.model_dump(), file=file, sha256=sha256_of_file(folder / file))


def _from_torch_hub(wanted: PublishedWeights) -> tuple[str, Path]:
    """Return the file's name, and its place in torch.hub's cache; its sha256 is checked against its name."""
    import torch
    from torchvision.models import get_model_weights

    weights = get_model_weights(wanted.model)[wanted.weights]
    weights.get_state_dict(progress=True, check_hash=True)
    file = PurePosixPath(urlparse(weights.url).path).name
    return file, Path(torch.hub.get_dir()) / "checkpoints" / file


def _from_timms_hub(wanted: PublishedWeights) -> tuple[str, Path]:
    """Return the file's name, and its place in the Hugging Face hub's cache."""
    from huggingface_hub import hf_hub_download
    from timm import get_pretrained_cfg, is_model_pretrained

    name = wanted.model.partition(":")[2]
    config = get_pretrained_cfg(name) if is_model_pretrained(name) else None
    in_hub = (config and config.hf_hub_filename) or "model.safetensors"
    if not (config and config.hf_hub_id and in_hub.endswith(".safetensors")) or config.custom_load:
        raise ConfigError(
            f"timm has no weights of {wanted.model} as safetensors on the Hugging Face hub: leave pretrained out, or "
            f"name others by their tag, such as timm:resnet18.a1_in1k (timm.list_pretrained() has all)"
        )
    cached = hf_hub_download(config.hf_hub_id, in_hub, endpoint=os.environ.get("HF_ENDPOINT"))
    return f"{PurePosixPath(config.hf_hub_id).name}.safetensors", Path(cached)
