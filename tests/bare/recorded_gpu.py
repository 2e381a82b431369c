"""Plug-in of pytest for tests/test_gpu.py: the CPU and a recorder stand in for a GPU."""

from __future__ import annotations

import pytest
import torch
from recorder import OperationRecorder

from photofinish.training import graphs, learning_rates, optimizer, torch_device

_is_available = torch.accelerator.is_available


def pytest_configure() -> None:
    recorder = OperationRecorder()
    patch = pytest.MonkeyPatch()
    patch.setattr(torch.accelerator, "is_available", lambda: True)  # read by the file's skip mark
    patch.setattr(torch_device, "accelerator", lambda *_: torch_device.CPU)
    patch.setattr(graphs, "recorder_of", lambda _device: recorder)
    for module in (learning_rates, optimizer):
        patch.setattr(module, "is_accelerator", lambda _device: True)


def pytest_collection_finish() -> None:
    torch.accelerator.is_available = _is_available
