"""The rules by which an answer is chosen, as docs/verdict.md has them."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from conftest import MakeResult
from outputs import record_of, verdict
from result_files import (
    BUSY,
    STEP,
    job_of,
    made_up_attribution,
    pair_of,
    paired,
    resident_tried,
    text_of,
    trained,
    with_record,
    with_timings,
)

from photofinish.answer.candidates import Candidate, Runs
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Action, decide, decide_all, gpu_of_yours
from photofinish.answer.grid import grid
from photofinish.answer.record import answer_record
from photofinish.answer.word import decide_rented
from photofinish.commands.ask_options import Terms
from photofinish.config.compare import Comparing, Prices, accelerators
from photofinish.config.experiment import LoaderInput, Optimizer, Schedule
from photofinish.reporting.answer_words import legend, summary
from photofinish.reporting.answers import answer_of
from photofinish.reporting.answers_picture import all_jobs
from photofinish.reporting.ask_lines import JobAnswer, bars, repaid_line
from photofinish.reporting.job_pictures import job_pictures
from photofinish.results import EpochTiming
from photofinish.results.measured import TrainedRecords
from photofinish.results.references import reference_of
from photofinish.results.trained import DeviceLabel
from photofinish.scripts.script_record import WholeJob
from photofinish.wording import with_article

Job = Callable[..., TrainedRecords]
STARTUP_SECONDS = 2.5


@pytest.fixture
def job(make_result: MakeResult) -> Job:
    """Make a job of so many seconds, with 2.5 s of start-up."""

    def make(seconds: float, device: DeviceLabel = "cpu", **settings: Any) -> TrainedRecords:
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


HOUR_STEP = STEP.model_copy(update={"flops": 10**13, "saved_tensor_bytes": 10**9})
"""Step that takes a T4 1.2 s by estimate, and so 3.8 min in five epochs of 600 samples."""
T4 = Comparing(accelerators=("T4",))
FREE = {"rental_minutes": 0.0, "worth_saving": 0.0}


@pytest.mark.parametrize(
    ("cpu", "gpu", "answer"),
    [
        (125.0, 10.0, "Yes"),
        (10.0, 125.0, "No"),
        (100.0, 50.0, "Yes"),
        (100.0, 75.0, "Yes"),
        (75.0, 100.0, "No"),
        (100.0, 98.0, "Close call"),
        (20.0, 18.0, "Close call"),
        (4.0, 3.8, "Can't tell"),
        (9.0, 3.5, "Yes"),
    ],
)
def test_one_measured_run_is_enough_for_a_clear_answer(
    job: Job, cpu: float, gpu: float, answer: str
) -> None:
    decision = decide(pair_of(job(cpu), job(gpu, "gpu")))
    assert (decision.answer, decision.worth.basis, decision.about) == (
        answer, "measured", "the GPU here",
    )  # fmt: skip
    worth = decision.worth
    assert worth.speedup == pytest.approx(cpu / gpu)
    assert worth.interval
    assert worth.interval[0] < cpu / gpu < worth.interval[1]


def with_references(
    cpu: TrainedRecords, *gpus: TrainedRecords, settings: Comparing | None = None
) -> Comparison:
    """Compare a job with records of GPUs elsewhere."""
    references = [reference_of(gpu, "lab") for gpu in gpus]
    (pair,) = paired([cpu], settings, references)
    return pair


def test_a_job_compared_with_itself_has_no_winner_nor_one_that_was_interrupted(job: Job) -> None:
    """Start-ups are off by up to a factor of 1.3, and whole runs by a few percent."""
    cpu = job(30.0)
    slower = with_timings(
        job(30.0, "gpu"),
        startup_seconds=STARTUP_SECONDS * 1.3,
        total_seconds=1.05 * (30.0 + 0.3 * STARTUP_SECONDS),
    )
    open_answers = ("Close call", "Can't tell")
    assert decide(pair_of(cpu, slower)).answer in open_answers
    cpu = with_timings(cpu, startup_seconds=10.0)
    resumed = {"startup_seconds": 10.0, "total_seconds": 40.0, "resumed_at_epochs": (2,)}
    assert decide(pair_of(cpu, with_timings(slower, **resumed))).answer in open_answers


def test_a_bound_says_no_only_if_it_is_below_the_limit_at_its_end(job: Job) -> None:
    """Start-up may be 1.3 times as short: 10 s of 14.5 limit a GPU to 1.45x, and to 1.6x."""
    pairs = [
        pair_of(with_timings(job(each), startup_seconds=10.0), settings=Comparing(accelerators=()))
        for each in (13.0, 14.5)
    ]
    assert [pair.bounds.job.as_measured < 1.5 for pair in pairs] == [True, True]
    assert [decide(each).answer for each in pairs] == ["No", "Can't tell"]
    assert verdict(pairs[0]).answer.endswith("(at most 1.4x faster).")


@pytest.mark.parametrize(
    ("seconds", "settings", "answer", "action"),
    [
        (13.0, {}, "No", Action("stay here", "T4")),
        (550.0, {}, "No", Action("stay here", "T4", Runs(2, 4))),
        (550.0, {"worth_saving": 1.0, "rental_minutes": 1.0}, "Probably yes", Action("rent", "T4")),
        (850.0, {}, "Can't tell", Action("stay here", "T4")),  # this machine's error is too large
        (1000.0, {}, "Can't tell", Action("try a GPU", "T4")),
        (1000.0, {"worth_saving": 60.0}, "No", Action("stay here", "T4", Runs(4, 7))),
        (3600.0, {}, "Probably yes", Action("rent", "T4")),
    ],
)  # fmt: skip
def test_renting_is_worth_it_if_it_saves_minutes_after_its_start(
    job: Job, seconds: float, settings: dict[str, float], answer: str, action: Action
) -> None:
    cpu = with_timings(job(seconds), operations=HOUR_STEP)
    pair = pair_of(cpu, settings=Comparing(accelerators=("T4",), **settings))
    decision = decide(pair)
    assert (decision.answer, decision.about) == (answer, "renting")
    assert decision.action == action
    record = answer_of(verdict(pair, decision))
    for number in (record.cpu_seconds, record.gpu_seconds, record.speedup, record.saved_seconds):
        assert number
        assert number.low is not None
        assert number.high is not None
        assert number.low < number.value < number.high


def test_the_cheapest_gpu_of_the_best_answer_is_named_also_beside_a_record(job: Job) -> None:
    h100 = accelerators()["H100"].full_name
    gpu = with_timings(job(30.0, "gpu"), device_name=h100)
    cpu = with_timings(job(6000.0), operations=HOUR_STEP)
    both = Comparing(accelerators=("T4", "H100"))
    decision = decide(with_references(cpu, gpu, settings=both))
    assert (decision.answer, decision.gpu_name, decision.worth.basis) == (
        "Probably yes", "T4", "estimated",
    )  # fmt: skip
    only = decide(with_references(cpu, gpu, settings=Comparing(accelerators=("H100",))))
    assert (only.gpu_name, only.worth.basis) == ("H100", "recorded")
    prices = Prices(accelerator_hour={"T4": 1000.0, "H100": 1.0})
    dear = both.model_copy(update={"prices": prices})
    assert decide(pair_of(cpu, settings=dear)).gpu_name == "H100"
    # Its start costs, too: of two quick GPUs the one with the lower price is cheaper.
    quick = with_timings(job(6000.0), operations=STEP.model_copy(update={"flops": 10**10}))
    prices = Prices(accelerator_hour={"T4": 1.0, "H100": 1.1})
    started = both.model_copy(update={"prices": prices, "rental_minutes": 5.0})
    found = decide(pair_of(quick, settings=started))
    assert found.worth.gpu
    assert found.gpu_name == "T4"


def with_factors(gpus: list[Candidate], factors: dict[str, float]) -> list[Candidate]:
    """Make these GPUs' times longer or shorter."""
    return [
        replace(gpu, time=replace(gpu.time, seconds=factors.get(gpu.name, 1.0) * gpu.time.seconds))
        for gpu in gpus
    ]


