"""The rules by which an answer is chosen, as docs/verdict.md has them, on planted jobs."""

from __future__ import annotations

import random
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from outputs import record_of, verdict
from planted_jobs import (
    LOADER,
    SETTINGS,
    STARTUP_SECONDS,
    compared,
    history_of,
    lasting,
    make_job,
    make_model,
    while_busy,
    with_values,
)
from result_files import STEP, made_up_attribution, resident_tried, text_of

from photofinish.answer.candidates import Candidate, Runs
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Action, Decision, decide, decide_all, gpu_of_yours
from photofinish.answer.record import answer_record, grid
from photofinish.answer.word import decide_rented
from photofinish.commands.ask_options import Terms, gpus
from photofinish.config.compare import Comparing, Prices, accelerators
from photofinish.reporting.answer_words import legend
from photofinish.reporting.answers import answer_of
from photofinish.reporting.ask_lines import JobAnswer, bars, repaid_line
from photofinish.reporting.pictures import all_jobs, job_pictures
from photofinish.reporting.report import summary
from photofinish.results.job import Job
from photofinish.results.trained import DeviceLabel
from photofinish.scripts.script_record import WholeJob
from photofinish.wording import with_article

HOUR_STEP = STEP.model_copy(update={"flops": 10**13, "saved_tensor_bytes": 10**9})
"""Step that takes a T4 1.2 s by estimate, and so 3.8 min in five epochs of 600 samples."""
T4, NO_GPUS = Comparing(accelerators=("T4",)), Comparing(accelerators=())
FREE = T4.model_copy(update={"rental_minutes": 0.0, "worth_saving": 0.0})
OPEN_ANSWERS = "Close call", "Can't tell"


def counted(seconds: float, operations: Any = HOUR_STEP, **changed: Any) -> Job:
    """Make a job on the CPU whose step was counted, so that GPUs can be estimated."""
    return lasting(seconds, operations=operations, **changed)


def decided(
    cpu: Job, settings: Comparing | None = T4, references: tuple[Job, ...] = ()
) -> Decision:
    return decide(compared(cpu, settings=settings, references=references))


def recorded(seconds: float, name: str = "T4", **changed: Any) -> Job:
    """Make another machine's record of a job on a GPU."""
    full_name = accelerators()[name].full_name
    return lasting(seconds, "gpu", device_name=full_name, hardware=full_name, **changed)


@pytest.mark.parametrize(
    ("cpu", "gpu", "answer"),
    [
        (125.0, 10.0, "Yes"),
        (10.0, 125.0, "No"),
        (100.0, 75.0, "Yes"),
        (75.0, 100.0, "No"),
        (100.0, 98.0, "Close call"),
        (20.0, 18.0, "Close call"),
        (4.0, 3.8, "Can't tell"),
        (9.0, 3.5, "Yes"),
    ],
)
def test_one_measured_run_is_enough_for_a_clear_answer(cpu: float, gpu: float, answer: str) -> None:
    decision = decide(compared(lasting(cpu), lasting(gpu, "gpu")))
    worth = decision.worth
    assert (decision.answer, worth.basis, decision.worth.about) == (
        answer,
        "measured",
        "the GPU here",
    )
    assert worth.speedup == pytest.approx(cpu / gpu)
    assert worth.interval[0] < cpu / gpu < worth.interval[1]


def test_a_job_compared_with_itself_has_no_winner_nor_one_that_was_interrupted() -> None:
    """Start-ups are off by up to a factor of 1.3, and whole runs by a few percent."""
    passes = (5.5,) * 5
    slow_start = 1.3 * STARTUP_SECONDS
    slower = make_job(passes, "gpu", startup_seconds=slow_start, seconds=1.05 * 30.75)
    assert decide(compared(make_job(passes), slower)).answer in OPEN_ANSWERS
    cpu = make_job(passes, startup_seconds=10.0)
    twice = make_job(passes, "gpu", startup_seconds=10.0, seconds=47.5, interruptions=1)
    assert decide(compared(cpu, twice)).answer in OPEN_ANSWERS


