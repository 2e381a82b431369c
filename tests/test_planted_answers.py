"""Answers to planted jobs, and to a script whose records are read from disk.

golden/answers.txt has forty of them. Rewrite it with
`PHOTOFINISH_UPDATE_GOLDEN=1 pytest -n 0 tests/test_planted_answers.py`, and read it aloud, whole.
"""

from __future__ import annotations

import html
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeResult
from outputs import verdict
from planted_jobs import (
    FIRST_STEP,
    HOST,
    SCORES,
    SETTINGS,
    STARTUP_SECONDS,
    compared,
    history_of,
    lasting,
    make_job,
    make_model,
    while_busy,
    with_seeds,
)
from result_files import STEP, job_of, made_up_attribution
from test_default_jobs import MEASURED, cpu_result, shipped, shipped_references

from photofinish.answer.comparison import Comparison, compare
from photofinish.answer.decision import decide
from photofinish.answer.record import answer_record
from photofinish.commands.ask import job_answer, print_answers
from photofinish.config.compare import Comparing, Prices
from photofinish.config.scripts import ScriptPlan
from photofinish.reporting import report
from photofinish.reporting.report import page_of, write_for_dvc, write_report
from photofinish.results import TimedPart
from photofinish.results.job import Job, JobPair
from photofinish.results.measured import JobLength, Measured, ScriptFacts, write_measured
from photofinish.results.measured_jobs import job_of_script, measured_job, read_script
from photofinish.results.trained import DeviceLabel
from photofinish.results.training_jobs import with_references
from photofinish.scripts.script_record import WholeJob

GOLDEN = Path(__file__).parent / "golden" / "answers.txt"
UPDATES = bool(os.environ.get("PHOTOFINISH_UPDATE_GOLDEN"))
FIVE_EPOCHS = make_model(history=history_of(*(1.0,) * 5))


def script_run(
    seconds: float,
    device: DeviceLabel = "cpu",
    *,
    waiting_share: float = 0.1,
    loss: float = 0.25,
) -> Measured:
    """Make the record of a script of 500 steps in five epochs, which waited for its batches."""
    each = (seconds - STARTUP_SECONDS) / 5 - 0.1
    script = ScriptFacts(
        command="python train.py",
        files={},
        device_kind="cpu" if device == "cpu" else "cuda",
        precision="fp32",
        parameter_count=10,
        lengths=(JobLength(value=500, unit="steps", by="its whole run"),),
        steps=500,
        samples_per_step=16,
        metrics={"loss": loss},
    )
    return Measured(
        host=HOST,
        host_name="workbench",
        device_name=f"Some {device.upper()}",
        git_commit=None,
        packages={},
        started_at_unix_seconds=1.7e9,
        parts=tuple(
            TimedPart(each, 100.0, epoch, "steps", waiting_seconds=waiting_share * each)
            for epoch in range(5)
        ),
        epoch_steps=100.0,
        operations=HOUR_STEP if device == "cpu" else None,
        job="mine",
        device=device,
        script=script,
        startup_seconds=STARTUP_SECONDS,
        end_seconds=0.5,
        load=(),
    )


def here(seconds: float, operations: Any = None, **changed: Any) -> JobPair:
    """Plant a job on the CPU alone."""
    return JobPair(lasting(seconds, operations=operations, trained=FIVE_EPOCHS, **changed))


def both(cpu_seconds: float, gpu_seconds: float, **changed: Any) -> JobPair:
    """Plant a job on the CPU and on a GPU here."""
    gpu = lasting(gpu_seconds, "gpu", trained=replace(FIVE_EPOCHS, device="gpu"), **changed)
    return here(cpu_seconds, **changed)._replace(gpu=gpu)


def busily(pair: JobPair) -> JobPair:
    return pair._replace(cpu=while_busy(pair.cpu))


def first_passes(*passes: float) -> JobPair:
    """Plant a job of 80 epochs, of which these were trained."""
    operations = STEP.model_copy(update={"flops": 10**11})
    return JobPair(make_job(passes, left=80 - len(passes), operations=operations))


