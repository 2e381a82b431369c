"""What a trial found, in a few lines."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from photofinish.comparison.diagnosis import diagnose
from photofinish.comparison.remedies import times
from photofinish.remedy.prescription import Prescription
from photofinish.remedy.trial import Outcome, Outcomes
from photofinish.results.records import Timings
from photofinish.wording import seconds


def told(prescribed: Prescription, outcomes: Outcomes) -> str:
    remedy, found = prescribed.remedy, prescribed.diagnosis
    what, measured = _measured_by(prescribed)
    before, after = (_median(each, measured) for each in (outcomes.without, outcomes.with_remedy))
    where = " (the results on disk)" if outcomes.is_without_from_disk else ""
    return "\n".join(
        [
            f"{prescribed.experiment} on the {prescribed.device}: {found.sentence} ({found.cause}).",
            f"predicted: {remedy.prediction}. {remedy.why}.",
            f"really:    {times(before / after)} as fast; {what} took {seconds(before)} without{where}, "
            f"{seconds(after)} with.",
            _accuracy(outcomes),
            _change(prescribed, outcomes.with_remedy[-1]),
            f"The line:  {remedy.line}",
        ]
    )


def _measured_by(prescribed: Prescription) -> tuple[str, Callable[[Timings], float]]:
    """What the prediction is of."""
    if prescribed.remedy.of == "an epoch":
        return "an epoch", lambda timings: timings.median_epoch_seconds
    return "the job, for each of its epochs,", lambda timings: timings.total_seconds / len(timings.epochs)


def _median(outcomes: tuple[Outcome, ...], measured: Callable[[Timings], float]) -> float:
    return statistics.median(measured(outcome.timings) for outcome in outcomes)


def _accuracy(outcomes: Outcomes) -> str:
    without, with_remedy = outcomes.without[-1], outcomes.with_remedy[-1]
    if without.record.weights_sha256 == with_remedy.record.weights_sha256:
        return "learned:   the same, bit for bit."
    before, after = without.validation_accuracy, with_remedy.validation_accuracy
    return f"learned:   something else: validation accuracy {after:.2%}, without the remedy {before:.2%}."


def _change(prescribed: Prescription, outcome: Outcome) -> str:
    before = prescribed.diagnosis
    now = [found for found in diagnose(prescribed.experiment, outcome.record, outcome.timings) if found.of == before.of]
    if not now:
        return f"diagnosis: no longer {before.cause}."
    changed = f"still {before.cause}" if now[0].cause == before.cause else f"now {now[0].cause}, not {before.cause}"
    return f"diagnosis: {changed}: {now[0].sentence}."
