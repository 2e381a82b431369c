"""Causes, shares and predictions, against examples worked by hand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pytest
import yaml
from conftest import MakeExperiment, MakeResult
from dvc.utils.hydra import apply_overrides
from result_files import BUSY, QUIET, made_up_attribution, pair_of, trained, with_record, with_timings

from photofinish.comparing.device_results import StepCosts, Trained, fixed_share, over_an_epoch
from photofinish.comparing.diagnosis import Remedy, diagnose
from photofinish.comparing.verdict import verdict
from photofinish.config.experiment import Experiment
from photofinish.report.rows import comparison_rows
from photofinish.results import EpochTiming
from photofinish.results.measurements import SteadyState, StepsTaken

LOADER = {"name": "loader", "workers": 0}
Change = Callable[..., Trained]


@pytest.fixture
def slow(make_result: MakeResult, make_experiment: MakeExperiment) -> Change:
    """600 images in 38 batches of 16, which take 0.01 s for a step alone, and with it as long as a batch does."""

    def make(
        epoch_seconds: float | None = None,
        cores: int = 4,
        threads: int = 4,
        limit: float | None = None,
        variables: dict[str, str] | None = None,
        settings: dict[str, Any] | None = None,
        timings: dict[str, Any] | None = None,
        device: Any = "cpu",
        step_seconds: float = 0.01,
        steps: int = 3,
        **parts: Any,
    ) -> Trained:
        attribution = made_up_attribution(**{"waiting": 0.001, **parts})
        in_turn_seconds = sum(part[0] for part in attribution.parts.model_dump().values())
        made_up = trained(
            make_result,
            device=device,
            epoch_seconds=(epoch_seconds or 38 * in_turn_seconds,) * 5,
            step_seconds=(step_seconds,) * steps,
            attribution=attribution,
        )
        experiment: Experiment = make_experiment(epochs=5, **(settings or {}))
        host = made_up.timings.host
        assert host.cpu
        assert host.software
        cpu = replace(host.cpu, usable_cores=cores, cgroup_cores_limit=limit)
        software = replace(host.software, variables=variables or {})
        host = host.model_copy(update={"cpu": cpu, "threads": threads, "software": software})
        return with_timings(with_record(made_up, experiment=experiment), **{"host": host, **(timings or {})})

    return make


def test_shares_of_a_step_and_of_an_epoch(slow: Change) -> None:
    costs = slow(waiting=0.09).costs
    assert costs
    assert costs.shares["waiting for data"] == pytest.approx(0.9)  # of 0.09 + 0.003 + 0.005 + 0.002
    assert costs.shares["backward"] == pytest.approx(0.05)
    assert sum(costs.shares.values()) == pytest.approx(1)
    assert costs.busy_share == pytest.approx(0.1)  # 0.01 of 0.1
    assert costs.beside_step_seconds == pytest.approx(0.09)


def test_the_first_step_of_an_epoch_counts_once() -> None:
    # 10 steps: 1 s, then nine of 0.1 s, of which one was disturbed here: 1.9 s in all
    assert over_an_epoch([1.0, 0.1, 0.1, 5.0], 10, are_uneven=False) == pytest.approx(0.19)
    # three workers: nothing twice, then 0.3 s, in turn
    assert over_an_epoch([1.0, 0.0, 0.0, 0.3], 10, are_uneven=True) == pytest.approx(0.19)
    assert over_an_epoch([0.3], 1, are_uneven=False) == 0.3


def test_what_a_step_takes_with_no_images() -> None:
    assert fixed_share(16, 0.020, 2, 0.006) == pytest.approx(0.2)  # 0.001 an image, 0.004 for none
    assert fixed_share(2, 0.006, 16, 0.020) == pytest.approx(2 / 3)
    assert fixed_share(16, 0.020, 2, 0.020) == 1
    assert fixed_share(16, 0.020, 2, 0.021) == 1  # a disturbed measurement, no negative image
    assert fixed_share(16, 0.020, 2, 0.001) == 0
    assert fixed_share(16, 0.020, 16, 0.020) == 0  # of one size, which tells nothing


def test_what_workers_load_ahead_comes_unevenly_and_beside_the_copying(slow: Change) -> None:
    def costs(workers: int) -> StepCosts:
        made_up = slow(settings={"input": {"name": "loader", "workers": workers}}, copying=0.05)
        timings, uneven_seconds = made_up.timings, (0.0, 0.0, 0.0, 0.3)
        assert timings.attribution
        parts = timings.attribution.parts.model_copy(update={"waiting_seconds": uneven_seconds})
        told = {"batch_alone_seconds": uneven_seconds, "parts": parts}
        attribution = timings.attribution.model_copy(update=told)
        found = replace(made_up, timings=timings.model_copy(update={"attribution": attribution})).costs
        assert found
        return found

    in_turn, ahead = costs(0), costs(1)
    assert not in_turn.loads_ahead
    assert in_turn.parts_seconds["waiting for data"] == in_turn.batch_alone_seconds == 0
    assert in_turn.input_seconds == 0.05
    a_batch_seconds = pytest.approx(0.1 * 37 / 38)
    assert ahead.loads_ahead
    assert ahead.parts_seconds["waiting for data"] == ahead.batch_alone_seconds == a_batch_seconds
    assert ahead.input_seconds == a_batch_seconds


@pytest.mark.parametrize(("kind", "told"), [("eager", False), ("graph", True)])
def test_parts_of_a_step_that_was_in_a_graph_are_told_to_be_of_one_by_itself(
    slow: Change, kind: Literal["eager", "graph"], told: bool
) -> None:
    taken = StepsTaken(kind=kind, at_once=8, why="tried")
    found = diagnose(slow(waiting=0.09, settings={"input": LOADER}, device="gpu", timings={"steps_taken": taken}))[0]
    assert found.evidence.startswith("of a step handed out by itself, as none was in the training: ") == told


def test_the_gain_is_between_what_fast_and_slow_epochs_and_steps_tell(slow: Change) -> None:
    tried = SteadyState(steps_per_sample=2, sample_seconds=tuple(0.02 + 0.002 * step for step in range(11)))
    made_up = slow(waiting=0.09, settings={"input": LOADER}, resident=tried)
    epochs = tuple(EpochTiming(38 * each, 0.1, 1.7e9) for each in (0.1,) * 9 + (0.09, 0.11))
    found = diagnose(with_timings(made_up, epochs=epochs))[0]
    assert found.remedy
    # nine of ten tried steps took 11 to 19 ms, and nine of ten epochs' 100
    assert found.remedy.predicted == pytest.approx((100 / 19 / 1.2, 100 / 11 * 1.2))


def test_workers_that_load_ahead_are_what_an_epoch_waits_for_if_a_step_is_shorter(slow: Change) -> None:
    """13 ms a batch when measured alone, 12 in an epoch, 10 a step at the same time: only 2 ms are waited for, and yet
    the step is not the matter."""
    ahead = {"input": {"name": "loader", "workers": 2}}
    result = slow(epoch_seconds=38 * 0.012, waiting=0.002, settings=ahead, batch_alone_seconds=(0.013,) * 3)
    found = diagnose(result)[0]
    assert found.cause == "input-bound"
    assert found.sentence.startswith("the loader takes 100% of an epoch's time")
    assert found.remedy
    assert found.remedy.predicted == pytest.approx((1.2 / 1.2, 1.2 * 1.2))


LARGER = {"other_batch_images": 128, "other_step_seconds": 0.016}
"""16 images in 10 ms and 128 in 16 ms: 54 µs an image, 9.1 ms for none"""


def test_a_larger_batch_that_was_tried_is_predicted(slow: Change) -> None:
    found = diagnose(slow(**LARGER))[0]
    assert found.cause == "launch-bound"
    assert found.remedy
    assert found.remedy.line == "experiments.small-mlp.batch_size: 128"
    # 38 steps of 10 ms and 1 ms for data, against 5 of 16 ms, and 1 ms for data as often as before or now
    expected = 38 * 11 / (5 * 16 + 38 * 1) / 1.2, 38 * 11 / (5 * 16 + 5 * 1) * 1.2
    assert found.remedy.predicted == pytest.approx(expected)


def test_what_would_give_less_than_a_tenth_is_not_advised(slow: Change) -> None:
    tried = SteadyState(steps_per_sample=1, sample_seconds=(0.019,))
    found = diagnose(slow(waiting=0.0001, settings={"input": LOADER}, copying=0.0102, resident=tried))[0]
    assert (found.cause, found.remedy) == ("copy-bound", None)
    assert "`experiments.small-mlp.input: resident` would be 0.89 to 1.28 times as fast: no gain" in found.advice


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        ({"timings": {"load": (BUSY,)}}, "the machine was busy"),
        ({"timings": {"load": (QUIET, BUSY)}}, "the machine was busy"),
        ({"epoch_seconds": 3.8}, "its steps, taken apart after the training, make up 418 ms, and an epoch took 3.80 s"),
        ({"epoch_seconds": 0.3}, "its steps, taken apart after the training, make up 418 ms, and an epoch took 300 ms"),
        (
            {"step_seconds": 0.02},
            "a step, taken apart after the training, took 10.0 ms, and over and over on",
        ),
        ({"step_seconds": 0.005}, "took 10.0 ms, and over and over on one batch 5.00 ms"),
        ({"steps": 2}, "a step is so slow that 2 could be taken apart, and 3 are needed"),
        (
            {"timings": {"attribution": None, "not_attributed": "several processes train together"}},
            "several processes train together",
        ),
    ],
)
def test_figures_that_carry_no_cause_are_told_instead_of_one(slow: Change, measured: dict[str, Any], why: str) -> None:
    (found,) = diagnose(slow(**measured))
    assert (found.of, found.cause, found.remedy) == ("an epoch", "not known", None)
    assert re.search(rf"\b{re.escape(why)}\b", found.evidence)
    assert found.finding == "why an epoch takes as long as it does is not known"
    assert found.advice == f"No remedy can be told: {found.evidence}"


def test_a_step_may_be_slower_beside_its_loader_than_alone(slow: Change) -> None:
    beside_loader = {"waiting": 0.09, "settings": {"input": LOADER}}
    assert diagnose(slow(step_seconds=0.005, **beside_loader))[0].cause == "input-bound"
    assert diagnose(slow(step_seconds=0.02, **beside_loader))[0].cause == "not known"


def test_an_accelerator_that_is_waited_for_after_each_part_may_take_longer_than_in_an_epoch(slow: Change) -> None:
    assert diagnose(slow(epoch_seconds=0.2, device="gpu"))[0].cause == "compute-bound"


GATHERED = {"input": {"name": "resident"}}
COPIED: dict[str, Any] = {"waiting": 0.01, "copying": 0.08, "resident": None}
PINNED = {"name": "loader", "workers": 0, "pin_memory": True}
WAITED = "90% of an epoch's time: 90.0 ms for a batch, and a step on it takes 10.0 ms (input-bound)"
NO_ROOM = "the images don't fit into the device's memory"
OTHERWISE = "it changes what is learned: look at the accuracy too"
COMPUTED = "the arithmetic of its images is 91% of a step"


@pytest.mark.parametrize(
    ("measured", "finding", "advice", "why"),
    [
        (
            {"waiting": 0.09, "settings": GATHERED},
            f"gathering the batches takes {WAITED}",
            "Nothing in params.yaml helps: the images lie on the device already; what is left is to gather and "
            "augment them",
            None,
        ),
        (  # 100 ms in an epoch, and 10 ms where it was tried: a fifth more or less
            {"waiting": 0.09, "settings": {"input": LOADER}},
            f"the loader takes {WAITED}",
            "To try: `experiments.small-mlp.input: resident`, 8.33 to 12 times as fast (an epoch)",
            "tried on some steps: the images lie on the device, normalised once; the same bits are learned",
        ),
        (  # 90 ms a batch by two workers, so 45 by four
            {"waiting": 0.09, "settings": {"input": {"name": "loader", "workers": 2}}, "resident": None},
            f"the loader takes {WAITED}",
            "To try: `experiments.small-mlp.input: {name: loader, workers: 4}`, at most 2.67 times as fast (an epoch)",
            f"{NO_ROOM}; at best, workers share the loading evenly",
        ),
        (
            {**COPIED, "settings": {"input": PINNED}},
            "copying to the device takes 80% of an epoch's time: 80.0 ms for a batch, and a step on it takes 10.0 ms "
            "(copy-bound)",
            "To try: `experiments.small-mlp.input: {name: loader, pin_memory: true, non_blocking: true}`, at most 1.50 "
            "times as fast (an epoch)",
            f"{NO_ROOM}; at best, a copy goes on behind the step before it",
        ),
        (  # where a copy takes less than a step, a step is what is left
            {**COPIED, "copying": 0.011, "waiting": 0.002, "step_seconds": 0.012, "settings": {"input": LOADER}},
            "copying to the device takes 48% of an epoch's time: 11.0 ms for a batch, and a step on it takes 12.0 ms "
            "(copy-bound)",
            "To try: `experiments.small-mlp.input: {name: loader, pin_memory: true, non_blocking: true}`, at most 2.30 "
            "times as fast (an epoch)",
            f"{NO_ROOM}; at best, a copy goes on behind the step before it",
        ),
        (
            {**COPIED, "settings": {"input": {**PINNED, "non_blocking": True}}},
            "copying to the device takes 80% of an epoch's time: 80.0 ms for a batch, and a step on it takes 10.0 ms "
            "(copy-bound)",
            f"Nothing in params.yaml helps: {NO_ROOM}, and copies already don't wait",
            None,
        ),
        (
            LARGER,
            "most of a step is not its images' arithmetic: 9.14 ms of 10.0 ms it would take with none, for "
            "starting each operation and updating 547 weights (launch-bound)",
            "To try: `experiments.small-mlp.batch_size: 128`, 2.95 to 5.90 times as fast (an epoch)",
            f"fewer, larger steps, tried: one takes 16.0 ms; {OTHERWISE}",
        ),
        (
            {"other_step_seconds": 0.0099},
            "most of a step is not its images' arithmetic: 9.89 ms of 10.0 ms it would take with none, for "
            "starting each operation and updating 547 weights (launch-bound)",
            "Nothing in params.yaml helps: the job is small: a larger batch leaves an epoch too few steps, or "
            "the device too little memory, and a faster device would not help",
            None,
        ),
        (
            {"epoch_seconds": 38 * 0.0105},
            f"{COMPUTED} (compute-bound)",
            "Nothing in params.yaml helps: the device is used well; a faster one, or a smaller network, would "
            "shorten it",
            None,
        ),
        (
            {"waiting": 0.002, "bf16": SteadyState(steps_per_sample=1, sample_seconds=(0.004,))},
            f"{COMPUTED} (compute-bound)",
            "To try: `experiments.small-mlp.precision: bf16`, 1.67 to 2.40 times as fast (an epoch)",
            f"a step in bf16 was tried and takes 4.00 ms; {OTHERWISE}",
        ),
        (
            {"threads": 8},
            f"{COMPUTED}, and 8 threads compute where 4 cores may be used (CPU held back)",
            "To try: `devices.cpu.threads: auto`, not predicted",
            "threads that share a core wait for each other",
        ),
        (
            {"waiting": 0.002, "threads": 2},
            f"{COMPUTED}, and 2 threads compute where 4 cores may be used (CPU held back)",
            "To try: `devices.cpu.threads: auto`, at most 1.94 times as fast (an epoch)",
            "4 cores instead of 2, by Amdahl's law; another thread count gives other last bits",
        ),
        (  # 12 ms a step in the epoch, 10 ms alone, of which 2 ms whatever the batch: 2 + 2 + 8 / 4
            {"waiting": 0.002, "threads": 1, "other_step_seconds": 0.003, "variables": {"OMP_NUM_THREADS": "1"}},
            "the arithmetic of its images is 80% of a step, and one thread computes where 4 cores may be used "
            "(CPU held back)",
            "To try: `devices.cpu.threads: 4`, at most 2.40 times as fast (an epoch)",
            "4 cores instead of 1, by Amdahl's law (auto would heed OMP_NUM_THREADS, which is 1); another thread count "
            "gives other last bits",
        ),
        (
            {"waiting": 0.002, "threads": 1, "limit": 2.5},
            f"{COMPUTED}, and one thread computes where 2 cores may be used (CPU held back)",
            "To try: `devices.cpu.threads: auto`, at most 1.94 times as fast (an epoch)",
            "2 cores instead of 1, by Amdahl's law; another thread count gives other last bits",
        ),
        (
            {"threads": 2, "limit": 2.5},
            f"{COMPUTED}, and a limit leaves the CPU 2.5 of 4 cores (CPU held back)",
            "Nothing in params.yaml helps: the container may use 2.5 of 4 cores; raise its limit",
            None,
        ),
    ],
)
def test_each_cause_is_told_with_its_remedy_and_why(
    slow: Change, measured: dict[str, Any], finding: str, advice: str, why: str | None
) -> None:
    (found,) = diagnose(slow(**measured))
    told, _, command = found.advice.partition(": `dvc exp run")
    assert (found.of, found.finding, told) == ("an epoch", finding, advice)
    assert bool(command) == bool(found.remedy)
    assert (found.remedy and found.remedy.why) == why
    assert bool(found.no_remedy) == (found.remedy is None)


@pytest.mark.parametrize(
    ("measured", "tail"),
    [
        ({}, "95% of an epoch; a batch alone takes 1.00 ms, a step alone 10.0 ms, of which 857 µs whatever its batch "
         "(tried with 2 images)"),
        ({"device": "gpu"}, "at most 95% of an epoch; a batch alone takes 1.00 ms, a step alone 10.0 ms, of "
         "which 857 µs whatever its batch (tried with 2 images)"),
        ({"other_batch_images": 16}, "95% of an epoch; a batch alone takes 1.00 ms, a step alone 10.0 ms"),
    ],
)  # fmt: skip
def test_the_evidence_has_a_steps_parts_and_what_each_half_takes_alone(
    slow: Change, measured: dict[str, Any], tail: str
) -> None:
    (found,) = diagnose(slow(epoch_seconds=38 * 0.0105, **measured))
    parts = "waiting for data 9%, forward 27%, backward 45% and optimiser 18%"
    assert found.evidence == f"of a step: {parts}; the device is busy {tail}"


def test_a_job_that_is_mostly_start_up_is_told_so_and_no_line_shortens_it(slow: Change) -> None:
    of_job, of_epoch = diagnose(slow(timings={"startup_seconds": 6.0, "total_seconds": 10.0}))
    assert (of_job.of, of_job.cause, of_job.remedy, of_epoch.of) == ("the job", "start-up-bound", None, "an epoch")
    assert of_job.sentence == "start-up (imports, device, data, warm-up) is 60% of the whole job"
    assert of_job.evidence == "6.00 s of 10.0 s; an epoch takes 418 ms, and there are 5"
    once = "it is paid once, however many epochs follow: a longer training feels it less"
    assert of_job.advice == f"Nothing in params.yaml helps: {once}"


def test_the_verdict_answers_why_the_gpu_is_no_faster(slow: Change) -> None:
    loading = {"waiting": 0.09, "settings": {"input": LOADER}}
    found = verdict(pair_of(slow(**loading), slow(device="gpu", **loading)))
    assert "Why the GPU is no faster: the loader takes 90% of an epoch's time" in found.text
    assert "(input-bound). To try: `experiments.small-mlp.input: resident`" in found.text


@pytest.mark.parametrize(
    ("gpu_seconds", "epochs", "question"),
    [
        (3.8, 5, "Why the GPU is no faster: "),
        (2.9, 5, "Why the GPU is not faster still: "),
        (2.9, 3, "What the GPU's "),
    ],
)
def test_the_question_supposes_no_more_than_was_found(
    slow: Change, gpu_seconds: float, epochs: int, question: str
) -> None:
    gpu = slow(device="gpu", waiting=0.09)
    timings = (EpochTiming(gpu_seconds, 0.1, 1.7e9),) * epochs
    images_per_second = gpu.timings.training_image_count / gpu_seconds
    gpu = with_timings(gpu, epochs=timings, images_per_second=images_per_second)
    assert question in verdict(pair_of(slow(3.8), gpu)).text


@pytest.mark.parametrize(
    ("launch_seconds", "cause"), [((), "launch-bound"), ((0.0095,), "launch-bound"), ((0.004,), "compute-bound")]
)
def test_a_host_that_is_ahead_of_its_device_is_not_what_a_step_waits_for(
    slow: Change, launch_seconds: tuple[float, ...], cause: str
) -> None:
    """16 images take no longer than 2: by the line through both, a step takes that long with none."""
    found = diagnose(slow(device="gpu", other_step_seconds=0.009, launch_seconds=launch_seconds))[0]
    assert found.cause == cause
    assert ("hands out in 4.00 ms and so is ahead of the device" in found.evidence) == (cause == "compute-bound")
    assert "the device is busy at most " in found.evidence


def test_the_comparison_has_the_cause_and_the_shares(slow: Change) -> None:
    job = {"startup_seconds": 6.0, "total_seconds": 10.0}
    row = pd.DataFrame(comparison_rows([pair_of(slow(waiting=0.09, settings={"input": LOADER}, timings=job))])).iloc[0]
    assert (row["cause"], row["epoch_cause"]) == ("start-up-bound", "input-bound")
    assert (row["busy_share"], row["waiting_share"]) == (pytest.approx(0.1), pytest.approx(0.9))


@pytest.mark.parametrize("value", [512, "bf16", {"name": "loader", "workers": 2, "pin_memory": True}])
def test_the_command_beside_a_remedy_makes_dvc_set_that_value(tmp_path: Path, value: object) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("defaults:\n  epochs: 3\nexperiments:\n  small-mlp:\n    input: resident\n")
    remedy = Remedy("experiments.small-mlp.input", value, None, "")
    *command, override = shlex.split(remedy.command)
    assert command == ["dvc", "exp", "run", "--temp", "-S"]
    apply_overrides(params, [override])
    assert yaml.safe_load(params.read_text())["experiments"]["small-mlp"]["input"] == value
