"""Words for the comparison of the models."""

from __future__ import annotations

from photofinish.answer.comparison import Comparison
from photofinish.answer.same_model import same_model
from photofinish.reporting.extrapolated import likeness
from photofinish.reporting.say import say


def model_text(pair: Comparison) -> str:
    """Return whether the GPU trains the same model: `losses alike* (H100, the first epoch)`."""
    found = same_model(pair)
    if found.parity:
        return likeness(found.parity)
    if record := found.record:
        if record.diverges_at:
            return say("step apart", record=record)
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
