"""Every input path gives bit-identical batches, in an order drawn from seed and epoch."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeExperiment

from photofinish.data import PartName
from photofinish.training.batches import (
    Batch,
    Batches,
    Normaliser,
    Part,
)
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU

MakeBatches = Callable[..., Batches]
IMAGES = 22
AUGMENTED = {"flip": 0.5, "crop_padding": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "loader": {},
    "pinned bytes": {"pin_memory": True, "non_blocking": True, "byte_batches": True},
    "2 workers": {"workers": 2, "pin_memory": True},
    "fetching ahead": {"workers": 2, "prefetch_factor": 5, "non_blocking": True},
    "persistent": {"workers": 2, "persistent_workers": True, "prefetch_factor": 1},
}
LOADERS = {name: {"name": "loader"} | settings for name, settings in SETTINGS.items()}
AS_THEY_ARE_AND_AUGMENTED = pytest.mark.parametrize(
    "augmentation", [{}, AUGMENTED], ids=["as they are", "augmented"]
)


@pytest.fixture
def numbered(make_experiment: MakeExperiment) -> MakeBatches:
    """Make batches of noise, each sample labelled with its index.

    For example, `numbered("validation", batch_size=5)`.
    """

    def make(
        name: PartName = "train", *process: int, device: torch.device = CPU, **settings: Any
    ) -> Batches:
        images = np.random.default_rng(0).integers(0, 256, size=(IMAGES, 3, 4, 4), dtype=np.uint8)
        part = Part(name, images, np.arange(IMAGES), Normaliser((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
        return make_batches(make_experiment(**settings), part, device, *process)

    return make


@pytest.fixture(params=["resident", "loader", "persistent"])
def on_each_path(request: pytest.FixtureRequest, numbered: MakeBatches) -> MakeBatches:
    """Make batches of noise on each input path."""
    return partial(numbered, input=LOADERS.get(request.param, {"name": "resident"}))


def numbers(batches: Batches, epoch: int) -> list[int]:
    return [number for _, labels in batches.train_batches(epoch) for number in labels.tolist()]


def three_passes(batches: Batches) -> list[Batch]:
    return [*batches.train_batches(3), *batches.eval_batches(), *batches.train_batches(4)]


def assert_same_batches(some: list[Batch], others: list[Batch]) -> None:
    for (images, labels), (other_images, other_labels) in zip(some, others, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)
        assert images.dtype == other_images.dtype == torch.float32


@AS_THEY_ARE_AND_AUGMENTED
@pytest.mark.parametrize("source", LOADERS.values(), ids=list(LOADERS))
def test_the_loader_gives_the_resident_batches_bit_for_bit_in_the_same_order(
    numbered: MakeBatches, source: dict[str, Any], augmentation: dict[str, Any]
) -> None:
    resident, loaded = (
        three_passes(numbered(input=each, batch_size=5, augmentation=augmentation))
        for each in ({"name": "resident"}, source)
    )
    assert len(resident) == 15
    assert_same_batches(resident, loaded)


def test_a_pass_that_was_left_halfway_leaves_no_trace_in_the_next(
    on_each_path: MakeBatches,
) -> None:
    fresh, used = (on_each_path(batch_size=2, augmentation=AUGMENTED) for _ in range(2))
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
    assert second[-1][0].shape == (0, 3, 4, 4)
    assert second[-1][0].dtype == torch.float32


def test_validation_has_a_batch_size_of_its_own_if_asked(on_each_path: MakeBatches) -> None:
    own = {"batch_size": 5, "validation_batch_size": 20}
    assert [len(labels) for _, labels in on_each_path("validation", **own).eval_batches()] == [
        20,
        2,
    ]
    assert on_each_path(**own).batch_size == 5


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_items_that_are_no_images_keep_their_type_and_whole_numbers_their_batch_size(
    make_experiment: MakeExperiment, dtype: type[Any]
) -> None:
    part = Part(
        "validation", np.arange(40, dtype=dtype).reshape(10, 4), np.arange(10), Normaliser((), ())
    )
    batches = make_batches(make_experiment(batch_size=5), part, CPU)
    assert batches.batch_size == (5 if dtype is np.int64 else 4 << 20 >> 4)
    on_accelerator = make_batches(make_experiment(batch_size=5), part, torch.device("meta"))
    assert on_accelerator.batch_size == (5 if dtype is np.int64 else 64 << 20 >> 4)
    assert torch.cat([items for items, _ in batches.eval_batches()]).numpy().dtype == dtype


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


def test_making_batches_draws_nothing_from_any_random_stream_of_the_process(
    on_each_path: MakeBatches,
) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    three_passes(on_each_path(augmentation=AUGMENTED))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]


def test_an_image_is_normalised_by_the_mean_and_deviation_of_its_channels() -> None:
    images = np.random.default_rng(1).integers(0, 256, size=(2, 3, 4, 4), dtype=np.uint8)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    expected = (images / 255.0 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert Normaliser(mean, std)(torch.from_numpy(images)).numpy() == pytest.approx(
        expected, abs=1e-6
    )


def test_floats_are_normalised_on_a_scale_of_their_own_and_without_a_mean_everything_stays() -> (
    None
):
    floats, numbers = torch.tensor([[6.0, 9.0]]), torch.tensor([[6, 9]])
    assert Normaliser((2.0, 3.0), (4.0, 2.0), dimensions=1)(floats).tolist() == [[1.0, 3.0]]
    assert floats.tolist() == [[6.0, 9.0]]
    assert Normaliser((), ())(numbers) is numbers
