"""Findings of one experiment or script as sentences: the answer and its evidence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from photofinish.comparing.decision import Decision, decide
from photofinish.comparing.diagnosis import Diagnosis
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.parity import Layer, Parity
from photofinish.comparing.result import Result, Trained
from photofinish.comparing.scaling import Series
from photofinish.comparing.seeds import OverSeeds
from photofinish.comparing.speedups import BreakEvenEpochs, Kind, Speedup
from photofinish.comparing.times import LEAST_VALUES
from photofinish.machine.load import load_warnings
from photofinish.reporting.answer_words import action_text, answer_text, busy_text
from photofinish.reporting.causes import advice, cause
from photofinish.reporting.extrapolated import caution, in_points, timed_text
from photofinish.wording import counted, faster, listed, measure_again, seconds

NAMES: dict[Kind, str] = {
    "step": "a step, its data on the device",
    "epoch": "an epoch with its data",
    "end_to_end": "the whole job with start-up",
}
THE_SAME = "the same"
_NO_STEPS = (
    "No step of an optimizer was seen in the script, so it is timed as a whole: its start-up, its "
    "loading and what its steps compute are not known. `photofinish.steps` in its loop shows them."
)
NO_PARITY = "Whether both devices train the same model is not known beyond the script's metrics."
_METRICS_NAMED = 3


@dataclass(frozen=True)
class Verdict:
    """Answer for one experiment, with evidence and doubts."""

    experiment: str
    decision: Decision
    answer: str
    """Answer with a number and a reason, about the GPU here or about renting a GPU."""
    action: str
    """Action to take now."""
    busy: str | None
    """Warning that the machine was busy, and how to measure again."""
    details: tuple[str, ...]
    """Paragraphs of evidence."""
    cautions: tuple[str, ...]
    """Reasons for doubt."""
    missing: str | None = None
    """Sentence why no GPU trained."""

    @property
    def first(self) -> list[str]:
        """Lines below the answer on the first screen and in the terminal."""
        return [f"Now: {self.action}", *([self.busy] if self.busy else [])]

    @property
    def text(self) -> str:
        """Answer, action, details and cautions."""
        return " ".join([self.answer, *self.first, *self.details, *self.cautions])


def verdict(pair: Comparison, decision: Decision | None = None) -> Verdict:
    """Return the answer with its evidence. By default, decide for this experiment alone."""
    decision = decision or decide(pair)
    details = _evidence_of_both(pair) if pair.compared else _evidence_of_cpu(pair, decision)
    if "cpu" in pair.seeds:
        is_whole = not pair.cpu.timings.untimed_epochs
        details.append(chance(pair.seeds["cpu"], pair.seeds.get("gpu") if is_whole else None))
    return Verdict(
        experiment=pair.experiment,
        decision=decision,
        answer=answer_text(pair, decision),
        action=action_text(pair, decision.action),
        busy=busy_text(pair, decision.action),
        details=tuple(details),
        cautions=_cautions(pair),
        missing=f"Nothing was trained on a GPU here ({pair.why_no_gpu})."
        if pair.why_no_gpu
        else None,
    )


def _evidence_of_both(pair: Comparison) -> list[str]:
    assert pair.compared
    (cpu, gpu), details = pair.trained, []
    if epoch := pair.compared.speedups.get("epoch"):
        details.append(
            f"An epoch takes {seconds(epoch.device_seconds)} on {gpu.timings.device_name} and "
            f"{seconds(epoch.cpu_seconds)} on {cpu.timings.device_name}: "
            f"{faster(epoch.ratio, epoch.interval)}; {in_words(epoch)}."
        )
    details += [*_why(cpu, pair.diagnoses["cpu"]), *_why(gpu, pair.diagnoses["gpu"])]
    if found := pair.compared.break_even:
        details.append(f"When the GPU's start-up is repaid: {break_even_epochs(found)}.")
    if cpu.trained and gpu.trained:
        details.append(_scores(cpu.trained, gpu.trained, pair.parity))
    else:
        details.append(_metrics(cpu, gpu))
    return details


def _scores(cpu: Trained, gpu: Trained, parity: Parity | None) -> str:
    """Return where the models first differ, and the main score of both devices."""
    (name, score), (_, score_of_gpu), parted = cpu.scores.figure, gpu.scores.figure, ""
    if parity and parity.epochs is not None:
        on_cpu, on_gpu = (f"after {timed_text(run.timings)}" for run in (cpu, gpu))
        return (
            f"{name[0].upper()}{name[1:]} is {score} on the CPU {on_cpu} and {score_of_gpu} on "
            f"the GPU {on_gpu}: not comparable."
        )
    if parity and (divergence := parity.first_divergence):
        finding = layer_finding(divergence, parity)
        parted = f"The models first differ at the {divergence.name}: {finding}. "
    elif parity and parity.likeness == "not shown" and not parity.difference:
        parted = (
            "Each device draws its own random numbers, so few trainings of each cannot show "
            "whether the models differ by more than chance; `seeds: 3` can. "
        )
    name = f"{name[0].upper()}{name[1:]}"
    return f"{parted}{name} is {score_of_gpu} on the GPU and {score} on the CPU."


def _metrics(cpu: Result, gpu: Result) -> str:
    """Return the metrics of both devices, and what they do not show."""
    on_cpu, on_gpu = (listed(metric_texts(run)[:_METRICS_NAMED]) for run in (cpu, gpu))
    if not on_cpu or not on_gpu:
        return "Whether both devices train the same model is not known."
    return f"On the GPU it reports {on_gpu}; on the CPU {on_cpu}. {NO_PARITY}"


def metric_texts(run: Result) -> list[str]:
    """Return the custom metrics of a result, each after its name."""
    return [
        f"{name} {'not a number' if value is None else f'{value:.4g}'}"
        for name, value in run.metrics.items()
    ]


def _evidence_of_cpu(pair: Comparison, decision: Decision) -> list[str]:
    cpu, timings = pair.cpu, pair.cpu.timings
    trained = "ran it"
    if cpu.trained:
        what = timed_text(timings) if timings.untimed_epochs else "it"
        trained = f"trained {what} to {cpu.trained.scores.in_words}"
    trained = f"{timings.device_name} {trained} in {seconds(timings.total_seconds)}"
    if timings.startup_seconds:  # unknown for a script without steps
        trained += f", {seconds(timings.startup_seconds)} of it start-up"
    trained += "."
    why = _why(cpu, pair.diagnoses["cpu"])
    if not cpu.has_steps:
        return [trained, *why]
    if decision.own.reason == "short job":
        return [trained]
    if not_counted := pair.renting.not_counted:
        return [trained, f"There are no estimates for other GPUs: {not_counted}.", *why]
    return [trained, *why]


def in_words(speedup: Speedup) -> str:
    """Return which device is faster, or that it is not known."""
    if speedup.interval is None:
        noun = "sample" if speedup.kind == "step" else "epoch"
        return f"no interval ({_too_few(speedup.values, noun)})"
    if speedup.is_faster is None:
        return "no clear difference"
    return "the GPU is faster" if speedup.is_faster else "the CPU is faster"


def break_even_epochs(found: BreakEvenEpochs) -> str:
    """Return when the GPU's longer start-up is repaid: `after 4 epochs (4 to 5)`."""
    if found.interval and math.isfinite(found.interval[0]) and math.isinf(found.interval[1]):
        return "can't tell, because its epochs may be no shorter"
    when = "never, because its epochs are no shorter"
    if not found.epochs:
        when = "at once"
    elif math.isfinite(found.epochs):
        when = f"after {counted(math.ceil(found.epochs), 'epoch')}"
    if found.interval is None:
        return f"{when} (no interval: {_too_few(found.values, 'epoch')})"
    if math.isinf(found.epochs):
        return when
    low, high = (f"{math.ceil(end):,}" for end in found.interval)
    return when if low == high else f"{when} ({low} to {high})"


