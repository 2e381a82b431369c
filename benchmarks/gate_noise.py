"""See how often `photofinish gate` is wrong here: `python -m benchmarks.gate_noise`.

A network of the user is changed in two ways: by a comment, and by computing so many more images
that a step takes 1.3 times as long. The gate compares both with the network as it was, many times.
Let other programs run meanwhile, as on a shared runner of CI. One thread trains.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from photofinish.errors import UserError
from photofinish.regressions import ALLOWED
from photofinish.regressions.gate import gate

_NETWORK = """\
import torch
from torch import nn

MORE = 0.0


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, classes),
        )

    def forward(self, images):
        count = len(images)
        more = images[: round(MORE * count)]
        return self.layers(torch.cat([images, more]))[:count]
"""
_MORE = 0.37
"""Share of images with which a step takes 1.3 times the processor time, as was measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--same", type=int, default=50, help="runs with equal speed; 50")
    parser.add_argument("--slower", type=int, default=20, help="runs that are slower; 20")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        _set_up(repository)
        tempfile.tempdir = folder  # a lock of its own, so that other trainings disturb it
        os.chdir(repository)
        runs = {0.0: args.same, _MORE: args.slower}
        for number in range(max(runs.values())):
            for more, count in runs.items():
                if number < count:
                    _change(repository, more)
                    _run(more)


def _set_up(repository: Path) -> None:
    repository.mkdir()
    (repository / "net.py").write_text(_NETWORK, encoding="utf-8")
    _git(repository, "init", "--quiet")
    _git(repository, "config", "user.name", "benchmark")
    _git(repository, "config", "user.email", "benchmark@example.com")
    subprocess.run([sys.executable, "-m", "photofinish", "init"], cwd=repository, check=True)
    params = repository / "params.yaml"
    text = params.read_text(encoding="utf-8")
    params.write_text(text.replace("threads: auto", "threads: 1"), encoding="utf-8")
    _git(repository, "add", "--all")
    _git(repository, "commit", "--quiet", "--message", "base")
    _git(repository, "tag", "base")
    command = [sys.executable, "-m", "dvc", "repro", "--quiet", "split", "download-weights"]
    subprocess.run(command, cwd=repository, check=True)


def _change(repository: Path, more: float) -> None:
    text = _NETWORK.replace("MORE = 0.0", f"MORE = {more}") + "# a comment\n"
    (repository / "net.py").write_text(text, encoding="utf-8")


def _run(more: float) -> None:
    """Print what was planted, whether there was an alarm, what was measured, and the load."""
    printed, started_seconds, outcome = io.StringIO(), time.monotonic(), "none"
    with contextlib.redirect_stdout(printed):
        try:
            gate("base", ALLOWED)
        except UserError:
            outcome = "alarm"
    measured = re.findall(r"([\d.]+)x the time", printed.getvalue())
    took_seconds = time.monotonic() - started_seconds
    load = os.getloadavg()[0]
    took = f"{took_seconds:.0f} s, load {load:.1f}"
    print(f"{'slower' if more else 'same'}: {outcome}, {measured[0]}x, {took}", flush=True)


def _git(repository: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=repository, check=True)


if __name__ == "__main__":
    main()
