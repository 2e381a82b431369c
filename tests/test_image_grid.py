"""The picture of a batch shows what the network was given: the right pixels in the right place, and their classes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, ImageFont

from photofinish.runs.views import MOST_BYTES, MOST_IMAGES, draw_grid
from photofinish.training.batches import Normaliser

GAP, LABEL = 8, 22
WHITE = 255


def random_images(count: int, *shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, size=(count, *shape), dtype=np.uint8)


def draw(images: npt.NDArray[np.uint8], labels: list[str] | None = None, mean: float = 0.4, std: float = 0.3) -> bytes:
    """The picture of these images, normalised as they are for a network."""
    channels = images.shape[1]
    normalisation = ((mean,) * channels, (std,) * channels)
    normalised = Normaliser(*normalisation)(torch.from_numpy(images))
    return draw_grid(normalised, labels or ["cat"] * len(images), normalisation)


def pixels(png: bytes) -> npt.NDArray[Any]:
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize(("shape", "times"), [((1, 8, 8), 12), ((3, 32, 32), 3), ((1, 28, 28), 3), ((3, 8, 16), 6)])
def test_a_small_image_is_shown_pixel_for_pixel_in_sharp_squares(shape: tuple[int, int, int], times: int) -> None:
    images = random_images(2, *shape)
    shown = pixels(draw(images))
    first = images[0].transpose(1, 2, 0).repeat(times, axis=0).repeat(times, axis=1).squeeze()
    height, width = first.shape[:2]
    np.testing.assert_array_equal(shown[GAP : GAP + height, GAP : GAP + width], first)


def test_images_follow_each_other_in_rows_of_eight() -> None:
    images = random_images(10, 1, 8, 8)
    shown = pixels(draw(images))
    right, down = 96 + GAP, 96 + LABEL + GAP
    for index, image in enumerate(images):
        left, top = GAP + index % 8 * right, GAP + index // 8 * down
        np.testing.assert_array_equal(shown[top : top + 96 : 12, left : left + 96 : 12], image[0])
    assert shown.shape == (2 * down + GAP, 8 * right + GAP)


def test_each_image_has_its_class_below() -> None:
    images = random_images(2, 1, 8, 8)
    labelled, other = (pixels(draw(images, labels)) for labels in (["cat", "dog"], ["cat", "ape"]))
    label_rows, first = slice(GAP + 96, None), slice(0, GAP + 96)
    assert labelled[label_rows, first].min() < 100  # ink, and not only a shade of it
    np.testing.assert_array_equal(labelled[label_rows, first], other[label_rows, first])
    assert (labelled[label_rows, GAP + 96 :] != other[label_rows, GAP + 96 :]).any()


def test_a_class_name_that_is_too_long_is_cut_and_does_not_run_into_its_neighbour() -> None:
    images = random_images(2, 1, 8, 8)
    shown = pixels(draw(images, ["a very long name of a class indeed", " "]))
    assert shown.shape[1] == 2 * (120 + GAP) + GAP
    assert (shown[GAP + 96 :, GAP + 120 :] == WHITE).all()


def test_colours_beyond_black_and_white_are_shown_as_black_and_white() -> None:
    beyond = torch.stack([torch.full((1, 8, 8), -9.0), torch.full((1, 8, 8), 9.0)])
    shown = pixels(draw_grid(beyond, ["dark", "bright"], ((0.5,), (0.5,))))
    assert (shown[GAP, GAP], shown[GAP, GAP + 96 + GAP]) == (0, WHITE)


def test_images_of_other_than_three_channels_are_shown_as_the_grey_of_all() -> None:
    images = random_images(1, 5, 8, 8)
    shown = pixels(draw(images))
    expected = images[0].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(shown[GAP : GAP + 96 : 12, GAP : GAP + 96 : 12], expected, atol=1)


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 224, 224), (3, 96, 400), (1, 8, 8)])
def test_the_file_stays_small_whatever_the_images(shape: tuple[int, int, int]) -> None:
    png = draw(random_images(MOST_IMAGES + 6, *shape))
    assert len(png) < MOST_BYTES
    assert Image.open(io.BytesIO(png)).width <= 8 * (96 + GAP) + GAP


def test_no_more_than_64_images_are_shown() -> None:
    images = random_images(100, 1, 8, 8)
    assert draw(images) == draw(images[:64])


def test_a_batch_of_one_image_is_a_picture_of_one() -> None:
    assert pixels(draw(random_images(1, 1, 8, 8))).shape == (GAP + 96 + LABEL + GAP, GAP + 96 + GAP)


def test_the_same_batch_gives_the_same_bytes() -> None:
    assert draw(random_images(64, 3, 32, 32)) == draw(random_images(64, 3, 32, 32))


def test_of_a_long_label_no_more_is_laid_out_than_a_picture_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out: list[str] = []
    measured = ImageFont.FreeTypeFont.getlength

    def noted(font: ImageFont.FreeTypeFont, text: str) -> float:
        laid_out.append(text)
        return measured(font, text)

    monkeypatch.setattr(ImageFont.FreeTypeFont, "getlength", noted)
    images = random_images(1, 1, 8, 8)
    assert draw(images, ["0.25, " * 50]) == draw(images, ["0.25, " * 60])
    assert sum(map(len, laid_out)) < 2000
