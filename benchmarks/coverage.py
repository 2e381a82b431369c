"""Does a range hold the next run's time? `python -m benchmarks.coverage` replays trainings.

Each window of a recorded training is a measurement, from which the tool's own function predicts a
whole job. Nine in ten ranges should hold the time of another run: a new process of the same job, on
this machine, in this hour. The exit status is 1 if fewer than 85 % do. Beside other programs no
range is printed, so there only the middle is compared.

`--record` trains seven jobs for `--seconds` each, on a quiet machine, beside a loop that computes
half of the time, and beside two loops. Windows of one training are alike, so it counts as one.
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
from photofinish.machine.load import LoadMonitor, LoadWindow, nvidia_gpu_state
from photofinish.models.registry import build_model
from photofinish.results import TimedPart
from photofinish.results.job import Job
from photofinish.results.measured import Measured, ScriptFacts
from photofinish.results.measured_jobs import measured_job

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
SECOND = "second machine"
"""Six processes one after another, each with a CNN, an MLP and a GRU in turns of 1 to 1.5 s.

A block is the mean step of a turn, and stands for the 3.75 s of a round. Load was not recorded.
"""
WINDOWS_SECONDS = 15.0, 60.0
LEAST_HELD = 0.85
"""Smallest share of other runs in their range. 32 trainings can't tell 0.9 from more than this."""
_BLOCK_SECONDS, _BLOCKS_A_READING = 0.2, 5
"""Time of the steps that are timed together, and their number between two readings of the load."""
_PARTS = 10
Step = Callable[[], object]


