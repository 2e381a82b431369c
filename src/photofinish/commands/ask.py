"""`photofinish ask python train.py`: run a script for a minute, and answer for its whole job."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from photofinish.answer.comparison import Comparison, compare
from photofinish.answer.decision import Decision, decide
from photofinish.answer.estimates import CONTEXT_SECONDS
from photofinish.answer.record import job_record
from photofinish.commands.ask_options import Terms
from photofinish.commands.pipeline import print_answer
from photofinish.config.compare import Comparing
from photofinish.config.devices import Devices
from photofinish.config.scripts import PLACEHOLDER
from photofinish.errors import EXIT_FAILED, UserError
from photofinish.machine.fingerprint import CpuTarget, GpuTarget, fingerprint
from photofinish.reporting.answer_words import legend, slow_loading
from photofinish.reporting.ask_lines import (
    AskFiles,
    JobAnswer,
    bars,
    repaid_line,
    seen_line,
    step_line,
    suggestion,
    write_job_answers,
)
from photofinish.reporting.causes import stall_lines
from photofinish.reporting.say import say
from photofinish.reporting.sentences import verdict
from photofinish.results.job import JobPair
from photofinish.results.measured import Measured
from photofinish.results.measured_jobs import measured_job
from photofinish.results.trained import DEVICE_LABELS, DeviceLabel
from photofinish.scripts.run_script import Limits, NoStepsError, Watched, watch
from photofinish.scripts.script_lines import Length
from photofinish.scripts.script_record import (
    WholeJob,
    files_of,
    jobs,
    measured_script,
    missing_length,
    named_files,
    own_length,
    rented_records,
    sampled,
)
from photofinish.stage.locks import exclusive_machine
from photofinish.wording import counted, seconds

Watching = Callable[..., Watched]
"""`watch` of a command, for one kind of device."""
_BY_PLACEHOLDER = (
    f"Put `{PLACEHOLDER}` in the command, as in `--device {PLACEHOLDER}`: photofinish fills in"
)


def ask(
    command: Sequence[str],
    length: Length | None,
    limits: Limits,
    files: AskFiles,
    terms: Terms | None = None,
) -> None:
    settings = (terms or Terms()).applied_to(Comparing())
    answers, has_failed = ask_command(command, length, limits, settings)
    write_job_answers(files, answers, command)
    if has_failed:
        sys.exit(EXIT_FAILED)


def ask_command(
    command: Sequence[str], length: Length | None, limits: Limits, settings: Comparing
) -> tuple[list[JobAnswer], bool]:
    """Run the command for a while on each device, and print the answer for the whole job.

    Return the answers, and whether the command failed.
    """
    hosts = fingerprint(Devices())
    is_once = bool(hosts[1].missing)
    seeds = limits.seeds and not is_once
    named, rented = named_files(command), list(rented_records(command))
    if not is_once:
        print("Running it on the GPU, then on the CPU, both without stdin.", file=sys.stderr)
    if seeds:
        print(
            "Seeding torch, NumPy and random so the models can be compared (--no-seed: don't).",
            file=sys.stderr,
        )
    with exclusive_machine(f"ask: {shlex.join(command)}"):
        # The GPU goes first, as a script that can't train on the CPU still gets its figures.
        watching = functools.partial(watch, command, limits=limits, is_seeded=seeds)
        gpu = _watch_gpu(watching, hosts[1])
        cpu = _watch_cpu(watching, hosts[1], gpu)
        runs, why_no_gpu = ([cpu], gpu) if isinstance(gpu, str) else ([cpu, gpu], None)
    records = _records(runs, hosts, files_of(named, runs))
    answers = []
    for job in jobs(runs, length):
        first = records[runs.index(sampled(runs))]
        on_rented = [compare(_jobs(job, both, first), settings) for both in rented]
        pair = compare(_jobs(job, records, first, why_no_gpu), settings, on_rented)
        of_devices = dict(zip(DEVICE_LABELS, records, strict=False))
        answers.append(job_answer(job, pair, decide(pair, limits.training_seconds), of_devices))
    if what_gives := missing_length(sampled(runs), length):
        print(f"\n{what_gives}")
    print_answers(answers, runs, command)
    return answers, any(run.status for run in runs)


def job_answer(
    job: WholeJob,
    pair: Comparison,
    decision: Decision,
    records: Mapping[DeviceLabel, Measured],
) -> JobAnswer:
    measured = {device: run.model_dump(mode="json") for device, run in records.items()}
    return JobAnswer(job, job_record(pair, decision), measured)


def print_answers(
    answers: Sequence[JobAnswer], runs: Sequence[Watched] = (), command: Sequence[str] = ()
) -> None:
    """Print the answers, the picture of the last and longest job, and the legend."""
    texts: list[str] = []
    for answer in answers:
        epochs = counted(round(answer.job.epochs), "epoch")
        length = "" if answer.record.is_script else f", {epochs}"
        texts += ["", f"{answer.job.name}{length}:"]
        texts += verdict(answer.record, command).lines
    last, watched = answers[-1].record, runs[0] if runs else None
    texts += bars(last)
    texts += [line for run in last.runs if (line := step_line(run, last.steps[run.device]))]
    if answers[-1].job.is_hour and (repaid := repaid_line(answers[-1])):
        texts.append(repaid)
    texts += suggestion(last, watched)
    texts += [*slow_loading(last), *stall_lines(last)]
    texts.append(seen_line(last.cpu, watched))
    ranks = [run.process.ranks if run.process else 1 for run in runs]
    if max(ranks, default=1) > 1:
        estimates = say("of all batches") if last.worth.basis == "estimated" else ""
        texts.append(
            say("trained together", ranks=ranks[0], gpus=sum(ranks[1:]), estimates=estimates)
        )
    jobs = [answer.record for answer in answers]
    print_answer("\n".join([*texts, *legend(jobs, texts, is_asked=True)]))


def _watch_cpu(watching: Watching, target: GpuTarget, gpu: Watched | str) -> Watched:
    """Return the run on the CPU. Without a timed step, it is a bound on the time of one.

    Raise UserError if there is no bound, or if the run computed on an accelerator.
    """
    try:
        watched = watching(kind="cpu", takes_input=bool(target.missing))
    except NoStepsError as error:
        if isinstance(gpu, str) or gpu.figures is None:
            raise
        if error.watched.least_step_seconds is None:
            step = counted(gpu.figures.steps, "step")
            raise UserError(
                f"{error}\nThis command can't train on the CPU, so there is no answer. On the "
                f"{target.accelerators[0].name}, a step takes {seconds(gpu.figures.step_seconds)} "
                f"({step} seen)."
            ) from error
        watched = error.watched
    kind = watched.process.device if watched.process else "cpu"
    if kind != "cpu":
        own_kind = target.accelerators[0].kind if target.accelerators else kind
        raise UserError(
            f"the command used {kind} in its run on the CPU, and {kind} can't be hidden from it. "
            f"{_BY_PLACEHOLDER} {own_kind}, then cpu"
        )
    _show_failure(watched)
    return watched


def _watch_gpu(watching: Watching, gpu: GpuTarget) -> Watched | str:
    """Return the run on the accelerator, or the reason why there is no run."""
    if gpu.missing:
        return f"no accelerator: {gpu.missing}"
    kind = gpu.accelerators[0].kind
    try:
        watched = watching(kind=kind)
    except UserError as error:
        print(f"On {kind}, {error}", file=sys.stderr)
        return f"the command failed on {kind}"
    _show_failure(watched)
    if watched.process and not watched.process.used_accelerator:
        print(
            f"The command ran on the CPU although this machine has a GPU, so GPU times are "
            f"estimates. {_BY_PLACEHOLDER} {kind}, then cpu.",
            file=sys.stderr,
        )
        return f"the command did not use {kind}"
    return watched


def _show_failure(watched: Watched) -> None:
    if watched.status:
        print(f"{watched.output}\nThe command failed. Measured until then:", file=sys.stderr)


def _records(
    runs: Sequence[Watched], hosts: Sequence[CpuTarget | GpuTarget], files: dict[str, str]
) -> list[Measured]:
    """Return the records of the runs, the CPU's first.

    A GPU is never ready for its first batch earlier. So what takes the CPU longer until then is in
    one run only, such as a download, and the GPU's time counts for both. What follows may take the
    CPU longer, such as a validation or compilation before the first step.
    """
    records = [
        measured_script("", run, run.process.device if run.process else "cpu", host, files=files)
        for run, host in zip(runs, hosts, strict=False)
    ]
    ready = [(run.process.seen_at or run.process.first_step_at) for run in runs if run.process]
    starts = [(at or run.began_at) - run.began_at for at, run in zip(ready, runs, strict=True)]
    here_seconds, there_seconds = starts[0], starts[-1]
    if here_seconds > there_seconds:
        startup_seconds = max(0.0, records[0].startup_seconds - here_seconds + there_seconds)
        records[0] = records[0].model_copy(update={"startup_seconds": startup_seconds})
    elif there_seconds > here_seconds + CONTEXT_SECONDS[2]:
        print(
            f"Until its first batch, the run on the GPU took {seconds(there_seconds)} and the "
            f"later run on the CPU {seconds(here_seconds)}. If the first one downloaded "
            f"something, ask again.",
            file=sys.stderr,
        )
    return records


def _jobs(
    job: WholeJob, records: Sequence[Measured], first: Measured, why_no_gpu: str | None = None
) -> JobPair:
    """Return the job on the CPU and on the GPU, if it ran there, each with its own steps."""
    cpu, *gpu = (
        measured_job(record.model_copy(update={"job": job.name}), *own_length(job, record, first))
        for record in records
    )
    return JobPair(cpu, gpu[0] if gpu else None, why_no_gpu)
