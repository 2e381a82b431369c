"""Is it the same model? From the start of the training to its end, layer by layer, and where two devices first part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from photofinish.results.records import FirstStep, Print, Training

Likeness = Literal["identical", "equivalent within rounding", "different"]
SIGNIFICANT = 0.05
THE_SAME = "the same"
_STEP_TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 2e-2, "bf16": 5e-2}
"""relative, of one forward and backward: above the rounding of each type; for fp32 below that of all others"""
_CURVE_TOLERANCES = {"fp32": 1e-2, "tf32": 5e-2, "fp16": 5e-2, "bf16": 1e-1}
"""relative, of the mean loss over an epoch: rounding grows with each step"""


class Learned(Protocol):
    """What is known of one device's model."""

    @property
    def record(self) -> Training: ...
    @property
    def first_step(self) -> FirstStep: ...
    @property
    def history(self) -> pd.DataFrame: ...
    @property
    def predictions(self) -> pd.DataFrame:
        """`actual` and `predicted`, a row for each test image"""


@dataclass(frozen=True)
class Layer:
    """One of the things that are held against each other, from the start of the training to its end."""

    name: str
    finding: str
    same: bool
    """bit for bit, or as far as can be seen"""
    within_rounding: bool


@dataclass(frozen=True)
class Parity:
    likeness: Likeness
    layers: tuple[Layer, ...]
    mcnemar_p: float | None
    """None where the test images differ"""

    @property
    def parts_at(self) -> Layer | None:
        """The first that rounding doesn't explain."""
        return next((layer for layer in self.layers if not layer.within_rounding), None)


def parity(cpu: Learned, device: Learned) -> Parity:
    step_tolerance, p_value = _tolerance(_STEP_TOLERANCES, cpu, device), _p_value(cpu.predictions, device.predictions)
    first, second = cpu.first_step, device.first_step
    layers = (
        _equal("settings", cpu.record.experiment == device.record.experiment, "the experiments' settings differ"),
        _equal("data", cpu.record.data_sha256 == device.record.data_sha256, "they trained on different data"),
        _initial_weights(cpu, device),
        _equal("batch order", first.batch_order_sha256 == second.batch_order_sha256, "the order differs"),
        _equal("first batch", first.first_batch_sha256 == second.first_batch_sha256, "images or labels differ"),
        _forward(first, second, step_tolerance),
        _prints("first gradient", first.gradients, second.gradients, step_tolerance),
        _curves(cpu, device),
        _predictions(cpu.predictions, device.predictions, p_value),
        _accuracy(cpu.predictions, device.predictions, p_value),
        _final_weights(cpu.record, device.record),
    )
    if all(layer.same for layer in layers):
        return Parity("identical", layers, p_value)
    within_rounding = all(layer.within_rounding for layer in layers)
    return Parity("equivalent within rounding" if within_rounding else "different", layers, p_value)


def mcnemar_p_value(cpu: pd.DataFrame, device: pd.DataFrame) -> float:
    """Exact: how probable it is that, of the images only one of the two gets right, the parts are so unequal."""
    hits, others = (each["predicted"].to_numpy() == each["actual"].to_numpy() for each in (cpu, device))
    only_first, only_second = int((hits & ~others).sum()), int((others & ~hits).sum())
    discordant = only_first + only_second
    return float(binomtest(only_first, discordant).pvalue) if discordant else 1.0


def _tolerance(tolerances: dict[str, float], cpu: Learned, device: Learned) -> float:
    """That of the coarser of the two types."""
    return max(tolerances[each.record.precision] for each in (cpu, device))


def _equal(name: str, same: bool, otherwise: str) -> Layer:
    return Layer(name, THE_SAME if same else otherwise, same, within_rounding=same)


def _initial_weights(cpu: Learned, device: Learned) -> Layer:
    same = cpu.record.initial_weights_sha256 == device.record.initial_weights_sha256
    found = _prints("initial weights", cpu.first_step.weights, device.first_step.weights, 0.0)
    where = found.finding if not found.same else "they differ"
    return Layer("initial weights", THE_SAME if same else where, same, within_rounding=same)


