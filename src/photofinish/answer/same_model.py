"""Comparison of models: the CPU's and that of the GPU here, or of another machine's record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from photofinish.answer.candidates import short_name
from photofinish.answer.comparison import Comparison
from photofinish.answer.parity import Layer, Parity, first_step_layers
from photofinish.answer.same_script import SameScript, same_script
from photofinish.config.precisions import curve_tolerance
from photofinish.results.job import Job

Why = Literal["no GPU trained", "a script's model"]


@dataclass(frozen=True)
class RecordedModel:
    """Comparison with a record: the first step, and the losses of the common epochs."""

    gpu: str
    epochs: int | None
    """Number of epochs with like losses, from the first on. None if nothing was trained here."""
    has_first_step: bool
    diverges_at: str | None
    """Part of the first step that rounding does not explain, or None."""


@dataclass(frozen=True)
class SameModel:
    """Finding on the models. One field is set."""

    parity: Parity | None = None
    record: RecordedModel | None = None
    script: SameScript | None = None
    """First step of a script, or of an experiment that was only measured."""
    rented: str | None = None
    """GPU of the rented machine that compared a script."""
    why_not: Why | None = None
    """Reason why nothing is compared."""


def same_model(pair: Comparison) -> SameModel:
    """Compare the models by the strongest evidence."""
    if pair.parity:
        return SameModel(pair.parity)
    if pair.cpu.settings is None:
        return _of_script(pair)
    if found := _of_samples(pair):
        return SameModel(script=found)
    of_gpus = (each for each in pair.same_model_references if each.device == "gpu")
    of_records = [compared for each in of_gpus if (compared := _with_record(pair, each))]
    best = max(of_records, key=lambda each: (each.has_first_step, each.epochs or 0), default=None)
    return SameModel(record=best) if best else SameModel(why_not=_why_not(pair))


def _why_not(pair: Comparison) -> Why:
    return "a script's model" if pair.gpu else "no GPU trained"


def _of_samples(pair: Comparison) -> SameScript | None:
    """Compare the first step that was measured on both devices."""
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
    for each in (pair, *pair.elsewhere):
        if found := _first_steps(each):
            name = short_name(each.gpu.device_name) if each.gpu else None
            return SameModel(script=found, rented=None if each is pair else name)
    return SameModel(why_not=_why_not(pair))


def _first_steps(pair: Comparison) -> SameScript | None:
    """Compare the first step of a script if both devices recorded it."""
    cpu, gpu = pair.cpu, pair.gpu
    if not (cpu.script and gpu and gpu.script):
        return None
    one, other = cpu.script.first_steps, gpu.script.first_steps
    if not (one and other):
        return None
    # Without a counted step the precision is not known.
    is_known = cpu.script.is_counted and cpu.precision != "tf32"  # which a CPU lacks
    precisions = [cpu.precision if is_known else "fp32", gpu.precision]
    return same_script(one, other, precisions if gpu.script.is_counted else [])


def _with_record(pair: Comparison, reference: Job) -> RecordedModel | None:
    """Compare the first step and the losses of the common epochs, or return None without any."""
    common = list(zip(pair.cpu.history, reference.history, strict=False))
    first = pair.cpu.first_step
    if not common and not (first and reference.first_step):
        return None
    tolerance = curve_tolerance(pair.cpu.precision, reference.precision)
    alike = 0
    for here, there in common:
        largest = max(abs(here.training_loss), abs(there.training_loss))
        if not abs(here.training_loss - there.training_loss) <= tolerance * largest:
            break
        alike += 1
    layers: list[Layer] = []
    if first and reference.first_step:
        layers = list(first_step_layers(first, reference.first_step))
    diverged = next((each.name for each in layers if each.within_rounding is False), None)
    name, epochs = short_name(reference.hardware), alike if common else None
    return RecordedModel(name, epochs, bool(layers), diverged)
