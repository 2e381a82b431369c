"""Speed-ups of experiments that differ in two settings, as a grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from photofinish.answer.candidates import Answer
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision
from photofinish.answer.word import of_one_training


@dataclass(frozen=True)
class Cell:
    """Speed-up of one experiment in a grid, or its bound."""

    figure: float
    is_bound: bool
    answer: Answer


@dataclass(frozen=True)
class Grid:
    """Experiments that differ in two settings, with an experiment for each pair of values."""

    row_key: str
    column_key: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]


def grid(pairs: Sequence[Comparison], decisions: Sequence[Decision]) -> Grid | None:
    """Return the experiments as a grid, or None if not exactly two settings vary."""
    settings = [pair.cpu.settings.values for pair in pairs if pair.cpu.settings]
    values: dict[str, list[str]] = defaultdict(list)
    for key in dict.fromkeys(key for chosen in settings for key in chosen):
        values[key] = list(dict.fromkeys(str(chosen.get(key)) for chosen in settings))
    varying = [key for key, texts in values.items() if len(texts) > 1]
    if len(varying) != 2:
        return None
    row_key, column_key = sorted(varying, key=lambda key: len(values[key]))
    cells = {}
    for pair, decision, chosen in zip(pairs, decisions, settings, strict=True):
        speedup = of_one_training(pair, decision.worth).speedup
        figure = speedup or pair.bounds.job.as_measured
        place = str(chosen.get(row_key)), str(chosen.get(column_key))
        cells[place] = Cell(figure, speedup is None, decision.answer)
    rows, columns = values[row_key], values[column_key]
    if len(cells) < len(rows) * len(columns):
        return None
    return Grid(row_key, column_key, tuple(rows), tuple(columns), cells)
