"""Findings as tables that a person reads: units, a sensible number of digits, a word where there is no figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pandas import notna

from photofinish.comparing.bounds import NINE_OF_TEN_WITHIN
from photofinish.comparing.pairs import Pair
from photofinish.comparing.parity import THE_SAME, OverSeeds, Spread
from photofinish.comparing.renting import Offer, at_least
from photofinish.comparing.scaling import Series, Shared
from photofinish.comparing.speedups import NAMES, Cost, Outlay
from photofinish.comparing.verdict import in_words, verdict
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.machine.load import doubts
from photofinish.report.rows import InOrder, Rows, under
from photofinish.results.measurements import StepsTaken
from photofinish.results.records import DEVICE_LABELS, MEAN_ABSOLUTE_ERROR, DeviceLabel
from photofinish.results.references import hardware
from photofinish.wording import at_most, byte_size, energy, listed, money, ratio, seconds, utc_day, utc_minute

NOTHING = "n/a"
"""where there is no figure"""
_COMMIT_CHARACTERS = 10
_ESTIMATED = f"an epoch, estimated (9 of 10 within a factor of {NINE_OF_TEN_WITHIN})"

Table = list[dict[str, str]]
"""a row each, its cells by their headings, which are the same in all rows"""


def overview_table(pairs: Iterable[Pair]) -> Table:
    """A row for each experiment; columns that would be empty are left out."""
    rows = []
    for pair in pairs:
        cpu, gpu = pair.cpu, pair.compared.gpu if pair.compared else None
        speedups = pair.compared.speedups if pair.compared else None
        interval = speedups["epoch"].interval if speedups else None
        row = {"experiment": pair.experiment, "the GPU": verdict(pair).short}
        for heading, kind in (("whole job", "end_to_end"), ("an epoch", "epoch")):
            row[f"speed-up, {heading}"] = f"{ratio(speedups[kind].ratio)}x" if speedups else NOTHING  # type: ignore[index]
        for heading, bound in (("whole job", pair.ceiling.job), ("an epoch", pair.ceiling.epoch)):
            told = f"{at_most(bound.at_most)}x" if bound and not pair.compared else NOTHING
            row[f"a GPU at most, {heading} (bound)"] = told
        row["95 % interval"] = " to ".join(map(ratio, interval)) if interval else NOTHING
        for device, result in (("CPU", cpu), ("GPU", gpu)):
            row[f"{device}: total"] = seconds(result.timings.total_seconds) if result else NOTHING
            accuracy = result.scores.test_accuracy if result else None
            error = result.scores.metrics.get(MEAN_ABSOLUTE_ERROR) if result else None
            row[f"{device}: accuracy"] = NOTHING if accuracy is None else f"{accuracy:.2%}"
            row[f"{device}: mean error"] = NOTHING if error is None else f"{error:.4g}"
            diagnoses = pair.diagnoses[result.device] if result else ()
            row[f"{device}: epochs are"] = diagnoses[-1].cause if diagnoses else NOTHING
        row["the models"] = pair.compared.parity.likeness if pair.compared else NOTHING
        rows.append(row)
    filled = [heading for heading in rows[0] if any(row[heading] != NOTHING for row in rows)]
    return [{heading: row[heading] for heading in filled} for row in rows]


@under("series", "by", "break-even")
def series_table(series: Iterable[Series]) -> InOrder:
    """A row for each series of sizes."""
    for each in series:
        yield each.name, each.x_name, each.break_even.finding


@under("experiment", "of", "CPU", "GPU", "speed-up", "95 % interval", "verdict")
def speedup_table(pairs: Iterable[Pair]) -> InOrder:
    """Three rows for each experiment that a GPU trained."""
    for compared in (pair.compared for pair in pairs if pair.compared):
        for each in compared.speedups.values():
            times = seconds(each.cpu_seconds), seconds(each.device_seconds)
            interval = " to ".join(map(ratio, each.interval)) if each.interval else NOTHING
            yield compared.cpu.experiment, NAMES[each.kind], *times, f"{ratio(each.ratio)}x", interval, in_words(each)


@under("experiment", "device", "of", "cause", "evidence", "remedy", "predicted gain")
def why_table(pairs: Iterable[Pair]) -> InOrder:
    """A row for each cause: of an epoch, and of the job where it is mostly start-up."""
    for pair in pairs:
        for device, diagnoses in pair.diagnoses.items():
            for found in diagnoses:
                remedy, gain = "none" if found.no_remedy == found.evidence else f"none: {found.no_remedy}", NOTHING
                if found.remedy:
                    remedy, gain = f"{found.remedy.line} ({found.remedy.why})", found.remedy.prediction
                evidence = f"{found.sentence}; {found.evidence}"
                yield pair.experiment, device, found.of, found.cause, evidence, remedy, gain


@under("experiment", "of", "whole", "stays on the CPU (measured)", "sure to stay", "a GPU at most (bound)")
def ceiling_table(pairs: Iterable[Pair]) -> InOrder:
    """Of each experiment that no GPU trained and of which it can be told: the bounds of an epoch and of the job."""
    for pair in pairs:
        if not pair.compared and pair.ceiling.job:
            for of, bound in {"an epoch": pair.ceiling.epoch, "the job": pair.ceiling.job}.items():
                told = [NOTHING] * 4
                if bound:
                    times = bound.whole_seconds, bound.measured_seconds, bound.staying_seconds
                    told = [*map(seconds, times), f"{at_most(bound.at_most)}x"]
                yield pair.experiment, of, *told


@under("experiment", "compared", "found", "verdict")
def parity_table(pairs: Iterable[Pair]) -> InOrder:
    """What is the same in one row; then the rest, from the start of the training to its end."""
    for pair in pairs:
        layers = pair.compared.parity.layers if pair.compared else ()
        if plain := [layer.name for layer in layers if layer.finding == THE_SAME]:
            yield pair.experiment, listed(plain), "bit for bit", THE_SAME
        for layer in layers:
            if layer.finding != THE_SAME:
                likeness = THE_SAME if layer.same else "within rounding" if layer.within_rounding else "different"
                yield pair.experiment, layer.name, layer.finding, likeness


@under("experiment", "device", "of", "seeds", "mean", "95 % interval of it", "lowest to highest", "between two seeds")
def seeds_table(pairs: Iterable[Pair]) -> InOrder:
    """Of experiments trained from several seeds, a row for each device and figure."""
    for pair in pairs:
        for device, found in pair.seeds.items():
            for of, (spread, write) in _over_seeds(found).items():
                interval = " to ".join(map(write, spread.interval))
                span = f"{write(min(spread.values))} to {write(max(spread.values))}"
                count, mean = str(len(spread.values)), write(spread.mean)
                yield pair.experiment, device, of, count, mean, interval, span, write(spread.between_two)


def _over_seeds(found: OverSeeds) -> dict[str, tuple[Spread, Callable[[float], str]]]:
    """Each figure over the seeds, and how it is written; what it took to reach the target, where each seed did."""
    spreads: dict[str, tuple[Spread, Callable[[float], str]]] = {
        found.score_name: (found.score, found.in_words),
        "test loss": (found.test_loss, "{:.4f}".format),
    }
    if found.reached:
        goal = f"to {found.targets[0].target:g} validation accuracy"
        epochs, times = found.reached
        spreads |= {f"epochs {goal}": (epochs, "{:.1f}".format), f"time {goal}": (times, seconds)}
    return spreads


@under("experiment", "of", "CPU", "GPU", "finding")
def paying_table(pairs: Sequence[Pair], series: Sequence[Series]) -> InOrder:
    """A few rows for each experiment, then one for each series of sizes."""
    rows = [row for pair in pairs for row in _paying_rows(pair)]
    rows += [(each.name, f"break-even {each.x_name}", NOTHING, NOTHING, each.break_even.finding) for each in series]
    in_series = {point.experiment for each in series for point in each.points}
    told = "one size only: no other experiment differs in its batch size or a width alone"
    alone = [pair.experiment for pair in pairs if pair.compared and pair.experiment not in in_series]
    rows += [(name, "break-even size", NOTHING, NOTHING, told) for name in alone]
    # What has no figure for the same reason is one row for all that it is so of, at the end.
    without: dict[tuple[str, ...], list[str]] = {}
    for name, *rest in rows:
        if rest[1:3] == [NOTHING, NOTHING]:
            without.setdefault(tuple(rest), []).append(name)
    several = {finding: names for finding, names in without.items() if len(names) > 1}
    yield from (row for row in rows if row[1:] not in several)
    for finding, names in several.items():
        yield "all experiments" if len(names) == len(pairs) else listed(names), *finding


def _paying_rows(pair: Pair) -> Iterator[tuple[str, ...]]:
    spent = pair.outlays

    def row(of: str, figure: Callable[[Outlay], str], told: Callable[[Outlay], str]) -> tuple[str, ...]:
        """A figure for each device, and what is told of them, once where it is the same."""
        cells = [figure(spent[device]) if device in spent else NOTHING for device in DEVICE_LABELS]
        findings = {device: told(each) for device, each in spent.items()}
        if len(set(findings.values())) == 1:  # the same of every device
            return pair.experiment, of, *cells, findings["cpu"]
        return pair.experiment, of, *cells, "; ".join(f"{device.upper()}: {each}" for device, each in findings.items())

    if compared := pair.compared:
        started = (seconds(each.timings.startup_seconds) for each in pair.trained)
        yield pair.experiment, "start-up repaid", *started, compared.payback.finding
    yield row(
        "energy of the epochs",
        lambda each: _joules(each.energy.joules),
        lambda each: f"{each.energy.status}: {each.energy.counted}",
    )
    yield row("cost of the run", lambda each: _money(each, each.cost), lambda each: each.cost.counted)
    if pair.settings.target_accuracy is None:
        return
    goal = f"to {pair.settings.target_accuracy:g} validation accuracy"

    def reached(each: Outlay) -> str:
        """In which epoch, or how near it came."""
        if each.target and each.target.epoch is None:
            return f"not reached; {each.target.best:.4g} is the best"
        return f"in epoch {each.target.epoch}, start-up included" if each.target else NOTHING

    yield row(f"time {goal}", _time, reached)
    if any(each.joules_to_target for each in spent.values()):
        yield row(f"energy {goal}", lambda each: _joules(each.joules_to_target), lambda _: "by the epochs' time")
    if any(each.cost_to_target and each.cost_to_target.amount is not None for each in spent.values()):
        yield row(f"cost {goal}", lambda each: _money(each, each.cost_to_target), lambda _: "as for the run")


def _joules(joules: float | None) -> str:
    return NOTHING if joules is None else energy(joules)


def _money(spent: Outlay, cost: Cost | None) -> str:
    return NOTHING if cost is None or cost.amount is None else money(cost.amount, spent.currency)


def _time(spent: Outlay) -> str:
    return seconds(spent.target.seconds) if spent.target and spent.target.seconds is not None else NOTHING


@under(
    "experiment", "hardware", "devices", "epoch (median)", "speed", "scaling efficiency", "recorded",
    "to be taken with care",
)  # fmt: skip
def sharing_table(shared: Iterable[Shared]) -> InOrder:
    """A row for each number of devices that shared a training."""
    for each in shared:
        efficiency = f"{each.efficiency:.0%}"
        if each.efficiency_interval:
            low, high = each.efficiency_interval
            efficiency += f" ({low:.0%} to {high:.0%})"
        yield (
            each.experiment, hardware(each.device, each.timings), str(each.count),
            seconds(each.speedup.device_seconds), f"{ratio(each.speedup.ratio)}x that of {each.fewest}", efficiency,
            each.machine or "here", "; ".join(doubts(each.timings.load)) or "nothing noticed",
        )  # fmt: skip


def elsewhere_table(pairs: Sequence[Pair]) -> Table:
    """A row for each record of another machine, beside this one's CPU."""
    rows, aims = [], any(found.outlay.target for pair in pairs for found in pair.elsewhere)
    for pair in pairs:
        for found in pair.elsewhere:
            reference, spent = found.reference, found.outlay
            timings = reference.timings
            row = {
                "experiment": pair.experiment,
                "hardware": found.hardware,
                "recorded elsewhere": f"{utc_day(timings.started_at_unix_seconds)} ({reference.machine})",
                "torch": timings.packages.get("torch", NOTHING),
                "epoch (median)": seconds(found.against_cpu.device_seconds),
                "of this CPU's speed": f"{ratio(found.against_cpu.ratio)}x",
                "start-up": seconds(timings.startup_seconds),
                "total": seconds(timings.total_seconds),
                "energy of the epochs": f"{_joules(spent.energy.joules)}, {spent.energy.status}",
                "test": reference.scores.in_words,
                "to be taken with care": "; ".join(doubts(timings.load)) or "nothing noticed",
            }
            rows.append(row | ({"time to target": _time(spent)} if aims else {}))
    return rows


