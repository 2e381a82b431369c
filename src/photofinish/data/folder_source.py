"""A folder a class, as torchvision's ImageFolder reads them: which classes there are, and their image files."""

from __future__ import annotations

from pathlib import Path

from photofinish.data.listed_images import ListedImage, Problem, check_images, check_labels, keep_copies, refuse
from photofinish.data.local_files import IMAGE_SUFFIXES, ClassFolder, class_folders
from photofinish.params.datasets import DatasetPlan, FolderDataset, Place, places

"""torchvision's IMG_EXTENSIONS"""


_COLOURS = 3


def fetch(plan: DatasetPlan, folder: Path) -> None:
    """Check everything, then copy; a MistakeError tells of all that is wrong."""
    name, dataset = plan.name, plan.dataset
    assert isinstance(dataset, FolderDataset)
    listed: list[ListedImage] = []
    problems: list[Problem] = []
    class_names: list[str] = []
    for place in places(dataset):
        classes = class_folders(place.path)
        if place.part in ("train", None):
            class_names = [found.name for found in classes]
        problems += _folder_problems(place, classes, class_names)
        listed += [_listed(place, found.name, path) for found in classes for path in found.images]
    shape, faults = check_images(name, listed, dataset.size, dataset.channels or _COLOURS)
    refuse(name, problems + faults)
    if shape is not None:
        keep_copies(listed, class_names, shape, folder)


def _folder_problems(place: Place, classes: list[ClassFolder], class_names: list[str]) -> list[Problem]:
    if not classes:
        return [Problem(place.given, 0, "has no folders in it: it must have a folder of images for each class")]
    problems = []
    for found in classes:
        for linked in found.linked_folders:
            text = "is a link to a folder, which isn't followed: put the folder itself there"
            problems.append(Problem(f"{place.given}/{linked}", 0, text))
        if not found.images and not found.linked_folders:
            text = f"has no images; their names end in {', '.join(IMAGE_SUFFIXES)}"
            problems.append(Problem(f"{place.given}/{found.name}", 0, text))
    folders = [_listed(place, found.name, found.name) for found in classes]
    return problems + check_labels(folders, class_names, "the class folders of the training part")


def _listed(place: Place, class_name: str, path: str) -> ListedImage:
    return ListedImage(f"{place.given}/{path}", 0, place.path, path, class_name, place.part)
