"""What every source has in common, and scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import digits_plan
from sklearn.datasets import load_digits

from photofinish.data.sources import download, read_raw

DIGITS = digits_plan()


def test_the_digits_are_those_of_scikit_learn_with_their_shades_spread_over_a_byte(tmp_path: Path) -> None:
    digits, raw = load_digits(), read_raw(DIGITS, tmp_path)
    images = raw.read(np.arange(1797))
    assert images.shape == (1797, *raw.shape) == (1797, 1, 8, 8)
    assert images.dtype == np.uint8
    assert np.array_equal(images[:, 0], np.round(digits.images * 255 / 16))
    assert np.array_equal(raw.labels, digits.target)
    assert raw.labels.dtype == np.int64
    assert raw.class_names == tuple("0123456789")


def test_downloading_again_gives_the_same_bytes_and_reading_leaves_no_file(tmp_path: Path) -> None:
    contents = []
    for name in ("first", "again"):
        download(DIGITS, tmp_path / name)
        read_raw(DIGITS, tmp_path / name)
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
    assert contents[0].keys() == {"source.json"}


def test_a_full_disk_is_reported_with_the_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> object:
        return Path("/dev/full").open("wb", buffering=0)

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(Exception, match="no room for data set 'small'"):
        read_raw(DIGITS, tmp_path)
