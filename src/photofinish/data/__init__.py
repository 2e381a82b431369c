"""Data sets: sources, their division into parts, and the packed split.

These names describe a split. Importing them needs neither PIL nor PyTorch.
"""

from __future__ import annotations

from typing import Literal

MANIFEST = "manifest.json"
"""File that describes a packed split."""
PartName = Literal["train", "validation", "test"]
Task = Literal["classes", "values", "labels"]
"""Target of a sample: a class, floats, or yes or no for each of several labels."""
Dtype = Literal["uint8", "float32", "int64"]
"""Dtype that samples are packed in: uint8 for images, else what networks take."""
