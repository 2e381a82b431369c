"""Comparisons: for each experiment and script, both devices' jobs and all findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from photofinish.answer.candidates import Candidate, candidates
from photofinish.answer.diagnosis import Diagnosis, causes_in_job
from photofinish.answer.fair_cpu import SlowKernels, slow_kernels
from photofinish.answer.parity import Parity, parity
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
from photofinish.results.job import Job, JobPair
from photofinish.results.trained import DeviceLabel


@dataclass(frozen=True)
class Comparison:
    """Comparison of an experiment or script on the CPU and on the GPU, with all findings."""

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
    """Accelerators that may be rented."""
    not_counted: str | None
    """Reason why there are no options, from the training's record."""
    candidates: tuple[Candidate, ...]
    """GPUs that another machine recorded, and those that are only estimated."""
    steps: Mapping[DeviceLabel, EpochStep]
    """Step of an epoch on each device that trained."""
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
