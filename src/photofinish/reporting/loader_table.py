"""Where a loader's time goes, as a table."""

from __future__ import annotations

import statistics

from photofinish.comparing.pairs import AnyComparison
from photofinish.reporting.columns import Table
from photofinish.wording import byte_size, counted, seconds

_LINES = 5


def loader_parts(pair: AnyComparison) -> dict[str, float]:
    """Return the longest parts of loading a batch, and the sum of the others; none if unknown.

    Those of the GPU, if both devices took a loader apart.
    """
    loaders = [run.timings.loader for run in pair.trained if run.timings.loader]
    parts = list(loaders[-1].explained.items()) if loaders else []
    if len(parts) <= _LINES:
        return dict(parts)
    longest, others = parts[: _LINES - 1], parts[_LINES - 1 :]
    others_seconds = sum(part_seconds for _, part_seconds in others)
    return {**dict(longest), counted(len(others), "other"): others_seconds}


def loader_table(pair: AnyComparison) -> Table:
    """Return a row for each part of loading a batch, with its share."""
    parts = loader_parts(pair)
    whole_seconds = sum(parts.values())
    return [
        {"part of loading a batch": name, "time": f"{seconds(part)} ({part / whole_seconds:.0%})"}
        for name, part in parts.items()
    ]


def workers_table(pair: AnyComparison) -> Table:
    """Return a row for each number of workers that was tried."""
    rows = []
    for run in pair.trained:
        loader = run.timings.loader
        if loader is None:
            continue
        for each in loader.tried_workers:
            row = {
                "device": run.device.upper(),
                "workers": str(each.workers),
                "samples/s": f"{loader.batch_size / each.batch_seconds:,.0f}",
                "a batch": seconds(each.batch_seconds),
                "start in each epoch": seconds(each.start_seconds),
                "CPU time of a worker": seconds(statistics.fmean(each.cpu_seconds)),
                "its computing threads": str(max(each.busy_threads, default=1)),
                "its memory": byte_size(max(each.memory_bytes, default=0)),
            }
            rows.append(row)
    return rows
