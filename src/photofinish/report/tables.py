"""Findings as tables for people: units, few digits, n/a where there is no figure, at most eight columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from photofinish.comparing.bounds import NINE_OF_TEN_WITHIN, SpeedupBound
from photofinish.comparing.device_results import Trained
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.parity import OverSeeds, Spread
from photofinish.comparing.renting import RentalOption
from photofinish.comparing.scaling import Series, Shared
from photofinish.comparing.speedups import Kind, ResourceUse
from photofinish.machine.fingerprint import GpuTarget
from photofinish.machine.load import load_warnings
from photofinish.report import sentences
from photofinish.report.rows import ComparisonRow, attribution_rows, comparison_rows, grouped, is_known
from photofinish.report.sentences import NAMES, THE_SAME, in_words, verdict
from photofinish.results.records import DEVICE_LABELS
from photofinish.results.references import hardware
from photofinish.wording import at_most, byte_size, energy, listed, money, ratio, seconds, utc_day

NOTHING = "n/a"
_COMMIT_CHARACTERS = 10
_MOST_CLASSES_SHOWN = 12
_MISTAKES_NAMED = 3
_ESTIMATED = f"an epoch, estimated (9 of 10 within a factor of {NINE_OF_TEN_WITHIN})"

Table = list[dict[str, str]]
"""One dictionary per row: its cells by their headings, which are the same in all rows."""


def overview_table(pairs: Sequence[Comparison]) -> Table:
    """Return a row for each experiment, without columns that would be empty."""
    rows = []
    any_compared = any(pair.compared for pair in pairs)
    for pair in pairs:
        gpu = pair.compared.gpu if pair.compared else None
        row = {
            "experiment": pair.experiment,
            "the GPU": verdict(pair).short,
            "CPU: total": seconds(pair.cpu.timings.total_seconds),
            "GPU: total": seconds(gpu.timings.total_seconds) if gpu else NOTHING,
            "whole job": _speedup(pair, "end_to_end", pair.ceiling.job),
            "an epoch": _speedup(pair, "epoch", pair.ceiling.epoch),
            "CPU: test": pair.cpu.scores.figure[1],
        }
        if any_compared:
            row["the models"] = pair.compared.parity.likeness if pair.compared else NOTHING
        else:
            row["an epoch is"] = pair.diagnoses["cpu"][-1].cause if pair.diagnoses["cpu"] else NOTHING
        rows.append(row)
    filled = [heading for heading in rows[0] if any(row[heading] != NOTHING for row in rows)]
    return [{heading: row[heading] for heading in filled} for row in rows]


def _speedup(pair: Comparison, kind: Kind, bound: SpeedupBound | None) -> str:
    """Return how much faster the GPU was, or at most could be."""
    if pair.compared:
        return f"{ratio(pair.compared.speedups[kind].ratio)}x"
    return f"≤ {at_most(bound.at_most)}x" if bound else NOTHING


def series_table(series: Iterable[Series]) -> Table:
    """Return a row for each series of sizes."""
    return [{"series": each.name, "by": each.x_name, "break-even": sentences.break_even(each)} for each in series]


def speedup_table(pairs: Iterable[Comparison]) -> Table:
    """Return three rows for each experiment that a GPU trained."""
    return [
        {
            "experiment": pair.experiment,
            "of": NAMES[each.kind],
            "CPU": seconds(each.cpu_seconds),
            "GPU": seconds(each.device_seconds),
            "speed-up": f"{ratio(each.ratio)}x",
            "95 % interval": " to ".join(map(ratio, each.interval)) if each.interval else NOTHING,
            "verdict": in_words(each),
        }
        for pair in pairs
        if pair.compared
        for each in pair.compared.speedups.values()
    ]


def why_table(pairs: Iterable[Comparison]) -> Table:
    """Return a row for each cause."""
    rows = []
    for pair in pairs:
        for device, diagnoses in pair.diagnoses.items():
            for found in diagnoses:
                change, gain = f"none: {sentences.no_remedy(found)}", NOTHING
                if remedy := found.remedy:
                    change, gain = f"`{sentences.remedy_line(remedy)}`", sentences.prediction(remedy)
                row = {"experiment": pair.experiment, "device": device, "of": found.of, "cause": found.cause}
                rows.append(row | {"evidence": sentences.cause(found), "change": change, "predicted gain": gain})
    return rows


def ceiling_table(pairs: Iterable[Comparison]) -> Table:
    """Return the bounds of an epoch and of the job, for each experiment that no GPU trained."""
    rows = []
    for pair in pairs:
        if pair.compared or not pair.ceiling.job:
            continue
        for of, bound in {"an epoch": pair.ceiling.epoch, "the job": pair.ceiling.job}.items():
            cells = [NOTHING] * 4
            if bound:
                times = bound.whole_seconds, bound.measured_seconds, bound.staying_seconds
                cells = [*map(seconds, times), f"{at_most(bound.at_most)}x"]
            headings = "whole", "stays on the CPU (measured)", "sure to stay", "a GPU at most (bound)"
            row = {"experiment": pair.experiment, "of": of}
            rows.append(row | dict(zip(headings, cells, strict=True)))
    return rows


def parity_table(pairs: Iterable[Comparison]) -> Table:
    """Return what is the same in one row, then the rest, from the start of the training to its end."""
    rows = []
    for pair in pairs:
        if pair.compared is None:
            continue
        parity = pair.compared.parity
        findings = [(layer, sentences.layer_finding(layer, parity)) for layer in parity.layers]
        found = [("bit for bit", THE_SAME, listed([layer.name for layer, text in findings if text == THE_SAME]))]
        for layer, finding in findings:
            if finding != THE_SAME:
                likeness = THE_SAME if layer.same else "within rounding" if layer.within_rounding else "different"
                found.append((finding, likeness, layer.name))
        rows += [
            {"experiment": pair.experiment, "compared": name, "found": finding, "verdict": likeness}
            for finding, likeness, name in found
            if name
        ]
    return rows


def seeds_table(pairs: Iterable[Comparison]) -> Table:
    """Return a row for each device and figure of experiments trained from several seeds."""
    return [
        {
            "experiment": pair.experiment,
            "device": device,
            "of": of,
            "seeds": str(len(spread.values)),
            "mean": write(spread.mean),
            "95 % interval": " to ".join(map(write, spread.interval)),
            "lowest to highest": f"{write(min(spread.values))} to {write(max(spread.values))}",
            "between two seeds": write(spread.between_two),
        }
        for pair in pairs
        for device, found in pair.seeds.items()
        for of, (spread, write) in _over_seeds(found).items()
    ]


def _over_seeds(found: OverSeeds) -> dict[str, tuple[Spread, Callable[[float], str]]]:
    """Return each figure over the seeds, and how to write it."""
    spreads: dict[str, tuple[Spread, Callable[[float], str]]] = {
        found.score_name: (found.score, found.in_words),
        "test loss": (found.test_loss, "{:.4f}".format),
    }
    if found.reached:
        goal = f"to {found.targets[0].target:g} validation accuracy"
        epochs, times = found.reached
        spreads |= {f"epochs {goal}": (epochs, "{:.1f}".format), f"time {goal}": (times, seconds)}
    return spreads


def paying_table(pairs: Iterable[Comparison]) -> Table:
    """Return when a GPU pays: start-up, energy, cost, and the time to the target accuracy."""
    rows = []
    for pair in pairs:
        answers = {device: _spent(spent) for device, spent in pair.outlays.items()}
        if pair.compared:
            for result in pair.trained:
                repaid = seconds(result.timings.startup_seconds), sentences.payback(pair.compared.payback)
                answers[result.device] = {"start-up repaid": repaid, **answers[result.device]}
        for of in dict.fromkeys(of for answer in answers.values() for of in answer):
            row = {"experiment": pair.experiment, "of": of}
            found = {device: answer[of] for device, answer in answers.items() if of in answer}
            for device in DEVICE_LABELS:
                row[device.upper()] = found[device][0] if device in found else NOTHING
            findings = {device.upper(): finding for device, (_, finding) in found.items()}
            is_one = len(set(findings.values())) == 1
            each = [finding if is_one else f"{device}: {finding}" for device, finding in findings.items()]
            rows.append(row | {"finding": "; ".join(dict.fromkeys(each))})
    return rows


def _spent(spent: ResourceUse) -> dict[str, tuple[str, str]]:
    """Return what a training took, each as a figure and how it was found."""
    joules, currency = spent.energy.joules, spent.currency
    found = {
        "energy of the epochs": (
            NOTHING if joules is None else energy(joules),
            f"{spent.energy.status}: {spent.energy.counted}",
        ),
        "cost of the run": (
            NOTHING if spent.cost.amount is None else money(spent.cost.amount, currency),
            spent.cost.counted,
        ),
    }
    if not spent.target:
        return found
    goal = f"to {spent.target.target:g} validation accuracy"
    if spent.target.epoch is None or spent.target.seconds is None:
        return found | {f"time {goal}": (NOTHING, f"not reached; the best is {spent.target.best:.4g}")}
    found[f"time {goal}"] = seconds(spent.target.seconds), f"in epoch {spent.target.epoch}, start-up included"
    if spent.joules_to_target:
        found[f"energy {goal}"] = energy(spent.joules_to_target), "by the epochs' time"
    if spent.cost_to_target and spent.cost_to_target.amount is not None:
        found[f"cost {goal}"] = money(spent.cost_to_target.amount, currency), "as for the run"
    return found


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
            "speed": f"{ratio(each.speedup.ratio)}x that of {each.fewest}",
            "scaling efficiency": efficiency,
            "recorded": each.machine or "here",
            "take with care": "; ".join(load_warnings(each.timings.load)) or "no",
        }
        rows.append(row)
    return rows


def elsewhere_table(pairs: Sequence[Comparison]) -> Table:
    """Return a row for each record of another machine, beside this one's CPU."""
    rows = []
    for pair in pairs:
        for found in pair.elsewhere:
            reference, timings = found.reference, found.reference.timings
            row = {
                "experiment": pair.experiment,
                "hardware": found.hardware,
                "recorded elsewhere": f"{utc_day(timings.started_at_unix_seconds)} ({reference.machine})",
                "epoch (median)": seconds(found.against_cpu.device_seconds),
                "of this CPU's speed": f"{ratio(found.against_cpu.ratio)}x",
                "total": seconds(timings.total_seconds),
                "test": reference.scores.in_words,
                "take with care": "; ".join(load_warnings(timings.load)) or "no",
            }
            rows.append(row)
    return rows


