"""What a quiet machine would have taken, and fewer threads, by planted figures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from conftest import MakeResult
from outputs import record_of, verdict
from result_files import (
    BUSY,
    STEP,
    changed_history,
    job_of,
    made_up_attribution,
    pair_of,
    text_of,
    trained,
    whole_epoch,
    with_record,
    with_timings,
)

from photofinish.answer.decision import decide
from photofinish.answer.diagnosis import diagnose
from photofinish.answer.fair_cpu import SHARED_CACHES, fewer_threads, least_epoch_seconds
from photofinish.answer.speedups import job_speedup
from photofinish.answer.times import job_time, time_by_load
from photofinish.config.compare import Comparing
from photofinish.reporting.causes import advice
from photofinish.results import TimedPart
from photofinish.results.measured import TrainedRecords
from photofinish.results.measurements import LoopSteps, SteadyState
from photofinish.results.pass_times import StepsTaken

QUIET = BUSY.model_copy(update={"others_cpu_seconds": 0.0})


@pytest.fixture
def on_cpu(make_result: MakeResult) -> Any:
    """Make five epochs of 38 steps in 100 ms, whose threads are two."""

    def make(
        step_seconds: float = 0.1,
        threads: int = 2,
        cpu_seconds: float = 1.0,
        slowest_seconds: float = 0.0,
        **changed: Any,
    ) -> TrainedRecords:
        result = trained(make_result, epoch_seconds=(3.8,) * 5, total_seconds=22.0)
        samples = (step_seconds,) * 9 + (slowest_seconds or step_seconds,) * 3
        steps = SteadyState(
            steps_per_sample=1, sample_seconds=samples, cpu_seconds=(cpu_seconds,) * 12
        )
        rising = changed_history(result, validation_accuracy=(0.1, 0.2, 0.3, 0.4, 0.5))
        result = replace(result, history=rising)  # so that all epochs are wanted
        host = result.times.host.model_copy(update={"threads": threads})
        known = {"host": host, "steps_per_epoch": 38, "steps_taken": EAGER, "steady_state": steps}
        return with_timings(result, **known, **changed)

    return make


EAGER = StepsTaken(kind="eager", at_once=1, why="")


def loop(quickest_seconds: float, cpu_seconds: float) -> LoopSteps:
    return LoopSteps(quickest_seconds=quickest_seconds, cpu_seconds=cpu_seconds)


ONE_THREAD = {1: SteadyState(steps_per_sample=1, sample_seconds=(0.02,) * 12)}


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
    on_cpu: Any, changed: dict[str, Any], step_seconds: float | None
) -> None:
    loop_steps = changed.pop("loop_steps", None)
    run = replace(job_of(on_cpu(**{"load": (BUSY,), **changed})), loop_steps=loop_steps)
    expected = None if step_seconds is None else pytest.approx(38 * step_seconds)
    assert least_epoch_seconds(run) == expected
    quiet = replace(run, busy=())
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
    on_cpu: Any, waiting_seconds: float, cpu_seconds: float, milliseconds: float
) -> None:
    part = whole_epoch(3.8, 38, 38 * waiting_seconds)
    part = replace(part, waiting_cpu_seconds=38 * cpu_seconds)
    busy = {"load": (BUSY,), "measured_load": (BUSY,), "threads": 1}
    run = on_cpu(**busy, cpu_seconds=0.016, parts=(part,))
    assert least_epoch_seconds(job_of(run)) == pytest.approx(38 * milliseconds / 1000)


def test_a_busy_run_has_a_time_and_where_it_is_known_an_idle_one_and_no_interval(
    on_cpu: Any,
) -> None:
    quiet = job_of(on_cpu())
    cpu = job_of(on_cpu(load=(BUSY,), cpu_seconds=0.016, startup_cpu_seconds=1.0, threads=1))
    passes_seconds = 22.0 - cpu.once_seconds
    idle_seconds = cpu.once_seconds + passes_seconds * 16 / SHARED_CACHES / 100
    found = time_by_load(cpu)
    assert (found.busy.seconds, found.idle_seconds) == (22.0, pytest.approx(idle_seconds))
    assert job_time(cpu).interval == (0.0, math.inf)
    assert job_speedup(cpu, quiet).interval is None
    unknown = time_by_load(job_of(on_cpu(load=(BUSY,))))
    assert unknown.idle_seconds is None
    assert unknown.idle.interval == (0.0, unknown.busy.interval[1])  # they only make it longer


def test_fewer_threads_that_are_faster_count_and_are_suggested(
    on_cpu: Any, make_result: MakeResult
) -> None:
    """Steps of 100 ms take 20 ms with one thread, so 19.5 of the 22 s take 3.9 s."""
    cpu = on_cpu(
        tried_threads=ONE_THREAD, attribution=made_up_attribution(0.0001, step_seconds=0.1)
    )
    gpu = make_result(device="gpu", epoch_seconds=(1.0,) * 5, total_seconds=8.0)
    pair = pair_of(cpu, gpu)
    assert "threads: 1" in verdict(pair).action
    assert decide(pair).answer == "Can't tell"
    assert decide(pair_of(with_timings(cpu, tried_threads={}), gpu)).answer == "Yes"
    (found,) = record_of(pair).causes["cpu"]
    assert advice(found).startswith("Try `devices.cpu.threads: 1`: ")
    assert "tried" in advice(found)
    # The training took twice as long as measured, and the steps' share of it is as measured.
    part = TimedPart(seconds=3.9, steps=38, epoch=0, holds="steps")
    slow_epochs = tuple(
        replace(epoch, training_seconds=2 * epoch.training_seconds) for epoch in cpu.times.epochs
    )
    slow = with_timings(
        cpu, parts=(part,) * 3, epoch_steps=38, epochs=slow_epochs, total_seconds=41.5
    )
    fewer = fewer_threads(job_of(slow))
    assert fewer
    assert fewer.job_seconds < 0.4 * job_of(slow).whole_seconds
    busy = with_timings(cpu, load=(BUSY,))
    assert "threads: 1" not in verdict(pair_of(busy, gpu)).action
    assert not diagnose(job_of(busy))[0].remedies


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
    on_cpu: Any,
    make_result: MakeResult,
    step: dict[str, float] | None,
    rate: float | None,
    is_slow: bool,
) -> None:
    attribution = None
    if step is not None:
        attribution = made_up_attribution(0.0001, step_seconds=0.1, **step)
    cpu = on_cpu(attribution=attribution, operations=STEP, fp32_flops_a_second=rate)
    cpu = with_record(cpu, precision="fp16")
    gpu = make_result(device="gpu", epoch_seconds=(0.1,) * 5, total_seconds=3.0)
    decision = decide(pair_of(cpu, gpu))
    assert decision.answer == ("Can't tell" if is_slow else "Yes")
    assert (decision.action.kind == "compare in fp32") is is_slow
    text = text_of(verdict(pair_of(cpu, gpu)))
    assert ("runs fp16 at 5.0% of its fp32" in text) is ("`precision: fp32`" in text) is is_slow
    low, _ = job_speedup(job_of(cpu), job_of(gpu)).interval or (0.0, 0.0)
    assert (low < 2) is is_slow


def test_a_rented_gpu_is_not_worth_it_by_slow_kernels(on_cpu: Any) -> None:
    attribution = made_up_attribution(0.0001, step_seconds=0.1)
    light = STEP.model_copy(update={"flops": 10**10, "saved_tensor_bytes": 10**7})
    cpu = on_cpu(attribution=attribution, operations=light)
    cpu = with_timings(cpu, epochs_left=400)
    settings = Comparing(accelerators=("T4",), worth_saving=1.0)
    assert decide(pair_of(cpu, settings=settings)).answer == "Probably yes"
    slow = pair_of(with_timings(cpu, fp32_flops_a_second=2e12), settings=settings)
    assert decide(slow).answer == "Can't tell"
    assert decide(slow).action.kind == "compare in fp32"


@pytest.mark.parametrize(
    ("seconds", "threads", "word", "here"),
    [
        (1323.0, 1, "Can't tell", "3 min here when idle, 22 min as busy as now"),
        (1323.0, 2, "Can't tell", "22 min here, as busy as now"),
        (13230.0, 1, "Probably yes", "29 min here when idle, 3.7 h as busy as now"),
        (400.0, 1, "No", "56 s here when idle, 6.7 min as busy as now"),
        (400.0, 2, "No", "6.7 min here, as busy as now"),  # idle it is only shorter
    ],
)
def test_on_a_busy_machine_an_answer_is_sure_if_an_idle_one_gives_the_same(
    on_cpu: Any, seconds: float, threads: int, word: str, here: str
) -> None:
    """A step takes one thread 16 ms without the other programs, and took it 100."""
    known = {"cpu_seconds": 0.016, "operations": STEP, "threads": threads}
    cpu = on_cpu(**known, load=(BUSY,), startup_cpu_seconds=1.0)
    each = (seconds - 3.0) / 5
    epochs = tuple(replace(epoch, training_seconds=each) for epoch in cpu.times.epochs)
    slow = {"epochs": epochs, "total_seconds": seconds, "steps_per_epoch": round(10 * each)}
    settings = Comparing(accelerators=("T4",))
    found = verdict(pair_of(with_timings(cpu, **slow), settings=settings))
    assert found.job.worth.answer == word
    before, after = found.answer.split(here)
    assert not before.endswith("~")
    assert not after.startswith(" (")
    assert ("when the machine is idle" in found.action) is (word == "Can't tell")
    quiet = with_timings(cpu, **slow, load=())
    assert " as busy as now" not in verdict(pair_of(quiet, settings=settings)).answer
