"""Records of a script on one device: results/<name>/<device>/script.json."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from photofinish.config.base import Record
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.results.job_times import EpochTimes
from photofinish.results.pass_times import made_here
from photofinish.results.records import DeviceLabel, read_record

SCRIPT = "script.json"


class ScriptEpoch(Record):
    """Pass of a script over `photofinish.steps(loader)`."""

    is_whole: bool
    """False if the script left the loop before the loader's end."""
    began_at: float
    """Reading of the monotonic clock."""
    ended_at: float
    seconds: float
    """Time of the pass without the counted steps."""
    waiting_seconds: float
    """Time in which the script waited for batches, even if an accelerator still computed."""
    steps: int
    samples: int
    """Number of samples, by the sizes of each 11th and the last batch, or 0 without sizes."""
    counted_seconds: tuple[float, ...]
    """Time of each counted step. Counting makes a step much longer."""
    quickest_step_seconds: float | None = None
    """Time of the quickest tenth of the CPU's steps, including waits for batches."""
    cpu_seconds: float | None = None
    """CPU time of all the process's threads on the CPU, without the counted steps."""
    device_step_seconds: tuple[float, ...] = ()
    """Time of some steps by an accelerator's events. It may compute while its host waits."""

    @property
    def step_seconds(self) -> float:
        """Mean time of a step, without waiting for its batch."""
        device_seconds = statistics.fmean(self.device_step_seconds or (0.0,))
        # Events time the current stream only. A step on another stream appears shorter than the
        # host's time for it.
        is_timed = device_seconds > self._host_step_seconds / 2
        return device_seconds if is_timed else self._host_step_seconds

    @property
    def exposed_waiting_seconds(self) -> float:
        """Time in which the script waited for batches and an accelerator had nothing to compute."""
        idle_seconds = max(0.0, self.full_seconds - self.steps * self.step_seconds)
        return min(self.waiting_seconds, idle_seconds)

    @property
    def _host_step_seconds(self) -> float:
        timed_steps = max(1, self.steps - len(self.counted_seconds))
        return max(0.0, self.seconds - self.waiting_seconds) / timed_steps

    @property
    def full_seconds(self) -> float:
        """Time of the pass if counted steps had taken as long as other steps."""
        return self.seconds + len(self.counted_seconds) * self._host_step_seconds

    @property
    def seconds_lost(self) -> float:
        """Time that counting steps took."""
        return sum(self.counted_seconds) - len(self.counted_seconds) * self._host_step_seconds


Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]


class ScriptRun(Record):
    """Record of a script that ran."""

    status: Literal["trained"] = "trained"
    device: DeviceLabel
    device_kind: str
    """Torch's name of the device."""
    command: str
    files: dict[str, str]
    """SHA-256 of each file that the script depends on, and version of each package."""
    precision: Precision
    """Precision of products on an NVIDIA GPU with the script's PyTorch flags."""
    parameter_count: int | None
    epochs: tuple[ScriptEpoch, ...]
    """Passes of the script. Without `photofinish.steps` it is empty: the whole script is timed."""
    ended: str | None = None
    """How the script failed or was stopped, if it did not end by itself."""
    metrics: dict[str, float | None]
    """Numbers in the metrics file. None for NaN and infinity."""
    timings: EpochTimes
    """Times of the job. A script without epochs counts as one epoch."""


def script_made_here(host: CpuTarget | GpuTarget) -> dict[str, Any]:
    """Return the fields about machine, device and software, for a script of this process."""
    accelerators = host.accelerators if isinstance(host, GpuTarget) else ()
    cpu_name = host.cpu.model if host.cpu else "unknown"
    return {
        **made_here(host),
        "device_name": accelerators[0].name if accelerators else cpu_name,
        "device_count": len(accelerators) or 1,
    }


class ScriptUnavailable(Record):
    """Record of a missing device."""

    status: Literal["unavailable"] = "unavailable"
    device: DeviceLabel
    command: str
    reason: str


class _EitherScript(
    RootModel[Annotated[ScriptRun | ScriptUnavailable, Field(discriminator="status")]]
):
    """Record of either status."""


def read_script_run(folder: Path) -> ScriptRun | ScriptUnavailable:
    """Read the record in a folder of results."""
    return read_record(folder / SCRIPT, _EitherScript).root
