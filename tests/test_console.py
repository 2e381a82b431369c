"""A training prints a line an epoch to a log, and a bar with the time left to a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from typing import TextIO

import pytest
from conftest import MakeTrainer

from photofinish.results import EpochMetrics, EpochTiming
from photofinish.runs.views import TrainingDisplay
from photofinish.training.trainer import Trainer

METRICS = EpochMetrics(
    1, 0.1, training_loss=0.51234, validation_loss=0.43219, validation_accuracy=0.875
)
TIMING = EpochTiming(training_seconds=10.0, validation_seconds=200.0, ended_at_unix_seconds=0.0)
DEADLINE_SECONDS = 30.0
Display = Callable[..., TrainingDisplay]


class Terminal:
    """The other end of a pseudo-terminal, which reads what a program draws."""

    def __init__(self, descriptor: int, stderr: TextIO) -> None:
        self._descriptor, self.stderr = descriptor, stderr
        self.drawn = ""

    def wait_for(self, pattern: str) -> None:
        """Read until what was drawn matches."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not re.search(pattern, self.drawn):
            assert time.monotonic() < deadline, f"{pattern} was never drawn: {self.drawn!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self.drawn += os.read(self._descriptor, 1 << 16).decode(errors="replace")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Give a terminal of 200 columns."""
    ours, theirs = pty.openpty()
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with os.fdopen(theirs, "w") as stderr:
        yield Terminal(ours, stderr)
    os.close(ours)


@pytest.fixture
def display(trainer_of: MakeTrainer) -> Display:
    """Make the display of two epochs of 72 images, the first of which took 3.5 minutes."""

    def make(**settings: object) -> TrainingDisplay:
        trainer = trainer_of(epochs=2, **settings)
        trainer.progress.timings.append(TIMING)
        return TrainingDisplay("small on cpu", trainer)

    return make


@pytest.mark.parametrize(
    ("settings", "left"),
    [({}, "3.5 min left"), ({"early_stopping": {"patience": 1}}, "at most 3.5 min left")],
)
def test_in_a_log_each_epoch_and_message_is_one_plain_line(
    display: Display, settings: dict[str, object], left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with display(**settings) as shown:
        shown.epoch_ended(METRICS, TIMING, 1, "0.42 USD so far")
        shown.say("checkpoint [a] is damaged")
        shown.epoch_ended(EpochMetrics(2, 0.1, 0.25, 0.5, 1.0), TIMING, 0)
    written = capsys.readouterr()
    assert written.err == ""
    assert written.out.splitlines() == [
        "small on cpu  epoch 1/2  loss 0.5123  validation 0.4322, 87.50%  7 samples/s  "
        f"{left}, 0.42 USD so far",
        "small on cpu  checkpoint [a] is damaged",
        "small on cpu  epoch 2/2  loss 0.2500  validation 0.5000, 100.00%  7 samples/s",
    ]


def test_on_a_terminal_a_bar_shows_the_steps_and_the_time_left(
    terminal: Terminal,
    display: Display,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = iter(range(1, 1000))
    with redirect_stderr(terminal.stderr):
        shown = display()
    done = property(lambda _: min(next(steps), 9))
    monkeypatch.setattr(Trainer, "steps_done", done, raising=False)
    with redirect_stderr(terminal.stderr), shown:
        terminal.wait_for(r"━.*\d:\d\d:\d\d")
        shown.epoch_ended(METRICS, TIMING, 1, "0.42 USD so far")
        terminal.wait_for(r"epoch 1/2  loss 0\.5123.*0\.42 USD so far")
        shown.say("checkpoint [a] is damaged")
        terminal.wait_for(r"small on cpu  checkpoint \[a\] is damaged\r\n")
    assert capsys.readouterr().out == ""