def test_no_gpu_is_named_for_the_luck_of_its_estimate(
    job: Job,
) -> None:
    """Estimates are off by 1.52 in nine of ten, each on its own. A T4 and an L4 cost the same."""
    step = HOUR_STEP.model_copy(update={"saved_tensor_bytes": 10**10})
    pair = pair_of(with_timings(job(1500.0), operations=step))
    usual = {gpu.name: gpu for gpu in pair.candidates}
    draw, off, held = random.Random(0), [], 0
    for _ in range(300):
        factors = {name: 1.52 ** (draw.gauss() / 1.645) for name in usual}
        gpus = with_factors([*usual.values()], factors)
        worth = decide_rented([replace(pair, candidates=tuple(gpus))])
        assert worth
        assert worth.gpu
        true_seconds, (low, high) = usual[worth.gpu.name].time.seconds, worth.gpu.time.interval
        held += low <= true_seconds <= high
        off.append(worth.gpu.time.seconds / true_seconds)
    assert 0.95 < statistics.median(off) < 1.05
    assert held >= 0.85 * len(off)


def test_of_gpus_with_the_best_answer_one_is_named_that_has_it_by_its_data_sheet_too(
    job: Job,
) -> None:
    """A lucky T4 is cheaper than an L4 and seems to save enough, but not by its data sheet."""
    pair = pair_of(with_timings(job(840.0), operations=HOUR_STEP))
    assert decide(pair).gpu_name != "T4"
    lucky = with_factors([*pair.candidates], {"T4": 0.4})
    decision = decide(replace(pair, candidates=tuple(lucky)))
    assert (decision.answer, decision.gpu_name) == ("Probably yes", "L4")


