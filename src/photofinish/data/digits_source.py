"""Source of scikit-learn's handwritten digits."""

from __future__ import annotations

import numpy as np

from photofinish.config.datasets import DatasetPlan
from photofinish.data.samples import Source

_BRIGHTEST = 16


def open_digits(_plan: DatasetPlan) -> Source:
    """Return scikit-learn's digits, with values scaled from 0 to 16 to a byte."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / _BRIGHTEST)).astype(np.uint8)[:, np.newaxis]
    return Source(list(zip(images, digits.target, strict=True)))