def renting_table(pairs: Sequence[Pair]) -> Table:
    """A row for each experiment and accelerator."""
    has_estimates = any(offer.estimate for pair in pairs for offer in pair.renting.offers)
    rows = []
    for pair in pairs:
        goal, loads = pair.settings.target_accuracy, pair.cpu.record.experiment.input.name == "loader"
        for offer in pair.renting.offers:
            memory_gib = offer.accelerator.memory_gib
            row = {
                "experiment on accelerator": f"{pair.experiment} on {offer.accelerator.name}",
                "the job at most": NOTHING if pair.renting.without else f"{at_most(offer.job_at_most)}x",
                "the job at least": seconds(offer.job_seconds),
                "cost": _least(offer, offer.cost),
                "fits, memory at least": f"{offer.fits}, {byte_size(offer.needed_bytes)} of {memory_gib:g} GiB",
                "an epoch at most": NOTHING if loads and pair.renting.without else f"{at_most(offer.epoch_at_most)}x",
                "a step at least": f"{seconds(offer.step.seconds)} ({offer.step.held_by})",
            }
            if has_estimates:
                row[_ESTIMATED] = seconds(offer.estimate.epoch_seconds) if offer.estimate else NOTHING
            if goal is not None:
                told = NOTHING if offer.target_seconds is None else seconds(offer.target_seconds)
                cost = f", {_least(offer, offer.target_cost)}" if offer.target_cost is not None else ""
                row[f"to {goal:g} accuracy at least"] = told + cost
            rows.append(row | {"an hour": _hour(pair, offer), "machine": offer.price.where if offer.price else NOTHING})
    return rows


