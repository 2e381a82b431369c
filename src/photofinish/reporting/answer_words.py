"""Answers in two lines: their templates, and the values that fill them."""

from __future__ import annotations

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Sequence

from photofinish.answer.candidates import Candidate, Runs, Worth
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Action, Decision, gpu_of_yours
from photofinish.answer.uncertainty import Interval
from photofinish.answer.word import loads_longer_than_it_starts
from photofinish.machine.load import share_of_others
from photofinish.reporting.causes import bound_share, how_known, remedy_line, short_cause
from photofinish.reporting.model_words import model_text
from photofinish.reporting.say import say
from photofinish.results.trained import DeviceLabel
from photofinish.wording import (
    between,
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

MOST_OF_IT = 0.5
"""Least share of its time that a GPU waits if the first line says so: most of it."""


def answer_text(pair: Comparison, decision: Decision) -> str:
    """Return the first line: a phrase, and the times here and there."""
    worth = decision.worth
    if pair.cpu.is_bound and worth.is_yes and worth.interval:
        return _only_a_gpu(pair, decision)
    kind = _kind(pair, worth)
    text = say(
        kind,
        phrase=phrase(decision),
        worth=worth,
        here=_here(pair, worth, kind),
        there=there_text(worth),
        setup=say("with setup", worth=worth) if worth.terms.start_seconds else "",
        gpu=gpu_words(worth),
        share=bound_share(pair) if worth.about == "any GPU" else None,
        speedup="" if worth.terms.least_seconds else speedup_text(worth),
        most=max(0.0, worth.time_here.busy.interval[1] - worth.terms.start_seconds),
        saves=saves_text(worth),
        waits=_waits(pair, worth),
        cost=cost_text(worth.gpu) if worth.gpu else "",
        cause=_cause(pair, worth) if worth.reason != "arithmetic" or worth.is_yes else "",
        unknown=_unknown(pair, worth),
    )
    return f"{text} {say('outdated')}" if pair.cpu.is_outdated else text


def phrase(decision: Decision) -> str:
    """Return what an answer recommends, as its first line begins: `No, don't rent`."""
    worth = decision.worth
    about = worth.about if worth.gpu or worth.answer == "No" else "any GPU"
    name = worth.gpu.name if worth.gpu else ""
    return say(f"{about}: {worth.answer}", gpu=gpu_words(worth), name=name)


def _only_a_gpu(pair: Comparison, decision: Decision) -> str:
    """Return the first line if no step could be timed on the CPU."""
    worth = decision.worth
    assert pair.gpu
    assert worth.interval
    steps = [part for part in pair.gpu.parts if part.holds == "steps"]
    there_seconds = sum(part.seconds for part in steps) / sum(part.steps for part in steps)
    here_seconds = sum(part.seconds for part in pair.cpu.parts)
    values = {"least": factor(worth.interval[0]), "there": there_seconds, "here": here_seconds}
    return say("only a GPU", phrase=phrase(decision), **values)


def _kind(pair: Comparison, worth: Worth) -> str:
    """Return the template of the first line."""
    if worth.about == "the GPU here":
        return f"GPU {worth.answer[0].lower()}{worth.answer[1:]}"
    if worth.about == "any GPU" and worth.answer == "No":
        return "no by loading" if loads_longer_than_it_starts(pair) else "no by start-up"
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
    return f"the {name}" if worth.about == "the GPU here" else with_article(name)


def cost_text(gpu: Candidate) -> str:
    """Return what a job costs on a GPU, or an empty text."""
    if not gpu.cost or not gpu.terms.price or gpu.hides_loading:  # it may take much longer
        return ""
    cost, gpus = money(gpu.cost, gpu.terms.price.currency), gpu.terms.price.gpus
    return say("cost of machine", cost=cost, gpus=gpus) if gpus > 1 else cost


def _here(pair: Comparison, worth: Worth, kind: str) -> str:
    """Return the time here as it stands in the first line."""
    if kind == "no by start-up" and worth.time_here.is_busy:  # of which a share is named
        return say("time at", time=seconds(worth.here.seconds), place=say("here"), at_most="")
    place = say("on the CPU" if worth.about == "the GPU here" else "here")
    return here_text(pair, worth, place)


def here_text(pair: Comparison, worth: Worth, place: str = "") -> str:
    """Return the time on this CPU, with its range, and a mark if it is extrapolated."""
    timings, value, interval = pair.cpu, worth.here.seconds, worth.here.interval
    load, mark = worth.time_here, "~" * bool(timings.untimed_epochs)
    at_most = say("at most") if timings.may_stop_early else ""
    if load.is_busy:
        kind, idle_seconds = "busy or idle" if load.idle_seconds else "busy", load.idle_seconds
        marks = {"mark": mark, "at_most": at_most}
        text = say(kind, busy=value, idle=idle_seconds, place=place, **marks)
    else:
        time = f"{seconds(value)} ({say('unsure')})" if is_wide(interval) else span(value, interval)
        # A saving has the range of the time here, so that stands beside it.
        saves = saves_text(worth) and not worth.is_yes
        has_range = mark or saves or _kind(pair, worth) in ("too short to rent", "can't tell")
        time = f"{mark}{time}" if has_range else seconds(value)
        text = say("time at", time=time, place=place, at_most=at_most)
    if worth.jobs > 1:
        return say("of a sweep", time=text, jobs=worth.jobs)
    has_seeds = worth.is_elsewhere and timings.seeds_seconds
    return say("of all seeds", time=text) if has_seeds else text


def there_text(worth: Worth) -> str:
    """Return the time on the GPU with a machine's setup, and with its mark."""
    if worth.gpu is None:
        return ""
    value, interval = worth.there_seconds, worth.gpu.interval_with_start
    if worth.gpu.hides_loading:
        if is_wide(interval):
            return say("at least", least=seconds(interval[0]))
        return f"~{between(interval)}"
    job = worth.gpu.job
    if worth.about == "the GPU here" and job and (job.busy or not is_wide(interval)):
        return f"{'~' * bool(job.untimed_epochs)}{seconds(value)}"
    if is_wide(interval):
        return say("not known there")
    return _marked(span(value, interval), worth)


def _marked(text: str, worth: Worth) -> str:
    """Return a figure of the answer's GPU with its sign."""
    return f"{'~' * (worth.basis == 'estimated')}{text}{'*' * (worth.basis == 'recorded')}"


def speedup_text(worth: Worth) -> str:
    """Return `12x faster (10-15)`, or how much slower, or both ends if it may be either."""
    value, interval = worth.speedup, worth.interval
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


def _waits(pair: Comparison, worth: Worth) -> str:
    """Return what a GPU would wait for during most of its time, or an empty text."""
    estimate = worth.gpu.option.estimate if worth.gpu and worth.gpu.option else None
    if estimate is None or worth.jobs > 1:
        return ""
    if estimate.startup_seconds > MOST_OF_IT * estimate.job.seconds:  # which no GPU shortens
        return ""
    waiting_seconds = estimate.epoch_seconds - estimate.steps_seconds
    if pair.cpu.settings is None:  # it may have other work between its steps, too
        own_seconds = pair.cpu.waiting_share * pair.cpu.median_epoch_seconds
        waiting_seconds = min(waiting_seconds, own_seconds)
    share = waiting_seconds / estimate.epoch_seconds
    if share > MOST_OF_IT:
        return say("waits for data", share=share)
    return say("waits for launches") if estimate.larger_batch else ""


def _cause(pair: Comparison, worth: Worth) -> str:
    return short_cause(pair, "gpu" if worth.of_gpu else "cpu")


def _unknown(pair: Comparison, worth: Worth) -> str:
    """Return what is not known, if the answer is open."""
    if slow := pair.slow_kernels:
        return say("slow kernels", precision=pair.cpu.precision, slow=slow)
    if worth.about == "the GPU here":
        return _cause(pair, worth)
    if worth.time_here.is_busy and worth.gpu:
        return ""
    if worth.gpu:
        is_known = math.isfinite(worth.gained[1])
        return saves_text(worth) if is_known else say("gain unknown")
    operations = pair.cpu.operations
    if operations and operations.without_formula:
        names = ", ".join(f"`{name}`" for name in operations.without_formula)
        return say("uncounted", names=names)
    return pair.renting.not_counted or _no_estimate(pair)


def _no_estimate(pair: Comparison) -> str:
    """Return why none of the accelerators has an estimate."""
    options = pair.renting.options
    if not options:
        return say("nothing recorded")
    largest = max(options, key=lambda each: each.accelerator.memory_gib)
    if largest.fits == "no" and largest.estimate:
        needed, accelerator = gibibytes(largest.needed_bytes), largest.accelerator
        gpu = with_article(accelerator.name)
        return say("none fits", needed=needed, gpu=gpu, memory=accelerator.memory_gib)
    return say("none estimated", gpus=[each.accelerator.name for each in options])


def action_text(pair: Comparison, decision: Decision, command: Sequence[str] | None = None) -> str:
    """Return what to do now: one imperative, and below a No what would change it.

    `command` is a script's command that was asked about, empty for an experiment, None in a report.
    """
    action, worth = decision.action, decision.worth
    kind: str = action.kind
    if kind == "measure again" and command is not None:
        return say("ask again", took=pair.cpu.total_seconds)
    if kind == "measure again":
        return _measure_again(pair, action.devices)
    if kind == "change a setting":
        return _setting(pair, decision)
    if fewer := action.fewer:
        score = say("target reached" if fewer.is_target else "best reached", fewer=fewer)
        return say("fewer epochs", fewer=fewer, score=score, gain=factor(fewer.gain))
    if kind == "measure longer":
        return _measure_longer(pair, action, is_asked=command is not None)
    price, runs = "", runs_text(action.runs)
    if kind == "try a GPU" and action.accelerator and worth.gpu:
        kind, cost = "try a rented GPU", cost_text(worth.gpu)
        price = f"~{seconds(worth.there_seconds)}, {cost}" if cost else ""
    elif kind == "stay here" and runs:
        kind = "stay here for few"
    elif kind == "rent for some" and not runs:
        kind = "stay here"
    rent = say("rent by command", action=action, command=shlex.join(command or ()))
    gpu = "the GPU" if decision.is_here else gpu_words(worth) or "a GPU"
    text = say(kind, action=action, gpu=gpu, price=price, runs=runs, rent=rent)
    if (yours := gpu_of_yours(pair, worth)) and worth.answer == "No" and not is_wide(yours[1]):
        speedup = _speedup(*yours, mark="~" * (worth.basis == "estimated"))
        text += f" {say('GPU of yours', gpu=gpu, speedup=speedup)}"
    return text


def runs_text(runs: Runs | None) -> str:
    """Return after how many runs renting pays off, or an empty text."""
    if runs is None:
        return ""
    return say("runs", runs="-".join(map(str, dict.fromkeys(runs))))


def _setting(pair: Comparison, decision: Decision) -> str:
    """Return the setting to change, with its gain of the whole job."""
    remedy = decision.action.remedy
    assert remedy
    (device,) = decision.action.devices
    run = pair.gpu if device == "gpu" and pair.gpu else pair.cpu
    gain = remedy.predicted.of_job(run)
    return say(
        "change a setting",
        setting=remedy_line(remedy, pair.experiment),
        gain=factor(gain.middle),
        ends=factors(gain),
        device=run.device.upper(),
        how=how_known(remedy),
    )


def _measure_longer(pair: Comparison, action: Action, *, is_asked: bool) -> str:
    """Return the setting or option that measures longer, and the time that it costs."""
    timings = pair.cpu
    startup_seconds = 0.0 if is_asked else timings.startup_seconds  # --seconds is training alone
    limit = 10 * math.ceil((startup_seconds + action.seconds) / 10)
    more = limit - timings.total_seconds + timings.startup_seconds - startup_seconds
    script = timings.script
    if script and not script.has_time_limit and not is_asked:
        return say("train longer")
    return say("sample longer" if is_asked else "measure longer", limit=limit, more=more)


def _measure_again(pair: Comparison, devices: Sequence[DeviceLabel]) -> str:
    """Return how to measure again, with the time that it took on the busy machine."""
    took_seconds = sum(run.total_seconds for run in pair.trained if run.device in devices)
    stage = "script" if pair.cpu.script else "train"
    command = measure_again(f"{stage}-{device}@{pair.experiment}" for device in devices)
    return say("measure again", took=took_seconds, command=command)


def summary(answers: Sequence[tuple[Comparison, Decision]]) -> str:
    """Return the jobs of each phrase: `No, don't rent: digits-cnn, digits-mlp.`"""
    jobs: dict[str, list[str]] = defaultdict(list)
    for pair, decision in answers:
        jobs[phrase(decision)].append(pair.experiment)
    return " ".join(say("named", phrase=each, jobs=names) for each, names in jobs.items())


def legend(
    answers: Sequence[tuple[Comparison, Decision]], texts: Sequence[str], *, is_asked: bool
) -> list[str]:
    """Return what is true of several answers, such as a busy machine."""
    busy = [pair for pair, _ in answers if any(run.busy for run in pair.trained)]
    lines = []
    if any(not model_text(pair) for pair, _ in answers):
        lines.append(say("not checked"))
    if busy:
        share = max(share_of_others(run.load) for pair in busy for run in pair.trained)
        jobs = [pair.experiment for pair in busy] if len(answers) > 1 else []
        lines.append(say("legend of busy", jobs=jobs, share=share))
    for worth in (each.worth for _, each in answers if each.worth.is_elsewhere):
        keys = say("keys of ask" if is_asked else "keys of renting")
        line = say(f"legend of {worth.about}", terms=worth.terms, keys=keys)
        if worth.terms.worth_seconds and line not in lines:
            lines.append(line)
    text = " ".join(texts)
    signs = {"~": r"~\d", "*": r"\*", "(": r"\(\d[\d.,]*-\d"}
    marks = [say(f"mark of {mark}") for mark, sign in signs.items() if re.search(sign, text)]
    return [*lines, say("legend of marks", marks=marks)] if marks else lines
