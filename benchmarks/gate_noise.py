"""See how often `photofinish gate` is wrong here: `python -m benchmarks.gate_noise`.

A custom network is changed in two ways: by a comment, and by computing so many more images that a
step takes 1.3 times as long. The gate compares both with the network as it was, many times. One
thread trains. A comparison takes about ten seconds on two quiet cores. Let other programs run
meanwhile to see a shared runner of CI.
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

from photofinish.gate import ALLOWED
from photofinish.gate.gate import changes_since

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
_SLOWER = 0.37
"""Share of images with which a step takes 1.3 times the processor time, as measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--same", type=int, default=150, help="comparisons of equal speed; 150")
    parser.add_argument("--slower", type=int, default=20, help="comparisons with 1.3x; 20")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        _set_up(repository)
        os.environ["XDG_STATE_HOME"] = folder  # a lock of its own, so that other trainings disturb
        os.chdir(repository)
        same = [_gate(0.0) for _ in range(args.same)]
        slower = [_gate(_SLOWER) for _ in range(args.slower)]
    print(f"alarms at equal speed: {sum(same)} of {len(same)}")
    print(f"1.3x seen: {sum(slower)} of {len(slower)}")


def _set_up(repository: Path) -> None:
    repository.mkdir()
    (repository / "net.py").write_text(_NETWORK, encoding="utf-8")
    _git(repository, "init", "--quiet")
    _git(repository, "config", "user.name", "benchmark")
    _git(repository, "config", "user.email", "benchmark@example.com")
    subprocess.run([sys.executable, "-m", "photofinish", "init"], cwd=repository, check=True)
    params = repository / "params.yaml"
    text = params.read_text(encoding="utf-8")
    text = text.replace("threads: auto", "threads: 1")
    params.write_text(re.sub("model: .*", "model: ./net.py:Net", text), encoding="utf-8")
    _git(repository, "add", "--all")
    _git(repository, "commit", "--quiet", "--message", "base")
    _git(repository, "tag", "base")
    command = [sys.executable, "-m", "dvc", "repro", "--quiet", "split", "download-weights"]
    subprocess.run(command, cwd=repository, check=True)


def _write(more: float, comment: str) -> None:
    text = _NETWORK.replace("MORE = 0.0", f"MORE = {more}") + f"# {comment}\n"
    Path("net.py").write_text(text, encoding="utf-8")


def _gate(more: float) -> bool:
    """Compare the network with what was planted. Return True if there was an alarm."""
    _write(more, "a comment")
    started_seconds = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        (change,) = changes_since("base", ALLOWED).values()
    title = "slower" if more else "same"
    took_seconds = time.monotonic() - started_seconds
    print(f"{title}: {took_seconds:.0f} s, load {os.getloadavg()[0]:.1f}, {change}", flush=True)
    return change.is_too_slow


def _git(repository: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=repository, check=True)


if __name__ == "__main__":
    main()
