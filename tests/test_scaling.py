"""Speed-up by size: which experiments are a series, and where it crosses 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from conftest import MakeExperiment, MakeResult
from result_files import pair_of, trained, with_record

from photofinish.comparing.decision import decide
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.scaling import Series, all_series, crossing, grid
from photofinish.reporting import sentences

Timed = Callable[..., Comparison]


@pytest.fixture
def timed(make_result: MakeResult, make_experiment: MakeExperiment) -> Timed:
    """Make an experiment: `timed("b32", (1.0,) * 5, (2.0,) * 5, batch_size=32)`."""

    def make(
        name: str, cpu: Sequence[float], gpu: Sequence[float] | None, **settings: Any
    ) -> Comparison:
        experiment = make_experiment(**{"epochs": len(cpu), **settings})
        results = [
            trained(make_result, name, device, epoch_seconds=tuple(epochs))
            for device, epochs in (("cpu", cpu), ("gpu", gpu))
            if epochs is not None
        ]
        return pair_of(*(with_record(each, experiment=experiment) for each in results))

    return make


def with_speedups(timed: Timed, speedups: dict[int, float], epochs: int = 5) -> list[Comparison]:
    """Make batch sizes whose epochs take the GPU a second."""
    return [
        timed(f"small-b{size}", (speedup,) * epochs, (1.0,) * epochs, batch_size=size)
        for size, speedup in speedups.items()
    ]


def only(pairs: list[Comparison]) -> Series:
    (series,) = all_series(pairs)
    return series


def test_the_break_even_lies_between_its_neighbours_on_logarithms(timed: Timed) -> None:
    """The logarithms of 0.5 at 16 and 2 at 64 have their middle, 1, at 32."""
    (series,) = all_series(with_speedups(timed, {64: 2.0, 16: 0.5, 256: 4.0}))
    found = series.break_even
    assert found.size == pytest.approx(32)
    # These epochs don't vary, but a whole run may be off by 5 %.
    assert (found.low, found.high) == (pytest.approx(32 / 1.05), pytest.approx(32 * 1.05))
    assert sentences.break_even_size(series) == "the GPU is faster from 32 on (30.5 to 33.6)"
    assert (series.experiments, series.x_name) == (
        ["small-b16", "small-b64", "small-b256"],
        "batch size",
    )


@pytest.mark.parametrize(
    ("sizes", "ratios", "expected"),
    [
        ((10, 40, 160), (0.5, 2.0, 4.0), 20.0),
        ((10, 100), (0.01, 10.0), 10 ** (1 + 2 / 3)),  # two thirds of the way, in powers of ten
        ((10, 20, 40), (0.25, 0.5, 1.0), 40.0),  # just as fast counts
        ((10, 20, 80), (2.0, 0.5, 2.0), 40.0),  # the last crossing: from there on it stays
        ((10, 20, 40), (1.0, 1.0, 1.0), -np.inf),
        ((10, 20, 40), (0.5, 0.5, 0.9), np.inf),
        ((10, 20, 40), (2.0, 2.0, 0.9), np.inf),
    ],
)
def test_a_crossing_by_hand(
    sizes: tuple[float, ...], ratios: tuple[float, ...], expected: float
) -> None:
    other = np.full(len(ratios), 2.0)  # a draw that crosses nowhere
    assert crossing(sizes, np.array([ratios, other])).tolist() == [pytest.approx(expected), -np.inf]


@pytest.mark.parametrize(
    ("speedups", "words"),
    [
        ({16: 1.5, 64: 3.0}, "none: the GPU is faster at all sizes from 16 to 64"),
        ({16: 0.2, 64: 0.9}, "none: the GPU is slower at all sizes from 16 to 64"),
        ({16: 1.02, 64: 3.0}, "none between 16 and 64"),
        ({16: 0.2, 64: 0.98}, "none between 16 and 64"),
        ({16: 2.0, 64: 0.5}, "none between 16 and 64"),
    ],
)  # fmt: skip
def test_without_a_break_even_the_reason_is_given(
    timed: Timed, speedups: dict[int, float], words: str
) -> None:
    series = only(with_speedups(timed, speedups))
    found = series.break_even
    assert (found.size, found.low, found.high) == (None, None, None)
    assert sentences.break_even_size(series) == words


def test_one_size_is_no_series(timed: Timed) -> None:
    assert all_series(with_speedups(timed, {64: 2.0})) == []


def test_few_epochs_give_a_break_even_without_an_interval(timed: Timed) -> None:
    series = only(with_speedups(timed, {16: 0.5, 64: 2.0}, epochs=3))
    found = series.break_even
    assert (found.size, found.low, found.high) == (pytest.approx(32), None, None)
    assert sentences.break_even_size(series).endswith(
        "from 32 on (no interval: 3 epochs, and it takes 5)"
    )


def test_an_interval_beyond_the_sizes_is_open(timed: Timed) -> None:
    small = timed("b16", (0.6, 0.7, 0.8, 1.5, 1.6), (1.0,) * 5, batch_size=16)
    series = only([small, timed("b64", (2.0,) * 5, (1.0,) * 5, batch_size=64)])
    found = series.break_even
    assert found.low is None
    assert found.size is not None
    assert found.high is not None
    assert 16 < found.size < found.high < 64
    assert "(below 16 to " in sentences.break_even_size(series)


def test_each_width_and_the_batch_make_a_series_of_their_own(timed: Timed) -> None:
    one, two = (1.0,) * 5, (0.5,) * 5
    cnn = {"name": "cnn", "channels": (4, 8), "hidden": (16,)}
    results = [
        timed("cnn-base", one, two, model=cnn),
        timed("cnn-first", one, two, model={**cnn, "channels": (6, 8)}),
        timed("cnn-second", one, two, model={**cnn, "channels": (4, 32)}),
        timed("cnn-wide", one, two, model={**cnn, "hidden": (64,)}),
        timed("cnn-batch", one, two, model=cnn, batch_size=64),
        timed("cnn-both", one, two, model={**cnn, "hidden": (32,)}, batch_size=128),
        timed("cnn-neither", one, two, model={**cnn, "channels": (16, 9)}),
    ]
    found = {series.x_name: series.experiments for series in all_series(results)}
    assert found == {
        "batch size": ["cnn-base", "cnn-batch"],
        "channels of convolution 1": ["cnn-base", "cnn-first"],
        "channels of convolution 2": ["cnn-base", "cnn-second"],
        "units of hidden layer 1": ["cnn-base", "cnn-wide"],
    }


def test_experiments_that_differ_in_more_than_a_size_are_no_series(timed: Timed) -> None:
    results = [
        timed("a", (1.0,) * 5, (0.5,) * 5, batch_size=16),
        timed("b", (1.0,) * 5, (0.5,) * 5, batch_size=32, seed=1),
    ]
    assert all_series(results) == []


def test_an_experiment_that_no_gpu_trained_is_left_out(timed: Timed) -> None:
    alone = timed("small-b64", (2.0,) * 5, None, batch_size=64)
    assert all_series([*with_speedups(timed, {16: 0.5}), alone]) == []


@pytest.mark.parametrize("epochs", [5, 10])
def test_the_interval_holds_the_true_break_even_as_often_as_it_says(
    timed: Timed, epochs: int
) -> None:
    """Times vary by 5 %, and the true speed-up is (size / 48) ** 0.7."""
    random, held, tries = np.random.default_rng(3), 0, 100
    for _ in range(tries):
        pairs = []
        for size in (16, 32, 64, 128):
            cpu, gpu = (
                (size / 48) ** 0.7 * noise for noise in np.exp(random.normal(0, 0.05, (2, epochs)))
            )
            pairs.append(timed(f"b{size}", cpu, gpu / (size / 48) ** 0.7, batch_size=size))
        found = only(pairs).break_even
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 48 <= found.high
    assert held >= 0.9 * tries


def test_experiments_that_differ_in_two_settings_are_a_grid(timed: Timed) -> None:
    rates, sizes = (0.1, 0.01), (16, 32, 64)
    pairs = [
        timed(f"n-{rate}-{size}", (9.0,) * 5, (1.0,) * 5, batch_size=size,
              optimizer={"name": "sgd", "lr": rate})
        for rate in rates
        for size in sizes
    ]  # fmt: skip
    decisions = [decide(pair) for pair in pairs]
    found = grid(pairs, decisions)
    assert found
    assert (found.row_key, found.rows) == ("optimizer.lr", ("0.1", "0.01"))
    assert (found.column_key, found.columns) == ("batch_size", ("16", "32", "64"))
    assert not found.cells["0.1", "16"].is_bound
    assert grid(pairs[:-1], decisions[:-1]) is None  # a cell is missing
    assert grid(pairs[:3], decisions[:3]) is None  # one setting varies
