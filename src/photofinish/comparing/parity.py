"""Is it the same model? Two trainings compared layer by layer, from their settings to their final weights.

Of an experiment trained from several seeds: do devices differ by more than seeds do?
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from photofinish.comparing.device_results import Predictions, Trained
from photofinish.comparing.speedups import Interval, TimeToTarget, students_t, time_to_target
from photofinish.results import EpochMetrics
from photofinish.results.records import MEAN_ABSOLUTE_ERROR, FirstStep, TensorFingerprint
from photofinish.wording import ratio

ModelMatch = Literal["identical", "equivalent within rounding", "different"]
SIGNIFICANT = 0.05
THE_SAME = "the same"
_OUTPUT_TOLERANCE, _GRADIENT_TOLERANCE = 5.0, 10.0
"""how far two devices may differ in a layer, in changes that moved weights cause there; see docs/verdict.md"""
_FEW_ACTIVATIONS = 0.02
"""of a gradient's norm: what a few activations change that cross ReLU's corner, which one step may not show"""
_NOISE = 1e-5
"""of the norm of all gradients: a smaller gradient is rounding noise, as that of a bias before BatchNorm"""
_CURVE_TOLERANCES = {"fp32": 1e-2, "tf32": 5e-2, "fp16": 5e-2, "bf16": 1e-1}
"""relative, of the mean loss over an epoch: rounding grows with each step"""


@dataclass(frozen=True)
class Layer:
    """One thing that is compared."""

    name: str
    finding: str
    same: bool
    """bit for bit, or as far as can be seen"""
    within_rounding: bool


@dataclass(frozen=True)
class Parity:
    """Likeness of two models, layer by layer."""

    likeness: ModelMatch
    layers: tuple[Layer, ...]
    mcnemar_p: float | None
    """None where the test images differ, and for values"""

    @property
    def first_divergence(self) -> Layer | None:
        """The first layer that rounding doesn't explain."""
        return next((layer for layer in self.layers if not layer.within_rounding), None)


def parity(cpu: Trained, device: Trained) -> Parity:
    """Compare layer by layer, from the settings to the final weights."""
    one, other = cpu.record, device.record
    first, second = cpu.first_step, device.first_step
    curve_tolerance = max(_CURVE_TOLERANCES[one.precision], _CURVE_TOLERANCES[other.precision])
    weights = _prints("initial weights", first.weights, second.weights, {})
    same_start = one.initial_weights_sha256 == other.initial_weights_sha256
    numbers, p_value = len(one.class_names), None
    if one.task == "values":
        predictions, score = _compare_values(cpu.predictions, device.predictions, numbers, curve_tolerance)
    else:
        rows_an_item = numbers if one.task == "labels" else 1
        predictions, score, p_value = _compare_classes(cpu.predictions, device.predictions, rows_an_item)
    final = _equal("final weights", one.weights_sha256 == other.weights_sha256, "differ in their bits")
    layers = (
        _equal("settings", one.experiment == other.experiment, "the experiments' settings differ"),
        _equal("data", one.data_sha256 == other.data_sha256, "they trained on different data"),
        _equal("initial weights", same_start, "they differ" if weights.same else weights.finding),
        _equal("batch order", first.batch_order_sha256 == second.batch_order_sha256, "the order differs"),
        _equal("first batch", first.first_batch_sha256 == second.first_batch_sha256, "images or labels differ"),
        _prints("first forward", _outputs(first), _outputs(second), _output_tolerances(first)),
        _prints("first gradient", first.gradients, second.gradients, _gradient_tolerances(first)),
        _curves(cpu.history, device.history, curve_tolerance),
        predictions,
        score,
        replace(final, within_rounding=True),
    )
    likeness: ModelMatch = "different"
    if all(layer.same for layer in layers):
        likeness = "identical"
    elif all(layer.within_rounding for layer in layers):
        likeness = "equivalent within rounding"
    return Parity(likeness, layers, p_value)


def mcnemar_p_value(cpu: Predictions, device: Predictions, rows_an_item: int = 1) -> float:
    """Return the exact probability that chance makes the items that only one device gets right so unequal.

    All labels of an item must be right, because they depend on each other.
    """
    hits, others = ((each.predicted == each.actual).reshape(-1, rows_an_item).all(axis=1) for each in (cpu, device))
    only_first, only_second = int((hits & ~others).sum()), int((others & ~hits).sum())
    discordant, fewer = only_first + only_second, min(only_first, only_second)
    ways = way = 1  # of choosing none of them, then one more each time
    for chosen in range(1, fewer + 1):
        way = way * (discordant - chosen + 1) // chosen
        ways += way
    return min(1.0, ways / 2 ** (discordant - 1)) if discordant else 1.0