def renting_table(pairs: Sequence[Comparison]) -> Table:
    """Return a row for each experiment and accelerator. renting.csv has more."""
    has_estimates = any(offer.estimate for pair in pairs for offer in pair.renting.offers)
    rows = []
    for pair in pairs:
        loads = pair.cpu.record.experiment.input.name == "loader"
        for offer in pair.renting.offers:
            fits = f"{offer.fits}, {byte_size(offer.needed_bytes)} of {offer.accelerator.memory_gib:g} GiB"
            row = {
                "experiment": pair.experiment,
                "accelerator": offer.accelerator.name,
                "the job at most": NOTHING if pair.renting.without else f"{at_most(offer.job_at_most)}x",
                "the job at least": seconds(offer.job_seconds),
                "cost at least": _least_cost(offer),
                "fits, memory at least": fits,
                "an epoch at most": NOTHING if loads and pair.renting.without else f"{at_most(offer.epoch_at_most)}x",
            }
            if has_estimates:
                row[_ESTIMATED] = seconds(offer.estimate.epoch_seconds) if offer.estimate else NOTHING
            rows.append(row | {"an hour": _hour(pair, offer)})
    return rows


def _least_cost(offer: RentalOption) -> str:
    if offer.price is None or offer.cost is None:
        return NOTHING
    return money(offer.cost, offer.price.currency) if offer.cost >= 0.01 else f"under 0.01 {offer.price.currency}"


