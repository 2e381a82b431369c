"""Overview of all experiments: a row for each, with its answer."""

from __future__ import annotations

from collections.abc import Sequence

from photofinish.answer.candidates import Worth
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision
from photofinish.answer.own_gpu import highest_limit
from photofinish.answer.times import job_interval
from photofinish.machine.load import load_warnings
from photofinish.reporting.answer_words import main_cause, with_article
from photofinish.reporting.extrapolated import likeness, timed_text
from photofinish.reporting.page import ANSWER, Table
from photofinish.reporting.sentences import Verdict
from photofinish.reporting.templates import NOTHING, say
from photofinish.results.job_times import JobTimes
from photofinish.wording import HIGH, seconds


def overview_table(verdicts: Sequence[Verdict], pairs: Sequence[Comparison]) -> Table:
    """Return a row for each experiment, without empty columns."""
    rows = []
    for each, pair in zip(verdicts, pairs, strict=True):
        own = each.decision.own
        row = {
            "experiment": each.experiment,
            ANSWER: say("overview answer", it=each.decision),
            "do now": each.action,
            "on this CPU": _cpu_time(pair.cpu.timings),
            "on a GPU": _gpu_time(each.decision),
            "speed-up": _speedup(own, highest_limit(pair)),
            "what takes the time": main_cause(pair, own) or NOTHING,
            "the models": _models(pair),
        }
        rows.append(row)
    filled = [heading for heading in rows[0] if any(row[heading] != NOTHING for row in rows)]
    return [{heading: row[heading] for heading in filled} for row in rows]


def _models(pair: Comparison) -> str:
    if pair.parity:
        return likeness(pair.parity)
    return "not compared" if pair.compared else NOTHING


def _cpu_time(timings: JobTimes) -> str:
    """Return the job's time, with a note if other programs used the machine."""
    (low, high), busy = job_interval(timings), "busy machine" if load_warnings(timings.load) else ""
    timed = timed_text(timings) if timings.untimed_epochs else ""
    values = {"whole": timings.whole_seconds, "interval": f"{seconds(low)} to {seconds(high)}"}
    return say("CPU time", **values, timed=timed, busy=busy)


def _gpu_time(decision: Decision) -> str:
    """Return the job's time on the deciding GPU, or else on a rented GPU, with its source."""
    own, rented = decision.own, decision.rented
    if own.gpu is None:
        option = rented.option if rented and rented.jobs == 1 else None
        return say("on a rented GPU", it=option) if option and option.estimate else NOTHING
    if own.basis == "measured":
        return seconds(own.gpu.seconds)
    if own.option:
        return say("if it had one", own=own, name=with_article(own.option.accelerator.name))
    return say("on a recorded GPU", own=own)


def _speedup(own: Worth, limit: float) -> str:
    """Return the speed-up of the GPU, or its upper bound."""
    if own.speedup is None:
        return say("up to times", limit=limit) if limit <= HIGH else NOTHING
    kind = "wide interval" if own.is_hardly_known else "speed-up"
    return say(kind, speedup=own.speedup, interval=own.interval)
