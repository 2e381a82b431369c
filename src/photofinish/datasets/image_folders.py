"""A folder a class, as torchvision's ImageFolder reads them: which classes there are, and their image files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's IMG_EXTENSIONS"""


@dataclass(frozen=True)
class ClassFolder:
    name: str
    images: list[str] = field(default_factory=list)
    """relative to the folder that holds the classes, in torchvision's order"""
    linked_folders: list[str] = field(default_factory=list)
    """links to folders, which are not followed: they may lead anywhere, and round in circles"""


def class_folders(root: Path) -> list[ClassFolder]:
    """Sorted by name; what is hidden doesn't count."""
    return [_class_folder(root, name) for name in sorted(_visible(root)) if (root / name).is_dir()]


def _class_folder(root: Path, name: str) -> ClassFolder:
    found: list[tuple[str, str]] = []
    linked: list[str] = []
    todo = [name]
    while todo:
        folder = todo.pop()
        if (root / folder).is_symlink():
            linked.append(folder)
            continue
        for entry in _visible(root / folder).values():
            if os.path.isdir(entry):  # noqa: PTH112  # entry.is_dir() fails on a link that leads round in a circle
                todo.append(f"{folder}/{entry.name}")
            elif entry.name.lower().endswith(IMAGE_SUFFIXES):
                found.append((folder, entry.name))
    return ClassFolder(name, [f"{folder}/{file}" for folder, file in sorted(found)], sorted(linked))


def _visible(folder: Path) -> dict[str, os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return {entry.name: entry for entry in entries if not entry.name.startswith(".")}
