"""Answers of `photofinish ask`: text with bars of times and of a step, JSON and a page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from photofinish.answer.record import (
    MOST_OF_IT,
    SECONDS_AN_HOUR,
    Candidate,
    DeviceLabel,
    EpochStep,
    Job,
    JobRecord,
)
from photofinish.files import to_json, write_text_atomically
from photofinish.reporting.answer_words import cost_text, gpu_words, there_text
from photofinish.reporting.answers import answer_of
from photofinish.reporting.causes import slow_gpu_lines
from photofinish.reporting.say import say
from photofinish.reporting.sentences import SHORT_PARTS, verdict
from photofinish.scripts.run_script import Watched
from photofinish.scripts.script_record import WholeJob
from photofinish.wording import between, gibibytes, is_wide, seconds

_MOST_GPUS = 4
_FEW_STEPS = 5
_LEAST_REPAID_SECONDS = 1.0
_MUCH_WAITING = 0.1
"""Least share of waits in a hint about workers, by hand."""
_BAR = 40
"""Width of the longest bar."""
_START, _JOB, _UNSURE = "░", "█", "▒"


@dataclass(frozen=True)
class JobAnswer:
    job: WholeJob
    record: JobRecord
    measured: Mapping[DeviceLabel, Any]
    """Records of the devices, as JSON."""


class AskFiles(NamedTuple):
    """Files to write, if any."""

    json: Path | None = None
    html: Path | None = None


class _DrawnBar(NamedTuple):
    name: str
    start_seconds: float
    job_seconds: float
    time: str
    cost: str = ""
    fits: str = ""
    is_unsure: bool = False
    """True if its interval is so wide that the bar is shaded."""


def write_job_answers(
    files: AskFiles, answers: Sequence[JobAnswer], command: Sequence[str] = ()
) -> None:
    """Write the JSON and the page. `command` is a script's."""
    if files.json:
        as_json = [
            {
                "job": asdict(answer.job),
                "answer": answer_of(verdict(answer.record, command)).model_dump(mode="json"),
                "records": answer.measured,
            }
            for answer in answers
        ]
        write_text_atomically(files.json, to_json(as_json))
    if files.html:
        from photofinish.reporting.report import page_of

        page = page_of([answer.record for answer in answers], command)
        write_text_atomically(files.html, page.html)


def repaid_line(hour: JobAnswer) -> str | None:
    """Return from how much training on a GPU pays off, by the answer for an hour, or None.

    None also where the time on the GPU is hardly known.
    """
    job, worth = hour.record, hour.record.worth
    if job.break_even:
        least_seconds = SECONDS_AN_HOUR * job.break_even.epochs / hour.job.epochs
        is_later = _LEAST_REPAID_SECONDS < least_seconds < math.inf
        return say("own repaid", after=least_seconds) if is_later else None
    if worth.gpu is None or not worth.terms.start_seconds or is_wide(worth.gpu.time.interval):
        return None
    saved_seconds = worth.cpu_time.seconds - worth.gpu.time.seconds
    if saved_seconds <= 0:
        return say("never repaid", gpu=gpu_words(worth)) if worth.answer == "No" else None
    after = worth.terms.start_seconds * worth.cpu_time.seconds / saved_seconds
    never = "never" if worth.interval and worth.saved[0] <= 0 else ""
    return say("setup repaid", gpu=gpu_words(worth), after=after, never=never)


def bars(job: JobRecord) -> list[str]:
    """Return a bar for this CPU and for each of the best GPUs, with cost and memory."""
    worth, run = job.worth, job.cpu
    mark = "~" if run.is_extrapolated else ""
    mark = "over " if run.is_bound else mark
    cpu = _DrawnBar("this CPU", 0.0, run.whole_seconds, f"{mark}{seconds(run.whole_seconds)}")
    rows = [cpu._replace(is_unsure=is_wide(worth.cpu_time.interval))]
    if worth.is_here and worth.gpu:
        time, is_sure = worth.gpu.time, not is_wide(worth.gpu.time.interval)
        row = _DrawnBar(worth.gpu.name, 0.0, time.seconds, there_text(job) if is_sure else "")
        rows.append(row._replace(is_unsure=not is_sure))
    rows += [] if worth.is_here else map(_row, _best(job))
    if len(rows) == 1:
        return []
    longest = max(row.start_seconds + row.job_seconds for row in rows)
    names = max(len(row.name) for row in rows)
    times = max(len(row.time) for row in rows)
    costs = max(len(row.cost) for row in rows)
    lines = []
    for row in rows:
        drawn = _START * round(_BAR * row.start_seconds / longest)
        sign = _UNSURE if row.is_unsure else _JOB
        drawn += sign * max(1, round(_BAR * row.job_seconds / longest))
        cells = f"{row.name:{names}}  {drawn:{_BAR + 1}}  {row.time:{times}}"
        lines.append(f"  {cells}  {row.cost:{costs}}  {row.fits}".rstrip())
    unsure = say("bar unsure") if any(row.is_unsure for row in rows) else ""
    setup = say("bar of setup") if any(row.start_seconds for row in rows) else ""
    return [*lines, f"  {say('bars', setup=setup, unsure=unsure)}"] if setup or unsure else lines


