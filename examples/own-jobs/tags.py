"""Several labels a sample, most of them rare."""

from __future__ import annotations

import torch
from sklearn.datasets import make_multilabel_classification
from torch.utils.data import Dataset


class Tags(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Counts of 40 words, and which of 20 tags they go with."""

    classes = tuple(f"tag {number}" for number in range(20))

    def __init__(self) -> None:
        words, tags = make_multilabel_classification(
            n_samples=800, n_features=40, n_classes=20, n_labels=3, random_state=0
        )
        self.words, self.tags = torch.from_numpy(words).float(), torch.from_numpy(tags)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the words' counts, and a 0 or 1 for each tag, in floats as PyTorch's loss."""
        return self.words[row], self.tags[row].float()
