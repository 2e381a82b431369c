"""The overview of all experiments: one row an experiment, with its answer."""

from __future__ import annotations

from collections.abc import Sequence

from photofinish.comparing.bounds import SpeedupBound
from photofinish.comparing.decision import Decision, is_likely
from photofinish.comparing.pairs import AnyComparison
from photofinish.machine.load import load_warnings
from photofinish.reporting.sentences import HIGH, Verdict
from photofinish.reporting.tables import NOTHING, Table, money_or_nothing
from photofinish.wording import bound, interval_text, ratio, seconds

ANSWER = "worth a GPU?"


def overview_table(verdicts: Sequence[Verdict], pairs: Sequence[AnyComparison]) -> Table:
    """Return a row for each experiment, without columns that would be empty."""
    rows = []
    for each, pair in zip(verdicts, pairs, strict=True):
        decision, compared = each.decision, pair.compared
        row = {
            "experiment": each.experiment,
            ANSWER: decision.answer,
            "on this CPU": seconds(decision.cpu_seconds),
            "on a GPU": _gpu_time(decision),
            "speed-up": _speedup(decision, pair.ceiling.job),
            "cost": _cost(pair, decision),
            "why": _why(pair, decision),
            "the models": compared.likeness if compared else NOTHING,
        }
        rows.append(row)
    filled = [heading for heading in rows[0] if any(row[heading] != NOTHING for row in rows)]
    return [{heading: row[heading] for heading in filled} for row in rows]


def _why(pair: AnyComparison, decision: Decision) -> str:
    """Return the reason, with a remark if it is by the figures of a busy machine."""
    reason = decision.reason or NOTHING
    if not is_likely(pair, decision):
        return reason
    is_busy = any(load_warnings(run.timings.load) for run in pair.trained)
    return f"likely {reason}{' (busy machine)' if is_busy else ''}"


def _gpu_time(decision: Decision) -> str:
    """Return the job's time on the GPU that decides, and where it is from."""
    if decision.gpu_seconds is None:
        return NOTHING
    time = seconds(decision.gpu_seconds)
    if decision.basis == "measured":
        return time
    return f"{time} on {decision.gpu} ({decision.basis})"


def _speedup(decision: Decision, limit: SpeedupBound) -> str:
    """Return how much faster the GPU is, or at most could be."""
    if decision.speedup is None:
        is_useful = limit.as_measured <= HIGH
        return f"up to {bound(limit.as_measured)}" if is_useful else NOTHING
    text = f"{ratio(decision.speedup)}x"
    return f"{text} ({interval_text(decision.interval)})" if decision.interval else text


def _cost(pair: AnyComparison, decision: Decision) -> str:
    """Return the cost of the job on the GPU that decides."""
    if decision.option and decision.option.estimate and decision.option.price:
        return money_or_nothing(decision.option.estimate.cost, decision.option.price.currency)
    if decision.basis == "measured" and "gpu" in pair.outlays:
        return money_or_nothing(pair.outlays["gpu"].cost.amount, pair.outlays["gpu"].currency)
    return NOTHING
