"""See how often `photofinish gate` is wrong here: `python -m benchmarks.gate_noise`.

A network of the user is committed three times: as it is, with a comment, and with a wait that makes
each step take 1.3 times as long. The gate compares the last two with the first, many times.
Let other programs run meanwhile, as on a shared runner of CI.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_NETWORK = """\
import time

from torch import nn

SLOWER = 1.0


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(256, classes),
        )
        self.ended_seconds = None

    def forward(self, images):
        now = time.perf_counter()
        if self.ended_seconds and SLOWER > 1:
            until = now + (SLOWER - 1) * min(1.0, now - self.ended_seconds)
            while time.perf_counter() < until:
                pass
        self.ended_seconds = time.perf_counter()
        return self.layers(images)
"""
_SLOWER = 1.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--same", type=int, default=50, help="runs with equal speed; 50")
    parser.add_argument("--slower", type=int, default=20, help="runs that are slower; 20")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        _set_up(repository)
        runs = {1.0: args.same, _SLOWER: args.slower}
        for number in range(max(runs.values())):
            for factor, count in runs.items():
                if number < count:
                    _commit(repository, factor)
                    _run(repository, factor)


def _set_up(repository: Path) -> None:
    repository.mkdir()
    (repository / "net.py").write_text(_NETWORK, encoding="utf-8")
    _git(repository, "init", "--quiet")
    _git(repository, "config", "user.name", "benchmark")
    _git(repository, "config", "user.email", "benchmark@example.com")
    subprocess.run([sys.executable, "-m", "photofinish", "init"], cwd=repository, check=True)
    _git(repository, "add", "--all")
    _git(repository, "commit", "--quiet", "--message", "base")
    _git(repository, "tag", "base")


def _commit(repository: Path, factor: float) -> None:
    text = _NETWORK.replace("SLOWER = 1.0", f"SLOWER = {factor}") + "# a comment\n"
    (repository / "net.py").write_text(text, encoding="utf-8")


def _run(repository: Path, factor: float) -> None:
    """Print the planted factor, whether the gate raised an alarm, and the factor it measured."""
    # A lock of its own, so that other trainings disturb it.
    environment = os.environ | {"TMPDIR": str(repository.parent)}
    command = [sys.executable, "-m", "photofinish", "gate", "--base", "base"]
    ran = subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, check=False
    )
    measured = re.search(r"([\d.]+)x the time of", ran.stdout)
    if not measured:
        raise SystemExit(ran.stdout + ran.stderr)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(
        f"{factor:.1f},{'alarm' if ran.returncode else 'none'},{measured[1]},{load:.1f}", flush=True
    )


def _git(repository: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=repository, check=True)


if __name__ == "__main__":
    main()
