"""Why a training takes as long as it does: of a job, and of an epoch in it, one cause with its evidence and a remedy.

Of an epoch, two things are held against each other: what the input path takes for a batch with nothing else to do,
and what a step takes with its batch at hand. The longer one is what the epoch waits for, whether or not they overlap.
A step then is mostly what it costs whatever its batch, or mostly its images. No cause is told where the figures don't
carry one: too few steps, a busy machine, or parts that don't add up to the epoch.

A remedy is one line of params.yaml, with the gain that it should bring, between two figures. It was tried for some
steps after the training; where it wasn't, the gain is the most that it can be. Less than LEAST_GAIN is not advised.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import yaml

from photofinish.comparing.device_results import Recorded, StepCosts, spread
from photofinish.machine.fingerprint import CpuTarget
from photofinish.machine.host import allowed_cores
from photofinish.machine.load import load_warnings
from photofinish.wording import at_most, listed, seconds

Cause = Literal[
    "input-bound", "copy-bound", "launch-bound", "compute-bound", "start-up-bound", "CPU held back", "not known"
]
MOST_STARTUP_SHARE = 0.5
"""of the job: above, making epochs faster gains less than doing without start-up"""
MOST_FIXED_SHARE = 0.5
"""of a step: above, it isn't the arithmetic of its images that takes the time"""
MOST_UNEXPLAINED_SHARE = 0.25
"""of an epoch: where its steps, taken apart, make up more or less of it than that, they tell nothing of it"""
LEAST_STEPS = 3
"""that must have been timed to tell anything by them"""
LEAST_GAIN = 1.1
"""in the middle of what is predicted"""
RUN_MARGIN = 1.2
"""what a prediction leaves at both ends, as a factor, for one training being faster or slower than the next: 47 of 52
held in two rounds of 48 tries each on two quiet cores; with 1.1, 9 of 12 did"""
_NAMED_SHARE = 0.005
"""of a step: parts below are not worth a word"""
_LEARNS_OTHERWISE = "it changes what is learned: look at the accuracy too"
_DOES_NOT_FIT = "the images don't fit into the device's memory"


class Gain(NamedTuple):
    """Predicted speed-up, between two figures. The low one is 1 if only the high one is known."""

    low: float
    high: float

    @classmethod
    def of(cls, costs: StepCosts, low_seconds: float, high_seconds: float) -> Gain:
        """Return the gain if steps with their data take between so long and so long."""
        fast_seconds, slow_seconds = costs.epoch_share_spread
        return cls(fast_seconds / high_seconds / RUN_MARGIN, slow_seconds / low_seconds * RUN_MARGIN)

    @classmethod
    def at_most(cls, costs: StepCosts, shortest_seconds: float) -> Gain:
        """Return the gain if steps can't be shorter than that."""
        return cls(1.0, max(1.0, cls.of(costs, shortest_seconds, shortest_seconds).high))

    @property
    def middle(self) -> float:
        """Geometric mean of both ends."""
        return math.sqrt(self.low * self.high)

    def __str__(self) -> str:
        if self.low == 1:
            return f"at most {at_most(self.high)} times as fast"
        return f"{gain_text(self.low)} to {gain_text(self.high)} times as fast"


def gain_text(gain: float) -> str:
    """`2.50`, `12`."""
    return f"{gain:.2f}" if gain < 9.995 else f"{gain:.0f}"


@dataclass(frozen=True)
class Remedy:
    """A line of params.yaml to try."""

    key: str
    """in params.yaml, with dots between"""
    value: Any
    predicted: Gain | None
    """of an epoch; None where nothing that was measured tells"""
    why: str

    @property
    def line(self) -> str:
        """Line of params.yaml, with dots for its levels."""
        return f"{self.key}: {self._written}"

    @property
    def command(self) -> str:
        """Command that tries it in a copy of the project, beside the results on disk."""
        return f"dvc exp run --temp -S '++{self.key}={self._written}'"

    @property
    def _written(self) -> str:
        written = yaml.safe_dump(self.value, default_flow_style=True, sort_keys=False, width=math.inf)
        return written.removesuffix("...\n").strip()

    @property
    def prediction(self) -> str:
        """The gain, in words."""
        return f"{self.predicted} (an epoch)" if self.predicted else "not predicted"


