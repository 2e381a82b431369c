"""Small archives in the real formats are unpacked and loaded by torchvision's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from torchvision import datasets
from torchvision_archives import MAKERS, accept

from photofinish.config.catalogue import DATASETS
from photofinish.config.datasets import Dataset, DatasetPlan
from photofinish.data.raw_data import RawData, read_raw
from photofinish.data.sources import download
from photofinish.errors import UserError

SHAPES = {"SVHN": (3, 32, 32), "MNIST": (1, 28, 28)}
COUNTS = {
    "Imagenette": (10, 10, 0), "MNIST": (20, 0, 10), "SVHN": (20, 0, 10),
}  # fmt: skip
NAMES = {
    "Caltech101": ("anchor", "barrel"),
    "SVHN": tuple("0123456789"),
}
FIRST_LABELS: dict[str, list[int]] = {
    "SVHN": [1, 2, 3, 4, 5, 6, 7, 8, 9, 0],  # 1 to 10 in the file, of which 10 is the digit 0
}


def plan_of(source: str, root: Path | None, **settings: Any) -> DatasetPlan:
    own = DATASETS.get(source, ())
    drawn = {part: 0.2 for part in ("validation", "test") if part not in own}
    values = {"source": source, "root": root and str(root), **drawn, **settings}
    return DatasetPlan(
        name="mine", dataset=TypeAdapter(Dataset).validate_python(values), local_files=None
    )


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)


def make_root(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = MAKERS[source](monkeypatch)
    accept(monkeypatch, made)
    for name, data in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def read(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> RawData:
    plan = plan_of(source, make_root(source, tmp_path / "root", monkeypatch), **settings)
    return read_raw(plan, tmp_path / "raw")


@pytest.mark.parametrize("source", MAKERS)
def test_each_is_unpacked_from_its_root_and_read_with_its_parts(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = read(source, tmp_path, monkeypatch, **({} if source in SHAPES else {"size": 5}))
    rows = np.arange(len(raw.labels))
    images = raw.inputs[rows]
    assert images.dtype == np.uint8
    assert images.shape == (len(rows), *SHAPES.get(source, (3, 5, 5)))
    counts = tuple(len(raw.own_parts.get(part, ())) for part in ("train", "validation", "test"))
    assert counts == COUNTS.get(source, (0, 0, 0))
    if raw.own_parts:
        assert np.array_equal(np.concatenate(list(raw.own_parts.values())), rows)
    assert raw.labels.dtype == np.int64
    assert raw.labels.max() < len(raw.class_names)
    assert raw.class_names == NAMES.get(source, raw.class_names)
    if source == "Imagenette":
        assert raw.class_names[:2] == ("tench", "English springer")
    if source in FIRST_LABELS:
        assert raw.labels[: len(FIRST_LABELS[source])].tolist() == FIRST_LABELS[source]


@pytest.mark.parametrize("source", ["MNIST", "SVHN"])
def test_images_are_those_that_torchvision_shows(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = read(source, tmp_path, monkeypatch)
    arguments = {"train": True} if source == "MNIST" else {}
    shown = getattr(datasets, source)(root=str(tmp_path / "root"), **arguments)
    for row, image in enumerate(raw.inputs[raw.own_parts["train"]]):
        expected, label = shown[row]
        assert np.array_equal(image.transpose(1, 2, 0).squeeze(), np.asarray(expected))
        assert raw.labels[row] == label


@pytest.mark.parametrize("root", [None, "root"])
def test_a_failed_download_names_the_key_for_machines_without_internet(
    root: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    with pytest.raises(
        UserError, match=r"(?s)^data set 'mine': .*MNIST.*datasets\.mine\.root in params\.yaml"
    ):
        download(plan_of("MNIST", root and tmp_path / root), tmp_path / "raw")
    assert not (tmp_path / "raw").exists()


def test_downloads_are_kept_for_other_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_root("MNIST", tmp_path / ".photofinish/downloads", monkeypatch)
    download(plan_of("MNIST", None), tmp_path / "raw")
    for archive in (tmp_path / ".photofinish/downloads").rglob("*.gz"):
        archive.unlink()
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    assert len(read_raw(plan_of("MNIST", None, validation=3), tmp_path / "raw").labels) == 30
