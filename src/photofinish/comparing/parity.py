"""Comparison of two trainings layer by layer, from their settings to their final weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import bdtr, stdtrit

from photofinish.comparing.device_results import Predictions, Trained
from photofinish.comparing.seeds import over_seeds
from photofinish.data.tasks import TASKS
from photofinish.results import EpochMetrics
from photofinish.results.records import FirstStep, TensorFingerprint

ModelMatch = Literal[
    "identical",
    "equivalent within rounding",
    "equivalent but for random numbers",
    "not comparable",
    "different",
]
SIGNIFICANT = 0.05
_OUTPUT_TOLERANCE, _GRADIENT_TOLERANCE = 5.0, 10.0
"""Factors on a layer's change by slightly moved weights (docs/verdict.md)."""
_FEW_ACTIVATIONS = 0.02
"""Share of a gradient's norm that changes if a few activations cross ReLU's corner."""
_NOISE = 1e-5
"""Share of all gradients' norm below which a gradient is rounding noise.

An example is the gradient of a bias before BatchNorm.
"""
_CURVE_TOLERANCES = {"fp32": 1e-2, "tf32": 5e-2, "fp16": 5e-2, "bf16": 1e-1}
"""Largest relative differences of an epoch's mean loss that count as rounding."""


@dataclass(frozen=True)
class Layer:
    name: str
    same: bool
    """True if equal bit for bit, as far as records show."""
    within_rounding: bool | None
    """None if not comparable, because each device draws its own random numbers."""
    difference: float | None = None
    """Largest relative difference, or None if it is not a number."""
    at: str | None = None
    """Tensor that differs by more than rounding, or epoch with the largest difference."""
    cpu: float | None = None
    gpu: float | None = None
    unequal: int | None = None


@dataclass(frozen=True)
class Parity:
    likeness: ModelMatch
    layers: tuple[Layer, ...]
    mcnemar_p: float | None
    """P-value of McNemar's test. None for values, or if test items or epochs differ."""
    epochs: int | None = None
    """Number of epochs that both trained, if a time limit ended a training.

    Final predictions, scores and weights are not compared then.
    """

    @property
    def first_divergence(self) -> Layer | None:
        """First layer that rounding does not explain."""
        return next((layer for layer in self.layers if layer.within_rounding is False), None)


def parity(cpu: Trained, device: Trained) -> Parity:
    """Compare two trainings to the end, or in their common epochs if a time limit ended one."""
    one, other = cpu.record, device.record
    first, second = cpu.first_step, device.first_step
    tolerance = max(_CURVE_TOLERANCES[one.precision], _CURVE_TOLERANCES[other.precision])
    weights = _fingerprints("initial weights", first.weights, second.weights, {})
    same_weights = one.initial_weights_sha256 == other.initial_weights_sha256
    if same_weights or weights.same:
        weights = _equal("initial weights", same_weights)
    outputs = _outputs(first)
    output_limits = _limits(outputs, first.output_rounding, _OUTPUT_TOLERANCE)
    same_order = first.batch_order_sha256 == second.batch_order_sha256
    both_draw = first.draws_in_training and second.draws_in_training
    epochs, p_value = _common_epochs(cpu, device), None
    end: tuple[Layer, ...] = ()
    if epochs is None:
        end, p_value = _end(cpu, device, tolerance, both_draw=both_draw)
    forward = _fingerprints("first forward", outputs, _outputs(second), output_limits)
    gradient = _fingerprints(
        "first gradient", first.gradients, second.gradients, _gradient_limits(first)
    )
    curves = _curves(cpu.history[:epochs], device.history[:epochs], tolerance)
    if first.draws and second.draws:
        forward, gradient = _not_comparable(forward), _not_comparable(gradient)
    if both_draw:
        curves = _not_comparable(curves)
    layers = (
        _equal("settings", one.experiment == other.experiment),
        _equal("data", one.data_sha256 == other.data_sha256),
        weights,
        _equal("batch order", same_order),
        _equal("first batch", first.first_batch_sha256 == second.first_batch_sha256),
        forward,
        gradient,
        curves,
        *end,
    )
    score = end[-2] if end else None
    return Parity(_likeness(layers, score), layers, p_value, epochs)


def _common_epochs(cpu: Trained, device: Trained) -> int | None:
    """Return the number of common epochs if a time limit ended a training, else None."""
    if not (cpu.timings.epochs_left or device.timings.epochs_left):
        return None
    return min(len(cpu.history), len(device.history))


