"""Speed-ups of experiments that differ in two settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from conftest import MakeExperiment, MakeResult
from result_files import pair_of, trained, with_record

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import decide
from photofinish.answer.grid import grid

Timed = Callable[..., Comparison]


@pytest.fixture
def timed(make_result: MakeResult, make_experiment: MakeExperiment) -> Timed:
    """Make an experiment: `timed("b32", (1.0,) * 5, (2.0,) * 5, batch_size=32)`."""

    def make(name: str, cpu: Sequence[float], gpu: Sequence[float], **settings: Any) -> Comparison:
        experiment = make_experiment(**{"epochs": len(cpu), **settings})
        results = [
            trained(make_result, name, device, epoch_seconds=tuple(epochs))
            for device, epochs in (("cpu", cpu), ("gpu", gpu))
        ]
        return pair_of(*(with_record(each, experiment=experiment) for each in results))

    return make


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