def _least(offer: Offer, amount: float | None) -> str:
    return at_least(amount, offer.price.currency) if offer.price and amount is not None else NOTHING


def _hour(pair: Pair, offer: Offer) -> str:
    price = offer.price
    if price is None:
        return "no price known"
    old = ", old" if price.is_old(pair.renting.trained_on) else ""
    return f"{money(price.amount, price.currency)}{f', {price.as_of}' if price.as_of else ''}{old}"


_SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "experiment": ("experiment", str),
    "device": ("device", str),
    "device_name": ("hardware", str),
    "precision": ("precision", str),
    "test_accuracy": ("test accuracy", "{:.2%}".format),
    "test_loss": ("test loss", "{:.4f}".format),
    "test_metrics": ("test metrics", str),
    "step_seconds": ("step (median)", seconds),
    "epoch_seconds": ("epoch (median)", seconds),
    "images_per_second": ("images/s", "{:,.0f}".format),
    "startup_seconds": ("start-up", seconds),
    "total_seconds": ("total", seconds),
    "overhead": ("between epochs", str),
    "measured": ("measured", str),
    "doubts": ("to be taken with care", str),
}
"""of comparison.csv, what the report shows: below which heading, and how it is written"""


def shown_table(comparison: Rows) -> Table:
    """All figures of `comparison_rows`; of a device that was unavailable, that it was."""
    rows = []
    for row in map(dict, comparison):
        if row["status"] == "unavailable":
            row["device_name"] = "unavailable"
        else:
            run = f" ({row['measured_in']})" if row["measured_in"] else ""  # the one that made this report
            row["measured"] = f"{utc_minute(row['measured_at_unix_seconds'])}, {row['host_name']}{run}"
            row["overhead"] = f"{seconds(row['overhead_seconds'])} ({row['overhead_share']:.1%})"
            row["doubts"] = row["doubts"] or "nothing noticed"
        cells = {heading: (row.get(column), write) for column, (heading, write) in _SHOWN.items()}
        rows.append({heading: write(cell) if notna(cell) else NOTHING for heading, (cell, write) in cells.items()})
    if all(row["test_metrics"] is None for row in comparison):
        for shown in rows:
            del shown["test metrics"]
    return rows