def with_seeds_on_both(apart: float) -> Comparison:
    """Compare four seeds, whose accuracies differ by this share between the devices."""
    pair, first_step = both(125.0, 10.0), FIRST_STEP.model_copy(update={"has_dropout": True})
    jobs = []
    for job, lost in ((pair.cpu, 0.0), (pair.gpu, apart)):
        first, *others = (accuracy - lost for accuracy in (0.9, 0.908, 0.902, 0.895))
        model = make_model(
            job.device,
            weights_sha256=job.device[0] * 64,
            first_step=first_step,
            scores=SCORES.model_copy(update={"test_accuracy": first}),
            history=history_of(*(1.0 + lost + 0.1 * (lost > 0),) * 5),
        )
        jobs.append(replace(job, trained=with_seeds(model, *others)))
    return compared(*jobs)


LONG_STEP = STEP.model_copy(update={"flops": 8 * 10**11, "saved_tensor_bytes": 32 * 10**8})
"""Step that takes a T4 260 ms by estimate, and so 49 s in five epochs of 600 samples."""
HOUR_STEP = STEP.model_copy(update={"flops": 10**13})
"""Step that takes a T4 1.2 s by estimate, and so 3.8 min in five epochs of 600 samples."""
LAUNCHING = STEP.model_copy(update={"flops": 10**8, "kernels": 20_000, "saved_tensor_bytes": 10**6})
COMPUTING = made_up_attribution(0.0)
RNN_STEP = HOUR_STEP.model_copy(update={"without_formula": ("_thnn_fused_lstm_cell",)})
FREE = Prices(accelerator_hour={"T4": 0.0})
RECORDED = replace(both(100.0, 10.0).gpu, machine="lab")
T4, SWEEP = Comparing(accelerators=("T4",)), "a sweep"
PROJECTS: dict[str, tuple[Comparing, dict[str, JobPair]]] = {
    "a T4 to rent": (
        T4,
        {
            "start-up": here(13.0, startup_seconds=10.0),
            "long": here(3600.0, HOUR_STEP),
            "short": here(31.0, LONG_STEP),
            "six-minutes": here(360.0, LONG_STEP),
            "quarter-of-an-hour": here(1000.0, HOUR_STEP),
            "noisy": first_passes(6.0, 9.0, 7.0),
            "steady": first_passes(60.0, 60.5, 60.2),
            "not-counted": here(62.0),
            "no-estimate": here(3000.0),
            "lstm": here(900.0, RNN_STEP),
            "beside-others": busily(here(900.0, HOUR_STEP)),
            "hours-beside-others": busily(here(20_000.0, LONG_STEP)),
            "launching": here(3600.0, LAUNCHING),
        },
    ),
    SWEEP: (T4, dict.fromkeys(("rate-1", "rate-2", "rate-3"), here(700.0, HOUR_STEP))),
    "it must save an hour": (
        Comparing(accelerators=("T4",), worth_saving=60.0),
        {"twelve-minutes": here(700.0, HOUR_STEP)},
    ),
    "it must save 56 minutes": (
        Comparing(accelerators=("T4",), worth_saving=56.0, rental_minutes=0.1),
        {"hour": here(3600.0, HOUR_STEP)},
    ),
    "a T4 of your own": (
        Comparing(accelerators=("T4",), worth_saving=0.0, rental_minutes=0.0),
        {
            "hour": here(3600.0, HOUR_STEP),
            "short": here(20.0, HOUR_STEP),
            "equal": here(230.0, HOUR_STEP),
        },
    ),
    "a free T4 in a minute": (
        Comparing(accelerators=("T4",), prices=FREE, rental_minutes=1.0),
        {"hour": here(3600.0, HOUR_STEP), "short": here(120.0, LONG_STEP)},
    ),
    "a GPU that another machine recorded": (
        Comparing(accelerators=()),
        {"recorded": here(100.0)._replace(references=(RECORDED,))},
    ),
    "several GPUs": (
        Comparing(accelerators=("T4", "L4", "A100", "H100")),
        {"day": here(86_400.0, HOUR_STEP)},
    ),
    "a GPU here": (
        T4,
        {
            "faster": both(125.0, 10.0, attribution=COMPUTING),
            "slower": both(10.0, 125.0, attribution=COMPUTING),
            "equal": both(100.0, 98.0),
            "noisy": both(4.0, 3.8),
            "beside-others": busily(both(125.0, 80.0)),
        },
    ),
}


