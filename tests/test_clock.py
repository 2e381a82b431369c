"""The clock waits for an accelerator to finish before it reads the time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from photofinish.config.kinds import KINDS
from photofinish.training import torch_device
from photofinish.training.torch_device import Clock


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the clock's actions."""
    events: list[str] = []

    def read_time() -> float:
        events.append("time read")
        return 12.5

    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: events.append("device finished"))
    monkeypatch.setattr(torch_device, "time", SimpleNamespace(perf_counter=read_time))
    return events


@pytest.mark.parametrize("kind", KINDS)
def test_it_waits_for_an_accelerator_before_it_reads_the_time(events: list[str], kind: str) -> None:
    assert Clock(torch.device(kind)).now_seconds() == 12.5
    assert events == ["device finished", "time read"]


def test_it_waits_for_nothing_on_the_cpu(events: list[str]) -> None:
    assert Clock(torch.device("cpu")).now_seconds() == 12.5
    assert events == ["time read"]


def test_it_waits_for_every_other_process_once_the_device_has_finished(events: list[str]) -> None:
    clock = Clock(torch.device("cuda"), lambda: events.append("all are here"))
    assert clock.now_seconds() == 12.5
    assert events == ["device finished", "all are here", "time read"]