def test_a_quiet_record_counts_before_one_of_a_busy_machine(job: Job) -> None:
    name = accelerators()["T4"].full_name
    quiet, busy = (
        with_timings(job(seconds, "gpu"), device_name=name, load=load)
        for seconds, load in ((100.0, ()), (180.0, (BUSY,)))
    )
    worth = decide(with_references(job(6000.0), quiet, busy, settings=T4)).worth
    assert worth.gpu
    assert worth.gpu.time.seconds == job_of(quiet).whole_seconds


def test_a_quiet_job_in_a_sweep_with_a_busy_one_has_a_time_and_no_range(job: Job) -> None:
    sampled = unevenly(with_timings(job(100.0), operations=HOUR_STEP), *[10.0] * 6, left=94)
    pairs = [pair_of(each, settings=T4) for each in (sampled, with_timings(sampled, load=(BUSY,)))]
    lines = [verdict(*each).answer for each in zip(pairs, decide_all(pairs), strict=True)]
    for line in lines:
        assert re.search(r": ~?[\d.]+ min here, as busy as now, for the sweep's 2 jobs, ", line)
        assert not re.search("unknown|not known|rough", line)


def test_a_busy_device_that_wins_would_win_when_idle_too(job: Job) -> None:
    assert decide(pair_of(job(10.0, load=(BUSY,)), job(125.0, "gpu"))).answer == "No"
    busy = pair_of(job(3600.0), job(10.0, "gpu", load=(BUSY,)))
    assert decide(busy).answer == "Yes"  # idle, the GPU takes even less
    times = "60 min on the CPU, 10 s on the GPU, 360x faster"
    assert verdict(busy).answer.startswith(f"Yes, use the Some GPU: {times}")


def test_seeds_and_the_experiments_of_a_sweep_share_a_rented_machine(job: Job) -> None:
    alone = with_timings(job(560.0), operations=HOUR_STEP)
    seeds = with_timings(alone, seeds=(alone.times.epochs,) * 9)
    assert decide(pair_of(alone, settings=T4)).answer == "No"
    assert decide(pair_of(seeds, settings=T4)).answer == "Probably yes"
    assert ": 93 min here, for all seeds, " in verdict(pair_of(seeds, settings=T4)).answer
    sweep = [pair_of(alone, settings=T4)] * 10
    decisions = decide_all(sweep)
    assert {each.answer for each in decisions} == {"Probably yes"}
    assert "for the sweep's 10 jobs" in verdict(sweep[0], decisions[0]).answer
    jobs = ", ".join(each.experiment for each in sweep)
    assert summary(answer_record(sweep).jobs) == f"Probably yes, rent a T4: {jobs}."
    two = [pair_of(alone, settings=T4)] * 2
    line = verdict(two[0], decide_all(two)[0]).answer
    assert re.search(r": 19 min \(\d+-\d+\) here, for the sweep's 2 jobs, .*\. Saves [\d.]+-", line)
    unknown = HOUR_STEP.model_copy(update={"without_formula": ("_thnn_fused_lstm_cell",)})
    *others, last = decide_all(
        [*sweep, pair_of(with_timings(alone, operations=unknown), settings=T4)]
    )
    assert {each.answer for each in others} == {"Probably yes"}
    assert last.gpu_name is None


