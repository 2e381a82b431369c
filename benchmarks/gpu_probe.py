"""Check and measure on a GPU, each part in a separate process that ends in time:
`python -m benchmarks.gpu_probe`.

All parts together take at most 560 s. Without a GPU, they run on less data, and the rest is listed
as not checked. The folder that `--out` names holds each part's findings (`tests.jsonl`), and
`probe.json` with all of them and their provenance. A part that runs by itself (`--only`) replaces
only its own findings. It needs PyTorch, torchvision, Pillow and pytest, and for scripts pydantic,
psutil and nvidia-ml-py.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from benchmarks.probe import findings
from benchmarks.probe.findings import ROOT, Findings
from photofinish.training.torch_device import CPU


@dataclass(frozen=True)
class Part:
    """A function in benchmarks/probe, its time limit, and the packages it needs."""

    module: str
    function: str
    seconds: int
    needs: tuple[str, ...]


_SCRIPTS = "pydantic", "psutil", "pynvml"
PARTS = {
    "tests": Part("tests", "run", 60, ("pytest", "PIL")),
    "watched": Part("watching", "run_watched", 170, _SCRIPTS),
    "same": Part("watching", "run_same", 60, _SCRIPTS),
    "memory": Part("memory", "run", 70, ("torchvision",)),
    "broken": Part("watching", "run_broken", 60, _SCRIPTS),
    "shared": Part("watching", "run_shared", 25, _SCRIPTS),
    "fused": Part("fused", "run", 90, ("torchvision",)),
}
"""The most valuable first, in case that time ends."""


def run_part(name: str, out: Path) -> None:
    """Run a part in this process."""
    part, kept = PARTS[name], Findings(name, _file(out, name))
    missing = [package for package in part.needs if importlib.util.find_spec(package) is None]
    if missing:
        kept.skip("all of it", f"not installed here: {', '.join(missing)}")
        return
    if findings.here(make_current=False) == CPU:
        torch.set_num_threads(1)  # this only shows that all of it runs, on a busy machine too
    module = importlib.import_module(f"benchmarks.probe.{part.module}")
    getattr(module, part.function)(kept, out)


@cache
def _warm_python() -> str:
    """Return a Python that has imported torch and forks, or this one where that fails."""
    python: str = importlib.import_module("tests.warm_python").executable()
    tried = subprocess.run([python, "-m", "this"], stdout=subprocess.DEVNULL, check=False)
    return sys.executable if tried.returncode else python


def start_part(name: str, out: Path) -> None:
    """Run a part in a separate process, which is ended with its children after its time."""
    part, kept = PARTS[name], Findings(name, _file(out, name))
    python = sys.executable if name == "tests" else _warm_python()
    command = [python, "-m", "benchmarks.gpu_probe", "--out", str(out), "--part", name]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    print(f"\n== {name}, {part.seconds} s at most", flush=True)
    started_seconds = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, process_group=0
    )
    try:
        status = process.wait(part.seconds)
        if status:
            kept.add(
                "the rest", "FAILED", note=f"the part ended with status {status}: see its output"
            )
    except subprocess.TimeoutExpired:
        kept.skip("the rest", f"not done within {part.seconds} s")
    finally:
        if process.poll() is None:
            process.terminate()  # it ends the scripts that it started
            time.sleep(1)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    kept.add("took", time.monotonic() - started_seconds, "s")


def _file(out: Path, part: str) -> Path:
    return out / f"{part}.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_probe", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu")
    parser.add_argument(
        "--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="these parts alone"
    )
    parser.add_argument(
        "--part", choices=list(PARTS), help=argparse.SUPPRESS
    )  # what a part's process is started with
    args = parser.parse_args()
    # By default, no part would be ended with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = args.out.resolve()
    if args.part:
        run_part(args.part, out)
        return
    out.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        _file(out, name).unlink(missing_ok=True)
    facts = findings.provenance()
    print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n", flush=True)
    for name in args.only:
        start_part(name, out)
        files = [_file(out, part) for part in PARTS if _file(out, part).is_file()]
        every = findings.read(files)
        findings.write(out, facts, every)
    failed = [each for each in every if str(each.value).startswith(("FAILED", "OTHER"))]
    unchecked = Counter((each.part, each.note) for each in every if each.value is None)
    print(f"\n== {unchecked.total()} not checked")
    print(*(f"{part}: {count} times: {why}" for (part, why), count in unchecked.items()), sep="\n")
    print(f"\n== {len(failed)} failed", *failed, out / "probe.json", sep="\n")


if __name__ == "__main__":
    main()
