"""Small image files, and the data sets and stage runs that tests make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from photofinish.config.datasets import DatasetPlan
from photofinish.data.images import UInt8Array

RED, GREEN, BLUE = (220, 20, 20), (20, 220, 20), (20, 20, 220)


def picture(colour: tuple[int, int, int] = RED, width: int = 8, height: int = 6) -> Image.Image:
    """Return an image whose left half has the colour and whose right half is black."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[:, : width // 2] = colour
    return Image.fromarray(pixels)


def write_picture(
    path: Path, colour: tuple[int, int, int] = RED, width: int = 8, height: int = 6
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(colour, width, height).save(path)
    return path


def plan_of(**dataset: Any) -> DatasetPlan:
    plan = {"name": "birds", "dataset": dataset, "local_files": None}
    return DatasetPlan.model_validate_json(json.dumps(plan, default=str))


def through_pil(path: Path, size: tuple[int, int] | None = None) -> UInt8Array:
    """Load a file like torchvision's default loader, as (channels, height, width)."""
    with Image.open(path) as image:
        image = image.convert("RGB")
        if size is not None:
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        return np.asarray(image).transpose(2, 0, 1)
