"""A table as a data set of one's own: ten figures of a patient, and how far a disease went within a year.

They come with scikit-learn (https://scikit-learn.org/stable/datasets/toy_dataset.html#diabetes-dataset)."""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes
from torch.utils.data import Dataset


class Patients(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A float, or a vector of floats, is a value to be told: a regression."""

    target_names = ("progression",)

    def __init__(self) -> None:
        table = load_diabetes()
        self.figures = torch.from_numpy(table.data).float() * 20  # which have a standard deviation of about 1 then
        self.progression = torch.from_numpy(table.target).float() / 100

    def __len__(self) -> int:
        return len(self.progression)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A row of the table, and its target."""
        return self.figures[index], self.progression[index]
