"""Record of a whole job, extrapolated from its watched part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from photofinish.asking.sample import Figures, Length
from photofinish.asking.watch import Watched
from photofinish.comparing.prices import SECONDS_AN_HOUR
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.results import EpochTiming, median_training_seconds, passed_seconds
from photofinish.results.job_times import EpochTimes
from photofinish.results.measurements import LoopSteps, Operations, SteadyState
from photofinish.results.script_runs import ScriptEpoch, ScriptRun, script_made_here

MOST_EPOCHS = 1000
"""Most epochs of a record. A longer job is one long epoch, because records of epochs take time."""
_NOT_COUNTED = "the script took too few steps to count one of them"


@dataclass(frozen=True)
class WholeJob:
    """Training of a number of epochs, each of a number of steps."""

    name: str
    epochs: int
    epoch_steps: float
    is_run: bool = False
    """True if a run was watched to its end, which gives the length."""
    is_hour: bool = False


def missing_length(run: Watched, wanted: Length | None) -> str | None:
    """Return what gives the whole job's length, or None if it is known or the run is whole."""
    length = wanted or run.process.length
    if (run.status == 0 and wanted is None) or (length and length.is_steps):
        return None
    if _epoch_steps(run) is None and length:
        return (
            f"How many steps its {length.value:,g} epochs ({length.by}) have is not known, as no "
            f"DataLoader with a length was seen. --steps before the command gives the whole job's:"
        )
    if length:
        return None
    option = "--steps" if _epoch_steps(run) is None else "--epochs or --steps"
    return f"How long the whole job is was not found. {option} before the command gives it:"


def _epoch_steps(run: Watched) -> float | None:
    """Return the number of steps in an epoch, or None without a loader that has a length."""
    process, figures = run.process, run.figures
    loader = process.loaders[figures.loader] if figures.loader is not None else None
    if loader and loader.batches:
        return max(1.0, loader.batches / figures.batches_per_step)
    return None


def jobs(runs: Sequence[Watched], wanted: Length | None) -> Iterator[WholeJob]:
    """Yield the whole job, or an epoch and an hour if its length is not known.

    `runs` has a run for each device, the CPU's first. `wanted` is the length in the options of
    `photofinish ask`.
    """
    process, figures = runs[0].process, runs[0].figures
    ended = [run for run in runs if run.status == 0]
    if ended and wanted is None:
        yield WholeJob("the whole run", 1, ended[0].figures.steps, is_run=True)
        return
    epoch_steps = _epoch_steps(runs[0])
    length = wanted or process.length
    if length and length.is_steps:
        yield WholeJob(f"{length.value:,.0f} steps ({length.by})", 1, length.value)
        return
    if length and epoch_steps:
        name = f"{length.value:,g} epochs ({length.by})"
        is_whole = length.value == round(length.value) and length.value <= MOST_EPOCHS
        epochs = round(length.value) if is_whole else 1
        yield WholeJob(name, epochs, epoch_steps * length.value / epochs)
        return
    if epoch_steps:
        yield WholeJob("an epoch", 1, epoch_steps)
    step_seconds = figures.step_seconds + figures.validation_step_seconds
    yield WholeJob("an hour of training here", 1, SECONDS_AN_HOUR / step_seconds, is_hour=True)


def script_run(watched: Watched, job: WholeJob, host: CpuTarget | GpuTarget) -> ScriptRun:
    """Return the record of the whole job, extrapolated from the watched steps."""
    process, counts = watched.process, watched.process.counts
    operations = Operations.model_validate_json(counts["operations"]) if counts else None
    return ScriptRun(
        device="cpu" if isinstance(host, CpuTarget) else "gpu",
        device_kind=process.device,
        command=watched.command,
        files={},
        precision=counts["precision"] if counts else "fp32",
        parameter_count=counts["parameter_count"] if counts else None,
        epochs=tuple(_epochs(watched.figures, job, operations)),
        metrics={},
        timings=_timings(watched, job, host, operations),
    )


def _epochs(
    figures: Figures, job: WholeJob, operations: Operations | None
) -> Iterator[ScriptEpoch]:
    """Yield an epoch for each part of the sample, as if all its steps were like the part's."""
    for part_seconds, waiting_seconds in zip(
        figures.part_seconds, figures.part_waiting_seconds, strict=True
    ):
        seconds = job.epoch_steps * (part_seconds + figures.epoch_start_step_seconds)
        yield ScriptEpoch(
            is_whole=False,
            began_at=0.0,
            ended_at=seconds,
            seconds=seconds,
            waiting_seconds=job.epoch_steps * (waiting_seconds + figures.epoch_wait_step_seconds),
            steps=math.ceil(job.epoch_steps),
            samples=_samples(job, operations),
            counted_seconds=(),
        )


def _samples(job: WholeJob, operations: Operations | None) -> int:
    return max(1, round(job.epoch_steps * (operations.images if operations else 1)))


def _timings(
    watched: Watched, job: WholeJob, host: CpuTarget | GpuTarget, operations: Operations | None
) -> EpochTimes:
    """Return the times of the job, with a repeat for each part of a sample."""
    figures, started_at = watched.figures, watched.began_at_unix_seconds
    startup_seconds = max(0.0, figures.first_step_at - watched.began_at - figures.step_seconds)
    startup_seconds += figures.first_epoch_seconds

    def passes(step_seconds: float) -> tuple[EpochTiming, ...]:
        training_seconds = job.epoch_steps * (step_seconds + figures.epoch_start_step_seconds)
        validation_seconds = job.epoch_steps * figures.validation_step_seconds
        return job.epochs * (EpochTiming(training_seconds, validation_seconds, started_at),)

    epochs = passes(figures.step_seconds)
    total_seconds = startup_seconds + passed_seconds(epochs)
    is_whole = job.is_run and watched.status == 0
    if is_whole:  # it may save or test its model at the end
        seconds = watched.ended_at - watched.began_at - figures.counted_seconds
        total_seconds = max(total_seconds, seconds)
    parts = figures.part_seconds
    samples, repeats = _samples(job, operations), tuple(map(passes, [] if is_whole else parts))
    return EpochTimes(
        **script_made_here(host),
        started_at_unix_seconds=started_at,
        startup_seconds=startup_seconds,
        total_seconds=total_seconds,
        epochs=epochs,
        sampled_steps=None if is_whole else figures.steps,
        repeats=repeats,
        training_image_count=samples,
        images_per_second=samples / median_training_seconds(chain(epochs, *repeats)),
        steps_per_epoch=max(1, round(job.epoch_steps)),
        steady_state=SteadyState(steps_per_sample=1, sample_seconds=tuple(parts)),
        loop_steps=_loop_steps(watched) if isinstance(host, CpuTarget) else None,
        load=watched.load,
        operations=operations,
        not_counted=None if operations else _NOT_COUNTED,
    )


def _loop_steps(watched: Watched) -> LoopSteps:
    """Return the steps with the CPU time of all processes that the command started."""
    step_seconds, cpu_share = watched.figures.step_seconds, 0.0
    if wall_seconds := sum(window.wall_seconds for window in watched.load):
        cpu_share = sum(window.own_cpu_seconds for window in watched.load) / wall_seconds
    return LoopSteps(
        quickest_seconds=watched.figures.quickest_step_seconds,
        cpu_seconds=cpu_share * step_seconds or None,
    )
