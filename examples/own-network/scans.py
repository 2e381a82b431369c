"""A data set of one's own: images that a CSV lists, as the Caltech tutorial has them.

`datasets: {scans: {source: "./examples/own-network/scans.py:Scans", root: data/scans, validation: 0.1, test: 0.1}}`
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from PIL import Image
from torch.utils.data import Dataset


class Scans(Dataset[tuple[Image.Image, int]]):
    """The images in `root`, whose table names each one's path and label."""

    def __init__(self, root: str, table: str = "labels.csv", side: int = 32) -> None:
        self.root, self.side = Path(root), side
        self.rows = pd.read_csv(self.root / table)
        self.classes = sorted(self.rows["label"].unique())

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        """What is packed: the image in one size for all, and the number of its class."""
        row = self.rows.iloc[index]
        with Image.open(self.root / row["path"]) as image:
            return image.convert("RGB").resize((self.side, self.side)), self.classes.index(row["label"])