@dataclass(frozen=True)
class Diagnosis:
    """One cause, and what can be done against it."""

    of: Literal["the job", "an epoch"]
    cause: Cause
    sentence: str
    evidence: str
    remedy: Remedy | None
    no_remedy: str
    """why there is none"""

    @property
    def finding(self) -> str:
        """The sentence, with the cause's name where there is one."""
        return self.sentence if self.cause == "not known" else f"{self.sentence} ({self.cause})"

    @property
    def advice(self) -> str:
        """The remedy in a sentence, or why there is none."""
        if self.cause == "not known":
            return f"No remedy can be told: {self.no_remedy}"
        if self.remedy is None:
            return f"Nothing in params.yaml helps: {self.no_remedy}"
        return f"To try: `{self.remedy.line}`, {self.remedy.prediction}: `{self.remedy.command}`"


def diagnose(run: Recorded) -> tuple[Diagnosis, ...]:
    """Return the diagnosis of the job if it is mostly start-up, then that of an epoch."""
    timings, costs, found = run.timings, run.costs, []
    share = timings.startup_seconds / timings.total_seconds
    if share > MOST_STARTUP_SHARE:
        sentence = f"start-up (imports, device, data, warm-up) is {share:.0%} of the whole job"
        evidence = (
            f"{seconds(timings.startup_seconds)} of {seconds(timings.total_seconds)}; an epoch takes "
            f"{seconds(timings.median_epoch_seconds)}, and there are {run.record.experiment.epochs}"
        )
        once = "it is paid once, however many epochs follow: a longer training feels it less"
        found.append(Diagnosis("the job", "start-up-bound", sentence, evidence, None, once))
    why_not = why_nothing_is_told(run)
    if costs and not why_not:
        cause, sentence, against = _cause(run, costs)
        if isinstance(against, Remedy) and against.predicted and against.predicted.middle < LEAST_GAIN:
            against = f"by what was measured, `{against.line}` would be {against.predicted}: no gain"
        remedy, why_none = (against, "") if isinstance(against, Remedy) else (None, against)
        found.append(Diagnosis("an epoch", cause, sentence, _evidence(run, costs), remedy, why_none))
    elif why_not:
        sentence = "why an epoch takes as long as it does is not known"
        found.append(Diagnosis("an epoch", "not known", sentence, why_not, None, why_not))
    return tuple(found)


def why_nothing_is_told(run: Recorded) -> str | None:
    """Return why the figures carry no cause, or None if they do."""
    timings, costs = run.timings, run.costs
    if costs is None:
        return timings.not_attributed
    if load_warnings(timings.load) or load_warnings(timings.load[-1:]):  # by how much is a caution of the verdict
        return "the machine was busy"
    steps_timed = min(len(costs.attribution.parts.forward_seconds), len(timings.steady_state.sample_seconds))
    if steps_timed < min(LEAST_STEPS, costs.steps_per_epoch):
        return f"a step is so slow that {steps_timed} could be taken apart, and {LEAST_STEPS} are needed"
    epoch, parts = seconds(timings.median_epoch_seconds), sum(costs.parts_seconds.values())
    explained = parts / costs.epoch_share_seconds
    # An accelerator that has to be waited for after each part may take longer than it does in an epoch.
    too_much = run.device == "cpu" and explained > 1 + MOST_UNEXPLAINED_SHARE
    if explained < 1 - MOST_UNEXPLAINED_SHARE or too_much:
        steps = seconds(parts * costs.steps_per_epoch)
        return f"its steps, taken apart after the training, make up {steps}, and an epoch took {epoch}"
    apart_seconds = parts - costs.parts_seconds["waiting for data"] - costs.copying_seconds
    off = costs.step_alone_seconds / apart_seconds - 1
    # After its batch was loaded, a step on the CPU has cold caches and threads that went to sleep.
    may_be_quicker = run.device != "cpu" or run.record.experiment.input.name == "loader"
    if off > MOST_UNEXPLAINED_SHARE or (off < -MOST_UNEXPLAINED_SHARE and not may_be_quicker):
        one, other = seconds(apart_seconds), seconds(costs.step_alone_seconds)
        return f"a step, taken apart after the training, took {one}, and over and over on one batch {other}"
    return None


