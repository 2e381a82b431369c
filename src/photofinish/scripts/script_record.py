"""Record of a script that was watched here or on a rented machine, and its whole jobs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from photofinish.answer.estimates import with_batch
from photofinish.answer.prices import SECONDS_AN_HOUR
from photofinish.config.scripts import PLACEHOLDER
from photofinish.custom.code_text import sha256_of_code
from photofinish.errors import UserError
from photofinish.files import LARGE_FILE_BYTES
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.results import TimedPart
from photofinish.results.measured import JobLength, Measured, ScriptFacts, Stall
from photofinish.results.measured_jobs import in_epochs
from photofinish.results.measurements import LoaderTimes, Operations
from photofinish.results.trained import made_here
from photofinish.scripts.run_script import Watched
from photofinish.scripts.script_figures import Figures
from photofinish.scripts.script_lines import Length, Process
from photofinish.wording import counted

WHOLE_RUN = "its whole run"
FOLDER, ANSWER = "rented-", "photofinish-answer.json"


@dataclass(frozen=True)
class WholeJob:
    name: str
    epochs: float
    epoch_steps: float
    is_hour: bool = False


def missing_length(run: Watched, wanted: Length | None) -> str | None:
    """Return what gives the whole job's length, or None if it is known or the run is whole."""
    length, epoch_steps = whole_length(run, wanted), steps_of_epoch(run)
    if (run.status == 0 and wanted is None) or (length and length.is_steps):
        return None
    if epoch_steps is None and length:
        return (
            f"Couldn't find the steps of its {_shown(length)}: no DataLoader has a length. "
            f"Give all before the command, as in `photofinish ask --steps 9000 python train.py`."
        )
    if length:
        return None
    option = "--steps 9000" if epoch_steps is None else "--epochs 90"
    return (
        f"Couldn't find how long the whole job is. Give it before the command, as in "
        f"`photofinish ask {option} python train.py`."
    )


def _shown(length: Length) -> str:
    number = round(float(length.value), 2)
    unit = "step" if length.is_steps else "epoch"
    count = counted(int(number) if number.is_integer() else number, unit)
    at_most = "up to " if length.may_stop else ""
    return f"{at_most}{count} ({length.by})"


def whole_length(run: Watched, wanted: Length | None = None) -> Length | None:
    """Return the length of the whole job, unless more epochs were seen: something repeats them."""
    length = run.process.length if run.process else None
    epoch_steps = steps_of_epoch(run)
    if length and run.figures and epoch_steps and not length.is_steps:
        epochs = run.figures.steps / epoch_steps
        length = None if epochs > length.value + 1 else length
    return wanted or length


def steps_of_epoch(run: Watched) -> float | None:
    """Return the number of steps in an epoch, or None if no loader has a length."""
    figures = run.figures
    if figures is None or figures.loader is None or run.process is None:
        return None
    if batches := run.process.loaders[figures.loader].batches:
        return max(1.0, batches / figures.batches_per_step)
    return float(figures.longest_epoch_steps) if figures.longest_epoch_steps else None


def epoch_share(run: Watched) -> float | None:
    """Return the share of its loader's steps that an epoch took, or None before one ended.

    A loop may end its epochs early, or take batches of two loaders for a step.
    """
    longest = run.figures and run.figures.longest_epoch_steps
    steps = steps_of_epoch(run)
    if not longest or not steps:
        return None
    return 1.0 if abs(longest - steps) <= 1 else longest / steps


def sampled(runs: Sequence[Watched]) -> Watched:
    """Return the first run whose steps were timed: the CPU's, unless it is only a bound."""
    return next(run for run in runs if run.figures)


def own_length(job: WholeJob, run: Measured, first: Measured) -> tuple[float, float]:
    """Return the epochs of a job and a run's own steps in each: its batches may be larger.

    `first` is the run that gave the job's length. Without epochs, a run takes as many steps as have
    equal numbers of samples.
    """
    if run is first or (run.script and run.script.is_bound):
        return job.epochs, job.epoch_steps
    if first.epoch_steps and run.epoch_steps:
        return job.epochs, job.epoch_steps * run.epoch_steps / first.epoch_steps
    samples, own = (each.script and each.script.samples_per_step for each in (first, run))
    return job.epochs, job.epoch_steps * (samples / own if samples and own else 1.0)


