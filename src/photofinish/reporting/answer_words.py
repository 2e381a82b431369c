"""Answers: which templates say them, and the values that fill these."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from photofinish.answer.candidates import About, Worth
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Action, Decision
from photofinish.answer.fair_cpu import fewer_threads, slow_kernels
from photofinish.answer.own_gpu import highest_limit, is_likely
from photofinish.machine.load import load_warnings
from photofinish.reporting.causes import not_known, prediction, remedy_line
from photofinish.reporting.extrapolated import job_time, likeness, mark
from photofinish.reporting.templates import say
from photofinish.results.records import DeviceLabel
from photofinish.wording import HIGH, faster, measure_again, money, part_of, seconds

_WORTH_CAPTURING = 1.5
"""Smallest speed-up of a job for which `cuda_graphs: "on"` is suggested."""

_MUCH_WAITING = 0.1
"""Least share of its time that a GPU waits for the loader in an answer that mentions it."""


def answer_text(pair: Comparison, decision: Decision) -> str:
    """Return the answer about the GPU here, or else about a rented GPU, then the other answer."""
    here: About = "the GPU here" if decision.is_here else "if this machine had a GPU"
    answers: dict[About, tuple[str, str]] = {here: (decision.own.answer, _own(pair, decision.own))}
    if decision.rented:
        answers["renting"] = decision.rented.answer, _rented(decision.rented, pair)
    answer, sentences = answers.pop(decision.about)
    texts = [say("headline", answer=answer, about=decision.about, sentences=sentences)]
    for about, (answer, sentences) in answers.items():
        texts.append(say("other answer", about=say(about), answer=answer, sentences=sentences))
    if slow := slow_kernels(pair.cpu.timings):
        texts.append(say("slow kernels", precision=pair.cpu.precision, slow=slow))
    texts += _hints(pair, decision)
    if pair.cpu.is_outdated:
        texts.append(say("outdated"))
    return " ".join(texts)


def _own(pair: Comparison, own: Worth) -> str:
    """Return the sentences about a GPU in this machine."""
    whole, startup_seconds = job_time(pair.cpu.timings), pair.cpu.timings.startup_seconds
    if own.reason == "short job":
        return say("short job", whole=whole, startup=startup_seconds)
    if own.gpu is None or own.speedup is None:
        return " ".join(_limits(pair, own))
    kind = "hardly known" if own.is_hardly_known else own.basis
    texts = [say(kind, own=own, faster=faster(own.speedup, own.interval), whole=whole)]
    if fewer := fewer_threads(pair.cpu.timings):
        texts.append(say("fair CPU", fewer=fewer))
    if own.reason:
        device = "GPU" if own.of_gpu else "CPU"
        texts.append(say("time goes into", device=device, reason=main_cause(pair, own)))
    if own.option and own.option.fits == "perhaps":
        texts.append(say("small memory", own=own))
    if pair.parity:
        texts.append(say("models", likeness=likeness(pair.parity)))
    return " ".join(texts)


def main_cause(pair: Comparison, own: Worth) -> str:
    """Return what takes most of the job's time, or an empty text."""
    reason = own.reason or ""
    return say("likely reason", reason=reason) if is_likely(pair, own) else reason


def _limits(pair: Comparison, own: Worth) -> Iterable[str]:
    """Yield the bound on a GPU in this machine, or why there is none."""
    job, highest = pair.bounds.job, highest_limit(pair)
    if own.answer == "No":
        staying = part_of(job.measured_seconds, job.measured_whole_seconds)
        reason = "start-up and loading" if own.reason == "loading" else own.reason
        yield say("limit", staying=staying, reason=reason, limit=highest)
        for found in pair.diagnoses["cpu"]:
            if found.remedy and found.remedy.by == "resident":
                yield say("resident", prediction=prediction(found.remedy))
        return
    yield say("untried")
    if unknown := pair.bounds.loading_not_known:
        yield say("unknown loading", why=not_known(unknown))
    operations = pair.cpu.timings.operations
    if operations and operations.without_formula:
        yield say("uncounted", names=", ".join(operations.without_formula))
    if highest <= HIGH:
        yield say("loading limits" if pair.bounds.epoch else "start-up limits", limit=highest)


def _hints(pair: Comparison, decision: Decision) -> Iterable[str]:
    """Yield what would change the estimate of this experiment on the deciding GPU."""
    deciding = decision.rented.option if decision.rented else decision.own.option
    named = deciding.accelerator.name if deciding else None
    own = {each.accelerator.name: each for each in pair.renting.options}
    option = own.get(named) if named and not decision.is_here else None
    estimate = option.estimate if option else None
    if option is None or estimate is None:
        return
    name, need = option.accelerator.name, option.loader_need
    if larger := estimate.larger_batch:
        yield say("launches" if larger.batch_size > 1 else "launches of some batch", it=larger)
    if need and need.waiting_share > _MUCH_WAITING:
        cores = math.ceil(need.wanted_cores)
        yield say("loader", gpu=with_article(name), need=need, cores=cores)
    captured_seconds = estimate.captured_job_seconds
    if captured_seconds and estimate.job_seconds > _WORTH_CAPTURING * captured_seconds:
        yield say("captured", seconds=captured_seconds, gpu=name)