def named(pair: JobPair, name: str, dataset: str) -> JobPair:
    """Name a job and its data set. Those with equal data sets share a rented GPU."""

    def with_name(job: Job) -> Job:
        return replace(job, name=name, settings=replace(SETTINGS, dataset=dataset))

    return pair._replace(cpu=with_name(pair.cpu), gpu=pair.gpu and with_name(pair.gpu))


def test_answers_read_as_they_did(
    make_result: MakeResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "find_spec", lambda _name: None)  # for no pictures
    jobs = [JobPair(job_of(cpu_result(make_result, name, 1.0))) for name in MEASURED]
    title = "the default jobs, with the records in reference/"
    default = shipped().comparing, with_references(jobs, shipped_references())
    projects = {title: default}
    for title, (settings, pairs) in PROJECTS.items():
        planted = [named(pairs[name], name, title if title == SWEEP else name) for name in pairs]
        projects[title] = settings, planted
    texts = []
    for title, (settings, planted) in projects.items():
        answers = page_of(answer_record([compare(pair, settings) for pair in planted])).answers
        texts.append(f"# {title}\n{answers.summary}\n{answers}")
    for seconds, gpu_seconds, share in ((51.0, 0, 0.1), (3600.0, 0, 0.5), (125.0, 10.0, 0.1)):
        cpu, gpu = script_run(seconds, waiting_share=share), None
        if gpu_seconds:
            gpu = job_of_script(script_run(gpu_seconds, "gpu"))
        jobs_of_script = JobPair(job_of_script(cpu), gpu, None if gpu else "no GPU found")
        pair = compare(jobs_of_script, Comparing(accelerators=("T4", "L4")))
        print_answers([job_answer(WholeJob("its whole run", 5, 100.0), pair, decide(pair), {})])
        texts.append(f"# photofinish ask\n{capsys.readouterr().out.strip()}")
    for apart in (0.01, 0.1, 0.3):
        texts.append("\n".join(("# four seeds", *verdict(with_seeds_on_both(apart)).lines)))
    text = "\n\n".join(texts) + "\n"
    if UPDATES:
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_a_script_on_both_devices_has_an_answer_and_its_metrics_side_by_side(
    tmp_path: Path,
) -> None:
    for run in script_run(125.0, loss=0.25), script_run(10.0, "gpu", loss=0.5):
        write_measured(tmp_path / "mine" / run.device / "measured", run)
    script = ScriptPlan(name="mine", command="python train.py", metrics=None, files={})
    record = answer_record([compare(read_script(script, tmp_path / "mine"))])
    printed = str(write_report(record, tmp_path / "report"))
    write_for_dvc(record, tmp_path / "report", tmp_path / "metrics", tmp_path / "plots")
    text = (tmp_path / "report" / "comparison.md").read_text(encoding="utf-8")
    page = html.unescape((tmp_path / "report" / "index.html").read_text(encoding="utf-8"))
    answer = "Yes, use the Some GPU: 2.1 min on the CPU, 10 s on the GPU, 12x faster ("
    assert f"mine  {answer}" in printed
    for shown in (text, page):
        assert answer in shown
        assert "It reports loss 0.5 on the GPU and loss 0.25 on the CPU." in shown
        assert "Same model: not checked" in shown
    assert "with the same trainer" not in page
    assert "waiting for batches" in page
    metrics = json.loads((tmp_path / "metrics" / "mine.json").read_text())
    assert (metrics["cpu"]["loss"], metrics["gpu"]["loss"]) == (0.25, 0.5)


@pytest.mark.parametrize(("ended", "action"), [(None, ""), ("exit status 1", "fix what")])
def test_an_open_answer_names_no_break_even_and_a_command_that_failed_is_mended_first(
    ended: str | None, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = script_run(360.0)  # steps that take a T4 longer, by a single part
    assert run.script
    script = run.script.model_copy(update={"ended": ended})
    run = run.model_copy(update={"parts": run.parts[:1], "script": script})
    pair = compare(JobPair(measured_job(run, 50, 100.0)), T4)
    hour = WholeJob("an hour of training here", 50, 100.0, is_hour=True)
    print_answers([job_answer(hour, pair, decide(pair, 60.0), {})], [], ["python", "train.py"])
    shown = capsys.readouterr().out
    assert "Can't tell yet if renting a T4 pays" in shown
    assert f"Next: {action}" in shown
    assert (f"({ended}), then ask again." in shown) is bool(ended)
    assert "even" not in shown
