"""Trainings beside the project's own, in a folder of their own: results, dvc.lock and MLflow's runs stay as they are.

`remedy` tries the line of params.yaml that the results on disk suggest for an experiment; `probe` tells from a few
epochs what the whole job would take.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from photofinish.comparing.device_results import NotTrained, Recorded, read_run
from photofinish.comparing.diagnosis import Diagnosis, Remedy, diagnose, gain_text
from photofinish.comparing.speedups import Interval, cost, run_margin, students_t
from photofinish.data import MANIFEST
from photofinish.errors import MistakeError, UserError, run_stage
from photofinish.files import write_summed
from photofinish.machine.fingerprint import CpuHost, GpuHost, fingerprint
from photofinish.machine.load import doubts
from photofinish.params.compare import Comparing
from photofinish.params.experiment import ExperimentPlan
from photofinish.params.reader import Params, read_params, refuse_unknown
from photofinish.params.yaml_reader import YamlDocument
from photofinish.processes import end_on_sigterm
from photofinish.results import passed_seconds, records
from photofinish.results.records import DEVICE_LABELS, DeviceLabel, Timings
from photofinish.wording import listed, money, seconds

_CHEAP_SECONDS = 60.0
"""A job that takes no longer is trained twice each way, in turn: a machine is not as fast at one time as at another."""
_WORTH_REPEATING_SECONDS = 600.0
"""One that takes no longer is trained once each way; the remedy of a longer one is held against the results on disk."""
_LEAST_EPOCHS = 2
"""of a probe"""
_PROBE = "the probe"
"""in messages"""


def with_values(params_file: Path, values: Mapping[str, Any], copy: Path) -> Params:
    """The settings with other values in some places: written to a copy, in which they are checked like any other."""
    settings: dict[str, Any] = YamlDocument(params_file).value
    for key, value in values.items():
        block = settings
        *above, last = key.split(".")
        for name in above:
            block[name] = block.get(name) or {}
            block = block[name]
        block[last] = value
    copy.write_text(json.dumps(settings, default=str), encoding="utf-8")  # JSON is YAML too
    return read_params(copy)


def run_apart(stage: str, folder: Path, what: str, **arguments: Path | str) -> None:
    """A stage, where the user's code is, whose own files lie in the folder; `what` has failed where it does."""
    command = [sys.executable, str(Path.cwd() / "stages" / f"{stage}.py")]
    command += [text for argument, value in arguments.items() for text in (f"--{argument}", str(value))]
    # Without what points to the user's MLflow: its runs, locks and checkpoints are in that folder too.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))}
    shown = None if stage == "train" else subprocess.DEVNULL
    ran = subprocess.run(command, env={**environment, "DVC_ROOT": str(folder)}, stdout=shown, check=False)
    if ran.returncode:
        raise UserError(f"{what} failed, as told above")


def train_apart(name: str, device: DeviceLabel, folder: Path, what: str, **inputs: Path) -> Recorded:
    """As the stage does, by these of its arguments."""
    out = folder / "results" / name / device
    run_apart("train", folder, what, device=device, out=out, **inputs)
    run = read_run(name, out)
    if isinstance(run, NotTrained):
        raise UserError(f"{what} found no such device: {run.record.reason}")
    return run


@dataclass(frozen=True)
class Prescription:
    """A remedy to try, and the training that it is for."""

    run: Recorded
    """on disk"""
    diagnosis: Diagnosis
    remedy: Remedy
    params_file: Path


def prescribe(experiment: str, device: DeviceLabel, params_file: Path, results: Path) -> Prescription:
    """The first remedy that the results on disk suggest, if they are of the settings and the machine at hand."""
    params = read_params(params_file)
    refuse_unknown(experiment, params, params_file)
    folder = results / experiment / device
    if not (folder / records.LEARNED / records.RECORD).is_file():
        raise UserError(f"{folder} has no results yet to find a remedy by: run `dvc repro` first")
    run = read_run(experiment, folder)
    if isinstance(run, NotTrained):
        why = run.record.reason
        raise UserError(f"{experiment} was not trained on the {device}, so nothing can be remedied: {why}")
    if params.experiments[experiment] != run.record.experiment or run.timings.host != _host(params, device):
        raise UserError(
            f"{folder} is of other settings or another machine than `dvc repro` would use now: run it first"
        )
    diagnoses = diagnose(run)
    for diagnosis in diagnoses:
        if diagnosis.remedy:
            return Prescription(run, diagnosis, diagnosis.remedy, params_file)
    told = [f"{diagnosis.finding}; {diagnosis.no_remedy}" for diagnosis in diagnoses]
    raise UserError(f"there is nothing to remedy in {experiment} on the {device}: {'. '.join(told) or 'no diagnosis'}")