def test_a_bound_says_no_only_if_it_is_below_the_limit_at_its_end() -> None:
    """Start-up may be 1.3 times as short: 10 s of 14.5 limit a GPU to 1.45x, and to 1.6x."""
    jobs = [lasting(seconds, startup_seconds=10.0) for seconds in (13.0, 14.5)]
    pairs = [compared(job, settings=NO_GPUS) for job in jobs]
    assert all(pair.bounds.job.as_measured < 1.5 for pair in pairs)
    assert [decide(pair).answer for pair in pairs] == ["No", "Can't tell"]
    assert verdict(pairs[0]).answer.endswith("(at most 1.4x faster).")


@pytest.mark.parametrize(("seconds", "about"), [(1000.0, "any GPU"), (7200.0, "renting")])
def test_a_bound_leaves_open_if_a_long_job_saves_minutes(seconds: float, about: str) -> None:
    """It loads for 95 % of its time, and its step was not counted."""
    each = (seconds - STARTUP_SECONDS) / 5
    job = make_job((each,) * 5, waiting_seconds=0.95 * each / 37.5, settings=LOADER)
    assert decided(job).worth.about == about


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
    seconds: float, settings: dict[str, float], answer: str, action: Action
) -> None:
    pair = compared(counted(seconds), settings=T4.model_copy(update=settings))
    decision = decide(pair)
    assert (decision.answer, decision.worth.about) == (answer, "renting")
    assert decision.action == action
    record = answer_of(verdict(pair, decision))
    for number in (record.cpu_seconds, record.gpu_seconds, record.speedup, record.saved_seconds):
        assert number.low < number.value < number.high


def test_the_cheapest_gpu_of_the_best_answer_is_named_also_beside_a_record() -> None:
    gpu, cpu = recorded(30.0, "H100"), counted(6000.0)
    both = Comparing(accelerators=("T4", "H100"))
    decision = decided(cpu, both, (gpu,))
    assert (decision.answer, decision.worth.gpu_name, decision.worth.basis) == (
        "Probably yes", "T4", "estimated",
    )  # fmt: skip
    only = decided(cpu, Comparing(accelerators=("H100",)), (gpu,))
    assert (only.worth.gpu_name, only.worth.basis) == ("H100", "recorded")
    prices = Prices(accelerator_hour={"T4": 1000.0, "H100": 1.0})
    dear = both.model_copy(update={"prices": prices})
    assert decided(cpu, dear).worth.gpu_name == "H100"
    # Its start costs, too: of two quick GPUs the one with the lower price is cheaper.
    quick = counted(6000.0, STEP.model_copy(update={"flops": 10**10}))
    prices = Prices(accelerator_hour={"T4": 1.0, "H100": 1.1})
    started = both.model_copy(update={"prices": prices, "rental_minutes": 5.0})
    assert decided(quick, started).worth.gpu_name == "T4"


def with_factors(gpus: list[Candidate], factors: dict[str, float]) -> tuple[Candidate, ...]:
    """Make these GPUs' times longer or shorter."""
    return tuple(
        replace(gpu, time=replace(gpu.time, seconds=factors.get(gpu.name, 1.0) * gpu.time.seconds))
        for gpu in gpus
    )


def test_no_gpu_is_named_for_the_luck_of_its_estimate() -> None:
    """Estimates are off by 1.52 in nine of ten, each on its own. A T4 and an L4 cost the same."""
    pair = compared(counted(1500.0, HOUR_STEP.model_copy(update={"saved_tensor_bytes": 10**10})))
    usual = {gpu.name: gpu for gpu in pair.candidates}
    draw, off, held = random.Random(0), [], 0
    for _ in range(300):
        factors = {name: 1.52 ** (draw.gauss() / 1.645) for name in usual}
        gpus = with_factors([*usual.values()], factors)
        worth = decide_rented([replace(pair, candidates=gpus)])
        true_seconds, (low, high) = usual[worth.gpu.name].time.seconds, worth.gpu.time.interval
        held += low <= true_seconds <= high
        off.append(worth.gpu.time.seconds / true_seconds)
    assert 0.95 < statistics.median(off) < 1.05
    assert held >= 0.85 * len(off)


def test_of_gpus_with_the_best_answer_one_is_named_that_has_it_by_its_data_sheet_too() -> None:
    """A lucky T4 is cheaper than an L4 and seems to save enough, but not by its data sheet."""
    pair = compared(counted(840.0))
    assert decide(pair).worth.gpu_name != "T4"
    decision = decide(replace(pair, candidates=with_factors([*pair.candidates], {"T4": 0.4})))
    assert (decision.answer, decision.worth.gpu_name) == ("Probably yes", "L4")


