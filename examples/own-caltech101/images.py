"""The Caltech tutorial's images as a custom data set: CSVs list their paths and labels."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from PIL import Image
from torch.utils.data import Dataset


class Listed(Dataset[tuple[Image.Image, int]]):
    """Images that a part's CSV lists. Their paths start at the CSV's folder."""

    def __init__(self, folder: str, part: str, side: int = 32) -> None:
        self.folder, self.side = Path(folder), side
        self.rows = pd.read_csv(self.folder / f"{part}.csv")
        labels = pd.read_csv(self.folder / "train.csv")["label"]
        self.classes = sorted(labels.unique())  # the same numbers in all parts

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        """Return an image, resized to the size of all, and the number of its class."""
        row = self.rows.iloc[index]
        with Image.open(self.folder / row["path"]) as image:
            image = image.convert("RGB").resize((self.side, self.side))
        return image, self.classes.index(row["label"])
