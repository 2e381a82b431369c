"""A CSV file as an editor shows it: every record with the line that it starts on.

Read with Python's own csv module: pandas knows no lines, cuts off what a record has too much, and takes longer to
import than `plan` may take in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from photofinish.data.images import PartName
from photofinish.data.listed_images import ListedImage, Problem, check_images, check_labels, keep_copies, refuse
from photofinish.data.local_files import CsvFile, read_csv
from photofinish.params.datasets import CsvDataset, DatasetPlan, Place, places
from photofinish.wording import nearest_name

_COLOURS = 3
_PARTS: dict[str, PartName] = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "test": "test",
}


def fetch(plan: DatasetPlan, folder: Path) -> None:
    """Check everything, then copy; a MistakeError tells of all that is wrong."""
    name, dataset = plan.name, plan.dataset
    assert isinstance(dataset, CsvDataset)
    listed: list[ListedImage] = []
    problems: list[Problem] = []
    for place in places(dataset):
        images, faults = _read(place, dataset)
        listed += images
        problems += faults
    names, faults = _class_names(dataset, listed)
    problems += faults + _part_problems(name, dataset, listed)
    shape, faults = check_images(name, listed, dataset.size, dataset.channels or _COLOURS)
    refuse(name, problems + faults)
    if shape is not None:
        keep_copies(listed, names, shape, folder)


def _read(place: Place, dataset: CsvDataset) -> tuple[list[ListedImage], list[Problem]]:
    table = read_csv(place.path)
    problems = [Problem(place.given, line, text) for line, text in table.problems]
    if not table.header:
        return [], problems
    if not table.records and not problems:
        problems.append(Problem(place.given, 0, "there are no rows below the header"))
    wanted = {"path_column": dataset.path_column, "label_column": dataset.label_column}
    if dataset.split_column is not None:
        wanted["split_column"] = dataset.split_column
    cells = {key: table.column(column) for key, column in wanted.items()}
    problems += [_no_column(place, table, key, wanted[key]) for key, column in cells.items() if column is None]
    paths, labels, splits = (cells.get(key) for key in ("path_column", "label_column", "split_column"))
    listed = []
    for index, path in enumerate(paths or ()):
        label, split = labels[index] if labels else None, splits[index] if splits else None
        part = place.part if split is None else _PARTS.get(split.lower())
        image = ListedImage(place.given, table.records[index].line, place.path.parent, path, label or "", part)
        listed.append(image)
        faults = _faults(label, split, any_label=dataset.classes is None)
        problems += [image.problem(fault) for fault in faults]
    return listed, problems


def _faults(label: str | None, split: str | None, *, any_label: bool) -> list[str]:
    """Of a row's cells, None where the column itself is missing."""
    faults = []
    if label == "":
        faults.append("the label is empty")
    elif label is not None and any_label and label != label.strip():
        faults.append(f"the label {label!r} has spaces around it")
    if split is not None and split.lower() not in _PARTS:
        faults.append(f"'{split}' is no part; allowed: {', '.join(_PARTS)}")
    return faults


def _no_column(place: Place, table: CsvFile, key: str, column: str) -> Problem:
    nearest = nearest_name(column, table.header)
    hint = f"; did you mean '{nearest}'?" if nearest else ";"
    shown = ", ".join(f"'{name}'" for name in table.header)
    commas = " (columns are to be separated by commas)" if any(mark in shown for mark in ";\t") else ""
    return Problem(place.given, 0, f"there is no column '{column}' ({key}){hint} it has: {shown}{commas}")


def _class_names(dataset: CsvDataset, listed: Sequence[ListedImage]) -> tuple[tuple[str, ...], list[Problem]]:
    if dataset.classes is not None:
        return dataset.classes, check_labels(listed, dataset.classes, "classes of params.yaml")
    learned_from = [image for image in listed if image.part in ("train", None)]
    names = tuple(sorted({image.label for image in learned_from if image.label}))
    if any(image.part == "train" for image in listed):
        return names, check_labels(listed, names, "the labels of the training rows")
    return names, []


def _part_problems(name: str, dataset: CsvDataset, listed: Sequence[ListedImage]) -> list[Problem]:
    """Where a column tells the parts: whether it and the sizes in params.yaml together make all three."""
    found = {image.part for image in listed}
    if dataset.split_column is None or found <= {None}:
        return []
    file, column = listed[0].file, f"'{dataset.split_column}'"
    problems = []
    if "train" not in found:
        problems.append(Problem(file, 0, f"no row has 'train' in the column {column}: there is nothing to train on"))
    for part, size in (("validation", dataset.validation), ("test", dataset.test)):
        key = f"datasets.{name}.{part}"
        if part in found and size is not None:
            problems.append(Problem(file, 0, f"the column {column} has a {part} part: leave {key} out of params.yaml"))
        if part not in found and size is None:
            text = f"no row has '{part}' in the column {column}: set {key} in params.yaml to draw that part"
            problems.append(Problem(file, 0, text))
    return problems
