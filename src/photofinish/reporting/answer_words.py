"""Answers as text: a template for each kind of finding, and the values that fill it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from photofinish.comparing.candidates import About, Worth
from photofinish.comparing.decision import Action, Decision
from photofinish.comparing.fair_cpu import fewer_threads, slow_kernels
from photofinish.comparing.loader_needs import LoaderNeed
from photofinish.comparing.own_gpu import highest_limit, is_likely
from photofinish.comparing.pairs import Comparison
from photofinish.machine.load import load_warnings
from photofinish.reporting.causes import not_known, prediction, remedy_line
from photofinish.reporting.extrapolated import job_time, likeness, mark
from photofinish.results.records import DeviceLabel
from photofinish.wording import (
    HIGH,
    counted,
    faster,
    interval_text,
    limit,
    listed,
    measure_again,
    money,
    part_of,
    ratio,
    seconds,
)

_WORTH_CAPTURING = 1.5
"""Smallest speed-up of a job for which `cuda_graphs: "on"` is suggested."""

_MUCH_WAITING = 0.1
"""Least share of its time that a GPU waits for the loader in an answer that mentions it."""

SENTENCES = {
    # The answer in a word.
    "headline": "{answer} ({about}): {sentences}",
    "other answer": "{about}: {answer}, {sentences}",
    # A GPU in this machine.
    "measured": "{faster}. The job takes {gpu_time} on {gpu} instead of {whole}.",
    "recorded": "{faster}. It took {gpu_time} on {gpu}, recorded elsewhere, instead of {whole}.",
    "estimated": "about {faster}: {gpu_time} on {gpu} instead of {whole}, by estimate.",
    "hardly known": "{interval} times as fast on {gpu}, by estimate.",
    "small memory": "The memory of {gpu} may be too small.",
    "short job": "the whole job takes {whole}{of_it_startup}.",
    "limit": "{staying} stay on the CPU ({reason}), so no GPU makes it more than {limit} faster.",
    "resident": "With `input: resident` {prediction} on this CPU.",
    "untried": "no GPU trained it.",
    "unknown loading": "Its loading is not known: {why}.",
    "uncounted": "Nothing is estimated: much of a step is {names}, which isn't counted.",
    "some limit": "{staying} it to {limit}.",
    "time goes into": "Most of the {device}'s time is {likely}{reason}.",
    "launch-bound": "Launching kernels decides its steps at {batch} ({step} each): with "
    "{larger_batch} a step takes {larger_step}.",
    "captured": 'With `cuda_graphs: "on"`, about {gpu_time} on {gpu}.',
    "loader": "{gpu} takes {rate} samples/s of this network, and one core here loads {core_rate}. "
    "So it wants {wanted}. The cheapest machine has {cores}, so the GPU would wait {share} of the "
    "time.",
    "fair CPU": "A fair CPU with {threads} takes {time}.",
    "slow kernels": "The CPU's {precision} kernels are slow (at {share} of the rate of an fp32 "
    "product): compare in fp32.",
    "models": "The models are {likeness}.",
    # A rented GPU.
    "saves enough": "{gpu} takes {gpu_time} instead of {here}{of_sweep}. With {start} to start, "
    "that saves {saved}{cost}.",
    "may save enough": "{gpu} may save {range} of {range_here} here{of_sweep}. It must save "
    "{least}: {start} to start, and {worth} to gain.",
    "saves too little": "{gpu} saves {saved_by_run} {run}. It must save {least} in all "
    "({start} to start, and {worth} to gain){from_runs}.",
    "saves nothing": "{gpu} takes {gpu_time} instead of {here}{of_sweep}, and {start} to start.",
    "rented short job": "the job takes {here}{of_sweep}, and a rented machine takes {start} "
    "to start.",
    "not known": "how long its {here} would take there is not known.",
    # How far to trust it.
    "outdated": "The script has changed since this result: `photofinish run` runs it again.",
    "busy": "The machine was busy ({why}), so {whose} times are unreliable.",
    # What to do now.
    "use the GPU": "Train on the GPU.",
    "rent": "`photofinish rent --on {accelerator}`",
    "rent anywhere": "Rent such a GPU: docs/many-machines.md.",
    "change a setting": "In params.yaml set `{setting}`, then `photofinish run`.",
    "measure again": "Measure again when the machine is quiet ({time}): `{command}`",
    "measure longer": "Set a longer `time_limit` in params.yaml, then `photofinish run`: more "
    "epochs on this CPU would settle it.",
    "sample longer": "Ask again with more `--seconds`, which would settle it.",
    "run longer": "Let the script train more epochs, then `photofinish run`: they would settle it.",
    "train longer": "Train longer: more epochs would settle it.",
    "try a GPU": "Train it once on a GPU, which would settle it.",
    "try a rented GPU": "Train it once on a GPU: `photofinish rent --on {accelerator}`",
    "compare in fp32": "In params.yaml set `precision: fp32`, then `photofinish run`: the CPU is "
    "no fair comparison.",
    "stay here": "Stay here.",
    "stay here for few": "Stay here. From {runs} runs in one rental on: "
    "`photofinish rent --on {accelerator}`",
}


_AT_START: dict[About, str] = {
    "the GPU here": "The GPU here",
    "renting": "Renting one",
    "if this machine had a GPU": "If this machine had a GPU",
}
"""Subject of an answer at the start of a sentence."""


def answer_text(pair: Comparison, decision: Decision) -> str:
    """Return the answer about the GPU here, or else about a rented GPU, then the other answer."""
    here: About = "the GPU here" if decision.is_here else "if this machine had a GPU"
    answers: dict[About, tuple[str, str]] = {here: (decision.own.answer, _own(pair, decision))}
    if decision.rented:
        answers["renting"] = decision.rented.answer, _rented(decision.rented, pair)
    answer, sentences = answers.pop(decision.about)
    texts = [_say("headline", answer=answer, about=decision.about, sentences=sentences)]
    for about, (answer, sentences) in answers.items():
        lower, start = _lower(answer), _AT_START[about]
        texts.append(_say("other answer", about=start, answer=lower, sentences=sentences))
    if slow := slow_kernels(pair.cpu.timings):
        texts.append(_say("slow kernels", precision=pair.cpu.precision, share=f"{slow.share:.1%}"))
    texts += _hints(pair, decision)
    if pair.cpu.is_outdated:
        texts.append(_say("outdated"))
    return " ".join(texts)


def _say(kind: str, **values: object) -> str:
    return SENTENCES[kind].format(**values)


def _lower(answer: str) -> str:
    return answer[0].lower() + answer[1:]


def _own(pair: Comparison, decision: Decision) -> str:
    """Return the sentences about a GPU in this machine."""
    own = decision.own
    whole, startup_seconds = job_time(pair.cpu.timings), pair.cpu.timings.startup_seconds
    if own.reason == "short job":
        of_it = f", {seconds(startup_seconds)} of it start-up" if startup_seconds else ""
        return _say("short job", whole=whole, of_it_startup=of_it)
    if own.gpu is None or own.speedup is None:
        return " ".join(_limits(pair, own))
    interval = own.interval or (own.speedup, own.speedup)
    said = [
        _say(
            "hardly known" if own.is_hardly_known else own.basis,
            faster=faster(own.speedup, own.interval),
            interval=interval_text(interval),
            gpu_time=seconds(own.gpu.seconds),
            gpu=own.gpu.name,
            whole=whole,
        )
    ]
    if fewer := fewer_threads(pair.cpu.timings):
        threads, time = counted(fewer.threads, "thread"), seconds(fewer.job_seconds)
        said.append(_say("fair CPU", threads=threads, time=time))
    if own.reason:
        likely = "likely " if is_likely(pair, own) else ""
        device = "GPU" if own.of_gpu else "CPU"
        said.append(_say("time goes into", device=device, likely=likely, reason=own.reason))
    if own.option and own.option.fits == "perhaps":
        said.append(_say("small memory", gpu=own.gpu.name))
    if pair.parity:
        said.append(_say("models", likeness=likeness(pair.parity)))
    return " ".join(said)


def _limits(pair: Comparison, own: Worth) -> Iterable[str]:
    """Yield the bound on a GPU in this machine, or why there is none."""
    job = pair.bounds.job
    if own.answer == "No":
        staying = part_of(job.measured_seconds, job.measured_whole_seconds)
        reason = "start-up and loading" if own.reason == "loading" else own.reason
        yield _say("limit", staying=staying, reason=reason, limit=limit(highest_limit(pair)))
        remedies = [found.remedy for found in pair.diagnoses["cpu"] if found.remedy]
        yield from (
            _say("resident", prediction=prediction(each))
            for each in remedies
            if each.by == "resident"
        )
        return
    yield _say("untried")
    if unknown := pair.bounds.loading_not_known:
        yield _say("unknown loading", why=not_known(unknown))
    operations = pair.cpu.timings.operations
    if operations and operations.without_formula:
        yield _say("uncounted", names=", ".join(operations.without_formula))
    if (highest := highest_limit(pair)) <= HIGH:
        staying = "Start-up and loading limit" if pair.bounds.epoch else "Start-up limits"
        yield _say("some limit", staying=staying, limit=limit(highest))


def _hints(pair: Comparison, decision: Decision) -> Iterable[str]:
    """Yield what would change the estimate of this experiment on the deciding GPU."""
    deciding = decision.rented.option if decision.rented else decision.own.option
    named = deciding.accelerator.name if deciding else None
    own = {each.accelerator.name: each for each in pair.renting.options}
    option = own.get(named) if named and not decision.is_here else None
    estimate = option.estimate if option else None
    if option is None or estimate is None:
        return
    if larger := estimate.larger_batch:
        yield _say(
            "launch-bound",
            batch=f"batch {larger.batch_size}" if larger.batch_size > 1 else "this batch size",
            step=seconds(larger.step_seconds),
            larger_batch=f"batch {larger.larger_batch_size}"
            if larger.batch_size > 1
            else f"{larger.larger_batch_size} times as many samples",
            larger_step=seconds(larger.larger_step_seconds),
        )
    if option.loader_need and option.loader_need.waiting_share > _MUCH_WAITING:
        yield _loader(option.accelerator.name, option.loader_need)
    captured_seconds = estimate.captured_job_seconds
    if captured_seconds and estimate.job_seconds > _WORTH_CAPTURING * captured_seconds:
        yield _say("captured", gpu_time=seconds(captured_seconds), gpu=option.accelerator.name)


def _loader(gpu: str, need: LoaderNeed) -> str:
    """Return the sentence about the cores that a GPU's loader needs."""
    named = with_article(gpu)
    return _say(
        "loader",
        gpu=f"{named[0].upper()}{named[1:]}",
        rate=ratio(need.gpu_samples_a_second),
        core_rate=ratio(need.core_samples_a_second),
        wanted=counted(math.ceil(need.wanted_cores), "core"),
        cores=f"{need.cores} ({need.vcpus} vCPUs)",
        share=f"{need.waiting_share:.0%}",
    )


