"""The answer for one experiment in a few sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from photofinish.comparison.diagnosis import Diagnosis, diagnose
from photofinish.comparison.parity import Parity, parity
from photofinish.comparison.payback import payback
from photofinish.comparison.references import Elsewhere, in_a_sentence
from photofinish.comparison.speedups import Speedup, speedups
from photofinish.comparison.table import DeviceResult, NotTrained, Trained
from photofinish.errors import UserError
from photofinish.hardware.load import doubts
from photofinish.results import records
from photofinish.wording import listed, seconds


@dataclass(frozen=True)
class Verdict:
    experiment: str
    sentence: str
    missing: str | None = None
    """why there is nothing to compare with"""
    speedups: tuple[Speedup, ...] = ()
    parity: Parity | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    """of the CPU, then of the GPU"""


def verdict(experiment: str, results: list[DeviceResult], others: Iterable[Elsewhere] = ()) -> Verdict:
    """`others`, which other machines recorded, are told of where there is no GPU here, and decide nothing."""
    cpu, gpu = (next(result for result in results if result.device == device) for device in records.DEVICE_LABELS)
    if isinstance(cpu, NotTrained):
        raise UserError(f"{experiment} was not trained on the CPU, which others are compared with: run `dvc repro`")
    if isinstance(gpu, NotTrained):
        why = _why("Why it takes so long", _diagnoses(cpu))
        sentence = f"{_alone(cpu)} It was not trained on a GPU, so nothing can be said of one.{why}{_cautions(cpu)}"
        sentence += "".join(f" {in_a_sentence(each)}" for each in others if each.reference.training.device == "gpu")
        return Verdict(experiment, sentence, missing=gpu.record.reason, diagnoses=_diagnoses(cpu))
    ratios, likeness = speedups(cpu.timings, gpu.timings), parity(cpu, gpu)
    why = _why(_question(ratios), _diagnoses(gpu))
    repaid = f"The GPU's start-up is repaid {payback(cpu.timings, gpu.timings).finding}."
    findings = f"{_speeds(cpu.timings, gpu.timings, ratios)}{why} {repaid} {_model(cpu, gpu, likeness)}"
    sentence = f"{findings}{_cautions(cpu, gpu)}"
    return Verdict(experiment, sentence, None, ratios, likeness, _diagnoses(cpu) + _diagnoses(gpu))


def in_words(speedup: Speedup) -> str:
    """Who is faster, if that can be said."""
    if speedup.no_interval:
        return f"no winner is named without an interval ({speedup.no_interval})"
    if speedup.is_faster is None:
        return "neither is faster, as far as can be told"
    return "the GPU is faster" if speedup.is_faster else "the CPU is faster"


def ratio_and_interval(speedup: Speedup) -> str:
    interval = f" (95 % interval {speedup.interval[0]:.2f} to {speedup.interval[1]:.2f})" if speedup.interval else ""
    return f"{speedup.ratio:.2f} times the CPU's speed{interval}"


def _alone(cpu: Trained) -> str:
    timings = cpu.timings
    return (
        f"{timings.device_name} trained it to {cpu.scores.test_accuracy:.2%} test accuracy in "
        f"{seconds(timings.total_seconds)}, of which {seconds(timings.startup_seconds)} were start-up."
    )


def _speeds(cpu: records.Timings, gpu: records.Timings, ratios: tuple[Speedup, Speedup, Speedup]) -> str:
    step, epoch, whole = ratios
    return (
        f"{gpu.device_name} takes {seconds(epoch.device_seconds)} for an epoch, {cpu.device_name} "
        f"{seconds(epoch.cpu_seconds)}: {ratio_and_interval(epoch)}; {in_words(epoch)}. "
        f"A step whose data is at hand: {ratio_and_interval(step)}; {in_words(step)}. "
        f"End to end, start-up included ({seconds(whole.device_seconds)} against {seconds(whole.cpu_seconds)}): "
        f"{ratio_and_interval(whole)}; {in_words(whole)}."
    )


def _diagnoses(result: Trained) -> tuple[Diagnosis, ...]:
    return diagnose(result.experiment, result.record, result.timings)


def _question(ratios: tuple[Speedup, Speedup, Speedup]) -> str:
    _, epoch, _ = ratios
    return "Why the GPU is not faster still" if epoch.is_faster else "Why the GPU is no faster"


def _why(question: str, diagnoses: tuple[Diagnosis, ...]) -> str:
    """Of an epoch, which is what devices are compared by; then of the job, if it is mostly start-up."""
    told = [f" {question}: {found.sentence} ({found.cause}). {found.advice}." for found in diagnoses[-1:]]
    told += [f" And {found.sentence} ({found.cause})." for found in diagnoses[:-1]]
    return "".join(told)


def _model(cpu: Trained, gpu: Trained, found: Parity) -> str:
    parting = f": they first part at the {found.parts_at.name} ({found.parts_at.finding})" if found.parts_at else ""
    return (
        f"The models are {found.likeness}{parting}. Test accuracy is {gpu.scores.test_accuracy:.2%} on the GPU, "
        f"{cpu.scores.test_accuracy:.2%} on the CPU."
    )


def _cautions(*results: Trained) -> str:
    """What makes the figures doubtful, and what they are made of where it isn't what one would think."""
    told = [
        f" Take the {result.device.upper()}'s times with care: {listed(found)}."
        for result in results
        if (found := doubts(result.timings.load))
    ]
    if any(result.timings.resumed_at_epochs for result in results):
        told.append(" A training was interrupted and resumed: its end-to-end time is the sum of its parts.")
    if len({result.timings.host_name for result in results}) > 1:
        told.append(f" They ran on different machines: {listed([result.timings.host_name for result in results])}.")
    return "".join(told)
