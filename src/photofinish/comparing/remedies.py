"""One line of params.yaml against each cause, with the gain that the measured parts let expect. Never a rule of thumb:
where nothing that was measured tells, no gain is predicted."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from photofinish.comparing.step_costs import StepCosts
from photofinish.machine.cpu import allowed_cores
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.params.experiment import Experiment
from photofinish.results.epochs import passed_seconds
from photofinish.results.records import Attribution, Timings
from photofinish.wording import seconds

Of = Literal["an epoch", "the job, an epoch of it"]
STARTUP_SHARE_AIMED_AT = 1 / 3
"""clearly below the half from which a job counts as start-up-bound"""
_MOST_TIMES_AS_MANY_EPOCHS = 20
"""no one trains a network for longer than that just to make its start-up worth while"""
FIXED_SHARE_AIMED_AT = 1 / 4
"""of a step, clearly below the half from which it counts as launch-bound"""
_MOST_TIMES_LARGER = 16
"""Two batch sizes were measured; further out, the line through them says little."""
_LEAST_STEPS_AN_EPOCH = 4
_LEAST_BF16_GAIN = 1.1
_LEAST_GAIN = 1.01
"""what is not 1.00 in print"""
_LEARNS_OTHERWISE = "it changes what is learned: look at the accuracy too"


@dataclass(frozen=True)
class Remedy:
    key: str
    """in params.yaml, with dots between"""
    value: Any
    predicted_gain: float | None
    """how many times as fast; None where nothing that was measured tells"""
    why: str
    of: Of = "an epoch"
    """what gets so much faster"""
    is_upper_bound: bool = False

    @property
    def line(self) -> str:
        written = yaml.safe_dump(self.value, default_flow_style=True, sort_keys=False, width=math.inf)
        return f"{self.key}: {written.removesuffix('...' + chr(10)).strip()}"

    @property
    def prediction(self) -> str:
        if self.predicted_gain is None:
            return "not predicted"
        at_most = "at most " if self.is_upper_bound else ""
        return f"{at_most}{times(self.predicted_gain)} as fast ({self.of})"


def times(gain: float) -> str:
    return f"{gain:.2f} times" if gain < 9.995 else f"{gain:.0f} times"


Found = tuple[Remedy | None, str]
"""a remedy, or why there is none"""


def worth_trying(found: Found) -> Found:
    """A remedy that would give nothing is none. That comes of measurements that don't fit together: a step that took
    longer by itself than in the timed epochs, on a busy machine for instance."""
    remedy, _ = found
    if remedy is None or remedy.predicted_gain is None or remedy.predicted_gain >= _LEAST_GAIN:
        return found
    return None, f"by what was measured, `{remedy.line}` would be {times(remedy.predicted_gain)} as fast: no gain"


def against_waiting(key: str, experiment: Experiment, costs: StepCosts, attribution: Attribution, cores: int) -> Found:
    settings = experiment.input
    if settings.name == "resident":
        return None, "the images lie on the device already; what is left is to gather and augment them"
    if attribution.resident_fits:
        return _resident(key, costs), ""
    workers_seconds = costs.batch_alone_seconds * max(1, settings.workers)
    if cores <= settings.workers:
        return None, "the images don't fit into the device's memory, and every core has its worker already"
    shortest_seconds = max(workers_seconds / cores, costs.copying_seconds + costs.step_alone_seconds)
    value = {**settings.model_dump(exclude_defaults=True), "workers": cores}
    why = "the images don't fit into the device's memory; at best, workers share the loading evenly"
    gain = costs.epoch_share_seconds / shortest_seconds
    return Remedy(f"{key}.input", value, gain, why, is_upper_bound=True), ""


def against_copying(key: str, experiment: Experiment, costs: StepCosts, attribution: Attribution) -> Found:
    settings = experiment.input
    if settings.name == "resident" or attribution.resident_fits:
        return _resident(key, costs), ""
    if settings.pin_memory and settings.non_blocking:
        return None, "the images don't fit into the device's memory, and copies already don't wait"
    value = {**settings.model_dump(exclude_defaults=True), "pin_memory": True, "non_blocking": True}
    longest_seconds = max(costs.batch_alone_seconds, costs.copying_seconds, costs.step_alone_seconds)
    why = "the images don't fit into the device's memory; at best, a copy goes on behind the step before it"
    gain = costs.epoch_share_seconds / longest_seconds
    return Remedy(f"{key}.input", value, gain, why, is_upper_bound=True), ""


def _resident(key: str, costs: StepCosts) -> Remedy:
    why = "the images lie on the device, normalised once, and no step waits for them; the same bits are learned"
    gain = costs.epoch_share_seconds / costs.step_alone_seconds
    return Remedy(f"{key}.input", "resident", gain, why, is_upper_bound=True)


def against_launching(key: str, experiment: Experiment, costs: StepCosts, images: int) -> Found:
    """A batch so large that its images take most of a step. What data costs is taken to cost as much an epoch."""
    batch, an_image_seconds = experiment.batch_size, costs.images_seconds / min(experiment.batch_size, images)
    largest = min(batch * _MOST_TIMES_LARGER, images // _LEAST_STEPS_AN_EPOCH)
    larger = 2 * batch
    while larger * 2 <= largest and costs.fixed_seconds > FIXED_SHARE_AIMED_AT * _step(costs, an_image_seconds, larger):
        larger *= 2
    if larger > largest:
        few = f"a batch of {larger} leaves fewer than {_LEAST_STEPS_AN_EPOCH} steps of the {images} images"
        return None, f"the job is small: {few}, and a faster device would not help"
    step_seconds = _step(costs, an_image_seconds, larger)
    epoch_seconds = math.ceil(images / larger) * step_seconds + costs.steps_per_epoch * costs.beside_step_seconds
    gain = costs.steps_per_epoch * costs.epoch_share_seconds / epoch_seconds
    why = f"fewer, larger steps, of {seconds(step_seconds)} by the line through two batch sizes; {_LEARNS_OTHERWISE}"
    return Remedy(f"{key}.batch_size", larger, gain, why), ""


def _step(costs: StepCosts, an_image_seconds: float, images: int) -> float:
    return costs.fixed_seconds + images * an_image_seconds


def against_computing(key: str, costs: StepCosts, attribution: Attribution) -> Found:
    nothing = "the device is used well; a faster one, or a smaller network, would shorten it"
    if attribution.bf16 is None:
        return None, nothing
    bf16_seconds = statistics.median(attribution.bf16.step_seconds)
    if costs.step_alone_seconds < _LEAST_BF16_GAIN * bf16_seconds:
        return None, f"{nothing}; bf16 was tried on a step and takes {seconds(bf16_seconds)}"
    gain = costs.epoch_share_seconds / (costs.beside_step_seconds + bf16_seconds)
    why = f"a step in bf16 was tried and takes {seconds(bf16_seconds)}; {_LEARNS_OTHERWISE}"
    return Remedy(f"{key}.precision", "bf16", gain, why), ""


def against_holding_back(host: CpuHost, costs: StepCosts) -> Found:
    """Amdahl's law: what grows with the images is shared among the cores evenly, at best; the rest isn't shared."""
    cores = allowed_cores(host.cpu)
    if host.threads == cores:
        limit = f"the container may use {host.cpu.cgroup_cores_limit:g} of {host.cpu.usable_cores} cores"
        return None, f"no line of params.yaml gives more: {limit}; raise its limit"
    variable = host.software.variables.get("OMP_NUM_THREADS")
    value: str | int = cores if variable else "auto"
    told = f" (auto would heed OMP_NUM_THREADS, which is {variable})" if variable else ""
    if host.threads > cores:
        return Remedy("devices.cpu.threads", value, None, f"threads that share a core wait for each other{told}"), ""
    shared_seconds = costs.images_seconds * host.threads / cores
    shorter_seconds = costs.beside_step_seconds + costs.fixed_seconds + shared_seconds
    why = f"{cores} cores instead of {host.threads}, by Amdahl's law{told}; another thread count gives other last bits"
    gain = costs.epoch_share_seconds / shorter_seconds
    return Remedy("devices.cpu.threads", value, gain, why, is_upper_bound=True), ""


def against_start_up(key: str, experiment: Experiment, timings: Timings) -> Found:
    """Epochs until start-up is a smaller part of the job: each of them then costs less of it."""
    epochs, total_seconds = experiment.epochs, timings.total_seconds
    an_epoch_seconds = statistics.median(passed_seconds([timing]) for timing in timings.epochs)
    missing_seconds = timings.startup_seconds / STARTUP_SHARE_AIMED_AT - total_seconds
    more = epochs + math.ceil(missing_seconds / an_epoch_seconds)
    if more > _MOST_TIMES_AS_MANY_EPOCHS * epochs:
        return None, f"only {more:,} epochs instead of {epochs} would make start-up a third of the job, so small is it"
    longer_seconds = total_seconds + (more - epochs) * an_epoch_seconds
    gain = (total_seconds / epochs) / (longer_seconds / more)
    why = f"start-up is paid once for {more} epochs instead of {epochs}; {_LEARNS_OTHERWISE}"
    return Remedy(f"{key}.epochs", more, gain, why, of="the job, an epoch of it"), ""


def loading_cores(host: CpuHost | GpuHost) -> int:
    return allowed_cores(host.cpu) if host.cpu else 1
