"""The rules by which an answer is chosen, as docs/verdict.md has them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeResult
from result_files import BUSY, STEP, made_up_attribution, pair_of, paired, trained, with_timings

from photofinish.answer.candidates import Worth
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Action, decide, decide_all
from photofinish.answer.own_gpu import decide_own, is_likely
from photofinish.answer.result import Trained
from photofinish.answer.times import ONCE, RUN_TO_RUN
from photofinish.config.compare import Comparing, Prices, accelerators
from photofinish.reporting.answer_records import answer_record
from photofinish.reporting.answer_words import summary
from photofinish.reporting.comparison_rows import comparison_rows
from photofinish.reporting.overview import overview_table
from photofinish.reporting.report import write_report
from photofinish.reporting.sentences import verdict
from photofinish.results import EpochTiming
from photofinish.results.measurements import SteadyState
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
    decision = decide_own(pair_of(job(cpu), job(gpu, "gpu")))
    assert (decision.answer, decision.basis) == (answer, "measured")
    assert decision.speedup == pytest.approx(cpu / gpu)
    assert decision.interval
    assert decision.interval[0] < cpu / gpu < decision.interval[1]


def test_a_busy_machine_still_gets_a_clear_answer(job: Job) -> None:
    slowed = job(125.0, load=(BUSY,))
    assert decide_own(pair_of(slowed, job(10.0, "gpu"))).answer == "Yes"
    assert verdict(pair_of(slowed, job(10.0, "gpu"))).first[0] == "Now: Train on the GPU."
    unsure = pair_of(slowed, job(80.0, "gpu"))
    assert decide_own(unsure).answer == "Can't tell"
    again, busy = verdict(unsure).first
    command = "`photofinish run --force --single-item train-cpu@small-mlp && photofinish run`"
    assert again.endswith(f"when the machine is quiet (at most 2.1 min): {command}")
    assert busy.startswith("The machine was busy (other programs used 40% of the cores in 100%")


def with_references(cpu: Trained, *gpus: Trained) -> Comparison:
    """Compare a job with records of GPUs elsewhere."""
    references = [
        reference_of(gpu.experiment, gpu.record, gpu.timings, gpu.scores, [*gpu.history], "lab")
        for gpu in gpus
    ]
    (pair,) = paired([cpu], None, references)
    return pair


def test_a_busy_record_does_not_hide_a_quiet_one(job: Job) -> None:
    busy = with_timings(job(110.0, "gpu", load=(BUSY,)), device_name="A")
    quiet = with_timings(job(80.0, "gpu"), device_name="B")
    pair = with_references(job(100.0), busy, quiet)
    decision = decide_own(pair)
    assert (decision.answer, decision.gpu and decision.gpu.seconds) == ("Probably yes", 80.0)


def test_an_estimate_counts_with_the_fast_epochs_of_a_busy_machine(job: Job) -> None:
    settings = Comparing(accelerators=("T4",))
    steady = with_timings(job(300.0), operations=LONG_STEP, load=(BUSY,))
    sure = pair_of(steady, settings=settings)
    assert decide_own(sure).answer == "Probably yes"
    *slow, last = steady.timings.epochs
    uneven = with_timings(steady, epochs=(*slow, replace(last, training_seconds=2.0)))
    unsure = pair_of(uneven, settings=settings)
    assert decide_own(unsure).answer == "Can't tell"
    assert "The machine was busy (other programs used 40% of" in verdict(unsure).first[1]


def test_a_job_compared_with_itself_has_no_winner_nor_one_that_was_interrupted(job: Job) -> None:
    """Start-ups are off by up to ONCE, and whole runs by up to RUN_TO_RUN."""
    cpu = job(30.0)
    slower = with_timings(
        job(30.0, "gpu"),
        startup_seconds=STARTUP_SECONDS * ONCE,
        total_seconds=(30.0 - STARTUP_SECONDS + STARTUP_SECONDS * ONCE) * (RUN_TO_RUN - 0.01),
    )
    assert decide_own(pair_of(cpu, slower)).answer in ("No difference", "Can't tell")
    cpu = with_timings(cpu, startup_seconds=10.0)
    resumed = {"startup_seconds": 10.0, "total_seconds": 40.0, "resumed_at_epochs": (2,)}
    assert decide_own(pair_of(cpu, with_timings(slower, **resumed))).answer == "Can't tell"


@pytest.mark.parametrize(
    ("seconds", "answer"), [(12.0, "Probably yes"), (95.0, None), (400.0, "Probably no")]
)
def test_a_record_of_a_gpu_elsewhere_answers_probably(
    job: Job, seconds: float, answer: str | None
) -> None:
    pair = with_references(job(100.0), job(seconds, "gpu"))
    decision = decide_own(pair)
    assert decision.answer == (answer or "Can't tell")
    assert (decision.basis == "recorded") is (answer is not None)
    assert ("recorded elsewhere" in verdict(pair).answer) is (answer is not None)


def test_an_unclear_record_of_a_faster_gpu_counts_beside_a_clear_one_of_a_slower(job: Job) -> None:
    slow = with_timings(job(125.0, "gpu"), device_name="slow")
    fast = with_timings(job(95.0, "gpu"), device_name="fast")
    decision = decide_own(with_references(job(100.0), slow, fast))
    assert (decision.answer, decision.basis) == ("Can't tell", "bound")


def unevenly(cpu: Trained, *epoch_seconds: float, left: int = 75) -> Trained:
    """Train some epochs of many, with 2.5 s of start-up."""
    epochs = tuple(EpochTiming(each - 0.1, 0.1, 1.7e9) for each in epoch_seconds)
    total_seconds = STARTUP_SECONDS + sum(epoch_seconds)
    return with_timings(cpu, epochs=epochs, epochs_left=left, total_seconds=total_seconds)


@pytest.mark.parametrize(("left", "answer"), [(50, "No"), (75, "Can't tell")])
def test_renting_gets_a_no_only_if_the_slow_end_of_the_time_here_is_too_short(
    job: Job, left: int, answer: str
) -> None:
    """80 epochs take 8.8 to 11 min, and a machine must save 10."""
    cpu = with_timings(unevenly(job(600.0), 6.5, 7.5, 8.0, 6.9, 7.7, left=left), operations=STEP)
    decision = decide(pair_of(cpu, settings=Comparing(accelerators=("H100",))))
    assert decision.rented
    assert decision.rented.here_seconds < 600
    assert (decision.answer, decision.about) == (answer, "renting")
    low, high = decision.rented.saved
    assert high < decision.rented.here[1]
    assert low > 0


def test_a_job_is_short_only_at_the_slow_end_of_its_interval(job: Job) -> None:
    """Start-up may take 1.3 times as long: 2.5 of 4.0 and of 4.5 s."""
    found = [decide_own(pair_of(job(each))) for each in (4.0, 4.5)]
    assert [each.reason == "short job" for each in found] == [True, False]
    assert found[1].answer != "No"


def test_a_bound_says_no_only_if_it_is_below_the_limit_at_its_end(job: Job) -> None:
    """Start-up may be 1.3 times as short: 10 s of 14.5 limit a GPU to 1.45x, and to 1.6x."""
    pairs = [
        pair_of(with_timings(job(each), startup_seconds=10.0), settings=Comparing(accelerators=()))
        for each in (13.0, 14.5)
    ]
    assert [each.bounds.job.as_measured < 1.5 for each in pairs] == [True, True]
    assert [decide_own(each).answer for each in pairs] == ["No", "Can't tell"]
    assert "no GPU makes it more than 1.4x faster" in verdict(pairs[0]).answer


def test_the_runs_that_repay_a_rental_come_from_the_low_end_of_what_a_run_saves(job: Job) -> None:
    cpu = with_timings(job(550.0), operations=HOUR_STEP)
    pair = pair_of(cpu, settings=Comparing(accelerators=("T4",)))
    decision = decide(pair)
    rented = decision.rented
    assert rented
    assert rented.runs
    low, high = rented.saved
    assert rented.runs * low >= rented.least_seconds > (rented.runs - 1) * low
    fewest = math.ceil(rented.least_seconds / high)
    assert fewest < rented.runs
    found = verdict(pair, decision)
    assert f"worth it from {rented.runs} runs on, perhaps from {fewest}" in found.answer
    assert f"From {rented.runs} runs in one rental on" in found.action


LONG_STEP = STEP.model_copy(update={"flops": 8 * 10**11, "saved_tensor_bytes": 32 * 10**8})
"""Step that takes a T4 255 ms by estimate, and so 48 s in five epochs of 600 samples."""


@pytest.mark.parametrize(
    ("seconds", "answer"), [(300.0, "Probably yes"), (60.0, "Can't tell"), (30.0, "Probably no")]
)
def test_an_estimate_answers_probably_if_its_error_leaves_no_doubt(
    job: Job, seconds: float, answer: str
) -> None:
    cpu = with_timings(job(seconds), operations=LONG_STEP)
    decision = decide_own(pair_of(cpu, settings=Comparing(accelerators=("T4", "M1"))))
    assert (decision.answer, decision.basis, decision.gpu_name) == (answer, "estimated", "T4")
    assert decision.gpu
    assert decision.gpu.seconds == pytest.approx(2.25 + 2 + 48.5, rel=0.02)


def test_a_record_answers_unless_a_cheaper_gpu_surely_saves_enough(job: Job) -> None:
    h100 = accelerators()["H100"].full_name

    def rented(here: float, there: float) -> Worth:
        cpu = with_timings(job(here), operations=LONG_STEP)
        steady = SteadyState(steps_per_sample=1, sample_seconds=(there / 5 / 38,))
        gpu = with_timings(job(there, "gpu"), device_name=h100, steady_state=steady)
        pair = with_references(cpu, gpu)
        own = decide_own(pair).gpu
        assert own
        assert own.seconds == there
        found = decide(pair).rented
        assert found
        return found

    sure = rented(6000.0, 30.0)
    assert (sure.answer, sure.basis) == ("Probably yes", "estimated")
    assert sure.gpu_name == "A10G"
    doubtful = rented(800.0, 300.0)
    assert (doubtful.answer, doubtful.basis, doubtful.gpu_name) == ("Probably no", "recorded", h100)


def test_the_accelerator_that_is_worth_it_for_the_least_money_is_named(job: Job) -> None:
    cpu, prices = with_timings(job(300.0), operations=LONG_STEP), {"T4": 1.0, "A100": 100.0}
    settings = Comparing(accelerators=("T4", "A100"), prices=Prices(accelerator_hour=prices))
    assert decide_own(pair_of(cpu, settings=settings)).gpu_name == "T4"
    demanding = settings.model_copy(update={"worth_it": 10.0})
    assert decide_own(pair_of(cpu, settings=demanding)).gpu_name == "A100"
    pair = pair_of(cpu, settings=settings)
    found = verdict(pair)
    (row,) = overview_table([found], [pair])
    assert row["on a GPU"] == "53 s if this machine had a T4 (estimated)"


def test_an_estimate_that_is_hardly_known_has_an_interval_and_no_number(job: Job) -> None:
    pair = pair_of(with_timings(job(300.0), operations=LONG_STEP))
    decision = decide(pair)
    vague = replace(decision.own, answer="Can't tell", interval=(0.25, 3600.0))
    found = verdict(pair, replace(decision, own=vague))
    assert "can't tell, 0.25 to 3,600 times as fast on A10G, by estimate." in found.answer
    (row,) = overview_table([found], [pair])
    assert row["speed-up"] == "0.25 to 3,600 times"


def test_an_accelerator_without_a_price_or_with_doubtful_memory_is_no_best_value(
    job: Job,
) -> None:
    cpu = with_timings(job(300.0), operations=LONG_STEP)
    euros = Prices(currency="EUR", accelerator_hour={"T4": 1.0})  # list prices are in dollars
    settings = Comparing(accelerators=("T4", "A100"), prices=euros)
    assert decide_own(pair_of(cpu, settings=settings)).gpu_name == "T4"
    much = LONG_STEP.model_copy(update={"saved_tensor_bytes": 15 * 10**9})
    cpu = with_timings(job(3000.0), operations=much)
    for names, gpu, has_doubt in ((("T4", "A100"), "A100", False), (("T4",), "T4", True)):
        pair = pair_of(cpu, settings=Comparing(accelerators=names))
        assert decide_own(pair).gpu_name == gpu
        assert ("memory of T4 may be too small" in verdict(pair).answer) is has_doubt


def test_the_reason_is_what_the_slower_device_waits_for(job: Job) -> None:
    attribution = made_up_attribution(0.0)
    cpu, gpu = job(125.0, attribution=attribution, load=(BUSY,)), job(10.0, "gpu")
    pair = pair_of(cpu, gpu)
    assert (decide_own(pair).reason, is_likely(pair, decide_own(pair))) == ("arithmetic", True)
    untimed = pair_of(with_timings(cpu, attribution=None), gpu)
    assert decide_own(untimed).reason is None
    startup = with_timings(job(125.0, "gpu"), startup_seconds=100.0)
    assert decide_own(pair_of(job(20.0), startup)).reason == "start-up"
    answer = verdict(pair_of(job(20.0), startup)).answer
    assert "2.1 min on Some GPU instead of 20 s. Most of the GPU's time is start-up." in answer
    assert answer.startswith("No (the GPU here): ")
    assert " Renting one: no, the job takes 20 s" in answer


HOUR_STEP = STEP.model_copy(update={"flops": 10**13, "saved_tensor_bytes": 10**9})
"""Step that takes a T4 1.2 s by estimate, and so 3.8 min in five epochs of 600 samples."""


@pytest.mark.parametrize(
    ("seconds", "settings", "answer", "reason", "action"),
    [
        (13.0, {}, "No", "short job", Action("stay here", "T4")),
        (550.0, {}, "No", "saves too little", Action("stay here", "T4", 4)),
        (550.0, {"worth_saving": 1.0, "rental_minutes": 1.0}, "Probably yes", "saves enough",
         Action("rent", "T4")),
        (850.0, {}, "Can't tell", "may save enough", Action("try a GPU", "T4")),
        (1000.0, {"worth_saving": 60.0}, "No", "saves too little", Action("stay here", "T4", 7)),
        (3600.0, {}, "Probably yes", "saves enough", Action("rent", "T4")),
    ],
)  # fmt: skip
def test_renting_is_worth_it_if_it_saves_minutes_after_its_start(
    job: Job, seconds: float, settings: dict[str, float], answer: str, reason: str, action: Action
) -> None:
    cpu = with_timings(job(seconds), operations=HOUR_STEP)
    pair = pair_of(cpu, settings=Comparing(accelerators=("T4",), **settings))
    decision = decide(pair)
    assert (decision.answer, decision.about) == (answer, "renting")
    assert (decision.reason, decision.action) == (reason, action)
    row = comparison_rows([pair], [decision])[0]
    assert [row[f"answer{key}"] for key in ("", "_for", "_by", "_reason")] == [
        *(answer, "renting", "estimated", reason)
    ]
    record = answer_record(pair, verdict(pair, decision))
    for number in (record.cpu_seconds, record.gpu_seconds, record.speedup, record.saved_seconds):
        assert number
        assert number.low is not None
        assert number.high is not None
        assert number.low < number.value < number.high


@pytest.mark.parametrize(
    ("gpu_flops", "kind"), [(10**13, "measure longer"), (3 * 10**13, "try a GPU")]
)
def test_a_longer_time_limit_is_suggested_only_if_it_would_settle_the_answer(
    job: Job, gpu_flops: int, kind: str
) -> None:
    """Two of eight epochs, of 150 and 250 s, are 27 min by Student's t, give or take an hour."""
    whole = job(1000.0)
    epochs = tuple(
        replace(epoch, training_seconds=seconds)
        for epoch, seconds in zip(whole.timings.epochs, (150.0, 250.0), strict=False)
    )
    step = HOUR_STEP.model_copy(update={"flops": gpu_flops})
    part = {"epochs": epochs, "epochs_left": 6, "total_seconds": 403.0, "operations": step}
    pair = pair_of(with_timings(whole, **part), settings=Comparing(accelerators=("T4",)))
    decision, found = decide(pair), verdict(pair)
    assert (decision.answer, decision.action.kind) == ("Can't tell", kind)
    assert ("time_limit" in found.action) is (kind == "measure longer")
    assert "may save up to" in found.answer
    assert decision.rented
    assert decision.rented.saved[1] < decision.rented.here[1]


