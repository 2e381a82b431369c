"""What the test scores of two devices say about their models, with made-up predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from conftest import MakeResult
from outputs import comparison_rows, verdict
from result_files import changed_history, job_of, pair_of, text_of, trained, with_record, with_seeds

from photofinish.answer.parity import parity
from photofinish.config.compare import Comparing
from photofinish.results.measured import TrainedRecords
from photofinish.results.trained import Predictions

ITEMS = 270
Scored = Callable[..., TrainedRecords]


@pytest.fixture
def scored(make_result: MakeResult) -> Scored:
    """Return a result whose seeds are right on the first so many items, or on these items."""
    on_cpu, on_gpu = (
        trained(make_result, device=device, epoch_seconds=(2.0, 2.0)) for device in ("cpu", "gpu")
    )

    def make(
        hits: Sequence[int] | Sequence[npt.NDArray[np.bool_]],
        device: str = "cpu",
        items: int = ITEMS,
        *,
        draws: bool = True,
        parts: bool = False,
    ) -> TrainedRecords:
        rows = [np.arange(items) < each if isinstance(each, int) else each for each in hits]
        accuracies = [float(row.mean()) for row in rows]
        run = on_cpu if device == "cpu" else on_gpu
        if device == "gpu":
            run = with_record(run, weights_sha256="c" * 64)
        if device == "gpu" and (draws or parts):  # other random numbers give other losses at once
            losses = 1.05 if draws else 1.0, 0.55
            run = replace(run, history=changed_history(run, training_loss=losses))
        step = run.first_step.model_copy(update={"has_dropout": draws})
        scores = run.scores.model_copy(update={"test_accuracy": accuracies[0]})
        predictions = Predictions(np.ones(items, int), rows[0].astype(int))
        run = replace(run, first_step=step, scores=scores, predictions=predictions)
        return with_seeds(run, *accuracies[1:])

    return make


def same_model(cpu: TrainedRecords, gpu: TrainedRecords, points: float = 1.0) -> str:
    settings = Comparing.model_validate({"same_model_points": points})
    return str(comparison_rows([pair_of(cpu, gpu, settings)])[1]["same_model"])


@pytest.mark.parametrize(
    ("cpu", "gpu"),
    [
        ((262, 262), (254, 251)),  # 97, 97 against 94, 93 %
        ((262, 262), (235, 248)),  # 97, 97 against 87, 92 %
        ((259, 260), (258, 259)),  # one item fewer in each
        ((260, 260), (260, 260)),
        ((262,), (254,)),
        ((262,), (262,)),
    ],
)
def test_two_seeds_or_fewer_show_nothing_of_networks_that_draw(
    scored: Scored, cpu: Sequence[int], gpu: Sequence[int]
) -> None:
    first, second = scored(cpu), scored(gpu, "gpu")
    assert same_model(first, second) == same_model(second, first) == "not shown"


def test_what_is_not_shown_comes_with_its_interval_and_what_would_show_it(scored: Scored) -> None:
    text = text_of(verdict(pair_of(scored((262, 262)), scored((254, 251), "gpu"))))
    assert "GPU -3.5 points (-8.5 to +1.4)" in text
    assert "`seeds: 3` would settle it" in text
    one = text_of(verdict(pair_of(scored((262,)), scored((262,), "gpu"))))
    assert "`seeds: 5` would settle it" in one


def test_three_seeds_are_equivalent_only_within_the_points_that_are_set(scored: Scored) -> None:
    items = 10_000
    cpu = scored((9700, 9705, 9695), items=items)
    gpu = scored((9702, 9698, 9701), "gpu", items)
    assert same_model(cpu, gpu) == "equivalent"
    assert "Same model: yes, within 1 point (-0.1" in text_of(verdict(pair_of(cpu, gpu)))
    assert same_model(cpu, gpu, points=0.05) == "not shown"
    fewer = scored((97, 97, 97), items=100), scored((97, 97, 97), "gpu", items=100)
    assert same_model(*fewer) == "not shown"


def test_seeds_that_are_surely_worse_are_different(scored: Scored) -> None:
    cpu, gpu = scored((262, 263, 261)), scored((235, 237, 234), "gpu")
    assert same_model(cpu, gpu) == "different"
    assert "GPU -9.9 points" in text_of(verdict(pair_of(cpu, gpu)))
    # By 90 %, three that are 1.9 points worse would be, too.
    assert same_model(cpu, scored((257, 258, 256), "gpu")) == "not shown"


def test_classes_at_positions_vary_by_item(scored: Scored) -> None:
    """The devices are as good, but differ in each image, of which a tenth is ignored."""
    random, held = np.random.default_rng(1), 0
    for _ in range(200):
        rows, items = [], np.repeat(np.arange(60), 20 * 20)
        items = items[random.random(len(items)) < 0.9]
        for _ in range(2):
            right = np.clip(random.normal(0.9, 0.03, 60), 0, 1)
            rows.append(random.random(len(items)) < right[items])
        cpu, gpu = (scored([row], items=len(items), draws=False) for row in rows)
        runs = [with_record(run, target_shape=(20, 20), samples={"test": 60}) for run in (cpu, gpu)]
        models = [job_of(run).trained for run in runs]
        found = parity(*models, margin=0.01).difference
        assert found
        held += not found.excludes_0
    assert 170 <= held <= 190


def test_equal_scores_are_never_different(scored: Scored) -> None:
    for seeds, expected in ((1, "not shown"), (2, "not shown"), (10, "equivalent")):
        cpu, gpu = (scored((260,) * seeds, device) for device in ("cpu", "gpu"))
        assert same_model(cpu, gpu) == expected


def test_scores_overrule_layers_within_rounding_only_beyond_the_points(scored: Scored) -> None:
    """A difference of five items in 270 is significant, but may be less than a point."""

    def found(cpu: int, gpu: int) -> str:
        first = scored((cpu,), draws=False)
        return same_model(first, scored((gpu,), "gpu", draws=False))

    assert found(260, 257) == "same within rounding"
    assert found(260, 255) == "not shown"
    assert found(260, 230) == "different"


def test_trainings_that_part_after_their_first_epoch_are_the_same_so_far(scored: Scored) -> None:
    def found(cpu: Sequence[int], gpu: Sequence[int], *, parts: bool = True) -> tuple[str, str]:
        first = scored(cpu, items=1000, draws=False)
        second = scored(gpu, "gpu", 1000, draws=False, parts=parts)
        text = text_of(verdict(pair_of(first, second)))
        return same_model(first, second), text

    word, text = found((950,), (936,))
    assert word == "same so far"
    so_far = "yes so far (first step and epoch 1); at the end 1.4 points apart, as two"
    assert f"Same model: {so_far}" in text
    assert found((950,), (936,), parts=False)[0] == "not shown"
    word, text = found((950,), (900,))
    assert word == "different"
    assert "Same model: no, accuracy on the GPU -5.0 points" in text
    assert found((995,), (975,))[0] == "different"  # an error of 0.5 % varies less
    assert found((950, 951, 949), (936, 935, 937))[0] == "same so far"
    assert found((950, 951, 949), (925, 926, 924))[0] == "different"
    assert found((950, 951) * 5, (951, 950) * 5)[0] == "same within rounding"


def test_trainings_that_part_are_seldom_different_if_equal_and_mostly_if_4_points_worse(
    scored: Scored,
) -> None:
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
    scored: Scored, seeds: int
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
    scored: Scored, errors: Sequence[float], draws: bool, expected: str
) -> None:
    main, runs = "mean_absolute_error", []
    for device, each in (("cpu", (0.1, 0.11, 0.12)[: len(errors)]), ("gpu", errors)):
        run = scored((260,) * len(errors), device, draws=draws, parts=True)
        run = with_record(run, task="values", class_names=("value",))
        changed = [
            scores.model_copy(
                update={"main": main, "test_accuracy": None, "metrics": {main: error}}
            )
            for scores, error in zip((run.scores, *run.scores.seeds), each, strict=True)
        ]
        scores = changed[0].model_copy(update={"seeds": tuple(changed[1:])})
        rows = np.full(ITEMS, 1.0) + each[0]
        runs.append(replace(run, scores=scores, predictions=Predictions(np.ones(ITEMS), rows)))
    assert same_model(*runs) == expected
