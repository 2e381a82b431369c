"""Why a training takes as long as it does: of a job, and of an epoch in it, one cause with its evidence and a remedy.

Of an epoch, two things are held against each other: what the input path takes for a batch with nothing else to do,
and what a step takes with its batch at hand. The longer one is what the epoch waits for, whether or not they overlap.
A step then is mostly what it costs whatever its batch, or mostly its images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from photofinish.comparing import remedies
from photofinish.comparing.remedies import Found, Remedy, times
from photofinish.comparing.step_costs import StepCosts, step_costs
from photofinish.machine.cpu import allowed_cores
from photofinish.machine.fingerprint import CpuHost
from photofinish.results.records import Attribution, DeviceLabel, Timings, Training
from photofinish.wording import listed, seconds

Cause = Literal[
    "input-bound", "copy-bound", "launch-bound", "compute-bound", "start-up-bound", "CPU held back", "not known"
]
MOST_STARTUP_SHARE = 0.5
"""of the job: above, making epochs faster gains less than doing without start-up"""
MOST_FIXED_SHARE = 0.5
"""of a step: above, it isn't the arithmetic of its images that takes the time"""
_NAMED_SHARE = 0.005
"""of a step: parts below are not worth a word"""


@dataclass(frozen=True)
class Diagnosis:
    experiment: str
    device: DeviceLabel
    of: Literal["the job", "an epoch"]
    cause: Cause
    sentence: str
    evidence: str
    remedy: Remedy | None
    no_remedy: str
    """why there is none"""

    @property
    def advice(self) -> str:
        if self.cause == "not known":
            return f"No remedy can be told: {self.no_remedy}"
        if self.remedy is None:
            return f"Nothing in params.yaml helps: {self.no_remedy}"
        return f"To try: `{self.remedy.line}`, {self.remedy.prediction}"


def diagnose(experiment: str, record: Training, timings: Timings) -> tuple[Diagnosis, ...]:
    """Of the job where it is mostly start-up; then of an epoch."""
    found = []
    if timings.startup_seconds > MOST_STARTUP_SHARE * timings.total_seconds:
        found.append(_of_job(experiment, record, timings))
    if timings.attribution:
        found.append(_of_epoch(experiment, record, timings, timings.attribution))
    elif timings.not_attributed:
        sentence, why = "why an epoch takes as long as it does is not known", timings.not_attributed
        found.append(Diagnosis(experiment, record.device, "an epoch", "not known", sentence, why, None, why))
    return tuple(found)


def costs_of(record: Training, timings: Timings) -> StepCosts | None:
    return step_costs(record.experiment, timings, timings.attribution) if timings.attribution else None


def _of_job(experiment: str, record: Training, timings: Timings) -> Diagnosis:
    share = timings.startup_seconds / timings.total_seconds
    sentence = f"start-up (imports, device, data, warm-up) is {share:.0%} of the whole job"
    evidence = (
        f"{seconds(timings.startup_seconds)} of {seconds(timings.total_seconds)}; an epoch takes "
        f"{seconds(timings.median_epoch_seconds)}, and there are {record.experiment.epochs}"
    )
    remedy, why_none = remedies.against_start_up(f"experiments.{experiment}", record.experiment, timings)
    return Diagnosis(experiment, record.device, "the job", "start-up-bound", sentence, evidence, remedy, why_none)


def _of_epoch(experiment: str, record: Training, timings: Timings, attribution: Attribution) -> Diagnosis:
    costs = step_costs(record.experiment, timings, attribution)
    cause = _cause(costs, timings)
    sentence = _sentence(cause, record, timings, costs)
    remedy, why_none = remedies.worth_trying(_remedy(cause, experiment, record, timings, costs))
    evidence = _evidence(costs, attribution, record)
    return Diagnosis(experiment, record.device, "an epoch", cause, sentence, evidence, remedy, why_none)


def _cause(costs: StepCosts, timings: Timings) -> Cause:
    if costs.input_seconds > costs.step_alone_seconds:
        return "copy-bound" if costs.copying_seconds > costs.batch_alone_seconds else "input-bound"
    if costs.fixed_seconds > MOST_FIXED_SHARE * costs.step_alone_seconds:
        return "launch-bound"
    return "CPU held back" if _is_held_back(timings) else "compute-bound"


