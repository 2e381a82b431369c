"""`photofinish ask python train.py`: run a script for a minute, and answer for its whole job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from photofinish.answer.comparison import Comparison, result_of_script
from photofinish.answer.result import Result
from photofinish.commands.ask_terms import Terms
from photofinish.commands.terminal import print_answer
from photofinish.config.compare import Comparing
from photofinish.config.devices import Devices
from photofinish.config.scripts import PLACEHOLDER
from photofinish.errors import EXIT_FAILED, UserError
from photofinish.machine.fingerprint import CpuTarget, GpuTarget, fingerprint
from photofinish.reporting.ask_json import JobAnswer, write_job_answers
from photofinish.reporting.ask_lines import (
    answer_lines,
    ask_legend,
    bars,
    repaid_line,
    seen_line,
    step_line,
    suggestion,
)
from photofinish.results.measured_job import measured_job
from photofinish.scripts.run_script import Limits, Watched, watch
from photofinish.scripts.script_lines import Length
from photofinish.scripts.script_record import (
    WholeJob,
    jobs,
    measured_script,
    missing_length,
)
from photofinish.wording import counted

_BY_PLACEHOLDER = (
    f"Write {PLACEHOLDER} into the command, for example `--device {PLACEHOLDER}`: it becomes cpu, "
    f"and then"
)


def ask(
    command: Sequence[str],
    length: Length | None,
    limits: Limits,
    json_file: Path | None,
    terms: Terms | None = None,
    *,
    shows_output: bool,
) -> None:
    """Print the answer for a command, and write it."""
    settings = (terms or Terms()).applied_to(Comparing())
    answers, has_failed = ask_command(command, length, limits, settings, shows_output=shows_output)
    if json_file:
        write_job_answers(json_file, answers)
    if has_failed:
        sys.exit(EXIT_FAILED)


def ask_command(
    command: Sequence[str],
    length: Length | None,
    limits: Limits,
    settings: Comparing,
    *,
    shows_output: bool,
) -> tuple[list[JobAnswer], bool]:
    """Run the command for a while on each device, and print the answer for the whole job.

    Return the answers, and whether the command failed.
    """
    hosts = fingerprint(Devices())
    is_once = bool(hosts[1].missing)
    if not is_once:
        print(
            "It runs on the CPU, then as long again on the GPU, so it gets no input from here.",
            file=sys.stderr,
        )
    watched = watch(command, "cpu", limits, shows_output=shows_output, takes_input=is_once)
    cpu = _checked_cpu(watched, hosts[1])
    gpu = _watch_gpu(command, limits, hosts[1], shows_output=shows_output)
    runs = [cpu] if isinstance(gpu, str) else [cpu, gpu]
    answers = [
        JobAnswer.alone(job, _compared(job, cpu, gpu, hosts, settings))
        for job in jobs(runs, length)
    ]
    if what_gives := missing_length(cpu, length):
        print(f"\n{what_gives}")
    print_answers(answers, runs)
    return answers, any(run.status for run in runs)


def print_answers(answers: Sequence[JobAnswer], runs: Sequence[Watched] = ()) -> None:
    """Print the answers, the picture of the last and longest job, and the legend."""
    texts: list[str] = []
    for answer in answers:
        is_experiment = answer.pair.cpu.settings is not None
        length = f", {counted(round(answer.job.epochs), 'epoch')}" if is_experiment else ""
        texts += ["", f"{answer.job.name}{length}:"]
        texts += answer_lines(answer)
    last = answers[-1]
    pair = last.pair
    texts += bars(pair, last.decision)
    texts += [line for run in pair.trained if (line := step_line(run))]
    if last.job.is_hour and (repaid := repaid_line(last)):
        texts.append(repaid)
    texts += suggestion(pair, runs[0] if runs else None)
    texts.append(seen_line(pair.cpu, runs[0] if runs else None))
    print_answer("\n".join([*texts, *ask_legend(answers, texts)]))


def _checked_cpu(watched: Watched, gpu: GpuTarget) -> Watched:
    """Raise UserError if the CPU's run computed on an accelerator."""
    kind = watched.process.device if watched.process else "cpu"
    if kind != "cpu":
        here = gpu.accelerators[0].kind if gpu.accelerators else kind
        raise UserError(
            f"the command computes on {kind} where it should compute on the CPU, and {kind} can't "
            f"be hidden from it. {_BY_PLACEHOLDER} {here}"
        )
    _show_failure(watched)
    return watched


def _watch_gpu(
    command: Sequence[str], limits: Limits, gpu: GpuTarget, *, shows_output: bool
) -> Watched | str:
    """Return the run on the accelerator, or the reason why there is no run."""
    if gpu.missing:
        return f"no accelerator: {gpu.missing}"
    kind = gpu.accelerators[0].kind
    try:
        watched = watch(command, kind, limits, shows_output=shows_output)
    except UserError as error:
        print(f"On {kind}, {error}", file=sys.stderr)
        return f"the command failed on {kind}"
    _show_failure(watched)
    if watched.process and watched.process.device == "cpu":
        print(
            f"The command computes on the CPU though {kind} is here, so the GPU's times are "
            f"estimates. {_BY_PLACEHOLDER} {kind}.",
            file=sys.stderr,
        )
        return f"the command did not use {kind}"
    return watched


def _show_failure(watched: Watched) -> None:
    if watched.status:
        print(f"{watched.output}\nThe command failed, after these measurements:", file=sys.stderr)


def _compared(
    job: WholeJob,
    cpu: Watched,
    gpu: Watched | str,
    hosts: tuple[CpuTarget, GpuTarget],
    settings: Comparing,
) -> Comparison:
    def result(run: Watched, host: CpuTarget | GpuTarget) -> Result:
        kind = run.process.device if run.process else "cpu"
        measured = measured_script(job.name, run, kind, host)
        return result_of_script(measured_job(measured, job.epochs, job.epoch_steps))

    on_cpu = result(cpu, hosts[0])
    if isinstance(gpu, Watched):
        on_gpu = result(gpu, hosts[1])
        return Comparison.of(on_cpu, on_gpu, None, settings)
    return Comparison.of(on_cpu, None, gpu, settings)
