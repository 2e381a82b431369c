"""Part 1: tests/test_gpu.py, each test a finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.probe.findings import ROOT, Findings


class _Noted:
    """A plug-in of pytest."""

    def __init__(self, found: Findings) -> None:
        self._found = found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test is done, or one of the steps before and after it."""
        name = report.nodeid.rpartition("::")[2]
        if report.skipped and isinstance(report.longrepr, tuple):
            self._found.skip(name, report.longrepr[2].removeprefix("Skipped: "))
        elif report.failed:
            print(report.longreprtext, flush=True)
            self._found.add(name, "FAILED", note=report.longreprtext.strip().rpartition("\n")[2])
        elif report.when == "call":
            self._found.add(name, "passed", note=f"{report.duration:.1f} s")


def run(found: Findings, _out: Path, _data: Path | None) -> None:
    """In this process; without the project's settings and fixtures, for which a bare machine lacks packages."""
    arguments = ["--noconftest", "-c", "/dev/null", f"--rootdir={ROOT}", "-p", "no:terminal", "-p", "no:cacheprovider"]
    pytest.main([*arguments, str(ROOT / "tests" / "test_gpu.py")], plugins=[_Noted(found)])
