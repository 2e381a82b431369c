"""Causes, shares and predictions of planted jobs, against examples calculated by hand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from dvc.utils.hydra import apply_overrides
from outputs import comparison_rows, record_of, verdict
from planted_jobs import HOST, LOADER, compared, lasting, make_job, make_model, steady
from result_files import BUSY, in_turns, made_up_attribution, resident_tried, text_of

from photofinish.answer.diagnosis import Diagnosis, Gain, Remedy, diagnose, step_speedup
from photofinish.answer.step_costs import fixed_share
from photofinish.reporting import causes
from photofinish.reporting.drawing import Picture
from photofinish.reporting.pictures import where_a_step_goes
from photofinish.reporting.say import say
from photofinish.results.job import Job
from photofinish.results.measurements import InTurns, LoaderTimes, Tried, TriedWorkers
from photofinish.results.trained import StepsTaken

TWO_WORKERS = replace(LOADER, workers=2)
STEPS = 38
"""Steps of an epoch with 608 samples in batches of 16."""


def slow(
    epoch_seconds: float | None = None,
    *,
    device: Any = "cpu",
    threads: int = 4,
    limit: float | None = None,
    tried: tuple[Tried, ...] = (),
    launch_seconds: tuple[float, ...] = (),
    batch: int = 2,
    parts: Any = None,
    **changed: Any,
) -> Job:
    """Make a job whose step takes 10 ms, and its batch 1 ms or as long as the parts say."""
    others = {"other_batch_images": batch, "launch_seconds": launch_seconds, "tried": tried}
    parts = {"waiting": 0.001, **(parts or {})}
    attribution = made_up_attribution(**parts, **others)
    medians = attribution.parts.median_seconds
    seconds = epoch_seconds or STEPS * sum(medians.values())
    cpu = replace(HOST.cpu, cgroup_cores_limit=limit)
    given: dict[str, Any] = {
        "startup_seconds": 0.5,
        "samples": 16 * STEPS,
        "waiting_seconds": medians["waiting_seconds"],
        "step_seconds": (0.01,) * 3,
        "attribution": attribution,
        "host": HOST.model_copy(update={"threads": threads, "cpu": cpu}),
    }
    return make_job((seconds + 0.1,) * 5, device, **given | changed)


def only(diagnoses: tuple[Diagnosis, ...]) -> Diagnosis:
    (diagnosis,) = diagnoses
    return diagnosis


@pytest.mark.parametrize(
    ("sizes", "share"),
    [
        ((16, 0.020, 2, 0.006), 0.2),  # 0.001 a sample, 0.004 for none
        ((2, 0.006, 16, 0.020), 2 / 3),
        ((16, 0.020, 2, 0.020), 1),
        ((16, 0.020, 2, 0.021), 1),  # a disturbed measurement, not a negative sample
        ((16, 0.020, 2, 0.001), 0),
        ((16, 0.020, 16, 0.020), 0),  # one size only
    ],
)
def test_the_fixed_share_of_a_step(sizes: tuple[int, float, int, float], share: float) -> None:
    assert fixed_share(*sizes) == pytest.approx(share)


def test_a_gain_is_the_ratio_of_steps_in_turns_however_slow_the_machine_became() -> None:
    speeds = (1.0, 1.4, 1.1, 1.9, 1.2)
    base, changed = (steady(*(s * speed for speed in speeds)) for s in (0.02, 0.01))
    turns = InTurns(base=base, changed=changed)
    assert step_speedup(turns) == pytest.approx((2 / 1.07, 2 * 1.07))
    noisy = steady(0.01, 0.04, 0.01, 0.04, 0.01)
    low, high = step_speedup(turns.model_copy(update={"changed": noisy}))
    assert low < 1 < high


def drifting(seed: int, gain: float, *, in_turns: bool) -> InTurns:
    """Draw six samples of each kind, on a machine that drifts by a tenth from one to the next."""
    draw = np.random.default_rng(seed)
    speeds = np.exp(np.cumsum(draw.normal(0, 0.1, 12)) + draw.normal(0, 0.03, 12))
    first, second = [0, 3, 4, 7, 8, 11], [1, 2, 5, 6, 9, 10]
    if not in_turns:
        first, second = [*range(6)], [*range(6, 12)]
    base, changed = steady(*speeds[first] * 0.01), steady(*speeds[second] * 0.01 / gain)
    return InTurns(base=base, changed=changed)


def test_a_job_against_itself_is_hardly_ever_faster_in_turns_and_a_gain_is_predicted() -> None:
    def share(is_so: Callable[[float, float], bool], gain: float, *, in_turns: bool) -> float:
        tries = (drifting(seed, gain, in_turns=in_turns) for seed in range(400))
        return sum(is_so(*step_speedup(turns)) for turns in tries) / 400

    assert share(lambda low, _: low > 1, 1.0, in_turns=True) <= 1 / 40
    assert share(lambda low, _: low > 1, 1.0, in_turns=False) > 0.1  # one after the other
    assert share(lambda low, high: 1 < low < 1.5 < high, 1.5, in_turns=True) >= 0.9


def test_a_change_that_was_tried_in_one_turn_gains_nothing_for_sure() -> None:
    turns = InTurns(base=steady(0.01), changed=steady(0.002))
    bf16 = Tried(by="bf16", changes={"precision": "bf16"}, turns=turns)
    job = slow(parts={"waiting": 0.002}, tried=(bf16,))
    assert only(diagnose(job)).no_remedy == "used well"


def by_two(batch_seconds: float, inputs: tuple[Tried, ...] = (), start: float = 0.0) -> Any:
    """Return the times of a loader whose two workers bring a batch so often."""
    workers = TriedWorkers(workers=2, batch_seconds=batch_seconds, start_seconds=start)
    return {
        "settings": TWO_WORKERS,
        "loader": LoaderTimes(tried_inputs=inputs, tried_workers=(workers,)),
        "loading_seconds": STEPS * batch_seconds + start,
    }


def tried_input(by: str, milliseconds: float, **changes: Any) -> Tried:
    turns = in_turns(0.1, milliseconds / 1000)
    return Tried.model_validate({"by": by, "changes": changes, "turns": turns})


def test_a_gain_ends_where_loading_that_steps_hide_now_would_hold_the_epoch_back() -> None:
    """A step takes 10 ms, 5 in bf16, and two workers bring a batch each 9 ms."""
    job = slow(STEPS * 0.01, parts={"waiting": 0.0}, **by_two(0.009), **tried(bf16=5))
    (remedy,) = only(diagnose(job)).remedies
    assert remedy.by == "bf16"
    assert remedy.predicted == pytest.approx((10 / 9, 10 / 9))


def test_a_jobs_gain_reaches_to_runs_whose_start_up_takes_another_time() -> None:
    job = lasting(30.0)
    once, passes = job.once_seconds, job.passes_seconds
    apart = 0.3 * job.startup_seconds
    low, high = Gain(2.0, 2.0).of_job(job)
    assert low <= (once + apart + passes) / (once + apart + passes / 2)
    assert (once - apart / 1.3 + passes) / (once - apart / 1.3 + passes / 2) <= high


def test_of_the_inputs_that_were_tried_the_two_best_are_suggested() -> None:
    given, blur = {"name": "loader", "workers": 2}, {"name": "GaussianBlur", "kernel_size": 9}
    inputs = (
        tried_input("workers", 60, input=given | {"persistent_workers": True}),
        tried_input("batch transform", 40, input=given | {"transform": None}, batch_transform=blur),
        tried_input("decode once", 10, decode="once"),
    )
    job = slow(parts={"waiting": 0.09}, **by_two(0.04, inputs, start=0.38))
    first, second = only(diagnose(job)).remedies
    assert causes.remedy_line(first) == "datasets.small.decode: once"
    assert causes.remedy_line(second) == (
        "experiments.small-mlp.input: {name: loader, workers: 2, transform: null}, "
        "experiments.small-mlp.batch_transform: {name: GaussianBlur, kernel_size: 9}"
    )
    # An epoch's step takes 100 ms. Two workers start in 380 ms for 38 steps, both times alike.
    for remedy, milliseconds in ((first, 10), (second, 40)):
        low = (100 + 10 * 1.3) / (1.07 * milliseconds + 10 * 1.3)
        high = (100 + 10 / 1.3) / (milliseconds / 1.07 + 10 / 1.3)
        assert remedy.predicted == pytest.approx((low, high))
    slower = LoaderTimes(tried_inputs=(tried_input("workers", 95, input=given),))
    assert only(diagnose(replace(job, loader=slower))).no_remedy == "no gain"


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        ({"measured_load": (BUSY,)}, "the machine was busy"),
        ({"attribution": None, "not_attributed": "two processes"}, "two processes"),
    ],
)
def test_figures_that_show_no_cause_name_none(measured: dict[str, Any], why: str) -> None:
    job = record_of(compared(slow(**measured)))
    (known,) = job.causes["cpu"]
    assert (known.of, known.cause, known.remedies) == ("an epoch", "not known", ())
    assert why in causes.reason(job.cpu, known)


def test_a_busy_machine_still_shows_the_parts_and_a_likely_cause() -> None:
    pair = compared(slow(measured_load=(BUSY,), seconds=30.0, startup_seconds=1.0))
    assert isinstance(where_a_step_goes(record_of(pair)), Picture)
    assert comparison_rows([pair])[0]["forward_share"] == pytest.approx(3 / 11)
    assert only(pair.causes["cpu"]).likely == "compute-bound"
    assert causes.short_cause(record_of(pair), "cpu") == "probably 91% of each step is compute"


HARDLY_GROWS = {"device": "gpu", "parts": {"other_step_seconds": 0.009}}


@pytest.mark.parametrize(
    ("measured", "cause"),
    [
        # An accelerator that synchronizes after each part may take longer than in an epoch.
        ({"epoch_seconds": 0.2, "device": "gpu"}, "compute-bound"),
        # 16 samples take as long as 2, unless the device hides that launching takes so long.
        (HARDLY_GROWS, "launch-bound"),
        ({**HARDLY_GROWS, "launch_seconds": (0.0095,)}, "launch-bound"),
        ({**HARDLY_GROWS, "launch_seconds": (0.004,)}, "compute-bound"),
    ],
)
def test_what_differs_by_design_is_not_the_cause(measured: dict[str, Any], cause: str) -> None:
    assert only(diagnose(slow(**measured))).cause == cause


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16": ("bf16", {"precision": "bf16"}),
    "tf32": ("tf32", {"precision": "tf32"}),
    "free": ("free algorithms", {"deterministic": False}),
    "captured": ("captured", {"cuda_graphs": "on"}),
}


def tried(**milliseconds: float) -> dict[str, Any]:
    """Steps of 10 ms that take so many with other settings."""
    tries = []
    for name, each in milliseconds.items():
        by, changes = CHANGES[name]
        turns = in_turns(0.01, each / 1000)
        tries.append(Tried.model_validate({"by": by, "changes": changes, "turns": turns}))
    return {"tried": tuple(tries)}


def gained(milliseconds: float, rest: float = 2) -> tuple[float, float]:
    """Return the gain if steps of 10 ms take so many, 7 % more or less, and the rest stays."""
    low, high = ((10 + rest) / (milliseconds * off + rest) for off in (1.07, 1 / 1.07))
    return low, high


WAITS, LOADS, COPIES = {"waiting": 0.002}, {"waiting": 0.09}, {"waiting": 0.01, "copying": 0.08}
BUSY_COPYING = {"waiting": 0.0001, "copying": 0.0102}
HARDLY_LESS = {"other_step_seconds": 0.0099}
LARGER = {"batch": 128, "parts": {"other_step_seconds": 0.016}}
"""16 samples in 10 ms and 128 in 16 ms: 54 µs a sample, 9.1 ms for none."""
LARGER_GAIN = 8 * 11 / (16 * 1.07 + 8), 8 * 11 / (16 / 1.07 + 1)
HIDES = by_two(0.013, (tried_input("resident", 99, input="resident"),))
MOSTLY_ELSE = {"seconds": 60.0}
"""A job whose steps take 2 s of a minute: it gains less than 5 % by them."""


@pytest.mark.parametrize(
    ("job", "cause", "change", "gain"),
    [
        (slow(parts=LOADS), "input-bound", "resident", None),
        # 100 ms in an epoch, and 10 ms where it was tried
        (slow(parts=LOADS, settings=LOADER, loader=resident_tried(0.1, 0.01)),
         "input-bound", "input: resident", (10 / 1.07, 10 * 1.07)),
        # 13 ms a batch alone and 10 ms a step, so an epoch waits only 2 ms a step
        (slow(STEPS * 0.012, parts=WAITS, **HIDES), "input-bound", "no gain", None),
        # 90 ms a batch by two workers, so 45 by four
        (slow(parts=LOADS, settings=TWO_WORKERS), "input-bound", "untried workers", None),
        (slow(parts=LOADS, settings=replace(LOADER, workers=4)), "input-bound", "workers", None),
        # how much faster copies from pinned memory are is unknown
        (slow(parts=COPIES, settings=LOADER), "copy-bound", "untried copies", None),
        (slow(parts=COPIES, settings=replace(LOADER, overlaps_copies=True)),
         "copy-bound", "copies", None),
        (slow(parts=BUSY_COPYING, settings=LOADER, loader=resident_tried(0.1, 0.098)),
         "copy-bound", "no gain", None),
        (slow(**LARGER), "launch-bound", "batch_size: 128", LARGER_GAIN),
        (slow(**LARGER, **MOSTLY_ELSE), "launch-bound", "no gain", None),
        (slow(parts=HARDLY_LESS), "launch-bound", "small job", None),
        (slow(parts=WAITS | HARDLY_LESS, **tried(captured=4)),
         "launch-bound", 'cuda_graphs: "on"', gained(4)),
        # which gains too little
        (slow(**LARGER, **tried(captured=10)), "launch-bound", "batch_size: 128", LARGER_GAIN),
        (slow(STEPS * 0.0105), "compute-bound", "used well", None),
        (slow(parts=WAITS, **tried(bf16=4)), "compute-bound", "precision: bf16", gained(4)),
        (slow(parts=WAITS, **tried(bf16=4), **MOSTLY_ELSE), "compute-bound", "used well", None),
        # 8 and 7 ms a step with its data
        (slow(parts=WAITS, **tried(tf32=6, bf16=5)),
         "compute-bound", "precision: tf32", gained(6)),
        # twice as fast
        (slow(parts=WAITS, **tried(tf32=6, bf16=2)),
         "compute-bound", "precision: bf16", gained(2)),
        (slow(parts=WAITS, **tried(tf32=8, free=4)),
         "compute-bound", "deterministic: false", gained(4)),
        (slow(threads=8), "CPU held back", "untried threads", None),
        (slow(parts=WAITS, threads=2), "CPU held back", "untried threads", None),
        (slow(threads=2, limit=2.5), "CPU held back", "container", None),
    ],
)  # fmt: skip
def test_each_cause_has_a_change_with_its_gain_or_none(
    job: Job, cause: str, change: str, gain: tuple[float, float] | None
) -> None:
    diagnosis, (known,) = only(diagnose(job)), record_of(compared(job)).causes["cpu"]
    assert (diagnosis.of, diagnosis.cause) == ("an epoch", cause)
    if not diagnosis.remedies:
        assert diagnosis.no_remedy == change
        assert causes.advice(known).startswith("No setting to suggest: ")
    else:
        line = causes.remedy_line(diagnosis.remedies[0])
        assert line.endswith(f".{change}")
        assert diagnosis.remedies[0].predicted == (gain and pytest.approx(gain))
        assert causes.advice(known).startswith(f"Try `{line}`: ")


def test_the_picture_has_the_parts_of_a_step_and_the_table_the_causes() -> None:
    cpu = slow(parts=LOADS, settings=LOADER, startup_seconds=24.0, seconds=44.0)
    steps = StepsTaken(kind="graph", at_once=8, why="tried")
    given = {"loader": resident_tried(0.1, 0.01), "trained": make_model("gpu", steps_taken=steps)}
    gpu = slow(device="gpu", parts=LOADS, settings=LOADER, **given)
    pair = compared(cpu, gpu)
    job = record_of(pair)
    start, _ = job.causes["cpu"]
    assert causes.reason(job.cpu, start) == "start-up is 55% of the job's 44 s"
    assert causes.advice(start).startswith("No setting to suggest: ")
    picture: Any = where_a_step_goes(job)
    assert re.findall(r"<text[^>]*>(?:<!--.*?-->)?\s*(CPU|GPU)", picture.inline) == ["CPU", "GPU"]
    alone: Any = where_a_step_goes(record_of(compared(cpu)))
    assert sum(map(int, re.findall(r"(\d+)%", alone.description))) == 100
    parts = (
        "loading 90% | 90%, copying 0% | 0%, forward 3% | 3%, backward 5% | 5%, optimizer 2% | 2%"
    )
    assert parts in picture.description
    assert picture.note == say("in graphs")
    row = comparison_rows([pair])[0]
    assert (row["cause"], row["epoch_cause"]) == ("start-up-bound", "input-bound")
    assert row["busy_share"] == pytest.approx(0.1)  # 0.01 of 0.1
    assert row["waiting_share"] == pytest.approx(0.9)
    text = text_of(verdict(pair))
    assert "On the GPU, the loader takes 90% of an epoch" in text
    assert "(input-bound). Try `experiments.small-mlp.input: resident`: makes the job" in text


@pytest.mark.parametrize("value", [512, "bf16", {"name": "loader", "pin_memory": True}])
def test_dvc_sets_the_value_of_a_suggestions_command(tmp_path: Path, value: object) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("experiments:\n  small-mlp:\n    input: resident\n")
    key = "experiments.small-mlp.input"
    remedy = Remedy("resident", {key: value}, Gain(1.2, 3.0))
    for command in causes.commands("small-mlp", remedy):
        *start, override = shlex.split(command)[:6]
        assert start == ["dvc", "exp", "run", "--temp", "-S"]
        apply_overrides(params, [override])
        assert yaml.safe_load(params.read_text())["experiments"]["small-mlp"]["input"] == value
    assert yaml.safe_load(causes.remedy_line(remedy)) == {key: value}
