"""A transform that users write themselves: what it draws is the same whoever loads the item."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import CustomFiles, MakeExperiment

from photofinish.config.experiment import CustomTransform, LoaderInput
from photofinish.data import PartName
from photofinish.errors import UserError
from photofinish.training.batches import Batches, Normaliser, Part
from photofinish.training.input_paths import make_batches
from photofinish.training.loading import LoadedSamples
from photofinish.training.torch_device import CPU

HEAD = "import random, numpy as np, torch\n"
NOISE = (
    f"{HEAD}def noise(item, strength=50):\n"
    "    drawn = torch.rand(1) + np.random.rand() + random.random()\n"
    "    return item + (strength * drawn).to(torch.uint8)\n"
)
IMAGES = np.arange(12, dtype=np.uint8).repeat(4).reshape(12, 1, 2, 2)

Load = Callable[..., Batches]


@pytest.fixture
def load(custom_files: CustomFiles, make_experiment: MakeExperiment) -> Load:
    """Make batches of twelve images, each changed by `noise` in a file of this source."""

    def batches(
        source: str, part: PartName = "train", workers: int = 0, seed: int = 0, **given: Any
    ) -> Batches:
        sampler, arguments = given.pop("sampler", None), given
        transform = {"name": f"{custom_files.write('t.py', source)}:noise", **arguments}
        loader = {"name": "loader", "workers": workers, "transform": transform}
        experiment = make_experiment(input=loader, batch_size=5, seed=seed, sampler=sampler)
        packed = Part(part, IMAGES, np.arange(12), Normaliser((0.0,), (1 / 255,)))
        return make_batches(experiment, packed, CPU)

    return batches


def changes(batches: Batches, epoch: int) -> list[int]:
    """Return the increase of each image's brightness."""
    shades = {
        int(row): round(float(image[0, 0, 0]))
        for images, rows in batches.train_batches(epoch)
        for image, row in zip(images, rows, strict=True)
    }
    return [shades[row] - row for row in range(12)]


def test_a_sample_changes_each_epoch_and_equally_for_any_number_of_workers(load: Load) -> None:
    alone, beside = load(NOISE), load(NOISE, workers=2)
    first, second = changes(alone, 0), changes(alone, 1)
    assert len(set(first)) > 6
    assert first != second
    assert changes(load(NOISE, seed=1), 0) != first
    assert changes(alone, 0) == first
    assert [changes(beside, epoch) for epoch in (1, 0)] == [second, first]


def test_a_sample_that_a_sampler_draws_again_changes_again(load: Load) -> None:
    again = [*load(NOISE, sampler={"name": "balanced"}).train_batches(0)]
    rows = torch.cat([rows for _, rows in again]).tolist()
    shades = torch.cat([images[:, 0, 0, 0] for images, _ in again]).tolist()
    assert len(set(rows)) < len(set(zip(rows, shades, strict=True)))


COLLATE = """
from torch.utils.data import default_collate
def noise(samples):
    images, rows = default_collate(samples)
    drawn = torch.rand(1) + np.random.rand() + random.random()
    return images + drawn, rows
"""


def test_collate_draws_by_seed_epoch_and_batch_whoever_collates(
    custom_files: CustomFiles, make_experiment: MakeExperiment
) -> None:
    file = custom_files.write("c.py", HEAD + COLLATE)

    def load(workers: int, seed: int = 0) -> Batches:
        loader = {"name": "loader", "workers": workers, "collate": f"{file}:noise"}
        experiment = make_experiment(input=loader, batch_size=5, seed=seed)
        packed = Part("train", IMAGES, np.arange(12), Normaliser((), ()))
        return make_batches(experiment, packed, CPU)

    def drawn(batches: Batches, epoch: int) -> list[float]:
        return [
            round(float(images[0, 0, 0, 0] - rows[0]), 4)
            for images, rows in batches.train_batches(epoch)
        ]

    state = torch.get_rng_state(), random.getstate()
    first, second = drawn(load(0), 0), drawn(load(0), 1)
    assert (torch.get_rng_state().tolist(), random.getstate()) == (state[0].tolist(), state[1])
    assert len({*first, *second, *drawn(load(0, seed=1), 0)}) == 9
    assert [drawn(load(2), epoch) for epoch in (1, 0)] == [second, first]


BY_A_CLASS = (
    "class noise:\n    def __init__(self, by): self.by = by\n"
    "    def __call__(self, item): return item + self.by\n"
)


@pytest.mark.parametrize(
    ("source", "arguments", "change"), [(NOISE, {"strength": 0}, 0), (BY_A_CLASS, {"by": 3}, 3)]
)
def test_arguments_reach_a_function_or_a_class(
    load: Load, source: str, arguments: dict[str, int], change: int
) -> None:
    assert set(changes(load(source, **arguments), 0)) == {change}


def test_what_it_draws_is_what_earlier_versions_drew_and_nothing_in_evaluation(load: Load) -> None:
    source = f"{HEAD}def noise(item): return item + random.randrange(100)\n"
    assert changes(load(source, seed=3), 1)[:6] == [8, 15, 75, 33, 6, 72]
    for part in ("train", "validation"):
        batches = load(NOISE, part=part).eval_batches()
        shades = torch.cat([images[:, 0, 0, 0] for images, _ in batches])
        assert shades.round().tolist() == list(range(12))


FAULTS = {
    "raises": (
        "1 / 0",
        r"(?s)^transform \./t\.py:noise fails on training item \d+:\n"
        r"  File .*t\.py.*ZeroDivisionError",
    ),
    "another shape": (
        "item[:, :1]",
        r"uint8 of shape \(1, 1, 2\) for torch.uint8 of shape \(1, 2, 2\)",
    ),
    "another type": ("item / 255", r"float32 of shape"),
}


@pytest.mark.parametrize(("result", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_names_the_sample(load: Load, result: str, message: str) -> None:
    workers = int(result == "1 / 0")
    with pytest.raises(UserError, match=message):
        changes(load(f"{HEAD}def noise(item): return {result}\n", workers=workers), 0)


def test_samples_of_training_and_validation_are_both_normalised_or_neither(
    custom_files: CustomFiles,
) -> None:
    file = custom_files.write("t.py", "def scaled(image):\n    return image / 255\n")
    scaled = CustomTransform(name=f"{file}:scaled")
    grey = CustomTransform(name="Grayscale")
    part = Part("test", IMAGES, np.arange(12), Normaliser((0.0,), (1 / 255,)))
    for training, other, alone in ((None, scaled, "training"), (scaled, grey, "validation")):
        settings = LoaderInput(name="loader", transform=training, eval_transform=other)
        with pytest.raises(UserError, match=f"would normalise {alone} samples alone"):
            LoadedSamples(part, settings, 0).kind()
