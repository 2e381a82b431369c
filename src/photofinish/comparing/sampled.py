"""Whole jobs from the measured parts of their trainings."""

from __future__ import annotations

import math

from photofinish.comparing.speedups import job_interval
from photofinish.config.experiment import Experiment
from photofinish.results import EpochTiming, passed_seconds
from photofinish.results.job_times import Timings
from photofinish.results.measured import Measured
from photofinish.results.measurements import StepMeasurements
from photofinish.results.pass_times import Overhead
from photofinish.results.timed_parts import epoch_by_parts
from photofinish.wording import counted, seconds


def sampled_times(measured: Measured, job: Experiment) -> Timings:
    """Return the times of the whole job, if all its steps are like the measured parts."""
    samples = measured.training.samples["train"]
    assert measured.epoch_steps
    by_parts = epoch_by_parts(measured.parts, measured.epoch_steps)

    def epoch(training_seconds: float) -> EpochTiming:
        ended_at = measured.started_at_unix_seconds
        return EpochTiming(training_seconds, measured.validation_seconds, ended_at)

    epochs, repeats = (epoch(by_parts.seconds),), tuple((epoch(each),) for each in by_parts.values)
    fields = {name: getattr(measured, name) for name in StepMeasurements.model_fields}
    return Timings(
        **fields,
        host=measured.host,
        host_name=measured.host_name,
        device_name=measured.device_name,
        device_count=measured.device_count,
        git_commit=measured.git_commit,
        packages=measured.packages,
        started_at_unix_seconds=measured.started_at_unix_seconds,
        peak_memory_bytes=measured.peak_memory_bytes,
        startup_seconds=measured.startup_seconds,
        startup_cpu_seconds=measured.startup_cpu_seconds,
        data_seconds=measured.data_seconds,
        warm_up_seconds=measured.warm_up_seconds,
        steps_taken=measured.steps_taken,
        epochs=epochs,
        epochs_left=job.epochs - len(epochs),
        repeats=repeats,
        seeds=(epochs,) * (job.seeds - 1),
        sampled_steps=round(sum(part.steps for part in measured.parts)),
        total_seconds=measured.startup_seconds + by_parts.once_seconds + passed_seconds(epochs),
        training_image_count=samples,
        steps_per_epoch=-(-samples // job.batch_size),
        images_per_second=samples / by_parts.seconds,
        overhead=Overhead(passes_seconds=0.0, seconds=0.0),
        tracking_seconds=0.0,
        load=measured.load,
        measured_load=measured.load,
    )


def job_line(measured: Measured, job: Experiment) -> str:
    """Return `digits-cnn on cpu: about 12 s for 80 epochs (11 s to 13 s)`."""
    times = sampled_times(measured, job)
    at_most = "at most " if job.early_stopping else ""
    length = f"{at_most}{counted(job.epochs, 'epoch')}"
    if job.seeds > 1:
        length += f" from each of {job.seeds} seeds"
    with_seeds = times.job_seconds / times.whole_seconds
    low, high = (with_seeds * end for end in job_interval(times))
    spread = f"{seconds(low)} to {seconds(high)}" if math.isfinite(high) else "by one part of it"
    about = seconds(times.job_seconds)
    return f"{measured.job} on {measured.device}: about {about} for {length} ({spread})"
