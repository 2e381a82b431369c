"""Whether the model is the same, in words."""

from __future__ import annotations

from photofinish.answer.comparison import Comparison
from photofinish.answer.same_model import same_model
from photofinish.reporting.extrapolated import likeness
from photofinish.reporting.templates import say


def model_text(pair: Comparison) -> str:
    """Return whether the GPU trains the same model: `losses alike* (H100, the first epoch)`."""
    found = same_model(pair)
    if found.parity:
        return likeness(found.parity)
    if found.losses:
        epochs = found.losses.epochs
        if not epochs:
            return say("losses apart", gpu=found.losses.gpu)
        common = say("first epoch" if epochs == 1 else "first epochs", epochs=epochs)
        return say("losses alike", gpu=found.losses.gpu, epochs=common)
    assert found.why_not
    return say("not checked", why=say(found.why_not))
