"""Measure the five tutorials' systems on the CPU, and beside it on an accelerator if there is one.

`python -m benchmarks.systems` needs PyTorch, torchvision, Pillow and psutil only. Each system has a
process of its own, and `--seconds` of training on each device, which its jobs share. Files: a line
for each measurement in systems.jsonl, as it goes, and the table in systems.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe
from benchmarks.probe.findings import ROOT, here
from benchmarks.systems.images import images_of
from benchmarks.systems.jobs import SYSTEMS
from benchmarks.systems.measure import measure
from photofinish.training.torch_device import CPU

SHARED = "cifar10-resnet18"
_OVERHEAD_SECONDS = 120
"""Time of a system's process beside the training: imports, images, warm-ups."""


def run_system(system: str, args: argparse.Namespace) -> None:
    """Measure a system's jobs on each device, and write a line for each."""
    devices = [CPU] if here() == CPU else [CPU, here()]
    jobs = SYSTEMS[system]
    with tempfile.TemporaryDirectory() as scratch:
        for job in jobs:
            images = images_of(job.images, args.data, Path(scratch), small=args.small)
            for device in devices:
                try:
                    measured = measure(job, images, device, args.seconds / len(jobs))
                    _write(args.out, asdict(measured))
                except (RuntimeError, ValueError, OSError) as error:  # the next job may work
                    problem = str(error).strip().partition("\n")[0]
                    _write(args.out, _not_run(system, job.name, device.type, problem))
    if system == SHARED:
        several = torch.accelerator.device_count()
        why = f"needs several GPUs, and there are {several} here"
        _write(args.out, _not_run(system, "data_parallel and ddp on GPUs", "gpu", why))


def _not_run(system: str, job: str, device: str, why: str) -> dict[str, Any]:
    return {"system": system, "job": job, "device": device, "not_run": why}


def _write(out: Path, line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)
    with (out / "systems.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def table(lines: list[dict[str, Any]], machine: dict[str, str]) -> str:
    """Return the measurements as a table in Markdown, with a row for each job."""
    by_device = {(line["job"], line["device"]): line for line in lines if "epoch_seconds" in line}
    kinds = [kind for kind in dict.fromkeys(device for _, device in by_device) if kind != "cpu"]
    rows = ["| job | the source | CPU, an epoch | GPU, an epoch | faster | whole job | accuracy |"]
    rows.append("| --- " * 7 + "|")
    for job in (job for jobs in SYSTEMS.values() for job in jobs):
        cpu = by_device.get((job.name, "cpu"))
        gpu = by_device.get((job.name, kinds[0])) if kinds else None
        measured = [each for each in (cpu, gpu) if each]
        if not measured:
            continue
        whole = [f"{each['planned_epochs'] * each['epoch_seconds']:.3g} s" for each in measured]
        best = measured[-1]
        accuracy = f"{best['test_accuracy']:.2%} after {best['epochs']}" if best["epochs"] else ""
        made = "" if best["is_real"] else ", made-up images"
        faster = f"{cpu['epoch_seconds'] / gpu['epoch_seconds']:.2g}x" if cpu and gpu else ""
        cells = [f"{job.name}{made}", job.theirs, _epoch(cpu), _epoch(gpu), faster]
        rows.append(f"| {' | '.join([*cells, ' / '.join(whole), accuracy])} |")
    devices = dict.fromkeys(line["device_name"] for line in by_device.values())
    facts = [f"{name} {value}" for name, value in machine.items()]
    notes = [
        f"* Not run: {line['job']} of {line['system']} on {line['device']}: {line['not_run']}"
        for line in lines
        if "not_run" in line
    ]
    notes.append(f"Devices: {', '.join(devices)}. {', '.join(facts)}.")
    return "\n".join([*rows, "", *notes, ""])


def _epoch(line: dict[str, Any] | None) -> str:
    if line is None:
        return ""
    if not line["epochs"]:
        return f"{line['epoch_seconds']:.3g} s, from {line['steps']} steps"
    return (
        f"{line['epoch_seconds']:.3g} s ({line['lowest_seconds']:.3g} to "
        f"{line['highest_seconds']:.3g}), {line['epochs']} epochs"
    )


def _start(system: str, args: argparse.Namespace) -> None:
    """Measure a system in a process that ends in time."""
    command = [sys.executable, "-m", "benchmarks.systems", "--system", system]
    command += ["--out", str(args.out), "--seconds", str(args.seconds)]
    command += ["--data", str(args.data)] if args.data else []
    command += ["--small"] if args.small else []
    limit_seconds = _OVERHEAD_SECONDS + 4 * args.seconds
    print(f"\n== {system}, {limit_seconds:.0f} s at most", flush=True)
    try:
        status = subprocess.run(command, cwd=ROOT, check=False, timeout=limit_seconds).returncode
        problem = f"its process ended with status {status}" if status else ""
    except subprocess.TimeoutExpired:
        problem = f"not done within {limit_seconds:.0f} s"
    if problem:
        _write(args.out, _not_run(system, "the rest", "any device", problem))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.systems", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "systems")
    parser.add_argument("--data", type=Path, help="a folder with MNIST/raw and FashionMNIST/raw")
    parser.add_argument("--seconds", type=float, default=15, help="of a system on each device")
    parser.add_argument("--only", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument(
        "--records", type=Path, metavar="PROJECT", help="write records of a planned project's jobs"
    )
    parser.add_argument("--small", action="store_true", help="only see that it runs")
    parser.add_argument("--system", choices=list(SYSTEMS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out, args.data = args.out.resolve(), args.data and args.data.resolve()
    if args.small:
        torch.set_num_threads(1)  # on a busy machine, several wait for each other
    if args.system:
        run_system(args.system, args)
        return
    if args.records:
        from benchmarks.systems.records import record  # which needs pydantic

        record(args.records.resolve())
        return
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "systems.jsonl").unlink(missing_ok=True)
    began_seconds = time.monotonic()
    for system in args.only:
        _start(system, args)
    text = (args.out / "systems.jsonl").read_text(encoding="utf-8")
    machine = describe(torch.get_num_threads())
    shown = table([json.loads(line) for line in text.splitlines()], machine)
    (args.out / "systems.md").write_text(shown, encoding="utf-8")
    print(f"\n{shown}\n{time.monotonic() - began_seconds:.0f} s; {args.out / 'systems.md'}")


if __name__ == "__main__":
    main()
