"""Speed and accuracy of each training over Git's history of metrics/ and reference/."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from photofinish.files import to_csv, write_text_atomically
from photofinish.git import git
from photofinish.regressions.change import robust_deviation
from photofinish.reporting.speed_picture import speed_history
from photofinish.wording import listed, utc_day

CSV, SVG = Path("speed-history.csv"), Path("speed-history.svg")
_FOLDERS = ("metrics", "reference")
_LEAST_STEP = 0.1
"""Least change of an epoch's time that counts as a step."""
_DEVIATIONS = 3.0
_LEAST_LEVEL = 3
"""Fewest times in a level. One or two times have no known deviation."""


@dataclass(frozen=True)
class Point:
    """Training recorded by a commit: a row of the CSV."""

    experiment: str
    device: str
    machine: str
    """Folder in reference/, or an empty text for metrics/."""
    commit: str
    day: str
    torch: str
    """Version of PyTorch, which metrics/ does not have."""
    epoch_seconds: float
    """Not a number for a script without epochs."""
    test_accuracy: float | None
    step: float | None = None
    """Ratio to the time of the level before, if the level changes here."""


def write_history() -> None:
    """Write the CSV and the picture, or print that there is nothing to compare yet."""
    found = list(_points())
    points = [point for point in found if not math.isnan(point.epoch_seconds)]
    if without := sorted(
        {point.experiment for point in found} - {one.experiment for one in points}
    ):
        why = "has no epochs, as its loop does not use `photofinish.steps`"
        print(f"left out: {listed(without)} {why}")
    if len({point.commit for point in points}) < 2:
        print(
            "There is no history yet: fewer than two commits have records. Commit metrics/ after "
            "`dvc repro`, or what `photofinish reference` writes"
        )
        return
    series: dict[tuple[str, str, str], list[Point]] = {}
    for point in points:
        series.setdefault((point.experiment, point.device, point.machine), []).append(point)
    marked = [with_steps(each) for each in series.values()]
    columns = [each.name for each in fields(Point)]
    write_text_atomically(
        CSV, to_csv(columns, (astuple(point) for each in marked for point in each))
    )
    commits = list(dict.fromkeys(point.commit for point in points))
    rows = [[asdict(point) for point in each] for each in marked]
    write_text_atomically(SVG, speed_history(rows, commits).file)
    for point in (point for each in marked for point in each if point.step):
        where = f"{point.experiment} on the {point.device.upper()}"
        machine = f" ({point.machine})" if point.machine else ""
        print(f"{where}{machine}: {point.step:.2f}x the time from {point.commit} on")
    print(f"Wrote {CSV} and {SVG}")


def with_steps(points: list[Point]) -> list[Point]:
    """Mark the points at which the level of epoch times changes by more than the noise.

    A level is at least three points since the last step. A new level begins if a time and the next
    differ from the level's median by more than 10 % and three standard deviations. The newest point
    is therefore never marked.
    """
    marked: list[Point] = []
    level: list[float] = []
    for point, after in zip(points, [*points[1:], None], strict=True):
        sides = {_beyond(level, each.epoch_seconds) if each else 0 for each in (point, after)}
        is_step = sides in ({1}, {-1})
        ratio = point.epoch_seconds / statistics.median(level) if is_step else None
        level = [point.epoch_seconds] if is_step else [*level, point.epoch_seconds]
        marked.append(replace(point, step=ratio))
    return marked


def _beyond(level: list[float], epoch_seconds: float) -> int:
    """Return 1 or -1 if a time is above or below the level by more than its noise, else 0."""
    if len(level) < _LEAST_LEVEL:
        return 0
    median = statistics.median(level)
    distance = epoch_seconds - median
    if abs(distance) <= max(_LEAST_STEP * median, _DEVIATIONS * robust_deviation(level)):
        return 0
    return 1 if distance > 0 else -1


def _points() -> Iterator[Point]:
    """Yield the trainings whose records changed, from the first commit on."""
    log = git(
        Path(), "log", "--reverse", "--first-parent", "--diff-filter=AM", "--name-only",
        "--relative", "--format=commit %H %ct", "--", *_FOLDERS,
    )  # fmt: skip
    commit = day = ""
    for line in filter(None, log.splitlines()):
        if line.startswith("commit "):
            _, commit, unix_seconds = line.split()
            day = utc_day(float(unix_seconds))
        elif line.endswith(".json"):
            try:
                record = json.loads(git(Path(), "show", f"{commit}:./{line}"))
                yield from _points_of(Path(line), record, commit[:10], day)
            except (AttributeError, KeyError, TypeError, ValueError):
                print(f"note: {line} of {commit[:10]} is no record of photofinish")


def _points_of(path: Path, record: dict[str, Any], commit: str, day: str) -> Iterator[Point]:
    if path.parts[0] == "metrics":
        for device, figures in record.items():
            accuracy, seconds = figures.get("test_accuracy"), figures.get("epoch_seconds", math.nan)
            yield Point(path.stem, device, "", commit, day, "", seconds, accuracy)
        return
    timings, scores = record["timings"], record["scores"]
    seconds = statistics.median(epoch["training_seconds"] for epoch in timings["epochs"])
    yield Point(
        experiment=record["experiment"],
        device=record["training"]["device"],
        machine=record["machine"],
        commit=commit,
        day=day,
        torch=timings["packages"].get("torch", ""),
        epoch_seconds=seconds,
        test_accuracy=scores["test_accuracy"],
    )
