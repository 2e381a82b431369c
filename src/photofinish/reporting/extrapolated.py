"""Text about a training that a time limit ended, and about the time of its whole job."""

from __future__ import annotations

from photofinish.comparing.parity import Parity
from photofinish.comparing.seeds import ScoreDifference
from photofinish.comparing.times import job_interval
from photofinish.results.job_times import JobTimes
from photofinish.wording import counted, seconds


def timed_text(timings: JobTimes) -> str:
    """Return `3 of 50 epochs`, or `50 epochs` if all of the job was timed."""
    count, of, unit = timings.timed
    whole = counted(round(of), unit)
    return f"{round(count):,} of {whole}" if timings.untimed_epochs else whole


def job_time(timings: JobTimes) -> str:
    """Return the whole job's time, marked if it is extrapolated."""
    return f"{seconds(timings.whole_seconds)}{mark(timings)}"


def mark(timings: JobTimes) -> str:
    """Return the mark of an extrapolated time, or an empty text."""
    return f" (extrapolated from {timed_text(timings)})" if timings.untimed_epochs else ""


def caution(timings: JobTimes) -> str:
    """Return a caution about a training that a time limit ended."""
    low, high = map(seconds, job_interval(timings))
    count, _, unit = timings.timed
    return (
        f"The CPU trained {timed_text(timings)}, by its `time_limit`. The whole job's time of "
        f"{seconds(timings.whole_seconds)} is extrapolated ({low} to {high}), and its test metrics "
        f"are those after {counted(round(count), unit)}."
    )


def likeness(parity: Parity) -> str:
    """Return how similar the models are, and over which epochs if a time limit ended a training."""
    words, difference = str(parity.likeness), parity.difference
    if parity.likeness == "not shown":
        words = "not shown to be the same"
    if parity.epochs is not None:
        return f"{words} over the {counted(parity.epochs, 'epoch')} that both trained"
    if difference is None:
        return words
    if parity.likeness == "equivalent":
        return f"{words} (within {_points(parity.margin)}: {_range(difference)})"
    if parity.likeness == "not shown":
        wanted = difference.seeds_wanted(parity.margin)
        return f"{words}: {in_points(difference)}, and `seeds: {wanted}` would show it"
    is_score = parity.first_divergence and parity.first_divergence.name == "test accuracy"
    return f"{words}: {in_points(difference)}" if is_score else words


def in_points(difference: ScoreDifference) -> str:
    """Return `GPU -3.5 points (-7.9 to +0.9)`."""
    return f"GPU {100 * difference.mean:+.1f} points ({_range(difference)})"


def _points(share: float) -> str:
    points = f"{100 * share:g}"
    return f"{points} point{'' if points == '1' else 's'}"


def _range(difference: ScoreDifference) -> str:
    return " to ".join(f"{100 * end:+.1f}" for end in difference.interval)
