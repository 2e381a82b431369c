"""Trainings that differ in one thing, real and made up: what is equivalent, and where they part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from outputs import verdict
from planted_jobs import FIRST_STEP, SCORES, compared, history_of, make_job, make_model
from result_files import text_of
from torch import nn

from photofinish.answer.parity import Layer, Parity
from photofinish.answer.parity import parity as parity_of
from photofinish.config.networks import CnnModel, TorchvisionModel
from photofinish.measure.first_step import first_step
from photofinish.models.registry import build_model
from photofinish.reporting.sentences import Verdict, layer_finding
from photofinish.reporting.tables import parity_table
from photofinish.results.trained import Predictions, Trained
from photofinish.training.losses import Loss
from photofinish.training.torch_device import CPU


def parity(cpu: Trained, device: Trained) -> Parity:
    return parity_of(cpu, device, margin=0.01)


def answer_of(cpu: Trained, gpu: Trained) -> Verdict:
    """Return the answer to jobs that trained these models."""
    of_gpu = replace(gpu, device="gpu")
    on_cpu = make_job((3.1,) * len(cpu.history), trained=cpu)
    on_gpu = make_job((3.1,) * len(gpu.history), "gpu", trained=of_gpu)
    return verdict(compared(on_cpu, on_gpu))


def parting(found: Parity) -> tuple[str, str | None]:
    assert found.likeness == "different"
    return found.first_divergence.name, found.first_divergence.at


def layer(found: Parity, name: str) -> Layer:
    return next(layer for layer in found.layers if layer.name == name)


def cnn() -> nn.Module:
    model = CnnModel(name="cnn", channels=(32, 64, 128))
    return build_model(model, (3, 32, 32), 10, seed=0)


def biased() -> nn.Module:
    """Return convolutions with a bias before BatchNorm, whose gradient is rounding noise."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()
    second = nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU()
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    return nn.Sequential(*first, *second, *last)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "cnn": cnn,
    "bias before BatchNorm": biased,
    "resnet18": lambda: build_model(TorchvisionModel(name="resnet18"), (3, 32, 32), 10, seed=0),
}


def step(network: nn.Module, precision: str = "fp32") -> Trained:
    """Make a model with a real first step on 16 images."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(16, 3, 32, 32, generator=generator)
    targets = torch.randint(0, 10, (16,), generator=generator)
    loss, batch, labels = Loss(None, "classes", CPU), (images, targets), targets.numpy()
    taken = first_step(network, loss, batch, CPU, precision, labels, seed=0)
    return make_model(first_step=taken.model_copy(update={"weights": {}}))


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp32") for name in NETWORKS), ("resnet18", "bf16")]
)
def test_convolutions_of_another_library_are_equivalent(name: str, precision: str) -> None:
    build = NETWORKS[name]
    with_onednn = step(build(), precision)
    with torch.backends.mkldnn.flags(enabled=False):
        without = step(build(), precision)
    found = parity(with_onednn, without)
    # Without AVX-512, torch leaves bf16 to its own convolutions, which give the same bits.
    likeness = ["same within rounding", *(["identical"] if precision == "bf16" else [])]
    assert found.likeness in likeness
    assert found.first_divergence is None


def wrong_weight(network: nn.Module) -> None:
    weight = next(module.weight for module in network.modules() if isinstance(module, nn.Conv2d))
    weight.data[3, 1, 0, 0] += 0.05


def swapped_classes(network: nn.Module) -> None:
    last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    last.register_forward_hook(lambda _module, _inputs, output: output[:, [1, 0, *range(2, 10)]])


def tf32(network: nn.Module) -> None:
    """Round what convolutions and linear layers multiply to TF32's 10 bits of mantissa."""

    def rounded(values: torch.Tensor) -> torch.Tensor:
        bits = values.detach().contiguous().view(torch.int32)
        short = ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)
        return values + (short - values).detach()

    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.data = rounded(module.weight.data)
            module.register_forward_pre_hook(lambda _module, inputs: (rounded(inputs[0]),))


def another_normalisation(network: nn.Module) -> None:
    network.register_forward_pre_hook(lambda _module, inputs: (inputs[0] * 1.02 + 0.01,))


CHANGES = [wrong_weight, swapped_classes, another_normalisation, tf32]


@pytest.mark.parametrize("name", ["cnn", "bias before BatchNorm"])
def test_errors_beyond_rounding_show_in_the_first_forward_pass(name: str) -> None:
    right = step(NETWORKS[name]())
    for change in CHANGES:
        network = NETWORKS[name]()
        change(network)
        assert parting(parity(right, step(network)))[0] == "first forward", change.__name__