def _is_held_back(timings: Timings) -> bool:
    """By its number of threads, or by a limit that leaves it less than the machine's cores."""
    host = timings.host
    if not isinstance(host, CpuHost):
        return False
    return host.threads != allowed_cores(host.cpu) or allowed_cores(host.cpu) < host.cpu.usable_cores


def _sentence(cause: Cause, record: Training, timings: Timings, costs: StepCosts) -> str:
    step, epoch_seconds = seconds(costs.step_alone_seconds), costs.epoch_share_seconds
    if cause == "input-bound":
        return (
            f"{_input(record)} takes {min(1.0, costs.input_seconds / epoch_seconds):.0%} of an epoch's time: "
            f"{seconds(costs.batch_alone_seconds)} for a batch, and a step on it takes {step}. A device that took no "
            f"time at all would make the epoch {times(_most_gain(costs))} as fast at most"
        )
    if cause == "copy-bound":
        return (
            f"copying to the device takes {min(1.0, costs.copying_seconds / epoch_seconds):.0%} of an epoch's time: "
            f"{seconds(costs.copying_seconds)} for a batch, and a step on it takes {step}"
        )
    if cause == "launch-bound":
        return (
            f"most of a step is not its images' arithmetic: {seconds(costs.fixed_seconds)} of {step} it would take "
            f"with none, for starting each operation and updating {record.parameter_count:,} weights"
        )
    images = f"the arithmetic of its images is {costs.images_seconds / costs.step_alone_seconds:.0%} of a step"
    return f"{images}, and {_cpu_limit(timings)}" if cause == "CPU held back" else images


def _input(record: Training) -> str:
    return "the loader" if record.experiment.input.name == "loader" else "gathering the batches"


def _most_gain(costs: StepCosts) -> float:
    return max(1.0, costs.epoch_share_seconds / costs.input_seconds)


def _cpu_limit(timings: Timings) -> str:
    host = timings.host
    assert isinstance(host, CpuHost)  # no other is held back
    cores = allowed_cores(host.cpu)
    if host.threads == cores:
        return f"a limit leaves the CPU {host.cpu.cgroup_cores_limit:g} of {host.cpu.usable_cores} cores"
    count = "one thread computes" if host.threads == 1 else f"{host.threads} threads compute"
    return f"{count} where {cores} cores may be used"


def _evidence(costs: StepCosts, attribution: Attribution, record: Training) -> str:
    tried, at_most = attribution.other_batch_images, "" if record.device == "cpu" else "at most "
    fixed = f", of which {seconds(costs.fixed_seconds)} whatever its batch (tried with {tried} images)"
    if costs.issuing_is_hidden:
        fixed = (
            f", which the host hands out in {seconds(min(attribution.issuing_seconds))} and so is ahead of the device"
        )
    parts = listed([f"{part} {share:.0%}" for part, share in costs.shares.items() if share >= _NAMED_SHARE])
    return (
        f"of a step: {parts}; the device is busy {at_most}{costs.busy_share:.0%} of an epoch; a batch alone takes "
        f"{seconds(costs.input_seconds)}, a step alone {seconds(costs.step_alone_seconds)}"
        f"{fixed if tried != record.experiment.batch_size else ''}"
    )


def _remedy(cause: Cause, experiment: str, record: Training, timings: Timings, costs: StepCosts) -> Found:
    key, attribution = f"experiments.{experiment}", timings.attribution
    assert attribution  # or there would be no cause
    if cause == "input-bound":
        cores = remedies.loading_cores(timings.host)
        return remedies.against_waiting(key, record.experiment, costs, attribution, cores)
    if cause == "copy-bound":
        return remedies.against_copying(key, record.experiment, costs, attribution)
    if cause == "launch-bound":
        return remedies.against_launching(key, record.experiment, costs, timings.training_image_count)
    if cause == "CPU held back" and isinstance(timings.host, CpuHost):
        return remedies.against_holding_back(timings.host, costs)
    return remedies.against_computing(key, costs, attribution)