def jobs(runs: Sequence[Watched], wanted: Length | None) -> Iterator[WholeJob]:
    """Yield the whole job, or a known part of it and an hour if its length is not known.

    `runs` has a run for each device, the CPU's first. `wanted` is the length in the options of
    `photofinish ask`.
    """
    run = sampled(runs)
    process, figures = run.process, run.figures
    assert process
    assert figures
    epoch_steps = steps_of_epoch(run)
    if epoch_steps:
        epoch_steps *= next(filter(None, map(epoch_share, runs)), 1.0)
    ended = [run.figures for run in runs if run.status == 0 and run.figures]
    if ended and wanted is None:
        yield WholeJob("the whole run", *in_epochs(ended[0].steps, epoch_steps))
        return
    whole, in_source = whole_length(run, wanted), process.in_source
    length = whole or (in_source if in_source and in_source.is_part else None)
    if length and (length.is_steps or epoch_steps):
        steps = length.value if length.is_steps else length.value * (epoch_steps or 1.0)
        name = _shown(length) if whole else f"a part of the job, {_shown(length)}"
        yield WholeJob(name, *in_epochs(steps, epoch_steps))
        if whole:
            return
    elif epoch_steps:
        yield WholeJob("an epoch", 1, epoch_steps)
    steps = SECONDS_AN_HOUR / (figures.step_seconds + figures.validation_step_seconds)
    name = "an hour of training here"
    yield WholeJob(name, *in_epochs(steps, epoch_steps), is_hour=True)


def measured_script(
    name: str,
    run: Watched,
    kind: str,
    host: CpuTarget | GpuTarget,
    epochs: int | None = None,
    **of_plan: Any,
) -> Measured:
    """Return the record of a run. If no step was seen, it has one part, which is the run.

    `epochs` is the job's length and `of_plan` has fields of ScriptFacts, from a script's plan.
    """
    process = run.process or Process()
    figures = run.figures
    accelerators = host.accelerators if isinstance(host, GpuTarget) else ()
    cpu_name = host.cpu.model if host.cpu else "unknown"
    counts, loader = process.counts, figures.loader if figures else None
    operations = None
    if counts:  # as if one GPU took the batches of all ranks
        operations = Operations.model_validate_json(json.dumps(counts["operations"]))
        operations = with_batch(operations, process.ranks * operations.images)
    workers = None if loader is None else process.loaders[loader].workers
    why_not = process.uncounted or "the script took too few steps to count the operations of one"
    if figures is None:
        why_not = "no optimizer step was seen in the script"
    peak_bytes = process.peak_bytes["host_bytes" if kind == "cpu" else "device_bytes"]
    return Measured(
        **made_here(host),
        **_times(run, figures, process),
        device_name=accelerators[0].name if accelerators else cpu_name,
        device_count=max(len(accelerators), process.ranks),
        started_at_unix_seconds=run.began_at_unix_seconds,
        job=name,
        device="cpu" if isinstance(host, CpuTarget) else "gpu",
        script=ScriptFacts(
            command=run.command,
            device_kind=kind,
            precision=process.precision,
            parameter_count=counts["parameter_count"] if counts else None,
            lengths=tuple(_lengths(run, figures, epochs)),
            steps=figures.steps if figures else 1,
            loader_workers=workers,
            # Each worker loads a batch meanwhile.
            step_loading_seconds=figures.batches_per_step * figures.first_waiting_seconds / workers
            if figures and workers
            else None,
            epoch_share=epoch_share(run),
            samples_per_step=operations.images if operations and process.loaders else None,
            first_steps=process.first_steps,
            step_parts=process.step_parts,
            compiles=process.compiles,
            idle_share=figures.idle_share if figures else 0.0,
            stalls=tuple(
                Stall(file=_beside(file), line=line, what=what)
                for file, line, what in process.stalls
            ),
            ended=run.ended,
            cuda_at=run.cuda_at,
            is_bound=figures is None and run.least_step_seconds is not None,
            **{"files": {}, "metrics": {}} | of_plan,
        ),
        peak_memory_bytes=peak_bytes or None,
        peak_reserved_bytes=process.peak_bytes["reserved_bytes"] or None,
        peak_host_memory_bytes=process.peak_bytes["host_bytes"],
        load=run.load,
        loader=LoaderTimes(slow_line=(*process.slow_line,)) if process.slow_line else None,
        operations=operations,
        not_counted=None if operations else why_not,
    )


