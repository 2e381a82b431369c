"""Causes, shares and predictions, against examples calculated by hand."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import MakeExperiment, MakeResult
from dvc.utils.hydra import apply_overrides
from outputs import comparison_rows, record_of, verdict
from result_files import (
    BUSY,
    in_turns,
    job_of,
    made_up_attribution,
    pair_of,
    text_of,
    trained,
    with_record,
    with_timings,
)

from photofinish.answer.diagnosis import Diagnosis, diagnose
from photofinish.answer.record import known_causes
from photofinish.answer.remedies import Gain, Remedy, step_speedup
from photofinish.answer.step_costs import fixed_share
from photofinish.config.experiment import Experiment
from photofinish.reporting import causes
from photofinish.reporting.drawing import Picture
from photofinish.reporting.job_pictures import where_a_step_goes
from photofinish.reporting.say import say
from photofinish.results.measured import TrainedRecords
from photofinish.results.measurements import InTurns, LoaderTimes, SteadyState, Tried, TriedWorkers
from photofinish.results.pass_times import StepsTaken

LOADER = {"name": "loader", "workers": 0}
Change = Callable[..., TrainedRecords]


@pytest.fixture
def slow(make_result: MakeResult, make_experiment: MakeExperiment) -> Change:
    """608 samples in 38 batches of 16. A step takes 10 ms, and its batch as long as it says."""

    def make(
        epoch_seconds: float | None = None,
        threads: int = 4,
        limit: float | None = None,
        settings: dict[str, Any] | None = None,
        timings: dict[str, Any] | None = None,
        device: Any = "cpu",
        step_seconds: float = 0.01,
        steps: int = 3,
        **parts: Any,
    ) -> TrainedRecords:
        attribution = made_up_attribution(**{"waiting": 0.001, **parts})
        in_turn_seconds = sum(part[0] for part in attribution.parts.model_dump().values())
        seconds = epoch_seconds or 38 * in_turn_seconds
        result = trained(
            make_result,
            device=device,
            epoch_seconds=(seconds,) * 5,
            total_seconds=0.5 + 5 * (seconds + 0.1),
            step_seconds=(step_seconds,) * steps,
            attribution=attribution,
        )
        experiment: Experiment = make_experiment(epochs=5, **(settings or {}))
        host = result.times.host
        assert host.cpu
        assert host.software
        cpu = replace(host.cpu, usable_cores=4, cgroup_cores_limit=limit)
        software = replace(host.software, variables={})
        host = host.model_copy(update={"cpu": cpu, "threads": threads, "software": software})
        waits = 38 * attribution.parts.median_seconds["waiting_seconds"]
        (part,) = result.steps.parts
        update = {"steps": 38, "waiting_seconds": waits if device == "cpu" else None}
        return with_timings(
            with_record(result, experiment=experiment),
            **{
                "host": host,
                "training_image_count": 608,
                "parts": (replace(part, **update),),
                "epoch_steps": 38,
                "startup_seconds": 0.5,
                **(timings or {}),
            },
        )

    return make


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


def only(diagnoses: tuple[Diagnosis, ...]) -> Diagnosis:
    (found,) = diagnoses
    return found


def test_a_gain_is_the_ratio_of_steps_in_turns_however_slow_the_machine_became() -> None:
    speeds = (1.0, 1.4, 1.1, 1.9, 1.2)
    base, changed = (
        SteadyState(steps_per_sample=1, sample_seconds=tuple(seconds * each for each in speeds))
        for seconds in (0.02, 0.01)
    )
    turns = InTurns(base=base, changed=changed)
    assert step_speedup(turns) == pytest.approx((2 / 1.07, 2 * 1.07))
    noisy = changed.model_copy(update={"sample_seconds": (0.01, 0.04, 0.01, 0.04, 0.01)})
    low, high = step_speedup(turns.model_copy(update={"changed": noisy}))
    assert low < 1 < high


def drifting(seed: int, gain: float, *, in_turns: bool) -> InTurns:
    """Draw six samples of each kind, on a machine that drifts by a tenth from one to the next."""
    draw = np.random.default_rng(seed)
    speeds = np.exp(np.cumsum(draw.normal(0, 0.1, 12)) + draw.normal(0, 0.03, 12))
    first, second = [0, 3, 4, 7, 8, 11], [1, 2, 5, 6, 9, 10]
    if not in_turns:
        first, second = [*range(6)], [*range(6, 12)]
    base, changed = (
        SteadyState(steps_per_sample=1, sample_seconds=tuple(speeds[rows] * seconds))
        for rows, seconds in ((first, 0.01), (second, 0.01 / gain))
    )
    return InTurns(base=base, changed=changed)


def test_a_job_against_itself_is_hardly_ever_faster_in_turns_and_a_gain_is_predicted() -> None:
    def share(is_so: Callable[[float, float], bool], gain: float, *, in_turns: bool) -> float:
        tries = (drifting(seed, gain, in_turns=in_turns) for seed in range(400))
        return sum(is_so(*step_speedup(turns)) for turns in tries) / 400

    assert share(lambda low, _: low > 1, 1.0, in_turns=True) <= 1 / 40
    assert share(lambda low, _: low > 1, 1.0, in_turns=False) > 0.1  # one after the other
    assert share(lambda low, high: 1 < low < 1.5 < high, 1.5, in_turns=True) >= 0.9


def test_a_change_that_was_tried_in_one_turn_gains_nothing_for_sure(slow: Change) -> None:
    once = SteadyState(steps_per_sample=1, sample_seconds=(0.01,))
    faster = once.model_copy(update={"sample_seconds": (0.002,)})
    turns = InTurns(base=once, changed=faster)
    bf16 = Tried(by="bf16", changes={"precision": "bf16"}, turns=turns)
    result = slow(waiting=0.002, tried=(bf16,))
    assert only(diagnose(job_of(result))).no_remedy == "used well"


def test_a_gain_ends_where_loading_that_steps_hide_now_would_hold_the_epoch_back(
    slow: Change,
) -> None:
    """A step takes 10 ms, 5 in bf16, and two workers bring a batch each 9 ms."""
    loads = {"waiting": 0.0, "epoch_seconds": 38 * 0.01, "timings": {"loader": by_two(0.009)}}
    result = slow(settings={"input": LOADER | {"workers": 2}}, **loads, **tried(bf16=5))
    (remedy,) = only(diagnose(job_of(result))).remedies
    assert remedy.by == "bf16"
    assert remedy.predicted == pytest.approx((10 / 9, 10 / 9))


def test_a_jobs_gain_reaches_to_runs_whose_start_up_takes_another_time(
    make_result: MakeResult,
) -> None:
    times = job_of(trained(make_result))
    once, passes = times.once_seconds, times.passes_seconds
    apart = 0.3 * times.startup_seconds
    assert apart > 0
    low, high = Gain(2.0, 2.0).of_job(times)
    assert low <= (once + apart + passes) / (once + apart + passes / 2)
    assert (once - apart / 1.3 + passes) / (once - apart / 1.3 + passes / 2) <= high


def by_two(
    batch_seconds: float, loader: LoaderTimes | None = None, start_seconds: float = 0.0
) -> LoaderTimes:
    """Return the times of a loader whose two workers bring a batch so often."""
    workers = TriedWorkers(workers=2, batch_seconds=batch_seconds, start_seconds=start_seconds)
    loader = loader or LoaderTimes()
    return loader.model_copy(update={"tried_workers": (workers,)})


def tried_input(by: str, milliseconds: float, **changes: Any) -> Tried:
    turns = in_turns(0.1, milliseconds / 1000)
    return Tried.model_validate({"by": by, "changes": changes, "turns": turns})


def test_of_the_inputs_that_were_tried_the_two_best_are_suggested(slow: Change) -> None:
    given, blur = LOADER | {"workers": 2}, {"name": "GaussianBlur", "kernel_size": 9}
    tried = (
        tried_input("workers", 60, input=given | {"persistent_workers": True}),
        tried_input("batch transform", 40, input=given | {"transform": None}, batch_transform=blur),
        tried_input("decode once", 10, decode="once"),
    )
    loader = by_two(0.04, LoaderTimes(tried_inputs=tried), start_seconds=0.38)
    settings = {"input": given | {"transform": blur}}
    result = slow(waiting=0.09, settings=settings)
    found = only(diagnose(job_of(with_timings(result, loader=loader))))
    first, second = found.remedies
    assert causes.remedy_line(first) == "datasets.small.decode: once"
    assert causes.remedy_line(second) == (
        "experiments.small-mlp.input: {name: loader, workers: 2, transform: null}, "
        "experiments.small-mlp.batch_transform: {name: GaussianBlur, kernel_size: 9}"
    )
    # An epoch's step takes 100 ms. Two workers start in 380 ms for 38 steps.
    gains = [(110 / (10 * off + 10), 110 / (40 * off + 10)) for off in (1.07, 1 / 1.07)]
    (low, second_low), (high, second_high) = gains
    assert first.predicted == pytest.approx((low, high))
    assert second.predicted == pytest.approx((second_low, second_high))
    slower = LoaderTimes(tried_inputs=(tried_input("workers", 95, input=given),))
    assert only(diagnose(job_of(with_timings(result, loader=slower)))).no_remedy == "no gain"


LARGER = {"other_batch_images": 128, "other_step_seconds": 0.016}
"""16 samples in 10 ms and 128 in 16 ms: 54 µs a sample, 9.1 ms for none."""
HARDLY_GROWS = {"device": "gpu", "other_step_seconds": 0.009}


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        ({"timings": {"measured_load": (BUSY,)}}, "the machine was busy"),
        ({"timings": {"attribution": None, "not_attributed": "two processes"}}, "two processes"),
    ],
)
def test_figures_that_show_no_cause_name_none(
    slow: Change, measured: dict[str, Any], why: str
) -> None:
    run = job_of(slow(**measured))
    found = only(diagnose(run))
    assert (found.of, found.cause, found.remedies) == ("an epoch", "not known", ())
    assert why in causes.cause(run, found)


def test_a_busy_machine_still_shows_the_parts_and_a_likely_cause(slow: Change) -> None:
    result = slow(timings={"measured_load": (BUSY,)})
    pair = pair_of(with_timings(result, total_seconds=30.0, startup_seconds=1.0))
    assert isinstance(where_a_step_goes(record_of(pair)), Picture)
    assert comparison_rows([pair])[0]["forward_share"] == pytest.approx(3 / 11)
    assert only(diagnose(job_of(result))).likely == "compute-bound"
    assert causes.short_cause(record_of(pair), "cpu") == "probably 91% of each step is compute"


@pytest.mark.parametrize(
    ("measured", "cause"),
    [
        # An accelerator that synchronizes after each part may take longer than in an epoch.
        ({"epoch_seconds": 0.2, "device": "gpu"}, "compute-bound"),
        # 16 samples take as long as 2, unless the device hides that launching takes so long.
        ({**HARDLY_GROWS, "launch_seconds": ()}, "launch-bound"),
        ({**HARDLY_GROWS, "launch_seconds": (0.0095,)}, "launch-bound"),
        ({**HARDLY_GROWS, "launch_seconds": (0.004,)}, "compute-bound"),
    ],
)
def test_what_differs_by_design_is_not_the_cause(
    slow: Change, measured: dict[str, Any], cause: str
) -> None:
    assert only(diagnose(job_of(slow(**measured)))).cause == cause


COPIED: dict[str, Any] = {"waiting": 0.01, "copying": 0.08}
PINNED = {"name": "loader", "workers": 0, "pin_memory": True}
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16": ("bf16", {"precision": "bf16"}),
    "tf32": ("tf32", {"precision": "tf32"}),
    "free": ("free algorithms", {"deterministic": False}),
    "captured": ("captured", {"cuda_graphs": "on"}),
}


def tried(**milliseconds: float) -> dict[str, Any]:
    """Steps of 10 ms that take so many with other settings."""
    return {
        "tried": tuple(
            Tried.model_validate({
                "by": CHANGES[name][0], "changes": CHANGES[name][1],
                "turns": in_turns(0.01, each / 1000),
            })
            for name, each in milliseconds.items()
        )
    }  # fmt: skip


def resident(milliseconds: float) -> dict[str, Any]:
    tried = (tried_input("resident", milliseconds, input="resident"),)
    return {"loader": LoaderTimes(tried_inputs=tried)}


def gained(milliseconds: float, rest: float = 2) -> tuple[float, float]:
    """Return the gain if steps of 10 ms take so many, 7 % more or less, and the rest stays."""
    low, high = ((10 + rest) / (milliseconds * off + rest) for off in (1.07, 1 / 1.07))
    return low, high


MOSTLY_ELSE = {"timings": {"total_seconds": 60.0}}
"""A job whose steps take 2 s of a minute: it gains less than 5 % by them."""
LARGER_GAIN = 8 * 11 / (16 * 1.07 + 8), 8 * 11 / (16 / 1.07 + 1)
NO_GAIN = {
    "waiting": 0.0001,
    "copying": 0.0102,
    "settings": {"input": LOADER},
    "timings": resident(98),
}


@pytest.mark.parametrize(
    ("measured", "cause", "change", "gain"),
    [
        ({"waiting": 0.09}, "input-bound", "resident", None),
        (  # 100 ms in an epoch, and 10 ms where it was tried
            {"waiting": 0.09, "settings": {"input": LOADER}, "timings": resident(10)},
            "input-bound", "input: resident", (10 / 1.07, 10 * 1.07),
        ),
        (  # 13 ms a batch alone and 10 ms a step, so an epoch waits only 2 ms a step
            {"epoch_seconds": 38 * 0.012, "waiting": 0.002,
             "settings": {"input": LOADER | {"workers": 2}},
             "timings": {"loader": by_two(0.013, resident(99)["loader"])}},
            "input-bound", "no gain", None,
        ),
        (  # 90 ms a batch by two workers, so 45 by four
            {"waiting": 0.09, "settings": {"input": LOADER | {"workers": 2}}},
            "input-bound", "untried workers", None,
        ),
        (
            {"waiting": 0.09, "settings": {"input": LOADER | {"workers": 4}}},
            "input-bound", "workers", None,
        ),
        (  # how much faster copies from pinned memory are is unknown
            {**COPIED, "settings": {"input": LOADER}},
            "copy-bound", "untried copies", None,
        ),
        (
            {**COPIED, "settings": {"input": {**PINNED, "non_blocking": True}}},
            "copy-bound", "copies", None,
        ),
        (LARGER, "launch-bound", "batch_size: 128", LARGER_GAIN),
        ({"other_step_seconds": 0.0099}, "launch-bound", "small job", None),
        (
            {"other_step_seconds": 0.0099, "waiting": 0.002, **tried(captured=4)},
            "launch-bound", 'cuda_graphs: "on"', gained(4),
        ),
        (  # which gains too little
            {**LARGER, **tried(captured=10)},
            "launch-bound", "batch_size: 128", LARGER_GAIN,
        ),
        ({"epoch_seconds": 38 * 0.0105}, "compute-bound", "used well", None),
        ({"waiting": 0.002, **tried(bf16=4)}, "compute-bound", "precision: bf16", gained(4)),
        ({"waiting": 0.002, **tried(tf32=4)}, "compute-bound", "precision: tf32", gained(4)),
        (  # 8 and 7 ms a step with its data
            {"waiting": 0.002, **tried(tf32=6, bf16=5)},
            "compute-bound", "precision: tf32", gained(6),
        ),
        (  # twice as fast
            {"waiting": 0.002, **tried(tf32=6, bf16=2)},
            "compute-bound", "precision: bf16", gained(2),
        ),
        (
            {"waiting": 0.002, **tried(tf32=8, free=4)},
            "compute-bound", "deterministic: false", gained(4),
        ),
        ({**LARGER, **MOSTLY_ELSE}, "launch-bound", "no gain", None),
        (
            {"waiting": 0.002, **tried(bf16=4), **MOSTLY_ELSE},
            "compute-bound", "used well", None,
        ),
        ({"threads": 8}, "CPU held back", "untried threads", None),
        ({"waiting": 0.002, "threads": 2}, "CPU held back", "untried threads", None),
        ({"threads": 2, "limit": 2.5}, "CPU held back", "container", None),
        (NO_GAIN, "copy-bound", "no gain", None),
    ],
)  # fmt: skip
def test_each_cause_has_a_change_with_its_gain_or_none(
    slow: Change,
    measured: dict[str, Any],
    cause: str,
    change: str,
    gain: tuple[float, float] | None,
) -> None:
    run = job_of(slow(**measured))
    found = only(diagnose(run))
    (known,) = known_causes(run, [found])
    assert (found.of, found.cause) == ("an epoch", cause)
    if not found.remedies:
        assert found.no_remedy == change
        assert causes.advice(known).startswith("No setting to suggest: ")
    else:
        line = causes.remedy_line(found.remedies[0])
        assert line.endswith(f".{change}")
        assert found.remedies[0].predicted == (gain and pytest.approx(gain))
        assert causes.advice(known).startswith(f"Try `{line}`: ")


def test_the_picture_has_the_parts_of_a_step_and_the_table_the_causes(
    slow: Change, make_result: MakeResult
) -> None:
    job = {"startup_seconds": 24.0, "total_seconds": 44.0}
    cpu = slow(waiting=0.09, settings={"input": LOADER}, timings=job)
    run = job_of(cpu)
    found, _ = diagnose(run)
    assert causes.cause(run, found) == "start-up is 55% of the job's 44 s"
    assert causes.advice(found).startswith("No setting to suggest: ")
    pair = pair_of(cpu, make_result(device="gpu"))
    picture: Any = where_a_step_goes(record_of(pair))
    parts = "loading 90%, copying 0%, forward 3%, backward 5%, optimizer 2% and rest 0%"
    assert parts in picture.description
    assert picture.note == ""
    row = comparison_rows([pair])[0]
    assert (row["cause"], row["epoch_cause"]) == ("start-up-bound", "input-bound")
    assert row["busy_share"] == pytest.approx(0.1)  # 0.01 of 0.1
    assert row["waiting_share"] == pytest.approx(0.9)
    captured = {"steps_taken": StepsTaken(kind="graph", at_once=8, why="tried")}
    captured |= resident(10)
    gpu = slow(device="gpu", waiting=0.09, settings={"input": LOADER}, timings=captured)
    pair = pair_of(cpu, gpu)
    picture = where_a_step_goes(record_of(pair))
    assert picture.note == say("in graphs")
    assert "loading 90% | 90%" in picture.description
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
