"""A regression on a table with two inputs: numbers, and categories that a network embeds."""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import Dataset

Inputs = tuple[torch.Tensor, torch.Tensor]


class Patients(Dataset[tuple[Inputs, torch.Tensor]]):
    """Figures of a patient, the sex and a decade of age; and the disease's progress in a year."""

    target_names = ("progression",)

    def __init__(self) -> None:
        table = load_diabetes(scaled=False)
        figures = torch.from_numpy(table.data).float()
        age, sex = figures[:, 0], figures[:, 1]
        self.categories = torch.stack([sex - 1, age // 10], dim=1).long()
        numbers = figures[:, 2:]
        self.numbers = (numbers - numbers.mean(dim=0)) / numbers.std(dim=0)
        self.progression = torch.from_numpy(table.target).float() / 100

    def __len__(self) -> int:
        return len(self.progression)

    def __getitem__(self, row: int) -> tuple[Inputs, torch.Tensor]:
        """Return both inputs of a row, and its target."""
        return (self.numbers[row], self.categories[row]), self.progression[row]


class Net(nn.Module):
    """Embeds the categories, and reads them beside the numbers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.sex, self.decade = nn.Embedding(2, 2), nn.Embedding(10, 4)
        self.layers = nn.Sequential(nn.Linear(8 + 6, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        """Return a value for each row."""
        sex, decade = self.sex(categories[:, 0]), self.decade(categories[:, 1])
        values: torch.Tensor = self.layers(torch.cat([numbers, sex, decade], dim=1))
        return values
