"""tests/test_gpu.py on a bare machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.probe.findings import ROOT, Findings


def run(findings: Findings, _out: Path) -> None:
    """Run tests/test_gpu.py without the project's settings, whose packages a bare machine lacks."""
    command = [sys.executable, "-m", "pytest", "--noconftest", "-c", "/dev/null", "-q", "-rA"]
    command += [f"--rootdir={ROOT}", "-p", "no:cacheprovider", str(ROOT / "tests" / "test_gpu.py")]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    for line in ran.stdout.splitlines():
        outcome, _, test = line.partition(" ")
        if outcome == "SKIPPED":
            findings.skip("a test", test)
        elif outcome in ("PASSED", "FAILED", "ERROR"):
            name, _, reason = test.rpartition("::")[2].partition(" - ")
            findings.add(name, "passed" if outcome == "PASSED" else "FAILED", note=reason)
    if ran.returncode > 1:
        print(ran.stdout)
        findings.add("pytest", f"FAILED with status {ran.returncode}")
