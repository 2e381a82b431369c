"""Every case of an answer: its two lines, and a word that follows from their numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import MakeResult
from result_files import BUSY, STEP, pair_of, paired, trained, with_timings
from test_default_jobs import cpu_result
from test_references import recorded

from photofinish.answer.comparison import Comparison
from photofinish.answer.result import Trained
from photofinish.config.compare import Comparing
from photofinish.reporting.model_words import model_text
from photofinish.reporting.sentences import verdict
from photofinish.results import EpochTiming
from photofinish.results.records import DeviceLabel

Case = Callable[["Jobs"], Comparison]
HOUR_STEP = STEP.model_copy(update={"flops": 10**13})
"""Step that takes a T4 1.2 s by estimate, and so 3.8 min in five epochs of 600 samples."""
QUICK_STEP = STEP.model_copy(update={"flops": 10**11})
T4, NO_GPU = Comparing(accelerators=("T4",)), Comparing(accelerators=())


class Jobs:
    """Made-up jobs of five epochs."""

    def __init__(self, make_result: MakeResult) -> None:
        self.make_result = make_result

    def cpu(self, seconds: float, device: DeviceLabel = "cpu", **timings: Any) -> Trained:
        """Make a job of so many seconds, with 2.5 s of start-up."""
        run = trained(
            self.make_result,
            device=device,
            epoch_seconds=((seconds - 2.5) / 5 - 0.1,) * 5,
            total_seconds=seconds,
            device_name="Some CPU" if device == "cpu" else "Some GPU",
        )
        return with_timings(run, **timings)

    def gpu(self, seconds: float) -> Trained:
        return self.cpu(seconds, "gpu")

    def rent(self, seconds: float, **settings: float) -> Comparison:
        """Compare a job with a T4 to rent."""
        cpu = self.cpu(seconds, operations=HOUR_STEP)
        return pair_of(cpu, settings=T4.model_copy(update=settings))

    def first_epochs(self, *epoch_seconds: float) -> Comparison:
        """Compare a job of 80 epochs, of which these were trained, with a T4 to rent."""
        timings = {
            "epochs": tuple(EpochTiming(each - 0.1, 0.1, 1.7e9) for each in epoch_seconds),
            "epochs_left": 80 - len(epoch_seconds),
            "total_seconds": 2.5 + sum(epoch_seconds),
        }
        return pair_of(self.cpu(100.0, operations=QUICK_STEP, **timings), settings=T4)

    def rnn(self) -> Comparison:
        """Compare a job whose operators have no formula."""
        uncounted = HOUR_STEP.model_copy(update={"without_formula": ("_thnn_fused_lstm_cell",)})
        return pair_of(self.cpu(900.0, operations=uncounted), settings=T4)


def test_a_model_is_compared_with_a_record_by_what_it_has(make_result: MakeResult) -> None:
    jobs = Jobs(make_result)
    cpu, gpu = jobs.cpu(125.0), jobs.gpu(10.0)
    whole = recorded(gpu)

    def text(first_step: Any, losses: tuple[float, ...] = ()) -> str:
        history = [
            replace(epoch, training_loss=loss)
            for epoch, loss in zip(whole.history, losses, strict=False)
        ]
        changed = {"first_step": first_step, "history": (*history, *whole.history[len(history) :])}
        (pair,) = paired([cpu], None, [whole.model_copy(update=changed)])
        return model_text(pair)

    step = gpu.first_step
    assert step
    assert text(None) == "yes so far* (5 epochs of losses, Some GPU)"
    assert text(None, (1.0, 9.0)) == "yes so far* (1 epoch of losses, Some GPU)"
    assert text(None, (9.0,)) == "unclear, losses differ in epoch 1 (Some GPU*)"
    assert text(step) == "yes so far* (first step and 5 epochs of losses, Some GPU)"
    other = step.model_copy(update={"gradients": {**step.gradients, "3.weight": (0.25, -0.2)}})
    assert text(other) == "no*, from the first gradient on (Some GPU)"
    other = step.model_copy(update={"batch_order_sha256": "3" * 64})
    assert text(other) == "no*, from the batch order on (Some GPU)"
