"""Part 6: `dvc repro` of the default experiments from nothing, in a copy of the project."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.probe.findings import ROOT, Findings, here
from photofinish.results import records

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".photofinish", "data", "results", "report", "mlruns", "mlflow.db", "cache", "tmp", "shared",
    "*_cache", "__pycache__", ".mutants", "dvc.lock",
)  # fmt: skip


def run(found: Findings, _out: Path, _data: Path | None) -> None:
    """With the packages that are installed."""
    with tempfile.TemporaryDirectory(prefix="photofinish-probe-") as name:
        project = Path(name) / "project"
        shutil.copytree(ROOT, project, ignore=_LEFT_OUT)
        # `src/photofinish/data` and the like are folders of sources, and no results.
        shutil.copytree(ROOT / "src", project / "src", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        dvc = [sys.executable, "-m", "dvc"]
        subprocess.run([*dvc, "config", "--local", "core.no_scm", "true"], cwd=project, check=True)
        started_seconds = time.monotonic()
        status = subprocess.run([*dvc, "repro"], cwd=project, check=False).returncode
        if status:
            found.add("dvc repro", f"FAILED with status {status}")
            return
        found.add("dvc repro from nothing", time.monotonic() - started_seconds, "s")
        for record in sorted((project / "results").glob(f"*/gpu/{records.LEARNED}")):
            training = records.read_training(record)
            experiment = record.parent.parent.name
            if isinstance(training, records.Training):
                found.add("trained", training.device_kind, variant=experiment)
            else:
                found.skip("trained on the GPU", training.reason, variant=experiment)
        subprocess.run([*dvc, "repro"], cwd=project, check=True)
        if here().type == "cpu":
            return
        page = project / "report" / "comparison.md"
        print(page.read_text(encoding="utf-8"), flush=True)
