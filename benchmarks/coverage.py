"""Does an interval hold the truth in 9 of 10 cases? `python -m benchmarks.coverage` replays runs.

`--record` trains seven jobs for `--seconds` each, on a quiet machine, beside a loop that computes
half of the time, and beside two loops. Each window of a training is then a measurement, from which
the tool's own function predicts a whole job. Its interval should hold the time of this training to
its end, and of the other trainings of the same job, minutes before or after.

Windows of one training are alike, so each training counts as one.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.asked import Photos, Tagger, cnn
from photofinish.answer.times import job_time
from photofinish.machine.fingerprint import CpuTarget
from photofinish.machine.load import GpuState, LoadMonitor, LoadWindow
from photofinish.models.registry import build_model
from photofinish.results.measured_job import MeasuredJob
from photofinish.results.measurements import LoopSteps
from photofinish.results.timed_parts import TimedPart

FOLDER = Path(__file__).parent / "recorded"
LOOP = "while True: pass"
HALF_LOOP = """
import time
while True:
    ends = time.perf_counter() + 0.05
    while time.perf_counter() < ends: pass
    time.sleep(0.05)
"""
CONDITIONS: dict[str, list[str]] = {"quiet": [], "half": [HALF_LOOP], "two": [LOOP, LOOP]}
"""Programs beside the training."""
WINDOWS_SECONDS = 15.0, 30.0, 60.0
_BLOCK_SECONDS, _BLOCKS_A_READING = 0.2, 5
"""Time of the steps that are timed together, and their number between two readings of the load."""
_PARTS = 10
_DRAWS = 2000
Step = Callable[[], object]


def of_network(network: nn.Module, inputs: Tensor, classes: int = 10) -> Step:
    """Return a step on the same batch."""
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    targets = torch.randint(classes, (len(inputs),))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(network(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reads, self.last = nn.GRU(32, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, rows: Tensor) -> Tensor:
        output: Tensor = self.last(self.reads(rows)[0][:, -1])
        return output


class Words(nn.Module):
    """Small transformer with a class for each text."""

    def __init__(self) -> None:
        super().__init__()
        self.tagger = Tagger()

    def forward(self, words: Tensor) -> Tensor:
        output: Tensor = self.tagger(words).mean(dim=1)
        return output


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def resnet() -> nn.Module:
    model: Any = argparse.Namespace(name="resnet18", init="default", weights=None, compile=False)
    return build_model(model, (3, 32, 32), 10, 0)


def loading() -> Step:
    """Decode photographs, which takes longer than their step."""
    loader = DataLoader(Photos(256, 192, keeps=False), 16, shuffle=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    network = cnn(4, 64)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)

    def step() -> None:
        inputs, targets = next(batches)
        optimizer.zero_grad()
        functional.cross_entropy(network(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def own_arrays() -> Step:
    """Make each batch by NumPy, as scripts without a DataLoader do."""
    draw, network = np.random.default_rng(0), mlp()
    optimizer = torch.optim.Adam(network.parameters())

    def step() -> None:
        inputs = draw.standard_normal((256, 784), dtype=np.float32)
        optimizer.zero_grad()
        loss = network(torch.from_numpy(np.clip(inputs, -1, 1))).square().mean()
        loss.backward()
        optimizer.step()

    return step


JOBS: dict[str, Callable[[], Step]] = {
    "cnn": lambda: of_network(cnn(16, 32), torch.randn(64, 3, 32, 32)),
    "mlp": lambda: of_network(mlp(), torch.randn(128, 784)),
    "gru": lambda: of_network(Gru(), torch.randn(64, 28, 32)),
    "transformer": lambda: of_network(Words(), torch.randint(1, 1000, (16, 64))),
    "loading": loading,
    "own arrays": own_arrays,
    "resnet": lambda: of_network(resnet(), torch.randn(32, 3, 32, 32)),
}


class Recording(NamedTuple):
    """A training, as blocks of steps, and the load beside it."""

    job: str
    condition: str
    blocks: NDArray[np.float64]
    """Seconds and steps of each block."""
    load: list[LoadWindow]
    """Load during each few blocks."""


def train(job: str, seconds: float, file: Path) -> None:
    """Train for some seconds, and write the blocks and the load."""
    torch.manual_seed(0)
    step = JOBS[job]()
    for _ in range(3):
        step()
    load, blocks, ends = LoadMonitor(GpuState), [], time.perf_counter() + seconds
    while time.perf_counter() < ends:
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < _BLOCK_SECONDS:
            step()
            steps += 1
        blocks.append((time.perf_counter() - began, steps))
        if len(blocks) % _BLOCKS_A_READING == 0:
            load.sample()
    rows = [
        (each.wall_seconds, each.cores, each.own_cpu_seconds, each.others_cpu_seconds,
         each.waited_for_core_seconds or 0.0)
        for each in load.windows
    ]  # fmt: skip
    np.savez_compressed(file, blocks=np.array(blocks, np.float32), load=np.array(rows, np.float32))


def record(folder: Path, seconds: float, runs: int) -> None:
    """Train each job in turn, so that trainings of one job are minutes apart."""
    folder.mkdir(parents=True, exist_ok=True)
    for condition, run, job in itertools.product(CONDITIONS, range(1, runs + 1), JOBS):
        file = folder / f"{job.replace(' ', '_')}.{condition}.{run}.npz"
        if file.exists():
            continue
        with ExitStack() as stack:
            for program in CONDITIONS[condition]:
                process = stack.enter_context(subprocess.Popen([sys.executable, "-c", program]))
                stack.callback(process.kill)
            command = [sys.executable, "-m", "benchmarks.coverage", "--train", job]
            subprocess.run([*command, "--seconds", str(seconds), "--to", str(file)], check=True)
        print(file.name, flush=True)


def read(folder: Path) -> Iterator[Recording]:
    for file in sorted(folder.glob("*.npz")):
        job, condition, _, _ = file.name.split(".")
        with np.load(file) as found:
            load = [
                LoadWindow(
                    wall_seconds=wall,
                    cores=int(cores),
                    own_cpu_seconds=own,
                    others_cpu_seconds=others,
                    waited_for_core_seconds=waited,
                    major_page_faults=0,
                    swapped_pages=0,
                )
                for wall, cores, own, others, waited in found["load"].tolist()
            ]
            blocks = found["blocks"].astype(np.float64)
        yield Recording(job.replace("_", " "), condition, blocks, load)


def measured(recording: Recording, first: int, last: int) -> MeasuredJob:
    """Return the whole training as if only these blocks of it had been timed."""
    blocks, whole_steps = recording.blocks[first:last], float(recording.blocks[:, 1].sum())
    load = recording.load[first // _BLOCKS_A_READING : math.ceil(last / _BLOCKS_A_READING)]
    own_cpu_seconds = sum(each.own_cpu_seconds for each in load)
    sums = [part.sum(axis=0) for part in np.array_split(blocks, min(_PARTS, len(blocks)))]
    steps = LoopSteps(
        quickest_seconds=float(np.quantile(blocks[:, 0] / blocks[:, 1], 0.1)),
        cpu_seconds=own_cpu_seconds / float(blocks[:, 1].sum()) or None,
    )
    host: dict[str, Any] = {"threads": torch.get_num_threads(), "processes": 1, "cpu": None}
    fields: dict[str, Any] = {
        "parts": tuple(
            TimedPart(seconds=float(seconds), steps=float(count), epoch=0, holds="steps")
            for seconds, count in sums
        ),
        "load": tuple(load),
        "measured_load": tuple(load),
        "loop_steps": steps,
        "host": CpuTarget.model_construct(**host),
        "startup_seconds": 0.0,
        "job_epochs": 1.0,
        "job_epoch_steps": whole_steps,
        "steps_per_epoch": int(whole_steps),
    }
    return MeasuredJob.model_construct(**fields)


class Window(NamedTuple):
    """Prediction by one window."""

    width: float
    """Upper end over lower end."""
    holds_end: bool
    """True if the interval holds the time of the training to its end."""
    held_others: float | None
    """Share of the job's other trainings that the interval holds, or None without any."""