def break_even_size(series: Series) -> str:
    """Return the size from which on the GPU is faster."""
    found, (first, last) = series.break_even, (series.points[0].x, series.points[-1].x)
    if found.size is None:
        winners = {point.speedup.is_faster for point in series.points}
        if len(winners) == 1 and None not in winners:
            which = "faster" if True in winners else "slower"
            return f"none: the GPU is {which} at all sizes from {first:,} to {last:,}"
        return f"none between {first:,} and {last:,}"
    size = f"the GPU is faster from {found.size:,.3g} on"
    if series.values < LEAST_VALUES:
        return f"{size} (no interval: {_too_few(series.values, 'epoch')})"
    low = f"below {first:,}" if found.low is None else f"{found.low:,.3g}"
    high = f"above {last:,}" if found.high is None else f"{found.high:,.3g}"
    return f"{size} ({low} to {high})"


def chance(cpu: OverSeeds, gpu: OverSeeds | None) -> str:
    """Return the difference of two seeds, and if the devices differ by more."""
    of_score, spread = f"Over {len(cpu.seeds)} seeds the {cpu.score_name}", cpu.score
    if gpu is None:
        interval = " to ".join(map(cpu.in_words, spread.interval))
        two_seeds = cpu.in_words(spread.between_two)
        mean = cpu.in_words(spread.mean)
        return f"{of_score} is {mean} ({interval}). Two seeds differ by {two_seeds}."
    both = zip(spread.values, gpu.score.values, strict=True)
    apart = cpu.in_words(statistics.fmean(abs(one - other) for one, other in both))
    two_seeds = cpu.in_words((spread.between_two + gpu.score.between_two) / 2)
    return (
        f"{of_score} differs by {apart} between the devices and by {two_seeds} between two seeds."
    )