def test_a_quiet_record_counts_before_one_of_a_busy_machine() -> None:
    quiet, busy = recorded(100.0), while_busy(recorded(180.0))
    worth = decided(lasting(6000.0), T4, (quiet, busy)).worth
    assert worth.gpu.time.seconds == pytest.approx(100.0)


def test_a_quiet_job_in_a_sweep_with_a_busy_one_has_a_time_and_no_range() -> None:
    sampled = make_job((10.0,) * 6, left=94, operations=HOUR_STEP)
    pairs = [compared(job, settings=T4) for job in (sampled, while_busy(sampled))]
    lines = [verdict(*each).answer for each in zip(pairs, decide_all(pairs), strict=True)]
    for line in lines:
        assert re.search(
            r": ~?[\d.]+ min here, as busy as when measured, for the sweep's 2 jobs, ", line
        )
        assert not re.search("unknown|not known|rough", line)


def test_a_busy_device_that_wins_would_win_when_idle_too() -> None:
    assert decide(compared(while_busy(lasting(10.0)), lasting(125.0, "gpu"))).answer == "No"
    busy = verdict(compared(lasting(3600.0), while_busy(lasting(10.0, "gpu"))))
    times = "60 min on the CPU, 10 s on the GPU, 360x faster"
    assert busy.answer.startswith(f"Yes, use the Some GPU: {times}")  # idle, it takes even less


def test_seeds_and_the_experiments_of_a_sweep_share_a_rented_machine() -> None:
    alone, seeds = (compared(counted(560.0, further_seeds=n), settings=T4) for n in (0, 9))
    assert decide(alone).answer == "No"
    assert decide(seeds).answer == "Probably yes"
    assert ": 93 min here, for all seeds, " in verdict(seeds).answer
    sweep = [alone] * 10
    decisions = decide_all(sweep)
    assert {each.answer for each in decisions} == {"Probably yes"}
    jobs = ", ".join(pair.name for pair in sweep)
    assert summary(answer_record(sweep)) == f"Probably yes, rent a T4: {jobs}."
    line = verdict(alone, decide_all([alone] * 2)[0]).answer
    assert re.search(r": 19 min \(\d+-\d+\) here, for the sweep's 2 jobs, .*\. Saves [\d.]+-", line)
    unknown = HOUR_STEP.model_copy(update={"without_formula": ("_thnn_fused_lstm_cell",)})
    not_estimated = compared(counted(560.0, unknown), settings=T4)
    *others, last = decide_all([*sweep, not_estimated])
    assert {each.answer for each in others} == {"Probably yes"}
    assert last.worth.gpu_name is None


def test_experiments_that_differ_in_two_settings_are_a_grid() -> None:
    def timed(rate: str, size: int) -> Comparison:
        settings = with_values(batch_size=str(size), **{"optimizer.lr": rate})
        return compared(lasting(50.0, settings=settings), lasting(5.0, "gpu", settings=settings))

    pairs = [timed(rate, size) for rate in ("0.1", "0.01") for size in (16, 32, 64)]
    jobs = [record_of(pair) for pair in pairs]
    cells: Any = grid(jobs)
    assert (cells.row_key, cells.rows) == ("optimizer.lr", ("0.1", "0.01"))
    assert (cells.column_key, cells.columns) == ("batch_size", ("16", "32", "64"))
    assert not cells.cells["0.1", "16"].is_bound
    assert grid(jobs[:-1]) is None  # a cell is missing
    assert grid(jobs[:3]) is None  # one setting varies


def test_the_figures_of_a_job_are_its_own_though_its_answer_is_of_its_sweep() -> None:
    """Each trains from two seeds, and takes a T4 about 4 min."""
    pairs, sizes = [], [(10, "16", "1"), (20, "16", "2"), (40, "32", "1"), (80, "32", "2")]
    for minutes_here, batch_size, accumulate in sizes:
        settings = with_values(batch_size=batch_size, accumulate=accumulate)
        cpu = counted(60.0 * minutes_here, settings=settings, further_seeds=1)
        pairs.append(compared(cpu, settings=T4))
    record: Any = answer_record(pairs)
    for job, (minutes_here, row, column) in zip(record, sizes, strict=True):
        worth = job.one_training
        assert (worth.answer, worth.jobs) == ("Probably yes", 4)
        assert worth.cpu_time.seconds == pytest.approx(60 * minutes_here)
        cells = grid(record).cells
        assert worth.speedup == (cells.get((row, column)) or cells[column, row]).figure
        assert worth.there_seconds / 60 == pytest.approx(8.75, abs=0.2)