def test_experiments_that_differ_in_two_settings_are_a_grid(make_result: MakeResult) -> None:
    def timed(rate: float, size: int) -> Comparison:
        changes = {"batch_size": size, "optimizer": Optimizer(name="sgd", lr=rate)}
        runs = []
        for device, seconds in (("cpu", 9.0), ("gpu", 1.0)):
            run = trained(make_result, f"n-{rate}-{size}", device, epoch_seconds=(seconds,) * 5)
            experiment = run.record.experiment.model_copy(update=changes)
            runs.append(with_record(run, experiment=experiment))
        return pair_of(*runs)

    pairs = [timed(rate, size) for rate in (0.1, 0.01) for size in (16, 32, 64)]
    decisions = [decide(pair) for pair in pairs]
    found: Any = grid(pairs, decisions)
    assert (found.row_key, found.rows) == ("optimizer.lr", ("0.1", "0.01"))
    assert (found.column_key, found.columns) == ("batch_size", ("16", "32", "64"))
    assert not found.cells["0.1", "16"].is_bound
    assert grid(pairs[:-1], decisions[:-1]) is None  # a cell is missing
    assert grid(pairs[:3], decisions[:3]) is None  # one setting varies


def test_the_figures_of_a_job_are_its_own_though_its_answer_is_of_its_sweep(job: Job) -> None:
    """Each trains from two seeds, and takes a T4 about 4 min."""
    pairs, sizes = [], [(10, 16, 1), (20, 16, 2), (40, 32, 1), (80, 32, 2)]
    for minutes_here, batch_size, accumulate in sizes:
        cpu = with_timings(job(60.0 * minutes_here), operations=HOUR_STEP)
        changes = {"batch_size": batch_size, "accumulate": accumulate}
        experiment = cpu.record.experiment.model_copy(update=changes)
        cpu = with_record(with_timings(cpu, seeds=(cpu.times.epochs,)), experiment=experiment)
        pairs.append(pair_of(cpu, settings=T4))
    record: Any = answer_record(pairs)
    for job, (minutes_here, *size) in zip(record.jobs, sizes, strict=True):
        worth = job.one_training
        assert (worth.answer, worth.jobs) == ("Probably yes", 4)
        assert worth.here.seconds == pytest.approx(60 * minutes_here)
        row, column = map(str, size)
        cells = record.grid.cells
        assert worth.speedup == (cells.get((row, column)) or cells[column, row]).figure
        assert worth.there_seconds / 60 == pytest.approx(8.75, abs=0.2)


def minutes(text: str) -> list[float]:
    """Return all times of a line, in minutes."""
    units = {"h": 60.0, "min": 1.0, "s": 1 / 60, "ms": 1 / 60000}
    found = re.findall(r"(\d[\d,.]*) (h|min|s|ms)\b", text)
    return [float(number.replace(",", "")) * units[unit] for number, unit in found]


def unevenly(cpu: TrainedRecords, *epoch_seconds: float, left: int = 75) -> TrainedRecords:
    """Train some epochs of many, with 2.5 s of start-up."""
    epochs = tuple(EpochTiming(each - 0.1, 0.1, 1.7e9) for each in epoch_seconds)
    total_seconds = STARTUP_SECONDS + sum(epoch_seconds)
    return with_timings(cpu, epochs=epochs, epochs_left=left, total_seconds=total_seconds)


