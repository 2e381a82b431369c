"""Answers for trainings whose speed-up was published, from records with the published times.

examples/README.md has the two tutorials. The steps' counts are those of the two networks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import MakeExperiment, MakeResult
from result_files import (
    STEP,
    made_up_attribution,
    pair_of,
    trained,
    whole_epoch,
    with_record,
    with_timings,
)

from photofinish.answer.comparison import Comparison, compare
from photofinish.answer.decision import decide
from photofinish.config.compare import Comparing
from photofinish.results.job import JobPair
from photofinish.results.measurements import Operations

IMAGES = 50_000
LINEAR = STEP.model_copy(
    update={"images": 128, "flops": 4_014_080, "kernels": 12, "saved_tensor_bytes": 407_556}
)
LENET = STEP.model_copy(
    update={"images": 1000, "flops": 1_221_840_000, "kernels": 69, "saved_tensor_bytes": 34_240_004}
)
HERE = Comparing(accelerators=("T4",), rental_minutes=0.0, worth_saving=0.0)
"""A T4 that needs no rent is worth it if it is faster."""
MakePair = Callable[..., Any]


@pytest.fixture
def make_pair(make_result: MakeResult, make_experiment: MakeExperiment) -> MakePair:
    """Make a training through a loader without workers, on 50,000 images, with a T4 to rent."""

    def make(
        operations: Operations,
        *,
        epochs: int,
        step_seconds: float,
        batch_seconds: float,
        **settings: Any,
    ) -> Comparison:
        steps = -(-IMAGES // operations.images)
        epoch_seconds = steps * (step_seconds + batch_seconds)
        cpu = trained(
            make_result,
            epoch_seconds=(epoch_seconds,) * epochs,
            total_seconds=2.5 + epochs * (epoch_seconds + 0.1),
            step_seconds=(step_seconds,) * 5,
            attribution=made_up_attribution(batch_seconds, step_seconds=step_seconds),
        )
        loader = {"name": "loader", "workers": 0}
        given = {"epochs": epochs, "batch_size": operations.images, "input": loader}
        cpu = with_record(cpu, experiment=make_experiment(**given | settings))
        part = whole_epoch(epoch_seconds, steps, steps * batch_seconds)
        timed = {"parts": (part,) * 3, "epoch_steps": steps, "training_image_count": IMAGES}
        cpu = with_timings(cpu, operations=operations, **timed)
        return pair_of(cpu, settings=Comparing(accelerators=("T4",)))

    return make


def test_a_linear_network_that_waits_for_its_loader_is_no_faster_on_a_gpu(
    make_pair: MakePair,
) -> None:
    """Published: an epoch takes 14.4 s on the CPU and 14.5 s on a T4."""
    step_seconds = 0.071 / 391  # with the images in memory, as measured
    pair = make_pair(
        LINEAR, epochs=5, step_seconds=step_seconds, batch_seconds=14.4 / 391 - step_seconds
    )
    decision, estimate = decide(pair), pair.renting.options[0].estimate
    assert (decision.answer, decision.worth.reason) == ("No", "loading")
    assert estimate.epoch_seconds == pytest.approx(14.5, rel=0.02)
    low_seconds, high_seconds = estimate.job.interval
    assert low_seconds < estimate.startup_seconds + 5 * (14.5 + 0.1) < high_seconds


@pytest.mark.parametrize("cuda_graphs", ["auto", "off"])
def test_a_lenet_at_batch_1000_is_two_to_three_times_as_fast_on_a_gpu(
    make_pair: MakePair, cuda_graphs: str
) -> None:
    """Published without the CPU, the GPU or the time of loading, on which it depends most.

    So the published factors lie between two estimates: with photofinish's loader, and with the
    tutorial's own, which takes 18 times as long for an image on the same cores.
    """
    answers, intervals = [], []
    for step_seconds, image_seconds in ((0.0665, 10.6e-6), (0.078, 190e-6)):
        pair = make_pair(
            LENET,
            epochs=8,
            step_seconds=step_seconds,
            batch_seconds=1000 * image_seconds,
            cuda_graphs=cuda_graphs,
        )
        decision = decide(pair if answers else compare(JobPair(pair.cpu), HERE))
        estimate = pair.renting.options[0].estimate
        answers.append((decision.answer, decision.worth.reason))
        low_seconds, high_seconds = estimate.job.interval
        total_seconds = pair.cpu.total_seconds
        intervals.append((total_seconds / high_seconds, total_seconds / low_seconds))
    assert answers[0][0] == "Probably yes"
    assert answers[1] == ("No", "loading")  # with the tutorial's loader, and no faster CPU
    (_, fastest), (slowest, _) = intervals
    assert slowest < 2
    assert fastest > 3
