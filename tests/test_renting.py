"""Which accelerator to rent: bounds of time and cost worked by hand, told as bounds and with their prices' dates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeExperiment, MakeResult
from result_files import BUSY, made_up_attribution, pair_of, trained, with_record, with_timings

from photofinish.comparing.bounds import least_steps
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.renting import at_least, pareto_front, price_of
from photofinish.comparing.verdict import verdict
from photofinish.config.compare import Comparing, Prices, accelerators
from photofinish.config.experiment import LoaderInput
from photofinish.report.report import write_report
from photofinish.report.rows import COLUMNS, renting_rows
from photofinish.report.tables import renting_table
from photofinish.results.measurements import Operations, Product

GIB = 2**30
STEP = Operations(
    images=16, flops=10**12, products=(Product(count=3, least_flops=10**10, read_values=10**6, written_values=10**6),),
    parameter_bytes=GIB, gradient_bytes=GIB, optimizer_bytes=GIB, saved_activations=GIB // 2, saved_tensor_bytes=3 * GIB,
    batch_bytes=0, resident_bytes=GIB,
)  # fmt: skip
EPOCHS = 5
MakePair = Callable[..., Comparison]


@pytest.fixture
def make_pair(make_result: MakeResult, make_experiment: MakeExperiment) -> MakePair:
    """Five epochs of 38 steps of 10 ms on the CPU; 2.25 s of start-up but for its warm-up."""

    def make(operations: Operations | None = STEP, **settings: Any) -> Comparison:
        made_up = trained(
            make_result, epoch_seconds=(0.38,) * EPOCHS, step_seconds=(0.01,) * 5, total_seconds=4.4,
            attribution=made_up_attribution(0.0),
        )  # fmt: skip
        record = made_up.record.model_copy(update={"experiment": make_experiment(epochs=EPOCHS)})
        why = None if operations else "several processes"
        timings = made_up.timings.model_copy(
            update={"operations": operations, "not_counted": why, "started_at_unix_seconds": 1_790_000_000.0}
        )
        return pair_of(replace(made_up, record=record, timings=timings), settings=Comparing(**settings))

    return make


def test_the_job_takes_its_start_up_and_its_epochs_at_the_least_and_costs_that_time(make_pair: MakePair) -> None:
    pair = make_pair(accelerators=("T4",), prices=Prices(accelerator_hour={"T4": 3.6}))
    (offer,) = pair.renting.offers
    epoch = least_steps(STEP, accelerators()["T4"], "fp32", 600).seconds
    assert pair.ceiling.job
    assert offer.epoch_seconds == epoch
    assert offer.job_seconds == pytest.approx(pair.ceiling.job.staying_seconds + EPOCHS * epoch)
    assert offer.epoch_at_most == pytest.approx(0.38 / epoch)
    assert offer.job_at_most == pytest.approx(4.4 / offer.job_seconds)
    assert offer.cost == pytest.approx(offer.job_seconds / 1000)


def test_without_a_bound_of_what_stays_the_data_sheet_alone_counts(make_pair: MakePair) -> None:
    pair = make_pair(accelerators=("H100",))
    busy = with_timings(pair.cpu, attribution=None)
    (offer,) = pair_of(busy, settings=pair.settings).renting.offers
    assert offer.job_seconds == pytest.approx(EPOCHS * offer.epoch_seconds)
    assert "so only what data sheets tell is known of one." in verdict(pair_of(busy, settings=pair.settings)).answer


def test_an_epoch_takes_no_less_than_the_loading_that_stays_on_the_cpu(make_pair: MakePair) -> None:
    resident = make_pair(accelerators=("H100",), target_accuracy=0.5).cpu
    experiment = resident.record.experiment.model_copy(update={"input": LoaderInput(name="loader", workers=0)})
    loading = resident.timings.model_copy(
        update={
            "attribution": made_up_attribution(0.09),
            "epochs": tuple(replace(epoch, training_seconds=3.8) for epoch in resident.timings.epochs),
            "total_seconds": 21.5,
        }
    )
    cpu = replace(resident, record=resident.record.model_copy(update={"experiment": experiment}), timings=loading)
    pair = pair_of(cpu, settings=Comparing(accelerators=("H100",), target_accuracy=0.5))
    (offer,), ceiling = pair.renting.offers, pair.ceiling
    assert ceiling.epoch
    assert ceiling.job
    assert offer.epoch_seconds == ceiling.epoch.staying_seconds > 2
    assert offer.job_seconds == pytest.approx(ceiling.job.staying_seconds)
    both = pair_of(cpu, settings=Comparing(accelerators=("T4", "H100"))).renting.sentence
    assert both
    assert "on T4 and H100, the quickest by their data sheets" in both
    assert offer.target_seconds == pytest.approx(offer.job_seconds - (EPOCHS - 1) * offer.epoch_seconds)


def test_the_accuracy_that_is_aimed_at_takes_the_epochs_that_it_took_here(make_pair: MakePair) -> None:
    (reached,) = make_pair(accelerators=("T4",), target_accuracy=0.5).renting.offers
    (missed,) = make_pair(accelerators=("T4",), target_accuracy=0.9).renting.offers
    assert reached.target_seconds == pytest.approx(reached.job_seconds - (EPOCHS - 1) * reached.epoch_seconds)
    assert reached.target_cost == pytest.approx(reached.target_seconds / 3600 * 0.526)
    assert (missed.target_seconds, missed.target_cost) == (None, None)


@pytest.mark.parametrize(
    ("kept", "all_kept", "fits"), [(1, 1, "yes"), (1, 5, "yes"), (1, 6, "perhaps"), (16, 16, "no")]
)
def test_no_is_sure_and_yes_has_room_to_spare(make_pair: MakePair, kept: int, all_kept: int, fits: str) -> None:
    step = STEP.model_copy(update={"saved_activations": kept * GIB // 4, "saved_tensor_bytes": all_kept * GIB})
    (offer,) = make_pair(step, accelerators=("T4",)).renting.offers  # of 16 GiB
    assert offer.needed_bytes == (3 + kept) * GIB
    assert offer.fits == fits


def test_the_users_own_price_goes_first_then_the_lowest_listed_of_a_whole_machine() -> None:
    own, listed = price_of("A100", Prices(accelerator_hour={"A100": 0.5})), price_of("A100", Prices())
    assert own
    assert (own.amount, own.where, own.as_of) == (0.5, "compare.prices", None)
    assert listed
    assert (listed.amount, listed.where) == (3.673385, "gcp a2-highgpu-1g, us-central1")
    assert price_of("H200", Prices()).where.endswith("8 of them together")  # type: ignore[union-attr]
    assert price_of("A100", Prices(currency="EUR")) is None  # list prices are in dollars
    assert price_of("M1", Prices()) is None


def test_a_price_is_old_half_a_year_before_the_training_that_it_is_held_against() -> None:
    price = price_of("T4", Prices())
    assert price
    assert not price.is_old(date(2026, 12, 1))
    assert price.is_old(date(2027, 2, 1))


def test_whose_prices_are_used_is_told_where_some_are_the_users_own(make_pair: MakePair) -> None:
    names, own = ("T4", "H100"), Prices(accelerator_hour={"T4": 0.01})
    assert make_pair(accelerators=names, prices=own).renting.prices == "your own prices and list prices of 2026-07-20"
    assert make_pair(accelerators=names[:1], prices=own).renting.prices == "your own prices"


def test_a_cost_is_told_as_a_bound() -> None:
    assert at_least(1.5, "USD") == "at least 1.50 USD"
    assert at_least(1e-5, "USD") == "next to nothing"


def test_the_front_is_what_no_other_is_both_quicker_and_cheaper_than() -> None:
    assert pareto_front([(3.0, 1.0), (1.0, 5.0), (2.0, 5.0), (2.5, 2.0), (4.0, 1.0)]) == [
        (1.0, 5.0),
        (2.5, 2.0),
        (3.0, 1.0),
    ]


def test_the_verdict_the_table_and_the_picture_tell_bounds_and_the_day_of_their_prices(
    make_pair: MakePair, tmp_path: Path
) -> None:
    pair = make_pair(target_accuracy=0.5)
    found = verdict(pair)
    assert "bounds, which no PyTorch program beats there, and no estimates" in found.text
    assert "list prices of 2026-07-20 to 2026-08-03" in found.text
    write_report([pair], tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert all(shown in page for shown in ("Which to rent", "the job at least", "0.526 USD, 2026-07-20"))
    header, *rows = (tmp_path / "renting.csv").read_text(encoding="utf-8").splitlines()
    assert header.split(",") == list(COLUMNS["renting.csv"])
    assert len(rows) == len(Comparing().accelerators)


def test_an_old_price_is_told_to_be_old(make_pair: MakePair) -> None:
    pair = make_pair(accelerators=("T4",))
    later = pair.cpu.timings.model_copy(update={"started_at_unix_seconds": 1_830_000_000.0})
    old = pair_of(replace(pair.cpu, timings=later), settings=pair.settings)
    assert "over half a year old when this was trained, and to be looked up: T4" in verdict(old).text
    assert "2026-07-20, old" in renting_table(old)[0]["an hour"]
    assert renting_table(old)[0]["accelerator"] == "T4"
    assert renting_rows([old])[0]["price_is_old"] is True


def test_where_the_machine_was_busy_no_job_is_told_to_be_so_many_times_as_fast(make_pair: MakePair) -> None:
    quiet = make_pair()
    busy = pair_of(with_timings(quiet.cpu, load=(BUSY,)))
    by_loader = quiet.cpu.record.experiment.model_copy(update={"input": LoaderInput(name="loader")})
    loading = pair_of(with_record(busy.cpu, experiment=by_loader))
    columns = ("the job at most", "an epoch at most")
    told = [[renting_table(pair)[0][column] != "n/a" for column in columns] for pair in (quiet, busy, loading)]
    assert told == [[True, True], [False, True], [False, False]]
    on_top = "The CPU's start-up and loading, not known (the machine was busy), come on top."
    assert [on_top in verdict(pair).text for pair in (quiet, busy)] == [False, True]


def test_where_a_step_was_not_counted_the_verdict_says_why_nothing_is_told_by_data_sheets(make_pair: MakePair) -> None:
    pair, nothing_told = make_pair(None), "Of the accelerators asked for, nothing is told by their data sheets: "
    assert renting_table(pair) == []
    assert f"{nothing_told}several processes." in verdict(pair).text
    of_before = with_timings(pair.cpu, not_counted=None)
    assert f"{nothing_told}a step's operations were not counted." in verdict(pair_of(of_before)).text
    assert "accelerators asked for" not in verdict(make_pair(None, accelerators=())).text


def test_a_step_as_long_as_published_ones_is_estimated_with_its_error_and_a_shorter_one_is_not(
    make_pair: MakePair,
) -> None:
    long = STEP.model_copy(update={"flops": 8 * 10**11, "saved_tensor_bytes": 32 * 10**8})
    pair = make_pair(long, accelerators=("T4", "M1"), prices=Prices(accelerator_hour={"T4": 3.6}))
    on_t4, on_m1 = pair.renting.offers
    step_seconds = 0.87 * 0.8 / 8.1 + 17.4 * 3.2 / 320
    assert on_t4.estimate
    assert on_t4.estimate.epoch_seconds == pytest.approx(600 / 16 * step_seconds)
    assert pair.ceiling.job
    job_seconds = pair.ceiling.job.measured_seconds + EPOCHS * on_t4.estimate.epoch_seconds
    assert on_t4.estimate.job_seconds == pytest.approx(job_seconds)
    assert on_t4.estimate.cost == pytest.approx(job_seconds / 1000)
    assert on_m1.estimate is None
    assert "an epoch, estimated (9 of 10 within a factor of 1.44)" in renting_table(pair)[0]
    (without_price,) = make_pair(long, accelerators=("T4",), prices=Prices(currency="EUR")).renting.offers
    assert without_price.estimate
    assert without_price.estimate.cost is None
    short = make_pair(STEP.model_copy(update={"flops": 10**9, "saved_tensor_bytes": 10**6}))
    assert not any(offer.estimate for offer in short.renting.offers)
    assert not any("estimated" in heading for heading in renting_table(short)[0])
