"""Raw data: fetched whole or not at all, and read back as it was fetched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import digits_plan
from sklearn.datasets import load_digits

from photofinish.data import sources
from photofinish.data.sources import Source, download, read_raw
from photofinish.errors import UserError
from photofinish.params.datasets import DatasetPlan

DIGITS = digits_plan()


def fetch_half(_plan: DatasetPlan, folder: Path) -> None:
    (folder / "images.npy").write_bytes(b"half of it")
    raise ConnectionError("the line went dead")


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / "digits"
    download(DIGITS, folder)
    return folder


@pytest.fixture
def raw(fetched: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    folder = tmp_path / "digits"
    folder.mkdir()
    for path in fetched.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_the_digits_are_those_of_scikit_learn_with_their_shades_spread_over_a_byte(fetched: Path) -> None:
    digits, raw = load_digits(), read_raw(DIGITS, fetched)
    images = raw.read(np.arange(1797))
    assert images.shape == (1797, *raw.shape) == (1797, 1, 8, 8)
    assert images.dtype == np.uint8
    assert np.array_equal(images[:, 0], np.round(digits.images * 255 / 16))
    assert np.array_equal(raw.labels, digits.target)
    assert raw.labels.dtype == np.int64
    assert raw.class_names == tuple("0123456789")


def test_fetching_again_gives_the_same_bytes(fetched: Path, tmp_path: Path) -> None:
    download(DIGITS, tmp_path / "again")
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (fetched, tmp_path / "again")]
    assert contents[0] == contents[1]


def test_a_fetch_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources.SOURCES, "digits", Source(fetch_half, sources.SOURCES["digits"].read))
    with pytest.raises(ConnectionError):
        download(DIGITS, tmp_path / "raw" / "digits")
    assert list((tmp_path / "raw").iterdir()) == []


def test_a_disk_that_is_full_is_named_with_the_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch_onto_a_full_disk(plan: DatasetPlan, folder: Path) -> None:
        (folder / "images.npy").symlink_to("/dev/full")
        sources.fetch_digits(plan, folder)

    monkeypatch.setitem(sources.SOURCES, "digits", Source(fetch_onto_a_full_disk, sources.SOURCES["digits"].read))
    with pytest.raises(UserError, match=r"no room for data set 'small': the disk of .*digits\.unfinished is full"):
        download(DIGITS, tmp_path / "raw" / "digits")
    assert list((tmp_path / "raw").iterdir()) == []


def test_a_fetch_that_fails_keeps_what_was_fetched_before(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources.SOURCES, "digits", Source(fetch_half, sources.SOURCES["digits"].read))
    with pytest.raises(ConnectionError):
        download(DIGITS, raw)
    assert len(read_raw(DIGITS, raw).labels) == 1797


def test_what_a_killed_fetch_left_is_not_taken_for_data(tmp_path: Path) -> None:
    left_over = tmp_path / ".digits.unfinished"
    left_over.mkdir()
    (left_over / "half.npy").write_bytes(b"half of it")
    download(DIGITS, tmp_path / "digits")
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]
    assert not (tmp_path / "digits" / "half.npy").exists()


@pytest.mark.parametrize("name", ["images.npy", "labels.npy"])
@pytest.mark.parametrize("damage", ["one bit", "cut short", "gone"])
def test_a_damaged_raw_file_is_named(raw: Path, name: str, damage: str) -> None:
    path = raw / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data[:-1] if damage == "cut short" else data)
    if damage == "gone":
        path.unlink()
    with pytest.raises(UserError, match="missing or damaged") as caught:
        read_raw(DIGITS, raw)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("data", [None, b"", b"{", b"\xff\xfe"], ids=["gone", "empty", "cut short", "not text"])
def test_a_damaged_list_of_checksums_is_named(raw: Path, data: bytes | None) -> None:
    listing = raw / "sha256.json"
    listing.unlink()
    if data is not None:
        listing.write_bytes(data)
    with pytest.raises(UserError, match="can't be read") as caught:
        read_raw(DIGITS, raw)
    assert str(listing) in str(caught.value)
