"""Losses and scores of a class, values or labels: as by hand, also of a network read from files."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch
from conftest import PARTS, CustomFiles, MakeExperiment, MakeResult, MakeRun
from in_process import train_and_evaluate
from outputs import verdict, write_report
from result_files import read_pair, text_of, trained
from safetensors.torch import load as from_safetensors
from torch import nn
from torch.nn.functional import cross_entropy
from training_process import measure_here, train_here

from photofinish.answer.record import answer_record
from photofinish.config.compare import Comparing
from photofinish.config.experiment import ExperimentPlan
from photofinish.config.losses_and_metrics import CustomLoss, Metric
from photofinish.config.networks import CustomModel
from photofinish.data import PartName, TaskName
from photofinish.data.packed import PackedSplit, part_file
from photofinish.data.tasks import TASKS
from photofinish.errors import ConfigError, UserError
from photofinish.evaluation.evaluate import (
    evaluate,
    score,
    scores_of_classes,
    scores_of_labels,
    scores_of_values,
    write_evaluation,
)
from photofinish.files import sha256_of_bytes, sha256_of_file, to_json, write_bytes_atomically
from photofinish.machine.fingerprint import CpuTarget
from photofinish.models.registry import build_model
from photofinish.reporting.report import write_for_dvc
from photofinish.results import records
from photofinish.results.learned import load_network, seed_weights, weights_of
from photofinish.results.trained import DEVICE_LABELS, SeedRun
from photofinish.tracking.documents import training_document
from photofinish.training.batches import Normaliser, part_of
from photofinish.training.input_paths import make_batches
from photofinish.training.losses import Loss
from photofinish.training.output_metrics import custom_scores
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
    # The mean is of the classes that occur among targets or predictions.
    assert scores_of_classes(ACTUAL[:3], ACTUAL[:3], 0.5, NAMES).macro_f1 == 1
    assert scores_of_classes(ACTUAL[:3], PREDICTED[:3], 0.5, NAMES).macro_f1 == pytest.approx(2 / 5)
    # A single label is scored by its yes.
    scores = scores_of_labels(np.array([[1], [1], [0]]), np.array([[1], [0], [0]]), 0.5, ("a",))
    assert (scores.macro_f1, scores.test_accuracy) == pytest.approx((2 / 3, 2 / 3))


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


def test_a_further_seed_has_its_own_checked_file(make_result: MakeResult, tmp_path: Path) -> None:
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


OUTPUTS = torch.tensor([[2.0, -1.0], [0.5, 3.0], [-1.0, -2.0]])
VALUES = OUTPUTS + torch.tensor([1.0, -3.0])
TARGETS: dict[TaskName, torch.Tensor] = {
    "classes": torch.tensor([0, 0, 1]),
    "values": VALUES,
    "labels": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]),
}

SMOOTHED = {"name": "cross_entropy", "label_smoothing": 0.1}
WEIGHTS = (0.5, 3.0)


@pytest.mark.parametrize(
    ("settings", "task", "same_as"),
    [
        (None, "classes", nn.CrossEntropyLoss()),
        (SMOOTHED, "classes", nn.CrossEntropyLoss(label_smoothing=0.1)),
        (
            SMOOTHED | {"weight": WEIGHTS},
            "classes",
            nn.CrossEntropyLoss(torch.tensor(WEIGHTS), label_smoothing=0.1),
        ),
        (None, "values", nn.MSELoss()),
        ({"name": "smooth_l1", "beta": 0.5}, "values", nn.SmoothL1Loss(beta=0.5)),
        (None, "labels", nn.BCEWithLogitsLoss()),
        (
            {"name": "bce_with_logits", "pos_weight": WEIGHTS},
            "labels",
            nn.BCEWithLogitsLoss(pos_weight=torch.tensor(WEIGHTS)),
        ),
    ],
)
def test_a_loss_is_pytorchs_and_its_sum_is_that_of_the_samples(
    make_experiment: MakeExperiment,
    settings: dict[str, Any] | None,
    task: TaskName,
    same_as: nn.Module,
) -> None:
    loss = Loss(make_experiment(loss=settings).loss, task, CPU)
    targets = TARGETS[task]
    assert torch.equal(loss.mean(OUTPUTS, targets), same_as(OUTPUTS, targets))
    total, weight = loss.sum_and_weight(OUTPUTS, targets)
    assert float(total / weight) == pytest.approx(same_as(OUTPUTS, targets).item())
    assert [float(part) for part in loss.sum_and_weight(OUTPUTS[:0], targets[:0])] == [0, 0]
    right = {"classes": 1, "values": 0, "labels": 2.5}[task]
    assert TASKS[task].num_correct(OUTPUTS, targets).item() == right


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_cross_entropy_is_computed_in_at_least_fp32(dtype: torch.dtype) -> None:
    """CUDA's autocast leaves log-probabilities in bf16, the CPU's doesn't."""
    loss, outputs, targets = Loss(None, "classes", CPU), OUTPUTS.to(dtype), TARGETS["classes"]
    exact = torch.promote_types(dtype, torch.float32)
    expected = nn.CrossEntropyLoss()(outputs.to(exact), targets)
    assert loss.mean(outputs, targets).dtype is exact
    assert torch.equal(loss.mean(outputs, targets), expected)
    with loss.gradients_at_once([targets]):
        assert torch.equal(loss.mean(outputs, targets), expected)


