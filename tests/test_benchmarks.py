"""Ratios and tables of the benchmarks, quick runs of every side and system, the probe of a GPU."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm_python
from conftest import ROOT, run_command

sys.path.insert(0, str(ROOT))  # the benchmarks are beside the package, not in it

from benchmarks import ask, coverage, gpu_probe, tutorials
from benchmarks.probe import findings
from benchmarks.systems.__main__ import table
from benchmarks.systems.images import write_caltech
from benchmarks.systems.jobs import SYSTEMS
from benchmarks.table import BARE, OURS, TUTORIAL, markdown, rows_of, write
from benchmarks.timing import Outcome, Spread, alternate, ratios
from photofinish.answer import times
from photofinish.config.datasets import CsvDataset, DatasetPlan
from photofinish.config.experiment import Experiment
from photofinish.config.loader import read_params
from photofinish.data import PART_NAMES
from photofinish.data.packed import PackedSplit
from photofinish.data.sources import download
from photofinish.data.split import RawData, read_raw, split
from photofinish.files import to_json
from photofinish.models.registry import build_model
from photofinish.training.batches import part_of
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU, configure_torch
from photofinish.training.trainer import Trainer


def outcomes(*seconds: float) -> list[Outcome]:
    return [Outcome(each, 0.5) for each in seconds]


def read_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "benchmarks.csv").open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def test_sides_take_turns_and_none_always_follows_the_same_one() -> None:
    ran: list[str] = []

    def side(name: str) -> Any:
        return lambda: ran.append(name) or Outcome(1.0, 0.5)

    measured = alternate({name: side(name) for name in "abc"}, rounds=4)
    assert "".join(ran) == "abc" + "bca" + "cab" + "abc"
    assert {name: len(each) for name, each in measured.items()} == {"a": 4, "b": 4, "c": 4}


def test_ratios_of_rounds_are_ours_over_the_bare_loop_and_others_over_ours(tmp_path: Path) -> None:
    assert ratios(outcomes(2, 20, 4), outcomes(1, 10, 1)) == Spread(2, 2, 4)
    workload: Any = SimpleNamespace(name="s", title="Small", data=SimpleNamespace(is_real=False))
    measured = {OURS: outcomes(1, 2, 3), TUTORIAL: outcomes(12, 24, 36), BARE: outcomes(2, 2, 2)}
    rows, machine = rows_of(workload, measured), {"processor": "some", "threads": "2"}
    assert {row.side: row.ratio for row in rows} == {OURS: 1, TUTORIAL: 12, BARE: 1}
    write(rows, machine, tmp_path)
    written = [(row["side"], row["processor"]) for row in read_rows(tmp_path)]
    assert written == [(side, "some") for side in (OURS, TUTORIAL, BARE)]
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert text == markdown(rows, machine)
    assert "1.00x (0.50 to 1.50) of the bare loop's time" in text


@pytest.mark.slow
def test_a_quick_run_gives_every_row_with_sane_figures(tmp_path: Path) -> None:
    options = "--quick --rounds 1 --threads 1 --processor-time --only mnist-mlp jpegs-cnn --out"
    command = [warm_python.executable(), "-m", "benchmarks", *options.split(), str(tmp_path)]
    ran = run_command(command, ROOT, os.environ | {"PYTHONPATH": str(ROOT / "src")})
    assert ran.returncode == 0, ran.stderr  # it refuses sides whose networks end with other losses
    rows = read_rows(tmp_path)
    assert {row["workload"] for row in rows} == {"mnist-mlp", "jpegs-cnn"}
    for row in rows:
        assert 0.001 < float(row["epoch_seconds"]) < 60
        assert float(row["ratio_lowest"]) <= float(row["ratio"]) <= float(row["ratio_highest"])
        assert row["side"] != TUTORIAL or float(row["ratio"]) > 0.5


TUTORIAL_PROGRAM = """
import torch
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight])
for step in range(COUNT):
    (weight ** 2).sum().backward()
    optimizer.step()
open("ended", "w").write(open("data").read())
"""


def offer_program(programs: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Write a program to the folder of the programs, whose original is `TUTORIAL_PROGRAM`."""
    program = tutorials.Program(
        "some/repository",
        "folder/train.py",
        "some commit",
        hashlib.sha256(TUTORIAL_PROGRAM.encode()).hexdigest(),
        "",
        lambda folder: (folder / "data").write_text("made up"),
        (("COUNT", "300"),),
    )
    monkeypatch.setitem(tutorials.PROGRAMS, "tiny", program)
    (programs / "tiny").mkdir(parents=True)
    (programs / "tiny/train.py").write_text(text, encoding="utf-8")


def test_a_program_is_asked_about_and_run_with_its_data_and_its_changes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_program(tmp_path / "programs", monkeypatch, TUTORIAL_PROGRAM)
    monkeypatch.setattr(sys, "executable", warm_python.executable())
    row = ask.program("tiny", tmp_path / "programs", tmp_path)
    assert (tmp_path / "program/ended").read_text(encoding="utf-8") == "made up"
    changed = (tmp_path / "program/train.py").read_text(encoding="utf-8")
    assert changed == TUTORIAL_PROGRAM.replace("COUNT", "300")
    assert row.asked.timed.of == row.ran.timed.of == 300


