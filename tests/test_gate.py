"""`photofinish gate`: an error if training is slower than at another commit or elsewhere."""

from __future__ import annotations

import math
import random
import re
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import MakeTrainer, Project, commit_all

from photofinish.custom.imports import name_of
from photofinish.data.packed import PackedSplit
from photofinish.errors import EXIT_FAILED, EXIT_NOT_COMPARED, ConfigError, UserError
from photofinish.gate import turns
from photofinish.gate.change import Change, Rounds, Turn
from photofinish.gate.gate import (
    Checkout,
    TimedTraining,
    changes_since,
    check,
    exported,
    start_side,
)
from photofinish.gate.side import run_here

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
PARAMS: dict[str, Any] = {
    "defaults": {
        "epochs": 1,
        "batch_size": 128,
        "optimizer": {"name": "sgd", "lr": 0.1},
        "time_limit": "20 s",
    },
    "devices": {"cpu": {"threads": 1}, "gpu": {"if_missing": "skip"}},
    "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
    "experiments": {"mine": {"dataset": "digits", "model": {"name": "./net.py:Net"}}},
}


def change_of(*ratios: float, losses: str = "aa") -> Change:
    """Make up pairs of processes, in whose rounds neighbours slow each turn down by chance."""
    draw = random.Random(0)
    pairs = []
    for ratio in ratios:
        rounds = Rounds()
        old, new = losses
        for _ in range(400):
            rounds.old.append(turn(old, 1.0 + draw.expovariate(5.0)))
            rounds.new.append(turn(new, ratio * (1.0 + draw.expovariate(5.0))))
        pairs.append(rounds)
    return Change(1.15, tuple(pairs))


def turn(losses: str, seconds: float = 1.0) -> Turn:
    """Make up a turn. A letter is its losses. A capital has more steps."""
    return Turn(seconds, seconds, 1 + losses.isupper(), losses)


@pytest.mark.parametrize(
    ("ratios", "is_clear", "is_too_slow"),
    [
        ((1.0,), False, False),  # one pair may have luck
        ((1.0, 1.01), True, False),
        ((1.1, 1.12), None, False),
        ((1.3, 1.32), False, True),  # an alarm needs more pairs
        ((1.3, 1.32, 1.31), False, True),
        ((1.3, 1.32, 1.31, 1.3), True, True),
        ((1.2, 1.4, 1.3, 1.5, 1.25), None, True),
        ((1.3, 1.05), False, None),
        ((1.13, 1.17), False, None),
        ((1.0, 1.0, 2.6, 1.0, 1.05), None, False),  # a neighbour of one pair
    ],
)
def test_pairs_of_processes_start_until_their_mean_is_clear_and_pairs_that_differ_are_no_alarm(
    ratios: tuple[float, ...], is_clear: bool | None, is_too_slow: bool | None
) -> None:
    change = change_of(*ratios)
    assert is_clear in (change.is_clear, None)
    assert is_too_slow in (change.is_too_slow, None)
    assert change.ratio == pytest.approx(math.prod(ratios) ** (1 / len(ratios)), rel=0.03)


@pytest.mark.parametrize(
    ("old", "new", "is_same", "bits"),
    [
        (("ab", "ab"), ("ab", "ab"), True, "same losses bit for bit"),
        (("ab", "abc"), ("ax", "axy"), False, "losses differ within 2 steps"),
        # Side by side: the next pair may differ.
        (("ab", "ac"), ("ab", "ac"), True, "same losses bit for bit"),
        (("ab", "ac"), ("ab", "ab"), None, "losses vary from run to run"),
        (("ab", "ab"), ("Ab", "Ab"), None, "losses not compared"),  # of steps captured together
        (("ab", "ab"), ("aB", "ab"), True, "same losses bit for bit"),
    ],
)
def test_losses_of_both_sides_are_compared_and_those_of_a_side_with_themselves(
    old: tuple[str, ...], new: tuple[str, ...], *, is_same: bool | None, bits: str
) -> None:
    sides = zip(old, new, strict=True)
    pairs = [Rounds(list(map(turn, olds)), list(map(turn, news))) for olds, news in sides]
    assert Change(1.15, tuple(pairs)).bits == (is_same, bits)


SAME, OTHER, NOT_COMPARED = "aa", "ab", "aA"


@pytest.mark.parametrize(
    ("ratios", "losses", "exit_code", "with_same_losses"),
    [
        ((1.0, 1.01), SAME, 0, 0),
        ((0.5, 0.51), OTHER, 0, EXIT_FAILED),
        ((1.0, 1.01), NOT_COMPARED, 0, EXIT_NOT_COMPARED),
        ((1.13, 1.17), SAME, EXIT_NOT_COMPARED, EXIT_NOT_COMPARED),
        ((1.13, 1.17), OTHER, EXIT_NOT_COMPARED, EXIT_FAILED),
        ((1.3, 1.32, 1.31, 1.3), SAME, EXIT_FAILED, EXIT_FAILED),
    ],
)
def test_a_slower_training_fails_and_what_is_not_clear_is_skipped_by_git_bisect(
    ratios: tuple[float, ...], losses: str, exit_code: int, with_same_losses: int
) -> None:
    change = change_of(*ratios, losses=losses)
    for same_losses, expected in ((False, exit_code), (True, with_same_losses)):
        with pytest.raises(UserError) if expected else nullcontext() as failure:
            check({"mine": change}, same_losses=same_losses)
        assert (failure.value.exit_code if failure else 0) == expected


def test_equal_trainings_have_equal_losses_in_each_turn(trainer_of: MakeTrainer) -> None:
    sides = [turns.Turns(trainer_of(seed=seed)) for seed in (0, 0, 1)]
    for steps in (1, 2):
        one, other, another = (side.take(steps) for side in sides)
        assert one.steps == other.steps == another.steps == steps + 1
        assert one.losses_sha256 == other.losses_sha256 != another.losses_sha256