@pytest.mark.parametrize("seconds", [13.0, 300.0, 550.0, 700.0, 800.0, 850.0, 1000.0, 3600.0, 9e4])
@pytest.mark.parametrize("is_part", [False, True])
def test_the_word_follows_from_the_numbers_on_its_line(
    job: Job, seconds: float, is_part: bool
) -> None:
    """A T4 takes about 4 min; it must save 5 of start and 5 more."""
    cpu = with_timings(job(seconds), operations=HOUR_STEP)
    if is_part:
        each = (seconds - STARTUP_SECONDS) / 100
        cpu = unevenly(cpu, *(each * (1 + 0.01 * (-1) ** n) for n in range(20)), left=80)
    pair = pair_of(cpu, settings=T4)
    found = verdict(pair)
    line, do = found.lines
    assert do.startswith("Next: ")
    assert "Same model: not checked where no GPU ran." in legend([found.job], [], is_asked=False)
    decision, worth = found.job.decision, found.job.decision.worth
    here, there, setup, *saves = minutes(line)  # there with its setup
    assert setup == 5
    ranges = re.search(r"Saves (?:([\d.]+)-)?([\d.]+) (?:min|s) \(minimum", line)
    least, most = 0.0, 0.0
    if ranges:
        most, minimum = saves
        least = most * float(ranges[1] or ranges[2]) / float(ranges[2])
        assert minimum == 5
        assert least <= max(0.0, here - there) * 1.02 <= most * 1.05
    if decision.answer == "Probably yes":
        assert here - there >= 5 * 0.95
        assert do.startswith("Next: `photofinish rent T4`")
    elif decision.answer == "No":
        assert most < 5 * 1.1 if ranges else here <= there + 0.1
    else:
        low, high = worth.gained
        assert low < 5 * 60 <= high
        assert least <= 5 <= most
    if ranges:
        ((unit, longest),) = re.findall(r" (min|s) \([\d.]+-([\d.]+)\) here", line)
        assert most <= minutes(f"{longest} {unit}")[0]
    intervals = re.findall(r"\((\d[\d.,]*)-(\d[\d.,]*)[,)]", line)
    assert all(float(high.replace(",", "")) <= 10.5 * float(low) for low, high in intervals)


@pytest.mark.parametrize(("spread", "kind"), [(0.0, "try a GPU"), (0.3, "measure longer")])
def test_more_epochs_are_measured_only_if_their_spread_decides(
    job: Job, spread: float, kind: str
) -> None:
    epochs = (10 * (1 + spread * (-1) ** number) for number in range(6))
    step = HOUR_STEP.model_copy(update={"flops": 5 * 10**11, "saved_tensor_bytes": 5 * 10**7})
    cpu = unevenly(with_timings(job(100.0), operations=step), *epochs, left=94)
    decision = decide(pair_of(cpu, settings=T4))
    assert (decision.answer, decision.action.kind) == ("Can't tell", kind)


def test_a_close_call_names_the_runs_that_decide(job: Job) -> None:
    settings = T4.model_copy(update={"rental_minutes": 0.1, "worth_saving": 9.0})
    hour = with_timings(job(3600.0), operations=HOUR_STEP)
    found = [
        verdict(pair_of(hour, settings=settings.model_copy(update={"worth_saving": each})))
        for each in (30.0, 56.0, 70.0)
    ]
    assert [each.job.decision.answer for each in found] == ["Probably yes", "Close call", "No"]
    assert found[1].answer.endswith(" (minimum 56 min).")
    start_only = T4.model_copy(update={"rental_minutes": 56.0, "worth_saving": 0.0})
    close = verdict(pair_of(hour, settings=start_only))
    assert close.answer.startswith("Close call, renting a T4: ")
    assert re.search(
        r"including 56 min of setup, .* USD\. Saves -?[\d.]+-[\d.]+ min\.$", close.answer
    )
    action = "for one run, stay on this CPU; for 2 or more, `photofinish rent T4` prints how"
    assert found[1].action.startswith(action)


FREE_T4 = Prices(accelerator_hour={"T4": 0.0})


