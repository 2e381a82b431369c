"""The answer for one experiment in a sentence, and what it rests on in a few more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from photofinish.comparing.diagnosis import Diagnosis, diagnose
from photofinish.comparing.elsewhere import Elsewhere, in_a_sentence
from photofinish.comparing.parity import Parity, parity
from photofinish.comparing.payback import payback
from photofinish.comparing.speedups import Speedup, speedups
from photofinish.comparing.table import DeviceResult, NotTrained, Trained
from photofinish.errors import UserError
from photofinish.machine.load import doubts
from photofinish.results import records
from photofinish.wording import listed, ratio, seconds


@dataclass(frozen=True)
class Verdict:
    experiment: str
    answer: str
    """in one sentence: is the GPU worth it?"""
    details: tuple[str, ...]
    """what the answer rests on, a paragraph each"""
    missing: str | None = None
    """why there is nothing to compare with"""
    speedups: tuple[Speedup, ...] = ()
    parity: Parity | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    """of the CPU, then of the GPU"""

    @property
    def text(self) -> str:
        return " ".join([self.answer, *self.details])


def verdict(experiment: str, results: list[DeviceResult], others: Iterable[Elsewhere] = ()) -> Verdict:
    """`others`, which other machines recorded, are told of where there is no GPU here, and decide nothing."""
    cpu, gpu = (next(result for result in results if result.device == device) for device in records.DEVICE_LABELS)
    if isinstance(cpu, NotTrained):
        raise UserError(f"{experiment} was not trained on the CPU, which others are compared with: run `dvc repro`")
    if isinstance(gpu, NotTrained):
        answer = f"{_alone(cpu)}; it was not trained on a GPU, so nothing can be said of one."
        recorded = [in_a_sentence(each) for each in others if each.reference.training.device == "gpu"]
        details = [*recorded, *_why("Why it takes so long", _diagnoses(cpu)), *_cautions(cpu)]
        return Verdict(experiment, answer, tuple(details), missing=gpu.record.reason, diagnoses=_diagnoses(cpu))
    ratios, likeness = speedups(cpu.timings, gpu.timings), parity(cpu, gpu)
    details = [
        _speeds(cpu.timings, gpu.timings, ratios),
        *_why(_question(ratios), _diagnoses(gpu)),
        f"The GPU's start-up is repaid {payback(cpu.timings, gpu.timings).finding}.",
        _model(cpu, gpu, likeness),
        *_cautions(cpu, gpu),
    ]
    diagnoses = _diagnoses(cpu) + _diagnoses(gpu)
    return Verdict(experiment, _answer(ratios, likeness), tuple(details), None, ratios, likeness, diagnoses)


def in_words(speedup: Speedup) -> str:
    """Who is faster, if that can be said."""
    if speedup.no_interval:
        return f"no winner is named without an interval ({speedup.no_interval})"
    if speedup.is_faster is None:
        return "neither is faster, as far as can be told"
    return "the GPU is faster" if speedup.is_faster else "the CPU is faster"


def ratio_and_interval(speedup: Speedup) -> str:
    interval = f" (95 % interval {' to '.join(map(ratio, speedup.interval))})" if speedup.interval else ""
    return f"{ratio(speedup.ratio)} times the CPU's speed{interval}"


def _answer(ratios: tuple[Speedup, Speedup, Speedup], found: Parity) -> str:
    """By the whole job, which is what one waits for; by its epochs where that can't be told."""
    _, epoch, whole = ratios
    model = f"the models are {found.likeness}"
    if whole.is_faster is not None:
        worth = "The GPU is worth it" if whole.is_faster else "The GPU is not worth it here"
        return f"{worth}: it does the whole job at {ratio_and_interval(whole)}, and {model}."
    untold, untold_of_epoch = (each.no_interval or "its interval spans 1" for each in (whole, epoch))
    if epoch.is_faster is not None:
        return (
            f"The GPU goes through an epoch at {ratio_and_interval(epoch)}, and {model}; of the whole job no winner "
            f"is named ({untold})."
        )
    return f"No winner is named, neither of an epoch ({untold_of_epoch}) nor of the whole job ({untold}); {model}."


def _alone(cpu: Trained) -> str:
    timings = cpu.timings
    return (
        f"{timings.device_name} trained it to {cpu.scores.test_accuracy:.2%} test accuracy in "
        f"{seconds(timings.total_seconds)}, of which {seconds(timings.startup_seconds)} were start-up"
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
    if epoch.no_interval:
        return "What the GPU's epoch waits for"
    return "Why the GPU is not faster still" if epoch.is_faster else "Why the GPU is no faster"


def _why(question: str, diagnoses: tuple[Diagnosis, ...]) -> list[str]:
    """Of an epoch, which is what devices are compared by; then of the job, if it is mostly start-up."""
    told = [f"{question}: {found.sentence} ({found.cause}). {found.advice}." for found in diagnoses[-1:]]
    told += [f"And {found.sentence} ({found.cause})." for found in diagnoses[:-1]]
    return [" ".join(told)] if told else []


def _model(cpu: Trained, gpu: Trained, found: Parity) -> str:
    parting = f": they first part at the {found.parts_at.name} ({found.parts_at.finding})" if found.parts_at else ""
    return (
        f"The models are {found.likeness}{parting}. Test accuracy is {gpu.scores.test_accuracy:.2%} on the GPU, "
        f"{cpu.scores.test_accuracy:.2%} on the CPU."
    )


def _cautions(*results: Trained) -> list[str]:
    """What makes the figures doubtful, and what they are made of where it isn't what one would think."""
    told = [
        f"Take the {result.device.upper()}'s times with care: {listed(found)}."
        for result in results
        if (found := doubts(result.timings.load))
    ]
    if any(result.timings.resumed_at_epochs for result in results):
        told.append("A training was interrupted and resumed: its end-to-end time is the sum of its parts.")
    if len({result.timings.host_name for result in results}) > 1:
        told.append(f"They ran on different machines: {listed([result.timings.host_name for result in results])}.")
    return told
