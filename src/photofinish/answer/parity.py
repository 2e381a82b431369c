"""Comparison of two trainings layer by layer, from their settings to their final weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from photofinish.answer.seeds import (
    ENOUGH_SEEDS,
    ScoreDifference,
    difference_of_items,
    difference_of_positions,
    difference_of_seeds,
)
from photofinish.config.precisions import curve_tolerance
from photofinish.data.tasks import TASKS
from photofinish.results import EpochMetrics
from photofinish.results.trained import FirstStep, Predictions, TensorFingerprint, Trained

ModelMatch = Literal[
    "identical", "same within rounding", "same so far", "equivalent", "not shown", "different"
]
_OUTPUT_TOLERANCE, _GRADIENT_TOLERANCE = 5.0, 10.0
"""Factors on a layer's change by slightly moved weights, by hand (docs/method.md)."""
_FEW_ACTIVATIONS = 0.02
"""Share of a gradient's norm that changes, by hand, if a few activations cross ReLU's corner."""
_NOISE = 1e-5
"""Share of all gradients' norm, by hand, below which a gradient is rounding noise.

An example is the gradient of a bias before BatchNorm.
"""
_SURE_SDS = statistics.NormalDist().inv_cdf(0.995)
"""Standard deviations by which scores of different models differ, as 1 % of equal ones do."""
_SEED_SHARE, _MOST_SEED_POINTS, _SHARE_OF_VALUES = 0.2, 0.01, 0.05
"""Standard deviation over seeds: of an accuracy as a share of its error, and at most; of values.

By hand: networks with 95 % have 0.3 to 1 points. If one has 2, 13 % of equal trainings that ended
apart are called different, on 10,000 items.
"""


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
    not_recorded: str | None = None
    """Reason why a device has no record of this layer."""


@dataclass(frozen=True)
class Parity:
    likeness: ModelMatch
    layers: tuple[Layer, ...]
    margin: float
    """Largest difference of accuracies that counts as equivalent."""
    difference: ScoreDifference | None = None
    """Difference of accuracies. None for other scores, or if test items or epochs differ."""
    epochs: int | None = None
    """Number of epochs that both trained, if a time limit or early stopping ended a training.

    Final predictions, scores and weights are not compared then.
    """

    @property
    def first_divergence(self) -> Layer | None:
        """First layer that rounding does not explain."""
        return next((layer for layer in self.layers if layer.within_rounding is False), None)


def parity(cpu: Trained, device: Trained, margin: float) -> Parity:
    """Compare two trainings to the end, or in their common epochs if one ended before the other.

    A time limit or early stopping may end one, as rounding errors grow. Accuracies are equivalent
    if their difference is less than the margin in 9 of 10 cases.
    """
    first, second = cpu.first_step, device.first_step
    tolerance = curve_tolerance(cpu.precision, device.precision)
    both_draw = bool(first and second and first.draws_in_training and second.draws_in_training)
    loss, other_loss = (run.history[-1].training_loss for run in (cpu, device))
    # Rounding has grown into another training, as another seed gives one.
    ended_apart = not both_draw and not abs(loss - other_loss) <= tolerance * abs(loss)
    epochs, difference = None, None
    end: tuple[Layer, ...] = ()
    is_limited = cpu.epochs_left or device.epochs_left
    stopped_apart = cpu.stops_early and len(cpu.history) != len(device.history)
    if is_limited or (stopped_apart and not both_draw):
        epochs = min(len(cpu.history), len(device.history))
    else:
        end, difference = _end(cpu, device, tolerance, margin)
        if both_draw or ended_apart:
            end, difference = _of_other_draws(
                end, cpu, device, difference, margin, both_draw=both_draw
            )
    curves = _curves(cpu.history[:epochs], device.history[:epochs], tolerance)
    before_the_end = (
        _equal("settings", cpu.settings == device.settings),
        _equal("data", cpu.data_sha256 == device.data_sha256),
        *_beginnings(cpu, device),
        _not_comparable(curves) if both_draw else curves,
    )
    layers = (*before_the_end, *end)
    likeness = _likeness(layers, end[-2] if end else None)
    is_same_so_far = ended_apart and all(layer.within_rounding for layer in before_the_end)
    if likeness == "not shown" and is_same_so_far:
        likeness = "same so far"
    return Parity(likeness, layers, margin, difference, epochs)


