"""The three speed-ups: their times, their intervals and their winners."""

from __future__ import annotations

import math

import pytest
from conftest import MakeResult
from result_files import BUSY, trained

from photofinish.answer.speedups import speedups
from photofinish.answer.uncertainty import MACHINE, ONCE
from photofinish.results.job_times import Timings

FIVE = (2.9, 3.0, 3.0, 3.0, 3.1)


def timings(make_result: MakeResult, **settings: object) -> Timings:
    return trained(make_result, **settings).timings


def test_each_speed_up_is_of_its_own_times(make_result: MakeResult) -> None:
    cpu = timings(
        make_result, epoch_seconds=(4.0, 4.0), step_seconds=(0.03, 0.03), total_seconds=50.0
    )
    gpu = timings(
        make_result, epoch_seconds=(1.0, 1.0), step_seconds=(0.01, 0.01), total_seconds=40.0
    )
    step, epoch, whole = speedups(cpu, gpu).values()
    assert (step.kind, epoch.kind, whole.kind) == ("step", "epoch", "end_to_end")
    assert (step.ratio, epoch.ratio, whole.ratio) == (pytest.approx(3.0), 4.0, 1.25)
    assert (epoch.cpu_seconds, epoch.device_seconds) == (4.0, 1.0)


def test_the_epochs_of_all_repeats_count(make_result: MakeResult) -> None:
    once = timings(make_result, epoch_seconds=(3.0,))
    repeated = timings(make_result, epoch_seconds=(3.0,), repeats=((1.0,),) * 4)
    assert speedups(once, repeated)["epoch"].ratio == pytest.approx(3.0 / 1.4)
    assert speedups(once, repeated)["epoch"].interval is None
    assert speedups(repeated, repeated)["epoch"].interval is not None


def test_the_jobs_time_is_the_mean_over_its_repeats(make_result: MakeResult) -> None:
    epochs = {"epoch_seconds": (3.0, 3.0), "repeats": ((4.0, 4.0),)}
    found = timings(make_result, **epochs, total_seconds=20.0)
    assert found.once_seconds == pytest.approx(20.0 - 6.2)  # a validation takes 0.1 s
    assert found.whole_seconds == pytest.approx(21.0)


@pytest.mark.parametrize("repeats", [0, 4])
def test_a_job_has_an_interval_by_what_differs_between_starts_and_processes(
    make_result: MakeResult, repeats: int
) -> None:
    """Repeats in one process have the speed of the machine in that process."""
    epochs = {"epoch_seconds": (3.0,) * 5, "repeats": ((3.0,) * 5,) * repeats}
    found = timings(make_result, **epochs, total_seconds=18.0)  # 2.5 s of it once
    interval = speedups(found, found)["end_to_end"].interval
    of_startup = ONCE * 2.5 / 18.0
    slowest = math.exp(math.hypot(MACHINE, of_startup, of_startup))
    assert interval == (pytest.approx(1 / slowest), pytest.approx(slowest))


@pytest.mark.parametrize(
    ("gpu", "is_faster"),
    [((1.0,) * 5, True), ((9.0,) * 5, False), (FIVE, None), ((1.0,), None), ((1.0,) * 2, True)],
)
def test_a_winner_needs_an_interval_that_does_not_span_1(
    make_result: MakeResult, gpu: tuple[float, ...], is_faster: bool | None
) -> None:
    cpu = timings(make_result, epoch_seconds=FIVE)
    found = speedups(cpu, timings(make_result, epoch_seconds=gpu))["epoch"]
    assert found.is_faster is is_faster


def test_a_busy_run_has_speedups_without_an_interval(make_result: MakeResult) -> None:
    quiet, busy = (timings(make_result, epoch_seconds=FIVE, load=each) for each in ((), (BUSY,)))
    for cpu, gpu in ((busy, quiet), (quiet, busy)):
        found = speedups(cpu, gpu).values()
        assert [each.interval for each in found] == [None, None, None]
        assert [each.ratio for each in found] == [pytest.approx(1.0)] * 3