def _equal(name: str, same: bool, otherwise: str) -> Layer:
    return Layer(name, THE_SAME if same else otherwise, same, within_rounding=same)


def _outputs(step: FirstStep) -> dict[str, TensorFingerprint]:
    """Return the outputs of modules in the order in which they run, and the loss."""
    return step.outputs | {"the loss": (abs(step.loss), step.loss)}


def _output_tolerances(step: FirstStep) -> dict[str, float]:
    return _tolerances(_outputs(step), step.output_rounding, _OUTPUT_TOLERANCE)


def _gradient_tolerances(step: FirstStep) -> dict[str, float]:
    noise = _NOISE * math.hypot(*(norm for norm, _ in step.gradients.values()))
    tolerances = _tolerances(step.gradients, step.gradient_rounding, _GRADIENT_TOLERANCE)
    return {part: max(tolerances[part], _FEW_ACTIVATIONS * norm, noise) for part, (norm, _) in step.gradients.items()}


def _tolerances(prints: dict[str, TensorFingerprint], rounding: dict[str, float], times: float) -> dict[str, float]:
    """Return how far each part may be off because of rounding.

    A part of one number can move by almost nothing by chance: it may change, relative to its size, as the median part.
    """
    shares = [rounding[part] / norm for part, (norm, _) in prints.items() if norm and part in rounding]
    usual = statistics.median(shares or [0.0])
    return {part: times * max(rounding.get(part, 0.0), usual * norm) for part, (norm, _) in prints.items()}


def _prints(
    name: str, first: dict[str, TensorFingerprint], second: dict[str, TensorFingerprint], tolerances: dict[str, float]
) -> Layer:
    if first.keys() != second.keys():
        unmatched = next(part for part in [*first, *second] if part not in first or part not in second)
        return _equal(name, False, f"only one has {unmatched}")
    largest = 0.0
    for part, (norm, signed) in first.items():
        other_norm, other_signed = second[part]
        difference, scale = max(abs(norm - other_norm), abs(signed - other_signed)), max(norm, other_norm)
        if not scale:
            continue
        if not difference <= tolerances.get(part, 0.0):  # NaN differs too
            return _equal(name, False, f"parts at {part}: a relative difference of {difference / scale:.1g}")
        largest = max(largest, difference / scale)
    finding = f"largest relative difference {largest:.1g}" if largest else THE_SAME
    return Layer(name, finding, same=largest == 0, within_rounding=True)


def _curves(cpu: Sequence[EpochMetrics], device: Sequence[EpochMetrics], tolerance: float) -> Layer:
    """Compare the losses. Only the first epoch decides, because rounding grows over the epochs."""
    name = "loss curves"
    losses, others = (np.array([epoch.training_loss for epoch in each]) for each in (cpu, device))
    if len(losses) != len(others):
        return _equal(name, False, f"{len(losses)} epochs and {len(others)}")
    drift = np.abs(losses - others) / np.maximum(np.abs(losses), np.finfo(float).tiny)
    largest = int(drift.argmax())
    if not drift[largest]:
        return _equal(name, True, "")
    finding = f"largest relative difference {drift[largest]:.1g}, in epoch {largest + 1}"
    if drift[largest] > tolerance:
        finding += f"; above {tolerance:g} from epoch {int((drift > tolerance).argmax()) + 1} on"
    return Layer(name, finding, same=False, within_rounding=bool(drift[0] <= tolerance))


def _compare_classes(cpu: Predictions, device: Predictions, rows_an_item: int) -> tuple[Layer, Layer, float | None]:
    """Compare the predictions of the test images and their accuracy, and return McNemar's p."""
    accuracies = [float((each.predicted == each.actual).mean()) for each in (cpu, device)]
    found = f"{accuracies[0]:.2%} on the CPU, {accuracies[1]:.2%} on the GPU"
    if not np.array_equal(cpu.actual, device.actual):
        others = "of different test images"
        return _equal("test predictions", False, others), _equal("test accuracy", False, f"{found}, {others}"), None
    items = (cpu.predicted != device.predicted).reshape(-1, rows_an_item).any(axis=1)
    unequal, other = int(items.sum()), "another class" if rows_an_item == 1 else "other labels"
    finding = f"{other} for {unequal} of {len(items):,} images" if unequal else THE_SAME
    predictions = Layer("test predictions", finding, same=not unequal, within_rounding=True)
    p_value = mcnemar_p_value(cpu, device, rows_an_item)
    found += f"; McNemar's exact p = {p_value:.2g}"
    accuracy = Layer("test accuracy", found, accuracies[0] == accuracies[1], within_rounding=p_value >= SIGNIFICANT)
    return predictions, accuracy, p_value


