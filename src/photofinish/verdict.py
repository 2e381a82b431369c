"""The answer for one experiment in a sentence or two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from photofinish import records
from photofinish.comparison import DeviceResult, epoch_seconds


@dataclass(frozen=True)
class Verdict:
    experiment: str
    kind: Literal["compared", "unavailable"]
    sentence: str


def verdict(experiment: str, results: list[DeviceResult]) -> Verdict:
    cpu, gpu = (next(result for result in results if result.device == device) for device in records.DEVICE_LABELS)
    if isinstance(gpu.record, records.Unavailable) or gpu.timings is None or cpu.timings is None:
        reason = gpu.record.reason if isinstance(gpu.record, records.Unavailable) else "it was not timed"
        return Verdict(experiment, "unavailable", f"{_alone(cpu)} Nothing can be said of a GPU: {reason}.")
    an_epoch = epoch_seconds(cpu.timings) / epoch_seconds(gpu.timings)
    end_to_end = cpu.timings.total_seconds / gpu.timings.total_seconds
    return Verdict(
        experiment,
        "compared",
        f"On {gpu.timings.device_name} an epoch takes {_ratio(an_epoch)} the time it takes on "
        f"{cpu.timings.device_name}, and the whole job with its start-up {_ratio(end_to_end)} (medians, "
        f"no intervals yet). {_accuracies(cpu, gpu)}",
    )


def _alone(cpu: DeviceResult) -> str:
    if cpu.timings is None or cpu.scores is None:
        return ""
    return (
        f"{cpu.timings.device_name} trained it to {cpu.scores.test_accuracy:.2%} test accuracy in "
        f"{cpu.timings.total_seconds:.1f} s, {cpu.timings.startup_seconds:.1f} s of them start-up."
    )


def _ratio(speedup: float) -> str:
    return f"1/{speedup:.2f} of" if speedup >= 1 else f"{1 / speedup:.2f} times"


def _accuracies(cpu: DeviceResult, gpu: DeviceResult) -> str:
    if cpu.scores is None or gpu.scores is None:
        return ""
    return f"Test accuracy: {gpu.scores.test_accuracy:.2%} there, {cpu.scores.test_accuracy:.2%} on the CPU."