def minutes(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * {"h": 60.0, "min": 1.0, "s": 1 / 60}[unit]


def test_a_word_follows_from_the_numbers_on_its_line() -> None:
    """Of the golden answers, and of jobs that a T4 takes about 4 min, with 5 of setup."""
    golden = (Path(__file__).parent / "golden" / "answers.txt").read_text(encoding="utf-8")
    words = "Yes|Probably yes|No|Close call|Can't tell"
    lines = re.findall(rf"(?:^|  )((?:{words}).*)", golden, re.MULTILINE)
    for seconds in (13.0, 300.0, 550.0, 700.0, 800.0, 850.0, 1000.0, 3600.0, 9e4):
        lines.append(verdict(compared(counted(seconds), settings=T4)).answer)
    seen = set()
    for line in lines:
        word = re.split("[,:]| yet| GPU", line)[0]
        if ratio := re.search(r"x (faster|slower) \((?:([\d.]+)-)?([\d.]+)\)", line):
            assert (word == "Yes") == (ratio[1] == "faster"), line
            assert float(ratio[2] or ratio[3]) >= 1, line
        elif saves := re.search(r"[Ss]aves ([\d.]+)-([\d.]+) (\w+) \(minimum (.*?)\)", line):
            low, high = (minutes(f"{end} {saves[3]}") for end in saves.groups()[:2])
            least = minutes(saves[4])
            assert (high < least) == (word == "No"), line
            assert word == "No" or low < least <= high, line
        elif both := re.search(r": ~?([\d.]+ \w+).* here, [~*]?([\d.]+ \w+)", line):
            assert word != "Probably yes" or minutes(both[1]) > minutes(both[2]), line
        else:
            continue
        seen.add(word)
    assert seen == {*words.split("|")}


@pytest.mark.parametrize(("spread", "kind"), [(0.02, "try a GPU"), (0.3, "measure longer")])
def test_more_epochs_are_measured_only_if_their_spread_decides(spread: float, kind: str) -> None:
    passes = [10 * (1 + spread * (-1) ** number) for number in range(6)]
    step = HOUR_STEP.model_copy(update={"flops": 5 * 10**11, "saved_tensor_bytes": 5 * 10**7})
    decision = decided(make_job(passes, left=94, operations=step))
    assert (decision.answer, decision.action.kind) == ("Can't tell", kind)


def test_a_close_call_of_a_start_alone_names_no_minutes_to_save() -> None:
    start_only = T4.model_copy(update={"rental_minutes": 56.0, "worth_saving": 0.0})
    close = verdict(compared(counted(3600.0), settings=start_only)).answer
    assert close.startswith("Close call, renting a T4: ")
    assert re.search(r"including 56 min of setup, .* USD\. Saves -?[\d.]+-[\d.]+ min\.$", close)


FREE_T4 = Prices(accelerator_hour={"T4": 0.0})


@pytest.mark.parametrize("seconds", [20.0, 200.0, 560.0, 3600.0])
@pytest.mark.parametrize(
    ("settings", "start"),
    [
        (Terms(("T4",), 0.0).applied_to(Comparing()), None),
        (Terms(("T4",), 0.0, 0.0).applied_to(Comparing()), None),
        (Terms(("T4",), None, 0.0).applied_to(Comparing()), "5 min"),
        (Terms(("T4",), 1.0, 0.0).applied_to(Comparing()), "60 s"),
        (Terms(("RTX-4090",)).applied_to(Comparing()), None),
        (Terms(("RTX-4090",), None, 0.0).applied_to(Comparing()), None),
        (Terms(("RTX-4090",), 3.0).applied_to(Comparing()), "3 min"),
        (Comparing(accelerators=("T4",), rental_minutes=0.0), None),
        (Comparing(accelerators=("T4",), prices=FREE_T4), "5 min"),
    ],
)
def test_a_gpu_that_is_ready_or_free_or_in_no_price_list_is_used_and_never_rented(
    seconds: float, settings: Comparing, start: str | None
) -> None:
    answer, whole = verdict(compared(counted(seconds), settings=settings)), WholeJob("", 1.0, 1.0)
    job = answer.job
    texts = [text_of(answer), *bars(job), *legend([job], answer.lines, is_asked=False)]
    texts += [repaid_line(JobAnswer(replace(whole, is_hour=True), job, {})) or ""]
    texts += [f"{each.caption} {each.note} {each.description}" for each in job_pictures(job)]
    record = answer_of(answer)
    text = "\n".join([*texts, all_jobs([job]).description, record.model_dump_json()])
    assert not re.search(r"\brent(ed|ing)?\b|\b0 s of|\b0 s are|minimum 0|0\.00 USD", text)
    assert (record.about, record.action.accelerator) == ("using", None)
    starts = re.findall(r"([\d.]+ \w+) (?:of|to) (?:its )?(?:setup|start)\b", text)
    assert set(starts) == ({start} if start else set())
    if not start:
        assert not re.search("its start|setup|of the machine", text)
    if start is None and not settings.worth_saving:
        assert not re.search("minimum|must save|asked", text)
    if job.worth.answer == "Probably yes":
        assert answer.action == f"train on {with_article(settings.accelerators[0])}."


def test_a_gpu_with_a_price_of_the_users_is_rented_though_no_list_has_it() -> None:
    settings = Terms(("RTX-4090",), None, 0.4).applied_to(Comparing())
    answer = verdict(compared(counted(3600.0), settings=settings))
    assert answer.answer.startswith("Probably yes, rent an RTX-4090: 60 min here, ~5.5 min")
    assert answer.action == "`photofinish rent RTX-4090` prints how, and starts nothing."


def test_the_price_of_a_machine_of_eight_gpus_says_so_wherever_it_is_shown() -> None:
    job = record_of(compared(counted(3600.0), settings=Comparing(accelerators=("H200", "T4"))))
    of_t4, of_h200 = ([line for line in bars(job) if name in line] for name in ("T4", "H200"))
    pictures = {each.caption: each.description for each in job_pictures(job)}
    assert "USD (8-GPU machine)" in of_h200[0]
    assert "machine)" not in of_t4[0]
    assert "H200 (8-GPU machine) 5.5 min and 5.80 USD" in pictures["Which GPU?"]
    assert "T4 (" not in pictures["Which GPU?"]
    alone = verdict(compared(counted(3600.0), settings=Comparing(accelerators=("H200",))))
    assert "USD (8-GPU machine)" in alone.answer
    (candidate,) = answer_of(alone).candidates
    assert candidate.hour_price.gpus == 8


def test_of_all_gpus_one_that_can_be_rented_decides_and_of_some_also_the_users_own() -> None:
    every, two = (
        decided(counted(3600.0), Terms(gpus(names)).applied_to(Comparing()))
        for names in ("all", "RTX-3060,T4")
    )
    assert (every.worth.about, every.answer) == ("renting", "Probably yes")
    assert (two.worth.about, two.worth.gpu_name) == (
        "using",
        "RTX-3060",
    )  # which costs nothing more


@pytest.mark.parametrize("worth_saving", [5.0, 30.0, 600.0])
def test_runs_are_named_if_they_are_known_within_ten_times_and_at_most_100(
    worth_saving: float,
) -> None:
    """By these numbers a T4 is no faster at 200 s, and perhaps not at 300 s."""
    settings, named = T4.model_copy(update={"worth_saving": worth_saving}), []
    for seconds in (200.0, 240.0, 300.0, 400.0, 450.0, 500.0):
        job = verdict(compared(counted(seconds), settings=settings))
        for text in [job.action, *(each.note for each in job_pictures(job.job))]:
            if "run" not in text:
                continue
            runs = re.search(r"enting pays off after (\d+)(?:-(\d+))? runs\.", text)
            assert runs, text
            perhaps, surely = int(runs[1]), int(runs[2] or runs[1])
            assert surely <= min(100, 10 * perhaps)
            named.append(seconds)
    known = (400.0, 450.0, 500.0) if worth_saving < 600.0 else ()
    assert named == [seconds for seconds in known for _ in ("answer", "picture")]


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
    names: tuple[str, ...], step: dict[str, int], why: str
) -> None:
    cpu = counted(3600.0, HOUR_STEP.model_copy(update=step))
    answer = verdict(compared(cpu, settings=Comparing(accelerators=names)))
    assert answer.answer.startswith("Can't tell: 60 min here, but no GPU estimate (")
    assert why in answer.answer


