"""Answers in two lines: their templates, and the values that fill them."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from photofinish.answer.candidates import Candidate, Runs, Worth
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Action, Decision, gpu_of_yours
from photofinish.answer.fair_cpu import slow_kernels
from photofinish.machine.load import load_warnings, share_of_others
from photofinish.reporting.causes import how_known, not_known, remedy_line, short_cause
from photofinish.reporting.extrapolated import early, timed_text
from photofinish.reporting.say import say
from photofinish.results.measured_job import MeasuredJob
from photofinish.results.records import DeviceLabel
from photofinish.wording import (
    between,
    ends_in_unit,
    factor,
    factors,
    gibibytes,
    is_wide,
    measure_again,
    money,
    seconds,
    span,
)

_WORTH_CAPTURING = 1.5
"""Smallest speed-up of a job for which `cuda_graphs: "on"` is suggested."""
MUCH_WAITING = 0.1
"""Least share of its time that a GPU waits for the loader in a hint."""
_MOST_STALLS = 4
_MENDS = {"to": "make there", "nonzero": "keep size", "a mask": "keep size", "unique": "keep size"}


def answer_text(pair: Comparison, decision: Decision) -> str:
    """Return the first line: the word, the times here and there, and the cause."""
    worth = decision.worth
    if pair.cpu.timings.is_bound and worth.is_yes and worth.interval:
        return _only_a_gpu(pair, worth)
    text = say(
        _kind(worth),
        worth=worth,
        word=headline(decision),
        verb="rent" if worth.about == "renting" else "use",
        here=here_text(pair, worth),
        there=there_text(worth, with_start=worth.answer != "No"),
        start=say("its start") if worth.terms.start_seconds else "",
        gpu=gpu_words(worth),
        speedup=speedup_text(worth),
        most=max(0.0, worth.time_here.busy.interval[1] - worth.terms.start_seconds),
        gained=_gained(worth),
        cost=cost_text(worth.gpu) if worth.gpu else "",
        cause=cause_text(pair, worth) if worth.reason != "arithmetic" or worth.is_yes else "",
        unknown=_unknown(pair, worth),
    )
    if any(run.timings.busy for run in pair.trained):
        share = max(share_of_others(run.timings.load) for run in pair.trained)
        text = say("with busy", answer=text, share=share)
    return f"{text} {say('outdated')}" if pair.cpu.is_outdated else text


def _only_a_gpu(pair: Comparison, worth: Worth) -> str:
    """Return the first line if no step could be timed on the CPU."""
    assert pair.gpu
    assert worth.interval
    steps = [part for part in pair.gpu.timings.parts if part.holds == "steps"]
    there_seconds = sum(part.seconds for part in steps) / sum(part.steps for part in steps)
    here_seconds = sum(part.seconds for part in pair.cpu.timings.parts)
    values = {"least": factor(worth.interval[0]), "there": there_seconds, "here": here_seconds}
    return say("only a GPU", gpu=gpu_words(worth), **values)


def _kind(worth: Worth) -> str:
    """Return the template of the first line."""
    if worth.about == "the GPU here":
        return f"GPU {worth.answer[0].lower()}{worth.answer[1:]}"
    if worth.about == "any GPU":
        return "no by a bound" if worth.answer == "No" else "no estimate"
    if worth.gpu is None:
        if worth.answer != "No":
            return "no estimate"
        gains = worth.time_here.busy.interval[1] > worth.terms.start_seconds
        return "too short to rent" if gains else "shorter than a start"
    kinds = {"Probably yes": "worth it", "No": "not worth it", "Close call": "close call"}
    return kinds.get(worth.answer, "can't tell")


def headline(decision: Decision) -> str:
    """Return the word for counts and the overview, and for a No whether it is about renting."""
    if decision.about == "renting" and decision.answer == "No":
        return "No, not for rent"
    return decision.answer


def gpu_words(worth: Worth) -> str:
    """Return `a T4` to rent, or `the H100` that is here."""
    if worth.gpu is None:
        return ""
    name = worth.gpu.name
    return f"the {name}" if worth.about == "the GPU here" else with_article(name)


def with_article(gpu: str) -> str:
    """Return `an A10G` or `a T4`."""
    is_spelled = not gpu[1:2].islower()  # A10G, but not Apple
    return f"{'an' if gpu[0] in ('AEFHILMNORSX' if is_spelled else 'AEIO') else 'a'} {gpu}"


def cost_text(gpu: Candidate) -> str:
    """Return what a job costs on a GPU, with the GPUs that are paid for, or an empty text."""
    if not gpu.cost or not gpu.terms.price or gpu.hides_loading:  # it may take much longer
        return ""
    cost, gpus = money(gpu.cost, gpu.terms.price.currency), gpu.terms.price.gpus
    return say("cost of machine", cost=cost, gpus=gpus) if gpus > 1 else cost


def here_text(pair: Comparison, worth: Worth) -> str:
    """Return the time on this CPU, with its interval and what it comes from if extrapolated."""
    timings, value, interval = pair.cpu.timings, worth.here.seconds, worth.here.interval
    time, is_measured = seconds(value), not timings.untimed_epochs
    # The ends of a gain come from those of the time here.
    has_ends = _kind(worth) in ("too short to rent", "close call", "can't tell")
    load = worth.time_here
    idle = say("when idle", idle=load.idle_seconds) if load.idle_seconds else ""
    if load.is_busy:
        time = say("busy here", busy=value, idle=idle if is_measured or worth.jobs > 1 else "")
    elif is_measured and has_ends and not is_wide(interval):
        time = span(value, interval)
    if worth.jobs > 1:
        time = time if is_measured or load.is_busy else span(value, interval)
        return say("all of a sweep", here=f"{'~' * (not is_measured)}{time}", jobs=worth.jobs)
    if not is_measured:
        ends = "-".join(dict.fromkeys(ends_in_unit(value, interval)))
        known = say("unsure") if is_wide(interval) else ends
        known = idle if load.is_busy else known
        time = say(
            "timed of", time=time, ends=known, timed=timed_text(timings), early=early(timings)
        )
    has_seeds = worth.is_elsewhere and timings.seeds_seconds
    return say("all seeds", here=time) if has_seeds else time


def there_text(worth: Worth, *, with_start: bool = False) -> str:
    """Return the time on the GPU with its mark, and if wanted with its start."""
    if worth.gpu is None:
        return ""
    value, interval = worth.gpu.time.seconds, worth.gpu.time.interval
    if with_start:
        value, interval = worth.there_seconds, worth.gpu.interval_with_start
    if worth.gpu.hides_loading:
        if is_wide(interval):
            return say("at least", least=seconds(interval[0]))
        return f"~{between(interval)}"
    timings = worth.gpu.timings
    if worth.about == "the GPU here" and timings and (timings.busy or not is_wide(interval)):
        return f"{'~' * bool(timings.untimed_epochs)}{seconds(value)}"
    if is_wide(interval):
        return say("not known there")
    return _marked(span(value, interval), worth)


def _marked(text: str, worth: Worth) -> str:
    """Return a figure of the answer's GPU with its sign."""
    return f"{'~' * (worth.basis == 'estimated')}{text}{'*' * (worth.basis == 'recorded')}"


