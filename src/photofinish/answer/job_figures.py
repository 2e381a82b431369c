"""Figures of a job on each device, by their names in comparison.csv."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision
from photofinish.answer.step_costs import PARTS
from photofinish.answer.times import job_time
from photofinish.answer.uncertainty import Interval
from photofinish.results.figures import figures_in
from photofinish.results.job import Job
from photofinish.results.trained import DeviceLabel


def figures_of(pair: Comparison, decision: Decision, device: DeviceLabel) -> dict[str, Any]:
    """Return the figures of a device. A speed-up of 2 means half the CPU's time."""
    run, worth = pair.cpu if device == "cpu" else pair.gpu, decision.worth
    settings = (run or pair.cpu).settings
    figures: dict[str, Any] = {
        "experiment": pair.experiment,
        "device": device,
        "status": "trained" if run else "unavailable",
        "answer": worth.answer,
        "answer_for": worth.about,
        "answer_by": worth.basis,
        "answer_reason": worth.reason,
        "epochs": int(settings.values["epochs"]) if settings else 0,
    }
    if run is None:
        return figures | {"reason": pair.why_no_gpu}
    if settings is None and run.has_steps:
        figures["epochs"] = round(run.epochs)
    if device == "gpu":
        for kind, speedup in pair.speedups.items():
            name = f"{kind}_speedup"
            figures |= {name: speedup.ratio, **_ends(name, speedup.interval)}
        if payback := pair.break_even:
            figures |= _ends("payback_epochs", payback.interval)
            figures["payback_epochs"] = payback.epochs
        if pair.parity:
            divergence = pair.parity.first_divergence
            figures["same_model"] = pair.parity.likeness
            figures["first_divergence"] = divergence and divergence.name
    elif device == "cpu":
        epoch, job = pair.bounds.epoch, pair.bounds.job
        figures |= {"epoch_ceiling": epoch and epoch.at_most, "job_ceiling": job.at_most}
    return figures | _figures_of_run(pair, run) | _figures_of_training(run)


def _ends(name: str, interval: Interval | None) -> dict[str, float]:
    return {f"{name}_low": interval[0], f"{name}_high": interval[1]} if interval else {}


def _figures_of_run(pair: Comparison, run: Job) -> dict[str, Any]:
    spent, causes, step = pair.uses[run.device], pair.diagnoses[run.device], pair.steps[run.device]
    figures = {figure.name: value or None for figure, value in figures_in(run)}
    if run.is_extrapolated:
        figures["job_seconds"] = run.whole_seconds
        figures["job_extrapolated"] = f"from {run.timed_text}"
        figures |= _ends("job_seconds", None if run.busy else job_time(run).interval)
    if target := spent.target:
        figures |= {"target_accuracy": target.target, "target_epoch": target.epoch}
        figures["target_seconds"] = target.seconds
    if spent.cost is not None:
        figures |= {"cost": spent.cost, "cost_currency": spent.currency}
    if causes:
        figures |= {"cause": causes[0].cause, "epoch_cause": causes[-1].cause}
    for part, field in PARTS.items():
        figures[field.replace("_seconds", "_share")] = step.shares.get(part)
    known_precision = run.settings or run.operations
    return figures | {
        "device_name": run.device_name,
        "precision": run.precision if known_precision else None,
        "parameters": run.parameter_count,
        "test_metrics": "; ".join(metric_texts(run.metrics)) or None,
        "target_cost": spent.cost_to_target,
        "busy_share": step.costs and step.costs.busy_share,
        "load_warnings": "; ".join(run.busy) or None,
        "host_name": run.host_name,
        "measured_at_unix_seconds": run.started_at_unix_seconds,
    }


def metric_texts(metrics: Mapping[str, float | None]) -> list[str]:
    return [
        f"{name} {'not a number' if value is None else f'{value:.4g}'}"
        for name, value in metrics.items()
    ]


def _figures_of_training(run: Job) -> dict[str, Any]:
    if run.trained is None:
        return {}
    trained, scores = run.trained, run.trained.scores
    taken = trained.steps_taken if run.device == "gpu" else None
    overhead = trained.overhead
    steps = taken and taken.why and f"one by one: {taken.why}"
    if taken and taken.kind == "graph":
        steps = f"in graphs of {taken.at_once}"
    return {
        "epochs_trained": len(trained.epochs),
        "repeats": 1 + len(trained.repeats),
        "test_accuracy": scores.test_accuracy,
        "test_loss": scores.test_loss,
        "macro_f1": scores.macro_f1,
        "overhead_seconds": overhead.seconds,
        "checkpoint_seconds": overhead.checkpoint_seconds,
        "resumed_at_epochs": " ".join(map(str, trained.resumed_at_epochs)) or None,
        "steps": steps or None,
    }