def test_a_program_that_is_missing_or_not_the_original_is_named_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer_program(tmp_path, monkeypatch, TUTORIAL_PROGRAM + "# changed")
    with pytest.raises(SystemExit, match=r"tiny.train\.py.*some/repository"):
        ask.program("tiny", tmp_path, tmp_path)
    ask.main(["--only", "vae", "--programs", str(tmp_path)])
    assert "vae" in capsys.readouterr().out


def test_a_part_is_ended_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu_probe.PARTS, "tests", replace(gpu_probe.PARTS["tests"], seconds=0))
    gpu_probe.start_part("tests", tmp_path)
    kept = {finding.what: finding for finding in findings.read([tmp_path / "tests.jsonl"])}
    assert kept["the rest"].note == "not done within 0 s"
    assert kept["took"].unit == "s"


PROBES_HERE = """
from benchmarks import gpu_probe
gpu_probe.start_part = gpu_probe.run_part  # each process would import torch
gpu_probe.main()
"""


@pytest.mark.slow
def test_it_raises_no_false_alarm_on_a_bare_machine(tmp_path: Path) -> None:
    """A recorder stands in for CUDA in tests/test_gpu.py. No clock can wait for it."""
    tests = ROOT / "tests"
    own = {
        "PYTHONPATH": os.pathsep.join(map(str, (tests / "bare", tests, ROOT / "src"))),
        "PYTEST_PLUGINS": "recorded_gpu",
        "PYTEST_ADDOPTS": "-k 'fp32 and recorded'",
    }
    command = [sys.executable, "-c", PROBES_HERE, "--out", str(tmp_path), "--only"]
    command += ["tests", "memory"]
    subprocess.run(command, cwd=ROOT, env=os.environ | own, check=True)
    found = json.loads((tmp_path / "probe.json").read_bytes())["findings"]
    assert [each for each in found if str(each["value"]).startswith(("FAILED", "OTHER"))] == []
    assert len([each for each in found if each["value"] == "passed"]) == 3


def test_a_replay_predicts_each_recorded_training_by_its_windows(tmp_path: Path) -> None:
    for run in (1, 2):
        coverage.train("mlp", 1.0, tmp_path / f"mlp.quiet.{run}.npz")
    *_, row = coverage.rows(list(coverage.read(tmp_path)), [0.4])
    assert re.match(r"\| quiet \| 0.4 s \| 2 \| (\d+% \(.*\)|-) \| ", row.text)


def test_nine_in_ten_ranges_hold_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one run's error in place of what two runs differ by, too few do."""
    coverage.main([])
    monkeypatch.setattr(times, "MACHINE", times.MACHINE / math.sqrt(2))
    with pytest.raises(SystemExit, match=r"fewer than 85% .* another run"):
        coverage.main([])


# -- the jobs of the examples on a bare machine ----------

NOT_MEASURED = {"save_weights", "schedule"}
"""Settings that change no step."""


@pytest.mark.parametrize("system", SYSTEMS)
def test_its_jobs_are_the_examples_experiments(system: str) -> None:
    jobs = {job.name: job for job in SYSTEMS[system]}
    for name, experiment in read_params(ROOT / "examples" / f"{system}.yaml").experiments.items():
        given = {"dataset": experiment.dataset, "input": {"name": "resident"}, "seed": 0}
        settings = given | {"precision": "fp32"} | jobs[name].settings
        own = Experiment.model_validate_json(to_json(settings)).model_dump(exclude=NOT_MEASURED)
        expected = experiment.model_dump(exclude=NOT_MEASURED)
        for model in (own["model"], expected["model"]):
            model.pop("weights", None)  # published weights are not downloaded
        assert own == expected


@pytest.mark.slow
def test_a_bare_machine_measures_each_job_and_gets_a_table(tmp_path: Path) -> None:
    paths = ROOT / "tests" / "bare", ROOT / "src"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-m", "benchmarks.systems", "--small", "--seconds", "0.4"]
    command += ["--only", "caltech101-cnn", "--out", str(tmp_path)]
    ran = run_command(command, ROOT, environment)
    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "systems.jsonl").read_text(encoding="utf-8").splitlines()
    measured = {line["job"]: line for line in map(json.loads, lines)}
    jobs = [job.name for job in SYSTEMS["caltech101-cnn"]]
    assert [*measured] == jobs
    assert all(0 < line["epoch_seconds"] < 60 for line in measured.values())
    text = (tmp_path / "systems.md").read_text(encoding="utf-8")
    assert [row.split()[1].strip(",") for row in text.splitlines()[2 : 2 + len(jobs)]] == jobs


