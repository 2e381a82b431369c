"""Scores equal those worked out by hand, also for a network read back from its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CustomFiles, MakeExperiment, MakeResult

from photofinish.config.experiment import Experiment
from photofinish.config.networks import CustomModel
from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.evaluation.evaluate import (
    evaluate,
    write_evaluation,
)
from photofinish.evaluation.scores import scores_of_classes, scores_of_labels
from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.machine.fingerprint import CpuTarget
from photofinish.models.registry import build_model
from photofinish.results import records
from photofinish.results.learned import weights_of
from photofinish.runs.run import Run
from photofinish.training.batches import Normaliser

ACTUAL = np.array([0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 1, 1, 2, 2])
NAMES = ("cat", "dog", "owl")
Leave = Callable[[torch.nn.Module, Experiment], Path]


@pytest.fixture
def run(
    make_experiment: MakeExperiment, cpu_host: CpuTarget, packed_split: PackedSplit, tmp_path: Path
) -> Run:
    return Run(
        "small-mlp", "cpu", make_experiment(), cpu_host, packed_split.folder, tmp_path / "cpu"
    )


@pytest.fixture
def network(run: Run) -> torch.nn.Module:
    return build_model(run.experiment.model, (1, 8, 8), 3, seed=5)


@pytest.fixture
def leave(packed_split: PackedSplit, make_result: MakeResult, tmp_path: Path) -> Leave:
    """Return a function that writes the files of a trained network."""

    def write(network: torch.nn.Module, experiment: Experiment) -> Path:
        folder, weights, manifest = (
            tmp_path / "cpu" / records.MODEL,
            weights_of(network),
            packed_split.manifest,
        )
        facts = {"class_names": manifest.class_names, "mean": manifest.mean, "std": manifest.std}
        own = {"weights_sha256": sha256_of_bytes(weights), "experiment": experiment}
        records.write_record(
            folder / records.RECORD, make_result().record.model_copy(update=facts | own)
        )
        write_bytes_atomically(folder / records.WEIGHTS, weights)
        return folder

    return write


@pytest.fixture
def learned(leave: Leave, network: torch.nn.Module, run: Run) -> Path:
    return leave(network, run.experiment)


def test_the_scores_are_those_worked_out_by_hand() -> None:
    scores = scores_of_classes(ACTUAL, PREDICTED, 0.5, NAMES)
    assert scores.confusion == ((2, 1, 0), (0, 1, 1), (0, 0, 1))
    assert scores.test_accuracy == pytest.approx(4 / 6)
    assert scores.test_loss == 0.5
    by_hand = {
        "cat": (1, 2 / 3, 4 / 5, 3),
        "dog": (1 / 2, 1 / 2, 1 / 2, 2),
        "owl": (1 / 2, 1, 2 / 3, 1),
    }
    for name, (precision, recall, f1, count) in by_hand.items():
        own = scores.classes[name]
        assert (own.precision, own.recall, own.f1) == pytest.approx((precision, recall, f1))
        assert own.image_count == count
    assert scores.macro_f1 == pytest.approx((4 / 5 + 1 / 2 + 2 / 3) / 3)


def test_a_single_label_is_scored_by_its_yes() -> None:
    scores = scores_of_labels(np.array([[1], [1], [0]]), np.array([[1], [0], [0]]), 0.5, ("a",))
    own = scores.classes["a"]
    assert (own.precision, own.recall, own.f1, own.image_count) == (1, 0.5, pytest.approx(2 / 3), 2)
    assert (scores.macro_f1, scores.test_accuracy) == pytest.approx((2 / 3, 2 / 3))


def outputs_of(network: torch.nn.Module, packed: PackedSplit) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a network's outputs for the test part, and the part's labels."""
    normalise = Normaliser(packed.manifest.mean, packed.manifest.std)
    with torch.inference_mode():
        outputs = network.eval()(normalise(torch.from_numpy(np.array(packed.images("test")))))
    return outputs, torch.from_numpy(packed.labels("test"))