def measured_table(pairs: Iterable[Pair]) -> Table:
    """A row for each run. How often: epochs and repeats, then samples of the step and steps in each."""
    rows = []
    for result in (result for pair in pairs for result in pair.trained):
        timings, host = result.timings, result.timings.host
        versions = dict(timings.packages)  # of what computes
        if host.software:
            versions = {"Python": host.software.python, "torch": host.software.torch}
            if isinstance(host, GpuHost) and host.accelerators:
                versions |= {"CUDA": host.software.cuda or "none", "driver": host.accelerators[0].driver}
        cpu = f"{host.cpu.model}, {host.cpu.usable_cores} cores, {host.cpu.system}" if host.cpu else NOTHING
        commit, _, dirty = (timings.git_commit or "").partition("-")
        samples, steps = len(timings.steady_state.sample_seconds), timings.steady_state.steps_per_sample
        row = {
            "experiment": result.experiment,
            "device": result.device,
            "hardware": _times(timings.device_count, timings.device_name),
            "machine": f"{timings.host_name}: {cpu}",
            "threads": str(host.threads or NOTHING),
            "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
            "commit": (commit[:_COMMIT_CHARACTERS] or NOTHING) + (" with changes" if dirty else ""),
            "began": utc_minute(timings.started_at_unix_seconds),
            "epochs timed": _times(len(timings.repeats) + 1, str(len(timings.epochs))),
            "steps timed": f"{samples} x {steps}",
            "steps handed out": _handed_out(timings.steps_taken, result.device),
            "warm-up": seconds(timings.warm_up_seconds),
            "freed memory": "kept" if isinstance(host, CpuHost) and host.keep_freed_memory else "as usual",
        }
        rows.append(row)
    return rows


def _handed_out(taken: StepsTaken | None, device: DeviceLabel) -> str:
    if taken is None or device == "cpu":
        return "one by one"
    return f"in graphs of {taken.at_once}" if taken.kind == "graph" else f"one by one: {taken.why}"


def _times(count: int, what: str) -> str:
    return what if count == 1 else f"{count} x {what}"