def with_article(gpu: str) -> str:
    """Return `an A10G` or `a T4`."""
    return f"{'an' if gpu[0] in 'AEFHILMNORSX' else 'a'} {gpu}"


def _rented(rented: Worth, pair: Comparison) -> str:
    """Return the sentence about a rented GPU."""
    kind = "rented short job" if rented.reason == "short job" else str(rented.reason)
    gpu = rented.gpu
    name = gpu.name if gpu else ""
    if rented.option:
        name = with_article(name)
    is_sweep, cost = rented.jobs > 1, ""
    marked = "" if is_sweep or pair.compared else mark(pair.cpu.timings)
    here = seconds(rented.here_seconds) + marked
    if rented.cost is not None and gpu and gpu.price:
        cost = f", for {money(rented.cost, gpu.price.currency)}"
    noun = "sweeps" if is_sweep else "runs"
    low, high = rented.saved
    return _say(
        kind,
        gpu=name,
        gpu_time=seconds(gpu.seconds) if gpu else "",
        here=here,
        start=seconds(rented.start_seconds),
        worth=seconds(rented.worth_seconds),
        least=seconds(rented.least_seconds),
        saved=seconds(rented.saved_seconds) if gpu else "",
        saved_by_run=seconds(rented.here_seconds - gpu.seconds) if gpu else "",
        range=f"{seconds(low)} to {seconds(high)}" if low > 0 else f"up to {seconds(high)}",
        range_here=" to ".join(map(seconds, rented.here or ())) + marked,
        cost=cost,
        run=f"in {_all_of(rented.jobs)}" if is_sweep else "a run",
        of_sweep=f" for {_all_of(rented.jobs)} of the sweep" if is_sweep else "",
        from_runs=_from_runs(rented, noun),
    )


