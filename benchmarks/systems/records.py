"""Records for reference/ of a planned project's experiments, on the accelerator here.

The project's plan and splits may come from another machine, as `photofinish run split` leaves them.
It needs pydantic, filelock, psutil and scikit-learn.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.probe.findings import ROOT
from photofinish.config.base import read_plan
from photofinish.config.devices import Devices
from photofinish.config.experiment import ExperimentPlan
from photofinish.files import write_text_atomically
from photofinish.machine.fingerprint import fingerprint
from photofinish.results import records
from photofinish.results.measured import MEASURED_FOLDER
from photofinish.results.references import record_all
from photofinish.results.trained import DEVICE_LABELS

_PLAN = Path("data/plan")


def record(project: Path) -> None:
    """Measure, train, evaluate and record each experiment. Files are in `project`/reference."""
    for device, host in zip(DEVICE_LABELS, fingerprint(Devices()), strict=True):
        write_text_atomically(project / _PLAN / f"hosts/{device}.json", host.model_dump_json())
    plans = sorted((project / _PLAN / "experiments").glob("*.json"))
    judging = []
    for plan in plans:
        name, path = plan.stem, str(plan.relative_to(project))
        experiment = read_plan(plan, ExperimentPlan)
        data = f"data/splits/{experiment.dataset}"
        own = {"device": "gpu", "host": f"{_PLAN}/hosts/gpu.json", "data": data}
        out, steps = f"results/{name}/gpu", f"{_PLAN}/steps/{name}.json"
        measured = {"steps": steps, "job": path, "out": f"{out}/{MEASURED_FOLDER}", "seconds": "5"}
        _stage(project, "measure", **own, **measured).wait()
        none = records.Unavailable(
            device="cpu", experiment=experiment, reason="only a GPU's record"
        )
        records.write_record(project / f"results/{name}/cpu" / records.MODEL / records.RECORD, none)
        budget = f"{_PLAN}/budget.json"
        _stage(project, "train", **own, experiment=path, out=out, budget=budget).wait()
        judged = {"results": "results", "metrics": f"{_PLAN}/metrics/{name}.json", "data": data}
        judged["out"] = f"results/{name}/{records.EVALUATED}"
        judging.append({"name": name, **judged})
    for process in [_stage(project, "evaluate", **arguments) for arguments in judging]:
        process.wait()
    record_all(project / _PLAN / "experiments", project / "results", project / "reference", None)


def _stage(project: Path, stage: str, **arguments: str) -> subprocess.Popen[bytes]:
    """Start a stage as DVC does."""
    command = [sys.executable, str(ROOT / "stages" / f"{stage}.py")]
    command += [text for key, value in arguments.items() for text in (f"--{key}", value)]
    return subprocess.Popen(command, cwd=project, env=os.environ | {"DVC_ROOT": str(project)})
