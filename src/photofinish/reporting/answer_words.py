"""Answers in two lines, and whether the model is the same: templates, and values that fill them."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence

from photofinish.answer.record import (
    MOST_OF_IT,
    MOST_RUNS,
    Candidate,
    Interval,
    JobRecord,
    Parity,
    ScoreDifference,
    Worth,
)
from photofinish.machine.load import share_of_others
from photofinish.reporting.causes import how_known, remedy_line, short_cause
from photofinish.reporting.say import say
from photofinish.wording import (
    between,
    counted,
    factor,
    factors,
    gibibytes,
    is_wide,
    measure_again,
    money,
    seconds,
    span,
    with_article,
)


def model_text(job: JobRecord) -> str:
    """Return whether the GPU trains the same model, or an empty text where no GPU ran."""
    model = job.model
    if job.parity:
        return _likeness(job.parity)
    if record := model.record:
        if record.diverges_at:
            return say("step apart", record=record)
        if record.epochs is None:
            return say("step alike", record=record)
        if not record.epochs:
            return say("losses apart", record=record)
        kind = "step and losses alike" if record.has_first_step else "losses alike"
        return say(kind, record=record, epochs=counted(record.epochs, "epoch"))
    if model.script:
        text = say(model.script.kind, it=model.script)
        return say("on a rented GPU", text=text, gpu=model.rented) if model.rented else text
    return say("a script's model") if job.gpu else ""


def _likeness(parity: Parity) -> str:
    kind, difference = parity.likeness, parity.difference
    if kind == "same so far":
        return say("same so far", apart=difference and abs(100 * difference.mean))
    if kind == "equivalent" and difference:
        return say("within", margin=parity.margin, ends=_range(difference))
    words, divergence = say(f"model: {kind}"), parity.first_divergence
    is_score = divergence is not None and divergence.name in ("test accuracy", "test error")
    if divergence and not is_score:
        words = say("differ from", layer=divergence)
    if parity.epochs is not None:
        return say("over epochs", words=words, epochs=parity.epochs)
    if difference is None:
        return words
    points = in_points(difference)
    if kind == "not shown":
        wanted = difference.seeds_wanted(parity.margin)
        seeds = wanted if wanted and wanted <= MOST_RUNS else None
        return say("seeds wanted", points=points, seeds=seeds)
    return say("differ by", points=points) if is_score else words


def in_points(difference: ScoreDifference) -> str:
    """Return `GPU -3.5 points (-7.9 to +0.9)`."""
    return say("points", mean=100 * difference.mean, ends=_range(difference))


def _range(difference: ScoreDifference) -> str:
    return " to ".join(f"{100 * end:+.1f}" for end in difference.interval)


def answer_text(job: JobRecord) -> str:
    """Return the first line: a phrase, and the times here and there."""
    worth = job.worth
    if job.gpu and job.cpu.is_bound and worth.is_yes and worth.interval:
        least, there_seconds = factor(worth.interval[0]), job.gpu.seen_step_seconds
        values = {"least": least, "there": there_seconds, "here": job.cpu.seen_step_seconds}
        return say("only a GPU", phrase=phrase(worth), **values)
    kind = _kind(job, worth)
    place = say("on the CPU" if worth.is_here else "here")
    time_here = here_text(job, worth, place)
    if kind == "no by start-up" and worth.time_here.is_busy:  # of which a share is named
        time_here = say("time at", time=seconds(worth.cpu_time.seconds), place=place, at_most="")
    cause = short_cause(job, "gpu" if worth.is_here and worth.answer == "No" else "cpu")
    waits, share = _waits(job, worth)
    text = say(
        kind,
        phrase=phrase(worth),
        worth=worth,
        here=time_here,
        there=there_text(job),
        setup=say("with setup", worth=worth) if worth.terms.start_seconds else "",
        gpu=gpu_words(worth),
        share=job.stays_share if worth.about == "any GPU" else None,
        limit=job.bounds.job.at_most,
        speedup="" if worth.terms.least_seconds else speedup_text(worth),
        most=max(0.0, worth.time_here.busy.interval[1] - worth.terms.start_seconds),
        saves=saves_text(worth),
        waits=say(waits, share=share) if waits else "",
        cost=cost_text(worth.gpu) if worth.gpu else "",
        cause=cause if worth.reason != "arithmetic" or worth.is_yes else "",
        unknown=_unknown(job, worth, cause),
    )
    return f"{text} {say('outdated')}" if job.cpu.is_outdated else text


def phrase(worth: Worth) -> str:
    """Return what an answer recommends, as its first line begins: `No, don't rent`."""
    about = worth.about if worth.gpu or worth.answer == "No" else "any GPU"
    return say(f"{about}: {worth.answer}", gpu=gpu_words(worth), name=worth.gpu_name)


def _kind(job: JobRecord, worth: Worth) -> str:
    if worth.is_here:
        return f"GPU {worth.answer[0].lower()}{worth.answer[1:]}"
    if worth.about == "any GPU" and worth.answer == "No":
        return "no by loading" if job.loads_longer else "no by start-up"
    if worth.gpu is None:
        if worth.answer != "No":
            return "no estimate"
        saves = worth.time_here.busy.interval[1] > worth.terms.start_seconds
        return "too short to rent" if saves else "shorter than setup"
    kinds = {"Probably yes": "worth it", "No": "not worth it", "Close call": "close call"}
    return kinds.get(worth.answer, "can't tell")


def gpu_words(worth: Worth) -> str:
    """Return `a T4` to rent, or `the H100` that is here."""
    if worth.gpu is None:
        return ""
    name = worth.gpu.name
    return f"the {name}" if worth.is_here else with_article(name)


def cost_text(gpu: Candidate) -> str:
    """Return what a job costs on a GPU, or an empty text."""
    if not gpu.cost or not gpu.terms.price or gpu.hides_loading:  # it may take much longer
        return ""
    cost, gpus = money(gpu.cost, gpu.terms.price.currency), gpu.terms.price.gpus
    return say("cost of machine", cost=cost, gpus=gpus) if gpus > 1 else cost


def here_text(job: JobRecord, worth: Worth, place: str = "") -> str:
    """Return the time on this CPU, with its range, and a mark if it is extrapolated."""
    value, interval = worth.cpu_time.seconds, worth.cpu_time.interval
    load, mark = worth.time_here, "~" * job.cpu.is_extrapolated
    at_most = say("at most") if job.cpu.may_stop_early else ""
    if load.is_busy:
        kind = "busy or idle" if load.idle_seconds else "busy"
        idle = load.idle_seconds
        text = say(kind, busy=value, idle=idle, place=place, mark=mark, at_most=at_most)
    else:
        time = f"{seconds(value)} ({say('unsure')})" if is_wide(interval) else span(value, interval)
        # A saving has the range of the time here, so that is shown beside it.
        saves = saves_text(worth) and not worth.is_yes
        has_range = mark or saves or _kind(job, worth) in ("too short to rent", "can't tell")
        time = f"{mark}{time}" if has_range else seconds(value)
        text = say("time at", time=time, place=place, at_most=at_most)
    if worth.jobs > 1:
        return say("of a sweep", time=text, jobs=worth.jobs)
    has_seeds = worth.is_elsewhere and job.cpu.seeds_seconds > 0
    return say("of all seeds", time=text) if has_seeds else text


def there_text(job: JobRecord) -> str:
    """Return the time on the GPU with a machine's setup, and with its mark."""
    worth, run = job.worth, job.gpu
    if worth.gpu is None:
        return ""
    value, interval = worth.there_seconds, worth.gpu.interval_with_start
    if worth.gpu.hides_loading:
        if is_wide(interval):
            return say("at least", least=seconds(interval[0]))
        return f"~{between(interval)}"
    if worth.is_here and run and (run.busy or not is_wide(interval)):
        return f"{'~' * run.is_extrapolated}{seconds(value)}"
    if is_wide(interval):
        return say("not known there")
    text = span(value, interval)
    return f"{'~' * (worth.basis == 'estimated')}{text}{'*' * (worth.basis == 'recorded')}"


