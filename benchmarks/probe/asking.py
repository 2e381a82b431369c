"""`photofinish ask` of scripts on a GPU, beside what their steps take without it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.probe.findings import ROOT, Findings, here
from benchmarks.probe.gpu_scripts import RUNS, truth
from photofinish.training.torch_device import CPU

_SCRIPT = ROOT / "benchmarks" / "probe" / "gpu_scripts.py"
_SECONDS, _MOST_SECONDS = 4, 200
_SEEDED = "read_loss", "short_epochs", "hidden_loading", "trainer"
"""Scripts whose first steps are compared, too, by a third run."""
_NOT_ALONE = {"language_model", "compiled_step", "only_cuda", "trainer"}
_BUSY = """import torch
a = torch.randn(8192, 8192, device="cuda")
while True:
    for _ in range(20): a @ a
    torch.cuda.synchronize()"""


def run(findings: Findings, out: Path, _data: Path | None) -> None:
    """Ask about each script. Files are out/ask-NAME.json and out/ask.txt."""
    for name in RUNS:
        with findings.failures_kept(name):
            _ask(findings, out, name, name)
    if here().type == "cuda":
        with subprocess.Popen([sys.executable, "-c", _BUSY]) as beside:
            with findings.failures_kept("read_loss", "beside another process"):
                time.sleep(8)
                _ask(findings, out, "read_loss", "read_loss-busy")
            beside.kill()


def run_alone(findings: Findings, _out: Path, _data: Path | None) -> None:
    """Time the same scripts' steps without `ask`, except if they compile or fix the device."""
    device = here()
    for name in RUNS.keys() - _NOT_ALONE:
        with findings.failures_kept(name):
            alone = truth(name, device, 3.0 if device != CPU else 0.2)
            note = f"kernels run in {alone['busy_share']:.0%}" if "busy_share" in alone else ""
            findings.add(name, alone["step_seconds"] * 1e3, "ms", note=note)


def _ask(findings: Findings, out: Path, name: str, called: str) -> None:
    """Ask, and keep the answer, and a step's time on each device."""
    file = out / f"ask-{called}.json"
    command = [sys.executable, "-m", "photofinish", "ask", "--seconds", str(_SECONDS)]
    command += ["--gpu", "T4,H100", "--json", str(file)]
    command += [] if called in _SEEDED else ["--no-seed"]
    command += ["--", sys.executable, str(_SCRIPT), name, "--device", "{device}"]
    began_seconds = time.monotonic()
    ran = subprocess.run(
        command, cwd=out, text=True, check=False, timeout=_MOST_SECONDS, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    took_seconds = time.monotonic() - began_seconds
    with (out / "ask.txt").open("a", encoding="utf-8") as text:
        text.write(f"== {called}, {took_seconds:.0f} s, status {ran.returncode}\n{ran.stdout}\n")
    answers = [
        line for line in ran.stdout.splitlines() if re.match("Yes|No|Prob|Close|Can't", line)
    ]
    findings.add(called, answers[-1] if answers else "FAILED", variant=f"status {ran.returncode}")
    if not file.is_file():
        return
    records: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))[0]["records"]
    for label, record in records.items():
        parts = [part for part in record["parts"] if part["steps"]]
        taken = sum(part["steps"] for part in parts)
        passed_seconds = sum(part["seconds"] for part in parts)
        waits = sum(part["waiting_seconds"] or 0.0 for part in parts) / passed_seconds
        peak = record["peak_memory_bytes"]
        findings.add(
            called, passed_seconds / taken * 1e3, "ms", variant=label,
            note=f"{taken:.0f} steps, {waits:.0%} waiting, memory {peak}, "
            f"start-up {record['startup_seconds']:.1f} s, "
            f"first steps {'kept' if record['script']['first_steps'] else 'not kept'}",
        )  # fmt: skip
