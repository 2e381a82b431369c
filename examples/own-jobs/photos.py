"""Photos that are decoded and cropped in each epoch, as most image classifiers are trained."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.utils.data import Dataset


class Photos(Dataset[tuple[Image.Image, int]]):
    """JPEG files of many sizes, cut out of scikit-learn's two photos: a temple and a flower."""

    classes = ("temple", "flower")

    def __init__(self, count: int = 240) -> None:
        photos = load_sample_images().images
        draw = np.random.default_rng(0)
        self.files: list[bytes] = []
        for row in range(count):
            photo = photos[row % 2]
            height, width = draw.integers(60, 120, size=2)
            top, left = (draw.integers(0, 300) for _ in range(2))
            file = io.BytesIO()
            Image.fromarray(photo[top : top + height, left : left + width]).save(file, "jpeg")
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        """Decode a file."""
        return Image.open(io.BytesIO(self.files[row])).convert("RGB"), row % 2
