"""Parts never overlap, are drawn evenly by the seed, and show damage."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PARTS, digits_plan, from_array, learnable_images
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import plan_of
from numpy.typing import ArrayLike

from photofinish.config.datasets import DatasetPlan
from photofinish.data import PartName
from photofinish.data.images import Int64Array
from photofinish.data.packed import PackedSplit, part_file
from photofinish.data.raw_data import RawData
from photofinish.data.split import divide, split
from photofinish.errors import ConfigError
from photofinish.files import sha256_of_file

LABELS: Int64Array = np.arange(120, dtype=np.int64) % 3


def divide_labels(labels: ArrayLike, **settings: float) -> dict[PartName, Int64Array]:
    values = np.array(labels, dtype=np.int64)
    images = np.zeros((len(values), 1, 1, 1), dtype=np.uint8)
    return divide(from_array(images, values, ()), digits_plan(**settings))


def local_plan(**settings: Any) -> DatasetPlan:
    parts = {"train": "a", "validation": "b", "test": "c"}
    return plan_of(source="folder", parts=parts, **settings)


def with_duplicates(own_parts: bool = True) -> RawData:
    """Return data whose test part, images 100 to 119, has two training images."""
    images = learnable_images().inputs[np.arange(120)].copy()
    images[[105, 109]] = images[[6, 8]]
    parts: dict[PartName, Int64Array] = {}
    if own_parts:
        parts = {"train": np.arange(90), "validation": np.arange(90, 100)}
        parts["test"] = np.arange(100, 120)
    raw = from_array(images, LABELS, ("cat", "dog", "owl"), parts)
    return replace(raw, name_of="photos/{}.png".format)


@pytest.mark.parametrize(
    ("validation", "test", "expected"),
    [
        (0.2, 0.1, (84, 24, 12)),
        (30, 9, (81, 30, 9)),
        (0.129, 0.121, (90, 15, 15)),  # rounded
    ],
)
def test_sizes_are_fractions_or_counts(
    validation: float | int, test: float | int, expected: tuple[int, int, int]
) -> None:
    rows = divide_labels(LABELS, validation=validation, test=test)
    assert tuple(len(rows[part]) for part in PARTS) == expected


@settings(max_examples=60)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    validation=st.one_of(st.integers(1, 30), st.floats(0.01, 0.99)),
    test=st.one_of(st.integers(1, 30), st.floats(0.01, 0.99)),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_image_is_in_exactly_one_part_or_the_split_is_refused(
    labels: list[int], validation: float | int, test: float | int, seed: int
) -> None:
    try:
        rows = divide_labels(labels, validation=validation, test=test, seed=seed)
    except ConfigError:
        return
    assert sorted(np.concatenate([*rows.values()]).tolist()) == [*range(len(labels))]
    assert all(len(part) for part in rows.values())


def test_each_part_holds_the_classes_in_their_proportions_and_the_seed_decides_which() -> None:
    labels = np.array([0] * 200 + [1] * 100 + [2] * 20)
    rows, again, other = (divide_labels(labels, test=0.1, seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(rows[part], again[part]) for part in PARTS)
    assert not any(np.array_equal(rows[part], other[part]) for part in PARTS)
    counts = {part: np.bincount(labels[rows[part]]).tolist() for part in PARTS}
    assert counts == {"train": [140, 70, 14], "validation": [40, 20, 4], "test": [20, 10, 2]}


@pytest.mark.parametrize(
    ("labels", "test", "part"),
    [
        ([0] * 30 + [1], 6, "test"),  # a class of one image
        ([0, 1, 2] * 10, 2, "test"),  # fewer images than classes
        ([0, 1, 2] * 10, 24, "validation"),  # nothing is left to train on
    ],
)
def test_a_part_that_cannot_be_drawn_evenly_is_named(
    labels: list[int], test: int, part: str
) -> None:
    message = rf"a {part} part of \d+ samples can't be drawn evenly for datasets\.small .*: "
    with pytest.raises(ConfigError, match=message):
        divide_labels(labels, validation=6, test=test)
    with pytest.raises(ConfigError, match=r"^datasets\.small\.test .* must be removed"):
        divide(with_duplicates(), digits_plan())
    with pytest.raises(ConfigError, match=r"^datasets\.birds\.test in params.yaml is required"):
        divide(with_duplicates(own_parts=False), local_plan())


def test_the_manifest_describes_the_files(tmp_path: Path) -> None:
    grey = learnable_images()
    shades = grey.inputs[np.arange(len(grey.labels))]
    # Three channels, the last of a single value.
    images = np.concatenate([shades, shades // 2, np.full_like(shades, 7)], axis=1)
    raw = from_array(images, grey.labels, grey.class_names)
    manifest = split(digits_plan(test=0.1), raw, tmp_path)
    assert manifest == PackedSplit(tmp_path).manifest
    assert manifest.counts == {"train": 84, "validation": 24, "test": 12}
    assert manifest.shape == (3, 8, 8)
    assert manifest.class_names == ("class 0", "class 1", "class 2")
    names = [f"{part}-{content}.npy" for part in PARTS for content in ("images", "labels", "rows")]
    assert manifest.sha256 == {name: sha256_of_file(tmp_path / name) for name in names}
    for part in PARTS:
        packed, rows = PackedSplit(tmp_path), np.load(tmp_path / part_file(part, "rows"))
        assert isinstance(packed.images(part), np.memmap)
        assert np.array_equal(packed.images(part), raw.inputs[rows])
        assert np.array_equal(packed.labels(part), raw.labels[rows])
    training = PackedSplit(tmp_path).images("train") / 255.0
    assert manifest.mean == pytest.approx(training.mean(axis=(0, 2, 3)).tolist(), rel=1e-12)
    deviations = training.std(axis=(0, 2, 3)).tolist()[:2]
    assert manifest.std == pytest.approx([*deviations, 1.0], rel=1e-12)


def test_an_image_in_two_parts_of_the_user_is_refused_unless_it_is_allowed_or_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = "2 of 20 test images are also train images, such as photos/6.png and photos/105.png"
    allowing = r"datasets\.birds\.allow_duplicates: true"
    with pytest.raises(ConfigError, match=f"{warning}.*{allowing}"):
        split(local_plan(), with_duplicates(), tmp_path / "refused")
    assert not (tmp_path / "refused/manifest.json").exists()
    split(local_plan(allow_duplicates=True), with_duplicates(), tmp_path)
    assert f"note: {warning}" in capsys.readouterr().out.splitlines()
    plan = plan_of(source="folder", path="photos", test=0.5, validation=0.4)
    split(plan, with_duplicates(own_parts=False), tmp_path / "drawn")
    noted = capsys.readouterr().out
    assert re.match(r"note: [12] of \d+ \w+ images are also \w+ images, such as", noted)
