"""Overview of all experiments: a row for each, with its answer."""

from __future__ import annotations

from collections.abc import Sequence

from photofinish.answer.candidates import Worth
from photofinish.answer.comparison import Comparison
from photofinish.reporting.answer_words import (
    cause_text,
    gpu_words,
    headline,
    here_text,
    speedup_text,
    there_text,
)
from photofinish.reporting.page import ANSWER, Table
from photofinish.reporting.sentences import Verdict
from photofinish.reporting.templates import NOTHING, say
from photofinish.wording import HIGH


def overview_table(verdicts: Sequence[Verdict], pairs: Sequence[Comparison]) -> Table:
    """Return a row for each experiment, without empty columns."""
    rows = []
    for each, pair in zip(verdicts, pairs, strict=True):
        worth = each.decision.worth
        row = {
            "experiment": each.experiment,
            ANSWER: headline(each.decision),
            "do": each.action,
            "on this CPU": here_text(pair, worth),
            "on a GPU": there_text(worth) or NOTHING,
            "GPU": gpu_words(worth) or NOTHING,
            "speed-up": _speedup(worth),
            "what takes the time": cause_text(pair, worth) or NOTHING,
            "the models": each.model,
        }
        rows.append(row)
    filled = [heading for heading in rows[0] if any(row[heading] != NOTHING for row in rows)]
    return [{heading: row[heading] for heading in filled} for row in rows]


def _speedup(worth: Worth) -> str:
    """Return the speed-up by the GPU without a machine's start, or the bound of all GPUs."""
    if worth.gpu:
        return speedup_text(worth)
    return say("up to times", limit=worth.limit) if worth.limit <= HIGH else NOTHING
