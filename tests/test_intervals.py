"""A ratio of medians and how often its interval holds the truth."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import MakeResult
from result_files import trained

from photofinish.comparing.speedups import (
    LEAST_VALUES,
    RUN_TO_RUN,
    epoch_speedup,
    percentile_interval,
    ratio_interval,
)


def test_a_ratio_is_that_of_the_medians(make_result: MakeResult) -> None:
    cpu = trained(make_result, epoch_seconds=(1.0, 100.0, 6.0)).timings
    assert epoch_speedup(cpu, trained(make_result, epoch_seconds=(2.0, 3.0)).timings).ratio == 2.4
    assert ratio_interval([3.0] * 5, [0.5] * 5) == (6.0, 6.0)


@pytest.mark.parametrize(
    ("above", "below"), [(LEAST_VALUES - 1, 50), (50, LEAST_VALUES - 1), (1, 1)]
)
def test_too_few_values_give_no_interval(above: int, below: int) -> None:
    assert ratio_interval([1.0] * above, [2.0] * below) is None


def test_the_same_values_give_the_same_interval() -> None:
    above = [1 + 37 * place % 101 for place in range(60)]
    below = [200 + 53 * place % 97 for place in range(40)]
    assert ratio_interval(above, below) == ratio_interval(above, below)


@pytest.mark.parametrize("count", [LEAST_VALUES, 10, 30])
def test_the_interval_holds_the_true_ratio_in_nine_of_ten_tries(count: int) -> None:
    """Times vary by 5 %, and the true ratio is 3."""
    random, held = np.random.default_rng(1), 0
    for _ in range(200):
        cpu, gpu = (seconds * np.exp(random.normal(0, 0.05, count)) for seconds in (3.0, 1.0))
        interval = ratio_interval(cpu.tolist(), gpu.tolist())
        assert interval is not None
        held += interval[0] <= 3.0 <= interval[1]
    assert held >= 180


def test_a_device_rarely_beats_itself() -> None:
    """One epoch in ten takes twice as long."""
    random, winners = np.random.default_rng(2), 0
    for _ in range(100):
        once, again = (
            np.exp(random.normal(0, 0.03, 10)) * np.where(random.random(10) < 0.1, 2.0, 1.0)
            for _ in range(2)
        )
        interval = ratio_interval(once.tolist(), again.tolist())
        assert interval is not None
        winners += not interval[0] <= 1 <= interval[1]
    assert winners <= 5


def test_the_margin_of_a_run_prevents_false_winners(
    make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare a device with itself, where each whole run is off by 1.5 %."""
    random = np.random.default_rng(3)

    def run() -> tuple[float, ...]:
        return tuple(np.exp(random.normal(0, 0.015) + random.normal(0, 0.01, 10)))

    def winners(margin: float) -> int:
        monkeypatch.setattr("photofinish.comparing.speedups.RUN_TO_RUN", margin)
        pairs = [
            [trained(make_result, device=device, epoch_seconds=run()) for device in ("cpu", "gpu")]
            for _ in range(100)
        ]
        return sum(
            epoch_speedup(cpu.timings, gpu.timings).is_faster is not None for cpu, gpu in pairs
        )

    assert winners(RUN_TO_RUN) <= 5
    assert winners(1.0) > 20


def test_an_interval_may_have_infinite_draws() -> None:
    drawn = np.arange(1.0, 1000.0)
    assert percentile_interval(drawn) == (50.0, 950.0)
    drawn[-60:] = np.inf
    assert percentile_interval(drawn) == (50.0, np.inf)
    drawn[-60:-40] = 960.0
    assert percentile_interval(drawn) == (50.0, 960.0)
