"""Findings of one experiment or script: the answer, its evidence, and doubts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from photofinish.answer.record import (
    Job,
    JobRecord,
    Layer,
    OverSeeds,
    Parity,
    Speedup,
    metric_texts,
)
from photofinish.reporting.answer_words import (
    action_text,
    answer_text,
    in_points,
    model_text,
    slow_loading,
)
from photofinish.reporting.causes import advice, estimate_hints, reason, slow_gpu_lines, stall_lines
from photofinish.reporting.say import say
from photofinish.reporting.templates import THE_SAME
from photofinish.wording import faster, is_wide, measure_again, seconds

_METRICS_NAMED = 3
SHORT_PARTS = {
    "waiting for data": "loading",
    "copying to the device": "copying",
    "the rest": "rest",
}


@dataclass(frozen=True)
class Verdict:
    """Answer for one experiment in two lines, with evidence and doubts."""

    job: JobRecord
    answer: str
    """First line: the phrase, the times and what they depend on."""
    action: str
    """Recommendation, the beginning of the second line."""
    model: str
    """Comparison of the models, the end of the second line, or empty where no GPU ran."""
    details: tuple[str, ...]
    cautions: tuple[str, ...]
    """Reasons for doubt."""

    @property
    def lines(self) -> tuple[str, str]:
        return self.answer, say("next", action=self.action, model=self.model)


def verdict(job: JobRecord, command: Sequence[str] | None = None) -> Verdict:
    """Return the answer with its evidence. `command` is that of `action_text`."""
    details = [*(_evidence_of_both(job, job.gpu) if job.gpu else _evidence_of_cpu(job))]
    details += [*slow_loading(job), *stall_lines(job)]
    if "cpu" in job.seeds:
        is_whole = not job.cpu.is_extrapolated
        details.append(chance(job.seeds["cpu"], job.seeds.get("gpu") if is_whole else None))
    return Verdict(
        job=job,
        answer=answer_text(job),
        action=action_text(job, command),
        model=model_text(job),
        details=tuple(details),
        cautions=tuple(_cautions(job)),
    )


def _evidence_of_both(job: JobRecord, gpu: Job) -> Iterator[str]:
    if epoch := job.speedups.get("epoch"):
        gain, winner = faster(epoch.ratio, epoch.interval), in_words(epoch)
        yield say("epochs", it=epoch, faster=gain, verdict=winner, cpu=job.cpu, gpu=gpu)
    yield from [*_why(job, job.cpu), *_why(job, gpu), *slow_gpu_lines(job)]
    if scores := _scores(job.cpu, gpu, job.parity):
        yield scores
        return
    on_cpu, on_gpu = (metric_texts(run.metrics)[:_METRICS_NAMED] for run in job.runs)
    if on_cpu and on_gpu:
        yield say("metrics", cpu=on_cpu, gpu=on_gpu)


def _scores(cpu: Job, gpu: Job, parity: Parity | None) -> str:
    """Return where trained models first differ, and the main score of both devices."""
    if not (cpu.scores and gpu.scores):
        return ""
    texts = []
    on_cpu, on_gpu = cpu.scores.main_text(), gpu.scores.main_text()
    values = {"name": cpu.scores.main_name, "cpu": on_cpu, "gpu": on_gpu}
    if parity and parity.epochs is not None:
        return say("scores after", **values, cpu_timed=cpu.timed_text, gpu_timed=gpu.timed_text)
    if parity and (divergence := parity.first_divergence):
        texts.append(say("divergence", layer=divergence, finding=layer_finding(divergence, parity)))
    elif parity and parity.likeness == "not shown" and not parity.difference:
        texts.append(say("random"))
    return " ".join([*texts, say("scores", **values)])


def _evidence_of_cpu(job: JobRecord) -> Iterator[str]:
    cpu, worth, what = job.cpu, job.worth, "ran"
    if cpu.scores:
        what = say("trained in part", timed=cpu.timed_text) if cpu.is_extrapolated else "trained"
    yield say("ran", it=cpu, what=what, scores=cpu.scores.in_words if cpu.scores else "")
    if worth.about == "any GPU" and worth.reason == "start-up" and cpu.has_steps:
        return
    if cpu.has_steps and job.not_counted:
        yield say("no estimates", why=job.not_counted)
    yield from _why(job, cpu)
    yield from estimate_hints(job)


def in_words(speedup: Speedup) -> str:
    """Return which device is faster, or that it is not known."""
    if speedup.interval is None:
        return say("no interval")
    if speedup.is_faster is None:
        return say("no difference")
    return say("gpu faster" if speedup.is_faster else "cpu faster")


def chance(cpu: OverSeeds, gpu: OverSeeds | None) -> str:
    """Return the difference of two seeds, and if the devices differ by more."""
    count, spread = len(cpu.seeds), cpu.score
    if gpu is None:
        mean, two_seeds = (
            cpu.scores.main_text(spread.mean),
            cpu.scores.main_text(spread.between_two),
        )
        low, high = spread.interval
        if cpu.scores.main == "test_accuracy":
            low, high = max(0.0, low), min(1.0, high)
        interval = " to ".join(map(cpu.scores.main_text, (low, high)))
        return say("seeds", it=cpu, count=count, mean=mean, interval=interval, two_seeds=two_seeds)
    both = zip(spread.values, gpu.score.values, strict=True)
    apart = cpu.scores.main_text(statistics.fmean(abs(one - other) for one, other in both))
    two_seeds = cpu.scores.main_text((spread.between_two + gpu.score.between_two) / 2)
    return say("seeds of both", it=cpu, count=count, apart=apart, two_seeds=two_seeds)


def layer_finding(layer: Layer, parity: Parity) -> str:
    if layer.cpu is not None and layer.gpu is not None:
        if layer.name != "test accuracy":
            name = "mean absolute error" if layer.name == "test error" else layer.name
            return say("layer of both", name=name, layer=layer)
        apart = in_points(parity.difference) if parity.difference else ""
        return say("accuracies", layer=layer, apart=apart)
    if layer.same:
        return THE_SAME
    if layer.not_recorded:
        return say("not recorded", layer=layer)
    if layer.unequal is not None:
        return say("unequal", layer=layer)
    if layer.difference is not None:
        return say("difference", layer=layer)
    return say("only one" if layer.at else "they differ", layer=layer)


def _why(job: JobRecord, run: Job) -> list[str]:
    """Return the cause of an epoch's time, then the cause of the job's time."""
    if not run.has_steps:
        return [say("no steps")] if run.device == "cpu" else []
    causes = job.causes[run.device]
    if not causes:
        return []
    main, kind = causes[-1], "cause"
    if main.likely:
        kind = "likely cause"
    elif main.not_known:
        kind = "unknown cause"
    sentences = [say(kind, device=run.device.upper(), it=main, cause=reason(run, main))]
    if main.remedies or main.no_remedy:
        sentences.append(advice(main))
    sentences += [say("another cause", cause=reason(run, other)) for other in causes[:-1]]
    return [" ".join(sentences)]


def _cautions(job: JobRecord) -> Iterator[str]:
    if job.cpu.script and job.cpu.script.cuda_at:
        yield say("mapped", script=job.cpu.script)
    if job.cpu.is_extrapolated:
        yield _time_limit(job)
    for run in job.runs:
        device = run.device.upper()
        if run.busy:
            yield say("busy times", device=device, why=run.busy)
        elif run.step_warnings and not job.is_script:
            command = measure_again([f"measure-{run.device}@{job.name}"])
            yield say("busy steps", device=device, why=run.step_warnings, command=command)
    if any(job.figures[run.device].get("resumed_at_epochs") for run in job.runs):
        yield say("interrupted")
    if job.cpu.settings and job.cpu.settings.values["deterministic"] != "True":
        yield say("not deterministic")
    hosts = [run.host_name for run in job.runs]
    if len(set(hosts)) > 1:
        yield say("machines", hosts=hosts)


def _time_limit(job: JobRecord) -> str:
    """Return a caution about a training that was timed in part, as by a time limit."""
    run, (low, high) = job.cpu, job.one_training.cpu_time.interval
    ends = say("unsure") if is_wide((low, high)) else f"{seconds(low)} to {seconds(high)}"
    return say(
        "time limit",
        it=run,
        timed=run.timed_text,
        limit="`time_limit`" if run.scores else "",
        ends=say("as busy as now") if run.busy else ends,
        early=say("stops early") if run.may_stop_early else "",
        done=run.done_text if run.scores else "",  # else it was a sample of steps
    )
