"""The interval of a whole job that `photofinish ask` extrapolates from parts of it."""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import MakeResult
from outputs import record_of
from planted_jobs import HOST, make_job
from result_files import STEP, measured_of, trained
from watched_scripts import block, figures_of, process_of

from photofinish.answer.comparison import Comparison, compare
from photofinish.answer.estimates import LAUNCH_SECONDS
from photofinish.answer.renting import Estimate
from photofinish.answer.speedups import job_speedup
from photofinish.answer.times import job_time
from photofinish.config.compare import Comparing
from photofinish.reporting.answer_words import action_text, answer_text
from photofinish.reporting.ask_lines import bars, suggestion
from photofinish.reporting.causes import estimate_hints
from photofinish.results import TimedPart
from photofinish.results.job import Job, JobPair, TimedShare
from photofinish.results.measured_jobs import job_of_experiment, measured_job
from photofinish.scripts.run_script import Watched
from photofinish.scripts.script_lines import Loader
from photofinish.scripts.script_record import measured_script

STEPS = 1000


def asked(step_seconds: Sequence[float]) -> Job:
    """Make a job of 1,000 steps of which these were timed, after 9 s of start-up."""
    return make_job(
        [STEPS * each for each in step_seconds],
        startup_seconds=9.0,
        validation_seconds=0.0,
        epochs=1.0,
        timed=TimedShare(len(step_seconds), STEPS, "step"),
        untimed_epochs=1 - len(step_seconds) / STEPS,
        passes_seconds=STEPS * statistics.fmean(step_seconds),
    )


def _draws(count: int, seed: int) -> list[float]:
    """Return steps of about 1 s. One of ten takes up to three times as long."""
    draw = random.Random(seed)
    return [
        draw.lognormvariate(0, 0.2) * (draw.uniform(1, 3) if draw.random() < 0.1 else 1)
        for _ in range(count)
    ]


def compared(
    samples: int,
    workers: int = 0,
    waiting_seconds: float = 0.0,
    validation_share: float = 0.0,
    first_wait: float = 0.0,
    **counts: int,
) -> Comparison:
    """Compare a script of 50 epochs of 100 steps, which was watched for 40 steps, with a T4."""
    loads = {"loader": 0, "batches": 1, "waiting_seconds": waiting_seconds} if samples else {}
    process = process_of([], **loads)
    waits = [first_wait or waiting_seconds] + [waiting_seconds] * 39
    for place, seconds in enumerate(waits):
        process.add(block(20.0 * place, 20.0, **loads | {"waiting_seconds": seconds}))
    if samples:
        process.loaders[0] = Loader(100, workers)
    operations = STEP.model_copy(update={"images": samples or 1, "flops": 10**12} | counts)
    dumped = operations.model_dump(mode="json")
    process.counts = {"operations": dumped, "precision": "fp32", "parameter_count": 1}
    figures = figures_of(process)
    run = Watched("train", process, figures, -5.0, figures.last_step_at, 1.7e9, (), None)
    measured = measured_script("job", run, "cpu", HOST)
    validation = {"validation_step_seconds": 20 * validation_share}
    job = measured_job(measured.model_copy(update=validation), 50, 100)
    return compare(JobPair(job), Comparing(accelerators=("T4",)))


def on_t4(*arguments: Any, **named: Any) -> Estimate:
    """Return the estimate of such a script."""
    (option,) = compared(*arguments, **named).options
    return option.estimate


def test_steps_that_load_nothing_take_as_long_on_a_gpu_as_those_of_a_loader() -> None:
    assert on_t4(0).steps_seconds > 1
    assert on_t4(0).steps_seconds == pytest.approx(on_t4(32).steps_seconds)


def test_passes_longer_than_training_may_be_rollouts_or_a_long_validation() -> None:
    below, above = (on_t4(32, validation_share=share).job for share in (0.98, 1.03))
    assert above.seconds > 5 * below.seconds
    assert above.interval[0] < below.seconds


def test_a_script_without_workers_loads_after_it_has_launched_a_step() -> None:
    beside, after = (on_t4(32, workers, 10.0).epoch_seconds for workers in (2, 0))
    assert beside == pytest.approx(100 * 10.0)
    assert after > beside + 100 * 1e-3


def test_a_validation_that_was_timed_once_widens_the_range_of_all() -> None:
    widths = []
    for share in (0.0, 0.2, 1.0):
        low, high = job_time(compared(32, validation_share=share).cpu).interval
        widths.append(high / low)
    assert widths == sorted(set(widths))
    assert widths[2] == pytest.approx(
        math.exp(2 * math.hypot(math.log(1.2), math.log(1.3) / 2)), rel=0.01
    )