@pytest.mark.parametrize(
    ("accuracies", "target", "depends", "action"),
    [
        ((0.5, 0.9, 0.9, 0.9, 0.9), None, False, "epochs: 2`, where validation accuracy peaked"),
        ((0.5, 0.85, 0.86, 0.9, 0.95), 0.8, False, "epochs: 2`, where validation accuracy reached"),
        ((0.5, 0.9, 0.9, 0.9, 0.9), None, True, None),  # two epochs of it have other rates
        ((0.5, 0.5, 0.5, 0.5, 0.5), None, False, None),  # it never learned
        ((0.5, 0.6, 0.9, 0.9, 0.9), None, False, None),  # not long before
    ],
)
def test_fewer_epochs_are_what_to_do_where_the_accuracy_was_reached_long_before(
    accuracies: tuple[float, ...], target: float | None, depends: bool, action: str | None
) -> None:
    model = make_model(history=history_of(*(1.0,) * 5, accuracies=accuracies))
    settings = replace(SETTINGS, depends_on_epochs=depends)
    cpu = lasting(3000.0, trained=model, settings=settings)
    wanted = NO_GPUS.model_copy(update={"target_accuracy": target})
    answer = verdict(compared(cpu, settings=wanted))
    assert answer.action.startswith(f"set `{action}") if action else "epochs" not in answer.action