def _end(
    cpu: Trained, device: Trained, tolerance: float, *, both_draw: bool
) -> tuple[tuple[Layer, ...], float | None]:
    """Compare final predictions, score and weights. Also return McNemar's p."""
    one, other = cpu.record, device.record
    columns, p_value, task = len(one.class_names), None, TASKS[one.task]
    predictions: tuple[Layer, ...]
    same_items = np.array_equal(cpu.predictions.actual, device.predictions.actual)
    if not len(cpu.predictions.actual):  # for a custom step, or a tuple or dict of targets
        predictions = (_test_loss(cpu.scores.test_loss, device.scores.test_loss, tolerance),)
    elif not task.has_accuracy:
        predictions = _values(cpu.predictions, device.predictions, columns, tolerance, same_items)
    else:
        rows = columns if task.is_all_or_nothing else 1
        if same_items:
            p_value = mcnemar_p_value(cpu.predictions, device.predictions, rows)
        predictions = _classes(cpu.predictions, device.predictions, rows, p_value)
    if both_draw and same_items:
        predictions = _of_other_draws(predictions, cpu, device)
    same_weights = one.weights_sha256 == other.weights_sha256
    return (*predictions, Layer("final weights", same_weights, within_rounding=True)), p_value


def _likeness(layers: Sequence[Layer], score: Layer | None) -> ModelMatch:
    found = {layer.within_rounding for layer in layers}
    if all(layer.same for layer in layers):
        return "identical"
    if False in found:
        return "different"
    if None not in found:
        return "equivalent within rounding"
    agrees = score is not None and score.within_rounding
    return "equivalent but for random numbers" if agrees else "not comparable"


def _not_comparable(layer: Layer) -> Layer:
    """Mark a layer as not comparable because of random numbers, unless it is equal."""
    return layer if layer.same else replace(layer, within_rounding=None)


def _of_other_draws(
    predictions: tuple[Layer, ...], cpu: Trained, device: Trained
) -> tuple[Layer, ...]:
    """Judge the test score if devices drew different random numbers in training.

    A single training on each device can show agreement but no difference, because another dropout
    often changes the accuracy significantly. With several seeds, Student's paired test decides.
    """
    *others, score = predictions
    within: bool | None = score.within_rounding or None
    cpu_seeds, device_seeds = over_seeds(cpu, None), over_seeds(device, None)
    if len(cpu_seeds.seeds) > 1 and cpu_seeds.seeds == device_seeds.seeds:
        pairs = zip(cpu_seeds.score.values, device_seeds.score.values, strict=True)
        differences = [one - other for one, other in pairs]
        error = statistics.stdev(differences) / math.sqrt(len(differences))
        most = float(stdtrit(len(differences) - 1, 1 - SIGNIFICANT / 2)) * error
        within = abs(statistics.fmean(differences)) <= most
    others = [layer if layer.within_rounding else _not_comparable(layer) for layer in others]
    return *others, replace(score, within_rounding=within)


def mcnemar_p_value(cpu: Predictions, device: Predictions, rows_an_item: int = 1) -> float:
    """Return McNemar's exact p for the items that only one device predicts correctly.

    All labels of an item must be correct, because they depend on each other.
    """
    sides = []
    for predictions in (cpu, device):
        hits = predictions.predicted == predictions.actual
        sides.append(hits.reshape(-1, rows_an_item).all(axis=1))
    one, other = sides
    only_one, only_other = int((one & ~other).sum()), int((other & ~one).sum())
    discordant = only_one + only_other
    if not discordant:
        return 1.0
    return min(1.0, 2 * float(bdtr(min(only_one, only_other), discordant, 0.5)))


def _equal(name: str, same: bool) -> Layer:
    return Layer(name, same, within_rounding=same)


def _outputs(step: FirstStep) -> dict[str, TensorFingerprint]:
    return step.outputs | {"the loss": (abs(step.loss), step.loss)}


def _gradient_limits(step: FirstStep) -> dict[str, float]:
    noise = _NOISE * math.hypot(*(norm for norm, _ in step.gradients.values()))
    limits = _limits(step.gradients, step.gradient_rounding, _GRADIENT_TOLERANCE)
    for part, (norm, _) in step.gradients.items():
        limits[part] = max(limits[part], _FEW_ACTIVATIONS * norm, noise)
    return limits


