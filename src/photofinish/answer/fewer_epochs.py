"""Fewer epochs: the epoch from which on a training learned nothing that its settings ask for."""

from __future__ import annotations

from dataclasses import dataclass

from photofinish.answer.result import Result
from photofinish.config.compare import Comparing

LONG_BEFORE = 0.5
"""Largest share of all epochs that counts as long before the last one, by hand."""


@dataclass(frozen=True)
class FewerEpochs:
    epochs: int
    accuracy: float
    """Validation accuracy in the last of these epochs."""
    is_target: bool
    """True if the accuracy reached the target, False if it is the best of all epochs."""
    gain: float
    """Speed-up of the whole job."""


def fewer_epochs(run: Result, settings: Comparing) -> FewerEpochs | None:
    """Return the epoch that reached the target or the best accuracy long before the last epoch.

    The best accuracy of a training that a time limit ended is not known.
    """
    accuracies = [epoch.validation_accuracy for epoch in run.history]
    if not accuracies or None in accuracies or run.stops_early:
        return None
    known, timings = [each or 0.0 for each in accuracies], run.timings
    wanted = [settings.target_accuracy] if settings.target_accuracy is not None else []
    learns = max(known) > known[0]
    wanted += [max(known)] if learns and not timings.untimed_epochs else []
    for epoch, accuracy in enumerate(known, 1):
        if any(accuracy >= each for each in wanted):
            share = epoch / timings.planned_epochs
            if share > LONG_BEFORE:
                return None
            left_seconds = timings.whole_seconds - (1 - share) * timings.passes_seconds
            is_target = bool(settings.target_accuracy and accuracy >= settings.target_accuracy)
            return FewerEpochs(epoch, accuracy, is_target, timings.whole_seconds / left_seconds)
    return None
