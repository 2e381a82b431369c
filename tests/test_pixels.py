"""Images of every kind become bytes of the channels and the size that are asked for; bad files are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from photofinish.data.images import decode, pixels_of, prepared
from photofinish.errors import UserError

RED = (200, 10, 30)


def image_of(mode: str) -> Image.Image:
    """5 high, 7 wide, of one colour; grey ones of shade 100."""
    if mode == "I;16":
        return Image.fromarray(np.full((5, 7), 100 * 257, dtype=np.uint16))
    if mode in ("P", "P with transparency"):
        image = Image.new("RGB", (7, 5), RED).convert("P", palette=Image.Palette.ADAPTIVE)
        if mode != "P":
            image.info["transparency"] = b"\x00" * 255
        return image
    colours = {"L": 100, "LA": (100, 9), "RGB": RED, "RGBA": (*RED, 9), "CMYK": (55, 245, 225, 0), "1": 1}
    return Image.new(mode, (7, 5), colours[mode])


@pytest.mark.parametrize("mode", ["P", "P with transparency", "RGB", "RGBA", "CMYK"])
def test_images_in_colour_become_red_green_and_blue_or_grey(mode: str) -> None:
    pixels = prepared(image_of(mode), None, 3)
    assert pixels.shape == (3, 5, 7)
    assert pixels.dtype == np.uint8
    assert [np.unique(channel).tolist() for channel in pixels] == [[shade] for shade in RED]
    grey = prepared(image_of(mode), None, 1)
    assert grey.shape == (1, 5, 7)
    assert np.unique(grey).tolist() == [69]  # 0.299 * 200 + 0.587 * 10 + 0.114 * 30


@pytest.mark.parametrize(("mode", "shade"), [("L", 100), ("LA", 100), ("I;16", 100), ("1", 255)])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_images_keep_their_shade_in_one_channel_or_three(mode: str, shade: int, channels: int) -> None:
    pixels = prepared(image_of(mode), None, channels)
    assert pixels.shape == (channels, 5, 7)
    assert np.unique(pixels).tolist() == [shade]


def test_an_image_is_resized_to_height_and_width_and_smoothed_where_it_shrinks() -> None:
    stripes = np.zeros((8, 8), dtype=np.uint8)
    stripes[:, ::2] = 200
    shrunk = prepared(Image.fromarray(stripes), (4, 2), 1)
    assert shrunk.shape == (1, 4, 2)
    assert 80 < shrunk.min() <= shrunk.max() < 120  # without smoothing: 0 or 200


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".gif", ".bmp"])
@pytest.mark.parametrize("damage", ["cut short", "of other bytes", "empty", "gone"])
def test_a_file_that_is_no_whole_image_is_named(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f"image{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    data = path.read_bytes()
    path.write_bytes({"cut short": data[: len(data) // 2], "of other bytes": b"hello" * 100}.get(damage, b""))
    if damage == "gone":
        path.unlink()
    with pytest.raises(UserError) as caught:
        decode(path, None, 3)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["image.png", "image.tiff", "image.pgm"])
def test_sixteen_bits_are_scaled_by_their_range(tmp_path: Path, name: str) -> None:
    shades = np.array([[0, 257 * 7, 257 * 100 + 128, 257 * 100 + 129, 65535]], dtype=np.uint16)
    Image.fromarray(shades).save(tmp_path / name)
    assert decode(tmp_path / name, None, 1).ravel().tolist() == [0, 7, 100, 101, 255]
    Image.fromarray(np.zeros((1, 4), dtype=np.uint16)).save(tmp_path / name)
    assert not decode(tmp_path / name, None, 1).any()


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("LA", 1), ("I;16", 1), ("P", 3), ("RGBA", 3)])
def test_an_image_is_of_colours_unless_it_is_grey(mode: str, channels: int) -> None:
    assert pixels_of(image_of(mode)).shape == (channels, 5, 7)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_of_32_bits_are_refused_because_no_value_is_known_to_be_white(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (2, 2), 1).save(tmp_path / "image.tiff")
    with pytest.raises(UserError, match=r"image\.tiff can't be read as an image: .* 8 or 16 bits"):
        decode(tmp_path / "image.tiff", None, 1)


@pytest.mark.parametrize("brightest", [1, 4095, 16383, 16384])
def test_sixteen_bits_that_are_used_for_fewer_are_refused(tmp_path: Path, brightest: int) -> None:
    Image.fromarray(np.array([[0, brightest]], dtype=np.uint16)).save(tmp_path / "image.png")
    if brightest == 16384:
        assert decode(tmp_path / "image.png", None, 1).ravel().tolist() == [0, 64]
    else:
        with pytest.raises(UserError, match=rf"image\.png .*the brightest is {brightest}:"):
            decode(tmp_path / "image.png", None, 1)
