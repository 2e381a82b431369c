"""Templates of all sentences of an answer, for every place where it is shown.

A field is a value or an attribute of one, and its format may be a unit: `{gpu.seconds:time}`.
What is in square brackets is left out if a value in it is not known, 0 or empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import Formatter
from typing import Any

from photofinish.wording import (
    bound,
    counted,
    interval_text,
    limit,
    listed,
    ratio,
    seconds,
    times,
)

NOTHING = "n/a"
THE_SAME = "the same"

TEMPLATES = {
    # The answer in a word.
    "headline": "{answer} ({about}): {sentences}",
    "other answer": "{about}: {answer:lower}, {sentences}",
    "the GPU here": "The GPU here",
    "renting": "Renting one",
    "if this machine had a GPU": "If this machine had a GPU",
    # A GPU in this machine.
    "measured": "{faster}. The job takes {own.gpu.seconds:time} on {own.gpu.name} instead of "
    "{whole}.",
    "recorded": "{faster}. It took {own.gpu.seconds:time} on {own.gpu.name}, recorded elsewhere, "
    "instead of {whole}.",
    "estimated": "about {faster}: {own.gpu.seconds:time} on {own.gpu.name} instead of {whole}, by "
    "estimate.",
    "hardly known": "{own.interval:interval} times as fast on {own.gpu.name}, by estimate.",
    "small memory": "The memory of {own.gpu.name} may be too small.",
    "short job": "the whole job takes {whole}[, {startup:time} of it start-up].",
    "limit": "{staying} stay on the CPU ({reason}), so no GPU makes it more than {limit:limit} "
    "faster.",
    "resident": "With `input: resident` {prediction} on this CPU.",
    "untried": "no GPU trained it.",
    "unknown loading": "Its loading is not known: {why}.",
    "uncounted": "Nothing is estimated: much of a step is {names}, which isn't counted.",
    "start-up limits": "Start-up limits it to {limit:limit}.",
    "loading limits": "Start-up and loading limit it to {limit:limit}.",
    "time goes into": "Most of the {device}'s time is {reason}.",
    "likely reason": "likely {reason}",
    "launches": "Launching kernels decides its steps at batch {it.batch_size} "
    "({it.step_seconds:time} each): with batch {it.larger_batch_size} a step takes "
    "{it.larger_step_seconds:time}.",
    "launches of some batch": "Launching kernels decides its steps at this batch size "
    "({it.step_seconds:time} each): with {it.larger_batch_size} times as many samples a step takes "
    "{it.larger_step_seconds:time}.",
    "captured": 'With `cuda_graphs: "on"`, about {seconds:time} on {gpu}.',
    "loader": "{gpu:cap} takes {need.gpu_samples_a_second:ratio} samples/s of this network, and "
    "one core here loads {need.core_samples_a_second:ratio}. So it wants {cores:n core}. The "
    "cheapest machine has {need.cores} ({need.vcpus} vCPUs), so the GPU would wait "
    "{need.waiting_share:.0%} of the time.",
    "fair CPU": "A fair CPU with {fewer.threads:n thread} takes {fewer.job_seconds:time}.",
    "slow kernels": "The CPU's {precision} kernels are slow (at {slow.share:.1%} of the rate of an "
    "fp32 product): compare in fp32.",
    "models": "The models are {likeness}.",
    # A rented GPU.
    "saves enough": "{gpu} takes {rented.gpu.seconds:time} instead of {here}[ for {jobs} of the "
    "sweep]. With {rented.start_seconds:time} to start, that saves {rented.saved_seconds:time}"
    "[, for {cost}].",
    "may save enough": "{gpu} may save {range} of {range_here} here[ for {jobs} of the sweep]. It "
    "must save {rented.least_seconds:time}: {rented.start_seconds:time} to start, and "
    "{rented.worth_seconds:time} to gain.",
    "saves too little": "{gpu} saves {saved:time} {run}. It must save {rented.least_seconds:time} "
    "in all ({rented.start_seconds:time} to start, and {rented.worth_seconds:time} to gain)"
    "[: worth it from {rented.runs:,} {noun} on][, perhaps from {fewest:,}].",
    "saves nothing": "{gpu} takes {rented.gpu.seconds:time} instead of {here}[ for {jobs} of the "
    "sweep], and {rented.start_seconds:time} to start.",
    "rented short job": "the job takes {here}[ for {jobs} of the sweep], and a rented machine "
    "takes {rented.start_seconds:time} to start.",
    "not known": "how long its {here} would take there is not known.",
    "in a sweep": "in {jobs}",
    "both": "both experiments",
    "all": "all {count} experiments",
    "up to": "up to {value:time}",
    # How far to trust it.
    "outdated": "The script has changed since this result: `photofinish run` runs it again.",
    "busy": "The machine was busy ({why}), so {whose:list} times are unreliable.",
    "whose": "the {device}'s",
    # What to do now.
    "now": "Now: {action}",
    "use the GPU": "Train on the GPU.",
    "rent": "`photofinish rent --on {action.accelerator}`",
    "rent anywhere": "Rent such a GPU: docs/many-machines.md.",
    "change a setting": "In params.yaml set `{setting}`, then `photofinish run`.",
    "measure again": "Measure again when the machine is quiet (at most {took:time}): `{command}`",
    "measure longer": "Set a longer `time_limit` in params.yaml, then `photofinish run`: more "
    "epochs on this CPU would settle it.",
    "sample longer": "Ask again with more `--seconds`, which would settle it.",
    "run longer": "Let the script train more epochs, then `photofinish run`: they would settle it.",
    "train longer": "Train longer: more epochs would settle it.",
    "try a GPU": "Train it once on a GPU, which would settle it.",
    "try a rented GPU": "Train it once on a GPU: `photofinish rent --on {action.accelerator}`",
    "compare in fp32": "In params.yaml set `precision: fp32`, then `photofinish run`: the CPU is "
    "no fair comparison.",
    "stay here": "Stay here.",
    "stay here for few": "Stay here. From {action.runs} runs in one rental on: "
    "`photofinish rent --on {action.accelerator}`",
    # All experiments.
    "summary": "{count:n experiment}. {answers}[ GPUs save about {saved:time} of {whole:time}.]",
    "summary of": "{about}: {counts}.",
    "count": "{count} {answer}[ ({reasons})]",
    # Evidence.
    "missing": "Nothing was trained on a GPU here ({why}).",
    "epochs": "An epoch takes {it.device_seconds:time} on {gpu.device_name} and "
    "{it.cpu_seconds:time} on {cpu.device_name}: {faster}; {verdict}.",
    "repaid": "When the GPU's start-up is repaid: {when}.",
    "scores after": "{name:cap} is {cpu} on the CPU after {cpu_timed} and {gpu} on the GPU after "
    "{gpu_timed}: not comparable.",
    "scores": "{name:cap} is {gpu} on the GPU and {cpu} on the CPU.",
    "divergence": "The models first differ at the {layer.name}: {finding}.",
    "random": "Each device draws its own random numbers, so few trainings of each cannot show "
    "whether the models differ by more than chance; `seeds: 3` can.",
    "no metrics": "Whether both devices train the same model is not known.",
    "metrics": "On the GPU it reports {gpu:list}; on the CPU {cpu:list}. {no_parity}",
    "ran": "{it.device_name} {what} in {it.total_seconds:time}[, {it.startup_seconds:time} of it "
    "start-up].",
    "trained": "trained {what} to {scores}",
    "no estimates": "There are no estimates for other GPUs: {why}.",
    "no steps": "No step of an optimizer was seen in the script, so it is timed as a whole: its "
    "start-up, its loading and what its steps compute are not known. `photofinish.steps` in its "
    "loop shows them.",
    "seeds": "Over {count} seeds the {it.score_name} is {mean} ({interval}). Two seeds differ by "
    "{two_seeds}.",
    "seeds of both": "Over {count} seeds the {it.score_name} differs by {apart} between the "
    "devices and by {two_seeds} between two seeds.",
    "cause": "On the {device}, {cause} ({found.cause}).",
    "likely cause": "On the {device}, an epoch is likely {found.likely}, but {cause}.",
    "unknown cause": "What an epoch on the {device} waits for is not known: {cause}.",
    "another cause": "And {cause}.",
    # Speed-ups.
    "step": "a step, its data on the device",
    "epoch": "an epoch with its data",
    "end_to_end": "the whole job with start-up",
    "no interval": "no interval ({few})",
    "too few": "{number}, and it takes {least}",
    "no difference": "no clear difference",
    "gpu faster": "the GPU is faster",
    "cpu faster": "the CPU is faster",
    "perhaps never": "can't tell, because its epochs may be no shorter",
    "never": "never, because its epochs are no shorter",
    "at once": "at once",
    "after": "after {epochs:n epoch}",
    "no exact end": "{when} (no interval: {few})",
    "ends": "{what} ({low} to {high})",
    "all sizes": "none: the GPU is {which} at all sizes from {first:,} to {last:,}",
    "no size": "none between {first:,} and {last:,}",
    "from size": "the GPU is faster from {size:,.3g} on",
    "below": "below {size:,}",
    "above": "above {size:,}",
    # Causes and suggestions.
    "start-up-bound": "start-up is {share:.0%} of the job's {whole:time}",
    "script waits": "{run.waiting_share:.0%} of an epoch waits for batches: "
    "{run.batch_seconds:time} per batch, and a step takes {step:time}",
    "waits": "{what} takes {share:.0%} of an epoch: {batch:time} per batch, and a step takes "
    "{step:time}",
    "copying": "copying to the device",
    "the loader": "the loader",
    "gathering": "gathering batches",
    "fixed": "{costs.fixed_seconds:time} of a step's {costs.step_alone_seconds:time} do not depend "
    "on its samples: launching operations and updating {run.parameter_count:,} weights",
    "arithmetic": "arithmetic is {share:.0%} of a step[, with {threads:n thread} for "
    "{cores:n core}]",
    "try": "Try `{line}`: {prediction}.[ Or `{second_line}`: {second}.]",
    "no suggestion": "No setting is suggested: {why}.",
    "cause unknown": "the cause is not known",
    "gains": "an epoch gets {gain:interval}x faster ({how})",
    "gains at most": "an epoch gets at most {gain.high:bound} faster ({how})",
    "gains unknown": "no limit here ({how})",
    # Why nothing is suggested.
    "none: start-up": "start-up happens once, so a longer training feels it less",
    "none: resident": "the samples are on the device already",
    "none: copies": "the samples don't fit into the device's memory, and copies are pinned already",
    "none: workers": "the samples don't fit into the device's memory, and each core has a worker",
    "none: small job": "the job is small, and a faster device would not help",
    "none: used well": "only a faster device or a smaller network would",
    "none: container": "raise the container's limit",
    "none: no gain": "nothing that was tried surely gains",
    "none: untried copies": "copies from pinned memory (`pin_memory`, `non_blocking`) were not "
    "tried",
    "none: untried workers": "more workers were not tried, and may lose more by their start",
    "none: untried threads": "another number of threads was not tried",
    # How a suggestion is known.
    "by: resident": "tried; keeps the bits",
    "by: batch size": "tried; changes what is learned, so compare the accuracy",
    "by: captured": "tried; right only if each step runs the same operations",
    "by: bf16": "tried; changes what is learned, so compare the accuracy",
    "by: tried threads": "tried; changes the last bits",
    "by: tried workers": "tried; keeps the bits",
    "by: decode once": "tried; keeps the bits",
    "by: resident once": "tried; keeps the bits",
    "by: batch transform": "tried; changes what is learned, as a batch draws once",
    # Why the cause is not known.
    "why: not taken apart": "no step was taken apart",
    "why: busy": "the machine was busy",
    "why: few steps": "it trained fewer than {least} steps",
    "why: training": "an epoch takes {apart:time} when measured, and took {whole:time} in the "
    "training",
    "why: epoch": "its steps take {apart:time} when taken apart, and an epoch took {whole:time}",
    "why: step": "a step takes {apart:time} when taken apart, and {whole:time} repeated on one "
    "batch",
    # A training that a time limit ended.
    "timed": "{done:,} of {whole}",
    "extrapolated": " (extrapolated from {timed})",
    "from": "from {timed}",
    "time limit": "The CPU trained {timed}, by its `time_limit`. The whole job's time of "
    "{it.whole_seconds:time} is extrapolated ({low:time} to {high:time}), and its test metrics are "
    "those after {done}.",
    "job line": "{it.job} on {it.device}: about {about:time} for [{at_most} ]{epochs:n epoch}"
    "[ from each of {seeds} seeds] ({spread})",
    # The models.
    "not shown": "not shown to be the same",
    "over epochs": "{words} over the {epochs:n epoch} that both trained",
    "within": "{words} (within {margin:points}: {ends})",
    "seeds wanted": "{words}: {points}, and `seeds: {seeds}` would show it",
    "differ by": "{words}: {points}",
    "points": "GPU {mean:+.1f} points ({ends})",
    "layer of both": "{name} {layer.cpu:.4g} on the CPU, {layer.gpu:.4g} on the GPU",
    "accuracies": "{layer.cpu:.2%} on the CPU, {layer.gpu:.2%} on the GPU[; {apart}]",
    "not recorded": "not recorded: {layer.not_recorded}",
    "unequal": "other predictions for {layer.unequal:n item} ({layer.difference:.2%})",
    "difference": "a relative difference of {layer.difference:.1g}[ in {layer.at}]",
    "only one": "only one has {layer.at}",
    "they differ": "they differ",
    # Doubts.
    "busy steps": "The machine was busy while the {device}'s steps were measured ({why:list}), so "
    "their times are unreliable. To measure them again: {command}.",
    "fallbacks": "The CPU computed some of the {device}'s step: {names:list}.",
    "fallback": "{name} ({count} per step)",
    "interrupted": "A training was interrupted, so its time is the sum of its parts.",
    "not deterministic": "With `deterministic: false` the results don't repeat bit for bit.",
    "machines": "The devices are in different machines: {hosts:list}.",
    # Tables.
    "Speed-ups": "The CPU's time over the GPU's. A script's step is the mean of an epoch, without "
    "the wait for its batch. Where the interval spans 1, or there is none, no winner is named.",
    "What no GPU can shorten": "Upper bounds: no GPU in this machine exceeds them, and a real one "
    "may fall well short.",
    "Loading with more workers": "Timed without steps. A worker's CPU time is for four batches.",
    "Which to rent": "Estimates assume this CPU's start-up and loading; a loader's workers share "
    "the cores of the cheapest machine.",
    "Which loader a GPU wants": "By its estimated steps, the loading of one core here, and the "
    "cores of the machine with the lowest price, if each has a worker.",
    "Is it the same model?": "Compared from the training's start to its end.",
    "The script's metrics": "Whether both devices train the same model is not known beyond the "
    "script's metrics.",
    "Several seeds": "How much chance changes the result.",
    "Energy, cost and time to the target": "",
    "Recorded elsewhere": "Measured on other machines. A GPU's record counts only where no GPU "
    "trained.",
    "Figures": "",
    "in graphs": "Steps in CUDA graphs are taken apart one by one, so these are proportions, not "
    "times",
    "several devices": "What several devices gain",
    "by size": "Where the GPU begins to pay, by size",
    "cut": "The rest is on the page and in comparison.csv.",
    "no loader parts": "The {device}'s loader is not taken apart: {why}.",
    "extrapolated CPU": "{time}, extrapolated",
    "epochs to": "epochs to {target:g} validation accuracy",
    "time to": "time to {target:g} validation accuracy",
    "cost to": "cost to {target:g} validation accuracy",
    "energy counted": "{it.status}: {it.counted}",
    "not reached": "not reached; the best is {best:.4g}",
    "in epoch": "in epoch {epoch}, start-up included",
    "in epoch of": "in epoch {epoch} of {epochs}, start-up included",
    "as fast": "{speed:x} as fast as {fewest}",
    "day and machine": "{day} ({machine})",
    "score after": "{scores} after {timed}",
    "job interval": "{whole:time} ({low:time} to {high:time})",
    "fits": "{it.fits}, {needed} of {it.accelerator.memory_gib:g} GiB",
    "time and share": "{it:time} ({share:.0%})",
    "its machine": "{need.cores:n core} ({need.vcpus} vCPUs)",
    "samples a second": "{rate:ratio} samples/s",
    "one by one": "one by one[: {why}]",
    "in graphs of": "in graphs of {at_once}",
    "lowest loss": "time to the lowest validation loss",
    # Pictures.
    "job picture": "The whole job (dotted: an infinitely fast GPU)",
    "job picture of both": "The whole job",
    "described job": "Time of the job. {parts}",
    "infinitely fast": "an infinitely fast GPU: {limit:time}",
    "extrapolated bar": "extrapolated from {timed}",
    "loading picture": "Loading a batch, in one process",
    "described loading": "Time of loading a batch in one process: {parts:list}",
    "curves": "How it learned",
    "described curve": "on the {device} from {first:.3g} to {last:.3g} in {epochs} epochs and "
    "{trained:time} of training",
    # `photofinish ask`.
    "ask again": "Ask again when the machine is quiet.",
    "own repaid": "The GPU here repays its start after {after:time} of training here.",
    "never repaid": "A rented {gpu} never repays its start.",
    "rented repaid": "A rented {rented.gpu.name} repays the {rented.start_seconds:time} of its "
    "start from {after:time} of training here on ({soonest:time} to {latest:time}).",
    "perhaps repaid": "A rented {rented.gpu.name} repays the {rented.start_seconds:time} of its "
    "start from {after:time} of training here on ({soonest:time} or never).",
    "script's steps": "On {device}: start-up {startup:time}, then {figures.step_seconds:time} a "
    "step[, {waiting} of it making the batch] ({figures.steps:n step} seen).",
    "script's steps by a loader": "On {device}: start-up {startup:time}, then "
    "{figures.step_seconds:time} a step[, {waiting} of it waiting for the loader] "
    "({figures.steps:n step} seen).",
    "validation seen": "Validation takes {share:.0%} of the time after the start.",
    "no validation seen": "No validation was seen, so none is counted.",
    "few steps seen": "Only {steps:n step} were seen: --seconds allows more.",
    "busy while asked": "The machine was busy ({why}), so the intervals are wide.",
    "epochs asked": "On {it.device_name}: start-up {it.startup_seconds:time}, then "
    "{it.median_epoch_seconds:time} an epoch[, {waiting} of it waiting for data], and "
    "{validation:time} of validation.",
    "no estimates asked": "There are no estimates: {why}.",
    "untried workers of a script": "Workers (`num_workers`) may hide these waits, but were not "
    "tried: without `persistent_workers=True` they start again in each epoch.",
    # The overview.
    "overview answer": "{it.answer} ({it.about})",
    "CPU time": "{whole:time}[ ({interval}), extrapolated from {timed}][, {busy}]",
    "on a rented GPU": "{it.estimate.job_seconds:time} on a rented {it.accelerator.name} "
    "(estimated)",
    "if it had one": "{own.gpu.seconds:time} if this machine had {name} (estimated)",
    "on a recorded GPU": "{own.gpu.seconds:time} on {own.gpu.name} (recorded elsewhere)",
    "up to times": "up to {limit:bound}",
    "wide interval": "{interval:interval} times",
    "speed-up": "{speedup:x}[ ({interval:interval})]",
}


def _points(share: float) -> str:
    points = f"{100 * share:g}"
    return f"{points} point{'' if points == '1' else 's'}"


_FORMATS: dict[str, Callable[[Any], str]] = {
    "time": seconds,
    "x": times,
    "ratio": ratio,
    "interval": interval_text,
    "bound": bound,
    "limit": limit,
    "list": listed,
    "points": _points,
    "cap": lambda text: f"{text[0].upper()}{text[1:]}",
    "lower": lambda text: f"{text[0].lower()}{text[1:]}",
}
"""Formats of a template's fields, in addition to Python's and `n NOUN`, which counts."""


class _Writer(Formatter):
    """Formatter that knows times, ratios and counted nouns."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("n "):
            return counted(value, format_spec.removeprefix("n "))
        if write := _FORMATS.get(format_spec):
            return write(value)
        return str(super().format_field(value, format_spec))


_WRITER = _Writer()
_OPTIONAL = re.compile(r"\[(.*?)\]")


def say(template: str, **values: Any) -> str:
    """Return a sentence or a part of one: a template, filled by values and their attributes."""

    def part(match: re.Match[str]) -> str:
        names = [name for _, name, _, _ in _WRITER.parse(match[1]) if name]
        return match[1] if all(_WRITER.get_field(name, (), values)[0] for name in names) else ""

    return _WRITER.format(_OPTIONAL.sub(part, TEMPLATES[template]), **values)
