"""Findings of one script as sentences and tables."""

from __future__ import annotations

import statistics

from photofinish.comparing.decision import Decision, decide
from photofinish.comparing.script_pairs import (
    ScriptCompared,
    ScriptComparison,
    ScriptNotRun,
    ScriptResult,
)
from photofinish.machine.load import load_warnings
from photofinish.reporting import tables
from photofinish.reporting.rows import metric_texts
from photofinish.reporting.sentences import Verdict, busy, in_words, payback, reason_of, rental
from photofinish.reporting.tables import NOTHING, Table
from photofinish.wording import faster, interval_text, listed, seconds

_NO_STEPS = (
    "The script does not use `photofinish.steps`, so it is timed as a whole: its start-up, its "
    "loading and what its steps compute are not known."
)
_NO_PARITY = "Whether both devices train the same model is not known beyond the script's metrics."


def script_verdict(pair: ScriptComparison) -> Verdict:
    """Answer whether the GPU is worth it for a script."""
    decision = decide(pair)
    missing = pair.gpu.record.reason if isinstance(pair.gpu, ScriptNotRun) else None
    details = (
        _evidence_of_both(pair.compared) if pair.compared else _evidence_of_cpu(pair, decision)
    )
    answer = f"{decision.answer}: {reason_of(pair, decision)}"
    return Verdict(
        pair.experiment, decision, answer, tuple(details), _cautions(pair, decision), missing
    )


def script_sections(pair: ScriptComparison) -> list[tuple[str, Table, str]]:
    """Return the tables of a script, each with its title and note."""
    return [
        (
            "Speed-ups",
            tables.speedup_table(pair),
            "The CPU's time over the GPU's. A step is without the wait for its batch, as the mean "
            "of an epoch. Where the interval spans 1, or there is none, no winner is named.",
        ),
        (
            "What no GPU can shorten",
            tables.ceiling_table(pair) if pair.cpu.has_steps else [],
            "Upper bounds: no GPU in this machine exceeds them. A real one may fall well short.",
        ),
        (
            "Which to rent",
            tables.renting_table(pair),
            tables.RENTING_NOTE,
        ),
        (
            "Loading against computing",
            _loading_table(pair),
            "The wait is the script's: an accelerator may still compute while it waits.",
        ),
        ("The script's metrics", _metrics_table(pair), _NO_PARITY),
        ("When does it pay?", tables.paying_table(pair), ""),
        ("Figures", tables.figures_table(pair), ""),
    ]


def _evidence_of_both(compared: ScriptCompared) -> list[str]:
    cpu, gpu = compared.cpu, compared.gpu
    if not compared.payback:
        return [_NO_STEPS, *_metrics(cpu, gpu)]
    epoch = compared.speedups["epoch"]
    interval = f" ({interval_text(epoch.interval)})" if epoch.interval else ""
    return [
        f"An epoch takes {seconds(epoch.device_seconds)} on {gpu.timings.device_name} and "
        f"{seconds(epoch.cpu_seconds)} on {cpu.timings.device_name}: "
        f"{faster(epoch.ratio)}{interval}; {in_words(epoch)}.",
        f"{_loading(cpu)} {_loading(gpu)}",
        f"When the GPU's start-up is repaid: {payback(compared.payback)}.",
        *_metrics(cpu, gpu),
    ]


def _evidence_of_cpu(pair: ScriptComparison, decision: Decision) -> list[str]:
    cpu, timings = pair.cpu, pair.cpu.timings
    ran = f"{timings.device_name} ran it in {seconds(timings.total_seconds)}"
    if not cpu.has_steps:
        return [f"{ran}.", _NO_STEPS]
    details = [f"{ran}, {seconds(timings.startup_seconds)} of it start-up.", _loading(cpu)]
    is_bound = decision.basis == "bound" and decision.reason != "short job"
    if is_bound and (rent := rental(pair.renting)):
        details.append(rent)
    return details


def _loading(run: ScriptResult) -> str:
    """Return how much of an epoch waits for its batches."""
    step_seconds = statistics.median(run.timings.steady_state.step_seconds)
    return (
        f"On the {run.device.upper()}, {run.waiting_share:.0%} of an epoch waits for batches: "
        f"{seconds(_batch_seconds(run))} per batch, and a step takes {seconds(step_seconds)}."
    )


def _batch_seconds(run: ScriptResult) -> float:
    return statistics.median(
        epoch.waiting_seconds / max(1, epoch.steps) for epoch in run.record.epochs
    )


def _metrics(cpu: ScriptResult, gpu: ScriptResult) -> list[str]:
    """Return the metrics of both devices in a sentence, and what they leave open."""
    on_cpu, on_gpu = (listed([*metric_texts(run).values()][:3]) for run in (cpu, gpu))
    if not on_cpu or not on_gpu:
        return ["Whether both devices train the same model is not known."]
    return [f"On the GPU it reports {on_gpu}; on the CPU {on_cpu}. {_NO_PARITY}"]


def _cautions(pair: ScriptComparison, decision: Decision) -> tuple[str, ...]:
    cautions = []
    for run in pair.trained:
        # Yes and No have the margin of a busy machine already.
        if load_warnings(run.timings.load) and decision.answer not in ("Yes", "No"):
            stage = f"script-{run.device}@{run.experiment}"
            cautions.append(busy(run.device.upper(), run.timings.load, stage))
    hosts = [run.timings.host_name for run in pair.trained]
    if len(set(hosts)) > 1:
        cautions.append(f"The devices are in different machines: {listed(hosts)}.")
    return tuple(cautions)


def _loading_table(pair: ScriptComparison) -> Table:
    """Return a row for each device, if its steps were timed."""
    rows = []
    for run in pair.trained:
        if run.has_steps:
            row = {
                "device": run.device,
                "an epoch (median)": seconds(run.timings.median_epoch_seconds),
                "waits for batches": f"{run.waiting_share:.0%}",
                "a batch": seconds(_batch_seconds(run)),
                "a step": seconds(statistics.median(run.timings.steady_state.step_seconds)),
                "steps of an epoch": f"{run.record.epochs[-1].steps:,}",
            }
            rows.append(row)
    return rows


def _metrics_table(pair: ScriptComparison) -> Table:
    """Return a row for each number in the metrics files."""
    by_device = {run.device: run.record.metrics for run in pair.trained}
    names = dict.fromkeys(name for metrics in by_device.values() for name in metrics)
    return [
        {
            "metric": name,
            **{
                device.upper(): NOTHING if (value := metrics.get(name)) is None else f"{value:.6g}"
                for device, metrics in by_device.items()
            },
        }
        for name in names
    ]