OWN_LOSSES = """
import torch
from torch import nn
def scaled(outputs, targets, by=2.0):
    return by * nn.functional.mse_loss(outputs, targets)
class Weighted(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights))
    def forward(self, outputs, targets):
        return ((outputs - targets) ** 2 @ self.weights).mean() / 2  # needs float32 of both
class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
def each(outputs, targets):
    return outputs - targets
def weighed(outputs, targets):
    return ((outputs - targets) ** 2).sum(), torch.tensor(4.0)
def parts(outputs, targets):
    return (outputs - targets).sum(), 2.0
"""


def test_a_custom_loss_is_a_function_or_a_class(
    custom_files: CustomFiles, make_experiment: MakeExperiment
) -> None:
    file = custom_files.write("losses.py", OWN_LOSSES)

    def loss(name: str, **arguments: Any) -> Loss:
        return Loss(
            make_experiment(loss={"name": f"{file}:{name}", **arguments}).loss, "values", CPU
        )

    squares = (OUTPUTS - VALUES) ** 2
    assert loss("scaled", by=3.0).mean(OUTPUTS, VALUES).item() == pytest.approx(
        3 * squares.mean().item()
    )
    assert loss("Weighted", weights=[1.0, 0.0]).mean(OUTPUTS, VALUES).item() == pytest.approx(0.5)
    assert loss("weighed").mean(OUTPUTS, VALUES).item() == pytest.approx(squares.sum().item() / 4)
    total, weight = loss("weighed").sum_and_weight(OUTPUTS, VALUES)
    assert (total.item(), float(weight)) == pytest.approx((squares.sum().item(), 4.0))
    with pytest.raises(ConfigError, match=r"mse .*cross_entropy"):
        Loss(make_experiment(loss={"name": "mse"}).loss, "classes", CPU)
    with pytest.raises(UserError, match="has parameters, which no optimizer gets"):
        loss("Learned")
    with pytest.raises(UserError, match=r"(?s)returns tensor.*: it must return one number"):
        loss("each").mean(OUTPUTS, VALUES)
    with pytest.raises(UserError, match=r"returns \(tensor.* 2\.0\): it must return one number"):
        loss("parts").mean(OUTPUTS, VALUES)


def test_values_and_labels_are_scored_as_by_hand() -> None:
    actual, predicted = np.array([[1.0], [3.0]]), np.array([[2.0], [3.0]])
    scores = scores_of_values(actual, predicted, 0.5)
    assert scores.metrics == pytest.approx(
        {"mean_absolute_error": 0.5, "root_mean_squared_error": 0.5**0.5, "r2": 0.5}
    )
    assert (scores.test_accuracy, scores.macro_f1) == (None, None)
    always_the_same = np.full((361, 2), 0.1, np.float32)
    assert "r2" not in scores_of_values(always_the_same, always_the_same + 0.01, 0.5).metrics
    actual, predicted = np.array([[1, 0], [1, 1]]), np.array([[1, 1], [1, 0]])
    scores = scores_of_labels(actual, predicted, 0.5, ("a", "b"))
    assert (scores.test_accuracy, scores.metrics) == (0.5, {"all_labels_right": 0.0})
    assert scores.macro_f1 == 0.5
    nothing = np.zeros((2, 1), int)
    assert scores_of_labels(nothing, nothing, 0.5, ("a",)).macro_f1 == 0


