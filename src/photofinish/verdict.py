"""The answer for one experiment in a sentence or two."""

from __future__ import annotations

from dataclasses import dataclass

from photofinish import records
from photofinish.comparison import DeviceResult, epoch_seconds
from photofinish.errors import UserError
from photofinish.wording import seconds


@dataclass(frozen=True)
class Verdict:
    experiment: str
    sentence: str
    missing: str | None = None
    """why there is nothing to compare with"""


def verdict(experiment: str, results: list[DeviceResult]) -> Verdict:
    cpu, gpu = (next(result for result in results if result.device == device) for device in records.DEVICE_LABELS)
    if isinstance(gpu.record, records.Unavailable):
        sentence = f"{_alone(cpu)} It was not trained on a GPU, so nothing can be said of one."
        return Verdict(experiment, sentence, missing=gpu.record.reason)
    if cpu.timings is None or gpu.timings is None:
        raise UserError(f"the timings of {experiment} are missing: run `dvc repro`")
    return Verdict(experiment, f"{_speeds(cpu.timings, gpu.timings)} {_accuracies(cpu, gpu)}")


def _alone(cpu: DeviceResult) -> str:
    if cpu.timings is None or cpu.scores is None:
        raise UserError(f"the results of {cpu.experiment} on the CPU are incomplete: run `dvc repro`")
    timings = cpu.timings
    return (
        f"{timings.device_name} trained it to {cpu.scores.test_accuracy:.2%} test accuracy in "
        f"{seconds(timings.total_seconds)}, of which {seconds(timings.startup_seconds)} were start-up."
    )


def _speeds(cpu: records.Timings, gpu: records.Timings) -> str:
    an_epoch, another = epoch_seconds(gpu), epoch_seconds(cpu)
    resumed = " One of the two was interrupted and resumed: its end-to-end time is the sum of its parts."
    return (
        f"{gpu.device_name} takes {seconds(an_epoch)} for an epoch, {cpu.device_name} {seconds(another)}: "
        f"{another / an_epoch:.2f} times the CPU's speed. End to end, start-up included, it is "
        f"{cpu.total_seconds / gpu.total_seconds:.2f} times ({seconds(gpu.total_seconds)} against "
        f"{seconds(cpu.total_seconds)}). These are medians without an interval."
        f"{resumed if cpu.resumed_at_epochs or gpu.resumed_at_epochs else ''}"
    )


def _accuracies(cpu: DeviceResult, gpu: DeviceResult) -> str:
    if cpu.scores is None or gpu.scores is None:
        raise UserError(f"the evaluation of {cpu.experiment} is incomplete: run `dvc repro`")
    return f"Test accuracy is {gpu.scores.test_accuracy:.2%} on the GPU, {cpu.scores.test_accuracy:.2%} on the CPU."
