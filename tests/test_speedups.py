"""The three speed-ups: what each is made of, when it has an interval, and when it names a winner."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from conftest import MakeResult
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from result_files import BUSY, pair_of, trained

from photofinish.comparing.speedups import speedups, students_t
from photofinish.report.rows import comparison_rows
from photofinish.results.records import Timings

FIVE = (2.9, 3.0, 3.0, 3.0, 3.1)
UNITS = ("sample", "epoch")


def timings(make_result: MakeResult, **settings: object) -> Timings:
    return trained(make_result, **settings).timings


def test_each_is_made_of_its_own_times(make_result: MakeResult) -> None:
    cpu = timings(make_result, epoch_seconds=(4.0, 4.0), step_seconds=(0.03, 0.03), total_seconds=50.0)
    gpu = timings(make_result, epoch_seconds=(1.0, 1.0), step_seconds=(0.01, 0.01), total_seconds=40.0)
    step, epoch, whole = speedups(cpu, gpu).values()
    assert (step.kind, epoch.kind, whole.kind) == ("step", "epoch", "end_to_end")
    assert (step.ratio, epoch.ratio, whole.ratio) == (pytest.approx(3.0), 4.0, 1.25)
    assert (epoch.cpu_seconds, epoch.device_seconds) == (4.0, 1.0)


def test_the_epochs_of_all_repeats_count(make_result: MakeResult) -> None:
    once = timings(make_result, epoch_seconds=(3.0,))
    repeated = timings(make_result, epoch_seconds=(3.0,), repeats=((1.0,), (1.0,), (1.0,), (1.0,)))
    assert speedups(once, repeated)["epoch"].ratio == 3.0
    assert speedups(once, repeated)["epoch"].interval is None
    assert speedups(repeated, repeated)["epoch"].interval is not None


def test_a_repeat_end_to_end_is_its_own_epochs_with_what_happened_once(make_result: MakeResult) -> None:
    found = timings(make_result, epoch_seconds=(3.0, 3.0), repeats=((4.0, 4.0),), total_seconds=20.0)
    assert found.once_seconds == pytest.approx(20.0 - 6.2)  # a validation takes a tenth of a second
    assert found.end_to_end_seconds == [20.0, pytest.approx(22.0)]


def test_one_training_gives_no_interval_end_to_end(make_result: MakeResult) -> None:
    found = timings(make_result, epoch_seconds=FIVE, total_seconds=16.0)
    assert speedups(found, found)["end_to_end"].interval is None
    assert speedups(found, found)["end_to_end"].no_interval == "1 repeat, and it takes 5"


@pytest.mark.parametrize(("total_seconds", "has_interval"), [(16.0, True), (40.0, False)])
def test_start_up_that_is_most_of_the_time_has_no_interval_since_it_happened_once(
    make_result: MakeResult, total_seconds: float, has_interval: bool
) -> None:
    found = timings(make_result, epoch_seconds=FIVE, repeats=(FIVE,) * 4, total_seconds=total_seconds)
    whole = speedups(found, found)["end_to_end"]
    assert (whole.interval is not None) is has_interval
    assert (whole.no_interval is None) is has_interval


@pytest.mark.parametrize(
    ("gpu", "is_faster"), [((1.0,) * 5, True), ((9.0,) * 5, False), (FIVE, None), ((3.0,), None), ((1.0,) * 4, None)]
)
def test_a_winner_takes_an_interval_that_does_not_span_1(
    make_result: MakeResult, gpu: tuple[float, ...], is_faster: bool | None
) -> None:
    found = speedups(timings(make_result, epoch_seconds=FIVE), timings(make_result, epoch_seconds=gpu))
    assert found["epoch"].is_faster is is_faster


def test_on_a_busy_machine_only_a_wide_lead_is_a_win(make_result: MakeResult) -> None:
    cpu = timings(make_result, epoch_seconds=FIVE, load=(BUSY,))
    clear, near = (timings(make_result, epoch_seconds=(seconds,) * 5) for seconds in (1.0, 2.0))
    assert speedups(cpu, clear)["epoch"].is_faster is True
    assert speedups(cpu, near)["epoch"].is_faster is None
    assert speedups(timings(make_result, epoch_seconds=FIVE), near)["epoch"].is_faster is True


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30), st.integers(1, 10**7))
def test_throughput_times_seconds_is_the_number_of_samples_or_there_is_no_record(
    make_result: MakeResult, seconds: list[float], images: int
) -> None:
    found = timings(make_result, epoch_seconds=tuple(seconds))
    assert math.isclose(found.images_per_second * found.median_epoch_seconds, 600)
    fields = dict(found) | {"training_image_count": images}
    fields["images_per_second"] = images / found.median_epoch_seconds
    Timings.model_validate(fields)
    for wrong in (1.001, 1 / len(seconds), 30.0):
        if wrong != 1:
            with pytest.raises(ValidationError, match="images_per_second times the median epoch"):
                Timings.model_validate(fields | {"images_per_second": fields["images_per_second"] * wrong})


def test_the_table_holds_the_same(make_result: MakeResult) -> None:
    gpu = make_result(device="gpu", epoch_seconds=(0.5,) * 5, repeats=((0.25,) * 6,))
    table = pd.DataFrame(comparison_rows([pair_of(make_result(epoch_seconds=FIVE), gpu)]))
    assert (table["epoch_seconds"] * table["images_per_second"]).tolist() == pytest.approx([600, 600])
    assert table["epoch_speedup"].iloc[1] == 3.0 / 0.25
    assert table["epoch_speedup_low"].iloc[1] <= 12.0 <= table["epoch_speedup_high"].iloc[1]
    assert table["end_to_end_speedup_low"].isna().all()


def test_what_has_no_interval_says_of_how_many_values_it_is(make_result: MakeResult) -> None:
    one = timings(make_result, epoch_seconds=(3.0,), step_seconds=(0.01,))
    two = timings(make_result, epoch_seconds=(3.0, 3.0), step_seconds=(0.01,) * 4)
    assert [each.no_interval for each in list(speedups(one, one).values())[:2]] == [
        f"1 {unit}, and it takes 5" for unit in UNITS
    ]
    assert [each.no_interval for each in list(speedups(two, two).values())[:2]] == [
        "4 samples, and it takes 5",
        "2 epochs, and it takes 5",
    ]


def test_without_an_interval_since_start_up_happened_once_the_figures_are_told_all_the_same(
    make_result: MakeResult,
) -> None:
    cpu = timings(make_result, epoch_seconds=FIVE, repeats=(FIVE,) * 4, total_seconds=80.0)
    gpu = timings(make_result, epoch_seconds=FIVE, repeats=(FIVE,) * 4, total_seconds=20.0)
    whole = speedups(cpu, gpu)["end_to_end"]
    assert (whole.kind, whole.cpu_seconds, whole.device_seconds, whole.ratio) == ("end_to_end", 80.0, 20.0, 4.0)
    assert whole.no_interval == "most of it is start-up, which happened once"


def test_on_a_busy_machine_only_a_wide_lead_of_a_step_is_a_win(make_result: MakeResult) -> None:
    cpu, near = (timings(make_result, step_seconds=(seconds,) * 5, load=(BUSY,)) for seconds in (0.03, 0.02))
    assert speedups(cpu, near)["step"].is_faster is None
    assert speedups(cpu, timings(make_result, step_seconds=(0.01,) * 5))["step"].is_faster is True


def test_an_interval_of_few_values_is_as_wide_as_students() -> None:
    assert [students_t(freedom) for freedom in (1, 4, 30, 1000)] == [12.706, 2.776, 2.042, 2.042]
