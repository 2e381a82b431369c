"""From a source to a packed split, which then is only ever read.

Here, the words that a split is described in, which other topics have without its readers of images.
"""

from __future__ import annotations

from typing import Literal

MANIFEST = "manifest.json"
"""describes a packed split"""
PartName = Literal["train", "validation", "test"]
Task = Literal["classes", "values", "labels"]
"""what is to be told of an item: which one class it is of, one value or more, or each of several labels, yes or no"""
Dtype = Literal["uint8", "float32", "int64"]
"""what items are packed in: bytes of images, or numbers as networks take them"""
