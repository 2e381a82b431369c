"""Times of jobs that were timed in part, and how similar two models are."""

from __future__ import annotations

from photofinish.answer.parity import Parity
from photofinish.answer.seeds import ScoreDifference
from photofinish.answer.times import job_interval
from photofinish.reporting.say import say
from photofinish.results.job_times import JobTimes
from photofinish.wording import counted


def timed_text(timings: JobTimes) -> str:
    """Return `3 of 50 epochs`, or `50 epochs` if all of the job was timed."""
    done, of, unit = timings.timed
    whole = counted(round(of), unit)
    return say("timed", done=round(done), whole=whole) if timings.untimed_epochs else whole


def mark(timings: JobTimes) -> str:
    """Return the mark of an extrapolated time, or an empty text."""
    return say("extrapolated", timed=timed_text(timings)) if timings.untimed_epochs else ""


def caution(timings: JobTimes) -> str:
    """Return a caution about a training that a time limit ended."""
    (low, high), (done, _, unit) = job_interval(timings), timings.timed
    timed, done_text = timed_text(timings), counted(round(done), unit)
    return say("time limit", it=timings, timed=timed, done=done_text, low=low, high=high)


def likeness(parity: Parity) -> str:
    """Return how similar the models are, and over which epochs if a time limit ended a training."""
    words, difference = str(parity.likeness), parity.difference
    if parity.likeness == "not shown":
        words = say("not shown")
    divergence = parity.first_divergence
    is_score = divergence is not None and divergence.name in ("test accuracy", "test error")
    if divergence and not is_score:
        words = say("differ from", words=words, layer=divergence)
    if parity.epochs is not None:
        return say("over epochs", words=words, epochs=parity.epochs)
    if difference is None:
        return words
    if parity.likeness == "equivalent":
        return say("within", words=words, margin=parity.margin, ends=_range(difference))
    points = in_points(difference)
    if parity.likeness == "not shown":
        wanted = difference.seeds_wanted(parity.margin)
        return say("seeds wanted", words=words, points=points, seeds=wanted)
    return say("differ by", words=words, points=points) if is_score else words


def in_points(difference: ScoreDifference) -> str:
    """Return `GPU -3.5 points (-7.9 to +0.9)`."""
    return say("points", mean=100 * difference.mean, ends=_range(difference))


def _range(difference: ScoreDifference) -> str:
    return " to ".join(f"{100 * end:+.1f}" for end in difference.interval)
