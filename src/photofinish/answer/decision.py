"""Decisions: one answer for each experiment or script, and the one thing to do.

Where a GPU trained the job, the answer is about that GPU, else about renting one, unless renting
does not pay and a bound says No for any GPU. word.py chooses the word. docs/verdict.md explains
the rules to users.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from photofinish.answer.candidates import Answer, Runs, Worth
from photofinish.answer.comparison import Comparison
from photofinish.answer.diagnosis import Remedy
from photofinish.answer.times import MACHINE, UncertainTime, error_of_mean
from photofinish.answer.word import bounded, decide_rented, not_estimated, of_gpu_here, of_rented
from photofinish.config.compare import Comparing
from photofinish.results.job import Job
from photofinish.results.trained import DeviceLabel

LEAST_GAIN = 1.1
"""Smallest speed-up of a job, by hand, to recommend a change: two quiet runs differ as much."""
_LONGER = 3.0
"""Factor on the measured time that should settle an answer, by hand: its error falls as a root.

If it were less, the longer measurement would ask for a third one.
"""
LONG_BEFORE = 0.5
"""Largest share of all epochs, by hand, that is early. More would end what still learns."""


@dataclass(frozen=True)
class FewerEpochs:
    epochs: int
    accuracy: float
    """Validation accuracy in the last of these epochs."""
    is_target: bool
    """True if the accuracy reached the target, False if it is the best of all epochs."""
    gain: float
    """Speed-up of the whole job."""


@dataclass(frozen=True)
class Action:
    kind: Literal[
        "use the GPU", "use the CPU", "use either", "rent", "rent for some", "change a setting",
        "fewer epochs", "measure again", "measure longer", "try a GPU", "stay here",
        "compare in fp32",
    ]  # fmt: skip
    accelerator: str | None = None
    """Accelerator to rent, by its name for `photofinish rent`."""
    runs: Runs | None = None
    remedy: Remedy | None = None
    fewer: FewerEpochs | None = None
    seconds: float = 0.0
    """Time of training to measure in all."""
    devices: tuple[DeviceLabel, ...] = ()
    """Devices whose times should be measured again, or whose setting should be changed."""


@dataclass(frozen=True)
class Decision:
    worth: Worth
    action: Action

    @property
    def answer(self) -> Answer:
        return self.worth.answer


def decide_all(pairs: Sequence[Comparison], sampled_seconds: float = 0.0) -> list[Decision]:
    """Decide for each experiment. Experiments with equal data set and network are one sweep.

    Those without an estimate are a separate sweep, because a sweep needs an estimate for each.
    `sampled_seconds` is the maximum time of training that a sample had.
    """
    sweeps: dict[tuple[object, ...], list[Comparison]] = defaultdict(list)
    for pair in pairs:
        if pair.gpu is None:
            sweeps[_sweep(pair)].append(pair)
    rented = {key: decide_rented(sweep) for key, sweep in sweeps.items()}
    decisions = []
    for pair in pairs:
        worth = of_gpu_here(pair) or _without_gpu(pair, rented.get(_sweep(pair)))
        if worth.is_yes and pair.slow_kernels:  # a fair CPU computes in fp32
            worth = replace(worth, answer="Can't tell")
        decisions.append(Decision(worth, _action(pair, worth, sampled_seconds)))
    return decisions


def _sweep(pair: Comparison) -> tuple[object, ...]:
    settings = pair.cpu.settings
    # One machine is rented for all experiments with equal data set and network.
    shared = (settings.dataset, settings.network) if settings else (pair.name,)
    return shared, bool(pair.candidates)


def decide(pair: Comparison, sampled_seconds: float = 0.0) -> Decision:
    """Decide for a single experiment, without its sweep."""
    (decision,) = decide_all([pair], sampled_seconds)
    return decision


def _without_gpu(pair: Comparison, rented: Worth | None) -> Worth:
    """Return the answer about renting, unless a bound on all GPUs says No."""
    if rented and (rented.is_yes or (rented.gpu and rented.answer != "No")):
        return rented
    bound = bounded(pair)
    if bound and rented and rented.answer != "No":
        # The fastest GPU within the bound may save the minutes that are asked.
        most_seconds = rented.time_here.busy.interval[1] * (1 - 1 / pair.bounds.job.at_most)
        if 0 < rented.terms.least_seconds <= most_seconds:
            return rented
    return bound or rented or not_estimated(pair)


def _action(pair: Comparison, worth: Worth, sampled_seconds: float) -> Action:
    """Return the first action that fits, a change of settings before a GPU that gains less."""
    is_here, is_open = worth.is_here, worth.answer == "Can't tell"
    name = worth.gpu_name if worth.about == "renting" else None
    busy = tuple(run.device for run in pair.runs if run.busy)
    has_failed = any(run.script and run.script.ended for run in pair.runs)
    if is_open and (busy or (has_failed and sampled_seconds)):
        return Action("measure again", devices=busy)
    if is_open and pair.slow_kernels:
        return Action("compare in fp32")
    if change := _change(pair, worth):
        return change
    if is_here and worth.answer == "No":
        return Action("use the CPU")
    if worth.is_yes:
        return Action("rent", name) if name else Action("use the GPU")
    if worth.answer == "Close call":
        return Action("rent for some", name, worth.runs) if name else Action("use either")
    if is_open:
        cpu = pair.cpu
        # More epochs narrow their own error only.
        if cpu.untimed_epochs and error_of_mean(cpu.pass_seconds) > MACHINE:
            wanted_seconds = _LONGER * (cpu.total_seconds - cpu.startup_seconds)
            if wanted_seconds > sampled_seconds:  # else the sample ended by itself
                return Action("measure longer", seconds=wanted_seconds)
        if is_here:
            return Action("use either")
        if worth.basis != "recorded" and _would_decide(worth):
            return Action("try a GPU", name)
    return Action("stay here", name, worth.runs if worth.answer == "No" else None)


def _would_decide(worth: Worth) -> bool:
    """Return True if a GPU that seems to pay would, or would not, once its time is known."""
    if worth.gpu is None:
        return True
    known = UncertainTime(worth.gpu.time.seconds)
    is_open = of_rented(worth.cpu_time, known, worth.terms) == "Can't tell"
    return worth.there_seconds < worth.cpu_time.seconds and not is_open


@dataclass(frozen=True)
class _Change:
    action: Action
    gain: float
    """Speed-up of the job on its device."""
    gain_over_cpu: float
    """Speed-up over the CPU as it is."""


def _change(pair: Comparison, worth: Worth) -> Action | None:
    """Return fewer epochs or a change of settings that gains more than the GPU, or None.

    A change on the GPU here counts if the job then takes it less than the CPU.
    """
    changes = []
    if fewer := fewer_epochs(pair.cpu, pair.settings):
        changes.append(_Change(Action("fewer epochs", fewer=fewer), fewer.gain, fewer.gain))
    of_gpu = [pair.gpu] if pair.gpu and worth.is_here else []
    for run in (pair.cpu, *of_gpu):
        remedies = chain.from_iterable(cause.remedies for cause in pair.causes[run.device])
        same_model = (remedy for remedy in remedies if remedy.learns != "something else")
        if remedy := next(same_model, None):
            gain = remedy.predicted.middle
            over_cpu = gain if run is pair.cpu else gain * (worth.speedup or 0.0)
            action = Action("change a setting", remedy=remedy, devices=(run.device,))
            changes.append(_Change(action, gain, over_cpu))
    by_gpu = worth.cpu_time.seconds / worth.there_seconds if worth.is_yes else 1.0
    pays = [
        change
        for change in changes
        if min(change.gain, change.gain_over_cpu) >= LEAST_GAIN and change.gain > by_gpu
    ]
    return max(pays, key=lambda change: change.gain_over_cpu).action if pays else None


def fewer_epochs(run: Job, settings: Comparing) -> FewerEpochs | None:
    """Return the epoch that reached the target or the best accuracy long before the last epoch.

    The best accuracy of a training that a time limit ended is not known, nor what fewer epochs
    reach if the schedule depends on their number.
    """
    accuracies = [epoch.validation_accuracy for epoch in run.history]
    chosen = run.settings
    if not chosen or not accuracies or None in accuracies:
        return None
    if chosen.stops_early or chosen.depends_on_epochs:
        return None
    known = [accuracy or 0.0 for accuracy in accuracies]
    wanted = [settings.target_accuracy] if settings.target_accuracy is not None else []
    learns = max(known) > known[0]
    wanted += [max(known)] if learns and not run.untimed_epochs else []
    for epoch, accuracy in enumerate(known, 1):
        if any(accuracy >= least for least in wanted):
            share = epoch / run.epochs
            if share > LONG_BEFORE:
                return None
            left_seconds = run.whole_seconds - (1 - share) * run.passes_seconds
            is_target = bool(settings.target_accuracy and accuracy >= settings.target_accuracy)
            return FewerEpochs(epoch, accuracy, is_target, run.whole_seconds / left_seconds)
    return None


def gpu_of_yours(pair: Comparison, worth: Worth) -> tuple[float, tuple[float, float]] | None:
    """Return the job's speed-up by the answer's GPU if it needed no rent, with its interval.

    Return None for a bound, for a sweep, and where the GPU would hardly be faster.
    """
    if worth.about != "renting" or not worth.gpu or worth.jobs > 1 or not worth.interval:
        return None
    limit = pair.bounds.job.at_most  # by this machine's loading and start-up
    low, high = (min(end, limit) for end in worth.interval)
    speedup = min(worth.cpu_time.seconds / worth.gpu.time.seconds, limit)
    return (speedup, (low, high)) if speedup >= LEAST_GAIN else None
