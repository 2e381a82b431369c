"""Words for the comparison of the models."""

from __future__ import annotations

from photofinish.answer.comparison import Comparison
from photofinish.answer.parity import Parity
from photofinish.answer.same_model import same_model
from photofinish.answer.seeds import ScoreDifference
from photofinish.reporting.say import say


def model_text(pair: Comparison) -> str:
    """Return whether the GPU trains the same model: `losses alike* (H100, the first epoch)`."""
    found = same_model(pair)
    if found.parity:
        return likeness(found.parity)
    if record := found.record:
        if record.diverges_at:
            return say("step apart", record=record)
        if record.epochs is None:
            return say("step alike", record=record)
        if not record.epochs:
            return say("losses apart", record=record)
        common = say("first epoch" if record.epochs == 1 else "first epochs", epochs=record.epochs)
        kind = "step and losses alike" if record.has_first_step else "losses alike"
        return say(kind, record=record, epochs=common)
    if found.script:
        text = say(found.script.kind, found=found.script)
        return say("on a rented GPU", text=text, gpu=found.rented) if found.rented else text
    assert found.why_not
    return say("not checked", why=say(found.why_not))


def likeness(parity: Parity) -> str:
    """Return how similar the models are, and over which epochs if one ended before the other."""
    words, difference = str(parity.likeness), parity.difference
    if parity.likeness == "not shown":
        words = say("not shown")
    if parity.likeness == "same so far":
        return say("same so far", apart=difference and abs(100 * difference.mean))
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
