"""Scores equal those worked out by hand, also for a network read back from its files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CustomFiles, MakeExperiment, MakeResult
from result_files import trained
from safetensors.torch import load as from_safetensors
from torch import nn
from torch.nn.functional import cross_entropy

from photofinish.config.networks import CustomModel
from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.evaluation.evaluate import evaluate, write_evaluation
from photofinish.evaluation.judges import score
from photofinish.evaluation.scores import scores_of_classes, scores_of_labels
from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.models.registry import build_model
from photofinish.results import records
from photofinish.results.learned import load_network, seed_weights, weights_of
from photofinish.results.trained import SeedRun
from photofinish.training.batches import Normaliser, part_of
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU

ACTUAL = np.array([0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 1, 1, 2, 2])
NAMES = ("cat", "dog", "owl")
Leave = Callable[..., Path]


@pytest.fixture
def network(make_experiment: MakeExperiment) -> torch.nn.Module:
    return build_model(make_experiment().model, (1, 8, 8), 3, seed=5)


@pytest.fixture
def leave(
    packed_split: PackedSplit,
    make_experiment: MakeExperiment,
    make_result: MakeResult,
    tmp_path: Path,
) -> Leave:
    """Return a function that writes the files of a trained network."""

    def write(network: torch.nn.Module, **settings: object) -> Path:
        folder, weights = tmp_path / "cpu" / records.MODEL, weights_of(network)
        manifest, experiment = packed_split.manifest, make_experiment()
        facts: dict[str, object] = {"class_names": manifest.class_names}
        facts |= {"mean": manifest.mean, "std": manifest.std}
        facts["weights_sha256"] = sha256_of_bytes(weights)
        facts["experiment"] = experiment.model_copy(update=settings)
        record = make_result().record.model_copy(update=facts)
        records.write_record(folder / records.RECORD, record)
        write_bytes_atomically(folder / records.WEIGHTS, weights)
        return folder

    return write


def test_the_scores_are_those_worked_out_by_hand() -> None:
    scores = scores_of_classes(ACTUAL, PREDICTED, 0.5, NAMES)
    assert scores.confusion == ((2, 1, 0), (0, 1, 1), (0, 0, 1))
    assert scores.test_accuracy == pytest.approx(4 / 6)
    assert scores.test_loss == 0.5
    assert scores.macro_f1 == pytest.approx((4 / 5 + 1 / 2 + 2 / 3) / 3)


def test_a_single_label_is_scored_by_its_yes() -> None:
    scores = scores_of_labels(np.array([[1], [1], [0]]), np.array([[1], [0], [0]]), 0.5, ("a",))
    assert (scores.macro_f1, scores.test_accuracy) == pytest.approx((2 / 3, 2 / 3))


def test_the_mean_f1_is_of_the_classes_that_occur_among_targets_or_predictions() -> None:
    assert scores_of_classes(ACTUAL[:3], ACTUAL[:3], 0.5, NAMES).macro_f1 == 1
    assert scores_of_classes(ACTUAL[:3], PREDICTED[:3], 0.5, NAMES).macro_f1 == pytest.approx(2 / 5)


def outputs_of(network: torch.nn.Module, packed: PackedSplit) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a network's outputs for the test part, and the part's labels."""
    normalise = Normaliser(packed.manifest.mean, packed.manifest.std)
    with torch.inference_mode():
        outputs = network.eval()(normalise(torch.from_numpy(np.array(packed.images("test")))))
    return outputs, torch.from_numpy(packed.labels("test"))


def test_a_network_read_back_is_scored_on_the_test_images(
    leave: Leave, network: torch.nn.Module, packed_split: PackedSplit, tmp_path: Path
) -> None:
    folder = leave(network)
    judged = evaluate("small-mlp", {"cpu": folder, "gpu": folder}, packed_split)
    scores = judged.evaluation.devices["cpu"]
    assert scores == judged.evaluation.devices["gpu"]
    assert scores.weights_sha256 == sha256_of_bytes(weights_of(network))
    outputs, labels = outputs_of(network, packed_split)
    predicted = outputs.argmax(1)
    assert scores.test_accuracy == (predicted == labels).sum().item() / len(labels)
    assert scores.test_loss == pytest.approx(cross_entropy(outputs, labels).item(), rel=1e-5)
    assert sum(map(sum, scores.confusion)) == len(labels)

    write_evaluation(judged, tmp_path)
    written = records.read_record(tmp_path / records.EVALUATION, records.Evaluation)
    assert written == judged.evaluation
    header, *rows = (tmp_path / records.PREDICTIONS).read_text(encoding="utf-8").splitlines()
    assert header == "actual,cpu,gpu"
    assert rows == [
        f"{actual},{found},{found}"
        for actual, found in zip(labels.tolist(), predicted.tolist(), strict=True)
    ]


