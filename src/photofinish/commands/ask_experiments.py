"""`photofinish ask [NAME ...]`: answer for experiments of params.yaml, from samples."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from photofinish.answer.comparison import compare
from photofinish.answer.decision import decide_all
from photofinish.commands import pipeline
from photofinish.commands.ask import ask_command, job_answer, print_answers
from photofinish.commands.ask_options import Terms, print_start
from photofinish.config.base import read_plan
from photofinish.config.compare import ComparePlan
from photofinish.config.experiment import Experiment, ExperimentPlan
from photofinish.config.loader import read_params
from photofinish.config.scripts import ScriptPlan
from photofinish.errors import EXIT_FAILED, ConfigError, UserError
from photofinish.machine.fingerprint import GpuTarget, Machine, mismatches, read_host
from photofinish.reporting.ask_lines import AskFiles, JobAnswer, write_job_answers
from photofinish.results.job import JobPair
from photofinish.results.measured import MEASURED, Measured, NotMeasured, read_measured
from photofinish.results.measured_jobs import job_of_experiment
from photofinish.results.references import read_references
from photofinish.results.trained import DeviceLabel
from photofinish.results.training_jobs import with_references
from photofinish.scripts.run_script import Limits
from photofinish.scripts.script_lines import Length
from photofinish.scripts.script_record import WholeJob
from photofinish.scripts.script_stage import in_shell
from photofinish.wording import seconds, unknown_name

PLAN = Path("data/plan")


def ask_experiments(
    names: Sequence[str], limits: Limits, files: AskFiles, terms: Terms | None = None
) -> None:
    """Print and write the answers for these experiments and scripts, or for all."""
    pipeline.enter()
    params = read_params(pipeline.PARAMS)
    every = [*params.experiments, *params.scripts]
    for name in names:
        if name not in every:
            raise ConfigError(unknown_name("name", name, every))
    experiments = [name for name in params.experiments if name in (names or every)]
    scripts = [name for name in params.scripts if name in (names or every)]
    pipeline.run_stages(pipeline.stages_before(params, experiments))
    settings = (terms or Terms()).applied_to(read_plan(PLAN / "compare.json", ComparePlan))
    answers = _sampled(experiments, limits, settings)
    for answer in answers:
        print_answers([answer])
    has_failed = len(answers) < len(experiments)
    for name in scripts:
        print(f"\n{name}:")
        print_start(limits.training_seconds)
        script = read_plan(PLAN / f"scripts/{name}.json", ScriptPlan)
        length = None
        if script.epochs:
            length = Length("epochs", script.epochs, "`epochs` of params.yaml")
        try:
            found, failed = ask_command(in_shell(script.command), length, limits, settings)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            found, failed = [], True
        answers += found
        has_failed = has_failed or failed
    write_job_answers(files, answers)
    if has_failed:
        sys.exit(EXIT_FAILED)


def _sampled(experiments: Sequence[str], limits: Limits, plan: ComparePlan) -> list[JobAnswer]:
    """Sample the experiments, then decide for all of them: a sweep shares a rented GPU."""
    sampled = list[tuple[JobPair, dict[DeviceLabel, Measured]]]()
    for number, name in enumerate(experiments, 1):
        print(
            f"{name}: training for up to {seconds(limits.training_seconds)}; nothing is kept "
            f"({number} of {len(experiments)})",
            file=sys.stderr,
        )
        try:
            sampled.append(sample_on_both(name, limits.training_seconds))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
    references = read_references(Path("reference"), plan.references)
    jobs = with_references([pair for pair, _ in sampled], references)
    pairs = [compare(pair, plan) for pair in jobs]
    decisions, answers = decide_all(pairs, limits.training_seconds), []
    for pair, decision, (_, records) in zip(pairs, decisions, sampled, strict=True):
        steps = float(pair.cpu.steps_per_epoch or 1)
        job = WholeJob(pair.name, round(pair.cpu.epochs), steps)
        answers.append(job_answer(job, pair, decision, records))
    return answers


def sample_on_both(name: str, seconds: float) -> tuple[JobPair, dict[DeviceLabel, Measured]]:
    """Measure an experiment on the devices here, each for at most `seconds` seconds."""
    planned = read_plan(PLAN / f"experiments/{name}.json", ExperimentPlan)
    if reason := _why_not_here("cpu"):
        raise UserError(f"{name} can't be measured on the CPU: {reason}")
    measured: dict[DeviceLabel, Measured] = {"cpu": sample(name, "cpu", planned, seconds)}
    reason = _why_not_here("gpu")
    if reason is None:
        try:
            measured["gpu"] = sample(name, "gpu", planned, seconds)
        except UserError as error:
            reason = str(error)
    # The CPU trains without settings that only accelerators read, but estimates need them.
    settings = planned.model_dump_json(include=set(Experiment.model_fields))
    experiment = Experiment.model_validate_json(settings)
    jobs = {
        device: job_of_experiment(record, experiment, planned.custom_code)
        for device, record in measured.items()
    }
    return JobPair(jobs["cpu"], jobs.get("gpu"), reason), measured


def sample(
    name: str,
    device: DeviceLabel,
    planned: ExperimentPlan,
    seconds: float,
) -> Measured:
    """Measure an experiment on a device for about `seconds` seconds, into a temporary record."""
    on_cpu = device == "cpu"
    with tempfile.TemporaryDirectory(prefix="photofinish-") as folder:
        out = Path(folder)
        arguments = {
            "device": device,
            "steps": PLAN / ("steps_on_cpu" if on_cpu else "steps") / f"{name}.json",
            "job": PLAN / ("on_cpu" if on_cpu else "experiments") / f"{name}.json",
            "host": PLAN / f"hosts/{device}.json",
            "data": Path("data/splits", planned.dataset),
            "weights": Path("data/weights", name),
            "out": out,
            "seconds": seconds,
        }
        command = [sys.executable, "stages/measure.py"]
        command += [text for key, value in arguments.items() for text in (f"--{key}", str(value))]
        # Answers alone go to the standard output.
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            raise UserError(f"{name} can't be measured on the {device.upper()}: see above")
        measured = read_measured(out / MEASURED)
    if isinstance(measured, NotMeasured):
        raise UserError(measured.reason)
    return measured


def _why_not_here(device: DeviceLabel) -> str | None:
    host = read_host(device, PLAN / f"hosts/{device}.json")
    if isinstance(host, GpuTarget) and host.missing:
        return f"no accelerator: {host.missing}"
    differences = mismatches(host, Machine.here())
    return f"it is planned for another machine ({differences[0]})" if differences else None