def _cause(run: Recorded, costs: StepCosts) -> tuple[Cause, str, Remedy | str]:
    """Return what an epoch waits for, a sentence on it, and a remedy or why there is none."""
    host, step = run.timings.host, seconds(costs.step_alone_seconds)
    cores = allowed_cores(host.cpu) if host.cpu else 1
    if costs.input_seconds > costs.step_alone_seconds:
        is_copy = costs.copying_seconds > costs.batch_alone_seconds
        if is_copy:
            what, taken_seconds = "copying to the device", costs.copying_seconds
        else:
            what = "the loader" if run.record.experiment.input.name == "loader" else "gathering the batches"
            taken_seconds = costs.input_seconds
        share = min(1.0, taken_seconds / costs.epoch_share_seconds)
        batch = seconds(max(costs.copying_seconds, costs.batch_alone_seconds))
        sentence = f"{what} takes {share:.0%} of an epoch's time: {batch} for a batch, and a step on it takes {step}"
        return "copy-bound" if is_copy else "input-bound", sentence, _against_input(run, costs, cores, is_copy)
    if costs.fixed_seconds > MOST_FIXED_SHARE * costs.step_alone_seconds:
        sentence = (
            f"most of a step is not its images' arithmetic: {seconds(costs.fixed_seconds)} of {step} it would take "
            f"with none, for starting each operation and updating {run.record.parameter_count:,} weights"
        )
        return "launch-bound", sentence, _against_launching(run, costs)
    sentence = f"the arithmetic of its images is {costs.images_seconds / costs.step_alone_seconds:.0%} of a step"
    if isinstance(host, CpuTarget) and host.threads != cores:
        count = "one thread computes" if host.threads == 1 else f"{host.threads} threads compute"
        why = f"{count} where {cores} cores may be used"
        return "CPU held back", f"{sentence}, and {why}", _against_thread_count(host, costs, cores)
    if isinstance(host, CpuTarget) and cores < host.cpu.usable_cores:
        of_cores = f"{host.cpu.cgroup_cores_limit:g} of {host.cpu.usable_cores} cores"
        told = f"{sentence}, and a limit leaves the CPU {of_cores}"
        return "CPU held back", told, f"the container may use {of_cores}; raise its limit"
    return "compute-bound", sentence, _against_computing(run, costs)


def _evidence(run: Recorded, costs: StepCosts) -> str:
    parts = listed([f"{part} {share:.0%}" for part, share in costs.shares.items() if share >= _NAMED_SHARE])
    taken, tried, fixed = run.timings.steps_taken, costs.attribution.other_batch_images, ""
    one_by_one = " handed out by itself, as none was in the training" if taken and taken.kind == "graph" else ""
    if tried != run.record.experiment.batch_size and costs.issuing_is_hidden:
        issuing = seconds(min(costs.attribution.launch_seconds))
        fixed = f", which the host hands out in {issuing} and so is ahead of the device"
    elif tried != run.record.experiment.batch_size:
        fixed = f", of which {seconds(costs.fixed_seconds)} whatever its batch (tried with {tried} images)"
    bound = "" if run.device == "cpu" else "at most "
    return (
        f"of a step{one_by_one}: {parts}; the device is busy {bound}{costs.busy_share:.0%} "
        f"of an epoch; a batch alone takes {seconds(costs.input_seconds)}, a step alone "
        f"{seconds(costs.step_alone_seconds)}{fixed}"
    )


