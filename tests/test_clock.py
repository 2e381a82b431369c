"""The clock waits for an accelerator, and then for other processes, before it reads the time."""

from __future__ import annotations

import pytest
import torch

from photofinish.training.torch_device import Clock


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", ["all are here", "time read"]),
        ("cuda", ["device finished", "all are here", "time read"]),
        ("mps", ["device finished", "all are here", "time read"]),
    ],
)
def test_the_time_is_read_once_all_have_finished(
    monkeypatch: pytest.MonkeyPatch, device: str, expected: list[str]
) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: events.append("device finished"))
    monkeypatch.setattr("time.perf_counter", lambda: events.append("time read") or 12.5)
    clock = Clock(torch.device(device), lambda: events.append("all are here"))
    assert clock.now_seconds() == 12.5
    assert events == expected
