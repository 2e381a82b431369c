"""What is wrong with a user's own images: gathered, not stopped at, and told all at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from photofinish.errors import MistakeError

_MOST_SHOWN = 100


@dataclass(frozen=True, order=True)
class Problem:
    file: str
    line: int
    """as an editor counts; 0 where it is about the file as a whole"""
    text: str

    def __str__(self) -> str:
        """On one line, whatever characters a name has."""
        told = f"{place(self.file, self.line)}  {self.text}"
        return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in told)


def place(file: str, line: int) -> str:
    return f"{file}:{line}" if line else file


def refuse(dataset_name: str, problems: Collection[Problem]) -> None:
    """Raise one MistakeError that tells of them all; without problems nothing happens."""
    if not problems:
        return
    count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
    lines = [f"  {problem}" for problem in sorted(problems)[:_MOST_SHOWN]]
    if len(problems) > _MOST_SHOWN:
        lines.append(f"  and {len(problems) - _MOST_SHOWN} more")
    raise MistakeError(f"data set '{dataset_name}' has {count}; nothing was written\n" + "\n".join(lines))