def speedup_text(worth: Worth) -> str:
    """Return `12x faster (10-15)`, or how much slower, or both ends if it may be either."""
    value, interval = worth.speedup, worth.idle_to_busy or worth.interval
    if value is None:
        return say("wide")
    if interval and is_wide(interval):
        least, _ = interval
        return say("at least faster", least=factor(least)) if least > 1 else say("wide")
    return _speedup(value, interval)


def _speedup(value: float, interval: Interval | None, mark: str = "") -> str:
    kind = "faster by" if value >= 1 else "slower by"
    if interval and interval[0] < 1 < interval[1]:
        kind = "about as fast"
    elif value < 1:
        value, interval = 1 / value, interval and (1 / interval[1], 1 / interval[0])
    ends = factors(interval) if interval else ""
    return say(kind, speedup=f"{mark}{factor(value)}", ends=ends)


def saving_text(worth: Worth) -> str:
    """Return what a run saves after a machine's setup, or an empty text if nothing."""
    low, high = worth.gained
    if not worth.is_elsewhere or not math.isfinite(high) or high <= 0:
        return ""
    return between((max(0.0, low), high))


def saves_text(worth: Worth) -> str:
    saving = saving_text(worth) if worth.terms.least_seconds else ""
    return say("saves", gained=saving, worth=worth) if saving else ""