@pytest.mark.parametrize("seconds", [20.0, 200.0, 560.0, 3600.0])
@pytest.mark.parametrize(
    ("settings", "start"),
    [
        (Terms("T4", 0.0).applied_to(Comparing()), None),
        (Terms("T4", 0.0, 0.0).applied_to(Comparing()), None),
        (Terms("T4", None, 0.0).applied_to(Comparing()), "5 min"),
        (Terms("T4", 1.0, 0.0).applied_to(Comparing()), "60 s"),
        (Terms("RTX-4090").applied_to(Comparing()), None),
        (Terms("RTX-4090", None, 0.0).applied_to(Comparing()), None),
        (Terms("RTX-4090", 3.0).applied_to(Comparing()), "3 min"),
        (Comparing(accelerators=("T4",), rental_minutes=0.0), None),
        (Comparing(accelerators=("T4",), prices=FREE_T4), "5 min"),
    ],
)
def test_a_gpu_that_is_ready_or_free_or_in_no_price_list_is_used_and_never_rented(
    job: Job, seconds: float, settings: Comparing, start: str | None
) -> None:
    pair = pair_of(with_timings(job(seconds), operations=HOUR_STEP), settings=settings)
    decision = decide(pair)
    found, whole = verdict(pair, decision), WholeJob("an hour", 1.0, 1.0, is_hour=True)
    pictures = job_pictures(found.job)
    texts = [text_of(found), *bars(found.job)]
    texts += legend([found.job], found.lines, is_asked=False)
    texts += [repaid_line(JobAnswer(whole, found.job, {})) or ""]
    texts += [f"{each.caption} {each.note} {each.description}" for each in pictures]
    record = answer_of(found)
    text = "\n".join([*texts, all_jobs([found.job]).description, record.model_dump_json()])
    assert not re.search(r"\brent(ed|ing)?\b|\b0 s of|\b0 s are|minimum 0|0\.00 USD", text)
    assert (record.about, record.action.accelerator) == ("using", None)
    said = re.findall(r"([\d.]+ \w+) (?:of|to) (?:its )?(?:setup|start)\b", text)
    assert set(said) == ({start} if start else set())
    if not start:
        assert not re.search("its start|setup|of the machine", text)
    if start is None and not settings.worth_saving:
        assert not re.search("minimum|must save|asked", text)
    if decision.answer == "Probably yes":
        assert found.action == f"train on {with_article(settings.accelerators[0])}."


def test_a_gpu_with_a_price_of_the_users_is_rented_though_no_list_has_it(job: Job) -> None:
    cpu = with_timings(job(3600.0), operations=HOUR_STEP)
    settings = Terms("RTX-4090", None, 0.4).applied_to(Comparing())
    found = verdict(pair_of(cpu, settings=settings))
    assert found.answer.startswith("Probably yes, rent an RTX-4090: 60 min here, ~5.5 min")
    assert found.action == "`photofinish rent RTX-4090` prints how, and starts nothing."


def test_the_price_of_a_machine_of_eight_gpus_says_so_wherever_it_is_shown(job: Job) -> None:
    cpu = with_timings(job(3600.0), operations=HOUR_STEP)
    shown = []
    for name in ("H200", "T4"):
        pair = pair_of(cpu, settings=Comparing(accelerators=(name,)))
        found = verdict(pair)
        (row,) = (line for line in bars(found.job) if name in line)
        shown.append((found.answer, row))
        (candidate,) = answer_of(found).candidates
        assert candidate.hour_price
        assert candidate.hour_price.gpus == (8 if name == "H200" else 1)
    answer, row = shown[0]
    both = pair_of(cpu, settings=Comparing(accelerators=("H200", "T4")))
    pictures = {each.caption: each for each in job_pictures(record_of(both))}
    picture = pictures["Which GPU?"].description
    assert "USD (8-GPU machine)" in answer
    assert "USD (8-GPU machine)" in row
    assert "H200 (8-GPU machine) 5.5 min and 5.79 USD" in picture
    assert "T4 (" not in picture
    assert not any("machine)" in text for text in shown[1])


