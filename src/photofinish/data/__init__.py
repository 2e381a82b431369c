"""Data sets: sources, their division into parts, and the packed split.

These names describe a split. Importing them needs neither PIL nor PyTorch.
"""

from __future__ import annotations

from typing import Literal

MANIFEST = "manifest.json"
"""File that describes a packed split."""
PartName = Literal["train", "validation", "test"]
TaskName = Literal["classes", "values", "labels", "custom"]
"""Target of a sample: a class (or one for each position), floats, or yes or no for each label."""
Shape = tuple[int | None, ...]
"""Shape of a sample. None stands for a side that differs from sample to sample."""
IGNORED_CLASS = -100
"""Class of a position that doesn't count, by default of PyTorch's cross_entropy."""
Dtype = Literal["uint8", "float32", "int64"]
"""Dtype that samples are packed in: uint8 for images, else what networks take."""