def test_a_network_read_back_is_scored_on_the_test_images(
    learned: Path, network: torch.nn.Module, packed_split: PackedSplit
) -> None:
    devices = evaluate("small-mlp", {"cpu": learned, "gpu": learned}, packed_split)
    scores = devices.evaluation.devices["cpu"]
    assert scores == devices.evaluation.devices["gpu"]
    assert scores.weights_sha256 == sha256_of_bytes(weights_of(network))
    outputs, labels = outputs_of(network, packed_split)
    assert scores.test_accuracy == (outputs.argmax(1) == labels).sum().item() / len(labels)
    expected = torch.nn.functional.cross_entropy(outputs, labels).item()
    assert scores.test_loss == pytest.approx(expected, rel=1e-5)
    assert sum(map(sum, scores.confusion)) == len(labels)


CUSTOM = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.halved, self.whole = nn.Linear(64, 8, dtype=torch.bfloat16), nn.Linear(8, 3)
        self.register_buffer("turn", torch.full((8,), 1j))
    def forward(self, images):
        turned = self.halved(images.flatten(1).bfloat16()).float() * self.turn
        return self.whole(turned.imag)
"""


def test_a_custom_network_keeps_its_precision(
    leave: Leave,
    custom_files: CustomFiles,
    make_experiment: MakeExperiment,
    packed_split: PackedSplit,
) -> None:
    model = CustomModel(name=custom_files.write("net.py", CUSTOM) + ":Net")
    network = build_model(model, (1, 8, 8), 3, seed=5)
    folder = leave(network, make_experiment().model_copy(update={"model": model}))
    scores = evaluate("small-mlp", {"cpu": folder}, packed_split).evaluation.devices["cpu"]
    outputs, labels = outputs_of(network, packed_split)
    expected = torch.nn.functional.cross_entropy(outputs, labels).item()
    assert scores.test_loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", [records.WEIGHTS, records.RECORD])
def test_a_damaged_file_is_named(learned: Path, packed_split: PackedSplit, name: str) -> None:
    data = (learned / name).read_bytes()
    (learned / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError) as caught:
        evaluate("small-mlp", {"cpu": learned}, packed_split)
    assert str(learned / name) in str(caught.value)


def test_an_infinite_loss_on_the_test_data_is_refused(
    learned: Path, network: torch.nn.Module, packed_split: PackedSplit
) -> None:
    next(network.parameters()).data.fill_(torch.nan)
    write_bytes_atomically(learned / records.WEIGHTS, weights := weights_of(network))
    record = records.read_record(learned / records.RECORD, records.TrainingRecord)
    changed = record.model_copy(update={"weights_sha256": sha256_of_bytes(weights)})
    records.write_record(learned / records.RECORD, changed)
    with pytest.raises(UserError, match="the loss on the test data is nan"):
        evaluate("small-mlp", {"cpu": learned}, packed_split)


def test_predictions_have_a_row_for_each_test_image(
    learned: Path, packed_split: PackedSplit, tmp_path: Path
) -> None:
    judged = evaluate("small-mlp", {"cpu": learned, "gpu": learned}, packed_split)
    write_evaluation(judged, tmp_path)
    assert (
        records.read_record(tmp_path / records.EVALUATION, records.Evaluation) == judged.evaluation
    )
    header, *rows = (tmp_path / records.PREDICTIONS).read_text(encoding="utf-8").splitlines()
    assert header == "actual,cpu,gpu"
    assert [int(row.split(",")[0]) for row in rows] == packed_split.labels("test").tolist()
    hits = [row.split(",")[0] == row.split(",")[1] for row in rows]
    assert sum(hits) / len(hits) == judged.evaluation.devices["cpu"].test_accuracy
    assert all(row.split(",")[1] == row.split(",")[2] for row in rows)
