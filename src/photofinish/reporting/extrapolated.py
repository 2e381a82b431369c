"""Times of jobs that were timed in part, and how long a measured job will take."""

from __future__ import annotations

import math

from photofinish.answer.times import job_time
from photofinish.config.experiment import ExperimentPlan
from photofinish.reporting.say import say
from photofinish.results.job import Job
from photofinish.results.measured import Measured
from photofinish.results.measured_jobs import job_of_experiment
from photofinish.wording import between, counted, is_wide, seconds


def timed_text(timings: Job) -> str:
    """Return `3 of 50 epochs`, or `50 epochs` if all of the job was timed."""
    done, of, unit = timings.timed
    whole = counted(round(of), unit)
    return say("timed", done=round(done), whole=whole) if timings.untimed_epochs else whole


def mark(timings: Job) -> str:
    """Return the mark of an extrapolated time, or an empty text."""
    return say("extrapolated", timed=timed_text(timings)) if timings.untimed_epochs else ""


def early(timings: Job) -> str:
    """Return why an extrapolated time is an upper bound, or an empty text."""
    return say("stops early") if timings.may_stop_early else ""


def caution(timings: Job) -> str:
    """Return a caution about a training that was timed in part, as by a time limit."""
    (low, high), (done, _, unit) = job_time(timings).interval, timings.timed
    is_trained = unit == "epoch"  # else it was a sample of steps
    ends = say("unsure") if is_wide((low, high)) else ""
    ends = say("as busy as now") if timings.busy else ends
    return say(
        "time limit",
        it=timings,
        timed=timed_text(timings),
        limit="`time_limit`" if is_trained else "",
        ends=ends or f"{seconds(low)} to {seconds(high)}",
        early=early(timings),
        done=counted(round(done), unit) if is_trained else "",
    )


def job_line(measured: Measured, job: ExperimentPlan) -> str:
    """Return `digits-cnn on cpu: about 12 s for 80 epochs (11-13 s), without ...`."""
    times = job_of_experiment(measured, job)
    low, high = job_time(times, with_seeds=True).interval
    spread = "as busy as now" if times.busy else "estimated from one part"
    if math.isfinite(high):
        spread = between((low, high))
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