def _best(job: JobRecord) -> list[Candidate]:
    """Return the GPU of the answer, the cheapest others, and the fastest of the rest.

    GPUs whose times are known too vaguely are left out.
    """
    known = [gpu for gpu in job.candidates if not is_wide(gpu.interval_with_start)]
    known.sort(key=lambda gpu: (gpu.name != job.worth.gpu_name, gpu.value))
    cheap = known[: _MOST_GPUS - 1]
    others = [gpu for gpu in known if gpu not in cheap]
    return [*cheap, *sorted(others, key=lambda gpu: gpu.time.seconds)[:1]]


def _row(gpu: Candidate) -> _DrawnBar:
    mark, star = ("~", "") if gpu.basis == "estimated" else ("", "*")
    ends = between(gpu.interval_with_start)
    middle = seconds(gpu.with_start_seconds)
    time = f"{mark}{ends if gpu.hides_loading else middle}{star}"
    start_seconds = gpu.terms.start_seconds
    job_seconds = gpu.time.seconds
    cost = cost_text(gpu)
    fits = ""
    if (option := gpu.option) and option.needed_bytes:
        needed = gibibytes(option.needed_bytes)
        fits = say(f"fits {option.fits}", needed=needed, of=option.accelerator.memory_gib)
    return _DrawnBar(gpu.name, start_seconds, job_seconds, time, cost, fits)


def step_line(run: Job, step: EpochStep) -> str | None:
    """Return the parts of a step, which add up to the step, or None if they are not known."""
    if not step.seconds or not step.shares:
        return None
    device = re.sub(r"\((R|TM)\)", "", run.device_name)
    texts = [say("step bar", device=device, step=step.seconds)]
    for part, share in step.shares.items():
        bar = _JOB * round(20 * share) or "▏"
        texts += [f"{bar}{SHORT_PARTS.get(part, part)} {share:.0%}"] if share >= 0.005 else []
    return f"  {' '.join(texts)}"


def seen_line(run: Job, watched: Watched | None) -> str:
    """Return what was seen of a job, and what was not seen and is not counted."""
    figures = watched.figures if watched else None
    unseen = []
    if figures and not figures.validation_step_seconds:
        unseen.append(say("unseen validation"))
    is_cut = bool(watched and watched.status != 0)
    is_longer = bool(watched and run.is_extrapolated)  # than a run that ended by itself
    if is_cut or is_longer or (run.settings and run.settings.stops_early):
        unseen.append(say("unseen stop"))
    if is_cut:
        unseen.append(say("unseen end"))
    if run.is_bound:
        return say("watched none")
    seen = say("watched", count=run.done_text)
    if figures and figures.steps < _FEW_STEPS:
        seen += f" {say('few steps seen')}"
    seen += f" {say('mapped', script=run.script)}" if run.script and run.script.cuda_at else ""
    return f"{seen} {say('unseen', what=unseen)}" if unseen else seen


def suggestion(job: JobRecord, watched: Watched | None) -> Iterator[str]:
    """Yield what a script lacks for a GPU or for its waits, and why there are no estimates.

    What the answer's own lines say is left out.
    """
    worth, gpu = job.worth, job.gpu
    if watched and watched.process and watched.process.moves_nothing and not gpu:
        yield say("moves nothing")
    figures, loader = watched.figures if watched else None, None
    if figures and watched and watched.process and figures.loader is not None:
        loader = watched.process.loaders[figures.loader]
    if figures and loader and not loader.workers and (figures.waiting_share or 0) > _MUCH_WAITING:
        yield say("untried workers of a script")
    if worth.gpu and worth.gpu.hides_loading:
        yield say("hidden loading", script=job.cpu.script, gpu=gpu_words(worth))
    script = job.cpu.script
    if script and script.compiles and worth.basis == "estimated":
        yield say("eager estimate", gpu=gpu_words(worth))
    yield from slow_gpu_lines(job)
    if job.launching_share > MOST_OF_IT:
        yield say("launching", share=job.launching_share)
    is_said = worth.answer == "Can't tell" and worth.gpu is None
    if job.not_counted and not gpu and not is_said:
        yield say("no estimates asked", why=job.not_counted)