def named_files(command: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of the files that a command names, as in `--config=small.yaml`."""
    words = {part for word in command[1:] for part in word.split()}
    return hashes_of(words | {word.rpartition("=")[2] for word in words} - {""})


def files_of(named: Mapping[str, str], runs: Sequence[Watched]) -> dict[str, str]:
    """Return the SHA-256 of the files that runs loaded, and of named ones that they did not write.

    `named` are those that were there before.
    """
    after = hashes_of(named)
    kept = {name: sha256 for name, sha256 in named.items() if after.get(name) == sha256}
    return kept | hashes_of({file for run in runs if run.process for file in run.process.files})


def hashes_of(files: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each file that is here and small, as code and settings are."""
    # False for a word that is too long for a path.
    here = [each for each in sorted(files) if os.path.isfile(each)]  # noqa: PTH113
    small = [each for each in here if Path(each).stat().st_size <= LARGE_FILE_BYTES]
    return {_beside(each): sha256_of_code(Path(each)) for each in small}


def _beside(file: str) -> str:
    """Return a path as a user in this folder would write it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _times(run: Watched, figures: Figures | None, process: Process) -> dict[str, Any]:
    if figures is None:
        part = TimedPart(run.ended_at - run.began_at, 1.0, 0, "run")
        if run.least_step_seconds is not None:
            part = TimedPart(run.least_step_seconds, 1.0, 0, "steps")
        return {"startup_seconds": 0.0, "parts": (part,)}
    end_seconds = 0.0
    if run.status == 0:  # it may save or test its model at the end
        end_seconds = run.ended_at - figures.last_step_at
        end_seconds -= figures.validated_at_end_seconds
    startup_seconds = figures.first_step_at - run.began_at - figures.step_seconds
    startup_seconds -= process.recording_seconds
    return {
        "startup_seconds": max(0.0, startup_seconds),
        "parts": figures.parts,
        "epoch_steps": steps_of_epoch(run),
        "validation_step_seconds": figures.validation_step_seconds,
        "end_seconds": max(0.0, end_seconds),
        "loop_steps": figures.loop_steps,
    }


def _lengths(run: Watched, figures: Figures | None, epochs: int | None) -> Iterator[JobLength]:
    """Yield the lengths of the whole job, the most reliable one first."""
    if epochs:
        yield JobLength(value=epochs, unit="epochs", by="params.yaml")
    if figures and run.status is not None:
        yield JobLength(value=figures.steps, unit="steps", by=WHOLE_RUN)
    if length := whole_length(run):
        unit = "steps" if length.is_steps else "epochs"
        yield JobLength.model_validate({"value": length.value, "unit": unit, "by": length.by})


def rented_records(command: Sequence[str]) -> Iterator[tuple[Measured, Measured]]:
    """Yield the records of this command on each rented machine's CPU and GPU."""
    for path in sorted(Path().glob(f"{FOLDER}*/{ANSWER}")):
        try:
            records = json.loads(path.read_bytes())[-1]["records"]
            jobs = [_measured(each) for each in records.values()]
        except (LookupError, TypeError, AttributeError, ValidationError, ValueError) as error:
            raise UserError(f"this photofinish can't read {path}: remove it") from error
        script = jobs[1].script if len(jobs) > 1 else None
        if script is None:
            continue
        here = [word.replace(PLACEHOLDER, script.device_kind) for word in command]
        if shlex.split(script.command)[1:] != here[1:]:  # by any Python
            continue
        if script.files == hashes_of(script.files):
            yield jobs[0], jobs[1]
        else:
            print(f"{path} is ignored: the script has changed since.", file=sys.stderr)


def _measured(job: dict[str, Any]) -> Measured:
    """Return the record of a job, without the job's length."""
    own = {name: value for name, value in job.items() if name in Measured.model_fields}
    return Measured.model_validate_json(json.dumps(own))
