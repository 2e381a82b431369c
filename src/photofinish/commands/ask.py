"""`photofinish ask python train.py`: run a script for a minute, and answer for its whole job."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from photofinish.asking.sample import Length
from photofinish.asking.watch import Limits, Watched, watch
from photofinish.asking.whole_job import Job, jobs, script_run
from photofinish.comparing.device_results import NotTrained, ScriptResult
from photofinish.comparing.diagnosis import LEAST_GAIN
from photofinish.comparing.own_gpu import estimated_options
from photofinish.comparing.pairs import Comparison
from photofinish.config.devices import Devices
from photofinish.errors import EXIT_FAILED, ConfigError
from photofinish.files import to_json, write_text_atomically
from photofinish.machine.fingerprint import fingerprint
from photofinish.machine.host import allowed_cores
from photofinish.machine.load import load_warnings
from photofinish.reporting.answer_words import action_text
from photofinish.reporting.rows import renting_rows
from photofinish.reporting.sentences import Verdict, verdict
from photofinish.reporting.tables import Table, renting_table
from photofinish.results.script_runs import ScriptUnavailable
from photofinish.wording import bound, counted, seconds

_MOST_GPUS = 5
_FEW_STEPS = 5


def ask(
    command: Sequence[str],
    length: Length | None,
    limits: Limits,
    json_file: Path | None,
    *,
    shows_output: bool,
) -> None:
    """Run the command for a while, and print the answer for the whole job."""
    if not command:
        raise ConfigError("name a command that trains: photofinish ask python train.py")
    print(
        f"Running the command for up to {seconds(limits.training_seconds)} of training, then "
        f"ending it.\nWhat it writes until then is written, and what it saves at its end is not.",
        file=sys.stderr,
    )
    watched = watch(command, limits, shows_output=shows_output)
    if watched.status:
        print(f"{watched.output}\nThe command failed, after these measurements:", file=sys.stderr)
    answers = [(job, _compared(watched, job)) for job in jobs(watched, length)]
    for job, pair in answers:
        answer = verdict(pair)
        print(f"\n{job.name}:\n{answer.answer}\nNow: {_now(pair, answer)}")
    print()
    _print_table(_best_gpus(pair))
    print()
    for line in (*_where_time_goes(watched, pair), *_remarks(watched, pair)):
        print(line)
    if json_file:
        write_text_atomically(json_file, to_json([_as_json(*answer) for answer in answers]))
    if watched.status:
        sys.exit(EXIT_FAILED)


def _compared(watched: Watched, job: Job) -> Comparison[ScriptResult]:
    _, gpu = fingerprint(Devices())
    reason = f"no accelerator: {gpu.missing}"
    missing = ScriptUnavailable(device="gpu", command=watched.command, reason=reason)
    cpu = ScriptResult(job.name, script_run(watched, job))
    return Comparison.of(cpu, NotTrained(job.name, missing))


def _now(pair: Comparison[ScriptResult], answer: Verdict) -> str:
    """Return what to do now, by commands that need no params.yaml."""
    action = answer.decision.action
    if action.kind == "measure again":
        return "Ask again when the machine is quiet."
    return action_text(pair, replace(action, accelerator=None))


def _best_gpus(pair: Comparison[ScriptResult]) -> Table:
    """Return the time and the cost on the fastest GPUs."""
    options = sorted(estimated_options(pair), key=lambda each: each[1].job_seconds)
    names = [option.accelerator.name for option, _ in options[:_MOST_GPUS]]
    rows = {row["accelerator"]: row for row in renting_table(pair)}
    return [
        {
            "GPU": name,
            "the job, estimated": rows[name]["the job, estimated"],
            "cost": rows[name]["cost, estimated"],
            "fits, memory at least": rows[name]["fits, memory at least"],
        }
        for name in names
    ]


def _print_table(table: Table) -> None:
    """Print a table with aligned columns."""
    rows = [[*table[0]], *([*row.values()] for row in table)] if table else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _where_time_goes(watched: Watched, pair: Comparison[ScriptResult]) -> Iterator[str]:
    figures, timings = watched.figures, pair.cpu.timings
    waits_for = "waiting for the loader" if figures.loader is not None else "making the batch"
    yield (
        f"On {timings.device_name}: start-up {seconds(timings.startup_seconds)}, then "
        f"{seconds(figures.step_seconds)} a step, {figures.waiting_share:.0%} of it {waits_for} "
        f"({counted(figures.steps, 'step')} seen)."
    )
    if figures.validation_step_seconds:
        share = figures.validation_step_seconds / (
            figures.validation_step_seconds + figures.step_seconds
        )
        yield f"Validation takes {share:.0%} of the time after the start."
    else:
        yield "No validation was seen, so none is counted."


def _remarks(watched: Watched, pair: Comparison[ScriptResult]) -> Iterator[str]:
    """Yield a suggestion, and reasons for doubt."""
    figures, cpu = watched.figures, pair.cpu.timings.host.cpu
    cores = allowed_cores(cpu) if cpu else 1
    loader = watched.process.loaders.get(-1 if figures.loader is None else figures.loader)
    if loader and not loader.workers:
        share = figures.waiting_share
        gain = 1 / max(1 - share, share / cores)
        if gain >= LEAST_GAIN:
            yield f"Try DataLoader(num_workers={cores}): a step is up to {bound(gain)} faster."
    if not_counted := pair.renting.not_counted:
        yield f"There are no estimates: {not_counted}."
    if figures.steps < _FEW_STEPS:
        yield f"Only {counted(figures.steps, 'step')} were seen: --seconds allows more."
    if warnings := load_warnings(watched.load):
        yield f"The machine was busy ({warnings[0]}), so the intervals are wide."


def _as_json(job: Job, pair: Comparison[ScriptResult]) -> dict[str, Any]:
    answer, rows = verdict(pair), renting_rows([pair])
    # JSON has no infinity, which a bound may be.
    finite = [
        {name: None if value == math.inf else value for name, value in row.items()} for row in rows
    ]
    return {
        "job": asdict(job),
        "answer": answer.answer,
        "decision": answer.decision.answer,
        "renting": finite,
        "record": pair.cpu.record.model_dump(mode="json"),
    }
