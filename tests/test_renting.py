"""Bounds of time and cost on rented accelerators, against examples calculated by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeExperiment, MakeResult
from result_files import made_up_attribution, pair_of, trained, with_record, with_timings

from photofinish.comparing.bounds import least_steps
from photofinish.comparing.estimates import CONTEXT_SECONDS, estimate_step
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.renting import price_of
from photofinish.config.compare import Comparing, Prices, accelerators
from photofinish.config.experiment import LoaderInput
from photofinish.report.report import write_report
from photofinish.report.rows import COLUMNS, renting_rows
from photofinish.report.sentences import least_cost, verdict
from photofinish.report.tables import renting_table
from photofinish.results.measurements import Operations, Product

GIB = 2**30
STEP = Operations(
    images=16,
    flops=10**12,
    kernels=100,
    products=(Product(count=3, least_flops=10**10, read_values=10**6, written_values=10**6),),
    parameter_bytes=GIB,
    gradient_bytes=GIB,
    optimizer_bytes=GIB,
    saved_activations=GIB // 2,
    saved_tensor_bytes=3 * GIB,
    batch_bytes=0,
    resident_bytes=GIB,
)
EPOCHS = 5
MakePair = Callable[..., Comparison]


@pytest.fixture
def make_pair(make_result: MakeResult, make_experiment: MakeExperiment) -> MakePair:
    """Make five epochs of 38 steps of 10 ms, and 2.25 s of start-up without its warm-up."""

    def make(
        operations: Operations | None = STEP, extra_seconds: float = 0.0, **settings: Any
    ) -> Comparison:
        made_up = trained(
            make_result,
            epoch_seconds=(0.38,) * EPOCHS,
            step_seconds=(0.01,) * 5,
            total_seconds=4.4 + extra_seconds,
            attribution=made_up_attribution(0.0),
        )
        record = made_up.record.model_copy(update={"experiment": make_experiment(epochs=EPOCHS)})
        why = None if operations else "several processes"
        timings = made_up.timings.model_copy(
            update={
                "operations": operations,
                "not_counted": why,
                "started_at_unix_seconds": 1_790_000_000.0,
            }
        )
        return pair_of(
            replace(made_up, record=record, timings=timings), settings=Comparing(**settings)
        )

    return make


def test_the_job_takes_at_least_its_start_up_and_its_epochs(make_pair: MakePair) -> None:
    pair = make_pair(accelerators=("T4",), prices=Prices(accelerator_hour={"T4": 3.6}))
    (offer,) = pair.renting.offers
    epoch = least_steps(STEP, accelerators()["T4"], "fp32", 600).seconds
    assert pair.ceiling.job
    assert offer.epoch_seconds == epoch
    assert offer.job_seconds == pytest.approx(pair.ceiling.job.staying_seconds + EPOCHS * epoch)
    assert offer.epoch_at_most == pytest.approx(0.38 / epoch)
    assert offer.job_at_most == pytest.approx(4.4 / offer.job_seconds)
    assert offer.cost == pytest.approx(offer.job_seconds / 1000)


def test_without_timed_steps_start_up_and_the_data_sheet_count(make_pair: MakePair) -> None:
    pair = make_pair(accelerators=("H100",))
    pair = pair_of(with_timings(pair.cpu, attribution=None), settings=pair.settings)
    (offer,) = pair.renting.offers
    startup_seconds = pair.ceiling.job.staying_seconds
    assert offer.job_seconds == pytest.approx(startup_seconds + EPOCHS * offer.epoch_seconds)


def test_an_epoch_takes_at_least_its_loading(make_pair: MakePair) -> None:
    resident = make_pair(accelerators=("H100",), target_accuracy=0.5).cpu
    experiment = resident.record.experiment.model_copy(
        update={"input": LoaderInput(name="loader", workers=0)}
    )
    loading = resident.timings.model_copy(
        update={
            "attribution": made_up_attribution(0.09),
            "epochs": tuple(
                replace(epoch, training_seconds=3.8) for epoch in resident.timings.epochs
            ),
            "total_seconds": 21.5,
        }
    )
    cpu = replace(
        resident,
        record=resident.record.model_copy(update={"experiment": experiment}),
        timings=loading,
    )
    pair = pair_of(cpu, settings=Comparing(accelerators=("H100",), target_accuracy=0.5))
    (offer,), ceiling = pair.renting.offers, pair.ceiling
    assert ceiling.epoch
    assert ceiling.job
    assert offer.epoch_seconds == ceiling.epoch.staying_seconds > 2
    assert offer.job_seconds == pytest.approx(ceiling.job.staying_seconds)
    assert offer.target_seconds == pytest.approx(
        offer.job_seconds - (EPOCHS - 1) * offer.epoch_seconds
    )


def test_the_target_takes_as_many_epochs_as_here(make_pair: MakePair) -> None:
    (reached,) = make_pair(accelerators=("T4",), target_accuracy=0.5).renting.offers
    (missed,) = make_pair(accelerators=("T4",), target_accuracy=0.9).renting.offers
    assert reached.target_seconds == pytest.approx(
        reached.job_seconds - (EPOCHS - 1) * reached.epoch_seconds
    )
    assert reached.target_cost == pytest.approx(reached.target_seconds / 3600 * 0.526)
    assert (missed.target_seconds, missed.target_cost) == (None, None)


@pytest.mark.parametrize(
    ("kept", "all_kept", "fits"), [(1, 1, "yes"), (1, 5, "yes"), (1, 6, "perhaps"), (16, 16, "no")]
)
def test_no_is_sure_and_yes_has_room_to_spare(
    make_pair: MakePair, kept: int, all_kept: int, fits: str
) -> None:
    step = STEP.model_copy(
        update={"saved_activations": kept * GIB // 4, "saved_tensor_bytes": all_kept * GIB}
    )
    (offer,) = make_pair(step, accelerators=("T4",)).renting.offers  # of 16 GiB
    assert offer.needed_bytes == (3 + kept) * GIB
    assert offer.fits == fits


def test_prices_in_the_settings_come_before_the_lowest_list_price() -> None:
    own, listed = (
        price_of("A100", Prices(accelerator_hour={"A100": 0.5})),
        price_of("A100", Prices()),
    )
    assert own
    assert (own.amount, own.where, own.as_of) == (0.5, "compare.prices", None)
    assert listed
    assert (listed.amount, listed.where) == (3.673385, "gcp a2-highgpu-1g, us-central1")
    assert price_of("H200", Prices()).where.endswith("8 of them together")  # type: ignore[union-attr]
    assert price_of("A100", Prices(currency="EUR")) is None  # list prices are in dollars
    assert price_of("M1", Prices()) is None


def test_a_price_is_old_half_a_year_before_the_training() -> None:
    price = price_of("T4", Prices())
    assert price
    assert not price.is_old(date(2026, 12, 1))
    assert price.is_old(date(2027, 2, 1))


def test_a_cost_is_a_lower_bound() -> None:
    assert least_cost(1.5, "USD") == "at least 1.50 USD"
    assert least_cost(1e-5, "USD") == "under 0.01 USD"


def test_the_report_has_bounds_and_the_dates_of_their_prices(
    make_pair: MakePair, tmp_path: Path
) -> None:
    pair = make_pair(target_accuracy=0.5)
    write_report([pair], tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert all(
        shown in page for shown in ("Which to rent", "the job at least", "0.53 USD, 2026-07-20")
    )
    header, *rows = (tmp_path / "renting.csv").read_text(encoding="utf-8").splitlines()
    assert header.split(",") == list(COLUMNS["renting.csv"])
    assert len(rows) == len(Comparing().accelerators)


def test_an_old_price_is_marked(make_pair: MakePair) -> None:
    pair = make_pair(accelerators=("T4",))
    later = with_timings(pair.cpu, started_at_unix_seconds=1_830_000_000.0)
    old = pair_of(later, settings=pair.settings)
    assert "2026-07-20, old" in renting_table(old)[0]["an hour"]
    assert renting_rows([old])[0]["price_is_old"] is True


def test_without_timed_batches_there_is_no_speed_up_of_a_job_that_loads(
    make_pair: MakePair,
) -> None:
    timed = make_pair(extra_seconds=20.0)
    untimed = with_timings(timed.cpu, attribution=None, not_attributed="several processes")
    settings = {"input": LoaderInput(name="loader")}
    loader = timed.cpu.record.experiment.model_copy(update=settings)
    loading = pair_of(with_record(untimed, experiment=loader))
    columns = ("the job at most", "an epoch at most")
    rows = [renting_table(pair)[0] for pair in (timed, pair_of(untimed), loading)]
    shown = [[row[column] != "n/a" for column in columns] for row in rows]
    assert shown == [[True, True], [True, True], [False, False]]
    text = verdict(loading).text
    assert "By data sheets the job takes at least " in text
    assert "Loading is not included (several processes)" in text


def test_the_verdict_says_why_there_are_no_bounds_by_data_sheets(make_pair: MakePair) -> None:
    pair, none = make_pair(None, 20.0), "There are no bounds by data sheets: "
    assert renting_table(pair) == []
    assert f"{none}several processes." in verdict(pair).text
    assert none not in verdict(make_pair(None, 20.0, accelerators=())).text


def test_an_estimate_of_the_job_has_its_start_up_its_error_and_its_cost(
    make_pair: MakePair,
) -> None:
    hourly = Prices(accelerator_hour={"T4": 3.6})
    pair = make_pair(accelerators=("T4", "M1"), prices=hourly)
    on_t4, on_m1 = pair.renting.offers
    step = estimate_step(STEP, accelerators()["T4"], pair.cpu.record.experiment)
    assert step
    assert on_t4.estimate
    assert on_t4.estimate.epoch_seconds == pytest.approx(600 / 16 * step.seconds)
    startup_seconds = pair.ceiling.job.measured_seconds + CONTEXT_SECONDS[1]
    assert on_t4.estimate.startup_seconds == startup_seconds
    passes_seconds = EPOCHS * on_t4.estimate.epoch_seconds * (1 + 0.1 / 0.38)  # with validation
    job_seconds = startup_seconds + passes_seconds
    assert on_t4.estimate.job_seconds == pytest.approx(job_seconds)
    slowest = job_seconds + CONTEXT_SECONDS[2] - CONTEXT_SECONDS[1]
    slowest += passes_seconds * (step.within - 1)
    assert on_t4.estimate.job_interval[1] == pytest.approx(slowest)
    assert on_t4.estimate.cost == pytest.approx(job_seconds / 1000)
    assert on_m1.estimate is None
    assert [row["the job, estimated"] != "n/a" for row in renting_table(pair)] == [True, False]
    in_euros = make_pair(accelerators=("T4",), prices=Prices(currency="EUR"))
    assert in_euros.renting.offers[0].estimate
    assert in_euros.renting.offers[0].estimate.cost is None


def test_a_measured_gpu_scales_the_estimates_of_the_others(
    make_pair: MakePair, make_result: MakeResult
) -> None:
    alone = make_pair(accelerators=("T4", "H100"))
    step = estimate_step(STEP, accelerators()["T4"], alone.cpu.record.experiment)
    assert step
    gpu = trained(
        make_result,
        device="gpu",
        device_name="Tesla T4",
        step_seconds=(2 * step.seconds,) * 5,
    )
    measured = pair_of(alone.cpu, gpu, settings=alone.settings)
    for estimated, scaled in zip(alone.renting.offers, measured.renting.offers, strict=True):
        assert estimated.estimate
        assert scaled.estimate
        expected = 2 * estimated.estimate.epoch_seconds
        assert scaled.estimate.epoch_seconds == pytest.approx(expected)