def try_out(prescribed: Prescription) -> tuple[list[Recorded], list[Recorded]]:
    """Train by turns without the remedy, where that takes no more than minutes, and with it."""
    run, remedy, total_seconds = prescribed.run, prescribed.remedy, prescribed.run.timings.total_seconds
    with tempfile.TemporaryDirectory(prefix="photofinish-remedy-") as name:
        folder, runs = Path(name), defaultdict(list)
        ways = {"with": with_values(prescribed.params_file, {remedy.key: remedy.value}, folder / "params.yaml")}
        if total_seconds <= _WORTH_REPEATING_SECONDS:
            ways = {"without": read_params(prescribed.params_file), **ways}
        for number in (1, 2) if total_seconds <= _CHEAP_SECONDS else (1,):
            for way, params in ways.items():
                runs[way].append(_train(run, params, way, folder / f"{way}-{number}"))
        return runs["without"], runs["with"]


def _train(recorded: Recorded, params: Params, way: str, folder: Path) -> Recorded:
    """By files that lie in a folder of its own."""
    name, device, data = recorded.experiment, recorded.device, Path.cwd() / "data"
    experiment = params.experiments[name]
    plan = ExperimentPlan(**dict(experiment), own_code=recorded.record.own_code)
    inputs = {
        "experiment": folder / "experiments" / f"{name}.json",
        "host": folder / f"{device}.json",
        "data": data / "splits" / experiment.dataset,
        "weights": data / "weights" / name,
    }
    write_summed(inputs["experiment"], plan.model_dump_json().encode())
    write_summed(inputs["host"], _host(params, device).model_dump_json().encode())
    print(f"{way} the remedy: {folder.name}", file=sys.stderr, flush=True)
    return train_apart(name, device, folder, f"the training {way} the remedy", **inputs)


def _host(params: Params, device: DeviceLabel) -> CpuHost | GpuHost:
    cpu, gpu = fingerprint(params.devices)
    return cpu if device == "cpu" else gpu


def remedy_told(prescribed: Prescription, runs_without: Sequence[Recorded], runs_with: Sequence[Recorded]) -> str:
    """What was predicted, what came of it, and whether the diagnosis is another now."""
    found, remedy, recorded = prescribed.diagnosis, prescribed.remedy, prescribed.run
    where = "" if runs_without else " (the results on disk)"
    runs_without = runs_without or [recorded]
    without, with_remedy = runs_without[-1], runs_with[-1]
    before, after = (
        statistics.median(run.timings.median_epoch_seconds for run in runs) for runs in (runs_without, runs_with)
    )
    gained, learned = gain_text(before / after), "the same, bit for bit"
    if without.record.weights_sha256 != with_remedy.record.weights_sha256:
        column, form = "validation_accuracy", "{:.2%}"
        if without.record.task == "values":
            column, form = "validation_loss", "{:.4g}"
        ends = [form.format(getattr(run.history[-1], column)) for run in (with_remedy, without)]
        learned = f"something else: {column.replace('_', ' ')} {ends[0]}, without the remedy {ends[1]}"
    diagnosis = f"no longer {found.cause}"
    for now in diagnose(with_remedy):
        if now.of == found.of:
            changed = f"still {found.cause}" if now.cause == found.cause else f"now {now.cause}, not {found.cause}"
            diagnosis = f"{changed}: {now.sentence}"
    return f"""\
{recorded.experiment} on the {recorded.device}: {found.finding}.
predicted: {remedy.prediction}. {remedy.why}.
really:    {gained} times as fast; an epoch took {seconds(before)} without{where}, {seconds(after)} with.
learned:   {learned}.
diagnosis: {diagnosis}.
The line:  {remedy.line}"""


def probe(experiment: str, device: DeviceLabel, epochs: int, params_file: Path) -> Recorded:
    """Train so many epochs of the experiment, once."""
    refuse_unknown(experiment, read_params(params_file), params_file)
    if epochs < _LEAST_EPOCHS:
        raise MistakeError(f"EPOCHS={epochs} tells nothing of how much epochs vary: take {_LEAST_EPOCHS} or more")
    with tempfile.TemporaryDirectory(prefix="photofinish-probe-") as name:
        folder, own = Path(name), f"experiments.{experiment}"
        values = {f"{own}.repeats": 1, f"{own}.seeds": 1, f"{own}.epochs": epochs}
        params, plan = with_values(params_file, values, folder / "params.yaml"), folder / "plan"
        run_apart("plan", folder, _PROBE, params=folder / "params.yaml", results=folder / "results", out=plan)
        return train_apart(
            experiment,
            device,
            folder,
            _PROBE,
            experiment=plan / "experiments" / f"{experiment}.json",
            host=plan / "hosts" / f"{device}.json",
            data=_split(params.experiments[experiment].dataset, folder, plan),
            weights=_weights(experiment, folder, plan),
        )