@pytest.mark.parametrize(
    ("workers", "first_wait", "hides"),
    [(4, 0.002, False), (4, 4.0, True), (0, 4.0, False)],
    ids=["faster than a GPU", "slower", "no workers"],
)
def test_what_workers_hide_here_may_be_the_limit_on_a_gpu(
    workers: int, first_wait: float, hides: bool
) -> None:
    """Steps of 20 s hide the loading by workers, of which only the first batch is waited for."""
    known = on_t4(32, workers)
    estimate = on_t4(32, workers, first_wait=first_wait)
    assert estimate.hides_loading is hides
    assert estimate.job.interval[0] == known.job.interval[0]
    assert estimate.job.seconds == known.job.seconds
    most = max(known.job.interval[1], 50 * 100 * first_wait / 4 if hides else 0.0)
    assert most <= estimate.job.interval[1] < 1.3 * most


@pytest.mark.parametrize(
    ("first_wait", "words"),
    [
        (4.0, r"rent a T4: .* here, ~[\d.]+-[\d.]+ min there including 5 min of setup"),
        (60.0, r"rent a T4: .* here, at least [\d.]+ min there including 5 min of setup"),
    ],
    ids=["within the printed range", "up to a wide one"],
)
def test_an_answer_says_that_a_gpu_takes_at_least_its_steps_where_workers_hide_loading(
    first_wait: float, words: str
) -> None:
    pair = compared(32, 4, first_wait=first_wait)
    job = record_of(pair)
    texts = [answer_text(job), action_text(job), *bars(job)]
    assert re.search(words, texts[0])
    assert "USD" not in " ".join(texts)  # that of the steps alone is too low
    said = [*suggestion(job, None)]
    assert said == [*estimate_hints(job)]
    assert said[0].startswith("The time on a T4 has a wide range because 4 workers here hid the")
    assert f"between none and {first_wait / 4:.0f} s a step" in said[0]
    shown = [line for line in bars(job) if "T4" in line]
    assert all(re.search(r"~[\d.]+-[\d.]+ min", line) for line in shown)
    in_turns = compared(32, 0)
    assert re.search(r"~[\d.]+ min \(", answer_text(record_of(in_turns)))


def test_only_loading_that_the_answers_own_gpu_would_wait_for_is_said_to_be_hidden() -> None:
    """An H100's step takes less than the 50 ms of loading, a T4's more."""
    cpu, said = compared(32, 4, first_wait=0.2).cpu, []
    for names in (("T4",), ("T4", "H100"), ("H100",)):
        job = record_of(compare(JobPair(cpu), Comparing(accelerators=names)))
        said.append([job.worth.gpu_name, *suggestion(job, None)])
    assert said[0] == said[1] == ["T4"]
    assert said[2][1].startswith("The time on an H100 has a wide range because 4 workers")


def test_a_fast_host_launches_fast_beside_its_own_loading_too() -> None:
    kernels = 10**4
    fast, middle, slow = (50 * 100 * (0.1 + kernels * launch) for launch in LAUNCH_SECONDS)
    job = on_t4(32, 0, 0.1, kernels=kernels).job
    assert job.seconds == pytest.approx(middle, rel=0.02)
    assert job.interval[0] < 1.1 * fast
    assert slow / 1.1 < job.interval[1] < 1.2 * slow


@pytest.mark.parametrize("seed", range(40))
def test_an_estimate_lies_in_its_interval_which_more_spread_never_narrows(seed: int) -> None:
    parts = _draws(1 + seed % 10, seed)
    middle = statistics.fmean(parts)
    wider = [middle + 1.5 * (part - middle) for part in parts]
    one, other = asked(parts), asked(wider)
    (low, high), (lower, higher) = job_time(one).interval, job_time(other).interval
    assert lower <= low < one.whole_seconds < high <= higher
    speedup = job_speedup(one, asked(_draws(4, seed)))
    low, high = speedup.interval or (0.0, math.inf)
    assert low < speedup.ratio < high


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_few_parts_hold_the_truth(count: int) -> None:
    """Independent steps of 1 s that vary by a fifth: 1,000 s and a start of 9 s."""
    draw, held = random.Random(count), 0
    for _ in range(200):
        low, high = job_time(asked([draw.gauss(1, 0.2) for _ in range(count)])).interval
        held += low <= STEPS + 9 <= high
    assert held >= 170


def test_one_part_gives_no_sure_answer() -> None:
    gpu = asked([0.1] * 5)
    assert job_speedup(asked([1.0] * 5), gpu).is_faster
    assert job_speedup(asked([1.0]), gpu).is_faster is None


@pytest.mark.parametrize("count", [1, 2, 4])
def test_parts_of_an_experiment_are_not_repeated(make_result: MakeResult, count: int) -> None:
    parts = [TimedPart(seconds, 1.0, 0, "steps") for seconds in _draws(count, 7)]
    made_up = trained(make_result)
    measured = measured_of(made_up)
    job = made_up.record.experiment.model_copy(update={"epochs": 20})

    def times(parts: list[TimedPart]) -> Job:
        changed = {"parts": tuple(parts), "epoch_steps": 50.0}
        return job_of_experiment(measured.model_copy(update=changed), job)

    assert len(times(parts).pass_seconds) == count
    (low, high), (more_low, less_high) = (
        job_time(each).interval for each in (times(parts), times(3 * parts))
    )
    assert low < times(parts).whole_seconds < high
    if count > 1:
        assert (low < more_low, less_high < high) == (True, True)
