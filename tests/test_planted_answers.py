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
        "yes": (125.0, 10.0, "Yes (the GPU here): 12x faster ("),
        "no": (20.0, 40.0, "No (the GPU here): 0.50x as fast ("),
        "same": (100.0, 98.0, "No difference (the GPU here): 1.02x faster ("),
        "unclear": (20.0, 18.0, "Can't tell (the GPU here): 1.11x faster ("),
        "short": (4.0, 3.9, "No (the GPU here): the whole job takes 4.0 s, 2.5 s of it start-up."),
    }
    for name, (cpu, gpu, _) in jobs.items():
        results = [job(make_result, name, cpu), job(make_result, name, gpu, "gpu")]
        write_results(results, tmp_path / "results")
    printed = compared(tmp_path, empty_database, list(jobs), ("T4",))
    for name, (_, _, answer) in jobs.items():
        assert f"{name}: {answer}" in printed
    text = (tmp_path / "report" / "comparison.md").read_text(encoding="utf-8")
    assert (
        "5 experiments. The GPU here: 2 No (short job), 1 Yes, 1 No difference, 1 Can't tell."
    ) in text
    assert "GPUs save about 115 s of 4.5 min." in text
    table = pd.read_csv(tmp_path / "report" / "comparison.csv").set_index("experiment")
    assert table.loc["yes", "answer"].tolist() == ["Yes", "Yes"]


def test_without_an_accelerator_estimates_records_and_bounds_decide(
    make_result: MakeResult, tmp_path: Path, empty_database: Path
) -> None:
    cpus = {
        "estimated": job(make_result, "estimated", 300.0, operations=LONG_STEP),
        "slower": job(make_result, "slower", 31.0, operations=LONG_STEP),
        "recorded": with_another_batch_size(job(make_result, "recorded", 100.0)),
        "startup": job(make_result, "startup", 60.0, startup_seconds=56.0),
        "unclear": job(make_result, "unclear", 62.0, operations=LONG_STEP),
        "unknown": job(make_result, "unknown", 62.0),
    }
    for name, cpu in cpus.items():
        missing = Missing(name, "gpu", cpu.record.experiment, "no driver")
        write_results([cpu, missing], tmp_path / "results")
    gpu = with_another_batch_size(job(make_result, "recorded", 10.0, "gpu"))
    history = list(gpu.history)
    reference = reference_of("recorded", gpu.record, gpu.timings, gpu.scores, history, "lab")
    write_reference(tmp_path / "reference", reference)
    answers = dict(
        re.findall(
            r"^([a-z]+): (.*)$",
            compared(tmp_path, empty_database, list(cpus), ("T4",)),
            re.MULTILINE,
        )
    )
    expected = {
        "estimated": "probably yes, about 5.7x faster",
        "slower": "probably no, about 0.58x as fast",
        "recorded": "probably yes, 10x faster",
        "startup": "no, 56 of its 60 s stay on the CPU (start-up)",
        "unclear": "can't tell, about 1.17x faster (0.72 to 1.94)",
        "unknown": "can't tell, no GPU trained it",
    }
    own = {name: text.partition("If this machine had a GPU: ")[2] for name, text in answers.items()}
    assert {name: own[name][: len(text)] for name, text in expected.items()} == expected


def test_a_script_on_both_devices_has_an_answer_and_its_metrics_side_by_side(
    make_result: MakeResult, tmp_path: Path, empty_database: Path
) -> None:
    for run in job(make_result, "mine", 125.0), job(make_result, "mine", 10.0, "gpu"):
        folder = tmp_path / "results" / "mine" / run.device / "measured"
        write_measured(folder, script_run(run, 0.25 if run.device == "cpu" else 0.5))
    printed = compared(tmp_path, empty_database, [], (), ("mine",))
    text = (tmp_path / "report" / "comparison.md").read_text(encoding="utf-8")
    page = html.unescape((tmp_path / "report" / "index.html").read_text(encoding="utf-8"))
    answer = "Yes (the GPU here): 12x faster ("
    assert f"mine: {answer}" in printed
    for shown in (text, page):
        assert answer in shown
        assert "On the GPU it reports loss 0.5; on the CPU loss 0.25." in shown
        assert "not known beyond the script's metrics" in shown
    assert "with the same trainer" not in page
    assert "waiting for batches" in page
    metrics = json.loads((tmp_path / "metrics" / "mine.json").read_text())
    assert (metrics["cpu"]["loss"], metrics["gpu"]["loss"]) == (0.25, 0.5)