def _waits(job: JobRecord, worth: Worth) -> tuple[str, float]:
    """Return the text's key for what a GPU would mostly wait for, or "", and its share."""
    estimate = worth.gpu.option.estimate if worth.gpu and worth.gpu.option else None
    if estimate is None or worth.jobs > 1:
        return "", 0.0
    if estimate.once_seconds > MOST_OF_IT * estimate.job.seconds:  # which no GPU shortens
        return "", 0.0
    waiting_seconds = estimate.epoch_seconds - estimate.steps_seconds
    if job.is_script:  # it may have other work between its steps, too
        own_seconds = job.cpu.waiting_share * job.cpu.median_epoch_seconds
        waiting_seconds = min(waiting_seconds, own_seconds)
    share = waiting_seconds / estimate.epoch_seconds
    if share > MOST_OF_IT:
        return "waits for data", share
    return "waits for launches" if estimate.larger_batch else "", 0.0


def slow_loading(job: JobRecord) -> Iterator[str]:
    """Yield at which line loading takes longest, if loading is a cause of the answer."""
    worth, loaders = job.worth, [run.loader for run in job.runs if run.loader]
    lines = [loader.slow_line for loader in loaders if loader.slow_line]
    causes = {cause.likely or cause.cause for known in job.causes.values() for cause in known}
    waits, _ = _waits(job, worth)
    is_waiting = waits == "waits for data"
    if lines and (is_waiting or "input-bound" in causes or _kind(job, worth) == "no by loading"):
        yield say("slow line", share=lines[0][0], line=lines[0][1])


def _unknown(job: JobRecord, worth: Worth, cause: str) -> str:
    """Return what is not known, if the answer is open."""
    if job.slow_kernels:
        return say("slow kernels", precision=job.cpu.precision, slow=job.slow_kernels)
    if worth.is_here:
        return cause
    if worth.time_here.is_busy and worth.gpu:
        return ""
    if worth.gpu:
        is_known = math.isfinite(worth.gained[1])
        return saves_text(worth) if is_known else say("gain unknown")
    if job.cpu.uncounted:
        return say("uncounted", names=", ".join(f"`{name}`" for name in job.cpu.uncounted))
    return job.not_counted or _no_estimate(job)


def _no_estimate(job: JobRecord) -> str:
    if not job.options:
        return say("nothing recorded")
    largest = max(job.options, key=lambda option: option.accelerator.memory_gib)
    if largest.fits == "no" and largest.estimate and largest.needed_bytes:
        needed, accelerator = gibibytes(largest.needed_bytes), largest.accelerator
        gpu = with_article(accelerator.name)
        return say("none fits", needed=needed, gpu=gpu, memory=accelerator.memory_gib)
    return say("none estimated", gpus=[option.accelerator.name for option in job.options])