def _against_input(run: Recorded, costs: StepCosts, cores: int, is_copy: bool) -> Remedy | str:
    """Images that lie on the device; where they don't fit, copies that aren't waited for, or more workers."""
    settings, key = run.record.experiment.input, f"experiments.{run.experiment}.input"
    if settings.name == "resident":
        lie_there = "the images lie on the device already"
        return lie_there if is_copy else f"{lie_there}; what is left is to gather and augment them"
    if tried := costs.attribution.resident:
        why = "tried on some steps: the images lie on the device, normalised once; the same bits are learned"
        return Remedy(key, "resident", Gain.of(costs, *spread(tried.step_seconds)), why)
    value = settings.model_dump(exclude_defaults=True)
    if is_copy:
        if settings.pin_memory and settings.non_blocking:
            return f"{_DOES_NOT_FIT}, and copies already don't wait"
        value |= {"pin_memory": True, "non_blocking": True}
        at_best = "a copy goes on behind the step before it"
        shortest_seconds = max(costs.copying_seconds, costs.step_alone_seconds)  # to gather a batch takes less
    else:
        if cores <= settings.workers:
            return f"{_DOES_NOT_FIT}, and every core has its worker already"
        value |= {"workers": cores}
        at_best = "workers share the loading evenly"
        workers_seconds = costs.batch_alone_seconds * max(1, settings.workers)
        shortest_seconds = max(workers_seconds / cores, costs.copying_seconds + costs.step_alone_seconds)
    return Remedy(key, value, Gain.at_most(costs, shortest_seconds), f"{_DOES_NOT_FIT}; at best, {at_best}")


def _against_launching(run: Recorded, costs: StepCosts) -> Remedy | str:
    """The larger batch that was tried. What data costs is taken to cost as much an epoch, or as much a step."""
    larger, tried_seconds = costs.attribution.other_batch_images, costs.attribution.other_batch.step_seconds
    if larger <= run.record.experiment.batch_size:
        few = "a larger batch leaves an epoch too few steps, or the device too little memory"
        return f"the job is small: {few}, and a faster device would not help"
    steps = math.ceil(run.timings.training_image_count / larger) / costs.steps_per_epoch
    low_seconds, high_seconds = (steps * each for each in spread(tried_seconds))
    data_seconds = costs.beside_step_seconds
    gain = Gain.of(costs, low_seconds + steps * data_seconds, high_seconds + data_seconds)
    longer = seconds(statistics.median(tried_seconds))
    why = f"fewer, larger steps, tried: one takes {longer}; {_LEARNS_OTHERWISE}"
    return Remedy(f"experiments.{run.experiment}.batch_size", larger, gain, why)


def _against_computing(run: Recorded, costs: StepCosts) -> Remedy | str:
    nothing = "the device is used well; a faster one, or a smaller network, would shorten it"
    if (tried := costs.attribution.bf16) is None:
        return nothing
    low_seconds, high_seconds = spread(tried.step_seconds)
    bf16, data_seconds = seconds(statistics.median(tried.step_seconds)), costs.beside_step_seconds
    gain = Gain.of(costs, low_seconds + data_seconds, high_seconds + data_seconds)
    if gain.middle < LEAST_GAIN:
        return f"{nothing}; bf16 was tried on a step and takes {bf16}"
    why = f"a step in bf16 was tried and takes {bf16}; {_LEARNS_OTHERWISE}"
    return Remedy(f"experiments.{run.experiment}.precision", "bf16", gain, why)


def _against_thread_count(host: CpuTarget, costs: StepCosts, cores: int) -> Remedy | str:
    """Amdahl's law: what grows with the images is shared among the cores evenly, at best; the rest isn't shared."""
    variable = host.software.variables.get("OMP_NUM_THREADS")
    value: str | int = cores if variable else "auto"
    told = f" (auto would heed OMP_NUM_THREADS, which is {variable})" if variable else ""
    if host.threads > cores:
        return Remedy("devices.cpu.threads", value, None, f"threads that share a core wait for each other{told}")
    shared_seconds = costs.images_seconds * host.threads / cores
    gain = Gain.at_most(costs, costs.beside_step_seconds + costs.fixed_seconds + shared_seconds)
    why = f"{cores} cores instead of {host.threads}, by Amdahl's law{told}; another thread count gives other last bits"
    return Remedy("devices.cpu.threads", value, gain, why)
