"""Parts of a split as training and evaluation read them."""

from __future__ import annotations

from photofinish.data import PartName
from photofinish.data.packed import PackedSplit
from photofinish.training.batches import Normaliser, Part


def has_live_inputs(split: PackedSplit) -> bool:
    """Return True if inputs aren't packed, but read from the data set in each epoch."""
    return split.manifest.decode == "each_epoch"


def part_of(split: PackedSplit, name: PartName) -> Part:
    """Return a part, packed or read from the data set itself."""
    manifest = split.manifest
    normalise = Normaliser(manifest.mean, manifest.std, len(manifest.shape))
    if not has_live_inputs(split):
        return Part(name, split.images(name), split.labels(name), normalise)
    # Only such a training imports what reads data sets.
    from photofinish.data.live import LiveSamples

    return Part(name, None, split.labels(name), normalise, LiveSamples(split, name))
