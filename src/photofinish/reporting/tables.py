"""Findings as tables for readers, with units, few digits and at most eight columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from photofinish.comparing.pairs import Comparison
from photofinish.comparing.renting import RentalOption
from photofinish.comparing.result import Result
from photofinish.comparing.scaling import Series, Shared
from photofinish.comparing.seeds import Spread
from photofinish.comparing.speedups import epoch_speedup
from photofinish.comparing.spending import time_to_lowest_loss
from photofinish.comparing.step_costs import PARTS
from photofinish.machine.load import load_warnings
from photofinish.reporting import causes, sentences
from photofinish.reporting.extrapolated import job_time, timed_text
from photofinish.reporting.page import NOTHING, Table
from photofinish.reporting.sentences import THE_SAME
from photofinish.results.references import hardware
from photofinish.wording import (
    all_or_some,
    byte_size,
    energy,
    interval_text,
    limit,
    listed,
    money,
    ratio,
    seconds,
    times,
    utc_day,
)

RENTING_NOTE = (
    "Estimates assume this CPU's start-up and loading; a loader's workers share the cores of the "
    "cheapest machine."
)


def series_table(series: Iterable[Series]) -> Table:
    """Return a row for each series of sizes."""
    return [
        {
            "experiments": all_or_some(each.experiments),
            "by": each.x_name,
            "break-even": sentences.break_even_size(each),
        }
        for each in series
    ]


def speedup_table(pair: Comparison) -> Table:
    """Return three rows if a GPU trained the experiment."""
    rows = []
    for found in pair.compared.speedups.values() if pair.compared else ():
        row = {
            "of": sentences.NAMES[found.kind],
            "CPU": seconds(found.cpu_seconds),
            "GPU": seconds(found.device_seconds),
            "speed-up": times(found.ratio),
            "9 of 10": interval_text(found.interval) if found.interval else NOTHING,
            "verdict": sentences.in_words(found),
        }
        rows.append(row)
    if rows and pair.cpu.timings.untimed_epochs:
        rows[-1]["CPU"] += ", extrapolated"
    return rows


def bounds_table(pair: Comparison) -> Table:
    """Return the bounds of an epoch and of the job, if no GPU trained the experiment."""
    if pair.compared or not pair.cpu.has_steps:
        return []
    rows = []
    for of, found in (("an epoch", pair.bounds.epoch), ("the job", pair.bounds.job)):
        row = {
            "of": of,
            "whole": seconds(found.measured_whole_seconds) if found else NOTHING,
            "stays on the CPU": seconds(found.measured_seconds) if found else NOTHING,
            "a GPU at most": limit(found.as_measured) if found else NOTHING,
            "sure to stay": seconds(found.staying_seconds) if found else NOTHING,
            "with all margins": limit(found.at_most) if found else NOTHING,
        }
        rows.append(row)
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
        likeness = "within rounding" if layer.within_rounding else "different"
        if layer.within_rounding is None:
            likeness = "not comparable"
        rows.append(
            {
                "compared": layer.name,
                "result": finding,
                "verdict": THE_SAME if layer.same else likeness,
            }
        )
    return rows


def seeds_table(pair: Comparison) -> Table:
    """Return a row for each device and figure, if the experiment has several seeds."""
    rows = []
    for device, over in pair.seeds.items():
        figures: list[tuple[str, Spread, Callable[[float], str]]] = [
            (over.score_name, over.score, over.in_words),
            ("test loss", over.test_loss, "{:.4f}".format),
        ]
        if over.reached:
            goal = f"to {over.targets[0].target:g} validation accuracy"
            epochs, times = over.reached
            figures.append((f"epochs {goal}", epochs, "{:.1f}".format))
            figures.append((f"time {goal}", times, seconds))
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


def paying_table(pair: Comparison) -> Table:
    """Return energy, cost and the time to the target, without rows of unknown figures."""
    by_device = {run.device.upper(): _spent(pair, run) for run in pair.trained}
    rows = []
    for of in dict.fromkeys(of for answers in by_device.values() for of in answers):
        row = {"of": of, **dict.fromkeys(by_device, NOTHING)}
        reasons = {}
        for device, answers in by_device.items():
            if of in answers:
                row[device], reasons[device] = answers[of]
        row["finding"] = "; ".join(f"{device}: {reason}" for device, reason in reasons.items())
        if len(set(reasons.values())) == 1:
            row["finding"] = next(iter(reasons.values()))
        if any(row[device] != NOTHING for device in by_device) or of.startswith("time"):
            rows.append(row)
    return rows


def _spent(pair: Comparison, run: Result) -> dict[str, tuple[str, str]]:
    """Return a training's energy, cost and times, each as a figure and an explanation."""
    spent = pair.uses[run.device]
    joules, target, currency = spent.energy.joules, spent.target, spent.currency
    spent_energy = NOTHING if joules is None else energy(joules)
    answers = {}
    if pair.compared and (repaid := pair.compared.break_even):
        startup = seconds(run.timings.startup_seconds)
        answers["start-up repaid"] = startup, sentences.break_even_epochs(repaid)
    answers["energy of the epochs"] = spent_energy, f"{spent.energy.status}: {spent.energy.counted}"
    cost = money_or_nothing(spent.cost.amount, currency)
    answers["cost of the run"] = cost, spent.cost.counted
    goal = f"to {target.target:g} validation accuracy" if target else ""
    if target and target.seconds is None:
        answers[f"time {goal}"] = NOTHING, f"not reached; the best is {target.best:.4g}"
    elif target and target.seconds is not None:
        when = f"in epoch {target.epoch}, start-up included"
        answers[f"time {goal}"] = seconds(target.seconds), when
    if spent.cost_to_target:
        cost = money_or_nothing(spent.cost_to_target.amount, currency)
        answers[f"cost {goal}"] = cost, "as for the run"
    if run.stops_early and run.trained:
        epochs, startup_seconds = run.trained.timings.epochs, run.timings.startup_seconds
        epoch, until_seconds = time_to_lowest_loss(run.history, epochs, startup_seconds)
        when = f"in epoch {epoch} of {len(run.history)}, start-up included"
        answers["time to the lowest validation loss"] = seconds(until_seconds), when
    return answers


