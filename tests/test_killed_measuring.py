"""A measurement that is killed leaves nothing behind, and the pipeline then measures again."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from conftest import ONE_THREAD, Project

NETWORK = """\
import os
from pathlib import Path
from torch import nn

class Net(nn.Module):
    calls = 0

    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(64, classes)

    def forward(self, images):
        Net.calls += 1
        if Net.calls == 30 and (kill := Path("kill.txt")).is_file():
            number = int(kill.read_text())
            kill.unlink()
            os.kill(os.getpid(), number)
        return self.linear(images.flatten(1))
"""


PARAMS: dict[str, Any] = {
    "defaults": {"batch_size": 64, "optimizer": {"name": "sgd", "lr": 0.05}},
    "devices": ONE_THREAD,
    "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
    "experiments": {"mine": {"dataset": "digits", "model": "./net.py:Net", "epochs": 2}},
}


@pytest.mark.slow
def test_a_killed_measurement_leaves_nothing_behind_and_the_next_repro_takes_it(
    project: Project,
) -> None:
    (project.root / "net.py").write_text(NETWORK, encoding="utf-8")
    project.write_params(PARAMS)
    project.without_mlflow()
    folder, kill = project.root / "results/mine/cpu/measured", project.root / "kill.txt"
    for number in (signal.SIGTERM, signal.SIGKILL):
        kill.write_text(str(int(number)), encoding="utf-8")
        ran = project.run("dvc", "repro", "measure-cpu@mine")
        assert ran.returncode != 0
        assert not kill.exists(), ran.stdout + ran.stderr  # it was killed while it measured
        assert not list(folder.rglob("*"))
    output = project.repro()
    assert output.index("\nmine on cpu: about ") < output.index("\nmine on cpu  epoch 1/2")
    assert "waiting" not in output  # for a lock of the killed one
    assert [file.name for file in folder.rglob("*")] == ["measured.json"]
    assert "\nmine," in (project.root / "report/comparison.csv").read_text(encoding="utf-8")
