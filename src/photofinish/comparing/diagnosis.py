"""Why a training takes as long as it does: of a job, and of an epoch in it, one cause with its evidence and a remedy.

Of an epoch, two things are held against each other: what the input path takes for a batch with nothing else to do,
and what a step takes with its batch at hand. The longer one is what the epoch waits for, whether or not they overlap.
A step then is mostly what it costs whatever its batch, or mostly its images.

A remedy is one line of params.yaml, with the gain that the measured parts let expect. Never a rule of thumb: where
nothing that was measured tells, no gain is predicted.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from photofinish.comparing.step_costs import StepCosts
from photofinish.machine.cpu import allowed_cores
from photofinish.machine.fingerprint import CpuHost
from photofinish.params.experiment import Experiment
from photofinish.results.epochs import passed_seconds
from photofinish.results.records import Attribution, Timings, Training
from photofinish.wording import listed, seconds

Cause = Literal[
    "input-bound", "copy-bound", "launch-bound", "compute-bound", "start-up-bound", "CPU held back", "not known"
]
MOST_STARTUP_SHARE = 0.5
"""of the job: above, making epochs faster gains less than doing without start-up"""
STARTUP_SHARE_AIMED_AT = 1 / 3
"""clearly below the half from which a job counts as start-up-bound"""
_MOST_TIMES_AS_MANY_EPOCHS = 20
"""no one trains a network for longer than that just to make its start-up worth while"""
MOST_FIXED_SHARE = 0.5
"""of a step: above, it isn't the arithmetic of its images that takes the time"""
FIXED_SHARE_AIMED_AT = 1 / 4
"""of a step, clearly below the half from which it counts as launch-bound"""
_MOST_TIMES_LARGER = 16
"""Two batch sizes were measured; further out, the line through them says little."""
_LEAST_STEPS_AN_EPOCH = 4
_LEAST_BF16_GAIN = 1.1
_LEAST_GAIN = 1.01
"""what is not 1.00 in print"""
_NAMED_SHARE = 0.005
"""of a step: parts below are not worth a word"""
_LEARNS_OTHERWISE = "it changes what is learned: look at the accuracy too"
_DOES_NOT_FIT = "the images don't fit into the device's memory"


@dataclass(frozen=True)
class Remedy:
    """A line of params.yaml to try."""

    key: str
    """in params.yaml, with dots between"""
    value: Any
    predicted_gain: float | None
    """how many times as fast; None where nothing that was measured tells"""
    why: str
    of: Literal["an epoch", "the job, an epoch of it"] = "an epoch"
    """what gets so much faster"""
    is_upper_bound: bool = False

    @property
    def line(self) -> str:
        """As it stands in params.yaml, but for the dots."""
        written = yaml.safe_dump(self.value, default_flow_style=True, sort_keys=False, width=math.inf)
        return f"{self.key}: " + written.removesuffix("...\n").strip()

    @property
    def prediction(self) -> str:
        """The gain, in words."""
        if self.predicted_gain is None:
            return "not predicted"
        at_most = "at most " if self.is_upper_bound else ""
        return f"{at_most}{times(self.predicted_gain)} as fast ({self.of})"


Found = tuple[Remedy | None, str]
"""a remedy, or why there is none"""


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
    def advice(self) -> str:
        """The remedy in a sentence, or why there is none."""
        if self.cause == "not known":
            return f"No remedy can be told: {self.no_remedy}"
        if self.remedy is None:
            return f"Nothing in params.yaml helps: {self.no_remedy}"
        return f"To try: `{self.remedy.line}`, {self.remedy.prediction}"


def times(gain: float) -> str:
    """`2.50 times`, `12 times`."""
    return f"{gain:.2f} times" if gain < 9.995 else f"{gain:.0f} times"


def diagnose(name: str, record: Training, timings: Timings, costs: StepCosts | None) -> tuple[Diagnosis, ...]:
    """Of the job where it is mostly start-up; then of an epoch, where its steps were taken apart or it is told why not.

    `name` is the experiment's in params.yaml.
    """
    key, found = f"experiments.{name}", []
    share = timings.startup_seconds / timings.total_seconds
    if share > MOST_STARTUP_SHARE:
        sentence = f"start-up (imports, device, data, warm-up) is {share:.0%} of the whole job"
        evidence = (
            f"{seconds(timings.startup_seconds)} of {seconds(timings.total_seconds)}; an epoch takes "
            f"{seconds(timings.median_epoch_seconds)}, and there are {record.experiment.epochs}"
        )
        against = _against_start_up(key, record.experiment.epochs, timings)
        found.append(Diagnosis("the job", "start-up-bound", sentence, evidence, *against))
    if costs and timings.attribution:
        cause, sentence, (remedy, why_none) = _cause(key, record, timings, timings.attribution, costs)
        if remedy and remedy.predicted_gain is not None and remedy.predicted_gain < _LEAST_GAIN:
            # That comes of measurements that don't fit together: a step that took longer by itself than in the timed
            # epochs, on a busy machine for instance.
            why_none = f"by what was measured, `{remedy.line}` would be {times(remedy.predicted_gain)} as fast: no gain"
            remedy = None
        evidence = _evidence(record, timings.attribution, costs)
        found.append(Diagnosis("an epoch", cause, sentence, evidence, remedy, why_none))
    elif why := timings.not_attributed:
        sentence = "why an epoch takes as long as it does is not known"
        found.append(Diagnosis("an epoch", "not known", sentence, why, None, why))
    return tuple(found)