def test_large_samples_are_scored_in_the_batches_of_the_training(
    leave: Leave,
    network: torch.nn.Module,
    packed_split: PackedSplit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("photofinish.training.input_paths._VALIDATION_BYTES", 1)
    record, sizes = records.read_training(leave(network, batch_size=7)), list[int]()
    assert isinstance(record, records.TrainingRecord)
    network.register_forward_pre_hook(lambda _module, inputs: sizes.append(len(inputs[0])))
    score(network, record, packed_split)
    assert max(sizes) == 7


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
    leave: Leave, custom_files: CustomFiles, packed_split: PackedSplit
) -> None:
    model = CustomModel(name=custom_files.write("net.py", CUSTOM) + ":Net")
    network = build_model(model, (1, 8, 8), 3, seed=5)
    folder = leave(network, model=model)
    scores = evaluate("small-mlp", {"cpu": folder}, packed_split).evaluation.devices["cpu"]
    expected = cross_entropy(*outputs_of(network, packed_split)).item()
    assert scores.test_loss == pytest.approx(expected, rel=1e-5)


NOISY = """
import torch
from torch import nn
class Net(nn.Linear):
    def __init__(self):
        super().__init__(64, 3)
    def forward(self, images):
        return super().forward(images.flatten(1)) + torch.randn(len(images), 3)
"""


def test_noise_is_drawn_alike_for_each_device(
    leave: Leave, custom_files: CustomFiles, packed_split: PackedSplit
) -> None:
    model = CustomModel(name=custom_files.write("net.py", NOISY) + ":Net")
    folder = leave(build_model(model, (1, 8, 8), 3, seed=5), model=model)
    devices = evaluate("noisy", {"cpu": folder, "gpu": folder}, packed_split).evaluation.devices
    assert devices["cpu"] == devices["gpu"]


DRAWING = """
import torch
from torch.utils.data import default_collate
drawn = []
def collate(samples):
    drawn.append(torch.rand(1).item())
    return default_collate(samples)
"""


def test_a_collate_draws_for_a_test_batch_as_for_one_of_validation(
    leave: Leave,
    network: torch.nn.Module,
    custom_files: CustomFiles,
    packed_split: PackedSplit,
    make_experiment: MakeExperiment,
) -> None:
    loader = {"name": "loader", "collate": custom_files.write("drawing.py", DRAWING) + ":collate"}
    experiment = make_experiment(input=loader, validation_batch_size=16)
    evaluate("small", {"cpu": leave(network, **dict(experiment))}, packed_split)
    drawn = sys.modules["drawing"].drawn
    in_test = [*drawn]
    drawn.clear()
    assert [*make_batches(experiment, part_of(packed_split, "test"), CPU).eval_batches()]
    assert in_test == drawn


def test_an_infinite_loss_on_the_test_data_is_refused(
    leave: Leave, network: torch.nn.Module, packed_split: PackedSplit
) -> None:
    next(network.parameters()).data.fill_(torch.nan)
    with pytest.raises(UserError, match="the loss on the test data is nan"):
        evaluate("small-mlp", {"cpu": leave(network)}, packed_split)


def test_tied_weights_and_views_are_written_for_each_layer() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    network[1].weight = network[0].weight
    network.register_buffer("table", torch.arange(10.0))
    network.register_buffer("end_of_table", network.get_buffer("table")[5:])
    written = from_safetensors(weights_of(network))
    assert {name: tensor.tolist() for name, tensor in written.items()} == {
        name: tensor.tolist() for name, tensor in network.state_dict().items()
    }


def test_a_further_seeds_network_has_its_own_file_which_is_checked(
    make_result: MakeResult, tmp_path: Path
) -> None:
    record = trained(make_result).record
    data = weights_of(
        build_model(record.experiment.model, record.image_shape, len(record.class_names), seed=5)
    )
    file = tmp_path / records.SEEDS / "5.safetensors"
    assert seed_weights(tmp_path, 5) == file
    write_bytes_atomically(file, data)
    run = SeedRun(seed=5, weights_sha256=sha256_of_bytes(data), history=())
    assert weights_of(load_network(tmp_path, record, run)) == data
    file.write_bytes(data[:-1])
    with pytest.raises(UserError, match=r"5\.safetensors is damaged"):
        load_network(tmp_path, record, run)
