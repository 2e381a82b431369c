"""Times of jobs that were timed in part."""

from __future__ import annotations

from photofinish.answer.times import job_time
from photofinish.reporting.say import say
from photofinish.results.job_times import JobTimes
from photofinish.wording import counted, is_wide, seconds


def timed_text(timings: JobTimes) -> str:
    """Return `3 of 50 epochs`, or `50 epochs` if all of the job was timed."""
    done, of, unit = timings.timed
    whole = counted(round(of), unit)
    return say("timed", done=round(done), whole=whole) if timings.untimed_epochs else whole


def mark(timings: JobTimes) -> str:
    """Return the mark of an extrapolated time, or an empty text."""
    return say("extrapolated", timed=timed_text(timings)) if timings.untimed_epochs else ""


def early(timings: JobTimes) -> str:
    """Return why an extrapolated time is an upper bound, or an empty text."""
    return say("stops early") if timings.may_stop_early else ""


def caution(timings: JobTimes) -> str:
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
