"""What a log and a terminal show: a training's lines, a bar, coloured answers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO

import pytest
from conftest import MakeTrainer

from photofinish.commands.pipeline import print_answer
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.runs.views import TrainingDisplay
from photofinish.training.trainer import Trainer

METRICS = EpochMetrics(
    1, 0.1, training_loss=0.51234, validation_loss=0.43219, validation_accuracy=0.875
)
TIMING = EpochTiming(training_seconds=10.0, validation_seconds=200.0, ended_at_unix_seconds=0.0)
Display = Callable[..., TrainingDisplay]


class Terminal(StringIO):
    """A terminal that keeps all that a program draws."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def display(trainer_of: MakeTrainer) -> Display:
    """Make the display of two epochs of 72 images, the first of which took 3.5 minutes."""

    def make(**settings: object) -> TrainingDisplay:
        trainer = trainer_of(epochs=2, **settings)
        trainer.progress.timings.append(TIMING)
        return TrainingDisplay("small on cpu", trainer, is_shown=True)

    return make


@pytest.mark.parametrize(
    ("settings", "left"),
    [({}, "3.5 min left"), ({"early_stopping": {"patience": 1}}, "at most 3.5 min left")],
)
def test_in_a_log_an_epoch_of_a_long_training_and_a_message_are_one_plain_line(
    display: Display, settings: dict[str, object], left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = display(**settings)
    with shown.bar:
        shown.epoch_ended(METRICS, 1, "0.42 USD so far")
        shown.say("checkpoint [a] is damaged")
        shown.epoch_ended(EpochMetrics(2, 0.1, 0.25, 0.5, 1.0), 0)
    written = capsys.readouterr()
    assert written.err == ""
    assert written.out.splitlines() == [
        f"small on cpu  epoch 1/2, 87.5% validation accuracy, {left}, 0.42 USD so far",
        "small on cpu  checkpoint [a] is damaged",
    ]


def test_a_log_has_ten_epochs_of_a_long_training_and_none_of_a_short_one(
    display: Display, trainer_of: MakeTrainer, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = display()
    for epoch in range(1, 1001):
        shown.epoch_ended(EpochMetrics(epoch, 0.1, 0.5, 0.4), 1000 - epoch)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert "epoch 900/2, validation loss 0.4, 5.8 h left" in lines[-1]
    trainer = trainer_of(epochs=2)
    trainer.progress.timings.append(EpochTiming(50.0, 9.0, ended_at_unix_seconds=0.0))
    TrainingDisplay("small on cpu", trainer, is_shown=True).epoch_ended(METRICS, 1)
    assert capsys.readouterr().out == ""


def test_on_a_terminal_a_bar_shows_the_steps_and_the_time_left(
    display: Display, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    steps = iter(range(1, 1000))
    with redirect_stderr(Terminal()) as terminal:
        shown = display()
        done = property(lambda _: min(next(steps), 9))
        monkeypatch.setattr(Trainer, "steps_done", done, raising=False)
        with shown.bar:
            shown.epoch_ended(METRICS, 1, "0.42 USD so far")
            shown.say("checkpoint [a] is damaged")
    drawn = terminal.getvalue()
    assert re.search(r"━.*epoch 1/2, 87\.5% validation accuracy, 0\.42 USD so far", drawn)
    assert "small on cpu  checkpoint [a] is damaged\n" in drawn
    assert capsys.readouterr().out == ""


ANSWER = """job  Yes, use the H100: 2 s on the CPU, 1 s on the GPU, 2x faster.
     Next: `photofinish rent T4` prints how. Same model: yes, bit for bit.
  T4  ░░█"""
STYLED = "1;32mYes, use the H100", "1mNext:", "1mSame model:", "32m`photofinish rent T4`", "36m█"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_answer_is_the_same_text_with_and_without_colours(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shown(StringIO):
        def isatty(self) -> bool:
            return is_terminal

    shown = Shown()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", shown)
    print_answer(ANSWER)
    text = shown.getvalue()
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == f"{ANSWER}\n"
    assert all((f"\x1b[{each}\x1b[0m" in text) is is_terminal for each in STYLED)
