"""Findings as tables for readers, with units, few digits and at most eight columns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from photofinish.answer.comparison import Comparison
from photofinish.answer.seeds import Spread
from photofinish.answer.speedups import epoch_speedup
from photofinish.machine.load import load_warnings
from photofinish.reporting import sentences
from photofinish.reporting.answer_words import (
    gpu_words,
    here_text,
    phrase,
    speedup_text,
    there_text,
)
from photofinish.reporting.extrapolated import mark, timed_text
from photofinish.reporting.page import ANSWER, Table
from photofinish.reporting.say import say
from photofinish.reporting.templates import NOTHING, THE_SAME
from photofinish.wording import (
    HIGH,
    byte_size,
    interval_text,
    is_wide,
    listed,
    seconds,
    times,
    utc_day,
)


def overview_table(verdicts: Sequence[sentences.Verdict], pairs: Sequence[Comparison]) -> Table:
    """Return a row for each experiment, without empty columns."""
    rows = []
    for each, pair in zip(verdicts, pairs, strict=True):
        worth = each.decision.worth
        bound = say("up to times", limit=worth.limit) if worth.limit <= HIGH else NOTHING
        row = {
            "experiment": each.experiment,
            ANSWER: phrase(each.decision),
            "do": each.action,
            "on this CPU": here_text(pair, worth),
            "on a GPU": there_text(worth) or NOTHING,
            "GPU": gpu_words(worth) or NOTHING,
            "speed-up": speedup_text(worth) if worth.gpu else bound,
            "the models": each.model or NOTHING,
        }
        rows.append(row)
    filled = [heading for heading in rows[0] if any(row[heading] != NOTHING for row in rows)]
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
            "9 of 10": NOTHING
            if found.interval is None or is_wide(found.interval)
            else interval_text(found.interval),
            "verdict": sentences.in_words(found),
        }
        rows.append(row)
    if rows and pair.cpu.timings.untimed_epochs:
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
                "9 of 10": " to ".join(map(write, spread.interval)),
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
        timings, against_cpu = each.timings, epoch_speedup(pair.cpu.timings, each.timings)
        day = utc_day(timings.started_at_unix_seconds)
        row = {
            "hardware": each.hardware,
            "recorded elsewhere": say("day and machine", day=day, machine=each.machine),
            "epoch (mean)": seconds(against_cpu.device_seconds),
            "of this CPU's speed": times(against_cpu.ratio),
            "total": f"{seconds(timings.whole_seconds)}{mark(timings)}",
            "test": say("score after", scores=each.scores.in_words, timed=timed_text(timings))
            if each in pair.same_model_references
            else say("another training"),
            "unreliable": "; ".join(load_warnings(timings.load)) or "no",
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


def workers_table(pair: Comparison) -> Table:
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
                "its memory": byte_size(max(each.memory_bytes, default=0)),
            }
            rows.append(row)
    return rows