def test_a_recorded_gpu_is_rented_by_its_name_and_not_tried_again() -> None:
    assert decided(counted(3600.0), T4, (recorded(302.5),)).action == Action("rent", "T4")
    unsure = decided(counted(1900.0), T4, (recorded(1202.5),))
    assert (unsure.answer, unsure.worth.basis) == ("Can't tell", "recorded")
    assert unsure.action.kind == "stay here"


def test_a_record_of_a_single_epoch_does_not_hide_an_estimate() -> None:
    once = replace(recorded(62.5), pass_seconds=(60.0,), untimed_epochs=4.0)
    decision = decided(counted(3600.0), T4, (once,))
    assert (decision.answer, decision.worth.basis) == ("Probably yes", "estimated")


def test_a_gpu_that_loses_by_its_estimate_is_not_tried() -> None:
    for seconds, kind in ((300.0, "try a GPU"), (200.0, "stay here")):
        decision = decided(counted(seconds), FREE)
        assert (decision.answer, decision.action.kind) == ("Can't tell", kind)


def test_a_gpu_of_ones_own_is_no_faster_than_this_machine_lets_it() -> None:
    quick = STEP.model_copy(update={"flops": 10**9})
    pair = compared(counted(100.0, quick, startup_seconds=50.0), settings=T4)
    own = gpu_of_yours(pair, decide(pair).worth)
    speedup, (low, high) = own
    assert low <= speedup <= high <= pair.bounds.job.at_most
    slower = compared(counted(200.0), settings=T4)
    assert gpu_of_yours(slower, decide(slower).worth) is None


@pytest.mark.parametrize(
    ("waiting_seconds", "resident_seconds", "device"),
    [(0.04, 0.01, "gpu"), (0.04, 0.05, "cpu"), (0.3, 0.2, "cpu")],
)
def test_a_setting_is_changed_on_the_device_that_is_faster_with_it(
    waiting_seconds: float, resident_seconds: float, device: DeviceLabel
) -> None:
    """A step takes 10 ms, and its batch 80 ms on the CPU, which `resident` makes twice as fast."""

    def waits(seconds: float, resident: float, kind: DeviceLabel) -> Job:
        return make_job(
            (38 * (0.01 + seconds) + 0.1,) * 5,
            kind,
            waiting_seconds=seconds,
            attribution=made_up_attribution(seconds, other_step_seconds=0.00125),
            loader=resident_tried(0.01 + seconds, resident),
            settings=LOADER,
        )

    gpu = waits(waiting_seconds, resident_seconds, "gpu")
    action = decide(compared(waits(0.08, 0.045, "cpu"), gpu)).action
    assert (action.kind, action.devices) == ("change a setting", (device,))