def _all_of(jobs: int) -> str:
    return "both experiments" if jobs == 2 else f"all {jobs} experiments"


def _from_runs(rented: Worth, noun: str) -> str:
    """Return from how many runs on renting is surely worth it, and from how many it may be."""
    if rented.runs is None:
        return ""
    perhaps = f", perhaps from {rented.fewest_runs:,}" if rented.fewest_runs < rented.runs else ""
    return f": worth it from {rented.runs:,} {noun} on{perhaps}"


def action_text(pair: Comparison, action: Action) -> str:
    """Return the sentence about what to do now."""
    kind: str = action.kind
    if kind == "measure again":
        return _measure_again(pair, action.devices)
    if kind == "rent" and not action.accelerator:
        kind = "rent anywhere"
    elif kind == "measure longer":
        kind = _longer(pair)
    elif kind == "try a GPU" and action.accelerator:
        kind = "try a rented GPU"
    elif kind == "stay here" and action.runs and action.accelerator:
        kind = "stay here for few"
    return _say(
        kind,
        accelerator=action.accelerator,
        runs=action.runs,
        setting=remedy_line(action.remedy) if action.remedy else "",
    )


def _longer(pair: Comparison) -> str:
    """Return the sentence that says how to train more of the job here."""
    if pair.cpu.timings.timed.unit == "step":
        return "sample longer"
    return "measure longer" if pair.cpu.settings else "run longer"


