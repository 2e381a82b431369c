"""A training's data and networks: whose mistakes are named, and which batches are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MakeExperiment

from photofinish.data.packed import PackedSplit
from photofinish.errors import MistakeError
from photofinish.machine.fingerprint import CpuHost
from photofinish.runs.run import Run, code_sha256
from photofinish.runs.setup import Setup
from photofinish.source_code import StageCode, stage_code
from photofinish.training.teams import Team
from photofinish.training.torch_device import CPU


def test_a_runs_key_holds_the_sources_that_it_runs_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that another word in the report leaves checkpoints where they are found again."""
    listed: list[str] = []

    def list_code(script: Path) -> StageCode:
        code = stage_code(script)
        listed.extend(code.root)
        return code

    monkeypatch.setattr("photofinish.runs.run.stage_code", list_code)
    code_sha256.__wrapped__()
    for needed in ("training/trainer.py", "runs/train.py", "models/registry.py", "measuring/attribution.py"):
        assert f"photofinish/{needed}" in listed
    assert not [file for file in listed if file.startswith(("photofinish/report/", "photofinish/comparing/"))]


class _OneOfTwo(Team):
    rank, size = 1, 2


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"name": "lenet"}, r"experiments\.tiny\.model lenet needs images .* those of datasets\.small$"),
        (
            {"name": "cnn", "channels": (4, 4, 4, 4)},
            r"experiments\.tiny\.model\.channels \[4, 4, 4, 4\] .* datasets\.small$",
        ),
        ({"name": "resnet18"}, r"experiments\.tiny\.model resnet18 takes images of 3 channels.* datasets\.small$"),
    ],
)
def test_a_network_that_does_not_fit_the_images_is_a_mistake_of_its_experiment(
    make_experiment: MakeExperiment, cpu_host: CpuHost, packed_split: PackedSplit, model: dict[str, Any], said: str
) -> None:
    experiment = make_experiment(model=model)
    run = Run("tiny", "cpu", experiment, cpu_host, packed_split.folder, Path())
    with pytest.raises(MistakeError, match=said):
        Setup(run, CPU, Team(CPU)).new_trainer()


@pytest.mark.parametrize("augmentation", [{}, {"flip": 0.5, "crop_padding": 2}], ids=["as they are", "augmented"])
def test_the_first_batch_is_shown_whole_where_a_process_trains_on_a_share_of_it(
    make_experiment: MakeExperiment, cpu_host: CpuHost, packed_split: PackedSplit, augmentation: dict[str, Any]
) -> None:
    experiment = make_experiment(augmentation=augmentation)
    run = Run("tiny", "cpu", experiment, cpu_host, packed_split.folder, Path())
    alone, shared = Setup(run, CPU, Team(CPU)), Setup(run, CPU, _OneOfTwo(CPU))
    whole, shown, share = (
        next(iter(batches.train_batches(0))) for batches in (alone.training, shared.whole_batches(), shared.training)
    )
    for tensor, expected in zip(shown, whole, strict=True):
        assert torch.equal(tensor, expected)
    assert len(share[1]) == len(whole[1]) / 2
    assert alone.whole_batches() is alone.training
