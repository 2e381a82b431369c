"""Flips and crops are drawn evenly, from (seed, epoch, sample), and equal on every input path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import MakeExperiment

from photofinish.data import PartName
from photofinish.training.batches import Batch, Batches, BatchPlan, Normaliser, Part
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU

IMAGES, SHAPE = 22, (3, 6, 5)


@pytest.fixture(autouse=True)
def _only_what_repeats_bit_for_bit() -> Iterator[None]:
    """Torch raises on nondeterministic operations, as in training."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode(before)


def part(name: PartName = "train") -> Part:
    """Noise without black pixels, each image labelled with its own number."""
    images = np.random.default_rng(0).integers(1, 256, size=(IMAGES, *SHAPE), dtype=np.uint8)
    return Part(name, images, np.arange(IMAGES), Normaliser((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))


@pytest.fixture(
    params=[{"name": "resident"}, {"name": "loader"}, {"name": "loader", "workers": 2}], ids=str
)
def batches(
    request: pytest.FixtureRequest, make_experiment: MakeExperiment
) -> Callable[..., Batches]:
    """Make batches on each input path: `batches("validation", batch_size=5)`."""

    def make(name: PartName = "train", *process: int, **settings: Any) -> Batches:
        return make_batches(
            make_experiment(input=request.param, **settings), part(name), CPU, *process
        )

    return make


def draws_of(flip: float, padding: int, *, epoch: int) -> torch.Tensor:
    settings: Any = SimpleNamespace(flip=flip, crop_padding=padding)
    drawn = BatchPlan(IMAGES, 1, seed=0, augmentation=settings).draws(epoch)
    assert drawn is not None
    return drawn


def by_label(passed: list[Batch]) -> dict[int, torch.Tensor]:
    return {
        int(label): image
        for images, labels in passed
        for image, label in zip(images, labels, strict=True)
    }


def worked_out_slowly(row: int, draws: torch.Tensor, padding: int) -> npt.NDArray[np.uint8]:
    """Pixel by pixel."""
    channels, height, width = SHAPE
    image, result = part().images[row], np.zeros(SHAPE, dtype=np.uint8)
    top, left, mirrored = draws[row].tolist()
    for channel, y, x in np.ndindex(channels, height, width):
        from_y, from_x = y + top - padding, x + left - padding
        if 0 <= from_y < height and 0 <= from_x < width:
            to_x = width - 1 - x if mirrored else x
            result[channel, y, to_x] = image[channel, from_y, from_x]
    return result


@pytest.mark.parametrize(("flip", "padding"), [(0.5, 2), (0.5, 0), (1.0, 0), (0.0, 2), (0.0, 9)])
def test_every_input_path_gives_what_is_worked_out_pixel_by_pixel(
    batches: Callable[..., Batches], flip: float, padding: int
) -> None:
    augmentation = {"flip": flip, "crop_padding": padding}
    draws = draws_of(flip, padding, epoch=3)
    for row, image in by_label(
        list(batches(augmentation=augmentation, batch_size=5).train_batches(3))
    ).items():
        expected = part().normalise(torch.from_numpy(worked_out_slowly(row, draws, padding)))
        assert torch.equal(image, expected)
        assert image.is_contiguous()


def test_validation_images_and_images_in_order_are_left_as_they_are(
    batches: Callable[..., Batches],
) -> None:
    settings = {"augmentation": {"flip": 1.0, "crop_padding": 3}, "batch_size": 5}
    as_they_are = part().normalise(torch.from_numpy(part().images))
    for name in ("train", "validation"):
        images = torch.cat([images for images, _ in batches(name, **settings).eval_batches()])
        assert torch.equal(images, as_they_are)
    for row, image in by_label(list(batches("validation", **settings).train_batches(0))).items():
        assert torch.equal(image, as_they_are[row])
