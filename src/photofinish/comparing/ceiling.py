"""What no GPU can shorten: how many times as fast a training on the CPU could become in its machine, at most.

Of a device that computes in no time, what is sure to stay is counted, and nothing else:

* Of an epoch, loading its batches where a loader does: the time that they take with no step between. Workers load
  while a device computes, so with one that takes no time an epoch is no shorter than that. What a step waits for its
  batch isn't it: while the CPU computes as well, loading is slower. Batches that are gathered on the device
  (`input: resident`) leave nothing behind.
* Of the job, that, and start-up without its warm-up: imports, the data read and normalised, the network made.

What a GPU takes itself is not known here, and only makes it slower than the bound: its start, copies to it, computing.
What would perhaps stay isn't counted, which only makes the bound higher: handing out each operation, which can't be
told from computing it here and may be recorded once for all steps; checkpoints and readings of the machine, of which
shorter epochs need fewer; loading for validation, which isn't timed by itself.

A bound is higher than the medians tell, by what the samples vary and what a run may be off: see `Bound`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from photofinish.comparing.diagnosis import why_nothing_is_told
from photofinish.comparing.speedups import BUSY
from photofinish.comparing.step_costs import RUN_TO_RUN, StepCosts, spread, times
from photofinish.params.experiment import Experiment
from photofinish.results.measurements import Attribution
from photofinish.results.records import Timings, Training
from photofinish.wording import seconds

HIGH = 20.0
"""times as fast: a bound above says nothing against a GPU"""


@dataclass(frozen=True)
class Bound:
    """How many times as fast at most: the whole of it over what is sure to stay."""

    whole_seconds: float
    """of slow ones, where there are several"""
    staying_seconds: float
    """of quick ones, in a run that is quicker by RUN_TO_RUN; half of a start-up, for nothing watches how busy the
    machine is meanwhile"""
    measured_seconds: float
    """the same as it was measured"""

    @property
    def at_most(self) -> float:
        """From 1 on: by a device that takes no time, nothing gets slower."""
        return max(1.0, self.whole_seconds / self.staying_seconds) if self.staying_seconds else math.inf

    @property
    def is_high(self) -> bool:
        """So high that it says nothing against a GPU."""
        return self.at_most > HIGH

    @property
    def evidence(self) -> str:
        """`at least 4.00 s of 5.00 s`: what stays, of the whole."""
        return f"at least {seconds(min(self.staying_seconds, self.whole_seconds))} of {seconds(self.whole_seconds)}"


@dataclass(frozen=True)
class Ceiling:
    """The bounds of one training on the CPU, or why there are none."""

    epoch: Bound | None
    """None where nothing of it is sure to stay"""
    job: Bound | None
    job_if_resident: Bound | None
    """with `input: resident`, which leaves nothing of an epoch: where it takes a loader, and images would fit"""
    untold: str | None
    """what keeps the figures from carrying a bound"""

    @property
    def sentence(self) -> str | None:
        """The bounds with what they rest on; None where there are none."""
        if self.job is None:
            return None
        epoch, job = self.epoch, self.job
        if epoch and not epoch.is_high:
            lifted = ""
            if self.job_if_resident:
                left = f"the job's would then be {times(self.job_if_resident.at_most)}"
                lifted = f" (`input: resident` would lift that, where the images fit into the GPU's memory; {left})"
            return (
                f"Even a GPU that computes in no time would make an epoch at most {times(epoch.at_most)} as fast in "
                f"this machine, and the whole job at most {times(job.at_most)}: {epoch.evidence} an epoch are spent "
                f"loading its data, which stays on the CPU{lifted}."
            )
        what, high = "start-up", ""
        if epoch:
            what, high = "start-up and loading", f" ({times(epoch.at_most)} as fast is its bound)"
        if job.is_high:
            return (
                f"Nothing measured here keeps a GPU from being much faster{high}: {what}, which stays on the CPU, is "
                f"{job.evidence} of the whole job, whose bound is {times(job.at_most)} as fast."
            )
        return (
            f"Nothing measured here keeps a GPU from making an epoch much faster{high}, but even one that computes in "
            f"no time would make the whole job at most {times(job.at_most)} as fast in this machine: {job.evidence} "
            f"are {what}, which stays on the CPU."
        )


def ceiling(record: Training, timings: Timings, costs: StepCosts | None) -> Ceiling:
    """Of one training on the CPU; no bound is told by figures that carry no cause either."""
    attribution = timings.attribution
    untold = why_nothing_is_told(record, timings, costs)
    if untold or costs is None or attribution is None:
        return Ceiling(None, None, None, untold)
    epochs, startup_seconds = len(timings.epochs), timings.startup_seconds - timings.warm_up_seconds
    _, slow_job_seconds = spread(timings.end_to_end_seconds)
    startup_alone = Bound(slow_job_seconds, startup_seconds / BUSY, startup_seconds)
    if record.experiment.input.name == "resident":
        return Ceiling(None, startup_alone, None, None)
    loading_seconds = costs.steps_per_epoch * costs.batch_alone_seconds
    least_seconds = _least_loading_seconds(record.experiment, attribution, costs) / (1 + RUN_TO_RUN)
    _, slow_step_seconds = costs.epoch_share_spread
    return Ceiling(
        epoch=Bound(costs.steps_per_epoch * slow_step_seconds, least_seconds, loading_seconds),
        job=Bound(
            slow_job_seconds,
            startup_alone.staying_seconds + epochs * least_seconds,
            startup_seconds + epochs * loading_seconds,
        ),
        job_if_resident=startup_alone if attribution.resident else None,
        untold=None,
    )


def _least_loading_seconds(experiment: Experiment, attribution: Attribution, costs: StepCosts) -> float:
    """Of an epoch: its first batch, for which workers may start, then batches as quick as the quickest tenth of them.

    What else goes on in a machine only ever slows a batch, so of two passes that took the same the quicker one counts.
    """
    alone, waiting = attribution.batch_alone_seconds, attribution.parts.waiting_seconds
    first_seconds = min(alone[0], waiting[0])
    workers = experiment.input.workers if experiment.input.name == "loader" else 0
    passes = [alone] if costs.loads_ahead else [alone, waiting]
    least_seconds = min(spread(_rounds(each[1:], max(1, workers)) or [first_seconds])[0] for each in passes)
    return max(first_seconds, least_seconds) + (costs.steps_per_epoch - 1) * least_seconds


def _rounds(values: Sequence[float], size: int) -> list[float]:
    """The means of so many in a row: several workers' batches come at once, and only a round of them tells their pace.

    Of fewer, their own mean.
    """
    rounds = [values[start : start + size] for start in range(0, len(values) - size + 1, size)]
    return [statistics.fmean(each) for each in rounds or [values] if each]
