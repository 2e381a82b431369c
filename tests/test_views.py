"""What a result has to look at: the batch that training really began with, and the network it trained."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import MakeExperiment
from PIL import Image
from torch import nn

from photofinish.data.packed import PackedSplit
from photofinish.models.registry import build_model
from photofinish.results import records
from photofinish.runs.views import MOST_IMAGES, draw_grid, summarise, write_views
from photofinish.training.batches import Normaliser, Part, batch_order
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU

GAP, LABEL = 4, 20


@pytest.fixture
def write(make_experiment: MakeExperiment, packed_split: PackedSplit) -> Any:
    """Write the views of an experiment, with its settings overridden; return the two files."""
    manifest = packed_split.manifest

    def write(folder: Path, **overrides: Any) -> list[bytes]:
        experiment = make_experiment(**overrides)
        part = Part(
            "train", packed_split.images("train"), packed_split.labels("train"), Normaliser(manifest.mean, manifest.std)
        )
        network = build_model(experiment.model, manifest.shape, 3, experiment.seed)
        write_views(folder, network, make_batches(experiment, part, CPU), manifest)
        return [(folder / name).read_bytes() for name in (records.FIRST_BATCH, records.SUMMARY)]

    return write


def test_the_picture_is_of_the_first_batch_of_the_first_epoch_with_its_classes(
    write: Any, packed_split: PackedSplit, make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    picture, summary = write(tmp_path, batch_size=5, seed=7)
    rows = batch_order(packed_split.manifest.counts["train"], 7, 0)[:5].numpy()
    images = torch.from_numpy(np.array(packed_split.images("train"))[rows]).float() / 255
    names = [f"class {label}" for label in packed_split.labels("train")[rows]]
    assert picture == draw_grid(images, names, ((0.0,), (1.0,)))
    assert write(tmp_path / "loader", batch_size=5, seed=7, input={"name": "loader"}) == [picture, summary]
    assert write(tmp_path / "seed", batch_size=5, seed=8)[0] != picture
    assert summary.decode() == summarise(build_model(make_experiment().model, (1, 8, 8), 3, seed=1))


@pytest.mark.parametrize(
    ("task", "targets", "label"),
    [("values", [[1.5, -2.0]], "1.5, -2"), ("labels", [[0.0, 1.0]], "class 1"), ("classes", [1], "class 1")],
)
def test_an_image_of_any_task_is_shown_with_its_target(
    make_experiment: MakeExperiment, packed_split: PackedSplit, tmp_path: Path, task: str, targets: Any, label: str
) -> None:
    manifest = packed_split.manifest.model_copy(update={"task": task, "class_names": ("class 0", "class 1")})
    images = packed_split.images("train")[:1]
    part = Part("train", images, np.array(targets), Normaliser(manifest.mean, manifest.std))
    experiment = make_experiment()
    network = build_model(experiment.model, manifest.shape, 2, seed=0)
    write_views(tmp_path, network, make_batches(experiment, part, CPU), manifest)
    shares = torch.from_numpy(np.array(images)).float() / 255
    assert (tmp_path / records.FIRST_BATCH).read_bytes() == draw_grid(shares, [label], ((0.0,), (1.0,)))


def random_images(count: int, *shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, size=(count, *shape), dtype=np.uint8)


def pixels(images: npt.NDArray[np.uint8], labels: list[str] | None = None) -> npt.NDArray[Any]:
    """The picture of these images, normalised as they are for a network."""
    normalisation = ((0.4,) * images.shape[1], (0.3,) * images.shape[1])
    normalised = Normaliser(*normalisation)(torch.from_numpy(images))
    png = draw_grid(normalised, labels or ["cat"] * len(images), normalisation)
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize(
    ("shape", "times"), [((1, 8, 8), 12), ((3, 32, 32), 3), ((1, 28, 28), 3), ((3, 8, 16), 6), ((5, 8, 8), 12)]
)
def test_small_images_are_shown_in_sharp_squares_in_rows_of_eight(shape: tuple[int, int, int], times: int) -> None:
    images = random_images(10, *shape)
    shown = pixels(images)
    height, width = shape[1] * times, shape[2] * times
    down, right = height + GAP + LABEL, width + 2 * GAP
    assert shown.shape[:2] == (2 * down, 8 * right)
    for index, image in enumerate(images):
        top, left = GAP + index // 8 * down, GAP + index % 8 * right
        expected = image.transpose(1, 2, 0).squeeze() if shape[0] in (1, 3) else image.mean(axis=0)
        np.testing.assert_allclose(shown[top : top + height : times, left : left + width : times], expected, atol=1)


def test_each_image_has_its_class_below_that_does_not_run_into_its_neighbour() -> None:
    images = random_images(2, 1, 8, 8)
    labelled, other = (pixels(images, ["cat", second]) for second in ("dog", "a very long name of a class"))
    right = 96 + 2 * GAP
    assert labelled[GAP + 96 :, :right].min() < 100  # ink
    np.testing.assert_array_equal(labelled[:, :right], other[:, :right])
    assert (labelled[:, right:] != other[:, right:]).any()
    long = pixels(images, ["a very long name of a class", ""])
    assert (long[GAP + 96 :, right + GAP :] == 255).all()


@pytest.mark.parametrize("shape", [(3, 224, 224), (3, 96, 400)])
def test_large_images_are_scaled_down_and_only_the_first_are_shown(shape: tuple[int, int, int]) -> None:
    images = random_images(MOST_IMAGES + 6, *shape)
    shown = pixels(images)
    assert shown.shape[1] <= 8 * (96 + 2 * GAP)
    np.testing.assert_array_equal(shown, pixels(images[:MOST_IMAGES]))


def test_values_beyond_black_and_white_are_shown_as_black_and_white() -> None:
    beyond = torch.stack([torch.full((1, 8, 8), -9.0), torch.full((1, 8, 8), 9.0)])
    shown = np.asarray(Image.open(io.BytesIO(draw_grid(beyond, ["dark", "bright"], ((0.5,), (0.5,))))))
    assert (shown[GAP, GAP], shown[GAP, 96 + 3 * GAP]) == (0, 255)


def test_the_summary_has_the_layers_and_counts_shared_and_frozen_weights_once_and_apart() -> None:
    one, other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    other.weight = one.weight
    frozen = nn.Linear(4, 2).requires_grad_(requires_grad=False)
    summary = summarise(nn.Sequential(nn.Flatten(), one, other, frozen))
    assert "(3): Linear(in_features=4, out_features=2, bias=True)" in summary
    assert summary.splitlines()[-3:-1] == ["parameters  26", "trainable   16"]
