"""The largest batch that a device has room for, found only when asked for: `make fit EXPERIMENT=name`.

Steps of the experiment's own trainer are tried on batches of doubled size, then between the last one that fitted and
the first that didn't. A GPU is tried until its memory is out. The CPU's memory is everybody's: there, a batch is tried
only where those before it say that it takes no more than most of what is free.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from photofinish.errors import UserError, run_stage
from photofinish.locks import machine_to_itself
from photofinish.machine.fingerprint import fingerprint
from photofinish.machine.memory import available_memory_bytes
from photofinish.measuring.rehearsal import rehearsed_steps
from photofinish.params.experiment import ExperimentPlan, own_code_of
from photofinish.params.reader import read_params, refuse_unknown
from photofinish.processes import end_on_sigterm
from photofinish.results.records import DeviceLabel
from photofinish.runs.distributed import team_for
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup, prepared_for
from photofinish.source_code import code_of_users
from photofinish.training.failures import is_out_of_memory
from photofinish.training.torch_device import CPU, device_name, peak_memory_bytes
from photofinish.training.trainer import Trainer
from photofinish.wording import byte_size, seconds

_MOST_SHARE = 0.8
"""of the main memory that is free"""
_PRECISION = 32
"""it may be larger by one part in so many"""
_FEWEST = 2
"""for one image can't be normalised over its batch"""
_STEPS = 2
"""the first one makes the optimiser's state"""


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, to one part in 32; 0 where two don't."""
    low, high = 0, min(_FEWEST, most)
    while fits(high):
        low = high
        if low == most:
            return low
        high = min(2 * low, most)
    while low and high - low > max(1, low // _PRECISION):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class MemoryEstimate:
    """What a batch takes of this process's part of the main memory, by those that were tried: no less than they say."""

    def __init__(self, processes: int) -> None:
        self._begun_bytes = peak_memory_bytes(CPU) or 0
        self._share = _MOST_SHARE / processes
        self._room_bytes = self._share * available_memory_bytes()
        self._bytes_an_image = 0.0

    def tried(self, images: int) -> None:
        """A batch of so many was, and left its mark."""
        self._bytes_an_image = ((peak_memory_bytes(CPU) or 0) - self._begun_bytes) / images

    def allows(self, images: int) -> bool:
        """Whether so many are sure to leave others room."""
        taken_bytes = images * self._bytes_an_image
        more_bytes = self._begun_bytes + taken_bytes - (peak_memory_bytes(CPU) or 0)
        return taken_bytes <= self._room_bytes and more_bytes <= self._share * available_memory_bytes()


def largest_batch(trainer: Trainer, processes: int = 1) -> int:
    """Of so many images, up to all there are, for each of the processes on this machine; each attempt is told."""
    estimate = MemoryEstimate(processes) if trainer.device.type == "cpu" else None

    def fits(images: int) -> bool:
        """Whether a few steps of the trainer on so many images go through."""
        if estimate and not estimate.allows(images):
            print(f"{images:,} images: not tried, they would take nearly all the memory that is free", flush=True)
            return False
        trainer.team.forget_peak_memory()
        step_seconds = _try(trainer, images)
        if step_seconds is None:
            print(f"{images:,} images: out of memory", flush=True)
            return False
        if estimate:
            estimate.tried(images)
        peak = trainer.team.peak_memory_bytes()
        peak_told = f", {byte_size(peak)} at the peak" if peak else ""
        print(f"{images:,} images: a step of {seconds(step_seconds)}{peak_told}", flush=True)
        return True

    return largest(fits, trainer.training.image_count)


def _try(trainer: Trainer, images: int) -> float | None:
    """How long the last of some steps takes; None where memory runs out."""
    try:
        with rehearsed_steps(trainer, images) as (_, step):
            for _ in range(_STEPS):
                started_seconds = trainer.clock.now_seconds()
                step()
                ended_seconds = trainer.clock.now_seconds()
            return ended_seconds - started_seconds
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    if trainer.device.type != "cpu":  # the error is gone by now, and with it what held the tensors
        torch.accelerator.empty_cache()
    return None


def run_of(name: str, device: DeviceLabel, params_file: Path, data: Path) -> Run:
    """The experiment as it stands in params.yaml, on this machine, with the split that is on disk."""
    params = read_params(params_file)
    refuse_unknown(name, params, params_file)
    experiment = params.experiments[name]
    split = data / "splits" / experiment.dataset
    if not split.is_dir():
        raise UserError(f"{split} is not there yet: run `dvc repro split@{experiment.dataset}` first")
    cpu, gpu = fingerprint(params.devices)
    own_code = code_of_users([part.reference for part in own_code_of(experiment)])
    plan = ExperimentPlan(**dict(experiment), own_code=own_code)
    return Run(name, device, plan, cpu if device == "cpu" else gpu, split, Path(), data / "weights" / name)


def fit(run: Run) -> str:
    """Find it, and say it in a line of params.yaml."""
    run.check()
    host, shares = run.host, run.host.processes
    with machine_to_itself(run.title), team_for(run, None) as (device, team):
        with prepared_for(run, device, team):
            trainer = Setup(run, device, team).new_trainer()
            most = trainer.training.image_count
            found = min(most, shares * largest_batch(trainer, host.processes))
        what = host.cpu.model if device == CPU and host.cpu else device_name(device)
    if not found:
        raise UserError(f"not even {_FEWEST} images of {run.name} fit on {what}")
    whole = "all there are" if found == most else f"of {most:,}"
    shared = f" over {shares} devices" if shares > 1 else ""
    return (
        f"{run.name} on {what}: at most {found:,} images ({whole}) fit into a batch{shared}.\n"
        f"The line:  experiments.{run.name}.batch_size: {found}\n"
        f"A larger batch means fewer steps an epoch, and so another training: see what it learns."
    )


def main() -> None:
    """Find the largest batch for the experiment that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m photofinish.runs.fit", description=__doc__)
    parser.add_argument("experiment", help="its name in params.yaml")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="gpu")
    args = parser.parse_args()
    end_on_sigterm()
    print(fit(run_of(args.experiment, args.device, Path("params.yaml"), Path("data"))))


if __name__ == "__main__":
    run_stage(main)