def _compare_values(cpu: Predictions, device: Predictions, count: int, tolerance: float) -> tuple[Layer, Layer]:
    """Compare predicted values, each relative to the spread of its own, and their mean absolute error."""
    errors = [float(np.abs(each.predicted - each.actual).mean()) for each in (cpu, device)]
    found = f"mean absolute error {errors[0]:.4g} on the CPU, {errors[1]:.4g} on the GPU"
    if not np.array_equal(cpu.actual, device.actual):
        others = "of different test items"
        return _equal("test predictions", False, others), _equal("test error", False, f"{found}, {others}")
    spreads = cpu.actual.reshape(-1, count).std(axis=0)
    mismatches = np.abs(cpu.predicted - device.predicted).reshape(-1, count).mean(axis=0)
    difference = float((mismatches / np.where(spreads > 0, spreads, 1.0)).max())
    finding = f"they differ by {difference:.1g} of the spread of a value, in the mean" if difference else THE_SAME
    return (
        Layer("test predictions", finding, same=not difference, within_rounding=difference <= tolerance),
        Layer("test error", found, same=errors[0] == errors[1], within_rounding=difference <= tolerance),
    )


@dataclass(frozen=True)
class Spread:
    """Values of one figure over the seeds, the experiment's own seed first."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over all seeds."""
        return statistics.fmean(self.values)

    @property
    def interval(self) -> Interval:
        """Student's 95 % interval of the mean."""
        freedom = len(self.values) - 1
        half = students_t(freedom) * statistics.stdev(self.values) / math.sqrt(freedom + 1)
        return self.mean - half, self.mean + half

    @property
    def between_two(self) -> float:
        """Mean distance of two seeds, over all pairs."""
        return statistics.fmean(abs(first - second) for first, second in combinations(self.values, 2))


@dataclass(frozen=True)
class OverSeeds:
    """Scores of one device's training from each seed."""

    seeds: tuple[int, ...]
    score_name: str
    score: Spread
    test_loss: Spread
    targets: tuple[TimeToTarget, ...]
    """of each seed; empty without a target accuracy, and for values"""

    @property
    def reached(self) -> tuple[Spread, Spread] | None:
        """Epochs and seconds to the target, or None unless every seed reached it."""
        epochs = [each.epoch for each in self.targets if each.epoch is not None]
        seconds = [each.seconds for each in self.targets if each.seconds is not None]
        return (Spread(tuple(epochs)), Spread(tuple(seconds))) if len(epochs) == len(self.seeds) else None

    def in_words(self, score: float) -> str:
        """Format a score, or the difference of two."""
        return f"{score:.2%}" if self.score_name == "test accuracy" else f"{score:.4g}"


def over_seeds(run: Trained, target: float | None) -> OverSeeds:
    """Collect the experiment's own seed and the further ones, which are assumed to start up as fast."""
    scores, timings = run.scores, run.timings
    of_accuracy = scores.test_accuracy is not None
    first = scores.test_accuracy if of_accuracy else scores.metrics[MEAN_ABSOLUTE_ERROR]
    further = [each.test_accuracy if of_accuracy else each.mean_absolute_error for each in scores.seeds]
    histories = [run.history, *(each.history for each in run.seed_runs)]
    targets = tuple(
        time_to_target(history, epochs, timings.startup_seconds, target)
        for history, epochs in zip(histories, [timings.epochs, *timings.seeds], strict=True)
        if target is not None and of_accuracy
    )
    return OverSeeds(
        (run.record.experiment.seed, *(each.seed for each in run.seed_runs)),
        "test accuracy" if of_accuracy else "mean absolute error",
        Spread(tuple(float(score) for score in [first, *further] if score is not None)),
        Spread((scores.test_loss, *(each.test_loss for each in scores.seeds))),
        targets,
    )


def chance_in_words(cpu: OverSeeds, gpu: OverSeeds | None) -> str:
    """Say how far two seeds are apart, and whether the devices are further apart than that."""
    count, name, spread = len(cpu.seeds), cpu.score_name, cpu.score
    if gpu is None:
        low, high = map(cpu.in_words, spread.interval)
        return (
            f"From {count} seeds its {name} is {cpu.in_words(spread.mean)} in the mean (95 % interval {low} to "
            f"{high}); two seeds differ by {cpu.in_words(spread.between_two)}."
        )
    apart = statistics.fmean(abs(one - other) for one, other in zip(spread.values, gpu.score.values, strict=True))
    chance = statistics.fmean([spread.between_two, gpu.score.between_two])
    found = (
        f"Over {count} seeds the {name} differs by {cpu.in_words(apart)} between the devices from the same seed, and "
        f"by {cpu.in_words(chance)} between two seeds on the same device"
    )
    if not chance:
        return f"{found}."
    return f"{found}: the devices differ by {ratio(apart / chance)} of what two seeds do."
