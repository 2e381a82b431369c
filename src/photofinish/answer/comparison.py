"""Comparisons: for each experiment and script, both devices' jobs, all findings, and the models.

The CPU's model is compared with that of the GPU here, or of another machine's record.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.answer.candidates import Candidate, candidates, short_name
from photofinish.answer.diagnosis import Diagnosis, causes_in_job
from photofinish.answer.fair_cpu import SlowKernels, slow_kernels
from photofinish.answer.parity import Layer, Parity, distance, first_step_layers, parity
from photofinish.answer.renting import RentalOption, renting
from photofinish.answer.seeds import OverSeeds, over_seeds
from photofinish.answer.speedups import (
    BreakEvenEpochs,
    Kind,
    Speedup,
    SpeedupBounds,
    break_even,
    speedup_bounds,
    speedups,
)
from photofinish.answer.step_costs import EpochStep, SlowGpu, epoch_step, slow_gpu
from photofinish.answer.times import ByLoad, time_by_load
from photofinish.config.compare import Comparing
from photofinish.config.precisions import PRECISIONS, ScriptRounding, curve_tolerance
from photofinish.results.job import Job, JobPair
from photofinish.results.trained import DeviceLabel, FirstScriptSteps

FirstStepKind = Literal[
    "identical", "same step", "other step", "unseeded", "other inputs", "other weights",
    "other batches", "draws",
]  # fmt: skip
_EQUAL = 1e-5
"""Relative difference of equal inputs, by hand: fp32 rounds by less, other samples by more."""
_OVER_USUAL = 8.0
"""Factor, by hand, by which rounding changes a gradient more than most. It was at most 6.4."""


@dataclass(frozen=True)
class Comparison:
    cpu: Job
    gpu: Job | None
    why_no_gpu: str | None
    settings: Comparing
    references: tuple[Job, ...]
    """Jobs with the same steps and length on other machines. Scripts have none."""
    elsewhere: tuple[Comparison, ...]
    """Comparisons of the same script on rented machines."""
    gpus_elsewhere: tuple[Job, ...]
    time_here: ByLoad
    """Time of the whole job on the CPU."""
    slow_kernels: SlowKernels | None
    """Half-precision steps that this CPU computes far below its fp32 rate."""
    slow_gpu: SlowGpu | None
    """Steps on the GPU that take much longer than estimated, or None."""
    bounds: SpeedupBounds
    """Upper bounds on the speed-ups by any GPU."""
    speedups: Mapping[Kind, Speedup]
    """Speed-ups of step, epoch and job by the GPU here, or none without it."""
    break_even: BreakEvenEpochs | None
    """None without steps on both devices."""
    options: tuple[RentalOption, ...]
    not_counted: str | None
    """Reason why there are no options, from the training's record."""
    candidates: tuple[Candidate, ...]
    """GPUs that another machine recorded, and those that are only estimated."""
    steps: Mapping[DeviceLabel, EpochStep]
    causes: Mapping[DeviceLabel, tuple[Diagnosis, ...]]
    """Causes on each trained device: of the job if it is mostly start-up, then of an epoch."""
    seeds: Mapping[DeviceLabel, OverSeeds]
    """Scores over seeds, for devices that trained from several seeds."""
    parity: Parity | None
    """Comparison of the models. None for scripts and samples, or without a GPU."""

    @property
    def name(self) -> str:
        return self.cpu.name

    @property
    def runs(self) -> tuple[Job, ...]:
        """Jobs of the devices that trained, the CPU's first."""
        return (self.cpu, self.gpu) if self.gpu else (self.cpu,)

    def has_same_losses(self, job: Job) -> bool:
        """Return True if the losses of another experiment are comparable with this one's."""
        own, other = self.cpu.settings, job.settings
        return own is not None and other is not None and own.losses_key == other.losses_key


def compare(
    pair: JobPair, settings: Comparing | None = None, elsewhere: Sequence[Comparison] = ()
) -> Comparison:
    """Find out all that is known of a job: its limits, its GPUs, its causes and its models."""
    cpu, gpu, why_no_gpu, references = pair
    settings, trained = settings or Comparing(), (cpu, gpu) if gpu else (cpu,)
    bounds = speedup_bounds(cpu)
    gpus_elsewhere = [job for job in references if job.device == "gpu"]
    gpus_elsewhere += [other.gpu for other in elsewhere if other.gpu]
    steps = {job.device: epoch_step(job) for job in trained}
    rest_share = steps["cpu"].shares.get("the rest", 0.0)
    measured = [*trained[1:], *gpus_elsewhere]
    options, not_counted = renting(cpu, bounds, rest_share, settings, measured)
    models = [job.trained for job in trained if job.trained]
    margin = settings.same_model_points / 100
    return Comparison(
        cpu=cpu,
        gpu=gpu,
        why_no_gpu=why_no_gpu,
        settings=settings,
        references=references,
        elsewhere=tuple(elsewhere),
        gpus_elsewhere=tuple(gpus_elsewhere),
        time_here=time_by_load(cpu),
        slow_kernels=slow_kernels(cpu),
        slow_gpu=slow_gpu(cpu, gpu, steps["cpu"]) if gpu else None,
        bounds=bounds,
        speedups=speedups(cpu, gpu) if gpu else {},
        break_even=break_even(cpu, gpu) if gpu and cpu.has_steps and gpu.has_steps else None,
        options=options,
        not_counted=not_counted,
        candidates=tuple(candidates(options, gpus_elsewhere, settings)),
        steps=steps,
        causes={job.device: causes_in_job(job) for job in trained},
        seeds={
            model.device: over_seeds(model, settings.target_accuracy)
            for model in models
            if model.seed_runs
        },
        parity=parity(models[0], models[1], margin) if len(models) > 1 else None,
    )


@dataclass(frozen=True)
class SameScript:
    kind: FirstStepKind
    layer: str = ""
    """Part that differs, if the step does."""


@dataclass(frozen=True)
class RecordedModel:
    """Comparison with a record: the first step, and the losses of the common epochs."""

    job: Job
    gpu: str
    epochs: int | None
    """Number of epochs with like losses, from the first. None if nothing was trained here."""
    has_first_step: bool
    diverges_at: str | None
    """Part of the first step that rounding does not explain, or None."""


@dataclass(frozen=True)
class SameModel:
    """Finding on models that were not trained here on both devices: on a record, or a first step.

    Nothing is set if there is neither.
    """

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
    """Compare the first step of a script if both devices recorded it."""
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
    return RecordedModel(reference, name, epochs, bool(layers), diverged)


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
