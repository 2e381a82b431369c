"""Each of the six answers, planted in results on disk and read by the compare stage."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import warm_python
from conftest import ROOT, MakeResult
from result_files import (
    STEP,
    Missing,
    taken_apart,
    trained,
    with_record,
    with_timings,
    write_results,
)

from photofinish.answer.result import Trained
from photofinish.config.compare import ComparePlan
from photofinish.config.scripts import ScriptPlan
from photofinish.files import write_json_atomically
from photofinish.results.measured import JobLength, Measured, ScriptFacts, write_measured
from photofinish.results.records import DeviceLabel
from photofinish.results.references import reference_of, write_reference
from photofinish.results.timed_parts import TimedPart

LONG_STEP = STEP.model_copy(update={"flops": 8 * 10**11, "saved_tensor_bytes": 32 * 10**8})
"""Step that takes a T4 260 ms by estimate, and so 49 s in five epochs of 600 samples."""


def job(
    make_result: MakeResult, name: str, seconds: float, device: DeviceLabel = "cpu", **timings: Any
) -> Trained:
    """Make a job of five epochs, with 2.5 s of start-up."""
    made_up = trained(
        make_result,
        name,
        device,
        epoch_seconds=((seconds - 2.5) / 5 - 0.1,) * 5,
        total_seconds=seconds,
        device_name=f"Some {device.upper()}",
    )
    return with_timings(made_up, **timings)


def with_another_batch_size(result: Trained) -> Trained:
    """Make it another training, so that no record fits the others."""
    experiment = result.record.experiment.model_copy(update={"batch_size": 8})
    return with_record(result, experiment=experiment)


def alone(result: Trained) -> Trained:
    """Give a training a data set of its own, so that it shares no rented GPU with others."""
    experiment = result.record.experiment.model_copy(update={"dataset": result.experiment})
    return with_record(result, experiment=experiment)


def script_run(of_job: Trained, loss: float) -> Measured:
    """Make a script that took as long, a tenth of it waiting for batches."""
    times, measured = taken_apart(of_job)
    parts = [
        TimedPart(
            seconds=timing.training_seconds,
            steps=100.0,
            epoch=epoch,
            holds="steps",
            waiting_seconds=timing.training_seconds / 10,
        )
        for epoch, timing in enumerate(times.epochs)
    ]
    steps = 100 * len(parts)
    script = ScriptFacts(
        command="python train.py",
        files={},
        device_kind="cpu" if of_job.device == "cpu" else "cuda",
        precision="fp32",
        parameter_count=10,
        lengths=(JobLength(value=steps, unit="steps", by="its whole run"),),
        steps=steps,
        samples_per_step=16,
        metrics={"loss": loss},
    )
    changed = {
        "training": None,
        "script": script,
        "parts": tuple(parts),
        "epoch_steps": 100.0,
        "end_seconds": times.total_seconds
        - times.startup_seconds
        - sum(timing.training_seconds for timing in times.epochs),
        "load": times.load,
        "first_step": None,
        "steady_state": None,
        "attribution": None,
        "loader": None,
        "tried_threads": (),
    }
    return measured.model_copy(update=changed)


def compared(
    folder: Path,
    database: Path,
    names: list[str],
    accelerators: tuple[str, ...],
    scripts: tuple[str, ...] = (),
) -> str:
    """Run the compare stage on `folder`, and return what it prints."""
    command = {"command": "python train.py", "metrics": None, "files": {}}
    plan = ComparePlan(
        experiments=tuple(names),
        accelerators=accelerators,
        scripts=tuple(ScriptPlan(name=name, **command) for name in scripts),
    )
    write_json_atomically(folder / "plan.json", plan.model_dump(mode="json"))
    shutil.copy(database, folder / "mlflow.db")
    arguments = "--plan plan.json --references reference --results results --out report"
    arguments += " --metrics metrics --plots plots"
    done = subprocess.run(
        [warm_python.executable(), ROOT / "stages" / "compare.py", *arguments.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_with_an_accelerator_the_job_decides(
    make_result: MakeResult, tmp_path: Path, empty_database: Path
) -> None:
    jobs = {
        "yes": (125.0, 10.0, "Yes. 10 s on the Some GPU, 2.1 min on the CPU: 12x ("),
        "no": (20.0, 40.0, "No. 40 s on the Some GPU, 20 s on the CPU: 0.5x ("),
        "same": (100.0, 98.0, "Close call. 100 s on the CPU and 98 s on the Some GPU: 1.0x ("),
        "open": (4.0, 3.8, "Can't tell yet: 3.8 s on the Some GPU, 4 s on the CPU: 1.1x ("),
    }
    for name, (cpu, gpu, _) in jobs.items():
        results = [job(make_result, name, cpu), job(make_result, name, gpu, "gpu")]
        write_results(results, tmp_path / "results")
    printed = lines_of(compared(tmp_path, empty_database, list(jobs), ("T4",)))
    for name, (_, _, answer) in jobs.items():
        assert printed[name].startswith(answer)
    text = (tmp_path / "report" / "comparison.md").read_text(encoding="utf-8")
    assert "1 Yes · 1 No · 1 Close call · 1 " in text
    table = pd.read_csv(tmp_path / "report" / "comparison.csv").set_index("experiment")
    assert table.loc["yes", "answer"].tolist() == ["Yes", "Yes"]


def test_without_an_accelerator_estimates_records_and_bounds_decide(
    make_result: MakeResult, tmp_path: Path, empty_database: Path
) -> None:
    cpus = {
        "long": job(make_result, "long", 3000.0, operations=LONG_STEP),
        "short": job(make_result, "short", 31.0, operations=LONG_STEP),
        "recorded": with_another_batch_size(job(make_result, "recorded", 100.0)),
        "startup": job(make_result, "startup", 60.0, startup_seconds=56.0),
        "unknown": job(make_result, "unknown", 62.0),
        "open": job(make_result, "open", 3000.0),
    }
    for name, cpu in cpus.items():
        missing = Missing(name, "gpu", cpu.record.experiment, "no driver")
        write_results([alone(cpu), missing], tmp_path / "results")
    gpu = with_another_batch_size(job(make_result, "recorded", 10.0, "gpu"))
    gpu, history = alone(gpu), list(gpu.history)
    reference = reference_of("recorded", gpu.record, gpu.timings, gpu.scores, history, "lab")
    write_reference(tmp_path / "reference", reference)
    answers = lines_of(compared(tmp_path, empty_database, list(cpus), ("T4",)))
    expected = {
        "long": "Probably yes, rent a T4: ~",
        "short": "No, not for rent. 31 s here; on a T4 ~",
        "recorded": "Probably yes, use a Some GPU: 10 s (",
        "startup": "No. 60 s here, and no GPU makes it more than 1.",
        "unknown": "No, not for rent. 62 s here, and a machine with a GPU takes 5 min to start.",
        "open": "Can't tell: 50 min here, and no estimate for a GPU. ",
    }
    assert {name: answers[name][: len(text)] for name, text in expected.items()} == expected


def lines_of(printed: str) -> dict[str, str]:
    """Return the first line of each answer that the stage printed."""
    return dict(re.findall(r"^([a-z]+)  +(\S.*)$", printed, re.MULTILINE))


def test_a_script_on_both_devices_has_an_answer_and_its_metrics_side_by_side(
    make_result: MakeResult, tmp_path: Path, empty_database: Path
) -> None:
    for run in job(make_result, "mine", 125.0), job(make_result, "mine", 10.0, "gpu"):
        folder = tmp_path / "results" / "mine" / run.device / "measured"
        write_measured(folder, script_run(run, 0.25 if run.device == "cpu" else 0.5))
    printed = compared(tmp_path, empty_database, [], (), ("mine",))
    text = (tmp_path / "report" / "comparison.md").read_text(encoding="utf-8")
    page = html.unescape((tmp_path / "report" / "index.html").read_text(encoding="utf-8"))
    answer = "Yes. 10 s on the Some GPU, 2.1 min on the CPU: 12x ("
    assert lines_of(printed)["mine"].startswith(answer)
    for shown in (text, page):
        assert answer in shown
        assert "On the GPU it reports loss 0.5; on the CPU loss 0.25." in shown
        assert "Model: not checked" in shown
    assert "with the same trainer" not in page
    assert "waiting for batches" in page
    metrics = json.loads((tmp_path / "metrics" / "mine.json").read_text())
    assert (metrics["cpu"]["loss"], metrics["gpu"]["loss"]) == (0.25, 0.5)