def _forward(first: FirstStep, second: FirstStep, tolerance: float) -> Layer:
    """Its modules in the order in which they run, then its loss."""
    outputs, others = (step.outputs | {"the loss": (abs(step.loss), step.loss)} for step in (first, second))
    return _prints("first forward", outputs, others, tolerance)


def _prints(name: str, first: dict[str, Print], second: dict[str, Print], tolerance: float) -> Layer:
    if first.keys() != second.keys():
        unmatched = next(part for part in [*first, *second] if part not in first or part not in second)
        return Layer(name, f"only one has {unmatched}", same=False, within_rounding=False)
    differences = {part: _difference(first[part], second[part]) for part in first}
    largest = max(differences.values(), default=0.0)
    over = next((part for part, difference in differences.items() if not difference <= tolerance), None)
    if over is not None:
        finding = f"parts at {over}: a relative difference of {differences[over]:.1g}"
        return Layer(name, finding, same=False, within_rounding=False)
    finding = f"largest relative difference {largest:.1g}" if largest else THE_SAME
    return Layer(name, finding, same=largest == 0, within_rounding=True)


def _difference(first: Print, second: Print) -> float:
    """Relative to the norm. What isn't a number differs from everything else."""
    if first == second:
        return 0.0
    scale = max(first[0], second[0])
    return max(abs(first[0] - second[0]), abs(first[1] - second[1])) / scale if scale else 0.0


def _curves(cpu: Learned, device: Learned) -> Layer:
    """Rounding grows over the epochs whatever is done, so that only the first epoch tells of anything else."""
    name, tolerance = "loss curves", _tolerance(_CURVE_TOLERANCES, cpu, device)
    losses, others = (each.history["training_loss"].to_numpy(float) for each in (cpu, device))
    if len(losses) != len(others):
        return Layer(name, f"{len(losses)} epochs and {len(others)}", same=False, within_rounding=False)
    drift = np.abs(losses - others) / np.maximum(np.abs(losses), np.finfo(float).tiny)
    largest = int(drift.argmax())
    if not drift[largest]:
        return Layer(name, THE_SAME, same=True, within_rounding=True)
    finding = f"largest relative difference {drift[largest]:.1g}, in epoch {largest + 1}"
    if drift[largest] > tolerance:
        finding += f"; above {tolerance:g} from epoch {int((drift > tolerance).argmax()) + 1} on"
    return Layer(name, finding, same=False, within_rounding=bool(drift[0] <= tolerance))


def _p_value(cpu: pd.DataFrame, device: pd.DataFrame) -> float | None:
    same_images = len(cpu) == len(device) and (cpu["actual"].to_numpy() == device["actual"].to_numpy()).all()
    return mcnemar_p_value(cpu, device) if same_images else None


def _predictions(cpu: pd.DataFrame, device: pd.DataFrame, p_value: float | None) -> Layer:
    name, count = "test predictions", len(cpu)
    if p_value is None:
        return Layer(name, "of different test images", same=False, within_rounding=False)
    unequal = int((cpu["predicted"].to_numpy() != device["predicted"].to_numpy()).sum())
    finding = f"{unequal} of {count:,} images get another class" if unequal else THE_SAME
    return Layer(name, finding, same=not unequal, within_rounding=True)


def _accuracy(cpu: pd.DataFrame, device: pd.DataFrame, p_value: float | None) -> Layer:
    accuracies = [float((each["predicted"] == each["actual"]).mean()) for each in (cpu, device)]
    finding = f"{accuracies[0]:.2%} on the CPU, {accuracies[1]:.2%} on the GPU"
    if p_value is None:
        return Layer("test accuracy", f"{finding}, of different test images", same=False, within_rounding=False)
    within_rounding = p_value >= SIGNIFICANT
    finding += f"; McNemar's exact p = {p_value:.2g}"
    return Layer("test accuracy", finding, accuracies[0] == accuracies[1], within_rounding)


def _final_weights(cpu: Training, device: Training) -> Layer:
    same = cpu.weights_sha256 == device.weights_sha256
    return Layer("final weights", THE_SAME if same else "differ in their bits", same, within_rounding=True)