def _beginnings(cpu: Trained, device: Trained) -> Iterator[Layer]:
    """Yield the initial weights, and what `measure` recorded of the first step, if it did."""
    same_weights = cpu.initial_weights_sha256 == device.initial_weights_sha256
    first, second = cpu.first_step, device.first_step
    if first is None or second is None:
        yield _equal("initial weights", same_weights)
        why = cpu.no_first_step or device.no_first_step or "it was not measured"
        yield Layer("first step", same=False, within_rounding=None, not_recorded=why)
        return
    weights = _fingerprints("initial weights", first.weights, second.weights, {})
    yield _equal("initial weights", same_weights) if same_weights or weights.same else weights
    yield from first_step_layers(first, second)


def first_step_layers(first: FirstStep, second: FirstStep) -> Iterator[Layer]:
    """Compare the batches, outputs and gradients of the CPU's first step and of a device's."""
    yield _equal("batch order", first.batch_order_sha256 == second.batch_order_sha256)
    yield _equal("first batch", first.first_batch_sha256 == second.first_batch_sha256)
    outputs, gradients = _outputs(first), first.gradients
    limits = _limits(outputs, first.output_rounding, _OUTPUT_TOLERANCE)
    forward = _fingerprints("first forward", outputs, _outputs(second), limits)
    limits = _limits(gradients, first.gradient_rounding, _GRADIENT_TOLERANCE)
    noise = _NOISE * math.hypot(*(norm for norm, *_ in gradients.values()))
    for part, (norm, *_) in gradients.items():
        limits[part] = max(limits[part], _FEW_ACTIVATIONS * norm, noise)
    gradient = _fingerprints("first gradient", gradients, second.gradients, limits)
    if first.draws and second.draws:
        forward, gradient = _not_comparable(forward), _not_comparable(gradient)
    yield from (forward, gradient)


def _end(
    cpu: Trained, device: Trained, tolerance: float, margin: float
) -> tuple[tuple[Layer, ...], ScoreDifference | None]:
    """Compare final predictions, score and weights. Also return the accuracies' difference."""
    columns, task, difference = len(cpu.class_names), TASKS[cpu.task], None
    predictions: tuple[Layer, ...]
    same_items = np.array_equal(cpu.predictions.actual, device.predictions.actual)
    if not len(cpu.predictions.actual):  # for a custom step, or a tuple or dict of targets
        loss, other = cpu.scores.test_loss, device.scores.test_loss
        apart = abs(loss - other) / max(abs(loss), abs(other), 1e-12)
        within = apart <= tolerance
        layer = Layer("test loss", not apart, within, difference=apart, cpu=loss, gpu=other)
        predictions = (layer,)
    elif not task.has_accuracy:
        predictions = _values(cpu.predictions, device.predictions, columns, tolerance, same_items)
    else:
        rows = columns if task.is_all_or_nothing else 1
        if same_items and task.is_one_of_many and cpu.target_shape:
            difference = difference_of_positions(cpu, device)
        elif same_items:
            difference = difference_of_items(cpu, device, rows)
        predictions = _classes(cpu.predictions, device.predictions, rows, difference, margin)
    same_weights = cpu.weights_sha256 == device.weights_sha256
    return (*predictions, Layer("final weights", same_weights, within_rounding=True)), difference


def _likeness(layers: Sequence[Layer], score: Layer | None) -> ModelMatch:
    within_rounding = {layer.within_rounding for layer in layers}
    if all(layer.same for layer in layers):
        return "identical"
    if False in within_rounding:
        return "different"
    if None not in within_rounding:
        return "same within rounding"
    return "equivalent" if score and score.within_rounding else "not shown"


def _not_comparable(layer: Layer) -> Layer:
    """Mark a layer as not comparable because of random numbers, unless it is equal."""
    return layer if layer.same else replace(layer, within_rounding=None)