def test_an_error_is_located() -> None:
    right = step(cnn())
    assert parity(right, right).likeness == "identical"

    wrong = cnn()
    *_, last = (module for module in wrong.modules() if isinstance(module, nn.Linear))
    last.register_forward_hook(lambda _module, _inputs, output: output * 1.001)
    name = next(name for name, module in wrong.named_modules() if module is last)
    assert parting(parity(right, step(wrong))) == ("first forward", name)

    wrong = cnn()
    *_, (name, bias) = wrong.named_parameters()
    bias.register_hook(lambda gradient: gradient * 1.05)
    assert parting(parity(right, step(wrong))) == ("first gradient", name)
    assert parting(parity(right, step(cnn(), "bf16")))[0] == "first forward"


class Drawing(nn.Module):
    """A network whose hidden values pass through `layer`, which draws in training."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layer, self.last = nn.Linear(64, 64), layer(), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.first(images.flatten(1)[:, :64]).view(-1, 8, 8))
        hidden = hidden if isinstance(hidden, torch.Tensor) else hidden[0]  # an LSTM's
        scores: torch.Tensor = self.last(hidden.flatten(1))
        return scores


class Sampled(nn.Module):
    """A sample around each value, as of a variational autoencoder."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.randn_like(hidden) * torch.exp(0.5 * hidden)


DRAWING: dict[str, Callable[[], nn.Module]] = {
    "dropout": nn.Dropout,
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "LSTM": lambda: nn.LSTM(8, 8, 2, batch_first=True, dropout=0.3),
    "sampled": Sampled,
}


