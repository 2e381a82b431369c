"""Try the remedy that the results on disk suggest for an experiment; nothing of theirs is touched."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from photofinish.comparing.apart import train_apart, with_values
from photofinish.comparing.diagnosis import Diagnosis, Remedy
from photofinish.comparing.pairs import NotTrained, Recorded, read_run
from photofinish.comparing.step_costs import times
from photofinish.errors import UserError, run_stage
from photofinish.files import write_summed
from photofinish.machine.fingerprint import CpuHost, GpuHost, fingerprint
from photofinish.params.experiment import ExperimentPlan
from photofinish.params.reader import Params, read_params, refuse_unknown
from photofinish.processes import end_on_sigterm
from photofinish.results import records
from photofinish.results.records import DeviceLabel
from photofinish.wording import seconds

_CHEAP_SECONDS = 60.0
"""A job that takes no longer is trained twice each way, in turn: a machine is not as fast at one time as at another."""
_WORTH_REPEATING_SECONDS = 600.0
"""One that takes no longer is trained once each way; the remedy of a longer one is held against the results on disk."""


@dataclass(frozen=True)
class Prescription:
    """A remedy to try, and the training that it is for."""

    run: Recorded
    """on disk"""
    diagnosis: Diagnosis
    remedy: Remedy
    params_file: Path


@dataclass(frozen=True)
class Outcomes:
    """The trainings to compare."""

    without: tuple[Recorded, ...]
    with_remedy: tuple[Recorded, ...]
    is_without_from_disk: bool


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
    for diagnosis in run.diagnoses:
        if diagnosis.remedy:
            return Prescription(run, diagnosis, diagnosis.remedy, params_file)
    told = [f"{diagnosis.finding}; {diagnosis.no_remedy}" for diagnosis in run.diagnoses]
    raise UserError(f"there is nothing to remedy in {experiment} on the {device}: {'. '.join(told) or 'no diagnosis'}")


def with_line(params_file: Path, remedy: Remedy, copy: Path) -> Params:
    """The settings with the remedy's line in place, in a copy."""
    return with_values(params_file, {remedy.key: remedy.value}, copy)


def try_out(prescribed: Prescription) -> Outcomes:
    """Train with the remedy, and by turns without it where that takes no more than minutes."""
    run, total_seconds = prescribed.run, prescribed.run.timings.total_seconds
    with tempfile.TemporaryDirectory(prefix="photofinish-remedy-") as name:
        folder = Path(name)
        original = read_params(prescribed.params_file)
        changed = with_line(prescribed.params_file, prescribed.remedy, folder / "params.yaml")
        without, with_remedy = [], []
        for number in range(1, 3 if total_seconds <= _CHEAP_SECONDS else 2):
            if total_seconds <= _WORTH_REPEATING_SECONDS:
                without.append(_train(run, original, "without", folder / f"without-{number}"))
            with_remedy.append(_train(run, changed, "with", folder / f"with-{number}"))
        return Outcomes(tuple(without or [run]), tuple(with_remedy), is_without_from_disk=not without)


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


def told(prescribed: Prescription, outcomes: Outcomes) -> str:
    """What was predicted, what came of it, and whether the diagnosis is another now."""
    found, remedy, recorded = prescribed.diagnosis, prescribed.remedy, prescribed.run
    without, with_remedy = outcomes.without[-1], outcomes.with_remedy[-1]
    before, after = (
        statistics.median(run.timings.median_epoch_seconds for run in runs)
        for runs in (outcomes.without, outcomes.with_remedy)
    )
    where = " (the results on disk)" if outcomes.is_without_from_disk else ""
    learned = "the same, bit for bit"
    if without.record.weights_sha256 != with_remedy.record.weights_sha256:
        column, form = "validation_accuracy", "{:.2%}"
        if without.record.task == "values":
            column, form = "validation_loss", "{:.4g}"
        ends = [form.format(getattr(run.history[-1], column)) for run in (with_remedy, without)]
        learned = f"something else: {column.replace('_', ' ')} {ends[0]}, without the remedy {ends[1]}"
    diagnosis = f"no longer {found.cause}"
    for now in with_remedy.diagnoses:
        if now.of == found.of:
            changed = f"still {found.cause}" if now.cause == found.cause else f"now {now.cause}, not {found.cause}"
            diagnosis = f"{changed}: {now.sentence}"
    return "\n".join(
        [
            f"{recorded.experiment} on the {recorded.device}: {found.finding}.",
            f"predicted: {remedy.prediction}. {remedy.why}.",
            f"really:    {times(before / after)} as fast; an epoch took {seconds(before)} without{where}, "
            f"{seconds(after)} with.",
            f"learned:   {learned}.",
            f"diagnosis: {diagnosis}.",
            f"The line:  {remedy.line}",
        ]
    )


def main() -> None:
    """Try the remedy for the experiment that the command line names, and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m photofinish.comparing.trial", description=__doc__)
    parser.add_argument("experiment", help="its name in params.yaml")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    args = parser.parse_args()
    end_on_sigterm()
    prescribed = prescribe(args.experiment, args.device, Path("params.yaml"), Path("results"))
    print(told(prescribed, try_out(prescribed)))


if __name__ == "__main__":
    run_stage(main)