def with_article(gpu: str) -> str:
    """Return `an A10G` or `a T4`."""
    return f"{'an' if gpu[0] in 'AEFHILMNORSX' else 'a'} {gpu}"


def _rented(rented: Worth, pair: Comparison) -> str:
    """Return the sentence about a rented GPU."""
    gpu, name, jobs, cost = rented.gpu, rented.gpu_name or "", "", ""
    if rented.option:
        name = with_article(name)
    if rented.jobs > 1:
        jobs = say("both" if rented.jobs == 2 else "all", count=rented.jobs)
    marked = "" if jobs or pair.compared else mark(pair.cpu.timings)
    if rented.cost is not None and gpu and gpu.price:
        cost = money(rented.cost, gpu.price.currency)
    low, high = rented.saved
    return say(
        "rented short job" if rented.reason == "short job" else str(rented.reason),
        rented=rented,
        gpu=name,
        here=seconds(rented.here_seconds) + marked,
        saved=rented.here_seconds - gpu.seconds if gpu else 0.0,
        range=f"{seconds(low)} to {seconds(high)}" if low > 0 else say("up to", value=high),
        range_here=" to ".join(map(seconds, rented.here or ())) + marked,
        cost=cost,
        jobs=jobs,
        run=say("in a sweep", jobs=jobs) if jobs else "a run",
        noun="sweeps" if jobs else "runs",
        fewest=rented.runs and rented.fewest_runs < rented.runs and rented.fewest_runs,
    )


def action_text(pair: Comparison, action: Action) -> str:
    """Return the sentence about what to do now."""
    kind: str = action.kind
    if kind == "measure again":
        return _measure_again(pair, action.devices)
    if kind == "rent" and not action.accelerator:
        kind = "rent anywhere"
    elif kind == "measure longer" and pair.cpu.timings.timed.unit == "step":
        kind = "sample longer"
    elif kind == "measure longer" and not pair.cpu.settings:
        kind = "run longer"
    elif kind == "try a GPU" and action.accelerator:
        kind = "try a rented GPU"
    elif kind == "stay here" and action.runs and action.accelerator:
        kind = "stay here for few"
    setting = remedy_line(action.remedy) if action.remedy else ""
    return say(kind, action=action, setting=setting)


def _measure_again(pair: Comparison, devices: Sequence[DeviceLabel]) -> str:
    """Return how to measure again, with the time that it took on the busy machine."""
    took_seconds = sum(run.timings.total_seconds for run in pair.trained if run.device in devices)
    command = measure_again(f"{pair.cpu.stage}-{device}@{pair.experiment}" for device in devices)
    return say("measure again", took=took_seconds, command=command)


def busy_text(pair: Comparison, action: Action) -> str | None:
    """Return a note if the machine was busy, with the command unless the action has it, or None."""
    busy = {run.device: found for run in pair.trained if (found := load_warnings(run.timings.load))}
    if not busy:
        return None
    whose = [say("whose", device=device.upper()) for device in busy]
    text = say("busy", why=next(iter(busy.values()))[0], whose=whose)
    return text if action.kind == "measure again" else f"{text} {_measure_again(pair, [*busy])}"


def summary(decisions: Sequence[Decision]) -> str:
    """Return one answer for all experiments, first about the GPU here or else about renting."""
    is_here, texts = any(each.is_here for each in decisions), []
    if rented := Counter(each.rented.answer for each in decisions if each.rented):
        counts = [f"{count} {answer}" for answer, count in rented.most_common()]
        texts.append(say("summary of", about=say("renting"), counts=", ".join(counts)))
    which: About = "the GPU here" if is_here else "if this machine had a GPU"
    own = say("summary of", about=say(which), counts=", ".join(_own_counts(decisions)))
    texts.insert(0 if is_here else len(texts), own)
    saved_seconds = sum(each.saved_seconds for each in decisions)
    values = {"saved": saved_seconds, "whole": sum(each.here_seconds for each in decisions)}
    return say("summary", count=len(decisions), answers=" ".join(texts), **values)


def _own_counts(decisions: Sequence[Decision]) -> Iterable[str]:
    """Yield the number of each answer about a GPU in this machine, with the reasons for a No."""
    for answer, count in Counter(each.own.answer for each in decisions).most_common():
        found = Counter(each.own.reason for each in decisions if each.own.answer == answer)
        reasons = ", ".join(reason for reason, _ in found.most_common() if reason)
        reasons = reasons if answer == "No" else ""
        yield say("count", count=count, answer=answer, reasons=reasons)