@pytest.mark.parametrize("name", DRAWING)
def test_other_random_numbers_are_no_difference(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    layer_of = DRAWING[name]
    cpu = step(Drawing(layer_of))
    # Another kind of device draws other numbers from the same seed.
    first = "photofinish.training.custom_check.seed_epoch"
    monkeypatch.setattr(first, lambda *_: torch.manual_seed(12345))
    found = parity(cpu, step(Drawing(layer_of)))
    if name != "sampled":
        assert (cpu.first_step.draws, cpu.first_step.has_dropout) == (False, True)
        assert found.likeness == "identical"
        wrong = Drawing(layer_of)
        next(wrong.parameters()).data[3, 0] += 0.05
        assert parting(parity(cpu, step(wrong))) == ("first forward", "first")
    else:
        assert cpu.first_step.draws
        assert found.likeness == "not shown"
        incomparable = [layer.name for layer in found.layers if layer.within_rounding is None]
        assert incomparable == ["first forward", "first gradient", "test accuracy"]


def stepped(model: Trained, **changed: Any) -> Trained:
    return replace(model, first_step=model.first_step.model_copy(update=changed))


def hits(*are_right: bool) -> Predictions:
    return Predictions(np.zeros(len(are_right), int), 1 - np.array(are_right, int))


def table(found: Parity) -> dict[str, str]:
    return {layer.name: layer_finding(layer, found) for layer in found.layers}


MODEL = make_model()
RIGHT, WRONG = hits(*[True] * 12), hits(*[False] * 11, True)


def test_differences_within_rounding_are_shown_layer_by_layer() -> None:
    one_more = Predictions(MODEL.predictions.actual, np.array([0, 0, 0, 1, 1, 1, 1, 1]))
    gpu = replace(
        stepped(MODEL, outputs={"1": (8.0, 1.0), "3": (3.0, 2.00003)}),
        weights_sha256="c" * 64,
        history=history_of(1.0, 0.502, 0.34),
        predictions=one_more,
    )
    found = parity(MODEL, gpu)
    assert found.likeness == "same so far"  # the last losses differ by 2 %
    same = ["settings", "data", "initial weights", "batch order", "first batch", "first gradient"]
    assert table(found) == dict.fromkeys(same, "the same") | {
        "first forward": "a relative difference of 1e-05",
        "loss curves": "a relative difference of 0.02 in epoch 3",  # the first epoch decides
        "test predictions": "different predictions for 1 item (12.50%)",
        "test accuracy": "75.00% on the CPU, 87.50% on the GPU; GPU +12.5 points (-12.7 to +32.7)",
        "final weights": "they differ",
    }


def test_trainings_that_stopped_at_other_epochs_are_compared_by_their_common_ones() -> None:
    cpu = replace(MODEL, stops_early=True)
    answer = answer_of(cpu, replace(cpu, history=cpu.history[:2], epochs=cpu.epochs[:2]))
    assert answer.model == "yes, bit for bit over the 2 epochs that both trained"
    assert "on the CPU after 3 epochs and 75.00% on the GPU after 2 epochs" in text_of(answer)


PARTED: dict[str, Trained] = {
    "settings": replace(MODEL, settings={"seed": "3"}),
    "data": replace(MODEL, data_sha256="e" * 64),
    "initial weights": replace(MODEL, initial_weights_sha256="e" * 64),
    "batch order": stepped(MODEL, batch_order_sha256="e" * 64),
    "first batch": stepped(MODEL, first_batch_sha256="e" * 64),
    "first forward": stepped(MODEL, outputs={"1": (8.0, 1.0)}),
    "first gradient": stepped(MODEL, gradients=FIRST_STEP.gradients | {"3.weight": (0.25, -0.2)}),
    "loss curves": replace(MODEL, history=history_of(1.2, 0.5, 1 / 3)),
    "loss curves, of fewer epochs": replace(MODEL, history=MODEL.history[:2]),
}


@pytest.mark.parametrize("change", PARTED)
def test_only_the_layer_that_differs_is_named(change: str) -> None:
    name, found = change.partition(",")[0], parity(MODEL, PARTED[change])
    assert parting(found)[0] == name
    assert [layer.name for layer in found.layers if not layer.same] == [name]
    assert table(found)[name] != "the same"


def test_a_difference_is_relative_to_the_larger_norm() -> None:
    runs = [stepped(MODEL, gradients={"3.weight": (norm, 1.0)}) for norm in (8.0, 4.0)]
    for first, second in (runs, runs[::-1]):
        gradient = layer(parity(first, second), "first gradient")
        assert (gradient.same, gradient.difference, gradient.at) == (False, 0.5, "3.weight")
    nothing = [stepped(MODEL, gradients={"3.weight": (0.0, value)}) for value in (1e-200, 2e-200)]
    assert layer(parity(*nothing), "first gradient").same


@pytest.mark.parametrize("drawing", ["draws", "has_dropout"])
def test_networks_that_draw_are_compared_by_their_scores(drawing: str) -> None:
    cpu = replace(stepped(MODEL, **{drawing: True}), predictions=hits(*[False] * 6, True))
    losses = [1.05 * epoch.training_loss for epoch in cpu.history]
    gpu = replace(cpu, history=history_of(*losses))
    assert parity(cpu, gpu).likeness == "not shown"
    assert parting(parity(cpu, stepped(gpu, **{drawing: False}))) == ("loss curves", "epoch 1")
    better = replace(gpu, predictions=hits(*[True] * 7))
    found = parity(cpu, better)
    assert (found.likeness, found.first_divergence) == ("not shown", None)
    job = answer_of(cpu, better).job
    assert "not comparable" in [row["verdict"] for row in parity_table(job)]


def test_values_are_compared_relative_to_their_spread() -> None:
    actual = np.array([0.0, 7.0, 2.0, 7.0])
    cpu = make_model(task="values", predictions=Predictions(actual, actual))  # 0 and 2, 7 and 7

    def moved(*by: float) -> Trained:
        return replace(cpu, predictions=Predictions(actual, actual + np.array(by)))

    found = parity(cpu, moved(0.004, 0.0, 0.0, 0.0))
    assert layer(found, "test predictions").difference == pytest.approx(0.002)
    assert table(found)["test error"] == "mean absolute error 0 on the CPU, 0.001 on the GPU"
    assert found.likeness == "same within rounding"
    found = parity(cpu, moved(0.0, 0.004, 0.0, 0.004))
    assert layer(found, "test predictions").difference == pytest.approx(0.004)
    draws, draws_too = stepped(cpu, draws=True), stepped(moved(1.0), draws=True)
    assert parity(draws, draws_too).likeness == "not shown"
    assert "`seeds: 3`" in text_of(answer_of(draws, draws_too))
    other = replace(cpu, predictions=Predictions(actual + 1, actual))
    assert parting(parity(cpu, other))[0] == "test predictions"


def test_significantly_other_predictions_are_a_difference_and_of_other_items_not_compared() -> None:
    found = parity(replace(MODEL, predictions=WRONG), replace(MODEL, predictions=RIGHT))
    assert parting(found)[0] == "test accuracy"
    assert layer(found, "test predictions").unequal == 11
    actual, predicted = MODEL.predictions.actual, MODEL.predictions.predicted
    fewer = replace(MODEL, predictions=Predictions(actual[1:], predicted[1:]))
    found = parity(MODEL, fewer)
    assert parting(found)[0] == "test predictions"
    assert found.difference is None


def test_networks_without_predictions_are_compared_by_their_test_loss() -> None:
    cpu = make_model(predictions=Predictions(np.empty(0), np.empty(0)))
    assert parity(cpu, cpu).likeness == "identical"
    doubled = replace(cpu, scores=SCORES.model_copy(update={"test_loss": 1.0}))
    found = parity(cpu, doubled)
    assert parting(found)[0] == "test loss"
    assert layer(found, "test loss").difference == pytest.approx(0.5)
    assert table(found)["test loss"] == "test loss 0.5 on the CPU, 1 on the GPU"


def test_an_item_with_several_labels_counts_once() -> None:
    actual = np.array([1, 0] * 8)
    cpu = make_model(task="labels", predictions=Predictions(actual, actual))
    wrong = Predictions(actual, np.array([0, 1, 0, 0] * 4))
    found = parity(cpu, replace(cpu, predictions=wrong))
    assert found.difference.mean == pytest.approx(-0.75)
    assert layer(found, "test predictions").unequal == 8


def test_a_first_step_without_a_record_has_its_reason() -> None:
    found = parity(MODEL, replace(MODEL, first_step=None, no_first_step="no memory"))
    assert found.likeness == "equivalent"
    assert table(found)["first step"] == "not recorded: no memory"