def action_text(job: JobRecord, command: Sequence[str] | None = None) -> str:
    """Return what to do now: one imperative, and below a No what would change it.

    `command` is a script's command that was asked about, empty for an experiment, None in a report.
    """
    action, worth, kind = job.action, job.worth, str(job.action.kind)
    if kind == "measure again" and command is not None:
        for run in job.runs:
            if run.script and run.script.ended:
                return say("ask when mended", ended=run.script.ended, seen=run.done_text)
        return say("ask again", took=job.cpu.total_seconds)
    if kind == "measure again":
        stage, devices = "script" if job.is_script else "train", action.devices
        took_seconds = sum(run.total_seconds for run in job.runs if run.device in devices)
        again = measure_again(f"{stage}-{device}@{job.name}" for device in devices)
        return say("measure again", took=took_seconds, command=again)
    if kind == "change a setting":
        return _setting(job)
    if fewer := action.fewer:
        score = say("target reached" if fewer.is_target else "best reached", fewer=fewer)
        return say("fewer epochs", fewer=fewer, score=score, gain=factor(fewer.gain))
    if kind == "measure longer":
        return _measure_longer(job, is_asked=command is not None)
    price, runs = "", runs_text(action.runs)
    if kind == "try a GPU" and action.accelerator and worth.gpu:
        kind, cost = "try a rented GPU", cost_text(worth.gpu)
        price = f"~{seconds(worth.there_seconds)}, {cost}" if cost else ""
    elif kind == "stay here" and runs:
        kind = "stay here for few"
    elif kind == "rent for some" and not runs:
        kind = "stay here"
    rent = say("rent by command", action=action, command=shlex.join(command or ()))
    gpu = "the GPU" if worth.is_here else gpu_words(worth) or "a GPU"
    text = say(kind, action=action, gpu=gpu, price=price, runs=runs, rent=rent)
    if (own := job.own_speedup) and worth.answer == "No" and not is_wide(own[1]):
        speedup = _speedup(*own, mark="~" * (worth.basis == "estimated"))
        text += f" {say('your own GPU', gpu=gpu, speedup=speedup)}"
    return text


def runs_text(runs: tuple[int, int] | None) -> str:
    """Return after how many runs renting pays off, or an empty text."""
    if runs is None:
        return ""
    return say("runs", runs="-".join(map(str, dict.fromkeys(runs))))


def _setting(job: JobRecord) -> str:
    remedy, (device,) = job.action.remedy, job.action.devices
    assert remedy
    return say(
        "change a setting",
        setting=remedy_line(remedy, job.name),
        gain=factor(remedy.predicted.middle),
        ends=factors(remedy.predicted),
        device=device.upper(),
        how=how_known(remedy),
    )


def _measure_longer(job: JobRecord, *, is_asked: bool) -> str:
    run = job.cpu
    startup_seconds = 0.0 if is_asked else run.startup_seconds  # --seconds is training alone
    limit = 10 * math.ceil((startup_seconds + job.action.seconds) / 10)
    more = limit - run.total_seconds + run.startup_seconds - startup_seconds
    if run.script and not run.script.time_limit and not is_asked:
        return say("train longer")
    return say("sample longer" if is_asked else "measure longer", limit=limit, more=more)


def legend(jobs: Sequence[JobRecord], texts: Sequence[str], *, is_asked: bool) -> list[str]:
    """Return what is true of several answers, such as a busy machine."""
    busy = [job for job in jobs if any(run.busy for run in job.runs)]
    lines = []
    if unchecked := [job.name for job in jobs if not model_text(job)]:
        lines.append(say("not checked", jobs=unchecked if len(unchecked) < len(jobs) else []))
    if busy:
        share = max(share_of_others(run.load) for job in busy for run in job.runs)
        names = [job.name for job in busy] if len(jobs) > 1 else []
        lines.append(say("legend of busy", jobs=names, share=share))
    if measured := [job.name for job in jobs if any(run.has_busy_steps for run in job.runs)]:
        lines.append(say("legend of busy steps", jobs=measured))
    for worth in (job.worth for job in jobs if job.worth.is_elsewhere):
        keys = say("keys of ask" if is_asked else "keys of renting")
        line = say(f"legend of {worth.about}", terms=worth.terms, keys=keys)
        if worth.terms.worth_seconds and line not in lines:
            lines.append(line)
    text = " ".join(texts)
    signs = {"~": r"~\d", "*": r"\*", "(": r"\(\d[\d.,]*-\d"}
    marks = [say(f"mark of {mark}") for mark, sign in signs.items() if re.search(sign, text)]
    return [*lines, say("legend of marks", marks=marks)] if marks else lines
