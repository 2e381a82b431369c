"""Speed-up by size, and where it crosses 1, and by the number of devices that share a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MakeExperiment, MakeResult
from result_files import pair_of, paired, trained, with_record, with_timings

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import decide
from photofinish.answer.scaling import all_series, crossing, grid, shared_trainings
from photofinish.answer.uncertainty import MACHINE, combined
from photofinish.reporting import sentences
from photofinish.reporting.report import write_report
from photofinish.reporting.tables import series_table
from photofinish.results.references import reference_of

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


def only(pairs: list[Comparison]) -> Any:
    (series,) = all_series(pairs)
    return series


def test_the_break_even_lies_between_its_neighbours_on_logarithms(timed: Timed) -> None:
    """The logarithms of 0.5 at 16 and 2 at 64 have their middle, 1, at 32."""
    (series,) = all_series(with_speedups(timed, {64: 2.0, 16: 0.5, 256: 4.0}))
    found = series.break_even
    assert found.size == pytest.approx(32)
    # These epochs don't vary, but each device's speed differs between two processes.
    off = math.exp(combined(MACHINE, MACHINE).half_width)
    assert (found.low, found.high) == (pytest.approx(32 / off), pytest.approx(32 * off))
    (row,) = series_table([series])
    assert row == {
        "experiments": "small-b16, small-b64, small-b256",
        "by": "batch size",
        "break-even": "the GPU is faster from 32 on (26.7 to 38.3)",
    }


@pytest.mark.parametrize(
    ("sizes", "ratios", "expected"),
    [
        ((10, 40, 160), (0.5, 2.0, 4.0), 20.0),
        ((10, 100), (0.01, 10.0), 10 ** (1 + 2 / 3)),  # two thirds of the way, in powers of ten
        ((10, 20, 40), (0.25, 0.5, 1.0), 40.0),  # just as fast counts
        ((10, 20, 80), (2.0, 0.5, 2.0), 40.0),  # the last crossing: from there on it stays
        ((10, 20, 40), (1.0, 1.0, 1.0), None),
        ((10, 20, 40), (0.5, 0.5, 0.9), None),
        ((10, 20, 40), (2.0, 2.0, 0.9), None),
    ],
)
def test_a_crossing_by_hand(
    sizes: tuple[int, ...], ratios: tuple[float, ...], expected: float | None
) -> None:
    assert crossing(sizes, ratios) == (expected and pytest.approx(expected))


@pytest.mark.parametrize(
    ("speedups", "words"),
    [
        ({16: 1.5, 64: 3.0}, "none: the GPU is faster at all sizes from 16 to 64"),
        ({16: 0.2, 64: 0.8}, "none: the GPU is slower at all sizes from 16 to 64"),
        ({16: 1.02, 64: 3.0}, "none between 16 and 64"),
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


def test_an_interval_beyond_the_sizes_is_open(timed: Timed) -> None:
    small = timed("b16", (0.6, 0.7, 0.8, 1.1, 1.4), (1.0,) * 5, batch_size=16)
    series = only([small, timed("b64", (3.0,) * 5, (1.0,) * 5, batch_size=64)])
    found = series.break_even
    assert found.low is None
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
    found = {
        series.x_name: [point.pair.experiment for point in series.points]
        for series in all_series(results)
    }
    assert found == {
        "batch size": ["cnn-base", "cnn-batch"],
        "channels of convolution 1": ["cnn-base", "cnn-first"],
        "channels of convolution 2": ["cnn-base", "cnn-second"],
        "units of hidden layer 1": ["cnn-base", "cnn-wide"],
    }


def test_a_series_has_several_sizes_that_both_devices_trained_and_no_other_difference(
    timed: Timed,
) -> None:
    small = timed("b16", (1.0,) * 5, (0.5,) * 5, batch_size=16)
    another_seed = timed("b32", (1.0,) * 5, (0.5,) * 5, batch_size=32, seed=1)
    on_cpu_alone = timed("b64", (2.0,) * 5, None, batch_size=64)
    assert all_series([small, another_seed, on_cpu_alone]) == []


def test_the_interval_holds_the_true_break_even_as_often_as_it_says(timed: Timed) -> None:
    """Times vary by 5 %, and the true speed-up is (size / 48) ** 0.7."""
    random, held, tries = np.random.default_rng(3), 0, 100
    for _ in range(tries):
        pairs = []
        for size in (16, 32, 64, 128):
            cpu, gpu = (
                (size / 48) ** 0.7 * noise for noise in np.exp(random.normal(0, 0.05, (2, 5)))
            )
            pairs.append(timed(f"b{size}", cpu, gpu / (size / 48) ** 0.7, batch_size=size))
        found = only(pairs).break_even
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
    found: Any = grid(pairs, decisions)
    assert (found.row_key, found.rows) == ("optimizer.lr", ("0.1", "0.01"))
    assert (found.column_key, found.columns) == ("batch_size", ("16", "32", "64"))
    assert not found.cells["0.1", "16"].is_bound
    assert grid(pairs[:-1], decisions[:-1]) is None  # a cell is missing
    assert grid(pairs[:3], decisions[:3]) is None  # one setting varies


def test_the_efficiency_of_several_devices_is_the_speed_up_for_each(
    make_result: MakeResult, tmp_path: Path
) -> None:
    """One process here; two and four, and eight with other threads, in records."""
    runs = []
    for seconds, count, threads in ((8.0, 1, 1), (5.0, 2, 1), (4.0, 4, 1), (1.0, 8, 7)):
        run = trained(make_result, epoch_seconds=(seconds,) * 6)
        sharing = {"processes": count, "threads": threads}
        host = run.timings.host.model_copy(update=sharing)
        runs.append(with_timings(run, host=host, device_count=count))
    references = [
        reference_of(each.experiment, each.record, each.timings, each.scores, each.history, name)
        for each, name in zip(runs, ("lab-0", "lab-1", "lab-2", "lab-3"), strict=True)
    ]
    none = make_result(device="gpu", epoch_seconds=(1.0,), unavailable="no driver")
    pairs = paired([runs[0], none], None, references)
    alone, *several = shared_trainings(pairs)
    assert (alone.count, alone.machine, alone.efficiency) == (1, None, 1.0)
    assert alone.efficiency_interval is None  # against itself
    assert [(each.count, each.machine) for each in several] == [(2, "lab-1"), (4, "lab-2")]
    assert [each.efficiency for each in several] == [8 / 5 / 2, 8 / 4 / 4]
    for each in several:
        assert each.efficiency_interval
        low, high = each.efficiency_interval
        assert low < each.efficiency < high
    write_report(pairs, tmp_path)
    assert "1.60x as fast as 1</td>" in (tmp_path / "index.html").read_text(encoding="utf-8")
    write_report([replace(pairs[0], references=())], tmp_path)
    assert "several devices gain" not in (tmp_path / "index.html").read_text(encoding="utf-8")
