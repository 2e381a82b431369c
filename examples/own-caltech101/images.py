"""The Caltech tutorial's data set, as a class of one's own: images whose paths and labels stand in a CSV."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from PIL import Image
from torch.utils.data import Dataset


class Listed(Dataset[tuple[Image.Image, int]]):
    """The images that `table` lists, a path and a label each; the paths start at the table's folder."""

    def __init__(self, table: str, side: int = 32) -> None:
        self.folder, self.side = Path(table).parent, side
        self.rows = pd.read_csv(table)
        self.classes = sorted(self.rows["label"].unique())

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        """What is packed: the image in one size for all, and the number of its class."""
        row = self.rows.iloc[index]
        with Image.open(self.folder / row["path"]) as image:
            return image.convert("RGB").resize((self.side, self.side)), self.classes.index(row["label"])