def test_the_table_has_both_devices_and_what_was_not_run() -> None:
    cpu = {
        "system": "mnist-linear", "job": "mnist-linear", "device": "cpu", "device_name": "cpu",
        "epoch_seconds": 0.5, "lowest_seconds": 0.4, "highest_seconds": 0.6, "epochs": 5,
        "planned_epochs": 30, "steps": 2345, "test_accuracy": 0.9083, "is_real": True,
    }  # fmt: skip
    gpu = cpu | {"device": "cuda", "device_name": "NVIDIA T4", "epoch_seconds": 0.25, "epochs": 0}
    missing = {"system": "cifar10-resnet18", "job": "ddp", "device": "gpu", "not_run": "one GPU"}
    text = table([cpu, gpu, missing], {"processor": "some"})
    (row,) = [row for row in text.splitlines() if row.startswith("| mnist-linear |")]
    assert "| 2x | 15 s / 7.5 s |" in row
    assert "Not run: ddp of cifar10-resnet18 on gpu: one GPU" in text


def test_the_made_up_photographs_are_a_data_set_of_three_parts(tmp_path: Path) -> None:
    write_caltech(tmp_path / "made", count=202)
    parts = {part: str(tmp_path / f"made/{part}.csv") for part in PART_NAMES}
    dataset = CsvDataset.model_validate({"source": "csv", "parts": parts, "size": 32})
    plan = DatasetPlan(name="made", dataset=dataset, local_files=None)
    manifest = split(plan, read_raw(plan, tmp_path / "raw"), tmp_path / "split")
    assert manifest.counts == {"train": 161, "validation": 20, "test": 21}
    assert len(manifest.class_names) == 101


# -- figures of two tutorials, on real data in torchvision's layout ----------

REAL_DATA = ROOT.parent / "shared" / "datasets"
on_real_data = pytest.mark.skipif(
    not (REAL_DATA / "MNIST" / "raw").is_dir(), reason=f"no real data in {REAL_DATA}"
)
# Test accuracy after each of the first five epochs, as the tutorial behind mnist-linear printed it.
MNIST_LINEAR_ACCURACY = [0.8838, 0.8988, 0.9016, 0.9052, 0.9074]
# 784-30-10 with sigmoids at its best: M. Nielsen, Neural Networks and Deep Learning, chapter 1.
MNIST_MLP_ACCURACY = 0.9542


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> RawData:
    """Read MNIST once for both tutorials."""
    folder = tmp_path_factory.mktemp("raw")
    shutil.copytree(REAL_DATA / "MNIST", folder / "root/MNIST")
    plan = plan_of("mnist-linear")
    dataset = plan.dataset.model_copy(update={"root": str(folder / "root")})
    plan = plan.model_copy(update={"dataset": dataset})
    download(plan, folder / "raw")
    return read_raw(plan, folder / "raw")


def plan_of(example: str) -> DatasetPlan:
    ((name, dataset),) = read_params(ROOT / "examples" / f"{example}.yaml").datasets.items()
    return DatasetPlan(name=name, dataset=dataset, local_files=None)


def packed(example: str, raw: RawData, folder: Path) -> PackedSplit:
    """Pack the data set of an example."""
    split(plan_of(example), raw, folder / "split")
    return PackedSplit(folder / "split")


def accuracies_on_the_test_images(example: str, name: str, data: PackedSplit) -> list[float]:
    """Train five epochs, and return the accuracy on the test images after each."""
    experiment = read_params(ROOT / "examples" / f"{example}.yaml").experiments[name]
    experiment = experiment.model_copy(update={"epochs": 5})
    shape, classes = data.manifest.shape, len(data.manifest.class_names)
    configure_torch(CPU, experiment.precision, threads=1)
    network = build_model(experiment.model, shape, classes, experiment.seed)
    training = make_batches(experiment, part_of(data, "train"), CPU)
    test = make_batches(experiment, part_of(data, "test"), CPU)
    trainer = Trainer(experiment, network, training, test, CPU)
    return [metrics.validation_accuracy or 0.0 for metrics, _ in trainer.epochs()]


@pytest.mark.slow
@on_real_data
def test_mnist_linear_learns_as_fast_as_in_its_tutorial(raw: RawData, tmp_path: Path) -> None:
    data = packed("mnist-linear", raw, tmp_path)
    assert data.manifest.counts == {"train": 60_000, "test": 10_000}
    assert (data.manifest.mean, data.manifest.std) == ((0.1307,), (0.3081,))
    measured = accuracies_on_the_test_images("mnist-linear", "mnist-linear", data)
    assert measured == pytest.approx(MNIST_LINEAR_ACCURACY, abs=0.005)


@pytest.mark.slow
@on_real_data
def test_mnist_mlp_reaches_the_known_accuracy(raw: RawData, tmp_path: Path) -> None:
    data = packed("mnist-mlp", raw, tmp_path)
    measured = accuracies_on_the_test_images("mnist-mlp", "mnist-mlp-resident", data)
    assert max(measured) >= MNIST_MLP_ACCURACY
