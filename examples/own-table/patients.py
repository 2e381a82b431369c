"""A table as a custom data set: ten figures of a patient, and the disease's progress in a year.

It comes with scikit-learn: https://scikit-learn.org/stable/datasets/toy_dataset.html
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes
from torch.utils.data import Dataset


class Patients(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows of a table. Targets that are floats make it a regression."""

    target_names = ("progression",)

    def __init__(self) -> None:
        table = load_diabetes()
        # The factor gives a standard deviation of about 1.
        self.figures = torch.from_numpy(table.data).float() * 20
        self.progression = torch.from_numpy(table.target).float() / 100

    def __len__(self) -> int:
        return len(self.progression)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a row of the table, and its target."""
        return self.figures[index], self.progression[index]
