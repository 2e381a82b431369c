"""The line with which measuring ends: how long the whole job will take."""

from __future__ import annotations

import math

from photofinish.comparing.times import job_interval
from photofinish.config.experiment import Experiment
from photofinish.results.measured import Measured
from photofinish.results.measured_job import experiment_job
from photofinish.wording import counted, seconds


def job_line(measured: Measured, job: Experiment) -> str:
    """Return `digits-cnn on cpu: about 12 s for 80 epochs (11 s to 13 s)`."""
    times = experiment_job(measured, job)
    at_most = "at most " if job.early_stopping else ""
    length = f"{at_most}{counted(job.epochs, 'epoch')}"
    if job.seeds > 1:
        length += f" from each of {job.seeds} seeds"
    with_seeds = times.job_seconds / times.whole_seconds
    low, high = (with_seeds * end for end in job_interval(times))
    spread = f"{seconds(low)} to {seconds(high)}" if math.isfinite(high) else "by one part of it"
    about = seconds(times.job_seconds)
    return f"{measured.job} on {measured.device}: about {about} for {length} ({spread})"
