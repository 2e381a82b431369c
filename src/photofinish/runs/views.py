"""Views of a training: its progress, its first batch as a picture, its network in words."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from photofinish.data.packed import Manifest
from photofinish.files import write_bytes_atomically
from photofinish.models.registry import count_parameters
from photofinish.results import EpochMetrics, EpochTiming, records
from photofinish.training.batches import Batch
from photofinish.training.trainer import Trainer

MOST_IMAGES = 32
_COLUMNS = 8
_TILE_PIXELS = 96
"""About the longer side of an image."""
_LABEL_PIXELS, _GAP_PIXELS, _CHARACTER_PIXELS = 20, 4, 7

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel."""


class TrainingDisplay:
    """The progress of a training: a bar on a terminal, one line an epoch anywhere else."""

    def __init__(self, title: str, trainer: Trainer) -> None:
        self._title, self._bar = title, _training_bar(trainer)
        self._epochs, self._images = trainer.experiment.epochs, trainer.training.image_count
        self._bar.disable = not sys.stderr.isatty()
        steps = self._epochs * trainer.steps_per_epoch
        self._task = self._bar.add_task(title, total=steps, note="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line after the title, above the bar if there is one."""
        line = f"{self._title}  {text}"
        if self._bar.disable:
            print(line, flush=True)
        else:
            self._bar.console.print(line, highlight=False, markup=False)

    def epoch_ended(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        text = (
            f"epoch {metrics.epoch}/{self._epochs}  loss {metrics.training_loss:.4f}  "
            f"validation {metrics.validation_loss:.4f}"
        )
        if metrics.validation_accuracy is not None:
            text += f", {metrics.validation_accuracy:.2%}"
        if self._bar.disable:
            self.say(f"{text}  {self._images / timing.training_seconds:,.0f} images/s")
        else:
            self._bar.update(self._task, note=text)


def _training_bar(trainer: Trainer) -> Progress:
    class _Polled(Progress):
        """Reads the trainer's progress when it draws, so that the loop never reports it."""

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
    """Return a PNG of the first normalised images, each above its label.

    Torchvision would do half of it, but its import takes each training a second.
    """
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in normalisation)
    pixels = (images[:MOST_IMAGES].detach().cpu().float() * std + mean).clamp(0, 1)
    if pixels.shape[1] != 3:
        pixels = pixels.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    tiles = (pixels * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    height, width = tiles.shape[1:3]
    scale = _TILE_PIXELS / max(height, width)
    if scale > 1:  # whole multiples stay sharp
        scale = int(scale)
    size = max(1, int(width * scale)), max(1, int(height * scale))
    right, down = size[0] + 2 * _GAP_PIXELS, size[1] + _GAP_PIXELS + _LABEL_PIXELS
    columns = min(_COLUMNS, len(tiles))
    picture = Image.new("RGB", (columns * right, -(-len(tiles) // columns) * down), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    for index, (tile, label) in enumerate(zip(tiles, labels, strict=False)):
        left, top = index % columns * right + _GAP_PIXELS, index // columns * down + _GAP_PIXELS
        resampling = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
        picture.paste(Image.fromarray(tile).resize(size, resampling), (left, top))
        place = left, top + size[1] + _LABEL_PIXELS // 2
        text = label[: right // _CHARACTER_PIXELS]
        draw.text(place, text, fill="black", font=font, anchor="lm")
    png = io.BytesIO()
    picture.save(png, "PNG")
    return png.getvalue()


def summarise(network: nn.Module) -> str:
    """Return the network as PyTorch prints it, and how large it is."""
    trainable = sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
    tensors = chain(network.parameters(), network.buffers())
    state_bytes = sum(tensor.nbytes for tensor in tensors)
    return (
        f"{network}\n\n"
        f"parameters  {count_parameters(network):,}\n"
        f"trainable   {trainable:,}\n"
        f"size        {state_bytes / 1e6:,.2f} MB, with buffers\n"
    )


def write_views(folder: Path, network: nn.Module, first_batch: Batch, manifest: Manifest) -> None:
    """Write the first batch, if it is of images, and the network's summary."""
    if manifest.dtype == "uint8":
        images, targets = first_batch
        labels = [_label(target, manifest) for target in targets[:MOST_IMAGES].tolist()]
        picture = draw_grid(images, labels, (manifest.mean, manifest.std))
        write_bytes_atomically(folder / records.FIRST_BATCH, picture)
    write_bytes_atomically(folder / records.SUMMARY, summarise(network).encode())


def _label(target: Any, manifest: Manifest) -> str:
    """Return an image's class, its values, or the labels that it has."""
    if manifest.task == "classes":
        return str(manifest.class_names[target])
    if manifest.task == "values":
        return ", ".join(f"{value:g}" for value in target)
    names = zip(manifest.class_names, target, strict=True)
    return ", ".join(name for name, has_it in names if has_it)
