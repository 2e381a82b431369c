"""What `learned/` holds for people to look at. Its time is no part of the job's."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from photofinish.batches.batches import Batches
from photofinish.datasets.packed import Manifest
from photofinish.files import write_bytes_atomically, write_text_atomically
from photofinish.results import records
from photofinish.training_stage.image_grid import draw_grid
from photofinish.training_stage.summary import summarise


def write_views(folder: Path, network: nn.Module, training: Batches, manifest: Manifest) -> None:
    """The first batch of the first epoch as the network got it, and the network's summary."""
    images, labels = next(iter(training.shuffled(0)))
    names = [manifest.class_names[label] for label in labels.tolist()]
    write_bytes_atomically(folder / records.FIRST_BATCH, draw_grid(images, names, (manifest.mean, manifest.std)))
    write_text_atomically(folder / records.SUMMARY, summarise(network, manifest.shape))
