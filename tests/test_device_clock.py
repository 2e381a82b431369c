"""Figures of scripts on a device that works while the host goes on, whose true times are planted.

The simulated accelerator's clock is held (rehearsal/), so that a busy machine changes no figure.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from watched_scripts import figures_of, recorded

from photofinish.results.timed_parts import epoch_by_parts

pytestmark = pytest.mark.slow

BEGIN = """
import torch
import rehearsal_device as device
device.hold_clock()
import functools, time
import photofinish
photofinish.steps([])
net = torch.nn.Linear(4, 2).to("rehearsal")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
inputs = torch.ones(8, 4, device="rehearsal")

@functools.cache
def loader(batches, seconds):
    data = [seconds] * batches
    return torch.utils.data.DataLoader(data, batch_size=None, collate_fn=time.sleep)
def compute(seconds):
    net(inputs).sum().backward()
    device.launch(seconds)
def step(seconds):
    compute(seconds)
    optimizer.step()
    optimizer.zero_grad()
def read():
    inputs.sum().item()
def validate(batches, seconds):
    net.eval()
    with torch.no_grad():
        for _ in loader(batches, seconds):
            net(inputs)
            device.launch(0.01)
    read()
    net.train()
"""
END = """
read()
print(time.perf_counter())
time.sleep(1)
"""


class Truth(NamedTuple):
    """True times of a script, as planted: of a step, and of an epoch with its validation."""

    script: str
    step_seconds: float
    loading: float
    """Share of a step in which the device waits for batches."""
    epoch_steps: int
    epoch_seconds: float
    validation_seconds: float = 0.0


def steps(batches: int, loading: float, computing: float, read: str = "") -> str:
    return f"for _ in loader({batches}, {loading}):\n    step({computing})\n    {read}\n"


HIDDEN = steps(60, 0.24, 0.3)
SHORT = """
for _ in range(30):
    for _ in loader(20, 0.0):
        time.sleep(0.002)
        step(0.01)
    READ
    validate(5, 0.0)
"""
ACCUMULATED = """
for number, _ in enumerate(loader(400, 0.03), 1):
    compute(0.01)
    if number % 4 == 0:
        step(0.0)
"""
OLD_TORCH = """
stream, Event = torch.accelerator.current_stream(), torch.Event
torch.rehearsal.current_stream = lambda device: stream
torch.rehearsal.synchronize = lambda device: stream.synchronize()
torch.rehearsal.Event = lambda **named: Event("rehearsal", **named)
del torch.accelerator, torch.Event
"""
IN_EPOCHS = """
for _ in range(6):
    for _ in loader(40, 0.02):
        step(0.03)
        read()
    validate(10, 0.02)
"""
REPLAYED = """
for _ in range(3):
    step(0.01)
device.capture(True)
for _ in loader(1, 0.0):
    step(0.01)
device.capture(False)
for _ in photofinish.steps(loader(300, 0.005)):
    device.launch(0.01)
    read()
"""
SCRIPTS = {
    "loading hidden behind computing": Truth(HIDDEN, 0.3, 0.0, 60, 18.0),
    "slow steps, read": Truth(steps(60, 0.15, 0.05, "read()"), 0.2, 0.75, 60, 12.0),
    "slow steps, old torch": Truth(OLD_TORCH + steps(40, 0.3, 0.06), 0.3, 0.8, 40, 12.0),
    "accumulated gradients": Truth(ACCUMULATED, 0.12, 2 / 3, 100, 12.0),
    "short epochs, read": Truth(SHORT.replace("READ", "read()"), 0.01, 0.0, 20, 0.252, 0.052),
    "short epochs, unread": Truth(SHORT.replace("READ", ""), 0.01, 0.0, 20, 0.252, 0.052),
    "validation between epochs": Truth(IN_EPOCHS, 0.05, 0.4, 40, 2.21, 0.21),
    "replays of a captured step": Truth(REPLAYED, 0.015, 1 / 3, 300, 4.5),
}


@pytest.mark.parametrize("truth", SCRIPTS.values(), ids=list(SCRIPTS))
def test_the_figures_of_a_script_on_a_device_are_the_true_ones(
    tmp_path: Path, environment: dict[str, str], truth: Truth
) -> None:
    process, printed = recorded(
        tmp_path, BEGIN + truth.script + END, PYTHONPATH=environment["PYTHONPATH"]
    )
    assert (process.device, process.unseen) == ("rehearsal", None)
    figures = figures_of(process)
    validation_seconds = figures.validation_step_seconds * truth.epoch_steps
    epoch = epoch_by_parts(figures.parts, truth.epoch_steps)
    assert figures.step_seconds == pytest.approx(truth.step_seconds, rel=0.03)
    assert figures.waiting_share == pytest.approx(truth.loading, abs=0.05)
    assert validation_seconds == pytest.approx(truth.validation_seconds, rel=0.05, abs=1e-3)
    assert epoch.seconds + validation_seconds == pytest.approx(truth.epoch_seconds, rel=0.03)
    assert figures.last_step_at < float(printed) + 0.001


@pytest.mark.parametrize(("host_seconds", "idle_share"), [(0.0095, 1.0), (0.001, 0.0)])
def test_a_device_that_waits_for_launches_is_idle_at_the_end_of_a_step(
    tmp_path: Path, environment: dict[str, str], host_seconds: float, idle_share: float
) -> None:
    script = f"for _ in range(200): time.sleep({host_seconds}); step({0.01 - host_seconds})\n"
    process, _ = recorded(tmp_path, BEGIN + script + END, PYTHONPATH=environment["PYTHONPATH"])
    assert figures_of(process).idle_share == pytest.approx(idle_share, abs=0.05)


def test_steps_that_a_device_had_not_ended_when_the_script_was_killed_are_not_counted(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    killed = "import os\nos.kill(os.getpid(), 9)"
    process, _ = recorded(tmp_path, BEGIN + HIDDEN + killed, PYTHONPATH=environment["PYTHONPATH"])
    figures = figures_of(process)
    assert 40 < figures.steps <= 60 * 0.24 / 0.3
    assert figures.step_seconds == pytest.approx(0.3, rel=0.03)
