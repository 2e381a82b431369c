"""Answers on a terminal, with colours for the word, bars and commands."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

_STYLES = {
    r"\b(Yes|Probably yes), [^:]+(?=:)": "bold green",
    r"\bNo(, don't rent|, use the CPU| GPU will help)(?=:)": "bold red",
    r"\b(Close call|Can't tell)[^:]*(?=:)": "bold yellow",
    r"Next:|Same model:": "bold",
    r"`[^`]+`": "green",
    r"[█▒]+|▏": "cyan",
    r"░+": "bright_black",
}


def print_answer(text: str) -> None:
    """Print an answer's lines, in colours on a terminal and as they are elsewhere."""
    console = Console(highlight=False, soft_wrap=True)
    for line in text.splitlines():
        styled = Text(line)
        for pattern, style in _STYLES.items():
            styled.highlight_regex(pattern, style)
        console.print(styled)