def speedup_text(worth: Worth) -> str:
    if worth.speedup is None:
        return say("wide")
    if worth.interval is None:
        return factor(worth.speedup)
    if is_wide(worth.interval):
        least, _ = worth.interval
        return say("at least", least=factor(least)) if least > 1 else say("wide")
    return say("faster by", speedup=factor(worth.speedup), ends=factors(worth.interval))


def _gained(worth: Worth) -> str:
    """Return what a run gains after the machine's start, or an empty text if that is a loss."""
    low, high = worth.gained
    if worth.answer == "Close call" and math.isfinite(high):
        return between((low, high))
    return f"~{seconds(worth.gained_seconds)}" if worth.gpu and worth.gained_seconds > 0 else ""


def cause_text(pair: Comparison, worth: Worth) -> str:
    """Return the share that takes most of the time of the job, or of what stays on the CPU."""
    is_bound = worth.about == "any GPU" and worth.answer == "No"
    return short_cause(pair, "gpu" if worth.of_gpu else "cpu", is_bound=is_bound)


def _unknown(pair: Comparison, worth: Worth) -> str:
    """Return what is not known, if the answer is open."""
    if slow := slow_kernels(pair.cpu.timings):
        return say("slow kernels", precision=pair.cpu.precision, slow=slow)
    if worth.about == "the GPU here":
        return cause_text(pair, worth)
    if worth.time_here.is_busy and worth.gpu:
        return ""
    if worth.gpu:
        low, high = worth.gained
        if not math.isfinite(high):
            return say("gain unknown", worth=worth)
        ends = between((low, high)) if low > 0 else say("perhaps nothing", most=high)
        return say("gains between", ends=ends, worth=worth)
    operations = pair.cpu.timings.operations
    if unknown := pair.bounds.loading_not_known:
        return say("unknown loading", why=not_known(unknown))
    if operations and operations.without_formula:
        return say("uncounted", names=", ".join(operations.without_formula))
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
        return say("ask again", took=pair.cpu.timings.total_seconds)
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
    rent = say("rent by command", action=action, command=shlex.join(command or ()))
    gpu = "the GPU" if decision.is_here else gpu_words(worth) or "a GPU"
    text = say(kind, action=action, gpu=gpu, price=price, runs=runs, rent=rent)
    if (yours := gpu_of_yours(pair, worth)) and worth.answer == "No":
        speedup, interval = yours
        values = {"speedup": _marked(factor(speedup), worth), "ends": factors(interval)}
        text += f" {say('GPU of yours', gpu=gpu, **values)}" if not is_wide(interval) else ""
    return text


