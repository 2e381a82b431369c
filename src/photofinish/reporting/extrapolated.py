"""Line of the stage `measure` about how long a job will take."""

from __future__ import annotations

import math

from photofinish.answer.times import time_by_load
from photofinish.config.experiment import ExperimentPlan
from photofinish.reporting.say import say
from photofinish.results.measured import Measured
from photofinish.results.measured_jobs import job_of_experiment
from photofinish.wording import between, seconds


def job_line(measured: Measured, job: ExperimentPlan) -> str:
    """Return `digits-cnn on cpu: about 12 s for 80 epochs (11-13 s), without ...`."""
    times = job_of_experiment(measured, job)
    time = time_by_load(times, with_seeds=True)
    low, high = time.shown.interval
    spread = "as busy as now" if times.busy else "estimated from one part"
    if math.isfinite(high):
        spread = between((low, high))
    if time.idle_seconds:
        spread += f"; {seconds(time.idle_seconds)} when idle"
    if job.time_limit_seconds and job.time_limit_seconds < times.job_seconds:
        spread += f"; it stops after {seconds(job.time_limit_seconds)}"
    return say(
        "job line",
        it=measured,
        about=times.job_seconds,
        at_most="at most" if job.early_stopping else "",
        epochs=job.epochs,
        seeds=job.seeds if job.seeds > 1 else None,
        spread=spread,
    )
