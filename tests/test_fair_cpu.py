"""What a quiet machine would have taken, and fewer threads, by planted figures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from conftest import MakeResult
from result_files import (
    BUSY,
    STEP,
    as_result,
    changed_history,
    made_up_attribution,
    pair_of,
    text_of,
    trained,
    with_record,
    with_timings,
)

from photofinish.answer.decision import decide
from photofinish.answer.diagnosis import diagnose
from photofinish.answer.fair_cpu import SHARED_CACHES, fewer_threads, least_seconds, slowdown
from photofinish.answer.result import Trained
from photofinish.answer.speedups import job_speedup
from photofinish.answer.times import job_time
from photofinish.config.compare import Comparing
from photofinish.reporting.causes import advice
from photofinish.reporting.sentences import verdict
from photofinish.results.measurements import (
    LoopSteps,
    SteadyState,
    StepParts,
    TriedThreads,
)
from photofinish.results.pass_times import StepsTaken
from photofinish.results.timed_parts import TimedPart

QUIET = BUSY.model_copy(update={"others_cpu_seconds": 0.0})


def tried(threads: int, step_seconds: float, cpu_seconds: float = 1.0) -> TriedThreads:
    steps = SteadyState(steps_per_sample=1, sample_seconds=(step_seconds,) * 10)
    return TriedThreads(threads=threads, steps=steps, cpu_seconds=(cpu_seconds,) * 10)


@pytest.fixture
def on_cpu(make_result: MakeResult) -> Any:
    """Make five epochs of 38 steps in 100 ms, whose threads are two."""

    def make(step_seconds: float = 0.1, threads: int = 2, **changed: Any) -> Trained:
        samples = (step_seconds,) * 9 + (10 * step_seconds,) * 3
        result = trained(
            make_result,
            epoch_seconds=(3.8,) * 5,
            step_seconds=samples,
            total_seconds=22.0,
        )
        rising = changed_history(result, validation_accuracy=(0.1, 0.2, 0.3, 0.4, 0.5))
        result = replace(result, history=rising)  # so that all epochs are wanted
        host = result.timings.host.model_copy(update={"threads": threads})
        known = {"host": host, "steps_per_epoch": 38, "steps_taken": EAGER}
        return with_timings(result, **known, **changed)

    return make


PARTS = {
    "parts": StepParts(
        waiting_seconds=(0.0,) * 5,
        copying_seconds=(0.0,) * 5,
        forward_seconds=(0.1,) * 5,
        backward_seconds=(0.0,) * 5,
        optimizer_seconds=(0.0,) * 5,
        rest_seconds=(0.0,) * 5,
    )
}
EAGER = StepsTaken(kind="eager", at_once=1, why="")


def loop(quickest_seconds: float, cpu_seconds: float) -> LoopSteps:
    return LoopSteps(quickest_seconds=quickest_seconds, cpu_seconds=cpu_seconds)


ONE_THREAD = (tried(1, 0.02, cpu_seconds=0.016), tried(2, 0.1))


@pytest.mark.parametrize(
    ("changed", "factor"),
    [
        ({"step_seconds": 0.001}, 100),
        # One thread works for 16 ms, so two take 8 ms at least.
        ({"tried_threads": ONE_THREAD}, 100 / 8 * SHARED_CACHES),
        ({"tried_threads": ONE_THREAD, "threads": 1}, 100 / 16 * SHARED_CACHES),
        ({"tried_threads": ONE_THREAD, "load": ()}, 1),
        ({"loop_steps": loop(0.001, 0.05)}, 100 / 1),
        ({"loop_steps": loop(0.05, 0.064)}, math.inf),
        ({"loop_steps": loop(0.05, 0.064), "threads": 1}, 100 / 64 * SHARED_CACHES),
        ({}, math.inf),
        ({"load": (BUSY, QUIET)}, 2),
        ({"threads": 1}, 2),
    ],
)
def test_a_busy_run_was_slowed_by_no_more_than_its_work_leaves_open(
    on_cpu: Any, changed: dict[str, Any], factor: float
) -> None:
    assert slowdown(on_cpu(**{"load": (BUSY, BUSY), **changed}).timings) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("loading", "factor"),
    [
        ({"waiting": 0.001}, 100 / (8 / SHARED_CACHES + 1)),
        ({"waiting": 0.05, "batch_alone_cpu_seconds": 0.012}, 100 / (8 + 12) * SHARED_CACHES),
        ({"waiting": 0.05}, 100 / (50 / 2)),  # workers load during the steps
    ],
)
def test_the_least_time_of_an_epoch_has_its_loading(
    on_cpu: Any, loading: dict[str, float], factor: float
) -> None:
    attribution = made_up_attribution(**{"batch_alone_cpu_seconds": None, **loading})
    if loading["waiting"] == 0.001:
        attribution = attribution.model_copy(update={"batch_alone_cpu_seconds": 0.5})
    busy = {"load": (BUSY,), "measured_load": (BUSY,)}
    run = on_cpu(**busy, tried_threads=ONE_THREAD, attribution=attribution)
    assert slowdown(run.timings) == pytest.approx(factor)


def test_the_interval_of_a_busy_run_reaches_down_to_the_quiet_one(on_cpu: Any) -> None:
    quiet = on_cpu().timings.model_copy(update={"total_seconds": 2.5 + 5 * (38 * 0.009 + 0.01)})
    cpu = on_cpu(load=(BUSY,), tried_threads=ONE_THREAD, startup_cpu_seconds=1.0)
    passes_seconds = 22.0 - cpu.timings.once_seconds
    least = 1.0 + passes_seconds * 8 / SHARED_CACHES / 100
    assert least_seconds(cpu.timings) == pytest.approx(least)
    assert 0.8 * least < job_time(cpu.timings).interval[0] < least
    found = job_speedup(cpu.timings, quiet).interval
    assert found
    assert found[0] < least / quiet.whole_seconds
    unknown = job_speedup(on_cpu(load=(BUSY,)).timings, quiet).interval
    assert unknown
    assert unknown[0] < found[0]  # nothing bounds how much its passes were slowed


def test_fewer_threads_that_are_faster_count_and_are_suggested(
    on_cpu: Any, make_result: MakeResult
) -> None:
    """Steps of 100 ms take 20 ms with one thread, so 19.5 of the 22 s take 3.9 s."""
    cpu = on_cpu(
        tried_threads=ONE_THREAD,
        attribution=made_up_attribution(0.0001, step_seconds=0.1, **PARTS),
    )
    gpu = make_result(device="gpu", epoch_seconds=(1.0,) * 5, total_seconds=8.0)
    pair = pair_of(cpu, gpu)
    assert "threads: 1" in verdict(pair).action
    assert decide(pair).answer == "Can't tell"
    assert decide(pair_of(with_timings(cpu, tried_threads=()), gpu)).answer == "Yes"
    (found,) = diagnose(as_result(cpu))
    assert advice(found).startswith("Try `devices.cpu.threads: 1`: ")
    assert "tried" in advice(found)
    # The training took twice as long as measured, and the steps' share of it is as measured.
    part = TimedPart(seconds=3.9, steps=38, epoch=0, holds="steps")
    slow_epochs = tuple(
        replace(epoch, training_seconds=2 * epoch.training_seconds) for epoch in cpu.timings.epochs
    )
    slow = with_timings(
        cpu, parts=(part,) * 3, epoch_steps=38, epochs=slow_epochs, total_seconds=41.5
    )
    fewer = fewer_threads(slow.timings)
    assert fewer
    assert fewer.job_seconds < 0.4 * slow.timings.whole_seconds
    busy = with_timings(cpu, load=(BUSY,))
    assert "threads: 1" not in verdict(pair_of(busy, gpu)).action
    assert not diagnose(as_result(busy))[0].remedies


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
        attribution = made_up_attribution(0.0001, step_seconds=0.1, **PARTS, **step)
    cpu = on_cpu(attribution=attribution, operations=STEP, fp32_flops_a_second=rate)
    cpu = with_record(cpu, precision="fp16")
    gpu = make_result(device="gpu", epoch_seconds=(0.1,) * 5, total_seconds=3.0)
    decision = decide(pair_of(cpu, gpu))
    assert decision.answer == ("Can't tell" if is_slow else "Yes")
    assert (decision.action.kind == "compare in fp32") is is_slow
    text = text_of(verdict(pair_of(cpu, gpu)))
    assert ("fp16 kernels are slow" in text) is ("`precision: fp32`" in text) is is_slow
    low, _ = job_speedup(cpu.timings, gpu.timings).interval or (0.0, 0.0)
    assert (low < 2) is is_slow


def test_a_rented_gpu_is_not_worth_it_by_slow_kernels(on_cpu: Any) -> None:
    attribution = made_up_attribution(0.0001, step_seconds=0.1, **PARTS)
    light = STEP.model_copy(update={"flops": 10**10, "saved_tensor_bytes": 10**7})
    cpu = on_cpu(attribution=attribution, operations=light)
    cpu = with_timings(cpu, epochs_left=400)
    settings = Comparing(accelerators=("T4",), worth_saving=1.0)
    assert decide(pair_of(cpu, settings=settings)).answer == "Probably yes"
    slow = pair_of(with_timings(cpu, fp32_flops_a_second=2e12), settings=settings)
    assert decide(slow).answer == "Can't tell"
    assert decide(slow).action.kind == "compare in fp32"


def test_a_busy_run_makes_no_rented_gpu_worth_it(on_cpu: Any) -> None:
    """A quiet machine takes 2 min, of which no GPU saves enough; this one took 22 min."""
    cpu = on_cpu(
        tried_threads=(tried(1, 0.2, cpu_seconds=0.016),),
        operations=STEP,
        load=(BUSY,),
        startup_cpu_seconds=1.0,
    )
    epochs = tuple(replace(epoch, training_seconds=264.0) for epoch in cpu.timings.epochs)
    slow = {"epochs": epochs, "total_seconds": 1323.0, "steps_per_epoch": 2640}
    busy = pair_of(with_timings(cpu, **slow), settings=Comparing(accelerators=("T4",)))
    quiet = pair_of(with_timings(cpu, **slow, load=()), settings=busy.settings)
    assert (decide(quiet).answer, decide(busy).answer) == ("Probably yes", "Can't tell")
