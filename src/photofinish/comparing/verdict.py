"""The answer for one experiment in a sentence, and what it rests on in a few more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from photofinish.comparing.device_results import NotTrained
from photofinish.comparing.diagnosis import Diagnosis
from photofinish.comparing.pairs import Compared, Comparison, ReferenceComparison
from photofinish.comparing.parity import chance_in_words
from photofinish.comparing.speedups import Speedup
from photofinish.machine.load import load_warnings
from photofinish.wording import listed, ratio, seconds, utc_day

_A_BOUND = (
    "What is told of a GPU is a bound, no estimate: none beats it in this machine, and how near one comes isn't known. "
    "It rests on what was measured here, less what a run may be off (a fifth, and half of a start-up)."
)


@dataclass(frozen=True)
class Verdict:
    """Answer for one experiment."""

    experiment: str
    short: str
    """in a word or two, by which experiments can be counted"""
    answer: str
    """in one sentence: is the GPU worth it?"""
    details: tuple[str, ...]
    """what the answer rests on, a paragraph each"""
    cautions: tuple[str, ...]
    """what makes it doubtful, likewise"""
    missing: str | None = None
    """why there is nothing to compare with"""

    @property
    def text(self) -> str:
        """Answer, details and cautions."""
        return " ".join([self.answer, *self.details, *self.cautions])


def verdict(pair: Comparison) -> Verdict:
    """Records of other machines are told of where there is no GPU here, and decide nothing."""
    if compared := pair.compared:
        details = (*_details(compared, pair.diagnoses["gpu"]), *_chance(pair))
        return Verdict(pair.experiment, *_answer(compared), details, _cautions(pair))
    cpu, timings = pair.cpu, pair.cpu.timings
    here = (
        f"{timings.device_name} trained it to {cpu.scores.in_words} in "
        f"{seconds(timings.total_seconds)}, of which {seconds(timings.startup_seconds)} were start-up; it was not "
        "trained on a GPU"
    )
    if bound := pair.ceiling.sentence:
        answer, measured = bound, [f"{here}. {_A_BOUND}"]
    else:
        known = "only what data sheets tell is known of one" if pair.renting.offers else "nothing can be said of one"
        so = f"and no bound is told ({pair.ceiling.untold}): {known}" if pair.ceiling.untold else f"so {known}"
        answer, measured = f"{here}, {so}.", []
    recorded = [in_a_sentence(each) for each in pair.elsewhere if each.reference.training.device == "gpu"]
    to_rent = filter(None, [pair.renting.sentence])
    details = (*measured, *to_rent, *_chance(pair), *recorded, *_why("Why it takes so long", pair.diagnoses["cpu"]))
    missing = pair.gpu.record.reason if isinstance(pair.gpu, NotTrained) else None
    return Verdict(pair.experiment, "not there", answer, details, _cautions(pair), missing)


def in_words(speedup: Speedup) -> str:
    """Who is faster, if that can be said."""
    if speedup.no_interval:
        return f"no winner is named without an interval ({speedup.no_interval})"
    if speedup.is_faster is None:
        return "neither is faster, as far as can be told"
    return "the GPU is faster" if speedup.is_faster else "the CPU is faster"


def in_a_sentence(found: ReferenceComparison) -> str:
    """Say what another machine recorded, beside this one's CPU."""
    recorded_on = utc_day(found.reference.timings.started_at_unix_seconds)
    return (
        f"On {found.hardware} (recorded elsewhere on {recorded_on}, not measured here) the same training took "
        f"{seconds(found.against_cpu.device_seconds)} for an epoch: {ratio(found.against_cpu.ratio)} times this CPU's "
        "speed."
    )


def _answer(compared: Compared) -> tuple[str, str]:
    """In a word or two, and in a sentence.

    By the whole job, which is what one waits for; by its epochs where that can't be told.
    """
    epoch, whole = compared.speedups["epoch"], compared.speedups["end_to_end"]
    model = f"the models are {compared.parity.likeness}"
    if whole.is_faster is not None:
        worth = "worth it" if whole.is_faster else "not worth it"
        here = "" if whole.is_faster else " here"
        return worth, f"The GPU is {worth}{here}: it does the whole job at {_ratio_and_interval(whole)}, and {model}."
    untold, untold_of_epoch = (each.no_interval or "its interval spans 1" for each in (whole, epoch))
    if epoch.is_faster is not None:
        return f"{'faster' if epoch.is_faster else 'slower'} epochs", (
            f"The GPU goes through an epoch at {_ratio_and_interval(epoch)}, and {model}; of the whole job no winner "
            f"is named ({untold})."
        )
    neither = f"No winner is named, neither of an epoch ({untold_of_epoch}) nor of the whole job ({untold}); {model}."
    return "no winner", neither


