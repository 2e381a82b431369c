"""What a log and a terminal show: a training's lines, a bar, coloured answers, numbers as text."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO

import pytest
from conftest import MakeTrainer

from photofinish import wording
from photofinish.commands.pipeline import print_answer
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.runs.views import TrainingDisplay
from photofinish.training.trainer import Trainer

METRICS = EpochMetrics(1, 0.1, 0.51234, 0.43219, validation_accuracy=0.875)
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


# -- numbers and names as text ----------


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (
            wording.seconds,
            {1.25e-5: "12 µs", 0.00234: "2.3 ms", 0.418: "418 ms", 1.0: "1 s", 59.4: "59 s",
             600.4: "10 min", 86400.0: "24 h"},
        ),
        (
            wording.ratio,
            {12345.6: "12,000", 525.0: "520", 5.71: "5.7", 1.042: "1.04", 0.0946: "0.095",
             1e-7: "0.0000001"},
        ),
        (
            wording.bound,
            {1.001: "1.1x", 1.34: "1.4x", 2.0: "2.0x", 12.1: "13x", 1525.0: "1,525x",
             float("inf"): "∞x"},
        ),
        (wording.times, {300.0: "300x", 12.2: "12x", 6.04: "6.0x", 1.04: "1.04x", 0.5: "0.50x"}),
        (wording.factor, {0.5: "0.5x", 0.999: "1x", 2.04: "2x", 12.4: "12x", 1234.0: "1,200x"}),
        (
            lambda amount: wording.money(amount, "EUR"),
            {0.0: "0.00 EUR", 1e-5: "under 0.01 EUR", 0.5: "0.50 EUR", 1234.567: "1,234.57 EUR"},
        ),
        (wording.utc_day, {1.7e9: "2023-11-14"}),
    ],
    ids=["seconds", "ratio", "bound", "times", "factor", "money", "utc_day"],
)  # fmt: skip
def test_numbers_are_written_with_few_digits_and_no_exponent(
    write: Callable[[float], str], texts: dict[float, str]
) -> None:
    assert {value: write(value) for value in texts} == texts


def test_an_interval_has_the_unit_of_its_time_and_none_if_it_is_twelve_times_wide() -> None:
    assert wording.span(330.0, (144.0, 600.0)) == "5.5 min (2.4-10)"
    assert wording.span(12.0, (11.9, 12.1)) == "12 s"
    assert wording.span(12.0, (1.0, 13.0)) == "not known"
    assert wording.between((294.0, 390.0)) == "4.9-6.5 min"
    assert wording.between((-120.0, 840.0)) == "-2 to 14 min"


def test_memory_is_compared_with_a_gpus_in_one_unit() -> None:
    sizes = {369_050: "under 0.1", 2**30: "1", 40 * 2**30: "40"}
    assert {size: wording.gibibytes(size) for size in sizes} == sizes


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("Some CPU", "Some CPU"),
        ("a\\|b", r"a\\\|b"),
        ("<b>&amp;", r"\<b\>\&amp;"),
        ("[here](http://a) *b*", r"\[here\](http://a) \*b\*"),
        ("To try: `a.b: {c: <1>}`, ` alone", r"To try: `a.b: {c: <1>}`, \` alone"),
        ("two\nlines", "two lines"),
    ],
)
def test_markdown_is_shown_as_text(text: str, markdown: str) -> None:
    assert wording.markdown_text(text) == markdown