def test_a_side_has_the_content_of_deps_and_the_metric_that_early_stopping_follows(
    packed_split: PackedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = {"dataset": "digits", "model": {"name": "mlp", "hidden": [8]}, "deps": ["vocab.txt"]}
    rule = {"monitor": "auroc", "mode": "max", "patience": 3}
    mine |= {"metrics": ["auroc"], "early_stopping": rule}
    Path("params.yaml").write_text(yaml.safe_dump(PARAMS | {"experiments": {"mine": mine}}))
    identities = []
    for words in ("one", "two", "two"):
        Path("vocab.txt").write_text(words)
        run = run_here("mine", "cpu", packed_split.folder, Path("weights"))
        identities.append(run.identity())
        assert run.experiment.monitored
    assert identities[0] != identities[1] == identities[2]


def test_a_side_that_ended_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec <&-\n")  # closes its input before its output
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    here = Checkout(tmp_path, tmp_path, "now")
    training = TimedTraining("mine", "cpu", tmp_path, tmp_path)
    failing = pytest.raises(UserError, match="mine on the CPU")
    with failing, start_side(here, here, training) as side:
        side.take_turn(1)


def test_each_side_runs_its_own_code_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "now/src").mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path / "now/src"), "/newest"])
    monkeypatch.setenv("PYTHONPATH", "/newest")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho $PYTHONPATH\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    now = Checkout(tmp_path / "now", tmp_path, "now")
    for own in (now, replace(now, top=tmp_path / "before")):
        with start_side(own, now, TimedTraining("mine", "cpu", tmp_path, tmp_path)) as side:
            assert side.answer() == f"{own.top}/src:/newest"


def test_scripts_alone_and_unknown_commits_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "repository" / "photofinish").mkdir(parents=True)
    monkeypatch.chdir(folder)
    Path("train.py").touch()
    script = {"command": "python train.py --device {device}", "deps": ["train.py"]}
    Path("params.yaml").write_text(yaml.safe_dump({"scripts": {"mine": script}}))
    commit_all(folder.parent)
    with pytest.raises(UserError, match="mine is a script"):
        changes_since("HEAD", 1.15)
    assert not capsys.readouterr().out
    with pytest.raises(ConfigError, match="no-such-commit"):
        changes_since("no-such-commit", 1.15)


def test_a_checkout_has_its_commits_files_and_other_data_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    mine = {"dataset": "digits", "model": "linear"}
    params = PARAMS | {"experiments": {"mine": mine}}
    Path("params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    Path("third").mkdir()
    Path("third/net.py").write_text("at first", encoding="utf-8")
    first = commit_all(project)
    Path("third/net.py").write_text("changed", encoding="utf-8")
    here = Checkout(project, project, "now")
    before = exported(here, first, tmp_path / "before")
    assert (before.folder / "third/net.py").read_text(encoding="utf-8") == "at first"
    monkeypatch.chdir(before.folder)
    assert name_of(before.folder / "../net.py") == str(tmp_path / "net.py")
    monkeypatch.chdir(before.folder / "third")
    assert name_of(before.folder / "net.py") == "../net.py"
    monkeypatch.chdir(here.folder)
    params["datasets"] = {"digits": params["datasets"]["digits"] | {"test": 0.3}}
    Path("params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    with pytest.raises(UserError, match="mine on the CPU uses the data set digits, which"):
        changes_since("HEAD", 1.15)


@pytest.mark.parametrize("is_accelerator", [False, True])
def test_waits_for_a_core_are_left_out_unless_an_accelerator_computes_meanwhile(
    *, is_accelerator: bool, trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = count(0.0, 1000.0)
    monkeypatch.setattr(turns, "waited_for_core_seconds", lambda: {"1": next(waits)})
    monkeypatch.setattr(turns, "is_accelerator", lambda _device: is_accelerator)
    assert (turns.Turns(trainer_of()).take(2).seconds > 0) == is_accelerator


@pytest.mark.slow
def test_only_code_that_changed_is_timed_and_a_slower_one_is_an_error(project: Project) -> None:
    network, mine = project.root / "net.py", PARAMS["experiments"]
    network.write_text(NETWORK, encoding="utf-8")
    same = {"dataset": "digits", "model": "linear"}
    limit = project.root / "src/photofinish/gate/gate.py"
    text = limit.read_text(encoding="utf-8")
    # Three short rounds of each pair show the planted sleep.
    for line, quicker in (
        ("= 3, 30, 8.0", "= 3, 3, 8.0"),
        ("_TURN_SECONDS = 0.05", "_TURN_SECONDS = 0.01"),
    ):
        assert line in text
        text = text.replace(line, quicker)
    limit.write_text(text, encoding="utf-8")
    project.write_params(PARAMS | {"experiments": {"same": same, **mine}})
    project.commit()
    slow = NETWORK.replace("    return", "    time.sleep(0.002)\n        return")
    network.write_text(slow, encoding="utf-8")
    command = ("python", "-m", "photofinish", "gate")
    ran = project.run(*command, "--base", "HEAD")
    assert ran.returncode == EXIT_FAILED, ran.stdout
    assert re.search("^same on the CPU since .*: unchanged$", ran.stdout, re.MULTILINE)
    assert re.search(r"^error: .*: mine on the CPU\.", ran.stderr, re.MULTILINE)

    network.write_text("import none_such\n", encoding="utf-8")
    ran = project.run(*command, "--base", "HEAD")
    assert ran.returncode == EXIT_NOT_COMPARED, ran.stdout
