"""Findings as tables for readers, with units, few digits and at most eight columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from photofinish.answer.comparison import Comparison
from photofinish.answer.renting import RentalOption
from photofinish.answer.result import Result
from photofinish.answer.scaling import Series, Shared
from photofinish.answer.seeds import Spread
from photofinish.answer.speedups import epoch_speedup
from photofinish.answer.spending import time_to_lowest_loss
from photofinish.answer.step_costs import PARTS
from photofinish.machine.load import load_warnings
from photofinish.reporting import sentences
from photofinish.reporting.extrapolated import job_time, timed_text
from photofinish.reporting.page import Table
from photofinish.reporting.templates import NOTHING, THE_SAME, say
from photofinish.results.references import hardware
from photofinish.wording import (
    all_or_some,
    byte_size,
    energy,
    interval_text,
    limit,
    listed,
    money,
    seconds,
    times,
    utc_day,
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
            "of": say(found.kind),
            "CPU": seconds(found.cpu_seconds),
            "GPU": seconds(found.device_seconds),
            "speed-up": times(found.ratio),
            "9 of 10": interval_text(found.interval) if found.interval else NOTHING,
            "verdict": sentences.in_words(found),
        }
        rows.append(row)
    if rows and pair.cpu.timings.untimed_epochs:
        rows[-1]["CPU"] = say("extrapolated CPU", time=rows[-1]["CPU"])
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
            (over.score_name, over.score, over.in_words),
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
    spent, startup_seconds = pair.uses[run.device], run.timings.startup_seconds
    joules, target, currency = spent.energy.joules, spent.target, spent.currency
    answers = {}
    if pair.compared and (repaid := pair.compared.break_even):
        when = sentences.break_even_epochs(repaid)
        answers["start-up repaid"] = seconds(startup_seconds), when
    spent_energy = NOTHING if joules is None else energy(joules)
    answers["energy of the epochs"] = spent_energy, say("energy counted", it=spent.energy)
    cost = money_or_nothing(spent.cost.amount, currency)
    answers["cost of the run"] = cost, spent.cost.counted
    if target:
        reached, when = NOTHING, say("not reached", best=target.best)
        if target.seconds is not None:
            reached, when = seconds(target.seconds), say("in epoch", epoch=target.epoch)
        answers[say("time to", target=target.target)] = reached, when
    if target and spent.cost_to_target:
        cost = money_or_nothing(spent.cost_to_target.amount, currency)
        answers[say("cost to", target=target.target)] = cost, "as for the run"
    if run.stops_early and run.trained:
        epochs = run.trained.timings.epochs
        epoch, until_seconds = time_to_lowest_loss(run.history, epochs, startup_seconds)
        when = say("in epoch of", epoch=epoch, epochs=len(run.history))
        answers[say("lowest loss")] = seconds(until_seconds), when
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
            "speed": say("as fast", speed=each.speedup.ratio, fewest=each.fewest),
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
            "recorded elsewhere": say("day and machine", day=day, machine=each.machine),
            "epoch (median)": seconds(against_cpu.device_seconds),
            "of this CPU's speed": times(against_cpu.ratio),
            "total": job_time(timings),
            "test": say("score after", scores=each.scores.in_words, timed=timed_text(timings)),
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
        needed = byte_size(option.needed_bytes)
        row["fits, memory at least"] = say("fits", it=option, needed=needed)
        row["an hour"] = _hour(option)
        rows.append(row)
    return rows


def _estimates(option: RentalOption) -> dict[str, str]:
    estimate, price, job = option.estimate, option.price, NOTHING
    if estimate:
        low, high = estimate.job_interval
        job = say("job interval", whole=estimate.job_seconds, low=low, high=high)
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
            part_seconds, share = costs.parts_seconds[part], costs.shares[part]
            row[device] = say("time and share", it=part_seconds, share=share)
        rows.append(row)
    return rows


def steps_note(pair: Comparison) -> str:
    """Return a note on how to read the parts of a step."""
    taken = [run.trained.timings.steps_taken for run in pair.trained if run.trained]
    is_captured = any(steps and steps.kind == "graph" for steps in taken)
    return say("in graphs") if is_captured else ""


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