def _measure_again(pair: Comparison, devices: Sequence[DeviceLabel]) -> str:
    """Return how to measure again, with the time that it took on the busy machine."""
    took_seconds = sum(run.timings.total_seconds for run in pair.trained if run.device in devices)
    command = measure_again(f"{pair.cpu.stage}-{device}@{pair.experiment}" for device in devices)
    return _say("measure again", time=f"at most {seconds(took_seconds)}", command=command)


def busy_text(pair: Comparison, action: Action) -> str | None:
    """Return a note if the machine was busy, with the command unless the action has it, or None."""
    busy = [run for run in pair.trained if load_warnings(run.timings.load)]
    if not busy:
        return None
    devices = [run.device for run in busy]
    whose = listed([f"the {device.upper()}'s" for device in devices])
    why = load_warnings(busy[0].timings.load)[0]
    text = _say("busy", why=why, whose=whose)
    if action.kind == "measure again":
        return text
    return f"{text} {_measure_again(pair, devices)}"


def summary(decisions: Sequence[Decision]) -> str:
    """Return one answer for all experiments, first about the GPU here or else about renting."""
    is_here = any(each.is_here for each in decisions)
    own = Counter(each.own.answer for each in decisions)
    parts = []
    for answer, count in own.most_common():
        found = [each.own.reason for each in decisions if each.own.answer == answer]
        reasons = ", ".join(reason for reason, _ in Counter(filter(None, found)).most_common())
        parts.append(f"{count} {answer}{f' ({reasons})' if reasons and answer == 'No' else ''}")
    which: About = "the GPU here" if is_here else "if this machine had a GPU"
    texts = [f"{_AT_START[which]}: {', '.join(parts)}."]
    rented = Counter(each.rented.answer for each in decisions if each.rented)
    if rented:
        counts = ", ".join(f"{count} {answer}" for answer, count in rented.most_common())
        texts.insert(len(texts) if is_here else 0, f"{_AT_START['renting']}: {counts}.")
    if saved_seconds := sum(each.saved_seconds for each in decisions):
        whole_seconds = sum(each.here_seconds for each in decisions)
        texts.append(f"GPUs save about {seconds(saved_seconds)} of {seconds(whole_seconds)}.")
    return f"{counted(len(decisions), 'experiment')}. {' '.join(texts)}"
