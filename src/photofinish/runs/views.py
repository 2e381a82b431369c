"""What people see of a training: while it goes on, a bar or a line an epoch; in `learned/`, the first batch as a
picture, and the network's summary."""

from __future__ import annotations

import io
import sys
from bisect import bisect
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from photofinish.data import Dtype
from photofinish.data.packed import Manifest
from photofinish.display import Display
from photofinish.files import write_bytes_atomically
from photofinish.models.own import blank, tensors_in
from photofinish.models.registry import count_parameters
from photofinish.results import EpochMetrics, EpochTiming, records
from photofinish.training.batches import Batches
from photofinish.training.trainer import Trainer

MOST_IMAGES = 64
MOST_BYTES = 300_000
"""of the file; where it would be larger, it shows fewer images"""
_COLUMNS = 8
_TILE_PIXELS = 96
"""of an image's longer side, about"""
_WIDEST_LABEL_PIXELS = 120
_FONT_PIXELS, _LABEL_PIXELS, _GAP_PIXELS = 15, 22, 8
_PAPER, _INK = "white", "black"

_REFRESHES_PER_SECOND = 4

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""mean and standard deviation of each channel, as the network's images were made with them"""


class TrainingDisplay(Display):
    """What a person sees while a network trains: a bar on a terminal, a plain line an epoch anywhere else."""

    def __init__(self, title: str, trainer: Trainer) -> None:
        self._epochs, self._images = trainer.experiment.epochs, trainer.training.image_count
        super().__init__(title, _training_bar(trainer), self._epochs * trainer.steps_per_epoch, sys.stdout)

    def epoch_ended(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        """What it gave, and how fast."""
        text = f"epoch {metrics.epoch}/{self._epochs}  loss {metrics.training_loss:.4f}"
        if self._bar.disable:
            images_per_second = self._images / timing.training_seconds
            self.say(f"{text}  validation {_in_validation(metrics)}  {images_per_second:,.0f} images/s")
        else:
            self._bar.update(self._task, note=f"{text}  {_in_validation(metrics)}")


def _in_validation(metrics: EpochMetrics) -> str:
    right = "" if metrics.validation_accuracy is None else f", {metrics.validation_accuracy:.2%}"
    return f"{metrics.validation_loss:.4f}{right}"


def _training_bar(trainer: Trainer) -> Progress:
    class _Polled(Progress):
        """Reads where training is when it draws, so that the training loop never has to tell it."""

        def get_renderable(self):  # type: ignore[no-untyped-def]
            for task in self.tasks:
                self.update(task.id, completed=trainer.steps_done)
            return super().get_renderable()

    return _Polled(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=_REFRESHES_PER_SECOND,
    )


def draw_grid(images: torch.Tensor, labels: Sequence[str], normalisation: Normalisation) -> bytes:
    """A PNG of as many of a batch's normalised images as fit; the same images give the same bytes."""
    scale, shift = (torch.tensor(values).view(-1, 1, 1) for values in reversed(normalisation))
    shares = images[:MOST_IMAGES].detach().cpu().float() * scale + shift
    if shares.shape[1] != 3:
        shares = shares.mean(dim=1, keepdim=True)  # what has other channels than colours is shown as their grey
    pixels = (shares.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    tiles = [_tile(each) for each in pixels]
    labels = [label[: _WIDEST_LABEL_PIXELS + 1] for label in labels]  # a thousand values take long to lay out
    png = b""
    for count in range(MOST_IMAGES, 0, -_COLUMNS):
        png = _arrange(tiles[:count], labels[:count])
        if len(png) <= MOST_BYTES:
            break
    return png


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


def _arrange(tiles: list[Image.Image], labels: Sequence[str]) -> bytes:
    """A PNG of them in rows, each above its label."""
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
    png = io.BytesIO()
    grid.save(png, "PNG")
    return png.getvalue()


def _shortened(label: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, most_pixels: float) -> str:
    if font.getlength(label) <= most_pixels:
        return label
    fitting = bisect(range(1, len(label)), most_pixels, key=lambda length: font.getlength(label[:length] + "…"))
    return label[:fitting] + "…"


_HEADER = ("layer", "type", "output", "parameters")
_FLOATING_POINT_OPERATIONS_PER_MULTIPLY_ADD = 2


def _note_shape(shapes: list[str], _module: nn.Module, _inputs: Any, output: Any) -> None:
    """Each once: a module may be used several times."""
    for tensor in tensors_in(output)[:1]:
        shape = "x".join(map(str, tensor.shape[1:]))
        if shape not in shapes:
            shapes.append(shape)


def summarise(network: nn.Module, shape: tuple[int, ...], dtype: Dtype = "uint8") -> str:
    """A table of the modules that compute or hold parameters, and the totals; the network stays as it is."""
    layers: list[tuple[str, str, list[str], str]] = []
    with ExitStack() as undone, FlopCounterMode(display=False) as counter:
        for module in network.modules():
            undone.callback(setattr, module, "training", module.training)
        network.eval()  # so that no running mean is moved and no random number drawn
        for name, module in network.named_modules():
            own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
            if own or not any(module.children()):
                shapes: list[str] = []
                undone.callback(module.register_forward_hook(partial(_note_shape, shapes)).remove)
                layers.append((name or "(network)", type(module).__name__, shapes, f"{own:,}"))
        device = next(chain(network.parameters(), network.buffers())).device
        # Convolutions, matrix products and attention are counted. With gradients, as in training: without, attention
        # would take a fused path that is not.
        with torch.enable_grad():
            network(blank(shape, dtype).to(device))
    rows = [_HEADER, *((name, kind, ", ".join(shapes) or "-", parameters) for name, kind, shapes, parameters in layers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)), last.rjust(widths[-1])])
        for *cells, last in rows
    ]
    multiply_adds = counter.get_total_flops() // _FLOATING_POINT_OPERATIONS_PER_MULTIPLY_ADD
    trainable = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    state_bytes = sum(tensor.nbytes for tensor in chain(network.parameters(), network.buffers()))
    totals = {
        "parameters": f"{count_parameters(network):,}",
        "trainable": f"{trainable:,}",
        "size": f"{state_bytes / 1e6:,.2f} MB, with buffers",
        "multiply-adds": f"{multiply_adds:,} for one image, forward",
    }
    return "\n".join([*lines, "", *(f"{name:<13}  {total}" for name, total in totals.items()), ""])


def write_views(folder: Path, network: nn.Module, training: Batches, manifest: Manifest) -> None:
    """The first batch of the first epoch as the network got it, if it is of images, and the network's summary."""
    if manifest.dtype == "uint8":
        images, labels = next(iter(training.train_batches(0)))
        names = [_told(target, manifest) for target in labels[:MOST_IMAGES].tolist()]
        write_bytes_atomically(folder / records.FIRST_BATCH, draw_grid(images, names, (manifest.mean, manifest.std)))
    write_bytes_atomically(folder / records.SUMMARY, summarise(network, manifest.shape, manifest.dtype).encode())


def _told(target: Any, manifest: Manifest) -> str:
    """An image's class, values, or those labels that it has."""
    if manifest.task == "classes":
        return str(manifest.class_names[target])
    if manifest.task == "values":
        return ", ".join(f"{value:g}" for value in target)
    return ", ".join(name for name, has_it in zip(manifest.class_names, target, strict=True) if has_it)
