"""Every input path gives bit-identical batches; order and augmentation by seed and epoch."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import MakeExperiment

from photofinish.config.experiment import Augmentation
from photofinish.data import PartName
from photofinish.training.batches import Batch, Batches, BatchPlan, Normaliser, Part, seed_epoch
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU

MakeBatches = Callable[..., Batches]
COUNT, SHAPE = 22, (3, 6, 5)
IMAGES = np.random.default_rng(0).integers(1, 256, size=(COUNT, *SHAPE), dtype=np.uint8)
"""Noise without black pixels, which a crop's border has."""
NORMALISE = Normaliser((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
AUGMENTED = {"flip": 0.5, "crop_padding": 2}
RESIDENT, LOADER = {"name": "resident"}, {"name": "loader"}
AHEAD = LOADER | {"workers": 2, "prefetch_factor": 5, "non_blocking": True, "pin_memory": True}
PERSISTENT = LOADER | {"workers": 2, "persistent_workers": True, "prefetch_factor": 1}


@pytest.fixture
def numbered(make_experiment: MakeExperiment) -> MakeBatches:
    """Make batches of images labelled with their rows: `numbered("validation", batch_size=5)`."""

    def make(name: PartName = "train", *process: int, **settings: Any) -> Batches:
        part = Part(name, IMAGES, np.arange(COUNT), NORMALISE)
        return make_batches(make_experiment(**settings), part, CPU, *process)

    return make


@pytest.fixture(params=[RESIDENT, LOADER], ids=["resident", "loader"])
def on_each_path(request: pytest.FixtureRequest, numbered: MakeBatches) -> MakeBatches:
    return partial(numbered, input=request.param)


def numbers(batches: Batches, epoch: int) -> list[int]:
    return [number for _, labels in batches.train_batches(epoch) for number in labels.tolist()]


def three_passes(batches: Batches) -> list[Batch]:
    return [*batches.train_batches(3), *batches.eval_batches(), *batches.train_batches(4)]


def by_label(batches: Batches, epoch: int) -> dict[int, torch.Tensor]:
    return {
        int(label): image
        for images, labels in batches.train_batches(epoch)
        for image, label in zip(images, labels, strict=True)
    }


def assert_same_batches(some: list[Batch], others: list[Batch]) -> None:
    for (images, labels), (other_images, other_labels) in zip(some, others, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)
        assert images.dtype == other_images.dtype == torch.float32


@pytest.mark.parametrize(
    ("source", "augmentation"),
    [(LOADER, {}), (LOADER, AUGMENTED), (AHEAD, AUGMENTED), (PERSISTENT, AUGMENTED)],
)
def test_the_loader_gives_the_resident_batches_bit_for_bit_in_the_same_order(
    numbered: MakeBatches, source: dict[str, Any], augmentation: dict[str, Any]
) -> None:
    resident, loaded = (
        three_passes(numbered(input=each, batch_size=5, augmentation=augmentation))
        for each in (RESIDENT, source)
    )
    assert len(resident) == 15
    assert_same_batches(resident, loaded)


def worked_out_slowly(row: int, draws: torch.Tensor, padding: int) -> npt.NDArray[np.uint8]:
    """Augment an image pixel by pixel."""
    channels, height, width = SHAPE
    result = np.zeros(SHAPE, dtype=np.uint8)
    top, left, mirrored = draws[row].tolist()
    for channel, y, x in np.ndindex(channels, height, width):
        from_y, from_x = y + top - padding, x + left - padding
        if 0 <= from_y < height and 0 <= from_x < width:
            to_x = width - 1 - x if mirrored else x
            result[channel, y, to_x] = IMAGES[row][channel, from_y, from_x]
    return result


@pytest.mark.parametrize(("flip", "padding"), [(0.5, 2), (0.5, 0), (1.0, 0), (0.0, 2), (0.0, 9)])
def test_images_are_augmented_as_worked_out_pixel_by_pixel(
    numbered: MakeBatches, flip: float, padding: int
) -> None:
    augmentation = Augmentation(flip=flip, crop_padding=padding)
    draws = BatchPlan(COUNT, 1, seed=0, augmentation=augmentation).draws(3, torch.arange(COUNT))
    assert draws is not None
    for row, image in by_label(numbered(augmentation=augmentation, batch_size=5), 3).items():
        expected = NORMALISE(torch.from_numpy(worked_out_slowly(row, draws, padding)))
        assert torch.equal(image, expected)
        assert image.is_contiguous()


def test_a_sample_that_a_sampler_draws_again_is_augmented_again_and_equally_on_each_path(
    numbered: MakeBatches,
) -> None:
    settings = {"augmentation": AUGMENTED, "sampler": {"name": "balanced"}, "batch_size": 5}
    resident, loaded = (
        [*numbered(input=source, **settings).train_batches(3)] for source in (RESIDENT, LOADER)
    )
    assert_same_batches(resident, loaded)
    labels = {int(label) for _, labels in resident for label in labels}
    images = {image.numpy().tobytes() for images, _ in resident for image in images}
    assert len(labels) < len(images)


def test_validation_images_and_images_in_order_are_not_augmented(on_each_path: MakeBatches) -> None:
    settings = {"augmentation": {"flip": 1.0, "crop_padding": 3}, "batch_size": 5}
    expected = NORMALISE(torch.from_numpy(IMAGES))
    for name in ("train", "validation"):
        batches = on_each_path(name, **settings).eval_batches()
        assert torch.equal(torch.cat([images for images, _ in batches]), expected)
    for row, image in by_label(on_each_path("validation", **settings), 0).items():
        assert torch.equal(image, expected[row])


@pytest.mark.parametrize("source", [RESIDENT, LOADER, PERSISTENT])
def test_a_pass_that_was_left_halfway_leaves_no_trace_in_the_next(
    numbered: MakeBatches, source: dict[str, Any]
) -> None:
    settings = {"input": source, "batch_size": 2, "augmentation": AUGMENTED}
    fresh, used = (numbered(**settings) for _ in range(2))
    left_halfway = used.train_batches(0)
    next(left_halfway)
    next(used.eval_batches())
    assert_same_batches(list(fresh.train_batches(1)), list(used.train_batches(1)))


def test_the_shares_of_processes_make_up_each_batch(on_each_path: MakeBatches) -> None:
    # of 22 images: the last batch has but one
    whole = [labels.tolist() for _, labels in on_each_path(batch_size=7).train_batches(2)]
    first, second = (
        list(on_each_path("train", rank, 2, batch_size=7).train_batches(2)) for rank in (0, 1)
    )
    assert [labels.tolist() for _, labels in first] == [batch[::2] for batch in whole]
    assert [labels.tolist() for _, labels in second] == [batch[1::2] for batch in whole]
    assert second[-1][0].shape == (0, *SHAPE)
    assert second[-1][0].dtype == torch.float32


def test_validation_has_a_batch_size_of_its_own_if_asked(numbered: MakeBatches) -> None:
    own = {"batch_size": 5, "validation_batch_size": 20}
    sizes = [len(labels) for _, labels in numbered("validation", **own).eval_batches()]
    assert sizes == [20, 2]
    assert numbered(**own).batch_size == 5


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_items_that_are_no_images_keep_their_type_and_whole_numbers_their_batch_size(
    make_experiment: MakeExperiment, dtype: type[Any]
) -> None:
    items = np.arange(40, dtype=dtype).reshape(10, 4)
    part = Part("validation", items, np.arange(10), Normaliser((), ()))
    on_cpu, on_accelerator = (
        make_batches(make_experiment(batch_size=5), part, device)
        for device in (CPU, torch.device("meta"))
    )
    sizes = on_cpu.batch_size, on_accelerator.batch_size
    assert sizes == ((5, 5) if dtype is np.int64 else (4 << 20 >> 4, 64 << 20 >> 4))
    assert torch.cat([items for items, _ in on_cpu.eval_batches()]).numpy().dtype == dtype


def test_the_order_depends_on_the_seed_and_the_epoch_and_on_nothing_else(
    numbered: MakeBatches,
) -> None:
    order = numbers(numbered(), epoch=4)
    torch.manual_seed(1)
    batches = numbered(batch_size=7)
    numbers(batches, epoch=0)
    assert numbers(batches, epoch=4) == order
    assert numbers(batches, epoch=5) != order
    assert numbers(numbered(seed=1), epoch=4) != order


def test_a_network_draws_by_seed_epoch_and_rank_what_it_drew_in_earlier_versions() -> None:
    drawn = []
    for place in ((0, 0), (0, 1), (3, 0), (0, 0, 1)):
        seed_epoch(*place)
        drawn.append(torch.randint(10**6, (1,)).item())
    assert drawn == [369066, 877346, 596075, 351075]


def test_making_batches_draws_nothing_from_any_random_stream_of_the_process(
    on_each_path: MakeBatches,
) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    three_passes(on_each_path(augmentation=AUGMENTED))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]


def test_images_are_normalised_by_channel_floats_by_column_and_other_items_not() -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    expected = (IMAGES / 255.0 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert NORMALISE(torch.from_numpy(IMAGES)).numpy() == pytest.approx(expected, abs=1e-6)
    floats, numbers = torch.tensor([[6.0, 9.0]]), torch.tensor([[6, 9]])
    assert Normaliser((2.0, 3.0), (4.0, 2.0), dimensions=1)(floats).tolist() == [[1.0, 3.0]]
    assert floats.tolist() == [[6.0, 9.0]]
    assert Normaliser((), ())(numbers) is numbers
