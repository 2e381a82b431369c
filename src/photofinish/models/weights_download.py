"""Fetch the published weights that experiments start from, checked against the sha256 that torchvision or the Hugging
Face hub gives."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path, PurePosixPath

from photofinish.data.fetching import Fetcher
from photofinish.errors import MistakeError, UserError
from photofinish.files import sha256_of_file, whole_folder, write_text_atomically
from photofinish.own_code import TIMM
from photofinish.params.networks import RECORD, FetchedWeights, InitialWeights, PublishedWeights, WeightsPlan

SHA256_PREFIX = re.compile(r"-([0-9a-f]{8,})\.pth$")
"""What the names of torchvision's files end in."""


def download_weights(plan: WeightsPlan, folder: Path) -> None:
    """A folder an experiment, so that each training stage depends on just its own; all of them, or none."""
    fetcher = Fetcher(plan.mirror)
    with whole_folder(folder) as unfinished:
        for name, wanted in plan.experiments.items():
            own_folder = unfinished / name
            own_folder.mkdir()
            record = InitialWeights(published=_fetched(wanted, own_folder, fetcher) if wanted else None)
            write_text_atomically(own_folder / RECORD, record.model_dump_json(indent=2) + "\n")


def _fetched(wanted: PublishedWeights, folder: Path, fetcher: Fetcher) -> FetchedWeights:
    if wanted.model.startswith(f"{TIMM}:"):
        url, file, sha256 = _in_hub(wanted, is_mirrored=bool(fetcher.mirror))
    else:
        url, file, sha256 = _of_torchvision(wanted)
    fetcher.fetch([url], folder / file, where=f"weights/{file}", sha256_prefix=sha256)
    return FetchedWeights(**wanted.model_dump(), file=file, sha256=sha256_of_file(folder / file))


def _of_torchvision(wanted: PublishedWeights) -> tuple[str, str, str]:
    """The address, the file's name and what its sha256 starts with."""
    from torchvision.models import get_model_weights  # takes seconds to import, and only few ask for weights

    url: str = get_model_weights(wanted.model)[wanted.weights].url
    file = PurePosixPath(url).name
    prefix = SHA256_PREFIX.search(file)
    assert prefix is not None  # a test holds all of torchvision's names to it
    return url, file, prefix[1]


def _in_hub(wanted: PublishedWeights, *, is_mirrored: bool) -> tuple[str, str, str | None]:
    """The same of timm's: safetensors alone, which hold numbers and no programs."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url  # timm has it
    from timm import get_pretrained_cfg

    config = None
    with suppress(RuntimeError):  # of a tag that there isn't
        config = get_pretrained_cfg(wanted.model.partition(":")[2])
    in_hub = (config and config.hf_hub_filename) or "model.safetensors"
    if not (config and config.hf_hub_id and in_hub.endswith(".safetensors")) or config.custom_load:
        raise MistakeError(
            f"timm has no weights of {wanted.model} as safetensors on the Hugging Face hub: leave pretrained out, or "
            f"name others by their tag, such as timm:resnet18.a1_in1k (timm.list_pretrained() has all)"
        )
    file = f"{PurePosixPath(config.hf_hub_id).name}.safetensors"
    url = hf_hub_url(config.hf_hub_id, in_hub, endpoint=os.environ.get("HF_ENDPOINT"))
    if is_mirrored:
        return url, file, None
    try:
        return url, file, get_hf_file_metadata(url).etag
    except Exception as error:  # of huggingface_hub's, or of the library that it asks with
        raise UserError(f"can't ask for {url}: {error}. A mirror may have it as weights/{file}") from error
