"""Findings as tables for readers, with units, few digits and at most eight columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from photofinish.answer.comparison import Comparison
from photofinish.answer.seeds import Spread
from photofinish.answer.speedups import epoch_speedup
from photofinish.reporting import sentences
from photofinish.reporting.answer_words import (
    cost_text,
    gpu_words,
    here_text,
    phrase,
    saving_text,
    there_text,
)
from photofinish.reporting.comparison_rows import COLUMNS, comparison_rows, is_known
from photofinish.reporting.extrapolated import mark, timed_text
from photofinish.reporting.page import VERDICT, Table
from photofinish.reporting.say import say
from photofinish.reporting.templates import NOTHING, THE_SAME
from photofinish.results.job import Job
from photofinish.wording import interval_text, is_wide, listed, seconds, times, utc_day


def overview_table(verdicts: Sequence[sentences.Verdict], pairs: Sequence[Comparison]) -> Table:
    """Return a row for each job: verdict, both times, saving, cost and next step.

    Columns without a cell are left out.
    """
    rows, on_gpu = [], "on a GPU"
    if any(each.decision.worth.terms.start_seconds for each in verdicts):
        on_gpu = "on a GPU, with setup"
    for each, pair in zip(verdicts, pairs, strict=True):
        worth = each.decision.worth
        there = there_text(worth)
        row = {
            "job": each.experiment,
            VERDICT: phrase(each.decision),
            "on this CPU": here_text(pair, worth),
            on_gpu: there and say("time there", time=there, gpu=gpu_words(worth)),
            "saves": saving_text(worth),
            "cost": cost_text(worth.gpu) if worth.gpu else "",
            "next": say("what next", action=each.action),
        }
        rows.append(row)
    filled = [heading for heading in rows[0] if any(row[heading] for row in rows)]
    return [{heading: row[heading] for heading in filled} for row in rows]


def speedup_table(pair: Comparison) -> Table:
    """Return three rows if a GPU trained the experiment."""
    rows = []
    for found in pair.compared.speedups.values() if pair.compared else ():
        row = {
            "of": say(found.kind),
            "CPU": seconds(found.cpu_seconds),
            "GPU": seconds(found.device_seconds),
            "speed-up": times(found.ratio),
            "range": NOTHING
            if found.interval is None or is_wide(found.interval)
            else interval_text(found.interval),
            "verdict": sentences.in_words(found),
        }
        rows.append(row)
    if rows and pair.cpu.untimed_epochs:
        rows[-1]["CPU"] = say("extrapolated CPU", time=rows[-1]["CPU"])
    return rows


def parity_table(pair: Comparison) -> Table:
    """Return a row for all equal layers, then a row for each other layer, in training order."""
    parity = pair.parity
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


def seeds_table(pair: Comparison) -> Table:
    """Return a row for each device and figure, if the experiment has several seeds."""
    rows = []
    for device, over in pair.seeds.items():
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
            row = {
                "device": device,
                "of": of,
                "seeds": str(len(spread.values)),
                "mean": write(spread.mean),
                "range of the mean": " to ".join(map(write, spread.interval)),
                "lowest to highest": f"{write(low)} to {write(high)}",
                "between two seeds": write(spread.between_two),
            }
            rows.append(row)
    return rows


def references_table(pair: Comparison) -> Table:
    """Return a row for each reference, with its speed-up over this CPU.

    The score of a training with other settings, such as another seed, is left out.
    """
    rows = []
    for each in pair.references:
        against_cpu = epoch_speedup(pair.cpu, each)
        day = utc_day(each.started_at_unix_seconds)
        row = {
            "hardware": each.hardware,
            "recorded elsewhere": say("day and machine", day=day, machine=each.machine),
            "epoch (mean)": seconds(against_cpu.device_seconds),
            "speed-up": times(against_cpu.ratio),
            "total": f"{seconds(each.whole_seconds)}{mark(each)}",
            "test": say("score after", scores=each.trained.scores.in_words, timed=timed_text(each))
            if each.trained and each in pair.same_model_references
            else say("another training"),
            "unreliable": "; ".join(each.busy) or "no",
        }
        rows.append(row)
    return rows


def metrics_table(pair: Comparison) -> Table:
    """Return a row for each number in a script's metrics files."""
    runs = [run for run in pair.trained if run.trained is None]
    rows = []
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        row = {"metric": name}
        for run in runs:
            value = run.metrics.get(name)
            row[run.device.upper()] = NOTHING if value is None else f"{value:.6g}"
        rows.append(row)
    return rows


def figures_table(pair: Comparison) -> Table:
    """Return a row for each known figure, with a column for each device that trained."""
    by_device = {row["device"]: row for row in comparison_rows([pair])}
    rows = []
    for column in COLUMNS:
        cells = {"": column.label or ""}
        for run in pair.trained:
            value = by_device[run.device][column.name]
            cells[run.device.upper()] = column.write(value) if is_known(value) else NOTHING
        if column.label and {*cells.values()} != {column.label, NOTHING}:
            rows.append(cells)
    steps = {run.device.upper(): _steps(run) for run in pair.trained}
    return [*rows, {"": "steps", **steps}] if {*steps.values()} != {NOTHING} else rows


def _steps(run: Job) -> str:
    """Return how a GPU was given its steps, if in graphs or if there is a reason why not."""
    taken = run.trained.steps_taken if run.trained else None
    if run.device == "cpu" or not taken:
        return NOTHING
    if taken.kind == "graph":
        return say("in graphs of", at_once=taken.at_once)
    return say("one by one", why=taken.why) if taken.why else NOTHING
