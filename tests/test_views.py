"""What a result holds to be looked at: the batch that training really began with, and the network it trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeExperiment

from photofinish.data.packed import PackedSplit
from photofinish.models.registry import build_model
from photofinish.results import records
from photofinish.runs.views import draw_grid, summarise, write_views
from photofinish.training.batches import Normaliser, Part, batch_order
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU


@pytest.fixture
def write(make_experiment: MakeExperiment, packed_split: PackedSplit) -> Any:
    """Write the views of an experiment, with its settings overridden; the two files."""
    manifest = packed_split.manifest

    def write(folder: Path, **overrides: Any) -> list[bytes]:
        experiment = make_experiment(**overrides)
        part = Part(
            "train", packed_split.images("train"), packed_split.labels("train"), Normaliser(manifest.mean, manifest.std)
        )
        network = build_model(experiment.model, manifest.shape, 3, experiment.seed)
        write_views(folder, network, make_batches(experiment, part, CPU), manifest)
        return [(folder / name).read_bytes() for name in (records.FIRST_BATCH, records.SUMMARY)]

    return write


def test_the_picture_is_of_the_first_batch_of_the_first_epoch_with_its_classes(
    write: Any, packed_split: PackedSplit, tmp_path: Path
) -> None:
    picture, _ = write(tmp_path, batch_size=5, seed=7)
    rows = batch_order(packed_split.manifest.counts["train"], 7, 0)[:5].numpy()
    images = torch.from_numpy(np.array(packed_split.images("train"))[rows]).float() / 255
    names = [f"class {label}" for label in packed_split.labels("train")[rows]]
    assert picture == draw_grid(images, names, ((0.0,), (1.0,)))


@pytest.mark.parametrize(
    ("task", "targets", "told"),
    [("values", [[1.5, -2.0]], "1.5, -2"), ("labels", [[0.0, 1.0]], "class 1"), ("classes", [1], "class 1")],
)
def test_an_image_of_another_task_is_shown_with_what_is_to_be_told_of_it(
    make_experiment: MakeExperiment, packed_split: PackedSplit, tmp_path: Path, task: str, targets: Any, told: str
) -> None:
    manifest = packed_split.manifest.model_copy(update={"task": task, "class_names": ("class 0", "class 1")})
    images = packed_split.images("train")[:1]
    part = Part("train", images, np.array(targets), Normaliser(manifest.mean, manifest.std))
    experiment = make_experiment()
    network = build_model(experiment.model, manifest.shape, 2, seed=0)
    write_views(tmp_path, network, make_batches(experiment, part, CPU), manifest)
    shares = torch.from_numpy(np.array(images)).float() / 255
    assert (tmp_path / records.FIRST_BATCH).read_bytes() == draw_grid(shares, [told], ((0.0,), (1.0,)))


def test_the_summary_is_the_networks(write: Any, make_experiment: MakeExperiment, tmp_path: Path) -> None:
    _, summary = write(tmp_path)
    network = build_model(make_experiment().model, (1, 8, 8), 3, seed=1)
    assert summary.decode() == summarise(network, (1, 8, 8))


def test_both_input_paths_give_the_same_picture(write: Any, tmp_path: Path) -> None:
    assert write(tmp_path / "resident") == write(tmp_path / "loader", input={"name": "loader"})


def test_another_seed_gives_another_picture(write: Any, tmp_path: Path) -> None:
    one, other = (write(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    assert one[0] != other[0]
