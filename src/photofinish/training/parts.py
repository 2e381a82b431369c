"""Parts of a split, for training and evaluation."""

from __future__ import annotations

from photofinish.data import PartName
from photofinish.data.packed import PackedSplit
from photofinish.training.batches import Normaliser, Part


def has_live_inputs(split: PackedSplit) -> bool:
    """Return True if inputs are not packed, but read from the data set in each epoch."""
    return split.manifest.decode == "each_epoch"


def part_of(split: PackedSplit, name: PartName) -> Part:
    """Return a part, either packed or read from the data set."""
    manifest = split.manifest
    normalise = Normaliser(manifest.mean, manifest.std, len(manifest.shape))
    if not has_live_inputs(split):
        return Part(name, split.images(name), split.labels(name), normalise)
    # Imported here, so that other trainings do not import the code that reads data sets.
    from photofinish.data.live import LiveSamples

    return Part(name, None, split.labels(name), normalise, LiveSamples(split, name))