def test_seeds_and_the_experiments_of_a_sweep_share_a_rented_machine(job: Job) -> None:
    settings = Comparing(accelerators=("T4",))
    alone = with_timings(job(560.0), operations=HOUR_STEP)
    seeds = with_timings(alone, seeds=(alone.timings.epochs,) * 9)
    assert decide(pair_of(alone, settings=settings)).answer == "No"
    of_seeds = decide(pair_of(seeds, settings=settings))
    assert of_seeds.answer == "Probably yes"
    assert 5 * 560 < of_seeds.saved_seconds < of_seeds.here_seconds
    assert summary([of_seeds]).endswith(" of 93 min.")
    sweep = [pair_of(alone, settings=settings)] * 10
    decisions = decide_all(sweep)
    assert {each.answer for each in decisions} == {"Probably yes"}
    assert "for all 10 experiments of the sweep" in verdict(sweep[0], decisions[0]).answer
    both = decide_all(sweep[:2])
    assert "both experiments" in verdict(sweep[0], both[0]).answer


def test_without_gpus_to_rent_every_place_speaks_of_a_gpu_in_this_machine(
    job: Job, tmp_path: Path
) -> None:
    pair = pair_of(job(62.0), settings=Comparing(accelerators=()))
    write_report([pair], tmp_path)
    answers = json.loads((tmp_path / "answers.json").read_text(encoding="utf-8"))
    about = "if this machine had a GPU"
    assert answers["answers"]["small-mlp"]["text"].startswith(f"Can't tell ({about}): no GPU")
    assert answers["summary"] == "1 experiment. If this machine had a GPU: 1 Can't tell."
    assert answers["overview"][0]["worth a GPU?"] == f"Can't tell ({about})"
    assert f",Can't tell,{about},bound," in (tmp_path / "comparison.csv").read_text()
