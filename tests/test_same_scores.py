"""What the test scores of two devices say about their models, with made-up predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from outputs import verdict
from planted_jobs import FIRST_STEP, SCORES, compared, history_of, lasting, make_model, with_seeds
from result_files import text_of

from photofinish.answer.parity import parity
from photofinish.results.trained import DeviceLabel, Predictions, Trained

ITEMS = 270


def scored(
    hits: Sequence[int] | Sequence[npt.NDArray[np.bool_]],
    device: DeviceLabel = "cpu",
    items: int = ITEMS,
    *,
    draws: bool = True,
    parts: bool = False,
) -> Trained:
    """Make a model whose seeds are right on the first so many items, or on these items."""
    rows = [np.arange(items) < each if isinstance(each, int) else each for each in hits]
    first, *others = (float(row.mean()) for row in rows)
    losses = 1.0, 0.5
    if device == "gpu" and (draws or parts):  # other random numbers give other losses at once
        losses = 1.05 if draws else 1.0, 0.55
    model = make_model(
        device,
        weights_sha256=device[0] * 64,
        history=history_of(*losses),
        first_step=FIRST_STEP.model_copy(update={"has_dropout": draws}),
        scores=SCORES.model_copy(update={"test_accuracy": first}),
        predictions=Predictions(np.ones(items, int), rows[0].astype(int)),
    )
    return with_seeds(model, *others) if others else model


def same_model(cpu: Trained, gpu: Trained, points: float = 1.0) -> str:
    return parity(cpu, gpu, points / 100).likeness


MANY, PARTING = {"items": 10_000}, {"items": 1000, "draws": False, "parts": True}
EQUAL_STEPS = {"draws": False}


@pytest.mark.parametrize(
    ("cpu", "gpu", "networks", "likeness"),
    [
        # Networks that draw: one or two seeds show nothing.
        ((262, 262), (254, 251), {}, "not shown"),  # 97, 97 against 94, 93 %
        ((262, 262), (235, 248), {}, "not shown"),  # 97, 97 against 87, 92 %
        ((259, 260), (258, 259), {}, "not shown"),  # one item fewer in each
        ((260, 260), (260, 260), {}, "not shown"),
        ((262,), (254,), {}, "not shown"),
        ((260,), (260,), {}, "not shown"),
        # Three are equivalent within a point, and different if they are surely worse.
        ((9700, 9705, 9695), (9702, 9698, 9701), MANY, "equivalent"),
        ((97, 97, 97), (97, 97, 97), {"items": 100}, "not shown"),
        ((260,) * 10, (260,) * 10, {}, "equivalent"),
        ((262, 263, 261), (235, 237, 234), {}, "different"),
        ((262, 263, 261), (257, 258, 256), {}, "not shown"),  # by 90 %, they would be different
        # Layers within rounding are overruled by scores only beyond a point.
        ((260,), (257,), EQUAL_STEPS, "same within rounding"),
        ((260,), (255,), EQUAL_STEPS, "not shown"),  # significant, but it may be less
        ((260,), (230,), EQUAL_STEPS, "different"),
        # Trainings that part after their first epoch may end as two seeds do.
        ((950,), (936,), PARTING, "same so far"),
        ((950,), (936,), {"items": 1000, "draws": False}, "not shown"),
        ((950,), (900,), PARTING, "different"),
        ((995,), (975,), PARTING, "different"),  # an error of 0.5 % varies less
        ((950, 951, 949), (936, 935, 937), PARTING, "same so far"),
        ((950, 951, 949), (925, 926, 924), PARTING, "different"),
        ((950, 951) * 5, (951, 950) * 5, PARTING, "same within rounding"),
    ],
)
def test_models_are_alike_as_far_as_their_seeds_and_items_show(
    cpu: Sequence[int], gpu: Sequence[int], networks: dict[str, Any], likeness: str
) -> None:
    first, second = scored(cpu, **networks), scored(gpu, "gpu", **networks)
    assert same_model(first, second) == same_model(second, first) == likeness


def test_points_that_are_set_decide_what_is_equivalent() -> None:
    cpu = scored((9700, 9705, 9695), **MANY)
    gpu = scored((9702, 9698, 9701), "gpu", **MANY)
    assert same_model(cpu, gpu, points=0.05) == "not shown"


@pytest.mark.parametrize(
    ("cpu", "gpu", "networks", "words"),
    [
        ((262, 262), (254, 251), {}, "GPU -3.5 points (-8.5 to +1.4); `seeds: 3` would settle it"),
        ((262,), (262,), {}, "`seeds: 5` would settle it"),
        ((9700, 9705, 9695), (9702, 9698, 9701), MANY, "Same model: yes, within 1 point (-0.1"),
        ((262, 263, 261), (235, 237, 234), {}, "GPU -9.9 points"),
        ((950,), (900,), PARTING, "Same model: no, accuracy on the GPU -5.0 points"),
        ((950,), (936,), PARTING, "Same model: yes so far (first step and epoch 1); at the end 1.4 "
         "points apart, as two"),
    ],
)  # fmt: skip
def test_the_answer_has_the_interval_and_what_would_settle_it(
    cpu: Sequence[int], gpu: Sequence[int], networks: dict[str, Any], words: str
) -> None:
    jobs = (
        lasting(30.0, device, trained=scored(hits, device, **networks))
        for device, hits in (("cpu", cpu), ("gpu", gpu))
    )
    assert words in text_of(verdict(compared(*jobs)))


def test_classes_at_positions_vary_by_item() -> None:
    """The devices are as good, but differ in each image, of which a tenth is ignored."""
    random, held = np.random.default_rng(1), 0
    for _ in range(200):
        rows, items = [], np.repeat(np.arange(60), 20 * 20)
        items = items[random.random(len(items)) < 0.9]
        for _ in range(2):
            right = np.clip(random.normal(0.9, 0.03, 60), 0, 1)
            rows.append(random.random(len(items)) < right[items])
        cpu, gpu = (scored([row], items=len(items), draws=False) for row in rows)
        models = [replace(each, target_shape=(20, 20), test_samples=60) for each in (cpu, gpu)]
        found = parity(*models, margin=0.01).difference
        held += not found.excludes_0
    assert 170 <= held <= 190


def test_trainings_that_part_are_seldom_different_if_equal_and_mostly_if_4_points_worse() -> None:
    """The seeds' accuracies have a standard deviation of 1 point."""
    random, words = np.random.default_rng(7), []
    for less in (0.0, 0.04):
        for _ in range(200):
            right = random.beta(9, 0.5, 10_000)
            (cpu,), (gpu,) = (drawn(random, right - each, 1, 0.01) for each in (0.0, less))
            first = scored([cpu], items=10_000, draws=False)
            second = scored([gpu], "gpu", 10_000, draws=False, parts=True)
            words.append(same_model(first, second))
    equal, worse = words[:200], words[200:]
    assert equal.count("different") <= 0.02 * len(equal)
    assert worse.count("different") >= 0.5 * len(worse)