def _cause(
    key: str, record: Training, timings: Timings, attribution: Attribution, costs: StepCosts
) -> tuple[Cause, str, Found]:
    """What an epoch waits for, a sentence of it, and what can be done against it."""
    experiment, host = record.experiment, timings.host
    cores = allowed_cores(host.cpu) if host.cpu else 1
    step, epoch_seconds = seconds(costs.step_alone_seconds), costs.epoch_share_seconds
    if costs.input_seconds > costs.step_alone_seconds and costs.copying_seconds > costs.batch_alone_seconds:
        sentence = (
            f"copying to the device takes {min(1.0, costs.copying_seconds / epoch_seconds):.0%} of an epoch's time: "
            f"{seconds(costs.copying_seconds)} for a batch, and a step on it takes {step}"
        )
        return "copy-bound", sentence, _against_copying(key, experiment, costs, attribution)
    if costs.input_seconds > costs.step_alone_seconds:
        source = "the loader" if experiment.input.name == "loader" else "gathering the batches"
        sentence = (
            f"{source} takes {min(1.0, costs.input_seconds / epoch_seconds):.0%} of an epoch's time: "
            f"{seconds(costs.batch_alone_seconds)} for a batch, and a step on it takes {step}. A device that took no "
            f"time at all would make the epoch {times(max(1.0, epoch_seconds / costs.input_seconds))} as fast at most"
        )
        return "input-bound", sentence, _against_waiting(key, experiment, costs, attribution, cores)
    if costs.fixed_seconds > MOST_FIXED_SHARE * costs.step_alone_seconds:
        sentence = (
            f"most of a step is not its images' arithmetic: {seconds(costs.fixed_seconds)} of {step} it would take "
            f"with none, for starting each operation and updating {record.parameter_count:,} weights"
        )
        return "launch-bound", sentence, _against_launching(key, experiment, costs, timings.training_image_count)
    sentence = f"the arithmetic of its images is {costs.images_seconds / costs.step_alone_seconds:.0%} of a step"
    if isinstance(host, CpuHost) and host.threads != cores:
        count = "one thread computes" if host.threads == 1 else f"{host.threads} threads compute"
        why = f"{count} where {cores} cores may be used"
        return "CPU held back", f"{sentence}, and {why}", _against_thread_count(host, costs, cores)
    if isinstance(host, CpuHost) and cores < host.cpu.usable_cores:
        of_cores = f"{host.cpu.cgroup_cores_limit:g} of {host.cpu.usable_cores} cores"
        raised = f"no line of params.yaml gives more: the container may use {of_cores}; raise its limit"
        return "CPU held back", f"{sentence}, and a limit leaves the CPU {of_cores}", (None, raised)
    return "compute-bound", sentence, _against_computing(key, costs, attribution)


def _evidence(record: Training, attribution: Attribution, costs: StepCosts) -> str:
    parts = listed([f"{part} {share:.0%}" for part, share in costs.shares.items() if share >= _NAMED_SHARE])
    tried, fixed = attribution.other_batch_images, ""
    if tried != record.experiment.batch_size and costs.issuing_is_hidden:
        issuing = seconds(min(attribution.issuing_seconds))
        fixed = f", which the host hands out in {issuing} and so is ahead of the device"
    elif tried != record.experiment.batch_size:
        fixed = f", of which {seconds(costs.fixed_seconds)} whatever its batch (tried with {tried} images)"
    return (
        f"of a step: {parts}; the device is busy {'' if record.device == 'cpu' else 'at most '}{costs.busy_share:.0%} "
        f"of an epoch; a batch alone takes {seconds(costs.input_seconds)}, a step alone "
        f"{seconds(costs.step_alone_seconds)}{fixed}"
    )


def _against_waiting(key: str, experiment: Experiment, costs: StepCosts, attribution: Attribution, cores: int) -> Found:
    settings = experiment.input
    if settings.name == "resident":
        return None, "the images lie on the device already; what is left is to gather and augment them"
    if attribution.resident_fits:
        return _resident(key, costs), ""
    if cores <= settings.workers:
        return None, f"{_DOES_NOT_FIT}, and every core has its worker already"
    workers_seconds = costs.batch_alone_seconds * max(1, settings.workers)
    shortest_seconds = max(workers_seconds / cores, costs.copying_seconds + costs.step_alone_seconds)
    value = {**settings.model_dump(exclude_defaults=True), "workers": cores}
    gain = costs.epoch_share_seconds / shortest_seconds
    why = f"{_DOES_NOT_FIT}; at best, workers share the loading evenly"
    return Remedy(f"{key}.input", value, gain, why, is_upper_bound=True), ""


