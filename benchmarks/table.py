"""Rows of the table, as CSV and Markdown."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.timing import Outcome, ratios, spread
from benchmarks.workloads import Workload

OURS, TUTORIAL, BARE = "photofinish", "tutorial", "bare"
_WORDS = {TUTORIAL: "the tutorial's loop", BARE: "the bare loop"}


@dataclass(frozen=True)
class Row:
    """Figures of one side of one workload."""

    workload: str
    title: str
    data: str
    side: str
    rounds: int
    epoch_seconds: float
    epoch_seconds_lowest: float
    epoch_seconds_highest: float
    ratio: float
    """The other loop's time over ours. For the bare loop, our time over the loop's."""
    ratio_lowest: float
    ratio_highest: float


def rows_of(workload: Workload, outcomes: dict[str, list[Outcome]]) -> list[Row]:
    data = "real" if workload.data.is_real else "synthetic"
    rows = []
    for side, measured in outcomes.items():
        seconds = spread([outcome.epoch_seconds for outcome in measured])
        ours = outcomes[OURS]
        ratio = ratios(ours, measured) if side == BARE else ratios(measured, ours)
        row = Row(
            workload=workload.name,
            title=workload.title,
            data=data,
            side=side,
            rounds=len(measured),
            epoch_seconds=seconds.median,
            epoch_seconds_lowest=seconds.lowest,
            epoch_seconds_highest=seconds.highest,
            ratio=ratio.median,
            ratio_lowest=ratio.lowest,
            ratio_highest=ratio.highest,
        )
        rows.append(row)
    return rows


def write(rows: Sequence[Row], machine: dict[str, str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "benchmarks.csv").open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(
            text, [field.name for field in fields(Row)] + list(machine), lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(asdict(row) | machine for row in rows)
    (folder / "benchmarks.md").write_text(markdown(rows, machine), encoding="utf-8")


def markdown(rows: Sequence[Row], machine: dict[str, str]) -> str:
    lines = [
        "| work | data | side | seconds an epoch | ratio to photofinish |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        span = f"{row.epoch_seconds_lowest:.3g} to {row.epoch_seconds_highest:.3g}"
        seconds = f"{row.epoch_seconds:.3g} s ({span})"
        lines.append(f"| {row.title} | {row.data} | {row.side} | {seconds} | {_ratio(row)} |")
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    return "\n".join(
        [
            *lines,
            "",
            f"Medians of {rows[0].rounds} rounds, lowest to highest in brackets. {facts}.",
            "",
        ]
    )


def _ratio(row: Row) -> str:
    if row.side == OURS:
        return ""
    verb = (
        f"photofinish takes {{}} of {_WORDS[BARE]}'s time"
        if row.side == BARE
        else "photofinish is {} faster"
    )
    return verb.format(f"{row.ratio:.2f}x ({row.ratio_lowest:.2f} to {row.ratio_highest:.2f})")