def windows(recording: Recording, seconds: float, others: Sequence[Recording]) -> Iterator[Window]:
    """Yield a prediction for each window, which overlaps the next by half."""
    blocks = max(1, round(seconds / float(recording.blocks[:, 0].mean())))
    whole_seconds, whole_steps = recording.blocks.sum(axis=0)
    truths = [whole_steps * float(each.blocks[:, 0].sum() / each.blocks[:, 1].sum())
              for each in others]  # fmt: skip
    for first in range(0, len(recording.blocks) - blocks + 1, max(1, blocks // 2)):
        time_of_job = job_time(measured(recording, first, first + blocks))
        low, high = time_of_job.interval
        assert low <= time_of_job.seconds <= high
        held = [low <= truth <= high for truth in truths]
        share = statistics.fmean(held) if held else None
        yield Window(high / low if low else math.inf, low <= whole_seconds <= high, share)


def table(recordings: Sequence[Recording], lengths: Sequence[float]) -> Iterator[str]:
    """Yield a row for each condition and length of windows."""
    yield "| machine | window | trainings | holds its end | holds the others | high / low |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for condition, seconds in itertools.product(CONDITIONS, lengths):
        to_end, to_others, widths = [], [], []
        same = [each for each in recordings if each.condition == condition]
        for each in same:
            others = [one for one in same if one is not each and one.job == each.job]
            found = list(windows(each, seconds, others))
            if not found:
                continue
            to_end.append(statistics.fmean(one.holds_end for one in found))
            shares = [one.held_others for one in found if one.held_others is not None]
            to_others += [statistics.fmean(shares)] if shares else []
            widths += [one.width for one in found]
        if to_end:
            cells = f"{len(to_end)} | {_share(to_end)} | {_share(to_others)}"
            width = f"{statistics.median(widths):.2f}"
            yield f"| {condition} | {seconds:g} s | {cells} | {width} |"


def _share(of_trainings: Sequence[float]) -> str:
    """Return the mean share of trainings, with the interval of other trainings like these."""
    if not of_trainings:
        return "-"
    draws = np.random.default_rng(0).choice(of_trainings, (_DRAWS, len(of_trainings)))
    low, high = np.quantile(draws.mean(axis=1), [0.05, 0.95])
    return f"{statistics.fmean(of_trainings):.0%} ({low:.0%}-{high:.0%})"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--record", action="store_true", help="train first")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each training (120)")
    parser.add_argument("--runs", type=int, default=3, help="trainings of each job (3)")
    parser.add_argument(
        "--windows", type=float, nargs="+", default=WINDOWS_SECONDS, help="their seconds"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the recordings")
    parser.add_argument("--train", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.train:
        train(options.train, options.seconds, options.to)
        return
    if options.record:
        record(options.folder, options.seconds, options.runs)
    print("\n".join(table(list(read(options.folder)), options.windows)))


if __name__ == "__main__":
    main(sys.argv[1:])