def _against_copying(key: str, experiment: Experiment, costs: StepCosts, attribution: Attribution) -> Found:
    settings = experiment.input
    if settings.name == "resident" or attribution.resident_fits:
        return _resident(key, costs), ""
    if settings.pin_memory and settings.non_blocking:
        return None, f"{_DOES_NOT_FIT}, and copies already don't wait"
    value = {**settings.model_dump(exclude_defaults=True), "pin_memory": True, "non_blocking": True}
    gain = costs.epoch_share_seconds / max(costs.batch_alone_seconds, costs.copying_seconds, costs.step_alone_seconds)
    why = f"{_DOES_NOT_FIT}; at best, a copy goes on behind the step before it"
    return Remedy(f"{key}.input", value, gain, why, is_upper_bound=True), ""


def _resident(key: str, costs: StepCosts) -> Remedy:
    why = "the images lie on the device, normalised once, and no step waits for them; the same bits are learned"
    gain = costs.epoch_share_seconds / costs.step_alone_seconds
    return Remedy(f"{key}.input", "resident", gain, why, is_upper_bound=True)


def _against_launching(key: str, experiment: Experiment, costs: StepCosts, images: int) -> Found:
    """A batch so large that its images take most of a step. What data costs is taken to cost as much an epoch."""
    batch, an_image_seconds = experiment.batch_size, costs.images_seconds / min(experiment.batch_size, images)

    def step_seconds(batch: int) -> float:
        """By the line through the two batch sizes that were measured."""
        return costs.fixed_seconds + batch * an_image_seconds

    largest, larger = min(batch * _MOST_TIMES_LARGER, images // _LEAST_STEPS_AN_EPOCH), 2 * batch
    while larger * 2 <= largest and costs.fixed_seconds > FIXED_SHARE_AIMED_AT * step_seconds(larger):
        larger *= 2
    if larger > largest:
        few = f"a batch of {larger} leaves fewer than {_LEAST_STEPS_AN_EPOCH} steps of the {images} images"
        return None, f"the job is small: {few}, and a faster device would not help"
    data_seconds = costs.steps_per_epoch * costs.beside_step_seconds
    epoch_seconds = math.ceil(images / larger) * step_seconds(larger) + data_seconds
    gain = costs.steps_per_epoch * costs.epoch_share_seconds / epoch_seconds
    longer = seconds(step_seconds(larger))
    why = f"fewer, larger steps, of {longer} by the line through two batch sizes; {_LEARNS_OTHERWISE}"
    return Remedy(f"{key}.batch_size", larger, gain, why), ""


def _against_computing(key: str, costs: StepCosts, attribution: Attribution) -> Found:
    nothing = "the device is used well; a faster one, or a smaller network, would shorten it"
    if attribution.bf16 is None:
        return None, nothing
    bf16_seconds = statistics.median(attribution.bf16.step_seconds)
    if costs.step_alone_seconds < _LEAST_BF16_GAIN * bf16_seconds:
        return None, f"{nothing}; bf16 was tried on a step and takes {seconds(bf16_seconds)}"
    gain = costs.epoch_share_seconds / (costs.beside_step_seconds + bf16_seconds)
    why = f"a step in bf16 was tried and takes {seconds(bf16_seconds)}; {_LEARNS_OTHERWISE}"
    return Remedy(f"{key}.precision", "bf16", gain, why), ""


def _against_thread_count(host: CpuHost, costs: StepCosts, cores: int) -> Found:
    """Amdahl's law: what grows with the images is shared among the cores evenly, at best; the rest isn't shared."""
    variable = host.software.variables.get("OMP_NUM_THREADS")
    value: str | int = cores if variable else "auto"
    told = f" (auto would heed OMP_NUM_THREADS, which is {variable})" if variable else ""
    if host.threads > cores:
        return Remedy("devices.cpu.threads", value, None, f"threads that share a core wait for each other{told}"), ""
    shared_seconds = costs.images_seconds * host.threads / cores
    gain = costs.epoch_share_seconds / (costs.beside_step_seconds + costs.fixed_seconds + shared_seconds)
    why = f"{cores} cores instead of {host.threads}, by Amdahl's law{told}; another thread count gives other last bits"
    return Remedy("devices.cpu.threads", value, gain, why, is_upper_bound=True), ""


def _against_start_up(key: str, epochs: int, timings: Timings) -> Found:
    """Epochs until start-up is a smaller part of the job: each of them then costs less of it."""
    total_seconds = timings.total_seconds
    an_epoch_seconds = statistics.median(passed_seconds([timing]) for timing in timings.epochs)
    missing_seconds = timings.startup_seconds / STARTUP_SHARE_AIMED_AT - total_seconds
    more = epochs + math.ceil(missing_seconds / an_epoch_seconds)
    if more > _MOST_TIMES_AS_MANY_EPOCHS * epochs:
        return None, f"only {more:,} epochs instead of {epochs} would make start-up a third of the job, so small is it"
    gain = (total_seconds / epochs) / ((total_seconds + (more - epochs) * an_epoch_seconds) / more)
    why = f"start-up is paid once for {more} epochs instead of {epochs}; {_LEARNS_OTHERWISE}"
    return Remedy(f"{key}.epochs", more, gain, why, of="the job, an epoch of it"), ""
