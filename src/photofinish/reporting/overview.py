"""Overview of all experiments: a row for each, with its answer."""

from __future__ import annotations

from collections.abc import Sequence

from photofinish.comparing.candidates import Worth
from photofinish.comparing.decision import Decision
from photofinish.comparing.own_gpu import highest_limit, is_likely
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.times import job_interval
from photofinish.machine.load import load_warnings
from photofinish.reporting.answer_words import with_article
from photofinish.reporting.extrapolated import likeness, timed_text
from photofinish.reporting.page import ANSWER, NOTHING, Table
from photofinish.reporting.sentences import Verdict
from photofinish.results.job_times import JobTimes
from photofinish.wording import HIGH, bound, interval_text, ratio, seconds


def overview_table(verdicts: Sequence[Verdict], pairs: Sequence[Comparison]) -> Table:
    """Return a row for each experiment, without empty columns."""
    rows = []
    for each, pair in zip(verdicts, pairs, strict=True):
        own = each.decision.own
        row = {
            "experiment": each.experiment,
            ANSWER: f"{each.decision.answer} ({each.decision.about})",
            "do now": each.action,
            "on this CPU": _cpu_time(pair.cpu.timings),
            "on a GPU": _gpu_time(each.decision),
            "speed-up": _speedup(own, highest_limit(pair)),
            "what takes the time": _why(pair, own),
            "the models": _models(pair),
        }
        rows.append(row)
    filled = [heading for heading in rows[0] if any(row[heading] != NOTHING for row in rows)]
    return [{heading: row[heading] for heading in filled} for row in rows]


def _models(pair: Comparison) -> str:
    if pair.parity:
        return likeness(pair.parity)
    return "not compared" if pair.compared else NOTHING


def _why(pair: Comparison, own: Worth) -> str:
    reason = own.reason or NOTHING
    return f"likely {reason}" if is_likely(pair, own) else reason


def _cpu_time(timings: JobTimes) -> str:
    """Return the job's time, with a note if other programs used the machine."""
    low, high = map(seconds, job_interval(timings))
    time = f"{seconds(timings.whole_seconds)}"
    if timings.untimed_epochs:
        time += f" ({low} to {high}), extrapolated from {timed_text(timings)}"
    return f"{time}{', busy machine' if load_warnings(timings.load) else ''}"


def _gpu_time(decision: Decision) -> str:
    """Return the job's time on the deciding GPU, or else on a rented GPU, with its source."""
    own, rented = decision.own, decision.rented
    if own.gpu is None:
        option = rented.option if rented and rented.jobs == 1 else None
        if option is None or option.estimate is None:
            return NOTHING
        name = option.accelerator.name
        return f"{seconds(option.estimate.job_seconds)} on a rented {name} (estimated)"
    time = seconds(own.gpu.seconds)
    if own.basis == "measured":
        return time
    if own.option:
        return f"{time} if this machine had {with_article(own.option.accelerator.name)} (estimated)"
    return f"{time} on {own.gpu.name} (recorded elsewhere)"


def _speedup(own: Worth, limit: float) -> str:
    """Return the speed-up of the GPU, or its upper bound."""
    if own.speedup is None:
        return f"up to {bound(limit)}" if limit <= HIGH else NOTHING
    if own.interval and own.is_hardly_known:
        return f"{interval_text(own.interval)} times"
    text = f"{ratio(own.speedup)}x"
    return f"{text} ({interval_text(own.interval)})" if own.interval else text
