"""A batch of images as one picture, each with its class below: what the network was really given."""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw, ImageFont

MOST_IMAGES = 64
MOST_BYTES = 300_000
"""of the file; where it would be larger, it shows fewer images"""
_COLUMNS = 8
_TILE_PIXELS = 96
"""of an image's longer side, about"""
_WIDEST_LABEL_PIXELS = 120
_FONT_PIXELS, _LABEL_PIXELS, _GAP_PIXELS = 15, 22, 8
_PAPER, _INK = "white", "black"

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""mean and standard deviation of each channel, as the network's images were made with them"""


def draw_grid(images: torch.Tensor, labels: Sequence[str], normalisation: Normalisation) -> bytes:
    """A PNG of as many of a batch's normalised images as fit; the same images give the same bytes."""
    tiles = [_tile(pixels) for pixels in _displayable(images[:MOST_IMAGES], *normalisation)]
    for count in range(MOST_IMAGES, _COLUMNS, -_COLUMNS):
        if len(png := _png(_arrange(tiles[:count], labels[:count]))) <= MOST_BYTES:
            return png
    return _png(_arrange(tiles[:_COLUMNS], labels[:_COLUMNS]))


def _displayable(images: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    """uint8 in (count, height, width, 3 or 1): in colour, or as the grey of all channels where they aren't three."""
    scale, shift = (torch.tensor(values).view(-1, 1, 1) for values in (std, mean))
    shares = images.detach().cpu().float() * scale + shift
    if shares.shape[1] != 3:
        shares = shares.mean(dim=1, keepdim=True)
    return (shares.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)


def _tile(pixels: torch.Tensor) -> Image.Image:
    """A small image in whole multiples of its pixels, which stay sharp squares; a large one scaled down."""
    height, width = pixels.shape[:2]
    tile = Image.fromarray(pixels.squeeze(2).numpy())
    longer = max(height, width)
    if longer > _TILE_PIXELS:
        size = tuple(max(1, side * _TILE_PIXELS // longer) for side in (width, height))
        return tile.resize((size[0], size[1]), Image.Resampling.BOX)
    times = _TILE_PIXELS // longer
    return tile.resize((width * times, height * times), Image.Resampling.NEAREST)


def _arrange(tiles: list[Image.Image], labels: Sequence[str]) -> Image.Image:
    font = ImageFont.load_default(_FONT_PIXELS)
    widest = min(_WIDEST_LABEL_PIXELS, max(round(font.getlength(label)) for label in labels))
    width = max(tiles[0].width, widest) + _GAP_PIXELS
    height = tiles[0].height + _LABEL_PIXELS + _GAP_PIXELS
    columns = min(_COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    grid = Image.new(tiles[0].mode, (columns * width + _GAP_PIXELS, rows * height + _GAP_PIXELS), _PAPER)
    draw = ImageDraw.Draw(grid)
    for index, (tile, label) in enumerate(zip(tiles, labels, strict=True)):
        left, top = _GAP_PIXELS + index % columns * width, _GAP_PIXELS + index // columns * height
        grid.paste(tile, (left, top))
        text = _shortened(label, font, width - _GAP_PIXELS)
        draw.text((left, top + tile.height + _LABEL_PIXELS // 2), text, fill=_INK, font=font, anchor="lm")
    return grid


def _shortened(label: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, most_pixels: int) -> str:
    if font.getlength(label) <= most_pixels:
        return label
    kept = next(
        length for length in range(len(label) - 1, -1, -1) if font.getlength(label[:length] + "…") <= most_pixels
    )
    return label[:kept] + "…"


def _png(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()
