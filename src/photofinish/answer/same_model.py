"""Comparison of models: the CPU's and that of the GPU here, or of another machine's record."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.answer.candidates import short_name
from photofinish.answer.comparison import Comparison
from photofinish.answer.parity import Layer, distance, first_step_layers
from photofinish.config.precisions import PRECISIONS, ScriptRounding, curve_tolerance
from photofinish.results.job import Job
from photofinish.results.trained import FirstScriptSteps

FirstStepKind = Literal[
    "identical", "same step", "other step", "unseeded", "other inputs", "other weights",
    "other batches", "draws",
]  # fmt: skip
_EQUAL = 1e-5
"""Relative difference of equal inputs, by hand: fp32 rounds by less, other samples by more."""
_OVER_USUAL = 8.0
"""Factor, by hand, by which rounding changes a gradient more than most. It was at most 6.4."""


@dataclass(frozen=True)
class SameScript:
    kind: FirstStepKind
    layer: str = ""


@dataclass(frozen=True)
class RecordedModel:
    """Comparison with a record: the first step, and the losses of the common epochs."""

    gpu: str
    epochs: int | None
    """Number of epochs with like losses, from the first. None if nothing was trained here."""
    has_first_step: bool
    diverges_at: str | None
    """Part of the first step that rounding does not explain, or None."""


@dataclass(frozen=True)
class SameModel:
    """Finding on models that were not trained here on both devices. At most one field is set."""

    record: RecordedModel | None = None
    script: SameScript | None = None
    """First step of a script, or of an experiment that was only measured."""
    rented: str | None = None
    """GPU of the rented machine that compared a script."""


def same_model(pair: Comparison) -> SameModel:
    """Compare the models by the strongest evidence."""
    if pair.parity:
        return SameModel()
    if pair.cpu.settings is None:
        return _of_script(pair)
    if first_step := _of_samples(pair):
        return SameModel(script=first_step)
    gpus = (job for job in pair.references if job.device == "gpu" and pair.has_same_losses(job))
    models = [model for gpu in gpus if (model := _with_record(pair, gpu))]
    best = max(models, key=lambda model: (model.has_first_step, model.epochs or 0), default=None)
    return SameModel(record=best)


def _of_samples(pair: Comparison) -> SameScript | None:
    first, second = pair.cpu.first_step, pair.gpu.first_step if pair.gpu else None
    if first is None or second is None:
        return None
    layers = list(first_step_layers(first, second))
    if all(layer.same for layer in layers):
        return SameScript("identical")
    apart = next((layer.name for layer in layers if layer.within_rounding is False), None)
    if apart:
        return SameScript("other step", apart)
    return SameScript("draws" if first.draws and second.draws else "same step")


def _of_script(pair: Comparison) -> SameModel:
    """Compare the first step of a script on both devices, here or on a rented machine."""
    for both in (pair, *pair.elsewhere):
        if first_step := _first_steps(both):
            name = short_name(both.gpu.device_name) if both.gpu else None
            return SameModel(script=first_step, rented=None if both is pair else name)
    return SameModel()


def _first_steps(pair: Comparison) -> SameScript | None:
    cpu, gpu = pair.cpu, pair.gpu
    if not (cpu.script and gpu and gpu.script):
        return None
    one, other = cpu.script.first_steps, gpu.script.first_steps
    if not (one and other):
        return None
    # Without a counted step the precision is not known.
    is_known = cpu.parameter_count is not None and cpu.precision != "tf32"  # which a CPU lacks
    precisions = [cpu.precision if is_known else "fp32", gpu.precision]
    return same_script(one, other, precisions if gpu.parameter_count is not None else [])


def _with_record(pair: Comparison, reference: Job) -> RecordedModel | None:
    """Compare the first step and the losses of the common epochs, or return None without any."""
    common = list(zip(pair.cpu.history, reference.history, strict=False))
    first = pair.cpu.first_step
    if not common and not (first and reference.first_step):
        return None
    tolerance = curve_tolerance(pair.cpu.precision, reference.precision)
    alike = 0
    for epoch, recorded in common:
        largest = max(abs(epoch.training_loss), abs(recorded.training_loss))
        if not abs(epoch.training_loss - recorded.training_loss) <= tolerance * largest:
            break
        alike += 1
    layers: list[Layer] = []
    if first and reference.first_step:
        layers = list(first_step_layers(first, reference.first_step))
    diverged = next((layer.name for layer in layers if layer.within_rounding is False), None)
    name, epochs = short_name(reference.hardware), alike if common else None
    return RecordedModel(name, epochs, bool(layers), diverged)


def same_script(
    cpu: FirstScriptSteps, gpu: FirstScriptSteps, precisions: Sequence[str]
) -> SameScript:
    """Compare the first step on both devices, as rounding grows in later ones.

    `precisions` are those of both. If neither is known, any rounding is possible.
    """
    inputs = zip(cpu.inputs, gpu.inputs, strict=False)
    if any(distance(one, other) > _EQUAL * one[0] for one, other in inputs):
        return SameScript("unseeded" if cpu.seed != gpu.seed else "other inputs")
    if len(cpu.gradients) != len(gpu.gradients):
        return SameScript("other step", "the number of weights")
    if cpu.weights != gpu.weights:
        return SameScript("unseeded" if cpu.seed != gpu.seed else "other weights")
    if (cpu.losses, cpu.gradients) == (gpu.losses, gpu.gradients):
        return SameScript("identical")
    if cpu.draws:
        return SameScript("draws")
    if len(cpu.losses) != len(gpu.losses):
        return SameScript("other batches")
    limits = max(PRECISIONS[name].script_rounding for name in precisions or PRECISIONS)
    return _within_rounding(cpu, gpu, limits)


def _within_rounding(
    cpu: FirstScriptSteps, gpu: FirstScriptSteps, limits: ScriptRounding
) -> SameScript:
    noise = limits.loss * max((norm for norm, *_ in cpu.gradients.values()), default=0.0)
    shares = {}
    # By their order: where one device compiles, weights have no names.
    for (name, one), other in zip(cpu.gradients.items(), gpu.gradients.values(), strict=True):
        if (norm := max(one[0], other[0])) > noise:
            shares[name] = distance(one, other) / norm
    # Rounding that grows in a deep network changes most gradients, and a fault may change one.
    usual = statistics.median_low(shares.values() or [0.0])
    limit = min(limits.most, max(limits.one, _OVER_USUAL * usual))
    for name, share in shares.items():
        if share > limit:
            return SameScript("other step", name)
    largest_loss = max(map(abs, cpu.losses), default=0.0)
    # The GPU's losses may have the factor of a GradScaler, which their gradients don't have.
    ratio = max(map(abs, gpu.losses), default=0.0) / largest_loss if largest_loss else 0.0
    scale = 2.0 ** round(math.log2(ratio)) if ratio else 1.0
    losses = [loss / scale for loss in gpu.losses]
    if math.dist(cpu.losses, losses) > limits.loss * largest_loss:
        return SameScript("other step", "the loss")
    if min(shares.values(), default=0.0) > limits.each:
        return SameScript("other step", "each gradient")
    return SameScript("same step")
