"""What people see of a training: its progress, its first batch as a picture, and its network in words."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.nn import functional

from photofinish.data.packed import Manifest
from photofinish.display import Display
from photofinish.files import write_bytes_atomically
from photofinish.models.registry import count_parameters
from photofinish.results import EpochMetrics, EpochTiming, records
from photofinish.training.batches import Batches
from photofinish.training.trainer import Trainer

MOST_IMAGES = 32
_COLUMNS = 8
_TILE_PIXELS = 96
"""About the longer side of an image."""
_LABEL_PIXELS, _GAP_PIXELS, _CHARACTER_PIXELS = 20, 4, 7

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel, as the network's images were made with them."""


class TrainingDisplay(Display):
    """The progress of a training: a bar on a terminal, one line an epoch anywhere else."""

    def __init__(self, title: str, trainer: Trainer) -> None:
        self._epochs, self._images = trainer.experiment.epochs, trainer.training.image_count
        super().__init__(title, _training_bar(trainer), self._epochs * trainer.steps_per_epoch, sys.stdout)

    def epoch_ended(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        """Show what an epoch gave, and how fast."""
        accuracy = "" if metrics.validation_accuracy is None else f", {metrics.validation_accuracy:.2%}"
        text = (
            f"epoch {metrics.epoch}/{self._epochs}  loss {metrics.training_loss:.4f}  "
            f"validation {metrics.validation_loss:.4f}{accuracy}"
        )
        if self._bar.disable:
            self.say(f"{text}  {self._images / timing.training_seconds:,.0f} images/s")
        else:
            self._bar.update(self._task, note=text)


def _training_bar(trainer: Trainer) -> Progress:
    class _Polled(Progress):
        """Reads the trainer's progress when it draws, so that the training loop never reports it."""

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
        refresh_per_second=4,
    )


def draw_grid(images: torch.Tensor, labels: Sequence[str], normalisation: Normalisation) -> bytes:
    """Return a PNG of the first normalised images, each above its label. Equal images give equal bytes.

    torchvision.utils.make_grid would do half of it, but importing torchvision takes each training a second.
    """
    scale, shift = (torch.tensor(values).view(-1, 1, 1) for values in reversed(normalisation))
    pixels = (images[:MOST_IMAGES].detach().cpu().float() * scale + shift).clamp(0, 1)
    if pixels.shape[1] != 3:
        pixels = pixels.mean(dim=1, keepdim=True)
    height, width = pixels.shape[2:]
    longer = max(height, width)
    if longer > _TILE_PIXELS:
        size = [max(1, side * _TILE_PIXELS // longer) for side in (height, width)]
        pixels = functional.interpolate(pixels, size, mode="area")
    else:  # whole multiples stay sharp
        times = _TILE_PIXELS // longer
        pixels = pixels.repeat_interleave(times, dim=2).repeat_interleave(times, dim=3)
    tiles = functional.pad(pixels, (_GAP_PIXELS, _GAP_PIXELS, _GAP_PIXELS, _LABEL_PIXELS), value=1.0)
    columns = min(_COLUMNS, len(tiles))
    empty = tiles.new_ones(-len(tiles) % columns, *tiles.shape[1:])
    rows = torch.cat([tiles, empty]).reshape(-1, columns, *tiles.shape[1:])
    grid = rows.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # row, height, column, width, channel
    picture = Image.fromarray((grid * 255).round().to(torch.uint8).squeeze(2).numpy())
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    tile_height, tile_width = tiles.shape[2:]
    for index, label in enumerate(labels[: len(pixels)]):
        row, column = divmod(index, columns)
        place = column * tile_width + _GAP_PIXELS, (row + 1) * tile_height - _LABEL_PIXELS // 2
        draw.text(place, label[: tile_width // _CHARACTER_PIXELS], fill="black", font=font, anchor="lm")
    png = io.BytesIO()
    picture.save(png, "PNG")
    return png.getvalue()


def summarise(network: nn.Module) -> str:
    """Return the network as PyTorch prints it, and how large it is."""
    trainable = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    state_bytes = sum(tensor.nbytes for tensor in chain(network.parameters(), network.buffers()))
    return (
        f"{network}\n\n"
        f"parameters  {count_parameters(network):,}\n"
        f"trainable   {trainable:,}\n"
        f"size        {state_bytes / 1e6:,.2f} MB, with buffers\n"
    )


def write_views(folder: Path, network: nn.Module, training: Batches, manifest: Manifest) -> None:
    """Write the first batch of the first epoch, if it is of images, and the network's summary."""
    if manifest.dtype == "uint8":
        images, targets = next(iter(training.train_batches(0)))
        labels = [_label(target, manifest) for target in targets[:MOST_IMAGES].tolist()]
        write_bytes_atomically(folder / records.FIRST_BATCH, draw_grid(images, labels, (manifest.mean, manifest.std)))
    write_bytes_atomically(folder / records.SUMMARY, summarise(network).encode())


def _label(target: Any, manifest: Manifest) -> str:
    """Return an image's class, its values, or the labels that it has."""
    if manifest.task == "classes":
        return str(manifest.class_names[target])
    if manifest.task == "values":
        return ", ".join(f"{value:g}" for value in target)
    return ", ".join(name for name, has_it in zip(manifest.class_names, target, strict=True) if has_it)