def runs_text(runs: Runs | None) -> str:
    """Return from how many runs on renting pays, surely and perhaps, or an empty text."""
    if runs is None:
        return ""
    return say("runs", runs=runs, perhaps=runs.perhaps if runs.perhaps < runs.surely else None)


def _setting(pair: Comparison, decision: Decision) -> str:
    """Return the setting to change, with its gain of the whole job."""
    remedy = decision.action.remedy
    assert remedy
    (device,) = decision.action.devices
    run = pair.gpu if device == "gpu" and pair.gpu else pair.cpu
    gain = remedy.predicted.of_job(run.timings)
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
    timings = pair.cpu.timings
    startup_seconds = 0.0 if is_asked else timings.startup_seconds  # --seconds is training alone
    limit = 10 * math.ceil((startup_seconds + action.seconds) / 10)
    more = limit - timings.total_seconds + timings.startup_seconds - startup_seconds
    script = timings.script if isinstance(timings, MeasuredJob) else None
    if script and not script.time_limit and not is_asked:
        return say("train longer")
    return say("sample longer" if is_asked else "measure longer", limit=limit, more=more)


def _measure_again(pair: Comparison, devices: Sequence[DeviceLabel]) -> str:
    """Return how to measure again, with the time that it took on the busy machine."""
    took_seconds = sum(run.timings.total_seconds for run in pair.trained if run.device in devices)
    command = measure_again(f"{pair.cpu.stage}-{device}@{pair.experiment}" for device in devices)
    return say("measure again", took=took_seconds, command=command)


def busy_text(pair: Comparison) -> str | None:
    """Return a note if the machine was busy, or None."""
    busy = {run.device: found for run in pair.trained if (found := load_warnings(run.timings.load))}
    if not busy:
        return None
    whose = [say("whose", device=device.upper()) for device in busy]
    return say("busy", why=next(iter(busy.values()))[0], whose=whose)


def estimate_hints(pair: Comparison, decision: Decision) -> Iterator[str]:
    """Yield what would change the estimate on the GPU of the answer, and why there is none."""
    if unknown := pair.bounds.loading_not_known:
        yield say("no loading", why=not_known(unknown))
    options = {each.accelerator.name: each for each in pair.renting.options}
    option = options.get(decision.gpu_name or "")
    if decision.is_here or option is None or option.estimate is None:
        return
    gpu, need, estimate = with_article(option.accelerator.name), option.loader_need, option.estimate
    if decision.worth.gpu and decision.worth.gpu.hides_loading:
        yield say("hidden loading", run=pair.cpu, gpu=gpu)
    if larger := estimate.larger_batch:
        yield say("launches" if larger.batch_size > 1 else "launches of some batch", it=larger)
    if need and need.waiting_share > MUCH_WAITING:
        yield say("loader", gpu=gpu, need=need, cores=math.ceil(need.wanted_cores))
    captured_seconds = estimate.captured_job_seconds
    if captured_seconds and estimate.job.seconds > _WORTH_CAPTURING * captured_seconds:
        yield say("captured", seconds=captured_seconds, gpu=gpu)


def stall_lines(pair: Comparison, decision: Decision) -> Iterator[str]:
    """Yield the lines of a script at which a GPU would be waited for, if the answer names one."""
    script = pair.cpu.timings.script if isinstance(pair.cpu.timings, MeasuredJob) else None
    is_slower = decision.answer == "No" and not decision.is_here
    if script is None or decision.gpu_name is None or is_slower:
        return
    for stall in script.stalls[:_MOST_STALLS]:
        kind = _MENDS.get(stall.what, "read back")
        yield say("stall", stall=stall, mend=say(kind))


def summary(decisions: Sequence[Decision]) -> str:
    """Return the number of each answer."""
    counts = Counter(map(headline, decisions)).most_common()
    return " · ".join(say("count", count=count, answer=answer) for answer, count in counts)


def legend(decisions: Iterable[Decision], texts: Sequence[str], model: str | None) -> list[str]:
    """Return the legend of the answers' texts: renting, marks, and the model that all share."""
    lines = []
    for worth in (each.worth for each in decisions if each.worth.is_elsewhere):
        word = "Rent" if worth.about == "renting" else "Use"
        line = say("legend of terms", word=word, terms=worth.terms)
        if worth.terms.worth_seconds and line not in lines:
            lines.append(line)
    text = " ".join(texts)
    signs = {"~": r"~\d", "*": r"\*", "(": r"\(\d[\d.,]*-\d"}
    marks = [say(f"mark of {mark}") for mark, sign in signs.items() if re.search(sign, text)]
    if marks:
        lines.append(say("legend of marks", marks=marks))
    if model:
        lines.append(say("model", model=model))
    return lines
