"""Every input path gives the same batches, bit for bit, in an order that the seed and the epoch decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from photofinish.batches import Batch, Batches, LoaderBatches, Normaliser, ResidentBatches, steps_per_epoch
from photofinish.datasets.packed import PackedSplit
from photofinish.devices import CPU

IMAGES = 22
WORKERS = pytest.mark.parametrize("workers", [None, 0, 2], ids=["resident", "loader", "loader with 2 workers"])


def numbered_batches(workers: int | None, *, batch_size: int = 5, seed: int = 0) -> Batches:
    """Noise, each image labelled with its own number; no workers at all means resident."""
    images = np.random.default_rng(0).integers(0, 256, size=(IMAGES, 3, 4, 4), dtype=np.uint8)
    normalise = Normaliser((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    arguments: Any = (images, np.arange(IMAGES), normalise, batch_size, seed, CPU)
    return (
        ResidentBatches(*arguments) if workers is None else LoaderBatches(*arguments, workers=workers, pin_memory=True)
    )


def numbers(batches: Batches, epoch: int) -> list[int]:
    return [number for _, labels in batches.shuffled(epoch) for number in labels.tolist()]


def both_passes(batches: Batches) -> list[Batch]:
    return [*batches.shuffled(3), *batches.in_order()]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_gives_the_resident_batches_bit_for_bit_in_the_same_order(workers: int) -> None:
    resident, loaded = both_passes(numbered_batches(None)), both_passes(numbered_batches(workers))
    assert len(resident) == len(loaded) == 10
    for (images, labels), (loaded_images, loaded_labels) in zip(resident, loaded, strict=True):
        assert torch.equal(images, loaded_images)
        assert torch.equal(labels, loaded_labels)
        assert images.dtype == loaded_images.dtype == torch.float32


@WORKERS
def test_every_image_comes_exactly_once_an_epoch(workers: int | None) -> None:
    batches = numbered_batches(workers)
    assert sorted(numbers(batches, epoch=0)) == list(range(IMAGES))
    assert [len(labels) for _, labels in batches.shuffled(0)] == [5, 5, 5, 5, 2]


@pytest.mark.parametrize("workers", [None, 0], ids=["resident", "loader"])
def test_for_evaluation_the_images_come_in_their_stored_order(workers: int | None) -> None:
    labels = [label for _, labels in numbered_batches(workers).in_order() for label in labels.tolist()]
    assert labels == list(range(IMAGES))


def test_the_order_depends_on_the_seed_and_the_epoch_and_on_nothing_else() -> None:
    order = numbers(numbered_batches(None), epoch=4)
    torch.manual_seed(1)
    batches = numbered_batches(None, batch_size=7)
    numbers(batches, epoch=0)
    assert numbers(batches, epoch=4) == order
    assert numbers(batches, epoch=5) != order
    assert numbers(numbered_batches(None, seed=1), epoch=4) != order


@WORKERS
def test_making_batches_draws_nothing_from_the_networks_random_stream(workers: int | None) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    both_passes(numbered_batches(workers))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_image_is_normalised_by_the_mean_and_deviation_of_its_channels() -> None:
    images = np.random.default_rng(1).integers(0, 256, size=(2, 3, 4, 4), dtype=np.uint8)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    expected = (images / 255.0 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert Normaliser(mean, std)(torch.from_numpy(images)).numpy() == pytest.approx(expected, abs=1e-6)


def test_the_training_part_is_normalised_to_mean_0_and_deviation_1(packed_split: PackedSplit) -> None:
    manifest = packed_split.manifest
    images = Normaliser(manifest.mean, manifest.std)(torch.from_numpy(np.array(packed_split.images("train"))))
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std(correction=0).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("batch_size", "steps"), [(1, 22), (5, 5), (11, 2), (22, 1), (100, 1)])
def test_the_steps_of_an_epoch_include_a_last_smaller_batch(batch_size: int, steps: int) -> None:
    batches = numbered_batches(None, batch_size=batch_size)
    assert steps_per_epoch(batches) == len(list(batches.shuffled(0))) == steps