def _hour(pair: Comparison, offer: RentalOption) -> str:
    price = offer.price
    if price is None:
        return "no price known"
    old = ", old" if price.is_old(pair.renting.trained_on) else ""
    return f"{money(price.amount, price.currency)}{f', {price.as_of}' if price.as_of else ''}{old}"


def figures_table(pair: Comparison) -> Table:
    """Return a row for each figure that the page shows, with a column for each device."""
    by_device = {row["device"]: row for row in comparison_rows([pair])}
    table: dict[str, dict[str, str]] = {}
    for column in fields(ComparisonRow):
        label, write = column.metadata["label"], column.metadata["write"]
        values = {device: row[column.name] for device, row in by_device.items()}
        if label and any(map(is_known, values.values())):
            table[label] = {device: write(value) if is_known(value) else NOTHING for device, value in values.items()}
    for result in pair.trained:
        for label, cell in _measured(result).items():
            table.setdefault(label, defaultdict(lambda: NOTHING))[result.device] = cell
    return [{"": label, **{device.upper(): cells[device] for device in by_device}} for label, cells in table.items()]


def _measured(result: Trained) -> dict[str, str]:
    """Return on what a training was measured."""
    timings, host, taken = result.timings, result.timings.host, result.timings.steps_taken
    steps = "one by one"
    if result.device == "gpu" and taken:
        steps = f"in graphs of {taken.at_once}" if taken.kind == "graph" else f"one by one: {taken.why}"
    versions = dict(timings.packages)
    if host.software:
        versions = {"Python": host.software.python, "torch": host.software.torch}
        if isinstance(host, GpuTarget) and host.accelerators:
            versions |= {"CUDA": host.software.cuda or "none", "driver": host.accelerators[0].driver}
    commit, _, dirty = (timings.git_commit or "").partition("-")
    return {
        "CPU": f"{host.cpu.model}, {host.cpu.usable_cores} cores, {host.cpu.system}" if host.cpu else NOTHING,
        "devices": str(timings.device_count),
        "threads": str(host.threads or NOTHING),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "commit": (commit[:_COMMIT_CHARACTERS] or NOTHING) + (" with changes" if dirty else ""),
        "steps": steps,
        "warm-up": seconds(timings.warm_up_seconds),
    }