def test_of_all_gpus_one_that_can_be_rented_decides_and_of_some_also_the_users_own(
    job: Job,
) -> None:
    cpu = with_timings(job(3600.0), operations=HOUR_STEP)
    every, two = (
        decide(pair_of(cpu, settings=Terms(names).applied_to(Comparing())))
        for names in ("all", "RTX-3060,T4")
    )
    assert (every.about, every.answer) == ("renting", "Probably yes")
    assert (two.about, two.gpu_name) == ("using", "RTX-3060")  # which costs nothing more


@pytest.mark.parametrize("worth_saving", [5.0, 30.0, 600.0])
def test_runs_are_named_if_they_are_known_within_ten_times_and_at_most_100(
    job: Job, worth_saving: float
) -> None:
    """By these numbers a T4 is no faster at 200 s, and perhaps not at 300 s."""
    settings = T4.model_copy(update={"worth_saving": worth_saving})
    named = []
    for seconds in (200.0, 240.0, 300.0, 400.0, 450.0, 500.0):
        cpu = with_timings(job(seconds), operations=HOUR_STEP)
        pair = pair_of(cpu, settings=settings)
        decision = decide(pair)
        texts = [verdict(pair, decision).action]
        texts += [each.note for each in job_pictures(record_of(pair))]
        for text in texts:
            if "run" not in text:
                continue
            runs = re.search(r"enting pays off after (\d+)(?:-(\d+))? runs\.", text)
            assert runs, text
            perhaps, surely = int(runs[1]), int(runs[2] or runs[1])
            assert surely <= min(100, 10 * perhaps)
            assert decision.worth.gained_seconds > -300.0  # the start: it is faster
            named.append(seconds)
    known = (400.0, 450.0, 500.0) if worth_saving < 600.0 else ()
    assert named == [seconds for seconds in known for _ in ("answer", "picture")]


def test_without_gpus_to_rent_the_answer_says_what_has_no_estimate(job: Job) -> None:
    found = verdict(pair_of(job(62.0), settings=Comparing(accelerators=())))
    assert found.answer.startswith("Can't tell: 62 s here, but no GPU estimate (params.yaml lists ")
    assert found.job.decision.about == "any GPU"


def test_fewer_epochs_are_what_to_do_where_the_accuracy_was_reached_long_before(job: Job) -> None:
    cpu = job(3000.0)
    rising = [0.5, 0.9, 0.9, 0.9, 0.9]
    history = [
        replace(epoch, validation_accuracy=accuracy)
        for epoch, accuracy in zip(cpu.history, rising, strict=False)
    ]
    early = replace(cpu, history=history)
    found = verdict(pair_of(early, settings=Comparing(accelerators=())))
    assert found.action.startswith("set `epochs: 2`, where validation accuracy peaked at 90.0%.")
    reached = verdict(pair_of(early, settings=Comparing(accelerators=(), target_accuracy=0.8)))
    assert "`epochs: 2`, where validation accuracy reached its target (90.0%)." in reached.action
    cosine = {"schedule": Schedule(name="cosine")}  # two epochs of it have other rates
    experiment = early.record.experiment.model_copy(update=cosine)
    annealed = with_record(early, experiment=experiment)
    assert "epochs" not in verdict(pair_of(annealed, settings=Comparing(accelerators=()))).action
    flat = [replace(epoch, validation_accuracy=0.5) for epoch in history]
    never = verdict(pair_of(replace(cpu, history=flat), settings=Comparing(accelerators=())))
    assert "epochs" not in never.action


def recorded_on_t4(
    cpu: TrainedRecords, seconds: Sequence[float], make_result: MakeResult
) -> Comparison:
    """Compare a job with a T4's record of these epochs."""
    name, total = accelerators()["T4"].full_name, STARTUP_SECONDS + sum(seconds)
    epochs = tuple(each - 0.1 for each in seconds)
    gpu = trained(
        make_result, device="gpu", epoch_seconds=epochs, total_seconds=total, device_name=name
    )
    return with_references(cpu, gpu, settings=T4)


