"""Estimates of time and cost on rented accelerators, by hand and beside published speed-ups.

examples/README.md has the two tutorials whose speed-ups were published.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from outputs import record_of, verdict
from planted_jobs import HOST, LOADER, SCRIPT, SETTINGS, compared, make_job
from result_files import STEP as SMALL_STEP
from result_files import made_up_attribution, text_of, whole_epoch

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import decide
from photofinish.answer.estimates import CONTEXT_SECONDS, OTHER_CPU, estimate_step
from photofinish.answer.prices import price_of
from photofinish.commands.ask import job_answer, print_answers
from photofinish.config.compare import Comparing, Prices, accelerators
from photofinish.reporting.answers import answer_of
from photofinish.reporting.ask_lines import bars
from photofinish.results import TimedPart
from photofinish.results.job import Job
from photofinish.results.measurements import LoaderTimes, Operations, TriedWorkers
from photofinish.scripts.script_record import WholeJob

GIB = 2**30
STEP = SMALL_STEP.model_copy(
    update={
        "saved_tensor_bytes": 3 * GIB,
        "peak_allocated_bytes": 5 * GIB,
        "peak_reserved_bytes": 6 * GIB,
        "fixed_bytes": 4 * GIB,
    }
)
EPOCHS, STEPS = 5, 600 / 16
T4 = Comparing(accelerators=("T4",))
MEASURED = Comparing(accelerators=("T4", "H100"))
UNKNOWN = {"peak_allocated_bytes": None, "peak_reserved_bytes": None, "fixed_bytes": None}


def on_cpu(operations: Operations | None = STEP, **changed: Any) -> Job:
    """Make five epochs of 38 steps of 10 ms, and 2.5 s beside them."""
    given = {
        "step_seconds": (0.01,) * 5,
        "attribution": made_up_attribution(0.0),
        "operations": operations,
        "not_counted": None if operations else "several processes",
    }
    return make_job((0.48,) * EPOCHS, **given | changed)


def estimated_step(accelerator: str = "T4") -> Any:
    return estimate_step(STEP, accelerators()[accelerator], "fp32", is_captured=True)


def estimate_of(pair: Comparison) -> Any:
    (offer,) = pair.options
    return offer.estimate


def with_loader(operations: Operations, cores: int, workers: int, loads: Any = None) -> Job:
    """Return five epochs of 3.8 s of which loading takes 3.4 s, on so many cores."""
    host = HOST.model_copy(update={"cpu": replace(HOST.cpu, usable_cores=cores)})
    settings = replace(LOADER, workers=workers)
    times = {"loader": loads or LoaderTimes(), "loading_seconds": 3.4}
    step = {"operations": operations, "step_seconds": (0.01,) * 5}
    job = make_job((3.9,) * EPOCHS, settings=settings, host=host, waiting_seconds=3.4 / STEPS)
    return replace(job, attribution=made_up_attribution(0.0), **step, **times)


@pytest.mark.parametrize(
    ("cores", "workers", "accelerator", "factor"),
    [
        (2, 0, "A100", 1.0),  # the process that trains loads, on one core
        (2, 1, "A100", 1.0),
        (2, 4, "A100", 2 / 4),  # of the rented machine's six cores, the workers use four
        (2, 12, "A100", 2 / 6),
        (16, 12, "A100", 12 / 6),
        (16, 12, "RTX-3090", 1.0),  # no list price, so its machine is not known
    ],
)
def test_a_rented_machine_loads_by_its_own_cores(
    cores: int, workers: int, accelerator: str, factor: float
) -> None:
    settings = Comparing(accelerators=(accelerator,))
    pair = compared(with_loader(STEP, cores, workers), settings=settings)
    step, loading_seconds = estimated_step(accelerator), factor * 3.4
    if workers == 0:
        loading_seconds += STEPS * step.launches[1]
    epoch_seconds = max(STEPS * step.seconds, loading_seconds)
    assert estimate_of(pair).epoch_seconds == pytest.approx(epoch_seconds)


@pytest.mark.parametrize(
    ("cores", "accelerator", "batch_seconds", "factor"),
    [
        (2, "A100", {1: 2.0, 2: 1.0, 4: 1.0}, 2 / 4),
        (4, "L4", {1: 16.0, 2: 10.0, 4: 1.0}, 10.0),  # its two cores take ten times as long
    ],
)
def test_workers_that_share_cores_here_have_their_own_on_a_rented_machine(
    cores: int, accelerator: str, batch_seconds: dict[int, float], factor: float
) -> None:
    tried = tuple(
        TriedWorkers(workers=workers, batch_seconds=seconds, start_seconds=0.0)
        for workers, seconds in batch_seconds.items()
    )
    small = STEP.model_copy(update={"flops": 10**6, "saved_tensor_bytes": 10**3})
    job = with_loader(small, cores, 4, LoaderTimes(whole_seconds=16.0, tried_workers=tried))
    pair = compared(job, settings=Comparing(accelerators=(accelerator,)))
    assert estimate_of(pair).epoch_seconds == pytest.approx(factor * 3.4)


def test_the_gpu_of_the_answer_is_in_the_table_below_it() -> None:
    prices = dict.fromkeys(accelerators(), 1000.0) | {"T4": 0.01}
    names, listed = tuple(accelerators()), Prices(accelerator_hour=prices)
    settings = Comparing(accelerators=names, prices=listed)
    pair = compared(on_cpu(seconds=3600.0), settings=settings)
    assert decide(pair).worth.gpu_name == "T4"
    gpus = [line.split()[0] for line in bars(record_of(pair))[1:-1]]
    assert gpus[0] == "T4"
    assert len(gpus) == len(set(gpus)) == 4  # the answer's, and the fastest


def test_memory_that_fits_is_told_in_the_unit_of_the_gpus() -> None:
    pairs = [compared(on_cpu(step, seconds=3600.0), settings=T4) for step in (SMALL_STEP, STEP)]
    small, large = (bars(record_of(pair))[1] for pair in pairs)
    assert small.endswith("fits (0.6 of 16 GiB)")
    assert large.endswith("fits (6.6 of 16 GiB)")
    step = STEP.model_copy(update=UNKNOWN)
    unknown = compared(on_cpu(step, seconds=3600.0), settings=T4)
    assert "fit" not in bars(record_of(unknown))[1]


def test_why_there_are_no_estimates_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in (5.0, 3600.0):  # too short to rent, and open
        pair = compared(on_cpu(None, seconds=seconds), settings=T4)
        print_answers([job_answer(WholeJob("job", 5, 38.0), pair, decide(pair), {})])
        assert capsys.readouterr().out.lower().count("several processes") == 1


@pytest.mark.parametrize(
    ("allocated", "reserved", "fits"),
    [(1, 1, "yes"), (9, 12, "yes"), (12, 14, "perhaps"), (16, 17, "no")],
)
def test_no_is_for_what_is_allocated_and_yes_has_room_to_spare(
    allocated: int, reserved: int, fits: str
) -> None:
    peaks = {"peak_allocated_bytes": allocated * GIB, "peak_reserved_bytes": reserved * GIB}
    pair = compared(on_cpu(STEP.model_copy(update=peaks), seconds=3600.0), settings=T4)
    (offer,) = pair.options  # of 16 GiB
    assert offer.fits == fits
    assert (decide(pair).worth.gpu_name == "T4") == (fits != "no")


def test_prices_in_the_settings_come_before_the_lowest_list_price() -> None:
    own: Any = price_of("A100", Prices(accelerator_hour={"A100": 0.5}))
    listed: Any = price_of("A100", Prices())
    assert (own.amount, own.where, own.as_of) == (0.5, "compare.prices", None)
    assert (listed.amount, listed.where) == (3.673385, "gcp a2-highgpu-1g, us-central1")
    of_eight: Any = price_of("H200", Prices())
    assert of_eight.where.endswith("8 of them together")
    assert (of_eight.gpus, listed.gpus, own.gpus) == (8, 1, 1)
    assert price_of("A100", Prices(currency="EUR")) is None  # list prices are in dollars
    assert price_of("M1", Prices()) is None


def test_an_estimate_of_the_job_has_its_start_up_its_error_and_its_cost() -> None:
    hourly = Prices(accelerator_hour={"T4": 3.6})
    pair = compared(on_cpu(), settings=Comparing(accelerators=("T4", "M1"), prices=hourly))
    on_t4, on_m1 = (option.estimate for option in pair.options)
    step, once_seconds = estimated_step(), pair.cpu.once_seconds
    assert on_t4
    assert on_m1 is None
    assert on_t4.epoch_seconds == pytest.approx(STEPS * step.seconds)
    assert on_t4.once_seconds == once_seconds + CONTEXT_SECONDS[1]
    passes_seconds = EPOCHS * on_t4.epoch_seconds * (1 + 0.1 / 0.38)  # with validation
    job_seconds = on_t4.once_seconds + passes_seconds
    assert on_t4.job.seconds == pytest.approx(job_seconds)
    slow_steps = job_seconds + passes_seconds * (step.spread[2] / step.seconds - 1)
    slow_cpu = slow_steps + (OTHER_CPU - 1) * once_seconds
    slow = slow_cpu + CONTEXT_SECONDS[2] - CONTEXT_SECONDS[1]
    factors = slow_steps / job_seconds, slow_cpu / slow_steps, slow / slow_cpu
    off = math.hypot(*map(math.log, factors))  # their causes are independent
    assert on_t4.job.interval[1] == pytest.approx(job_seconds * math.exp(off))
    first, *_ = answer_of(verdict(pair)).candidates
    assert first.cost == pytest.approx(job_seconds / 1000)
    euros = T4.model_copy(update={"prices": Prices(currency="EUR")})
    (without_price,) = answer_of(verdict(compared(on_cpu(), settings=euros))).candidates
    assert without_price.job_seconds
    assert without_price.cost is None


def test_a_scripts_own_code_and_what_it_does_between_epochs_stay_on_an_estimated_gpu() -> None:
    tiny = on_cpu(SMALL_STEP.model_copy(update={"flops": 10**6}))
    job = replace(tiny, steps_per_epoch=38, settings=None)
    by_parts, h100 = job.by_parts, Comparing(accelerators=("H100",))

    def estimate(forward_seconds: float, between_seconds: float = 0.0) -> Any:
        changed = {
            "script": SCRIPT.model_copy(update={"step_parts": {"forward": forward_seconds}}),
            "by_parts": replace(by_parts, between_seconds=between_seconds),
        }
        return estimate_of(compared(replace(job, **changed), settings=h100))

    plain, saving = estimate(0.01), estimate(0.01, between_seconds=2.0)
    own = estimate(0.001)  # the other nine tenths are its code
    assert plain.epoch_seconds < 0.9 * 0.38 < own.epoch_seconds < 0.9 * 0.38 + plain.epoch_seconds
    assert own.job.interval[0] < plain.job.seconds  # it may be a GPU's work
    assert saving.job.seconds == pytest.approx(plain.job.seconds + EPOCHS * 2.0)


@pytest.mark.parametrize(
    ("counts", "advice"),
    [
        ({"flops": 10**6}, "At batch size 16, launching kernels takes most of a step"),
        ({"flops": 10**13}, None),
        ({"flops": 10**6, "images": 1}, "Launching kernels takes most of a step"),  # no loader
    ],
)
def test_where_launching_decides_a_larger_batch_is_estimated(
    counts: dict[str, int], advice: str | None
) -> None:
    small = {"saved_tensor_bytes": 10**3}
    eager = replace(SETTINGS, is_captured=False)
    job = on_cpu(STEP.model_copy(update=small | counts), settings=eager, left=95, seconds=60.0)
    pair = compared(job, settings=T4)
    text = text_of(verdict(pair))
    assert ("aunching kernels takes most of a step" in text) is (advice is not None)
    assert advice is None or advice in text
    assert ("batch size" in text) is (advice is not None and "images" not in counts)
    if advice:
        larger = estimate_of(pair).larger_batch
        assert larger.larger_step_seconds == larger.step_seconds == 0.002  # a step on the CPU


@pytest.mark.parametrize(
    ("waiting_share", "factor"),
    [(0.0, math.sqrt(2)), (0.5, math.sqrt(2)), (None, 1.0)],
    ids=["no waits", "half are waits", "unknown waits"],
)
def test_a_measured_gpu_scales_the_estimates_of_the_others_by_the_root_of_its_own_error(
    waiting_share: float | None, factor: float
) -> None:
    own_seconds = 2 * estimated_step().seconds
    seconds = own_seconds / (1 - (waiting_share or 0.0))
    waited = None if waiting_share is None else waiting_share * seconds
    parts = (TimedPart(seconds, 1.0, 0, "steps", waiting_seconds=waited),) * 5
    steps = {"parts": parts, "epoch_steps": 5.0, "step_seconds": (own_seconds,) * 5}
    gpu = make_job(device="gpu", device_name="Tesla T4", **steps)
    unless_waited = gpu if waiting_share == 0.0 else replace(gpu, steady_state=None)
    alone, measured = (compared(on_cpu(), each, MEASURED) for each in (None, unless_waited))
    for one, other in zip(alone.options, measured.options, strict=True):
        expected = factor * one.estimate.epoch_seconds
        assert other.estimate.epoch_seconds == pytest.approx(expected)


IMAGES = 50_000
LINEAR = SMALL_STEP.model_copy(
    update={"images": 128, "flops": 4_014_080, "kernels": 12, "saved_tensor_bytes": 407_556}
)
LENET = SMALL_STEP.model_copy(
    update={"images": 1000, "flops": 1_221_840_000, "kernels": 69, "saved_tensor_bytes": 34_240_004}
)
HERE = Comparing(accelerators=("T4",), rental_minutes=0.0, worth_saving=0.0)
"""A T4 that needs no rent is worth it if it is faster."""


def published(
    operations: Operations,
    epochs: int,
    step_seconds: float,
    batch_seconds: float,
    settings: Comparing = T4,
    *,
    is_captured: bool = True,
) -> tuple[Comparison, Any]:
    """Compare a training through a loader without workers, on 50,000 images, with a T4."""
    size, steps = operations.images, -(-IMAGES // operations.images)
    epoch_seconds = steps * (step_seconds + batch_seconds)
    job = make_job(
        (epoch_seconds + 0.1,) * epochs,
        samples=IMAGES,
        epoch_steps=steps,
        parts=(whole_epoch(epoch_seconds, steps, steps * batch_seconds),) * 3,
        step_seconds=(step_seconds,) * 5,
        settings=replace(LOADER, batch_size=size, is_captured=is_captured),
        attribution=made_up_attribution(batch_seconds, step_seconds=step_seconds),
        operations=operations,
    )
    pair = compared(job, settings=settings)
    return pair, estimate_of(pair)


def test_a_linear_network_that_waits_for_its_loader_is_no_faster_on_a_gpu() -> None:
    """Published: an epoch takes 14.4 s on the CPU and 14.5 s on a T4."""
    step_seconds = 0.071 / 391  # with the images in memory, as measured
    pair, estimate = published(LINEAR, 5, step_seconds, 14.4 / 391 - step_seconds)
    decision = decide(pair)
    assert (decision.answer, decision.worth.reason) == ("No", "loading")
    assert estimate.epoch_seconds == pytest.approx(14.5, rel=0.02)
    low_seconds, high_seconds = estimate.job.interval
    assert low_seconds < estimate.once_seconds + 5 * (14.5 + 0.1) < high_seconds


@pytest.mark.parametrize("is_captured", [True, False])
def test_a_lenet_at_batch_1000_is_two_to_three_times_as_fast_on_a_gpu(*, is_captured: bool) -> None:
    """Published without the CPU, the GPU or the time of loading, on which it depends most.

    So the published factors lie between two estimates: with photofinish's loader, and with the
    tutorial's own, which takes 18 times as long for an image on the same cores.
    """
    times = (0.0665, 1000 * 10.6e-6, HERE), (0.078, 1000 * 190e-6, T4)
    (ours, quick), (own, slow) = (
        published(LENET, 8, *each, is_captured=is_captured) for each in times
    )
    assert decide(ours).answer == "Probably yes"
    decision = decide(own)
    assert (decision.answer, decision.worth.reason) == ("No", "loading")  # and no faster CPU
    assert ours.cpu.total_seconds / quick.job.interval[0] > 3
    assert own.cpu.total_seconds / slow.job.interval[1] < 2