def _split(dataset: str, folder: Path, plan: Path) -> Path:
    """The project's, where it is of the data set as it is planned now; else one made for the probe."""
    planned, data = plan / "datasets" / f"{dataset}.json", Path.cwd() / "data"
    before, manifest = data / "plan" / "datasets" / f"{dataset}.json", data / "splits" / dataset / MANIFEST
    are_there = before.is_file() and manifest.is_file()
    if are_there and before.read_bytes() == planned.read_bytes() and before.stat().st_mtime <= manifest.stat().st_mtime:
        return manifest.parent
    raw, made = folder / "raw" / dataset, folder / "splits" / dataset
    run_apart("download", folder, _PROBE, dataset=planned, out=raw)
    run_apart("split", folder, _PROBE, dataset=planned, raw=raw, out=made)
    return made


def _weights(experiment: str, folder: Path, plan: Path) -> Path:
    """Where the stage would put them."""
    before, planned = (root / "weights.json" for root in (Path.cwd() / "data" / "plan", plan))
    there = Path.cwd() / "data" / "weights" / experiment
    if there.is_dir() and before.is_file() and before.read_bytes() == planned.read_bytes():
        return there
    run_apart("download_weights", folder, _PROBE, plan=planned, out=folder / "weights")
    return folder / "weights" / experiment


@dataclass(frozen=True)
class Estimate:
    """Of the whole job, from start to end."""

    epochs: int
    once_seconds: float
    """measured: start-up, and writing the results"""
    epoch_seconds: float
    """the mean of those that were trained, with validation and what lies between two"""
    interval: Interval
    """95 %, of the job"""

    @property
    def job_seconds(self) -> float:
        """In the middle."""
        return self.once_seconds + self.epochs * self.epoch_seconds


def estimate(timings: Timings, epochs: int) -> Estimate:
    """Of a job of so many epochs, from a training of a few of them."""
    between_seconds = timings.overhead.seconds / len(timings.epochs)
    tried = [passed_seconds([epoch]) + between_seconds for epoch in timings.epochs]
    once_seconds = timings.total_seconds - sum(tried)
    low_seconds, high_seconds = sum_interval(tried, epochs)
    margin = run_margin(timings)
    interval = (once_seconds + low_seconds) / margin, (once_seconds + high_seconds) * margin
    return Estimate(epochs, once_seconds, statistics.fmean(tried), interval)


def sum_interval(tried: Sequence[float], count: int) -> Interval:
    """In which the sum of so many more values lies, 95 times of 100, if they vary like those that were tried.

    Student's prediction interval: what the mean of those tried may be off, and what the sum varies by itself.
    """
    spread, mean = statistics.stdev(tried), statistics.fmean(tried)
    off = students_t(len(tried) - 1) * spread * math.sqrt(count**2 / len(tried) + count)
    return max(0.0, count * mean - off), count * mean + off


def probe_told(name: str, recorded: Recorded, found: Estimate, settings: Comparing) -> str:
    """The estimate, and what it rests on."""
    timings, device = recorded.timings, recorded.device
    low, high = map(seconds, found.interval)
    lines = [
        f"{name} on the {device.upper()} ({timings.device_name}), estimated from {len(timings.epochs)} epochs:",
        f"the whole job of {found.epochs:,} epochs takes {seconds(found.job_seconds)} (95 % interval {low} to {high}): "
        f"{seconds(found.once_seconds)} once, and {seconds(found.epoch_seconds)} an epoch.",
    ]
    spent = [cost(device, each, None, settings).amount for each in (found.job_seconds, *found.interval)]
    middle, least, most = (None if each is None else money(each, settings.prices.currency) for each in spent)
    if middle:
        lines.append(f"It costs {middle} ({least} to {most}), by compare.prices.{device}_hour.")
    if doubtful := doubts(timings.load):
        lines.append(f"Take it with care: {listed(doubtful)}.")
    return "\n".join(lines)


def main() -> None:
    """Try the remedy for the experiment that the command line names, or probe it, and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m photofinish.comparing.trial", description=__doc__)
    trials = parser.add_subparsers(dest="trial", required=True)
    commands = trials.add_parser("remedy"), trials.add_parser("probe")
    for command in commands:
        command.add_argument("experiment", help="its name in params.yaml")
        command.add_argument("--device", choices=DEVICE_LABELS, default="cpu")
    commands[1].add_argument("--epochs", type=int, default=3, help="how many to train")
    args = parser.parse_args()
    end_on_sigterm()
    params_file = Path("params.yaml")
    if args.trial == "remedy":
        prescribed = prescribe(args.experiment, args.device, params_file, Path("results"))
        print(remedy_told(prescribed, *try_out(prescribed)))
        return
    recorded, params = probe(args.experiment, args.device, args.epochs, params_file), read_params(params_file)
    found = estimate(recorded.timings, params.experiments[args.experiment].epochs)
    print(probe_told(args.experiment, recorded, found, params.comparing))


if __name__ == "__main__":
    run_stage(main)