@pytest.fixture(params=["values", "labels"])
def task_split(
    request: pytest.FixtureRequest, packed_split: PackedSplit, tmp_path: Path
) -> PackedSplit:
    """Return the small data set with the brightness of an image and its upper half as targets."""
    task: TaskName = request.param
    folder = Path(shutil.copytree(packed_split.folder, tmp_path / "split"))

    def targets(part: PartName) -> npt.NDArray[np.float32]:
        images = packed_split.images(part) / 255
        parts_of_images = (images, images[:, :, :4])
        values = np.stack([each.mean(axis=(1, 2, 3)) for each in parts_of_images], axis=1)
        chosen = values if task == "values" else values > np.median(values, axis=0)
        return chosen.astype(np.float32)

    for part in PARTS:
        np.save(folder / part_file(part, "labels"), targets(part))
    sha256 = {path.name: sha256_of_file(path) for path in folder.glob("*.npy")}
    manifest = packed_split.manifest.model_copy(
        update={"task": task, "class_names": ("all", "upper"), "sha256": sha256}
    )
    write_bytes_atomically(folder / "manifest.json", manifest.model_dump_json().encode())
    return PackedSplit(folder)


def test_a_training_on_values_or_labels_is_reported(
    task_split: PackedSplit, make_run: MakeRun, tmp_path: Path, custom_files: CustomFiles
) -> None:
    task, results = task_split.manifest.task, tmp_path / "results" / "small"
    models = {device: results / device / records.MODEL for device in DEVICE_LABELS}
    loss = {"name": "torch.nn:PoissonNLLLoss"} if task == "values" else None  # reads logarithms
    for device, model in models.items():
        run = make_run(task_split.folder, model.parent, epochs=3, loss=loss)
        run = replace(run, device=device)
        measure_here(run)
        train_here(run)
    # A custom metric of a built-in one's name is ignored where there is the built-in one.
    custom = "def mean_absolute_error(outputs, targets):\n    return -1.0\n"
    metric = Metric(name=f"{custom_files.write('metrics.py', custom)}:mean_absolute_error")
    judged = evaluate("small", models, task_split, (metric,))
    error = judged.evaluation.devices["cpu"].metrics["mean_absolute_error"]
    assert (error == -1.0) is (task == "labels")
    write_evaluation(judged, results / records.EVALUATED)
    rows = pd.read_csv(results / records.EVALUATED / records.PREDICTIONS)
    assert len(rows) == 2 * len(task_split.labels("test"))
    assert task == "labels" or (rows["cpu"] > 0).all()
    pair = read_pair("small", results)
    assert pair.speedups
    assert pair.parity.likeness == "identical"
    folders = [tmp_path / name for name in ("report", "metrics", "plots")]
    write_report([pair], folders[0])
    write_for_dvc(answer_record([pair]), *folders)
    history = pd.read_csv(tmp_path / "report" / "history.csv")
    assert history["training_loss"].iloc[2] < history["training_loss"].iloc[0]
    assert history["validation_accuracy"].isna().all() == (task == "values")
    assert "Mean absolute error is" in text_of(verdict(pair))
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert {"values": "root_mean_squared_error", "labels": "all_labels_right"}[task] in page


@pytest.mark.parametrize("path", ["resident", "loader"])
def test_data_without_a_validation_part_are_trained_judged_and_reported(
    custom_files: CustomFiles, cpu_host: CpuTarget, path: str
) -> None:
    one = {"dataset": "digits", "model": "linear", "ema": 0.5, "seeds": 2, "input": {"name": path}}
    one |= {"epochs": 2, "batch_size": 128, "optimizer": {"name": "sgd", "lr": 0.1}}
    digits = {"source": "digits", "validation": 0, "test": 297}
    params = {"datasets": {"digits": digits}, "experiments": {"one": one}}
    folder = custom_files.folder
    results = train_and_evaluate("one", params, folder, cpu_host)
    assert PackedSplit(folder / "split").manifest.counts == {"train": 1500, "test": 297}
    history = records.read_history(results / "cpu" / records.MODEL)
    assert [(each.validation_loss, each.validation_accuracy) for each in history] == [
        (None, None),
        (None, None),
    ]
    pair = read_pair("one", results, Comparing(target_accuracy=0.5))
    assert pair.cpu.trained
    assert not pair.seeds["cpu"].targets
    assert isinstance(pair.cpu.trained.scores.test_accuracy, float)
    document = training_document("one", "cpu", results.parent)
    assert document
    assert "validation_loss" not in {metric.key for metric in document.metrics}
    write_report([pair], folder / "report")
    assert (folder / "report/index.html").is_file()


