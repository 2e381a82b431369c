"""Findings of one experiment or script: the answer, its evidence, and doubts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision, decide
from photofinish.answer.diagnosis import Diagnosis
from photofinish.answer.parity import Layer, Parity
from photofinish.answer.seeds import OverSeeds
from photofinish.answer.speedups import Speedup
from photofinish.machine.load import load_warnings
from photofinish.reporting.answer_words import action_text, answer_text
from photofinish.reporting.causes import advice, cause, estimate_hints, stall_lines
from photofinish.reporting.extrapolated import caution, timed_text
from photofinish.reporting.model_words import in_points, model_text
from photofinish.reporting.say import say
from photofinish.reporting.templates import THE_SAME
from photofinish.results.job import Job
from photofinish.results.trained import NetworkScores
from photofinish.wording import faster, measure_again

_METRICS_NAMED = 3
SHORT_PARTS = {
    "waiting for data": "loading",
    "copying to the device": "copying",
    "the rest": "rest",
}


@dataclass(frozen=True)
class Verdict:
    """Answer for one experiment in two lines, with evidence and doubts."""

    experiment: str
    decision: Decision
    answer: str
    """First line: the phrase, the times and what they depend on."""
    action: str
    """Recommendation, the beginning of the second line."""
    model: str
    """Comparison of the models, the end of the second line, or empty where no GPU ran."""
    details: tuple[str, ...]
    """Paragraphs of evidence."""
    cautions: tuple[str, ...]
    """Reasons for doubt."""
    missing: str | None = None
    """Sentence why no GPU trained."""

    @property
    def lines(self) -> tuple[str, str]:
        return self.answer, say("next", action=self.action, model=self.model)


def verdict(
    pair: Comparison, decision: Decision | None = None, command: Sequence[str] | None = None
) -> Verdict:
    """Return the answer with its evidence. By default, decide for this experiment alone.

    `command` is that of `action_text`.
    """
    decision = decision or decide(pair)
    details = [*(_evidence_of_both(pair) if pair.compared else _evidence_of_cpu(pair, decision))]
    details += stall_lines(pair, decision)
    if "cpu" in pair.seeds:
        is_whole = not pair.cpu.untimed_epochs
        details.append(chance(pair.seeds["cpu"], pair.seeds.get("gpu") if is_whole else None))
    return Verdict(
        experiment=pair.experiment,
        decision=decision,
        answer=answer_text(pair, decision),
        action=action_text(pair, decision, command),
        model=model_text(pair),
        details=tuple(details),
        cautions=tuple(_cautions(pair)),
        missing=say("missing", why=pair.why_no_gpu) if pair.why_no_gpu else None,
    )


def _evidence_of_both(pair: Comparison) -> Iterator[str]:
    assert pair.compared
    cpu, gpu = pair.trained
    if epoch := pair.compared.speedups.get("epoch"):
        gain, winner = faster(epoch.ratio, epoch.interval), in_words(epoch)
        devices = {"cpu": cpu, "gpu": gpu}
        yield say("epochs", it=epoch, faster=gain, verdict=winner, **devices)
    yield from _why(cpu, pair.diagnoses["cpu"])
    yield from _why(gpu, pair.diagnoses["gpu"])
    if cpu.trained and gpu.trained:
        yield _scores(cpu, gpu, cpu.trained.scores, gpu.trained.scores, pair.parity)
        return
    on_cpu, on_gpu = (metric_texts(run)[:_METRICS_NAMED] for run in (cpu, gpu))
    if on_cpu and on_gpu:
        yield say("metrics", cpu=on_cpu, gpu=on_gpu)


def _scores(
    cpu: Job, gpu: Job, scores: NetworkScores, others: NetworkScores, parity: Parity | None
) -> str:
    """Return where the models first differ, and the main score of both devices."""
    texts, on_cpu, on_gpu = [], scores.main_text(), others.main_text()
    values = {"name": scores.main_name, "cpu": on_cpu, "gpu": on_gpu}
    if parity and parity.epochs is not None:
        timed = {"cpu_timed": timed_text(cpu), "gpu_timed": timed_text(gpu)}
        return say("scores after", **values, **timed)
    if parity and (divergence := parity.first_divergence):
        texts.append(say("divergence", layer=divergence, finding=layer_finding(divergence, parity)))
    elif parity and parity.likeness == "not shown" and not parity.difference:
        texts.append(say("random"))
    return " ".join([*texts, say("scores", **values)])


def metric_texts(run: Job) -> list[str]:
    """Return the custom metrics of a result, each after its name."""
    return [
        f"{name} {'not a number' if value is None else f'{value:.4g}'}"
        for name, value in run.metrics.items()
    ]


def _evidence_of_cpu(pair: Comparison, decision: Decision) -> Iterator[str]:
    cpu, timings, what, scores = pair.cpu, pair.cpu, "ran", ""
    if cpu.trained:
        what, scores = "trained", cpu.trained.scores.in_words
        if timings.untimed_epochs:
            what = say("trained in part", timed=timed_text(timings))
    yield say("ran", it=timings, what=what, scores=scores)
    if decision.about == "any GPU" and decision.worth.reason == "start-up" and cpu.has_steps:
        return
    if cpu.has_steps and pair.renting.not_counted:
        yield say("no estimates", why=pair.renting.not_counted)
    yield from _why(cpu, pair.diagnoses["cpu"])
    yield from estimate_hints(pair, decision)


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
    """Return how a layer differs between two trainings."""
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


def _why(run: Job, diagnoses: Sequence[Diagnosis]) -> list[str]:
    """Return the cause of an epoch's time, then the cause of the job's time."""
    if not run.has_steps:
        return [say("no steps")] if run.device == "cpu" else []
    if not diagnoses:
        return []
    found, kind = diagnoses[-1], "cause"
    if found.likely:
        kind = "likely cause"
    elif found.not_known:
        kind = "unknown cause"
    sentences = [say(kind, device=run.device.upper(), found=found, cause=cause(found))]
    if found.remedies or found.no_remedy:
        sentences.append(advice(found))
    sentences += [say("another cause", cause=cause(other)) for other in diagnoses[:-1]]
    return [" ".join(sentences)]


def _cautions(pair: Comparison) -> Iterator[str]:
    """Yield further reasons to doubt the answer."""
    script = pair.cpu.script
    if script and script.cuda_at:
        yield say("mapped", script=script)
    if pair.cpu.untimed_epochs:
        yield caution(pair.cpu)
    for run in pair.trained:
        device, times = run.device.upper(), run
        if warnings := load_warnings(times.load):
            yield say("busy times", device=device, why=warnings)
        elif run.settings and times.step_warnings:
            command = measure_again([f"measure-{run.device}@{run.name}"])
            yield say("busy steps", device=device, why=times.step_warnings, command=command)
    if any(run.interruptions for run in pair.trained):
        yield say("interrupted")
    if pair.cpu.settings and pair.cpu.settings.values["deterministic"] == "False":
        yield say("not deterministic")
    hosts = [run.host_name for run in pair.trained]
    if len(set(hosts)) > 1:
        yield say("machines", hosts=hosts)