def _limits(
    fingerprints: dict[str, TensorFingerprint], rounding: dict[str, float], tolerance: float
) -> dict[str, float]:
    """Return the largest difference of each tensor that counts as rounding.

    A tensor of one number may change little by chance, so the median share of all tensors is used
    as a minimum.
    """
    norms = {part: norm for part, (norm, _) in fingerprints.items()}
    shares = [rounding[part] / norm for part, norm in norms.items() if norm and part in rounding]
    usual = statistics.median(shares or [0.0])
    return {
        part: tolerance * max(rounding.get(part, 0.0), usual * norm) for part, norm in norms.items()
    }


def _fingerprints(
    name: str,
    one: dict[str, TensorFingerprint],
    other: dict[str, TensorFingerprint],
    limits: dict[str, float],
) -> Layer:
    if one.keys() != other.keys():
        unmatched = next(part for part in [*one, *other] if part not in one or part not in other)
        return Layer(name, same=False, within_rounding=False, at=unmatched)
    largest = 0.0
    for part in one:
        (norm, signed), (other_norm, other_signed) = one[part], other[part]
        difference = max(abs(norm - other_norm), abs(signed - other_signed))
        scale = max(norm, other_norm)
        if not scale:
            continue
        if not difference <= limits.get(part, 0.0):  # also if it is NaN
            return Layer(name, False, False, difference=difference / scale, at=part)
        largest = max(largest, difference / scale)
    return Layer(name, largest == 0, True, difference=largest)


def _curves(cpu: Sequence[EpochMetrics], device: Sequence[EpochMetrics], tolerance: float) -> Layer:
    """Compare losses. The first epoch decides, because rounding errors grow over epochs."""
    name = "loss curves"
    if len(cpu) != len(device):
        return _equal(name, False)
    losses = np.array([epoch.training_loss for epoch in cpu])
    others = np.array([epoch.training_loss for epoch in device])
    drift = np.abs(losses - others) / np.maximum(np.abs(losses), np.finfo(float).tiny)
    worst = int(drift.argmax())
    largest, within = float(drift[worst]), bool(drift[0] <= tolerance)
    return Layer(name, largest == 0, within, difference=largest, at=f"epoch {worst + 1}")


def _classes(
    cpu: Predictions, device: Predictions, rows_an_item: int, p_value: float | None
) -> tuple[Layer, Layer]:
    """Compare predictions and accuracy. `p_value` is None if the test items differ."""
    score, other = (float((side.predicted == side.actual).mean()) for side in (cpu, device))
    if p_value is None:
        accuracy = Layer("test accuracy", False, False, cpu=score, gpu=other)
        return _equal("test predictions", False), accuracy
    mismatches = (cpu.predicted != device.predicted).reshape(-1, rows_an_item).any(axis=1)
    unequal, share = int(mismatches.sum()), float(mismatches.mean())
    is_chance = p_value >= SIGNIFICANT
    return (
        Layer("test predictions", not unequal, True, difference=share, unequal=unequal),
        Layer("test accuracy", score == other, is_chance, cpu=score, gpu=other),
    )


def _values(
    cpu: Predictions, device: Predictions, columns: int, tolerance: float, same_items: bool
) -> tuple[Layer, Layer]:
    """Compare predicted values, relative to the spread of each column, and their mean error."""
    error, other = (float(np.abs(side.predicted - side.actual).mean()) for side in (cpu, device))
    if not same_items:
        score = Layer("test error", False, False, cpu=error, gpu=other)
        return _equal("test predictions", False), score
    spreads = cpu.actual.reshape(-1, columns).std(axis=0)
    mismatches = np.abs(cpu.predicted - device.predicted).reshape(-1, columns).mean(axis=0)
    difference = float((mismatches / np.where(spreads > 0, spreads, 1.0)).max())
    within = difference <= tolerance
    return (
        Layer("test predictions", not difference, within, difference=difference),
        Layer("test error", error == other, within, cpu=error, gpu=other),
    )


def _test_loss(loss: float, other: float, tolerance: float) -> Layer:
    """Compare test losses, for outputs without a known meaning."""
    difference = abs(loss - other) / max(abs(loss), abs(other), 1e-12)
    within = difference <= tolerance
    return Layer("test loss", not difference, within, difference=difference, cpu=loss, gpu=other)
