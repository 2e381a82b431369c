"""Words for the comparison of the models."""

from __future__ import annotations

from photofinish.answer.record import MOST_RUNS, JobRecord, Parity, ScoreDifference
from photofinish.reporting.say import say
from photofinish.wording import counted


def model_text(job: JobRecord) -> str:
    """Return whether the GPU trains the same model, or an empty text where no GPU ran."""
    model = job.model
    if job.parity:
        return _likeness(job.parity)
    if record := model.record:
        if record.diverges_at:
            return say("step apart", record=record)
        if record.epochs is None:
            return say("step alike", record=record)
        if not record.epochs:
            return say("losses apart", record=record)
        kind = "step and losses alike" if record.has_first_step else "losses alike"
        return say(kind, record=record, epochs=counted(record.epochs, "epoch"))
    if model.script:
        text = say(model.script.kind, it=model.script)
        return say("on a rented GPU", text=text, gpu=model.rented) if model.rented else text
    return say("a script's model") if job.gpu else ""


def _likeness(parity: Parity) -> str:
    kind, difference = parity.likeness, parity.difference
    if kind == "same so far":
        return say("same so far", apart=difference and abs(100 * difference.mean))
    if kind == "equivalent" and difference:
        return say("within", margin=parity.margin, ends=_range(difference))
    words, divergence = say(f"model: {kind}"), parity.first_divergence
    is_score = divergence is not None and divergence.name in ("test accuracy", "test error")
    if divergence and not is_score:
        words = say("differ from", layer=divergence)
    if parity.epochs is not None:
        return say("over epochs", words=words, epochs=parity.epochs)
    if difference is None:
        return words
    points = in_points(difference)
    if kind == "not shown":
        wanted = difference.seeds_wanted(parity.margin)
        seeds = wanted if wanted and wanted <= MOST_RUNS else None
        return say("seeds wanted", points=points, seeds=seeds)
    return say("differ by", points=points) if is_score else words


def in_points(difference: ScoreDifference) -> str:
    """Return `GPU -3.5 points (-7.9 to +0.9)`."""
    return say("points", mean=100 * difference.mean, ends=_range(difference))


def _range(difference: ScoreDifference) -> str:
    return " to ".join(f"{100 * end:+.1f}" for end in difference.interval)
