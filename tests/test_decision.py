"""The rules by which an answer is chosen, as docs/verdict.md has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import MakeResult
from result_files import BUSY, STEP, made_up_attribution, pair_of, paired, trained, with_timings

from photofinish.comparing.decision import Decision, decide, is_likely
from photofinish.comparing.device_results import Trained
from photofinish.comparing.speedups import ONCE, RUN_TO_RUN
from photofinish.config.compare import Comparing, Prices
from photofinish.reporting.sentences import summary, verdict
from photofinish.results.records import DeviceLabel
from photofinish.results.references import reference_of

Job = Callable[..., Trained]
STARTUP_SECONDS = 2.5


@pytest.fixture
def job(make_result: MakeResult) -> Job:
    """Make a job of so many seconds, with 2.5 s of start-up."""

    def make(seconds: float, device: DeviceLabel = "cpu", **settings: Any) -> Trained:
        epoch_seconds = (seconds - STARTUP_SECONDS) / 5 - 0.1  # a validation takes 0.1 s
        return trained(
            make_result,
            device=device,
            epoch_seconds=(epoch_seconds,) * 5,
            total_seconds=seconds,
            device_name="Some GPU" if device == "gpu" else "Some CPU",
            **settings,
        )

    return make


@pytest.mark.parametrize(
    ("cpu", "gpu", "answer"),
    [
        (125.0, 10.0, "Yes"),
        (10.0, 125.0, "No"),
        (100.0, 50.0, "Yes"),
        (100.0, 90.0, "Yes"),
        (100.0, 98.0, "No difference"),
        (20.0, 18.0, "Can't tell"),
        (4.0, 3.6, "No"),
        (9.0, 3.5, "Yes"),
    ],
)
def test_one_measured_run_is_enough_for_a_clear_answer(
    job: Job, cpu: float, gpu: float, answer: str
) -> None:
    decision = decide(pair_of(job(cpu), job(gpu, "gpu")))
    assert (decision.answer, decision.basis) == (answer, "measured")
    assert decision.speedup == pytest.approx(cpu / gpu)
    assert decision.interval
    assert decision.interval[0] < cpu / gpu < decision.interval[1]


def test_a_busy_machine_still_gets_a_clear_answer(job: Job) -> None:
    slowed = job(125.0, load=(BUSY,))
    assert decide(pair_of(slowed, job(10.0, "gpu"))).answer == "Yes"
    assert verdict(pair_of(slowed, job(10.0, "gpu"))).cautions == ()
    assert decide(pair_of(slowed, job(80.0, "gpu"))).answer == "Can't tell"
    assert "unreliable" in verdict(pair_of(slowed, job(80.0, "gpu"))).cautions[0]


def test_a_busy_record_does_not_hide_a_quiet_one(job: Job) -> None:
    records = []
    for name, seconds, load in (("A", 110.0, (BUSY,)), ("B", 130.0, ())):
        gpu = job(seconds, "gpu", load=load)
        timings = gpu.timings.model_copy(update={"device_name": name})
        history = list(gpu.history)
        records.append(
            reference_of(gpu.experiment, gpu.record, timings, gpu.scores, history, "lab")
        )
    (pair,) = paired([job(100.0), pair_of(job(100.0)).gpu], None, records)
    decision = decide(pair)
    assert (decision.answer, decision.gpu_seconds) == ("Probably no", 130.0)


def test_an_estimate_counts_with_the_fast_epochs_of_a_busy_machine(job: Job) -> None:
    settings = Comparing(accelerators=("T4",))
    steady = with_timings(job(300.0), operations=LONG_STEP, load=(BUSY,))
    sure = pair_of(steady, settings=settings)
    assert (decide(sure).answer, verdict(sure).cautions) == ("Probably yes", ())
    *slow, last = steady.timings.epochs
    uneven = with_timings(steady, epochs=(*slow, replace(last, training_seconds=2.0)))
    unsure = pair_of(uneven, settings=settings)
    assert decide(unsure).answer == "Can't tell"
    assert "A quiet machine may settle it" in verdict(unsure).answer
    assert "The machine was busy (other programs used 40% of" in verdict(unsure).cautions[0]


def test_a_job_compared_with_itself_has_no_winner(job: Job) -> None:
    """Start-ups are off by up to ONCE, and whole runs by up to RUN_TO_RUN."""
    cpu = job(30.0)
    slower = with_timings(
        job(30.0, "gpu"),
        startup_seconds=STARTUP_SECONDS * ONCE,
        total_seconds=(30.0 - STARTUP_SECONDS + STARTUP_SECONDS * ONCE) * (RUN_TO_RUN - 0.01),
    )
    assert decide(pair_of(cpu, slower)).answer in ("No difference", "Can't tell")


@pytest.mark.parametrize(
    ("seconds", "answer"), [(12.0, "Probably yes"), (95.0, None), (400.0, "Probably no")]
)
def test_a_record_of_a_gpu_elsewhere_answers_probably(
    job: Job, seconds: float, answer: str | None
) -> None:
    gpu = job(seconds, "gpu")
    record = reference_of(
        gpu.experiment, gpu.record, gpu.timings, gpu.scores, list(gpu.history), "lab"
    )
    (pair,) = paired([job(100.0), pair_of(job(100.0)).gpu], None, [record])
    decision = decide(pair)
    assert decision.answer == (answer or "Can't tell")
    assert (decision.basis == "recorded") is (answer is not None)
    assert ("recorded elsewhere" in verdict(pair).answer) is (answer is not None)


LONG_STEP = STEP.model_copy(update={"flops": 8 * 10**11, "saved_tensor_bytes": 32 * 10**8})
"""Step that takes a T4 260 ms by estimate, and so 49 s in five epochs of 600 samples."""


@pytest.mark.parametrize(
    ("seconds", "answer"), [(300.0, "Probably yes"), (60.0, "Can't tell"), (30.0, "Probably no")]
)
def test_an_estimate_answers_probably_if_its_error_leaves_no_doubt(
    job: Job, seconds: float, answer: str
) -> None:
    cpu = with_timings(job(seconds), operations=LONG_STEP)
    decision = decide(pair_of(cpu, settings=Comparing(accelerators=("T4", "M1"))))
    assert (decision.answer, decision.basis, decision.gpu) == (answer, "estimated", "T4")
    assert decision.gpu_seconds == pytest.approx(2.25 + 2 + 50, rel=0.02)


def test_the_accelerator_that_is_worth_it_for_the_least_money_is_named(job: Job) -> None:
    cpu, prices = with_timings(job(300.0), operations=LONG_STEP), {"T4": 1.0, "A100": 100.0}
    settings = Comparing(accelerators=("T4", "A100"), prices=Prices(accelerator_hour=prices))
    assert decide(pair_of(cpu, settings=settings)).gpu == "T4"
    demanding = settings.model_copy(update={"worth_it": 10.0})
    assert decide(pair_of(cpu, settings=demanding)).gpu == "A100"
    answer = verdict(pair_of(cpu, settings=settings)).answer
    assert answer.startswith("Probably yes: about 5.6x faster (3.4 to 9.1). By estimate the job")
    assert "takes 54 s on T4 instead of 5.0 min" in answer
    assert "for 0.01 USD" in answer


def test_an_accelerator_without_a_price_or_with_doubtful_memory_is_no_best_value(
    job: Job,
) -> None:
    cpu = with_timings(job(300.0), operations=LONG_STEP)
    euros = Prices(currency="EUR", accelerator_hour={"T4": 1.0})  # list prices are in dollars
    settings = Comparing(accelerators=("T4", "A100"), prices=euros)
    assert decide(pair_of(cpu, settings=settings)).gpu == "T4"
    much = LONG_STEP.model_copy(update={"saved_tensor_bytes": 15 * 10**9})
    cpu = with_timings(job(3000.0), operations=much)
    for accelerators, gpu, has_doubt in ((("T4", "A100"), "A100", False), (("T4",), "T4", True)):
        pair = pair_of(cpu, settings=Comparing(accelerators=accelerators))
        assert decide(pair).gpu == gpu
        assert ("memory of T4 may be too small" in verdict(pair).answer) is has_doubt


def test_a_training_that_was_interrupted_is_not_called_slower_for_it(job: Job) -> None:
    cpu = with_timings(job(30.0), startup_seconds=10.0)
    resumed = with_timings(
        job(30.0, "gpu"), startup_seconds=10.0, total_seconds=40.0, resumed_at_epochs=(2,)
    )
    assert decide(pair_of(cpu, resumed)).answer == "Can't tell"


def test_a_short_job_is_not_worth_a_gpu_that_nobody_measured(job: Job) -> None:
    found = verdict(pair_of(with_timings(job(4.0), operations=LONG_STEP)))
    assert found.answer == "No: the whole job takes 4.0 s, 2.5 s of it start-up."
    assert len(found.details) == 1


@pytest.mark.parametrize(
    ("startup_seconds", "answer"), [(60.0, "No"), (50.0, "No"), (20.0, "Can't tell")]
)
def test_a_bound_only_says_no(job: Job, startup_seconds: float, answer: str) -> None:
    cpu = with_timings(job(65.0), startup_seconds=startup_seconds)
    decision = decide(pair_of(cpu))
    assert (decision.answer, decision.basis) == (answer, "bound")
    assert (decision.speedup, decision.saved_seconds) == (None, 0.0)


def test_the_reason_is_what_the_slower_device_waits_for(job: Job) -> None:
    attribution = made_up_attribution(0.0)
    cpu, gpu = job(125.0, attribution=attribution), job(10.0, "gpu")
    pair = pair_of(cpu, gpu)  # too few steps were timed to be sure
    assert (decide(pair).reason, is_likely(pair, decide(pair))) == ("arithmetic", True)
    untimed = pair_of(with_timings(cpu, attribution=None), gpu)
    assert decide(untimed).reason is None
    startup = with_timings(job(125.0, "gpu"), startup_seconds=100.0)
    assert decide(pair_of(job(20.0), startup)).reason == "start-up"
    answer = verdict(pair_of(job(20.0), startup)).answer
    assert "2.1 min on Some GPU instead of 20 s. Most of the GPU's time is start-up." in answer


def test_the_summary_counts_answers_with_their_reasons_and_adds_up_what_is_saved() -> None:
    decisions = [
        Decision("No", "bound", 4.0, reason="short job"),
        Decision("No", "bound", 60.0, reason="start-up"),
        Decision("No", "bound", 5.0, reason="short job"),
        Decision("Yes", "measured", 100.0, 40.0, reason="arithmetic"),
    ]
    assert summary(decisions) == (
        "4 experiments: 3 No (short job, start-up), 1 Yes (arithmetic). "
        "GPUs save about 60 s of 2.8 min."
    )
    assert summary(decisions[:1]) == "1 experiment: 1 No (short job)."