@dataclass(frozen=True)
class ShadedTable:
    """A table of numbers whose cells are shaded by a share."""

    kind: Literal["bars", "matrix"]
    title: str
    finding: str
    headings: tuple[str, ...]
    rows: dict[str, list[tuple[str, float]]]
    """Each row's cells by its name: text, and a share between 0 and 1."""


def step_parts(pair: Comparison) -> ShadedTable | None:
    """Return the parts of a step on each device, or None if no step was taken apart."""
    by_device = grouped(attribution_rows([pair]), "device")
    rows: dict[str, list[tuple[str, float]]] = {}
    for own in by_device.values():
        for row in own:
            cell = f"{seconds(row['median_seconds'])} ({row['share']:.0%})"
            rows.setdefault(row["part"], []).append((cell, row["share"]))
    headings = tuple(device.upper() for (device,) in by_device)
    taken = [result.timings.steps_taken for result in pair.trained]
    note = sentences.IN_GRAPHS if any(steps and steps.kind == "graph" for steps in taken) else ""
    return ShadedTable("bars", "Where a step's time goes", note, headings, rows) if rows else None


def confusions(pair: Comparison) -> list[ShadedTable]:
    """Return which classes each device's network takes for which; with many classes, without the matrix."""
    found = []
    for result in pair.trained:
        if not result.scores.confusion:
            continue
        names, matrix = result.record.class_names, np.array(result.scores.confusion)
        wrong = matrix - np.diag(np.diag(matrix))
        mistakes = []
        for index in np.argsort(-wrong, axis=None, kind="stable")[:_MISTAKES_NAMED].tolist():
            actual, predicted = divmod(index, len(names))
            if count := wrong[actual, predicted]:
                mistakes.append(f"{names[actual]} as {names[predicted]} ({count:,})")
        finding = f"{int(np.trace(matrix)):,} of {matrix.sum():,} images right"
        if mistakes:
            finding += f". Most mistaken: {listed(mistakes)}"
        rows = {
            name: [(str(count or ""), count / max(1, sum(counts))) for count in counts]
            for name, counts in zip(names, matrix.tolist(), strict=True)
        }
        is_shown = len(names) <= _MOST_CLASSES_SHOWN
        title = f"{result.device.upper()}: actual and predicted classes"
        found.append(ShadedTable("matrix", title, finding, names, rows if is_shown else {}))
    return found