def money_or_nothing(amount: float | None, currency: str) -> str:
    return NOTHING if amount is None else money(amount, currency)


def sharing_table(shared: Iterable[Shared]) -> Table:
    """Return a row for each number of devices that shared a training."""
    rows = []
    for each in shared:
        efficiency = f"{each.efficiency:.0%}"
        if each.efficiency_interval:
            low, high = each.efficiency_interval
            efficiency += f" ({low:.0%} to {high:.0%})"
        row = {
            "experiment": each.experiment,
            "hardware": hardware(each.device, each.timings),
            "devices": str(each.count),
            "epoch (median)": seconds(each.speedup.device_seconds),
            "speed": f"{ratio(each.speedup.ratio)}x as fast as {each.fewest}",
            "scaling efficiency": efficiency,
            "recorded": each.machine or "here",
            "unreliable": "; ".join(load_warnings(each.timings.load)) or "no",
        }
        rows.append(row)
    return rows


def references_table(pair: Comparison) -> Table:
    """Return a row for each reference, with its speed-up over this CPU."""
    rows = []
    for each in pair.references:
        timings, against_cpu = each.timings, epoch_speedup(pair.cpu.timings, each.timings)
        day = utc_day(timings.started_at_unix_seconds)
        row = {
            "hardware": each.hardware,
            "recorded elsewhere": f"{day} ({each.machine})",
            "epoch (median)": seconds(against_cpu.device_seconds),
            "of this CPU's speed": f"{ratio(against_cpu.ratio)}x",
            "total": job_time(timings),
            "test": f"{each.scores.in_words} after {timed_text(timings)}",
            "unreliable": "; ".join(load_warnings(timings.load)) or "no",
        }
        rows.append(row)
    return rows


def renting_table(pair: Comparison) -> Table:
    """Return a row for each accelerator. answers.json has more."""
    options, rows = pair.renting.options, []
    has_estimates = any(option.estimate for option in options)
    for option in options:
        row = {"accelerator": option.accelerator.name}
        if has_estimates:
            row |= _estimates(option)
        needed, most = byte_size(option.needed_bytes), option.accelerator.memory_gib
        row["fits, memory at least"] = f"{option.fits}, {needed} of {most:g} GiB"
        row["an hour"] = _hour(option)
        rows.append(row)
    return rows


def _estimates(option: RentalOption) -> dict[str, str]:
    estimate, price, job = option.estimate, option.price, NOTHING
    if estimate:
        low, high = map(seconds, estimate.job_interval)
        job = f"{seconds(estimate.job_seconds)} ({low} to {high})"
    cost = money_or_nothing(option.estimated_cost, price.currency if price else "")
    return {"the job, estimated": job, "cost with its start": cost}


def _hour(option: RentalOption) -> str:
    price = option.price
    if price is None:
        return "no price known"
    day = f", {price.as_of}" if price.as_of else ""
    old = ", old" if option.price_is_old else ""
    return f"{money(price.amount, price.currency)}{day}{old}"


def steps_table(pair: Comparison) -> Table:
    """Return a row for each part of a step, with its share."""
    runs = [run for run in pair.trained if run.costs and run.costs.shown_shares]
    profiled = {run.device.upper(): run.costs for run in runs if run.costs}
    rows = []
    for part in PARTS if profiled else ():
        row = {"part of a step (mean)": part}
        for device, costs in profiled.items():
            row[device] = f"{seconds(costs.parts_seconds[part])} ({costs.shares[part]:.0%})"
        rows.append(row)
    return rows


def steps_note(pair: Comparison) -> str:
    """Return a note on how to read the parts of a step."""
    taken = [run.trained.timings.steps_taken for run in pair.trained if run.trained]
    is_captured = any(steps and steps.kind == "graph" for steps in taken)
    return causes.IN_GRAPHS if is_captured else ""


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
