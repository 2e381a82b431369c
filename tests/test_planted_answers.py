"""Answers to results that are planted on disk and read by the compare stage.

golden/answers.txt has forty of them. Rewrite it with
`PHOTOFINISH_UPDATE_GOLDEN=1 pytest -n 0 tests/test_planted_answers.py`, and read it aloud, whole.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import warm_python
from conftest import ROOT, MakeResult, run_command
from outputs import verdict
from result_files import (
    BUSY,
    STEP,
    DeviceResult,
    Missing,
    changed_history,
    measured_of,
    pair_of,
    trained,
    with_record,
    with_seeds,
    with_timings,
    write_results,
)
from test_default_jobs import MEASURED, cpu_result, shipped

from photofinish.answer.comparison import (
    Comparison,
    compare,
)
from photofinish.answer.decision import decide
from photofinish.answer.record import answer_record
from photofinish.commands.ask import job_answer, print_answers
from photofinish.config.compare import ComparePlan, Comparing, Prices
from photofinish.config.scripts import ScriptPlan
from photofinish.files import write_json_atomically
from photofinish.reporting import report_page
from photofinish.reporting.answers import Answers
from photofinish.reporting.report_page import page_of
from photofinish.results import EpochTiming, TimedPart
from photofinish.results.job import JobPair
from photofinish.results.measured import (
    JobLength,
    Measured,
    ScriptFacts,
    TrainedRecords,
    write_measured,
)
from photofinish.results.measured_jobs import job_of_script
from photofinish.results.references import read_references, reference_of, write_reference
from photofinish.results.trained import DeviceLabel
from photofinish.results.training_jobs import read_experiment, with_references
from photofinish.scripts.script_record import WholeJob

GOLDEN = Path(__file__).parent / "golden" / "answers.txt"
UPDATES = bool(os.environ.get("PHOTOFINISH_UPDATE_GOLDEN"))
Plant = Callable[[MakeResult, str], list[DeviceResult]]
LONG_STEP = STEP.model_copy(update={"flops": 8 * 10**11, "saved_tensor_bytes": 32 * 10**8})
"""Step that takes a T4 260 ms by estimate, and so 49 s in five epochs of 600 samples."""


def job(
    make_result: MakeResult, name: str, seconds: float, device: DeviceLabel = "cpu", **timings: Any
) -> TrainedRecords:
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


def alone(result: TrainedRecords) -> TrainedRecords:
    """Give a training a data set of its own, so that it shares no rented GPU with others."""
    experiment = result.record.experiment.model_copy(update={"dataset": result.experiment})
    return with_record(result, experiment=experiment)


def script_run(of_job: TrainedRecords, loss: float = 0.25, waiting_share: float = 0.1) -> Measured:
    """Make a script that took as long, and waited for batches for this share of it."""
    times, measured = of_job.times, measured_of(of_job)
    epoch_seconds = [timing.training_seconds for timing in times.epochs]
    parts = [
        TimedPart(
            seconds=each, steps=100.0, epoch=epoch, holds="steps",
            waiting_seconds=waiting_share * each,
        )
        for epoch, each in enumerate(epoch_seconds)
    ]  # fmt: skip
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
    changed: dict[str, Any] = {
        "script": script,
        "parts": tuple(parts),
        "epoch_steps": 100.0,
        "end_seconds": times.total_seconds - times.startup_seconds - sum(epoch_seconds),
        "load": times.load,
        "tried_threads": {},
    }
    none = ("training", "first_step", "steady_state", "attribution", "loader")
    return measured.model_copy(update=changed | dict.fromkeys(none))


def beside_none(cpu: TrainedRecords) -> list[DeviceResult]:
    """Return a training and that no GPU is here."""
    return [cpu, Missing(cpu.experiment, "gpu", cpu.record.experiment, "no driver")]


def here(seconds: float, **timings: Any) -> Plant:
    """Plant a job on the CPU alone."""

    return lambda make_result, name: beside_none(alone(job(make_result, name, seconds, **timings)))


def both(cpu_seconds: float, gpu_seconds: float, **timings: Any) -> Plant:
    """Plant a job on the CPU and on a GPU here."""
    return lambda make_result, name: [
        job(make_result, name, cpu_seconds, **timings),
        job(make_result, name, gpu_seconds, "gpu"),
    ]


def first_epochs(*epoch_seconds: float) -> Plant:
    """Plant a job of 80 epochs, of which these were trained."""
    done = len(epoch_seconds)
    timed = here(
        100.0,
        operations=STEP.model_copy(update={"flops": 10**11}),
        epochs=tuple(EpochTiming(each - 0.1, 0.1, 1.7e9) for each in epoch_seconds),
        epochs_left=80 - done,
        total_seconds=2.5 + sum(epoch_seconds),
    )

    def plant(make_result: MakeResult, name: str) -> list[DeviceResult]:
        cpu, missing = timed(make_result, name)
        assert isinstance(cpu, TrainedRecords)
        return [replace(cpu, history=cpu.history[:done]), missing]

    return plant


def with_seeds_on_both(make_result: MakeResult, apart: float) -> Comparison:
    """Compare four seeds, whose accuracies differ by this share between the devices."""
    runs = []
    for run, lost in zip(both(125.0, 10.0)(make_result, "seeds"), (0.0, apart), strict=True):
        made = run
        first, *others = (accuracy - lost for accuracy in (0.9, 0.908, 0.902, 0.895))
        record = with_record(made, weights_sha256=made.device[0] * 64)
        losses = replace(
            record,
            first_step=made.first_step.model_copy(update={"has_dropout": True}),
            scores=made.scores.model_copy(update={"test_accuracy": first}),
            history=changed_history(made, training_loss=(1.0 + lost + 0.1 * (lost > 0),) * 5),
        )
        runs.append(with_seeds(losses, *others))
    return pair_of(*runs)


def swept(make_result: MakeResult, name: str) -> list[DeviceResult]:
    return beside_none(job(make_result, name, 700.0, operations=HOUR_STEP))


def shipped_job(make_result: MakeResult, name: str) -> list[DeviceResult]:
    return beside_none(cpu_result(make_result, name, 1.0))


HOUR_STEP = STEP.model_copy(update={"flops": 10**13})
"""Step that takes a T4 1.2 s by estimate, and so 3.8 min in five epochs of 600 samples."""
LAUNCHING = STEP.model_copy(update={"flops": 10**8, "kernels": 20_000, "saved_tensor_bytes": 10**6})
RNN_STEP = HOUR_STEP.model_copy(update={"without_formula": ("_thnn_fused_lstm_cell",)})
FREE = Prices(accelerator_hour={"T4": 0.0})
RECORDED = "a GPU that another machine recorded"
PROJECTS: dict[str, tuple[dict[str, Any], dict[str, Plant]]] = {
    "the default jobs, with the records in reference/": (
        {"accelerators": shipped().comparing.accelerators},
        dict.fromkeys(MEASURED, shipped_job),
    ),
    "a T4 to rent": (
        {"accelerators": ("T4",)},
        {
            "start-up": here(13.0, startup_seconds=10.0),
            "long": here(3600.0, operations=HOUR_STEP),
            "short": here(31.0, operations=LONG_STEP),
            "six-minutes": here(360.0, operations=LONG_STEP),
            "quarter-of-an-hour": here(1000.0, operations=HOUR_STEP),
            "noisy": first_epochs(6.0, 9.0, 7.0),
            "steady": first_epochs(60.0, 60.5, 60.2),
            "not-counted": here(62.0),
            "no-estimate": here(3000.0),
            "lstm": here(900.0, operations=RNN_STEP),
            "beside-others": here(900.0, operations=HOUR_STEP, load=(BUSY,)),
            "hours-beside-others": here(20_000.0, operations=LONG_STEP, load=(BUSY,)),
            "launching": here(3600.0, operations=LAUNCHING),
        },
    ),
    "a sweep": ({"accelerators": ("T4",)}, dict.fromkeys(("rate-1", "rate-2", "rate-3"), swept)),
    "it must save an hour": (
        {"accelerators": ("T4",), "worth_saving": 60.0},
        {"twelve-minutes": here(700.0, operations=HOUR_STEP)},
    ),
    "it must save 56 minutes": (
        {"accelerators": ("T4",), "worth_saving": 56.0, "rental_minutes": 0.1},
        {"hour": here(3600.0, operations=HOUR_STEP)},
    ),
    "a T4 of your own": (
        {"accelerators": ("T4",), "worth_saving": 0.0, "rental_minutes": 0.0},
        {
            "hour": here(3600.0, operations=HOUR_STEP),
            "short": here(20.0, operations=HOUR_STEP),
            "equal": here(230.0, operations=HOUR_STEP),
        },
    ),
    "a free T4 in a minute": (
        {"accelerators": ("T4",), "prices": FREE, "rental_minutes": 1.0},
        {"hour": here(3600.0, operations=HOUR_STEP), "short": here(120.0, operations=LONG_STEP)},
    ),
    RECORDED: ({"accelerators": ()}, {"recorded": here(100.0)}),
    "several GPUs": (
        {"accelerators": ("T4", "L4", "A100", "H100")},
        {"day": here(86_400.0, operations=HOUR_STEP)},
    ),
    "a GPU here": (
        {"accelerators": ("T4",)},
        {
            "faster": both(125.0, 10.0),
            "slower": both(10.0, 125.0),
            "equal": both(100.0, 98.0),
            "noisy": both(4.0, 3.8),
            "beside-others": both(125.0, 80.0, load=(BUSY,)),
        },
    ),
}


def test_answers_read_as_they_did(
    make_result: MakeResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(report_page, "find_spec", lambda _name: None)  # for no pictures
    texts = []
    for index, (title, (settings, plants)) in enumerate(PROJECTS.items()):
        folder = tmp_path / str(index)
        for name, plant in plants.items():
            write_results(plant(make_result, name), folder / "results")
        if not index:
            shutil.copytree(ROOT / "reference", folder / "reference")
        if title == RECORDED:
            gpu = alone(job(make_result, "recorded", 10.0, "gpu"))
            gpu = replace(gpu, first_step=None)
            write_reference(folder / "reference", reference_of(gpu, "lab"))
        jobs = [read_experiment(name, folder / "results" / name) for name in plants]
        jobs = with_references(jobs, read_references(folder / "reference", "all"))
        pairs = [compare(each, Comparing(**settings)) for each in jobs]
        answers = page_of(answer_record(pairs)).answers
        texts.append(f"# {title}\n{answers.summary}\n{answers}")
    for seconds, gpu_seconds, share in ((51.0, 0, 0.1), (3600.0, 0, 0.5), (125.0, 10.0, 0.1)):
        runs = [job(make_result, "train.py", seconds, operations=HOUR_STEP)]
        if gpu_seconds:
            runs.append(job(make_result, "train.py", gpu_seconds, "gpu"))
        runs = [script_run(run, waiting_share=share) for run in runs]
        cpu, gpu = [*map(job_of_script, runs), None][:2]
        both = JobPair(cpu, gpu, None if gpu else "no GPU found")
        pair = compare(both, Comparing(accelerators=("T4", "L4")))
        print_answers([job_answer(WholeJob("its whole run", 5, 100.0), pair, decide(pair), {})])
        texts.append(f"# photofinish ask\n{capsys.readouterr().out.strip()}")
    for apart in (0.01, 0.1, 0.3):
        lines = verdict(with_seeds_on_both(make_result, apart)).lines
        texts.append("\n".join(("# four seeds", *lines)))
    text = "\n\n".join(texts) + "\n"
    if UPDATES:
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def minutes(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * {"h": 60.0, "min": 1.0, "s": 1 / 60}[unit]


def test_a_word_follows_from_the_numbers_on_its_line() -> None:
    lines = re.findall(
        r"(?:^|  )((?:Yes|Probably yes|No|Close call|Can't tell).*)",
        GOLDEN.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    seen = set()
    for line in lines:
        word = re.split("[,:]| yet| GPU", line)[0]
        if ratio := re.search(r"x (faster|slower) \((?:([\d.]+)-)?([\d.]+)\)", line):
            assert (word == "Yes") == (ratio[1] == "faster"), line
            assert float(ratio[2] or ratio[3]) >= 1, line
        elif saves := re.search(r"[Ss]aves ([\d.]+)-([\d.]+) (\w+) \(minimum (.*?)\)", line):
            low, high = (minutes(f"{end} {saves[3]}") for end in saves.groups()[:2])
            least = minutes(saves[4])
            assert (high < least) == (word == "No"), line
            assert word == "No" or low < least <= high, line
        elif both := re.search(r": ~?([\d.]+ \w+).* here, [~*]?([\d.]+ \w+)", line):
            assert word != "Probably yes" or minutes(both[1]) > minutes(both[2]), line
        else:
            continue
        seen.add(word)
    assert seen == {"Yes", "Probably yes", "No", "Close call", "Can't tell"}


def test_a_script_on_both_devices_has_an_answer_and_its_metrics_side_by_side(
    make_result: MakeResult, tmp_path: Path, empty_database: Path
) -> None:
    for run in job(make_result, "mine", 125.0), job(make_result, "mine", 10.0, "gpu"):
        folder = tmp_path / "results" / "mine" / run.device / "measured"
        write_measured(folder, script_run(run, 0.25 if run.device == "cpu" else 0.5))
    script = ScriptPlan(name="mine", command="python train.py", metrics=None, files={})
    plan = ComparePlan(experiments=(), scripts=(script,), accelerators=())
    write_json_atomically(tmp_path / "plan.json", plan.model_dump(mode="json"))
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    arguments = "--plan plan.json --references reference --results results --out report"
    arguments += " --metrics metrics --plots plots"
    command = warm_python.executable(), str(ROOT / "stages/compare.py"), *arguments.split()
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    done = run_command(command, tmp_path, os.environ | store)
    assert done.returncode == 0, done.stderr
    printed = str(Answers.model_validate_json((tmp_path / "report/answers.json").read_bytes()))
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
