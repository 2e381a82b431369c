"""Data sets: sources, their division into parts, and the packed split.

These names describe a split. Importing them needs neither PIL nor PyTorch.
"""

from __future__ import annotations

from typing import Literal, get_args

MANIFEST = "manifest.json"
"""File that describes a packed split."""
PartName = Literal["train", "validation", "test"]
PART_NAMES: tuple[PartName, ...] = get_args(PartName)
TaskName = Literal["classes", "values", "labels", "custom"]
"""Task: a class per sample or position, floats, or yes or no per label."""
Shape = tuple[int | None, ...]
"""Shape of a sample. None is a side that differs between samples."""
IGNORED_CLASS = -100
"""Class of ignored positions, the default of PyTorch's cross_entropy."""
Dtype = Literal["uint8", "float32", "int64"]
"""Dtype of packed samples: uint8 for images, else the dtype that networks get."""
