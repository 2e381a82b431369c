"""What a quiet machine would have taken, and fewer threads, by planted jobs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from conftest import MakeResult
from outputs import record_of, verdict
from planted_jobs import (
    HOST,
    compared,
    history_of,
    lasting,
    make_job,
    make_model,
    steady,
    while_busy,
)
from result_files import (
    BUSY,
    STEP,
    made_up_attribution,
    measured_of,
    text_of,
    trained,
    whole_epoch,
    with_timings,
)

from photofinish.answer.decision import decide
from photofinish.answer.diagnosis import diagnose
from photofinish.answer.fair_cpu import SHARED_CACHES, fewer_threads, least_epoch_seconds
from photofinish.answer.speedups import job_speedup
from photofinish.answer.times import job_time, time_by_load
from photofinish.config.compare import Comparing
from photofinish.config.experiment import ExperimentPlan
from photofinish.reporting.causes import advice
from photofinish.reporting.extrapolated import job_line
from photofinish.results import TimedPart
from photofinish.results.job import Job
from photofinish.results.measurements import LoopSteps

SLOW_STEP = made_up_attribution(0.0001, step_seconds=0.1)
ONE_THREAD = {1: steady(*(0.02,) * 12)}


def on_cpu(
    step_seconds: float = 0.1,
    slowest_seconds: float = 0.1,
    threads: int = 2,
    cpu_seconds: float = 1.0,
    **changed: Any,
) -> Job:
    """Make five epochs of 38 steps in 100 ms, whose threads are two."""
    samples = (step_seconds,) * 9 + (slowest_seconds,) * 3
    rising = history_of(*(1.0,) * 5, accuracies=(0.1, 0.2, 0.3, 0.4, 0.5))  # all epochs are wanted
    given = {
        "seconds": 22.0,
        "host": HOST.model_copy(update={"threads": threads}),
        "steps_per_epoch": 38,
        "step_seconds": samples,
        "steady_state": steady(*samples, cpu_seconds=(cpu_seconds,) * 12),
        "trained": make_model(history=rising),
    }
    return make_job((3.9,) * 5, **given | changed)


def loop(quickest_seconds: float, cpu_seconds: float) -> LoopSteps:
    return LoopSteps(quickest_seconds=quickest_seconds, cpu_seconds=cpu_seconds)


@pytest.mark.parametrize(
    ("changed", "step_seconds"),
    [
        ({"step_seconds": 0.001, "slowest_seconds": 0.01}, 0.001),
        ({"cpu_seconds": 0.016}, None),  # two threads wait for each other
        ({"cpu_seconds": 0.016, "threads": 1}, 0.016 / SHARED_CACHES),
        ({"loop_steps": loop(0.001, 0.05)}, 0.001),
        ({"loop_steps": loop(0.05, 0.064)}, None),
        ({"loop_steps": loop(0.05, 0.064), "threads": 1}, 0.064 / SHARED_CACHES),
        ({}, None),
    ],
)
def test_an_idle_machines_step_is_known_by_short_steps_or_by_one_threads_cpu_time(
    changed: dict[str, Any], step_seconds: float | None
) -> None:
    expected = None if step_seconds is None else pytest.approx(38 * step_seconds)
    quiet = on_cpu(**changed)
    assert least_epoch_seconds(while_busy(quiet)) == expected
    assert time_by_load(quiet).busy == time_by_load(quiet).idle == job_time(quiet)


@pytest.mark.parametrize(
    ("waiting_seconds", "cpu_seconds", "milliseconds"),
    [
        (0.001, 0.5, 16 / SHARED_CACHES + 1),
        (0.05, 0.048, (16 + 48) / SHARED_CACHES),
        (0.05, 0.0, 16 / SHARED_CACHES + 50 / 2),  # workers load
    ],
)
def test_an_idle_machines_epoch_has_its_loading(
    waiting_seconds: float, cpu_seconds: float, milliseconds: float
) -> None:
    part = whole_epoch(3.8, 38, 38 * waiting_seconds)
    part = replace(part, waiting_cpu_seconds=38 * cpu_seconds)
    job = on_cpu(threads=1, cpu_seconds=0.016, parts=[part], load=(BUSY,), measured_load=(BUSY,))
    assert least_epoch_seconds(job) == pytest.approx(38 * milliseconds / 1000)


def test_a_busy_run_has_a_time_and_where_it_is_known_an_idle_one_and_no_interval() -> None:
    quiet = on_cpu()
    cpu = while_busy(on_cpu(cpu_seconds=0.016, startup_cpu_seconds=1.0, threads=1))
    idle_seconds = cpu.once_seconds + cpu.passes_seconds * 16 / SHARED_CACHES / 100
    times = time_by_load(cpu)
    assert (times.busy.seconds, times.idle_seconds) == (22.0, pytest.approx(idle_seconds))
    assert job_time(cpu).interval == (0.0, math.inf)
    assert job_speedup(cpu, quiet).interval is None
    unknown = time_by_load(while_busy(quiet))
    assert unknown.idle_seconds is None
    assert unknown.idle.interval == (0.0, unknown.busy.interval[1])  # they only make it longer


@pytest.mark.parametrize(
    ("load", "step_seconds", "ends"),
    [
        ((BUSY,), 0.001, "as busy as now; 2.6 s when idle"),
        ((BUSY,), 0.1, "as busy as now"),
        ((), 0.001, "estimated from one part"),
    ],
)
def test_the_stage_that_measures_says_how_long_a_job_takes_busy_and_idle(
    make_result: MakeResult, load: Any, step_seconds: float, ends: str
) -> None:
    steps = steady(*(step_seconds,) * 12)
    result = with_timings(trained(make_result), steady_state=steps, measured_load=load)
    plan = ExperimentPlan(**dict(result.record.experiment))
    line = job_line(measured_of(result), plan)
    assert line.startswith("small-mlp on cpu: about 12 s for 3 epochs (")
    assert line.endswith(f"({ends}), without MLflow's start-up")


def test_fewer_threads_that_are_faster_count_and_are_suggested() -> None:
    """Steps of 100 ms take 20 ms with one thread, so 19.5 of the 22 s take 3.9 s."""
    cpu = on_cpu(tried_threads=ONE_THREAD, attribution=SLOW_STEP)
    gpu = lasting(8.0, "gpu")
    pair = compared(cpu, gpu)
    assert "threads: 1" in verdict(pair).action
    assert decide(pair).answer == "Can't tell"
    assert decide(compared(replace(cpu, tried_threads={}), gpu)).answer == "Yes"
    (known,) = record_of(pair).causes["cpu"]
    assert advice(known).startswith("Try `devices.cpu.threads: 1`: ")
    assert "tried" in advice(known)
    busy = compared(while_busy(cpu), gpu)
    assert "threads: 1" not in verdict(busy).action
    assert not busy.causes["cpu"][0].remedies


def test_the_share_of_steps_is_as_measured_though_the_training_took_twice_as_long() -> None:
    parts = [TimedPart(seconds=3.9, steps=38, epoch=0, holds="steps")] * 3
    slow = make_job(
        (7.7,) * 5,
        parts=parts,
        epoch_steps=38,
        steps_per_epoch=38,
        step_seconds=(0.1,) * 12,
        tried_threads=ONE_THREAD,
    )
    fewer = fewer_threads(slow)
    assert fewer.job_seconds < 0.4 * slow.whole_seconds
    assert not diagnose(while_busy(slow))


@pytest.mark.parametrize(
    ("step", "rate", "is_slow"),
    [
        ({}, 2e14, True),  # steps compute at 1e13
        ({}, 9e13, False),
        ({}, None, False),
        ({"other_step_seconds": 0.09}, 2e14, False),  # most of a step is fixed
        (None, 2e14, True),  # a slow step
        (None, 9e13, False),
    ],
)
def test_a_cpu_without_fast_kernels_for_the_precision_makes_no_gpu_worth_it(
    step: dict[str, float] | None, rate: float | None, is_slow: bool
) -> None:
    attribution = None
    if step is not None:
        attribution = made_up_attribution(0.0001, step_seconds=0.1, **step)
    steps = {"operations": STEP, "fp32_flops_a_second": rate, "precision": "fp16"}
    cpu, gpu = on_cpu(attribution=attribution, **steps), lasting(3.5, "gpu")
    answer = verdict(compared(cpu, gpu))
    job, text = answer.job, text_of(answer)
    assert job.worth.answer == ("Can't tell" if is_slow else "Yes")
    assert (job.action.kind == "compare in fp32") is is_slow
    assert ("runs fp16 at 5.0% of its fp32" in text) is ("`precision: fp32`" in text) is is_slow
    low, _ = job_speedup(cpu, gpu).interval or (0.0, 0.0)
    assert (low < 2) is is_slow


def test_no_gpu_is_worth_it_by_slow_kernels_however_fast_it_is_and_none_is_rented() -> None:
    steps = {"operations": STEP, "fp32_flops_a_second": 2e14, "attribution": SLOW_STEP}
    here = compared(on_cpu(**steps, left=400), lasting(10.0, "gpu"))
    assert decide(here).answer == "Can't tell"
    light = STEP.model_copy(update={"flops": 10**10, "saved_tensor_bytes": 10**7})
    cpu = on_cpu(attribution=SLOW_STEP, operations=light, left=400)
    settings = Comparing(accelerators=("T4",), worth_saving=1.0)
    assert decide(compared(cpu, settings=settings)).answer == "Probably yes"
    slow = decide(compared(replace(cpu, fp32_flops_a_second=2e12), settings=settings))
    assert (slow.answer, slow.action.kind) == ("Can't tell", "compare in fp32")


def in_tenths(seconds: float, cpu_seconds: float, threads: int = 1) -> Job:
    """Make five epochs of steps of 100 ms, with this CPU time of a step."""
    each = (seconds - 2.5) / 5
    return make_job(
        (each,) * 5,
        host=HOST.model_copy(update={"threads": threads}),
        steps_per_epoch=round(10 * (each - 0.1)),
        step_seconds=(0.1,) * 12,
        steady_state=steady(*(0.1,) * 12, cpu_seconds=(cpu_seconds,) * 12),
        startup_cpu_seconds=1.0,
        operations=STEP,
    )


@pytest.mark.parametrize(
    ("seconds", "threads", "word", "here"),
    [
        (1323.0, 1, "Can't tell", "3 min here when idle, 22 min as busy as when measured"),
        (1323.0, 2, "Can't tell", "22 min here, as busy as when measured"),
        (13230.0, 1, "Probably yes", "29 min here when idle, 3.7 h as busy as when measured"),
        (400.0, 1, "No", "56 s here when idle, 6.7 min as busy as when measured"),
        (400.0, 2, "No", "6.7 min here, as busy as when measured"),  # idle it is only shorter
    ],
)
def test_on_a_busy_machine_an_answer_is_sure_if_an_idle_one_gives_the_same(
    seconds: float, threads: int, word: str, here: str
) -> None:
    """A step takes one thread 16 ms without the other programs, and took it 100."""
    quiet, settings = in_tenths(seconds, 0.016, threads), Comparing(accelerators=("T4",))
    answer = verdict(compared(while_busy(quiet), settings=settings))
    assert answer.job.worth.answer == word
    before, after = answer.answer.split(here)
    assert not before.endswith("~")
    assert not after.startswith(" (")
    assert ("when the machine is idle" in answer.action) is (word == "Can't tell")
    assert " as busy as when measured" not in verdict(compared(quiet, settings=settings)).answer


def test_beside_other_programs_a_speed_up_reaches_from_idle_to_busy_with_the_gpus_range() -> None:
    busy, gpu = while_busy(in_tenths(400.0, 0.06)), lasting(80.0, "gpu")
    assert "80 s on the GPU, 5x faster (2.1-6)." in verdict(compared(busy, gpu)).answer
    answer = verdict(compared(busy, while_busy(gpu))).answer  # the GPU's own range is unknown
    assert "80 s on the GPU, 5x faster (2.2-5.7)." in answer
    idle_is_unknown = while_busy(in_tenths(400.0, 0.06, threads=2))
    assert "80 s on the GPU, 5x faster." in verdict(compared(idle_is_unknown, gpu)).answer
    idle, settings = in_tenths(1323.0, 0.001), Comparing(accelerators=("RTX-3090",))  # not rented
    answer = verdict(compared(while_busy(idle), settings=settings)).answer
    assert "14 s here when idle" in answer
    assert re.search(r"~12 s \([\d.]+-18\) there, the range is over 12x wide", answer)