def test_a_recorded_gpu_is_rented_by_its_name_and_not_tried_again(
    job: Job, make_result: MakeResult
) -> None:
    cpu = with_timings(job(3600.0), operations=HOUR_STEP)
    pair = recorded_on_t4(cpu, (60.0,) * 5, make_result)
    assert decide(pair).action == Action("rent", "T4")
    closer = with_timings(job(1900.0), operations=HOUR_STEP)
    unsure = decide(recorded_on_t4(closer, (240.0,) * 5, make_result))
    assert (unsure.answer, unsure.worth.basis) == ("Can't tell", "recorded")
    assert unsure.action.kind == "stay here"


def test_a_record_of_a_single_epoch_does_not_hide_an_estimate(
    job: Job, make_result: MakeResult
) -> None:
    cpu = with_timings(job(3600.0), operations=HOUR_STEP)
    found = decide(recorded_on_t4(cpu, (60.0,), make_result))
    assert (found.answer, found.worth.basis) == ("Probably yes", "estimated")


def test_a_gpu_that_loses_by_its_estimate_is_not_tried(job: Job) -> None:
    cpu = with_timings(job(300.0), operations=HOUR_STEP)
    found = decide(pair_of(cpu, settings=T4.model_copy(update=FREE)))
    assert (found.answer, found.action.kind) == ("Can't tell", "try a GPU")
    slower = decide(
        pair_of(with_timings(job(200.0), operations=HOUR_STEP), settings=T4.model_copy(update=FREE))
    )
    assert (slower.answer, slower.action.kind) == ("Can't tell", "stay here")


def test_a_gpu_of_ones_own_is_no_faster_than_this_machine_lets_it(job: Job) -> None:
    quick = STEP.model_copy(update={"flops": 10**9})
    cpu = with_timings(job(100.0), startup_seconds=50.0, operations=quick)
    pair = pair_of(cpu, settings=T4)
    found = gpu_of_yours(pair, decide(pair).worth)
    assert found
    speedup, (low, high) = found
    assert low <= speedup <= high <= pair.bounds.job.at_most
    slower = pair_of(with_timings(job(200.0), operations=HOUR_STEP), settings=T4)
    assert gpu_of_yours(slower, decide(slower).worth) is None


TOO_LARGE = {"peak_allocated_bytes": 4 * 10**11, "peak_reserved_bytes": 4 * 10**11}


@pytest.mark.parametrize(
    ("names", "step", "why"),
    [
        (("T4",), TOO_LARGE, "a step needs about 377 GiB, and a T4 has 16"),
        (("M1",), {}, "no estimates for M1"),
        ((), {}, "params.yaml lists no GPUs"),
    ],
)
def test_the_reason_for_no_estimate_is_that_of_the_gpus_that_are_named(
    job: Job, names: tuple[str, ...], step: dict[str, int], why: str
) -> None:
    cpu = with_timings(job(3600.0), operations=HOUR_STEP.model_copy(update=step))
    assert why in verdict(pair_of(cpu, settings=Comparing(accelerators=names))).answer


@pytest.mark.parametrize(
    ("waiting_seconds", "resident_seconds", "device"),
    [(0.04, 0.01, "gpu"), (0.04, 0.05, "cpu"), (0.3, 0.2, "cpu")],
)
def test_a_setting_is_changed_on_the_device_that_is_faster_with_it(
    job: Job, waiting_seconds: float, resident_seconds: float, device: DeviceLabel
) -> None:
    """A step takes 10 ms, and its batch 80 ms on the CPU, which `resident` makes twice as fast."""

    def waits(seconds: float, resident: float, kind: DeviceLabel) -> TrainedRecords:
        epoch_seconds = 38 * (0.01 + seconds) + 0.1
        result = with_timings(
            job(STARTUP_SECONDS + 5 * epoch_seconds, kind),
            attribution=made_up_attribution(seconds, other_step_seconds=0.00125),
            loader=resident_tried(0.01 + seconds, resident),
        )
        loader = {"input": LoaderInput(name="loader")}
        experiment = result.record.experiment.model_copy(update=loader)
        return with_record(result, experiment=experiment)

    gpu = waits(waiting_seconds, resident_seconds, "gpu")
    action = decide(pair_of(waits(0.08, 0.045, "cpu"), gpu)).action
    assert (action.kind, action.devices) == ("change a setting", (device,))
