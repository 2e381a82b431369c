"""A result shows the batch that its training began with, and the network."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from photofinish.data.packed import PackedSplit
from photofinish.results import records
from photofinish.runs.views import MOST_IMAGES, draw_grid, summarise, write_views
from photofinish.training.batches import Normaliser

GAP, LABEL = 4, 20
NETWORK = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("task", "targets", "label"),
    [
        ("values", [[1.5, -2.0]], "1.5, -2"),
        ("labels", [[0.0, 1.0]], "class 1"),
        ("classes", [1], "class 1"),
    ],
)
def test_the_picture_shows_each_image_with_its_target(
    packed_split: PackedSplit, tmp_path: Path, task: str, targets: Any, label: str
) -> None:
    names = {"task": task, "class_names": ("class 0", "class 1")}
    manifest = packed_split.manifest.model_copy(update=names)
    images = torch.from_numpy(np.array(packed_split.images("train")[:1]))
    normalised = Normaliser(manifest.mean, manifest.std)(images)
    write_views(tmp_path, NETWORK, (normalised, torch.tensor(targets)), manifest)
    expected = draw_grid(images.float() / 255, [label], ((0.0,), (1.0,)))
    assert (tmp_path / records.FIRST_BATCH).read_bytes() == expected
    assert (tmp_path / records.SUMMARY).read_text(encoding="utf-8") == summarise(NETWORK)


def test_samples_that_are_no_images_have_no_picture(
    packed_split: PackedSplit, tmp_path: Path
) -> None:
    manifest = packed_split.manifest.model_copy(update={"dtype": "float32"})
    write_views(tmp_path, NETWORK, (torch.zeros(1, 4), torch.zeros(1)), manifest)
    assert [path.name for path in tmp_path.iterdir()] == [records.SUMMARY]


def random_images(count: int, *shape: int) -> torch.Tensor:
    values = np.random.default_rng(0).integers(0, 256, size=(count, *shape), dtype=np.uint8)
    return torch.from_numpy(values)


def pixels(images: torch.Tensor, labels: list[str] | None = None) -> np.ndarray[Any, Any]:
    """Return the picture of these images, normalised as they are for a network."""
    normalisation = ((0.4,) * images.shape[1], (0.3,) * images.shape[1])
    png = draw_grid(
        Normaliser(*normalisation)(images), labels or ["cat"] * len(images), normalisation
    )
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize(
    ("shape", "times"),
    [((1, 8, 8), 12), ((3, 32, 32), 3), ((1, 28, 28), 3), ((3, 8, 16), 6), ((5, 8, 8), 12)],
)
def test_small_images_are_sharp_squares_in_rows_of_eight(
    shape: tuple[int, int, int], times: int
) -> None:
    images = random_images(10, *shape)
    picture = pixels(images)
    height, width = shape[1] * times, shape[2] * times
    down, right = height + GAP + LABEL, width + 2 * GAP
    assert picture.shape == (2 * down, 8 * right, 3)
    for index, image in enumerate(images.numpy()):
        top, left = GAP + index // 8 * down, GAP + index % 8 * right
        expected = image if shape[0] == 3 else image.mean(axis=0, keepdims=True).repeat(3, axis=0)
        shown = picture[top : top + height : times, left : left + width : times]
        np.testing.assert_allclose(shown, expected.transpose(1, 2, 0), atol=1)


def test_a_label_does_not_run_into_its_neighbour() -> None:
    images = random_images(2, 1, 8, 8)
    short, long = (pixels(images, ["cat", text]) for text in ("dog", "a very long class name"))
    right = 96 + 2 * GAP
    assert short[GAP + 96 :, :right].min() < 100  # ink
    np.testing.assert_array_equal(short[:, :right], long[:, :right])
    first = pixels(images, ["a very long class name", ""])
    assert (first[GAP + 96 :, right + GAP :] == 255).all()


@pytest.mark.parametrize("shape", [(3, 224, 224), (3, 96, 400)])
def test_large_images_are_scaled_down_and_only_the_first_are_shown(
    shape: tuple[int, int, int],
) -> None:
    images = random_images(MOST_IMAGES + 6, *shape)
    picture = pixels(images)
    assert picture.shape[1] <= 8 * (96 + 2 * GAP)
    np.testing.assert_array_equal(picture, pixels(images[:MOST_IMAGES]))


def test_values_beyond_black_and_white_are_shown_as_black_and_white() -> None:
    beyond = torch.stack([torch.full((1, 8, 8), -9.0), torch.full((1, 8, 8), 9.0)])
    picture = np.asarray(Image.open(io.BytesIO(draw_grid(beyond, ["", ""], ((0.5,), (0.5,))))))
    assert picture[GAP, [GAP, 96 + 3 * GAP], 0].tolist() == [0, 255]


def test_the_summary_counts_shared_weights_once_and_frozen_ones_apart() -> None:
    one, other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    other.weight = one.weight
    frozen = nn.Linear(4, 2).requires_grad_(requires_grad=False)
    summary = summarise(nn.Sequential(nn.Flatten(), one, other, frozen))
    assert "(3): Linear(in_features=4, out_features=2, bias=True)" in summary
    assert summary.splitlines()[-3:-1] == ["parameters  26", "trainable   16"]
