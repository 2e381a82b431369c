"""Estimates of time and cost on rented accelerators, against examples calculated by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import MakeExperiment, MakeResult
from outputs import record_of, verdict
from result_files import STEP as SMALL_STEP
from result_files import made_up_attribution, pair_of, text_of, trained, with_record, with_timings

from photofinish.answer.comparison import Comparison, compare
from photofinish.answer.decision import decide
from photofinish.answer.estimates import CONTEXT_SECONDS, estimate_step
from photofinish.answer.prices import price_of
from photofinish.commands.ask import job_answer, print_answers
from photofinish.config.compare import Comparing, Prices, accelerators
from photofinish.config.experiment import LoaderInput
from photofinish.reporting.answers import answer_of
from photofinish.reporting.ask_lines import bars
from photofinish.results import TimedPart
from photofinish.results.job import JobPair, JobScript
from photofinish.results.measured import TrainedRecords
from photofinish.results.measurements import LoaderTimes, Operations, TriedWorkers
from photofinish.scripts.script_record import WholeJob

GIB = 2**30
SCRIPT = JobScript(
    workers=None,
    step_loading_seconds=None,
    step_parts={},
    compiles=False,
    idle_share=0.0,
    stalls=(),
    cuda_at="",
    has_time_limit=False,
    first_steps=None,
    is_counted=True,
)
STEP = SMALL_STEP.model_copy(
    update={
        "saved_tensor_bytes": 3 * GIB,
        "peak_allocated_bytes": 5 * GIB,
        "peak_reserved_bytes": 6 * GIB,
        "fixed_bytes": 4 * GIB,
    }
)
UNKNOWN = {"peak_allocated_bytes": None, "peak_reserved_bytes": None, "fixed_bytes": None}
EPOCHS = 5
MakeCpu = Callable[..., TrainedRecords]
MakePair = Callable[..., Any]


@pytest.fixture
def make_cpu(make_result: MakeResult, make_experiment: MakeExperiment) -> MakeCpu:
    """Make five epochs of 38 steps of 10 ms, and 2.25 s of start-up without its warm-up."""

    def make(operations: Operations | None = STEP, extra_seconds: float = 0.0) -> TrainedRecords:
        cpu = trained(
            make_result,
            epoch_seconds=(0.38,) * EPOCHS,
            step_seconds=(0.01,) * 5,
            total_seconds=4.4 + extra_seconds,
            attribution=made_up_attribution(0.0),
        )
        cpu = with_record(cpu, experiment=make_experiment(epochs=EPOCHS))
        why = None if operations else "several processes"
        counted = {"operations": operations, "not_counted": why}
        return with_timings(cpu, started_at_unix_seconds=1.79e9, **counted)

    return make


@pytest.fixture
def make_pair(make_cpu: MakeCpu) -> MakePair:
    def make(*arguments: Any, extra_seconds: float = 0.0, **settings: Any) -> Comparison:
        cpu = make_cpu(*arguments, **{"extra_seconds": extra_seconds} if extra_seconds else {})
        return pair_of(cpu, settings=Comparing(**settings))

    return make


def with_loader(run: TrainedRecords, cores: int, workers: int) -> TrainedRecords:
    """Return five epochs of 3.8 s of which loading takes 3.4 s, on so many cores."""
    host = run.times.host
    assert host.cpu
    assert run.steps
    cpu = replace(host.cpu, usable_cores=cores, cgroup_cores_limit=None)
    loading = with_timings(
        run,
        host=host.model_copy(update={"cpu": cpu}),
        epochs=tuple(replace(epoch, training_seconds=3.8) for epoch in run.times.epochs),
        parts=tuple(replace(part, seconds=3.8, waiting_seconds=3.4) for part in run.steps.parts),
        total_seconds=21.5,
        loader=LoaderTimes(),
    )
    settings = {"input": LoaderInput(name="loader", workers=workers)}
    experiment = run.record.experiment.model_copy(update=settings)
    return with_record(loading, experiment=experiment)


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
    make_cpu: MakeCpu, cores: int, workers: int, accelerator: str, factor: float
) -> None:
    settings = Comparing(accelerators=(accelerator,))
    pair: Any = pair_of(with_loader(make_cpu(), cores, workers), settings=settings)
    (offer,) = pair.renting.options
    step: Any = estimate_step(STEP, accelerators()[accelerator], "fp32", is_captured=True)
    loading_seconds = factor * pair.bounds.epoch.measured_seconds
    if workers == 0:
        loading_seconds += 600 / 16 * step.launches[1]
    epoch_seconds = max(600 / 16 * step.seconds, loading_seconds)
    assert offer.estimate.epoch_seconds == pytest.approx(epoch_seconds)


def with_tried_workers(run: TrainedRecords, gpu: str, batch_seconds: dict[int, float]) -> Any:
    tried = tuple(
        TriedWorkers(workers=workers, batch_seconds=seconds, start_seconds=0.0)
        for workers, seconds in batch_seconds.items()
    )
    loader = LoaderTimes(whole_seconds=16.0, tried_workers=tried)
    return pair_of(with_timings(run, loader=loader), settings=Comparing(accelerators=(gpu,)))


def test_workers_that_share_two_cores_here_have_their_own_on_a_rented_machine(
    make_cpu: MakeCpu,
) -> None:
    small = STEP.model_copy(update={"flops": 10**6, "saved_tensor_bytes": 10**3})
    loading = with_loader(make_cpu(small), cores=2, workers=4)
    measured = with_tried_workers(loading, "A100", {1: 2.0, 2: 1.0, 4: 1.0})
    (offer,) = measured.renting.options
    slower = offer.estimate.epoch_seconds / measured.bounds.epoch.measured_seconds
    assert slower == pytest.approx(2 / 4)
    slow = with_loader(make_cpu(), cores=4, workers=4)
    measured = with_tried_workers(slow, "L4", {1: 16.0, 2: 10.0, 4: 1.0})
    (offer,) = measured.renting.options
    # Its two cores take ten times as long as four here.
    slower = offer.estimate.epoch_seconds / measured.bounds.epoch.measured_seconds
    assert slower == pytest.approx(10.0 / 1.0)


def test_the_gpu_of_the_answer_is_in_the_table_below_it(make_pair: MakePair) -> None:
    prices = dict.fromkeys(accelerators(), 1000.0) | {"T4": 0.01}
    names, listed = tuple(accelerators()), Prices(accelerator_hour=prices)
    pair = make_pair(extra_seconds=3600.0, accelerators=names, prices=listed)
    decision = decide(pair)
    assert decision.gpu_name == "T4"
    gpus = [line.split()[0] for line in bars(record_of(pair))[1:-1]]
    assert gpus[0] == "T4"
    assert len(gpus) == len(set(gpus)) == 4  # the answer's, and the fastest


def test_memory_that_fits_is_told_in_the_unit_of_the_gpus(make_pair: MakePair) -> None:
    pairs = [make_pair(step, 3600.0, accelerators=("T4",)) for step in (SMALL_STEP, STEP)]
    small, large = (bars(record_of(pair))[1] for pair in pairs)
    assert small.endswith("fits (0.6 of 16 GiB)")
    assert large.endswith("fits (6.6 of 16 GiB)")
    unknown = make_pair(STEP.model_copy(update=UNKNOWN), 3600.0, accelerators=("T4",))
    assert "fit" not in bars(record_of(unknown))[1]


def test_why_there_are_no_estimates_is_said_once(
    make_pair: MakePair, capsys: pytest.CaptureFixture[str]
) -> None:
    for seconds in (0.0, 3600.0):  # too short to rent, and open
        pair = make_pair(None, seconds, accelerators=("T4",))
        print_answers([job_answer(WholeJob("job", 5, 38.0), pair, decide(pair), {})])
        assert capsys.readouterr().out.lower().count("several processes") == 1


def test_a_step_without_a_loader_is_not_called_a_batch_of_one(make_pair: MakePair) -> None:
    small = {"flops": 10**6, "saved_tensor_bytes": 1, "images": 1}
    pair = make_pair(STEP.model_copy(update=small), 60.0, accelerators=("T4",))
    answer = text_of(verdict(pair))
    assert "Launching kernels takes most of a step" in answer
    assert "batch size" not in answer


@pytest.mark.parametrize(
    ("allocated", "reserved", "fits"),
    [(1, 1, "yes"), (9, 12, "yes"), (12, 14, "perhaps"), (15, 16, "no")],
)
def test_no_is_for_what_is_allocated_and_yes_has_room_to_spare(
    make_pair: MakePair, allocated: int, reserved: int, fits: str
) -> None:
    peaks = {"peak_allocated_bytes": allocated * GIB, "peak_reserved_bytes": reserved * GIB}
    pair = make_pair(STEP.model_copy(update=peaks), 3600.0, accelerators=("T4",))  # of 16 GiB
    assert pair.renting.options[0].fits == fits
    assert (decide(pair).gpu_name == "T4") == (fits != "no")


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


def test_an_estimate_of_the_job_has_its_start_up_its_error_and_its_cost(
    make_pair: MakePair,
) -> None:
    hourly = Prices(accelerator_hour={"T4": 3.6})
    pair = make_pair(accelerators=("T4", "M1"), prices=hourly)
    on_t4, on_m1 = pair.renting.options
    step: Any = estimate_step(STEP, accelerators()["T4"], "fp32", is_captured=True)
    assert on_t4.estimate.epoch_seconds == pytest.approx(600 / 16 * step.seconds)
    once_seconds = pair.cpu.once_seconds  # start-up, and what follows the last epoch
    startup_seconds = once_seconds + CONTEXT_SECONDS[1]
    assert on_t4.estimate.startup_seconds == startup_seconds
    passes_seconds = EPOCHS * on_t4.estimate.epoch_seconds * (1 + 0.1 / 0.38)  # with validation
    job_seconds = startup_seconds + passes_seconds
    assert on_t4.estimate.job.seconds == pytest.approx(job_seconds)
    slow_steps = job_seconds + passes_seconds * (step.spread[2] / step.seconds - 1)
    slow_cpu = slow_steps + 0.5 * once_seconds
    slow = slow_cpu + CONTEXT_SECONDS[2] - CONTEXT_SECONDS[1]
    factors = slow_steps / job_seconds, slow_cpu / slow_steps, slow / slow_cpu
    off = math.hypot(*map(math.log, factors))  # their causes are independent
    assert on_t4.estimate.job.interval[1] == pytest.approx(job_seconds * math.exp(off))
    first, *_ = answer_of(verdict(pair)).candidates
    assert first.cost == pytest.approx(job_seconds / 1000)
    assert on_m1.estimate is None
    in_euros = make_pair(accelerators=("T4",), prices=Prices(currency="EUR"))
    (without_price,) = answer_of(verdict(in_euros)).candidates
    assert without_price.job_seconds
    assert without_price.cost is None


def test_a_scripts_own_code_and_what_it_does_between_epochs_stay_on_an_estimated_gpu(
    make_pair: MakePair,
) -> None:
    tiny = SMALL_STEP.model_copy(update={"flops": 10**6})
    pair = make_pair(tiny, accelerators=("H100",))
    cpu = replace(pair.cpu, steps_per_epoch=38, settings=None, trained=None)

    def estimate(**changed: Any) -> Any:
        script = replace(SCRIPT, step_parts=changed.pop("step_parts"))
        job = replace(cpu, script=script, **changed)
        return compare(JobPair(job), pair.settings).renting.options[0].estimate

    plain = estimate(step_parts={"forward": 0.01})
    own = estimate(step_parts={"forward": 0.001})  # the other nine tenths are its code
    saving = estimate(
        step_parts={"forward": 0.01}, by_parts=replace(cpu.by_parts, between_seconds=2.0)
    )
    assert plain.epoch_seconds < 0.9 * 0.38 < own.epoch_seconds < 0.9 * 0.38 + plain.epoch_seconds
    assert own.job.interval[0] < plain.job.seconds  # it may be a GPU's work
    assert saving.job.seconds == pytest.approx(plain.job.seconds + EPOCHS * 2.0)


@pytest.mark.parametrize("flops", [10**6, 10**13])
def test_where_launching_decides_a_larger_batch_and_cuda_graphs_are_estimated(
    make_cpu: MakeCpu, make_experiment: MakeExperiment, flops: int
) -> None:
    small = {"saved_tensor_bytes": 10**3, "kernels": 100}
    step = STEP.model_copy(update={"flops": flops, **small})
    eager = make_experiment(epochs=EPOCHS, deterministic=False)
    cpu = with_record(make_cpu(step, 46.0), experiment=eager)
    cpu = with_timings(cpu, epochs=cpu.times.epochs * 20)
    pair: Any = pair_of(cpu, settings=Comparing(accelerators=("T4",)))
    (offer,), text = pair.renting.options, text_of(verdict(pair))
    is_launch_bound = flops < 10**9
    assert ("At batch size 16, launching kernels takes most of a step" in text) == is_launch_bound
    if is_launch_bound:
        larger = offer.estimate.larger_batch
        assert larger.larger_step_seconds == larger.step_seconds == 0.002  # a step on the CPU


@pytest.mark.parametrize(
    ("waiting_share", "factor"),
    [(0.0, math.sqrt(2)), (0.5, math.sqrt(2)), (None, 1.0)],
    ids=["no waits", "half are waits", "unknown waits"],
)
def test_a_measured_gpu_scales_the_estimates_of_the_others_by_the_root_of_its_own_error(
    make_cpu: MakeCpu, make_result: MakeResult, waiting_share: float | None, factor: float
) -> None:
    cpu, settings = make_cpu(), Comparing(accelerators=("T4", "H100"))
    alone: Any = pair_of(cpu, settings=settings)
    step: Any = estimate_step(STEP, accelerators()["T4"], "fp32", is_captured=True)
    seconds = 2 * step.seconds / (1 - (waiting_share or 0.0))
    waited = None if waiting_share is None else waiting_share * seconds
    part = TimedPart(seconds=seconds, steps=1.0, epoch=0, holds="steps", waiting_seconds=waited)
    gpu = trained(make_result, device="gpu", device_name="Tesla T4")
    gpu = with_timings(gpu, steady_state=None, parts=(part,) * 5, epoch_steps=5.0)
    measured: Any = pair_of(cpu, gpu, settings)
    for estimated, scaled in zip(alone.renting.options, measured.renting.options, strict=True):
        expected = factor * estimated.estimate.epoch_seconds
        assert scaled.estimate.epoch_seconds == pytest.approx(expected)


def test_a_gpus_steps_on_one_batch_scale_the_estimates_of_the_others(
    make_cpu: MakeCpu, make_result: MakeResult
) -> None:
    cpu, settings = make_cpu(), Comparing(accelerators=("T4", "H100"))
    alone: Any = pair_of(cpu, settings=settings)
    step: Any = estimate_step(STEP, accelerators()["T4"], "fp32", is_captured=True)
    times = {"step_seconds": (2 * step.seconds,) * 5}
    gpu = trained(make_result, device="gpu", device_name="Tesla T4", **times)
    measured: Any = pair_of(cpu, gpu, settings)
    for estimated, scaled in zip(alone.renting.options, measured.renting.options, strict=True):
        expected = math.sqrt(2) * estimated.estimate.epoch_seconds
        assert scaled.estimate.epoch_seconds == pytest.approx(expected)
