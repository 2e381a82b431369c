"""A CSV file as an editor shows it: every record with the line that it starts on.

Read with Python's own csv module: pandas knows no lines, cuts off what a record has too much, and takes longer to
import than `plan` may take in all.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Record:
    line: int
    cells: tuple[str, ...]


@dataclass(frozen=True)
class CsvFile:
    """What could be read of it; what couldn't is among the problems, each with its line (0: the whole file)."""

    header: tuple[str, ...] = ()
    records: list[Record] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)

    def column(self, name: str) -> list[str] | None:
        """The cells of a column, a record each; None if there is no such column."""
        if name not in self.header:
            return None
        index = self.header.index(name)
        return [record.cells[index] for record in self.records]


def read_csv(path: Path) -> CsvFile:
    return parse_csv(path.read_bytes())


def parse_csv(data: bytes) -> CsvFile:
    """UTF-8 with or without a byte order mark; fields may be quoted; blank lines don't count."""
    if not data.strip():
        return CsvFile(problems=[(0, "the file is empty")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"this is not UTF-8 text (byte 0x{data[error.start]:02x}): save the file as CSV in UTF-8"
        return CsvFile(problems=[(line, problem)])
    if "\0" in text:
        return CsvFile(problems=[(0, "this is no text, it has zero bytes: save the file as CSV in UTF-8")])
    return _checked(text)


def _checked(text: str) -> CsvFile:
    found = CsvFile()
    header: tuple[str, ...] = ()
    try:
        for record in _records(text):
            if not header:
                header = record.cells
            elif len(record.cells) == len(header):
                found.records.append(record)
            else:
                problem = f"has {_fields(len(record.cells))}, the header has {len(header)}"
                found.problems.append((record.line, problem))
    except _BrokenRecordError as error:
        found.problems.append((error.line, f"can't be read as CSV, nor can what follows: {error}"))
    for name, count in Counter(header).items():
        if count > 1:
            found.problems.append((0, f"the header names the column '{name}' {count} times"))
    return CsvFile(header, found.records, found.problems)


class _BrokenRecordError(Exception):
    def __init__(self, line: int, reason: object) -> None:
        super().__init__(reason)
        self.line = line


def _records(text: str) -> Iterator[Record]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for cells in reader:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield Record(line, tuple(cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise _BrokenRecordError(line, error) from error


def _fields(count: int) -> str:
    return f"{count} field{'' if count == 1 else 's'}"
