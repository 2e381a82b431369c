"""A training prints a line an epoch to a log, and a bar with the time left to a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import TextIO, cast

import pytest

from photofinish.results import EpochMetrics, EpochTiming
from photofinish.runs.views import TrainingDisplay
from photofinish.training.trainer import Trainer

METRICS = EpochMetrics(
    1, 0.1, training_loss=0.51234, validation_loss=0.43219, validation_accuracy=0.875
)
TIMING = EpochTiming(training_seconds=0.5, validation_seconds=0.1, ended_at_unix_seconds=0.0)
DEADLINE_SECONDS = 30.0


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


def display(
    steps_done: Callable[[], int] = lambda: 0,
    timing: EpochTiming = TIMING,
    *,
    early_stopping: bool = False,
) -> TrainingDisplay:
    class Training:
        progress = SimpleNamespace(timings=[timing])
        experiment, steps_per_epoch, training = (
            SimpleNamespace(epochs=2, early_stopping=early_stopping),
            10,
            SimpleNamespace(image_count=600),
        )
        steps_done = property(lambda _self: steps_done())

    return TrainingDisplay("small on cpu", cast(Trainer, Training()))


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


def test_in_a_log_each_epoch_and_message_is_one_plain_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with display() as shown:
        shown.epoch_ended(METRICS, TIMING, 1)
        shown.say("checkpoint [a] is damaged")
        shown.epoch_ended(EpochMetrics(2, 0.1, 0.25, 0.5, 1.0), TIMING, 0)
    written = capsys.readouterr()
    assert written.err == ""
    assert written.out.splitlines() == [
        "small on cpu  epoch 1/2  loss 0.5123  validation 0.4322, 87.50%  1,200 samples/s",
        "small on cpu  checkpoint [a] is damaged",
        "small on cpu  epoch 2/2  loss 0.2500  validation 0.5000, 100.00%  1,200 samples/s",
    ]


@pytest.mark.parametrize(("early_stopping", "left"), [(False, "3.5"), (True, "at most 3.5")])
def test_a_line_of_a_log_has_the_time_left_and_the_money_so_far(
    early_stopping: bool, left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    timing = EpochTiming(training_seconds=200.0, validation_seconds=10.0, ended_at_unix_seconds=0.0)
    with display(timing=timing, early_stopping=early_stopping) as shown:
        shown.epoch_ended(METRICS, timing, 1, "0.42 USD so far")
    assert capsys.readouterr().out.endswith(f"3 samples/s  {left} min left, 0.42 USD so far\n")


def test_on_a_terminal_a_bar_shows_the_steps_and_the_time_left(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = iter(range(1, 1000))
    with redirect_stderr(terminal.stderr), display(lambda: min(next(steps), 19)) as shown:
        terminal.wait_for(r"━.*\d:\d\d:\d\d")
        shown.epoch_ended(METRICS, TIMING, 1, "0.42 USD so far")
        terminal.wait_for(r"epoch 1/2  loss 0\.5123.*0\.42 USD so far")
        shown.say("checkpoint [a] is damaged")
        terminal.wait_for(r"small on cpu  checkpoint \[a\] is damaged\r\n")
    assert capsys.readouterr().out == ""
