"""Images of every kind become bytes of the channels and size that are set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from photofinish.data.images import decode, pixels_of, to_pixels
from photofinish.errors import UserError

RED = (200, 10, 30)


def image_of(mode: str) -> Image.Image:
    """Return an image of one colour, 5 high, 7 wide. Grey ones have shade 100."""
    if mode == "I;16":
        return Image.fromarray(np.full((5, 7), 100 * 257, dtype=np.uint16))
    if mode == "P":
        return Image.new("RGB", (7, 5), RED).convert("P", palette=Image.Palette.ADAPTIVE)
    colours = {
        "L": 100,
        "LA": (100, 9),
        "RGB": RED,
        "RGBA": (*RED, 9),
        "CMYK": (55, 245, 225, 0),
        "1": 1,
    }
    return Image.new(mode, (7, 5), colours[mode])


IN_COLOUR = [(mode, RED, 69) for mode in ("P", "RGB", "RGBA", "CMYK")]
"""Red is grey of 0.299 * 200 + 0.587 * 10 + 0.114 * 30."""
IN_GREY = [(mode, (100,) * 3, 100) for mode in ("L", "LA", "I;16")]


@pytest.mark.parametrize(("mode", "colour", "grey"), [*IN_COLOUR, *IN_GREY, ("1", (255,) * 3, 255)])
def test_images_have_three_channels_or_become_grey(
    mode: str, colour: tuple[int, ...], grey: int
) -> None:
    pixels = to_pixels(image_of(mode), None, 3)
    assert (pixels.shape, pixels.dtype) == ((3, 5, 7), np.uint8)
    assert [np.unique(channel).tolist() for channel in pixels] == [[shade] for shade in colour]
    assert np.unique(to_pixels(image_of(mode), None, 1)).tolist() == [grey]
    channels = 3 if colour == RED else 1
    assert pixels_of(image_of(mode)).shape == (channels, 5, 7)


def test_an_image_is_smoothed_where_it_shrinks() -> None:
    stripes = np.zeros((8, 8), dtype=np.uint8)
    stripes[:, ::2] = 200
    shrunk = to_pixels(Image.fromarray(stripes), (4, 2), 1)
    assert shrunk.shape == (1, 4, 2)
    assert 80 < shrunk.min() <= shrunk.max() < 120  # without smoothing: 0 or 200


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_a_damaged_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"image{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=rf"{path} can't be read"):
        decode(path, None, 3)


@pytest.mark.parametrize("name", ["image.png", "image.tiff", "image.pgm"])
def test_16_bits_are_scaled_by_their_range(tmp_path: Path, name: str) -> None:
    shades = np.array([[0, 257 * 7, 257 * 100 + 128, 257 * 100 + 129, 65535]], dtype=np.uint16)
    Image.fromarray(shades).save(tmp_path / name)
    assert decode(tmp_path / name, None, 1).ravel().tolist() == [0, 7, 100, 101, 255]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bits_are_refused_because_white_is_unknown(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (2, 2), 1).save(tmp_path / "image.tiff")
    with pytest.raises(UserError, match=r"image\.tiff can't be read as an image: .*8 or 16 bits"):
        decode(tmp_path / "image.tiff", None, 1)
