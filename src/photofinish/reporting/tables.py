"""Tables: all figures of comparison.csv and `dvc metrics`, and those for readers.

A table for readers has units, few digits and at most eight columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from photofinish.answer.record import PARTS, JobRecord, Spread, epoch_speedup
from photofinish.reporting import sentences
from photofinish.reporting.answer_words import (
    cost_text,
    gpu_words,
    here_text,
    phrase,
    saving_text,
    there_text,
)
from photofinish.reporting.page import VERDICT, Table
from photofinish.reporting.say import say
from photofinish.reporting.templates import NOTHING, THE_SAME
from photofinish.results.figures import FIGURES, Figure
from photofinish.wording import interval_text, is_wide, listed, seconds, times, utc_day, utc_minute

Rows = list[dict[str, Any]]
"""Rows, each a dictionary with equal keys. A value is None if there is no figure."""


def _with_ends(name: str, label: str | None = None, **places: Any) -> tuple[Figure, ...]:
    """Return the columns of a figure, and of both ends of its interval."""
    return Figure(name, label, **places), Figure(f"{name}_low"), Figure(f"{name}_high")


COLUMNS: tuple[Figure, ...] = (
    *map(Figure, ("experiment", "device", "status")),
    *map(Figure, ("answer", "answer_for", "answer_by", "answer_reason")),
    Figure("device_name", "hardware"),
    *map(Figure, ("precision", "parameters")),
    Figure("epochs", "epochs"),
    Figure("epochs_trained", "epochs trained"),
    Figure("repeats"),
    Figure("test_accuracy", "test accuracy", "{:.2%}".format, dvc=True),
    Figure("test_loss", "test loss", "{:.4f}".format, dvc=True),
    Figure("macro_f1", "macro F1", "{:.4f}".format, dvc=True),
    Figure("test_metrics", "test metrics"),
    *FIGURES,
    *_with_ends("job_seconds", "whole job", write=seconds, dvc=True),
    Figure("job_extrapolated", "whole job extrapolated"),
    *_with_ends("step_speedup", dvc=True),
    *_with_ends("epoch_speedup", dvc=True),
    *_with_ends("end_to_end_speedup", dvc=True),
    *map(Figure, ("same_model", "first_divergence")),
    *_with_ends("payback_epochs"),
    Figure("target_accuracy", "target accuracy"),
    Figure("target_epoch"),
    Figure("target_seconds", "time to the target", seconds),
    Figure("cost", "cost of the run", "{:.2g}".format),
    Figure("cost_currency", "currency of the cost"),
    Figure("target_cost", "cost to the target", "{:.2g}".format),
    *map(Figure, ("overhead_seconds", "checkpoint_seconds", "epoch_ceiling", "job_ceiling")),
    *map(Figure, ("cause", "epoch_cause")),
    Figure("busy_share", "device busy", "{:.0%}".format),
    Figure("waiting_share", "waiting for batches", "{:.0%}".format),
    *(Figure(part.replace("_seconds", "_share")) for part in [*PARTS.values()][1:]),
    Figure("load_warnings", "unreliable because"),
    Figure("resumed_at_epochs", "resumed at epochs"),
    Figure("host_name", "machine"),
    Figure("measured_at_unix_seconds", "began", utc_minute),
    Figure("reason"),
    Figure("steps", "steps", csv=False),
)
"""Figures in the order of comparison.csv and of the page. A new figure is one more line."""
CSV_COLUMNS = tuple(column.name for column in COLUMNS if column.csv)


def comparison_rows(jobs: Iterable[JobRecord]) -> Rows:
    every = (figures for job in jobs for figures in job.figures.values())
    return [{name: figures.get(name) for name in CSV_COLUMNS} for figures in every]


def comparison_metrics(job: JobRecord) -> dict[str, Any]:
    shown = [column.name for column in COLUMNS if column.dvc]
    metrics: dict[str, Any] = {}
    for run in job.runs:
        figures = job.figures[run.device]
        if present := {name: figures[name] for name in shown if is_known(figures.get(name))}:
            custom = {name: value for name, value in run.metrics.items() if value is not None}
            metrics[run.device] = custom | present
    return metrics


def is_known(value: object) -> bool:
    """Return False for None and NaN."""
    return value is not None and value == value  # NaN does not equal itself


def overview_table(verdicts: Sequence[sentences.Verdict]) -> Table:
    """Return a row for each job: verdict, both times, saving, cost and next step.

    Columns without a cell are left out.
    """
    rows, on_gpu = [], "on a GPU"
    if any(verdict.job.worth.terms.start_seconds for verdict in verdicts):
        on_gpu = "on a GPU, with setup"
    for verdict in verdicts:
        job, worth = verdict.job, verdict.job.worth
        on_it = there_text(job)
        rows.append(
            {
                "job": job.name,
                VERDICT: phrase(worth),
                "on this CPU": here_text(job, worth),
                on_gpu: on_it and say("time there", time=on_it, gpu=gpu_words(worth)),
                "saves": saving_text(worth),
                "cost": cost_text(worth.gpu) if worth.gpu else "",
                "next": say("what next", action=verdict.action),
            }
        )
    filled = [heading for heading in rows[0] if any(row[heading] for row in rows)]
    return [{heading: row[heading] for heading in filled} for row in rows]


def speedup_table(job: JobRecord) -> Table:
    """Return three rows if a GPU trained the experiment."""
    rows = [
        {
            "of": say(speedup.kind),
            "CPU": seconds(speedup.cpu_seconds),
            "GPU": seconds(speedup.device_seconds),
            "speed-up": times(speedup.ratio),
            "range": NOTHING
            if speedup.interval is None or is_wide(speedup.interval)
            else interval_text(speedup.interval),
            "verdict": sentences.in_words(speedup),
        }
        for speedup in job.speedups.values()
    ]
    if rows and job.cpu.is_extrapolated:
        rows[-1]["CPU"] = say("extrapolated CPU", time=rows[-1]["CPU"])
    return rows


def parity_table(job: JobRecord) -> Table:
    """Return a row for all equal layers, then a row for each other layer, in training order."""
    parity = job.parity
    if not parity:
        return []
    findings = [(layer, sentences.layer_finding(layer, parity)) for layer in parity.layers]
    equal = listed([layer.name for layer, finding in findings if finding == THE_SAME])
    rows = [{"compared": equal, "result": "bit for bit", "verdict": THE_SAME}] if equal else []
    for layer, finding in findings:
        if finding == THE_SAME:
            continue
        likeness = "not comparable"
        if layer.within_rounding is not None:
            likeness = "within rounding" if layer.within_rounding else "different"
        result = THE_SAME if layer.same else likeness
        rows.append({"compared": layer.name, "result": finding, "verdict": result})
    return rows


def seeds_table(job: JobRecord) -> Table:
    """Return a row for each device and figure, if the experiment has several seeds."""
    rows = []
    for device, over in job.seeds.items():
        figures: list[tuple[str, Spread, Callable[[float], str]]] = [
            (over.scores.main_name, over.score, over.scores.main_text),
            ("test loss", over.test_loss, "{:.4f}".format),
        ]
        if over.reached:
            target, (epochs, durations) = over.targets[0].target, over.reached
            figures.append((say("epochs to", target=target), epochs, "{:.1f}".format))
            figures.append((say("time to", target=target), durations, seconds))
        for of, spread, write in figures:
            low, high = min(spread.values), max(spread.values)
            rows.append(
                {
                    "device": device,
                    "of": of,
                    "seeds": str(len(spread.values)),
                    "mean": write(spread.mean),
                    "range of the mean": " to ".join(map(write, spread.interval)),
                    "lowest to highest": f"{write(low)} to {write(high)}",
                    "between two seeds": write(spread.between_two),
                }
            )
    return rows


def references_table(job: JobRecord) -> Table:
    """Return a row for each reference, with its speed-up over this CPU.

    The score of a training with other settings, such as another seed, is left out.
    """
    rows = []
    for run in job.references:
        epoch, mark = epoch_speedup(job.cpu, run), ""
        scores = run.scores.in_words if run.scores and job.has_same_losses(run) else None
        if run.is_extrapolated:
            mark = say("extrapolated", timed=run.timed_text)
        day = utc_day(run.started_at_unix_seconds)
        rows.append(
            {
                "hardware": run.hardware,
                "recorded elsewhere": say("day and machine", day=day, machine=run.machine),
                "epoch (mean)": seconds(epoch.device_seconds),
                "speed-up": times(epoch.ratio),
                "total": f"{seconds(run.whole_seconds)}{mark}",
                "test": say("score after", scores=scores, timed=run.timed_text)
                if scores
                else say("another training"),
                "unreliable": "; ".join(run.busy) or "no",
            }
        )
    return rows


def metrics_table(job: JobRecord) -> Table:
    runs = [run for run in job.runs if run.scores is None]
    rows = []
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        row = {"metric": name}
        for run in runs:
            value = run.metrics.get(name)
            row[run.device.upper()] = NOTHING if value is None else f"{value:.6g}"
        rows.append(row)
    return rows


def figures_table(job: JobRecord) -> Table:
    rows = []
    for column in COLUMNS:
        cells = {"": column.label or ""}
        for run in job.runs:
            value = job.figures[run.device].get(column.name)
            cells[run.device.upper()] = column.write(value) if is_known(value) else NOTHING
        if column.label and {*cells.values()} != {column.label, NOTHING}:
            rows.append(cells)
    return rows
