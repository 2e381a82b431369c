"""A measurement that is killed is shown, leaves nothing behind, and is then taken again."""

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
def test_a_killed_measurement_leaves_nothing_behind_and_the_next_run_takes_it_and_answers(
    project: Project,
) -> None:
    (project.root / "net.py").write_text(NETWORK, encoding="utf-8")
    project.write_params(PARAMS)
    project.without_mlflow()
    folder, kill = project.root / "results/mine/cpu/measured", project.root / "kill.txt"
    for number in (signal.SIGTERM, signal.SIGKILL):
        kill.write_text(str(int(number)), encoding="utf-8")
        ran = project.run("photofinish", "run")
        assert ran.returncode == 255  # DVC's
        assert "failed to reproduce 'measure-cpu@mine'" in ran.stderr
        assert "Running stage" not in ran.stdout
        assert not kill.exists(), ran.stdout + ran.stderr  # it was killed while it measured
        assert not list(folder.rglob("*"))
    ran = project.run("photofinish", "run")
    output = ran.stdout
    assert (ran.returncode, ran.stderr) == (0, "")  # without waiting for a killed one's lock
    assert output.index("\nmine on cpu: about ") < output.index("\nmine on cpu  2 epochs, ")
    *lines, last = output.splitlines()
    assert len(lines) < 20, output
    assert last.startswith("Next: `photofinish report --open` shows pictures")
    answers = project.run("photofinish", "report").stdout.splitlines()[:-1]
    assert lines[-len(answers) :] == answers
    assert [file.name for file in folder.rglob("*")] == ["measured.json"]
    assert "\nmine," in (project.root / "report/comparison.csv").read_text(encoding="utf-8")
