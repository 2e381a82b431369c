"""`make fit`: the largest batch that there is room for, and on the CPU without taking the room of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import MakeExperiment, MakeTrainer
from torch import nn

from photofinish.data.packed import PackedSplit
from photofinish.errors import MistakeError, UserError
from photofinish.machine.fingerprint import CpuHost
from photofinish.runs import fit
from photofinish.runs.fit import largest, largest_batch, run_of
from photofinish.runs.run import Run

GIB = 2**30
PARAMS = """
defaults: {epochs: 1, batch_size: 32, optimizer: {name: sgd, lr: 0.1}}
datasets: {digits: {source: digits, validation: 0.1, test: 0.1}}
experiments: {small: {dataset: digits, model: linear}}
"""


@pytest.mark.parametrize(("limit", "most"), [(1, 900), (2, 900), (3, 900), (100, 900), (899, 900), (5000, 900)])
def test_it_is_found_by_doubling_and_bisection(limit: int, most: int) -> None:
    tried: list[int] = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number <= limit

    found = largest(fits, most)
    assert found <= limit
    assert found == 0 if limit < 2 else found >= min(limit, most) * 31 / 32 - 1
    assert len(tried) < 20
    assert max(tried) <= most


class _Planted(nn.Linear):
    """Runs out of memory as a GPU does."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if len(images) > 50:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(images.flatten(1))


def test_a_trainer_is_tried_until_memory_is_out_and_stays_as_it_was(
    make_trainer: MakeTrainer, make_experiment: MakeExperiment, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(make_experiment(), _Planted(64, 3))
    before = [weights.clone() for weights in trainer.network.parameters()]
    assert largest_batch(trainer) == 50
    told = capsys.readouterr().out.splitlines()
    assert "64 images: out of memory" in told
    assert any(line.startswith("32 images: a step of ") for line in told)
    assert all(map(torch.equal, before, trainer.network.parameters()))


def test_any_other_failure_is_told(make_trainer: MakeTrainer, make_experiment: MakeExperiment) -> None:
    trainer = make_trainer(make_experiment(), nn.Linear(5, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        largest_batch(trainer)


@pytest.mark.parametrize(("processes", "most"), [(1, 31), (2, 15)])
def test_on_the_cpu_nothing_is_tried_that_would_take_nearly_all_the_free_memory(
    make_trainer: MakeTrainer,
    make_experiment: MakeExperiment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    processes: int,
    most: int,
) -> None:
    """A quarter of a GiB an image, and 10 GiB free at first, for all processes together."""
    used = [1]
    step: Callable[..., object] = fit._try

    def grown(trainer: object, images: int) -> object:
        used[0] = max(used[0], 1 + images)
        return step(trainer, images)

    monkeypatch.setattr(fit, "_try", grown)
    monkeypatch.setattr(fit, "peak_memory_bytes", lambda _device: used[0] * GIB // 4)
    monkeypatch.setattr(fit, "available_memory_bytes", lambda: 10 * GIB - used[0] * GIB // 4)
    assert largest_batch(make_trainer(make_experiment()), processes) == most
    assert used[0] == most + 1
    assert (
        f"{most + 1} images: not tried, they would take nearly all the memory that is free" in capsys.readouterr().out
    )


def test_a_wrong_name_and_a_split_that_is_not_there_are_told(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS, encoding="utf-8")
    with pytest.raises(MistakeError, match=r"has no experiment 'smal', only small; did you mean 'small'"):
        run_of("smal", "cpu", tmp_path / "params.yaml", tmp_path)
    with pytest.raises(UserError, match=r"splits/digits is not there yet: run `dvc repro split@digits` first"):
        run_of("small", "cpu", tmp_path / "params.yaml", tmp_path)


def test_several_devices_find_no_larger_batch_than_there_are_images(
    packed_split: PackedSplit, make_experiment: MakeExperiment, cpu_host: CpuHost
) -> None:
    images = packed_split.manifest.counts["train"]
    host = cpu_host.model_copy(update={"processes": 4})
    told = fit.fit(Run("small", "cpu", make_experiment(batch_size=4), host, packed_split.folder, Path()))
    assert f"at most {images:,} images (all there are) fit into a batch over 4 devices" in told
    assert f"experiments.small.batch_size: {images}\n" in told
