"""`photofinish gate`: an error if training became slower since another commit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from conftest import MakeTrainer, Project

from photofinish.errors import EXIT_FAILED, EXIT_MISTAKE
from photofinish.regressions import turns
from photofinish.regressions.gate import Change, Rounds

NETWORK = """\
import time
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(64, classes)

    def forward(self, images):
        print("custom code may print")
        return self.linear(images.flatten(1))
"""
PARAMS = {
    "defaults": {"epochs": 1, "batch_size": 128, "optimizer": {"name": "sgd", "lr": 0.1}},
    "devices": {"cpu": {"threads": 1}, "gpu": {"if_missing": "skip"}},
    "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
    "experiments": {"mine": {"dataset": "digits", "model": {"name": "./net.py:Net"}}},
}


def change_of(*ratios: float) -> Change:
    """Make up pairs of processes, in whose rounds neighbours slow each turn down by chance."""
    draw = random.Random(0)
    pairs = []
    for ratio in ratios:
        rounds = Rounds()
        for _ in range(400):
            rounds.old_seconds.append(1.0 + draw.expovariate(5.0))
            rounds.new_seconds.append(ratio * (1.0 + draw.expovariate(5.0)))
        pairs.append(rounds)
    return Change("mine", 1.15, tuple(pairs))


@pytest.mark.parametrize(
    ("ratios", "is_clear"),
    [
        ((1.0,), False),  # one pair may have luck
        ((1.0, 1.01), True),
        ((1.3, 1.32), True),
        ((1.3, 1.05), False),
        ((1.13, 1.17), False),
    ],
)
def test_pairs_of_processes_start_until_their_mean_is_clear(
    ratios: tuple[float, ...], *, is_clear: bool
) -> None:
    change = change_of(*ratios)
    assert change.is_clear == is_clear
    assert change.ratio == pytest.approx(math.prod(ratios) ** (1 / len(ratios)), rel=0.03)


@pytest.mark.parametrize(
    ("ratios", "is_too_slow"),
    [
        ((1.3, 1.32), True),
        ((1.2, 1.4, 1.3, 1.5, 1.25), True),
        ((1.1, 1.12), False),
        ((1.0, 1.0, 2.6, 1.0, 1.05), False),  # a neighbour of one pair
    ],
)
def test_a_mean_above_the_allowed_ratio_is_no_alarm_if_the_pairs_differ_as_much(
    ratios: tuple[float, ...], *, is_too_slow: bool
) -> None:
    assert change_of(*ratios).is_too_slow == is_too_slow


@pytest.mark.parametrize("is_accelerator", [False, True])
def test_waits_for_a_core_are_left_out_unless_an_accelerator_computes_meanwhile(
    *, is_accelerator: bool, trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = iter([0.0, 1000.0])
    monkeypatch.setattr(turns, "waited_for_core_seconds", lambda: {"1": next(waits)})
    monkeypatch.setattr(turns, "is_accelerator", lambda _device: is_accelerator)
    assert (turns.Turns(trainer_of()).take(2) > 0) == is_accelerator


@pytest.mark.slow
def test_only_code_that_changed_is_timed_and_a_slower_one_is_an_error(
    make_project: Callable[[str], Project],
) -> None:
    project = make_project("project")
    (project.root / "net.py").write_text(NETWORK, encoding="utf-8")
    project.write_params(PARAMS)
    project.commit()
    gate = ("python", "-m", "photofinish", "gate", "--base", "HEAD")
    ran = project.run(*gate)
    assert ran.returncode == 0, ran.stderr
    assert "mine on the CPU: unchanged since" in ran.stdout

    # Many times as long as a step, which no neighbour hides.
    slow = NETWORK.replace("    return", "    time.sleep(0.003)\n        return")
    (project.root / "net.py").write_text(slow, encoding="utf-8")
    ran = project.run(*gate)
    assert ran.returncode == EXIT_FAILED, ran.stdout
    assert "mine" in ran.stderr.splitlines()[-1]

    (project.root / "net.py").write_text(NETWORK + "\n1 / 0\n", encoding="utf-8")
    ran = project.run(*gate)
    assert ran.returncode == EXIT_FAILED
    assert "ZeroDivisionError" in ran.stderr
    assert project.run(*gate[:-1], "no-such-commit").returncode == EXIT_MISTAKE