@pytest.mark.parametrize(
    ("task", "name", "arguments", "read"),
    [
        ("values", "PoissonNLLLoss", {}, OUTPUTS.exp()),
        ("values", "PoissonNLLLoss", {"log_input": False}, OUTPUTS),
        ("values", "KLDivLoss", {}, OUTPUTS.exp()),
        ("values", "KLDivLoss", {"log_target": True}, OUTPUTS),  # targets are logarithms, too
        ("labels", "BCELoss", {}, OUTPUTS),
    ],
)
def test_outputs_are_scored_as_the_loss_reads_them(
    task: TaskName, name: str, arguments: dict[str, bool], read: torch.Tensor
) -> None:
    settings = CustomLoss.model_validate({"name": f"torch.nn:{name}", **arguments})
    judge, targets = Loss(settings, task, CPU).task, TARGETS[task]
    assert torch.equal(judge.metric_inputs(OUTPUTS, targets)[0], read)
    predicted = read if task == "values" else (read > 0.5).long()
    assert torch.equal(judge.predicted(OUTPUTS), predicted)
    if task == "labels":
        right = (predicted == targets).float().mean(dim=1).sum()
        assert judge.num_correct(OUTPUTS, targets) == right


METRICS = """
import torch
def worst(outputs, targets, power=1):
    return (outputs - targets).abs().max() ** power
class Bias(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
    def forward(self, outputs, targets):
        return self.scale * (outputs - targets).mean().item()
def table(outputs, targets):
    return torch.ones(2, 2)
def nothing(outputs, targets):
    return torch.tensor(float("nan"))
"""


def further(make_experiment: MakeExperiment, task: TaskName, *metrics: Any) -> dict[str, float]:
    settings = {**make_experiment().model_dump(mode="json"), "metrics": metrics}
    named = ExperimentPlan.model_validate_json(to_json(settings)).metrics
    return custom_scores(named, TASKS[task], OUTPUTS.double(), TARGETS[task], ("sea", "a+b"))


def test_metrics_are_torchmetrics_by_name_or_for_each_class(
    make_experiment: MakeExperiment,
) -> None:
    found = further(make_experiment, "classes", "accuracy", {"name": "recall", "average": "macro"})
    assert found == pytest.approx(
        {"accuracy": 1 / 3, "recall": 1 / 4}
    )  # of the two of class 0, one is right
    assert further(make_experiment, "values", "mean_absolute_error") == pytest.approx(
        {"mean_absolute_error": 2.0}
    )
    assert further(make_experiment, "labels", "hamming_distance") == pytest.approx(
        {"hamming_distance": 1 / 6}
    )
    macro = {"name": "recall", "average": "macro"}
    each = {"name": "recall", "average": "none", "as": "found"}
    labels = [*further(make_experiment, "classes", macro, each)]
    assert labels == ["recall", "found sea", "found a-b"]
    with pytest.raises(ValueError, match="metric twice"):
        further(make_experiment, "classes", macro, "recall")


def test_custom_metrics_are_functions_or_classes(
    custom_files: CustomFiles, make_experiment: MakeExperiment, capsys: pytest.CaptureFixture[str]
) -> None:
    file = custom_files.write("metrics.py", METRICS)
    found = further(
        make_experiment,
        "values",
        {"name": f"{file}:worst", "power": 2},
        {"name": f"{file}:Bias", "scale": 0.5},
    )
    assert found == pytest.approx({"worst": 9.0, "Bias": 0.5})
    assert further(make_experiment, "values", f"{file}:nothing") == {}  # a record holds no NaN
    assert "note: metric nothing returned nan" in capsys.readouterr().out
    message = r"metric \./metrics\.py:table returns tensor\([\s\S]*\), but must return one number"
    with pytest.raises(UserError, match=message):
        further(make_experiment, "values", f"{file}:table")
