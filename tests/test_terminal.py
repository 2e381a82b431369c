"""Answers have colours on a terminal, and are plain text elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest

from photofinish.commands.terminal import print_answer

ANSWER = "job  Yes. 2 s on the H100\n     Do: `photofinish rent T4`. Model: identical.\n  T4  ░░█"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_answer_is_the_same_text_with_and_without_colours(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shown(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    shown = Shown()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", shown)
    print_answer(ANSWER)
    text = shown.getvalue()
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == f"{ANSWER}\n"
    assert ("\x1b[1;32mYes\x1b[0m" in text) is is_terminal