def drawn(
    random: np.random.Generator, right: npt.NDArray[np.float64], seeds: int, seed_sd: float
) -> list[npt.NDArray[np.bool_]]:
    shifts = random.normal(0, seed_sd, (seeds, 1))
    return list(random.random((seeds, len(right))) < right + shifts)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_devices_that_train_alike_are_seldom_different_and_worse_ones_never_equivalent(
    seeds: int,
) -> None:
    random = np.random.default_rng(seeds)
    alike, worse = [], []
    for index in range(150):
        right = random.beta(9, 0.5, ITEMS)
        seed_sd = (0.003, 0.005, 0.01)[index % 3]
        cpu, gpu, bad = (drawn(random, right - less, seeds, seed_sd) for less in (0, 0, 0.05))
        alike.append(same_model(scored(cpu), scored(gpu, "gpu")))
        worse.append(same_model(scored(cpu), scored(bad, "gpu")))
    assert alike.count("different") <= 0.1 * len(alike)
    assert "equivalent" not in worse


@pytest.mark.parametrize(
    ("errors", "draws", "expected"),
    [
        ((0.1001, 0.1102, 0.1199), True, "equivalent"),
        ((0.30, 0.11, 0.40), True, "not shown"),  # 2.5 times as large, by chance or not
        ((0.115,), False, "same so far"),
        ((0.30,), False, "different"),
        ((np.nan,), False, "different"),
    ],
)
def test_errors_of_values_are_compared_as_a_share(
    errors: Sequence[float], draws: bool, expected: str
) -> None:
    main, models = "mean_absolute_error", []
    for device, each in (("cpu", (0.1, 0.11, 0.12)[: len(errors)]), ("gpu", errors)):
        model = scored((260,) * len(errors), device, draws=draws, parts=True)
        first, *others = (
            scores.model_copy(update={"main": main, "test_accuracy": None, "metrics": {main: by}})
            for scores, by in zip((model.scores, *model.scores.seeds), each, strict=True)
        )
        changed = {
            "task": "values",
            "class_names": ("value",),
            "scores": first.model_copy(update={"seeds": tuple(others)}),
            "predictions": Predictions(np.ones(ITEMS), np.full(ITEMS, 1.0) + each[0]),
        }
        models.append(replace(model, **changed))
    assert same_model(*models) == expected
