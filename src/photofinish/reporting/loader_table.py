"""Tables about loading: where its time goes, what workers gain, and what GPUs need."""

from __future__ import annotations

import statistics

from photofinish.answer.comparison import Comparison
from photofinish.reporting.page import Table
from photofinish.reporting.templates import say
from photofinish.wording import byte_size, counted, seconds

_LINES = 5


def loader_parts(pair: Comparison) -> dict[str, float]:
    """Return the longest parts of loading a batch, and the sum of the others. Empty if unknown.

    If both devices measured the parts, they are the GPU's, with the copy to it.
    """
    measured: dict[str, float] = {}
    for run in pair.trained:
        if run.timings.loader and run.timings.loader.explained:
            measured = {**run.timings.loader.explained}
            if run.device == "gpu" and run.costs:
                measured["copying to the device"] = run.costs.copying_seconds
    parts = sorted(measured.items(), key=lambda part: -part[1])
    if len(parts) <= _LINES:
        return dict(parts)
    longest, others = parts[: _LINES - 1], parts[_LINES - 1 :]
    others_seconds = sum(part_seconds for _, part_seconds in others)
    return {**dict(longest), counted(len(others), "other"): others_seconds}


def loader_table(pair: Comparison) -> Table:
    """Return a row for each part of loading a batch, with its share."""
    parts = loader_parts(pair)
    whole_seconds = sum(parts.values())
    return [
        {
            "part of loading a batch": name,
            "time": say("time and share", it=part, share=part / whole_seconds),
        }
        for name, part in parts.items()
    ]


def loader_note(pair: Comparison) -> str:
    """Return the reason for missing parts."""
    notes = []
    for run in pair.trained:
        loader, device = run.timings.loader, run.device.upper()
        if loader and loader.not_measured:
            notes.append(say("no loader parts", device=device, why=loader.not_measured))
    return " ".join(notes)


def workers_table(pair: Comparison) -> Table:
    """Return a row for each tried number of workers."""
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
                "start and end in each epoch": seconds(each.start_seconds),
                "CPU time of a worker": seconds(statistics.fmean(each.cpu_seconds)),
                "its computing threads": str(max(each.busy_threads, default=1)),
                "its memory": byte_size(max(each.memory_bytes, default=0)),
            }
            rows.append(row)
    return rows