def layer_finding(layer: Layer, parity: Parity) -> str:
    """Return how a layer differs between two trainings."""
    if layer.cpu is not None and layer.gpu is not None:
        if layer.name != "test accuracy":
            what = "mean absolute error" if layer.name == "test error" else layer.name
            return f"{what} {layer.cpu:.4g} on the CPU, {layer.gpu:.4g} on the GPU"
        apart = f"; {in_points(parity.difference)}" if parity.difference else ""
        return f"{layer.cpu:.2%} on the CPU, {layer.gpu:.2%} on the GPU{apart}"
    if layer.same:
        return THE_SAME
    if layer.not_recorded:
        return f"not recorded: {layer.not_recorded}"
    if layer.unequal is not None:
        return f"other predictions for {counted(layer.unequal, 'item')} ({layer.difference:.2%})"
    if layer.difference is not None:
        where = f" in {layer.at}" if layer.at else ""
        return f"a relative difference of {layer.difference:.1g}{where}"
    return f"only one has {layer.at}" if layer.at else "they differ"


def _why(run: Result, diagnoses: Sequence[Diagnosis]) -> list[str]:
    """Return the cause of an epoch's time, then the cause of the job's time."""
    if not run.has_steps:
        return [_NO_STEPS] if run.device == "cpu" else []
    if not diagnoses:
        return []
    found, device = diagnoses[-1], run.device.upper()
    if found.likely:
        sentences = [f"On the {device}, an epoch is likely {found.likely}, but {cause(found)}."]
    elif found.not_known:
        sentences = [f"What an epoch on the {device} waits for is not known: {cause(found)}."]
    else:
        sentences = [f"On the {device}, {cause(found)} ({found.cause})."]
    if found.remedy or found.no_remedy:
        sentences.append(advice(found))
    sentences += [f"And {cause(other)}." for other in diagnoses[:-1]]
    return [" ".join(sentences)]


def _cautions(pair: Comparison) -> tuple[str, ...]:
    """Return further reasons to doubt the answer."""
    cautions = []
    if pair.cpu.timings.untimed_epochs:
        cautions.append(caution(pair.cpu.timings))
    for run in pair.trained:
        device, times = run.device.upper(), run.timings
        is_reported = load_warnings(times.load) and times.measured_load in ((), times.load)
        if run.settings and times.step_warnings and not is_reported:
            stages = [f"measure-{run.device}@{run.experiment}"]
            cautions.append(
                f"The machine was busy while the {device}'s steps were measured "
                f"({listed(times.step_warnings)}), so their times are unreliable. To measure them "
                f"again: {measure_again(stages)}."
            )
        if run.cpu_fallbacks:
            fallbacks = [f"{name} ({count} per step)" for name, count in run.cpu_fallbacks.items()]
            names = listed(fallbacks)
            cautions.append(f"The CPU computed some of the {device}'s step: {names}.")
    if any(run.timings.interruptions for run in pair.trained):
        cautions.append("A training was interrupted, so its time is the sum of its parts.")
    if not pair.cpu.is_deterministic:
        cautions.append("With `deterministic: false` the results don't repeat bit for bit.")
    hosts = [run.timings.host_name for run in pair.trained]
    if len(set(hosts)) > 1:
        cautions.append(f"The devices are in different machines: {listed(hosts)}.")
    return tuple(cautions)


def _too_few(number: int, noun: str) -> str:
    return f"{counted(number, noun)}, and it takes {LEAST_VALUES}"
