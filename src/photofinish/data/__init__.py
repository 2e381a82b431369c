"""Data sets: sources, their division into parts, and the packed split.

This module has only the names that describe a split, so that others import them without PIL or torch.
"""

from __future__ import annotations

from typing import Literal

MANIFEST = "manifest.json"
"""file that describes a packed split"""
PartName = Literal["train", "validation", "test"]
Task = Literal["classes", "values", "labels"]
"""what a network predicts for an item: one class, one or more values, or yes or no for each of several labels"""
Dtype = Literal["uint8", "float32", "int64"]
"""dtype that items are packed in: uint8 for images, else what networks take"""
