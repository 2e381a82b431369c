"""Samples have a class, values or several labels: from the loss to the report."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch
from conftest import PARTS, CustomFiles, MakeExperiment, MakeRun
from outputs import verdict, write_report
from result_files import read_pair, text_of
from torch import nn
from training_process import measure_here, train_here

from photofinish.answer.record import answer_record
from photofinish.config.experiment import ExperimentPlan
from photofinish.config.loss_settings import CustomLoss
from photofinish.config.metrics import Metric
from photofinish.data import PartName, TaskName
from photofinish.data.packed import PackedSplit, part_file
from photofinish.data.tasks import TASKS
from photofinish.errors import ConfigError, UserError
from photofinish.evaluation.evaluate import evaluate, write_evaluation
from photofinish.evaluation.scores import scores_of_labels, scores_of_values
from photofinish.files import sha256_of_file, to_json, write_bytes_atomically
from photofinish.reporting.report import write_for_dvc
from photofinish.results import records
from photofinish.results.trained import DEVICE_LABELS
from photofinish.training.losses import Loss
from photofinish.training.output_metrics import custom_scores
from photofinish.training.torch_device import CPU

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
    assert (scores.test_accuracy, scores.macro_f1, scores.classes) == (None, None, {})
    always_the_same = np.full((361, 2), 0.1, np.float32)
    assert "r2" not in scores_of_values(always_the_same, always_the_same + 0.01, 0.5).metrics
    actual, predicted = np.array([[1, 0], [1, 1]]), np.array([[1, 1], [1, 0]])
    scores = scores_of_labels(actual, predicted, 0.5, ("a", "b"))
    assert (scores.test_accuracy, scores.metrics) == (0.5, {"all_labels_right": 0.0})
    each = [(one.precision, one.recall, one.image_count) for one in scores.classes.values()]
    assert each == [(1, 1, 2), (0, 0, 1)]


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
    name = f"{custom_files.write('losses.py', OWN_LOSSES)}:Weighted"
    loss = {"name": name, "weights": [1.0, 1.0]} if task == "values" else None
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


READ_BY_LOSSES = """
import torch
from torch import nn
class Net(nn.Linear):
    def __init__(self, last=None):
        super().__init__(64, 2)
        self.last = getattr(torch, last) if last else nn.Identity()
    def forward(self, images):
        return self.last(super().forward(images.flatten(1)))
"""
ALIKE: dict[TaskName, Any] = {
    "labels": ("bce_with_logits", "torch.nn:BCELoss", "sigmoid"),
    "values": ("torch.nn:PoissonNLLLoss", "torch.nn:PoissonNLLLoss", "exp"),
}


def test_probabilities_and_logarithms_are_scored_as_the_loss_reads_them(
    task_split: PackedSplit, make_run: MakeRun, tmp_path: Path, custom_files: CustomFiles
) -> None:
    name, other_name, last = ALIKE[task_split.manifest.task]
    net = custom_files.write("net.py", READ_BY_LOSSES) + ":Net"
    other_loss = {"name": other_name} | ({"log_input": False} if last == "exp" else {})
    found = []
    for loss, ends in (({"name": name}, {}), (other_loss, {"last": last})):
        settings = {"epochs": 3, "loss": loss, "model": {"name": net, **ends}}
        run = make_run(task_split.folder, tmp_path / str(len(found)), **settings)
        train_here(run)
        model = run.out / records.MODEL
        scores = evaluate("small", {"cpu": model}, task_split).evaluation.devices["cpu"].values
        accuracy = records.read_history(model)[-1].validation_accuracy
        found.append(scores | {"validation": accuracy or 0.0})
    assert found[0] == pytest.approx(found[1], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("PoissonNLLLoss", {}, OUTPUTS.exp()),
        ("PoissonNLLLoss", {"log_input": False}, OUTPUTS),
        ("KLDivLoss", {}, OUTPUTS.exp()),
        ("KLDivLoss", {"log_target": True}, OUTPUTS),  # the targets are logarithms, too
    ],
)
def test_metrics_get_outputs_as_the_loss_reads_them(
    name: str, arguments: dict[str, bool], expected: torch.Tensor
) -> None:
    settings = CustomLoss.model_validate({"name": f"torch.nn:{name}", **arguments})
    outputs, _ = Loss(settings, "values", CPU).task.metric_inputs(OUTPUTS, VALUES)
    assert torch.equal(outputs, expected)


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


def test_metrics_are_torchmetrics_by_name_with_a_score_for_each_class_if_asked_for(
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