def _details(compared: Compared, diagnoses: Sequence[Diagnosis]) -> list[str]:
    cpu, gpu, likeness = compared.cpu, compared.gpu, compared.parity
    step, epoch, whole = compared.speedups.values()
    if epoch.no_interval:
        question = "What the GPU's epoch waits for"
    else:
        question = "Why the GPU is not faster still" if epoch.is_faster else "Why the GPU is no faster"
    of_step, of_epoch, of_whole = (f"{_ratio_and_interval(each)}; {in_words(each)}" for each in (step, epoch, whole))
    first_divergence, (figure, cpu_size) = likeness.first_divergence, cpu.scores.figure
    parting = (
        f": they first part at the {first_divergence.name} ({first_divergence.finding})" if first_divergence else ""
    )
    return [
        f"{gpu.timings.device_name} takes {seconds(epoch.device_seconds)} for an epoch, {cpu.timings.device_name} "
        f"{seconds(epoch.cpu_seconds)}: {of_epoch}. A step whose data is at hand: {of_step}. End to end, start-up "
        f"included ({seconds(whole.device_seconds)} against {seconds(whole.cpu_seconds)}): {of_whole}.",
        *_why(question, diagnoses),
        f"The GPU's start-up is repaid {compared.payback.finding}.",
        f"The models are {likeness.likeness}{parting}. {figure.capitalize()} is {gpu.scores.figure[1]} on the GPU, "
        f"{cpu_size} on the CPU.",
    ]


def _ratio_and_interval(speedup: Speedup) -> str:
    interval = f" (95 % interval {' to '.join(map(ratio, speedup.interval))})" if speedup.interval else ""
    return f"{ratio(speedup.ratio)} times the CPU's speed{interval}"


def _why(question: str, diagnoses: Sequence[Diagnosis]) -> list[str]:
    """Say why an epoch takes its time, then why the job does."""
    told = [f"{question}: {found.finding}. {found.advice}." for found in diagnoses[-1:]]
    told += [f"And {found.finding}." for found in diagnoses[:-1]]
    return [" ".join(told)] if told else []


def _chance(pair: Comparison) -> list[str]:
    """Say how much seeds alone change, if there are several."""
    return [chance_in_words(pair.seeds["cpu"], pair.seeds.get("gpu"))] if "cpu" in pair.seeds else []


def _cautions(pair: Comparison) -> tuple[str, ...]:
    """List what makes the figures doubtful, or other than they seem."""
    told = []
    for result in pair.trained:
        device, load = result.device.upper(), result.timings.load
        if found := load_warnings(load):
            stage = f"train-{result.device}@{result.experiment.rpartition('.')[2]}"  # before the dot is its sweep
            anew = f"on a quiet machine, `dvc repro --force --single-item {stage}` takes them anew"
            told.append(f"Take the {device}'s times with care: {listed(found)}; {anew}.")
        elif found := load_warnings(load[-1:]):
            told.append(f"Take what was measured after the {device}'s training with care: {listed(found)}.")
    for result in pair.trained:
        if fallbacks := result.first_step.cpu_fallbacks:
            named = listed([f"{name} ({times} a step)" for name, times in fallbacks.items()])
            told.append(f"Not all of a step ran on the {result.device.upper()}: the CPU computed {named}.")
    if any(result.timings.resumed_at_epochs for result in pair.trained):
        told.append("A training was interrupted and resumed: its end-to-end time is the sum of its parts.")
    if not pair.cpu.record.experiment.deterministic:
        told.append("deterministic is false: the same training would come to other bits the next time.")
    hosts = [result.timings.host_name for result in pair.trained]
    if len(set(hosts)) > 1:
        told.append(f"They ran on different machines: {listed(hosts)}.")
    return tuple(told)
