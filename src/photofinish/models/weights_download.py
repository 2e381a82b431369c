"""Fetch the published weights that experiments start from, checked against the sha256 that torchvision gives."""

from __future__ import annotations

import re
import shutil
from pathlib import Path, PurePosixPath

from photofinish.data.fetching import Fetcher
from photofinish.files import sha256_of_file, state_folder, write_text_atomically
from photofinish.models.pretrained import RECORD
from photofinish.params.networks import FetchedWeights, InitialWeights, PublishedWeights, WeightsPlan

SHA256_PREFIX = re.compile(r"-([0-9a-f]{8,})\.pth$")
"""What the names of torchvision's files end in."""


def download_weights(plan: WeightsPlan, folder: Path) -> None:
    """A folder an experiment, so that each training stage depends on just its own; all of them, or none."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        fetcher = Fetcher(plan.mirror, state_folder() / "downloads")
        for name, wanted in plan.experiments.items():
            own_folder = unfinished / name
            own_folder.mkdir(parents=True)
            record = InitialWeights(published=_fetched(wanted, own_folder, fetcher) if wanted else None)
            write_text_atomically(own_folder / RECORD, record.model_dump_json(indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _fetched(wanted: PublishedWeights, folder: Path, fetcher: Fetcher) -> FetchedWeights:
    from torchvision.models import get_model_weights  # takes seconds to import, and only few ask for weights

    url: str = get_model_weights(wanted.model)[wanted.weights].url
    file = PurePosixPath(url).name
    prefix = SHA256_PREFIX.search(file)
    assert prefix is not None  # a test holds all of torchvision's names to it
    fetcher.fetch([url], folder / file, where=f"weights/{file}", sha256_prefix=prefix[1])
    return FetchedWeights(**wanted.model_dump(), file=file, sha256=sha256_of_file(folder / file))