def of_batches(network: nn.Module, batches: Iterator[Sequence[Tensor]]) -> Step:
    """Return a step on the next batch."""
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        inputs, targets = next(batches)
        optimizer.zero_grad()
        functional.cross_entropy(network(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def of_network(network: nn.Module, inputs: Tensor) -> Step:
    """Return a step on the same batch."""
    targets = torch.randint(10, (len(inputs),))
    return of_batches(network, itertools.repeat((inputs, targets)))


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
    return of_batches(cnn(4, 64), itertools.chain.from_iterable(itertools.repeat(loader)))


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
    load, blocks, ends = LoadMonitor(nvidia_gpu_state(None)), [], time.perf_counter() + seconds
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
            command = [sys.executable, "-m", "benchmarks.coverage", "--train", job, str(file)]
            subprocess.run([*command, "--seconds", str(seconds)], check=True)
        print(file.name, flush=True)


def read(folder: Path) -> Iterator[Recording]:
    for file in sorted(folder.glob("*.npz")):
        job, condition, _, _ = file.name.replace("_", " ").split(".")
        with np.load(file) as found:
            load = [
                LoadWindow(
                    wall_seconds=wall, cores=int(cores), own_cpu_seconds=own,
                    others_cpu_seconds=others, waited_for_core_seconds=waited,
                    major_page_faults=0, swapped_pages=0,
                )
                for wall, cores, own, others, waited in found["load"].tolist()
            ]  # fmt: skip
            blocks = found["blocks"].astype(np.float64)
        yield Recording(job, condition, blocks, load)


def measured(recording: Recording, first: int, last: int) -> Job:
    """Return the whole training as if only these blocks of it had been timed."""
    blocks, whole_steps = recording.blocks[first:last], float(recording.blocks[:, 1].sum())
    load = recording.load[first // _BLOCKS_A_READING : math.ceil(last / _BLOCKS_A_READING)]
    sums = [part.sum(axis=0) for part in np.array_split(blocks, min(_PARTS, len(blocks)))]
    host: dict[str, Any] = {"threads": torch.get_num_threads(), "processes": 1, "cpu": None}
    script: dict[str, Any] = {"parameter_count": None, "precision": "fp32", "metrics": {}}
    where: Any = dict.fromkeys(("device_name", "host_name"), "")
    record: Any = Measured.model_construct(
        **where,
        device="cpu",
        started_at_unix_seconds=0.0,
        job=recording.job,
        parts=tuple(
            TimedPart(seconds=float(seconds), steps=float(count), epoch=0, holds="steps")
            for seconds, count in sums
        ),
        load=tuple(load),
        host=CpuTarget.model_construct(**host),
        startup_seconds=0.0,
        script=ScriptFacts.model_construct(steps=int(blocks[:, 1].sum()), **script),
    )
    return measured_job(record, 1.0, whole_steps)


class Window(NamedTuple):
    """Prediction by one window."""

    off: list[float]
    """Factors between it and the times of the job's other trainings."""
    held_others: float
    """Share of these that its range holds."""
    holds_own: bool
    """True if the range holds the time of the training itself, to its end."""
    width: float
    """Upper end over lower end, or 0 without a range."""


class Row(NamedTuple):
    """Predictions on one machine by windows of one length."""

    text: str
    held_others: float | None
    """Mean share of trainings, or None without ranges."""


def windows(recording: Recording, seconds: float, others: Sequence[Recording]) -> Iterator[Window]:
    """Yield a prediction for each window, which overlaps the next by half."""
    blocks = max(1, round(seconds / float(recording.blocks[:, 0].mean())))
    whole_seconds, whole_steps = recording.blocks.sum(axis=0)
    truths = [whole_steps * float(np.divide(*each.blocks.sum(axis=0))) for each in others]
    for first in range(0, len(recording.blocks) - blocks + 1, max(1, blocks // 2)):
        run = measured(recording, first, first + blocks)
        off = [math.exp(abs(math.log(truth / run.whole_seconds))) for truth in truths]
        interval = job_time(run).interval
        low, high = (math.inf, 0.0) if run.busy else interval  # none is printed, and holds nothing
        held = statistics.fmean(low <= truth <= high for truth in truths)
        yield Window(off, held, low <= whole_seconds <= high, high / low)


def rows(recordings: Sequence[Recording], lengths: Sequence[float]) -> Iterator[Row]:
    """Yield a row for each machine and length of windows, by the jobs that were trained twice."""
    for condition, seconds in itertools.product([*CONDITIONS, SECOND], lengths):
        same = [each for each in recordings if each.condition == condition]
        trainings = []
        for each in same:
            others = [one for one in same if one is not each and one.job == each.job]
            trainings += [list(windows(each, seconds, others))] if others else []
        if not trainings:
            continue
        found = [window for each in trainings for window in each]
        within = np.quantile([factor for each in found for factor in each.off], 0.9)
        cells, mean = "- | - | -", None
        if widths := [each.width for each in found if each.width]:
            held = [statistics.fmean(one.held_others for one in each) for each in trainings]
            own = [statistics.fmean(one.holds_own for one in each) for each in trainings]
            mean = statistics.fmean(held)
            cells = f"{_share(held)} | {_share(own)} | {statistics.median(widths):.2f}"
        start = f"| {condition} | {seconds:g} s | {len(trainings)}"
        yield Row(f"{start} | {cells} | {within:.2f} |", mean)


def _share(of_trainings: Sequence[float]) -> str:
    """Return the mean share of trainings, with the interval of other trainings like these."""
    draws = np.random.default_rng(0).choice(of_trainings, (2000, len(of_trainings)))
    low, high = np.quantile(draws.mean(axis=1), [0.05, 0.95])
    return f"{statistics.fmean(of_trainings):.0%} ({low:.0%}-{high:.0%})"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--record", action="store_true", help="train first")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each training (120)")
    parser.add_argument("--runs", type=int, default=3, help="trainings of each job (3)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the recordings")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.train:
        train(options.train[0], options.seconds, Path(options.train[1]))
        return
    if options.record:
        record(options.folder, options.seconds, options.runs)
    print("| machine | window | trainings | another run | its own | high / low | within |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    found = list(rows(list(read(options.folder)), WINDOWS_SECONDS))
    print(*(each.text for each in found), sep="\n")
    if any(each.held_others is not None and each.held_others < LEAST_HELD for each in found):
        sys.exit(f"error: fewer than {LEAST_HELD:.0%} of ranges hold another run's time")


if __name__ == "__main__":
    main(sys.argv[1:])
