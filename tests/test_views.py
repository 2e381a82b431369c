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


def test_images_stand_in_rows_of_eight_and_only_the_first_are_shown() -> None:
    images = torch.rand(MOST_IMAGES + 6, 3, 8, 16)
    nothing = (0.0,) * 3, (1.0,) * 3
    pictures = []
    for count in (10, MOST_IMAGES, MOST_IMAGES + 6):
        png = draw_grid(images[:count], ["cat"] * count, nothing)
        pictures.append(np.asarray(Image.open(io.BytesIO(png))))
    few, most, more = pictures
    np.testing.assert_array_equal(most, more)
    down, right = 116, 104
    assert few.shape == (2 * down, 8 * right, 3)
    for index, image in enumerate(images[:10].permute(0, 2, 3, 1).numpy() * 255):
        top, left = index // 8 * down, index % 8 * right
        np.testing.assert_allclose(few[top : top + 48 : 6, left : left + 96 : 6], image, atol=1)


def test_the_summary_counts_shared_weights_once_and_frozen_ones_apart() -> None:
    one, other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    other.weight = one.weight
    frozen = nn.Linear(4, 2).requires_grad_(requires_grad=False)
    summary = summarise(nn.Sequential(nn.Flatten(), one, other, frozen))
    assert "(3): Linear(in_features=4, out_features=2, bias=True)" in summary
    assert summary.splitlines()[-3:-1] == ["parameters  26", "trainable   16"]