def _of_other_draws(
    end: tuple[Layer, ...],
    cpu: Trained,
    device: Trained,
    of_items: ScoreDifference | None,
    margin: float,
    *,
    both_draw: bool,
) -> tuple[tuple[Layer, ...], ScoreDifference | None]:
    """Judge the test score of trainings that differ as two seeds do.

    Only several seeds show that accuracies are equivalent. They also must show a difference of
    devices that draw, because another dropout often changes the accuracy significantly.
    """
    if not np.array_equal(cpu.predictions.actual, device.predictions.actual):
        return end, of_items
    *others, score, weights = end
    others = [layer if layer.within_rounding else _not_comparable(layer) for layer in others]
    within: bool | None = None if of_items else score.within_rounding or None
    of_seeds = difference_of_seeds(cpu, device, of_items.sd if of_items else 0.0)
    seeds = of_seeds.seeds if of_seeds else 1
    if of_seeds:
        unit = 1.0 if of_items else abs(score.cpu or 0.0)  # else a share of the CPU's error
        agrees = of_seeds.is_within(margin * unit)
        within = True if agrees and seeds >= ENOUGH_SEEDS else None
    if seeds >= ENOUGH_SEEDS or not both_draw:
        within = within if _is_explained_by_seeds(score, of_items, of_seeds) else False
    score = replace(score, within_rounding=within)
    return (*others, score, weights), of_items and (of_seeds or of_items)


def _is_explained_by_seeds(
    score: Layer, of_items: ScoreDifference | None, of_seeds: ScoreDifference | None
) -> bool:
    """Return True if equal trainings with different seeds may have such scores."""
    one, other = score.cpu or 0.0, score.gpu or 0.0
    seed_sd, sd = _SHARE_OF_VALUES * max(abs(one), abs(other)), 0.0
    if of_items:
        error = 1 - (one + other) / 2
        seed_sd, sd = min(_MOST_SEED_POINTS, _SEED_SHARE * error), of_items.sd
    sd = math.hypot(seed_sd, seed_sd, sd)  # of both devices, and of the test items
    if of_seeds:
        return abs(of_seeds.mean) <= _SURE_SDS * max(sd, of_seeds.sd) / math.sqrt(of_seeds.seeds)
    return abs(other - one) <= _SURE_SDS * sd  # not if it is NaN


def _equal(name: str, same: bool) -> Layer:
    return Layer(name, same, within_rounding=same)


def _outputs(step: FirstStep) -> dict[str, TensorFingerprint]:
    return step.outputs | {"the loss": (abs(step.loss), step.loss)}


def _limits(
    fingerprints: dict[str, TensorFingerprint], rounding: dict[str, float], tolerance: float
) -> dict[str, float]:
    """Return the largest difference of each tensor that counts as rounding.

    A tensor of one number may change little by chance, so the median share of all tensors is used
    as a minimum.
    """
    norms = {part: norm for part, (norm, *_) in fingerprints.items()}
    shares = [rounding[part] / norm for part, norm in norms.items() if norm and part in rounding]
    usual = statistics.median(shares or [0.0])
    return {
        part: tolerance * max(rounding.get(part, 0.0), usual * norm) for part, norm in norms.items()
    }


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return about the norm of the difference of two tensors, by their fingerprints."""
    (norm, *signed), (other_norm, *other_signed) = one, other
    apart = math.dist(signed, other_signed) / math.sqrt(len(signed))
    return max(abs(norm - other_norm), apart)


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
        difference = distance(one[part], other[part])
        scale = max(one[part][0], other[part][0])
        if not scale:
            continue
        if not difference <= limits.get(part, 0.0):  # also if it is NaN
            return Layer(name, False, False, difference=difference / scale, at=part)
        largest = max(largest, difference / scale)
    return Layer(name, largest == 0, True, difference=largest)


def _curves(
    cpu: Sequence[EpochMetrics],
    device: Sequence[EpochMetrics],
    tolerance: float,
) -> Layer:
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
    cpu: Predictions,
    device: Predictions,
    rows_an_item: int,
    difference: ScoreDifference | None,
    margin: float,
) -> tuple[Layer, Layer]:
    """Compare predictions and accuracy. There is no `difference` if the test items differ.

    If all layers before are within rounding, accuracies that differ surely, but not surely by more
    than the margin, leave it open.
    """
    score, other = (float((side.predicted == side.actual).mean()) for side in (cpu, device))
    if difference is None:
        accuracy = Layer("test accuracy", False, False, cpu=score, gpu=other)
        return _equal("test predictions", False), accuracy
    mismatches = (cpu.predicted != device.predicted).reshape(-1, rows_an_item).any(axis=1)
    unequal, share = int(mismatches.sum()), float(mismatches.mean())
    within: bool | None = None if difference.excludes_0 else True
    if difference.exceeds(margin):
        within = False
    return (
        Layer("test predictions", not unequal, True, difference=share, unequal=unequal),
        Layer("test accuracy", score == other, within, cpu=score, gpu=other),
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
