"""Images that do not fit into the memory are refused before anything is loaded, with figures and a way out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import MakeExperiment

from photofinish.data.packed import PackedSplit
from photofinish.errors import ConfigError
from photofinish.machine import memory
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.machine.memory import (
    Room,
    SplitSize,
    available_memory_bytes,
    check_memory_needed,
    resident_bytes,
    room_now,
)
from photofinish.runs.run import Run

GIB = 2**30


def gpu_host(*memory_bytes: int | None) -> GpuTarget:
    accelerators = [
        {"kind": "cuda", "name": "Some GPU", "memory_bytes": size, "driver": "1"}
        for size in memory_bytes
    ]
    facts = {"kind": "auto", "count": 1, "if_missing": "skip", "missing": None, "threads": 1}
    return GpuTarget.model_validate_json(
        json.dumps({**facts, "accelerators": accelerators, "cpu": None, "software": None})
    )


@pytest.fixture
def run(
    make_experiment: MakeExperiment, cpu_host: CpuTarget, packed_split: PackedSplit, tmp_path: Path
) -> Run:
    return Run("small", "cpu", make_experiment(), cpu_host, packed_split.folder, tmp_path)


def test_the_bytes_are_those_of_the_tensors(
    make_experiment: MakeExperiment, packed_split: PackedSplit
) -> None:
    from photofinish.training.batches import Normaliser, Part
    from photofinish.training.input_paths import make_batches
    from photofinish.training.torch_device import CPU

    manifest = packed_split.manifest
    size = SplitSize(manifest.shape, manifest.counts["train"], manifest.counts["validation"])
    experiment = make_experiment(batch_size=1000)
    taken, normalise = 0, Normaliser(manifest.mean, manifest.std)
    for part in ("train", "validation"):
        images = Part(part, packed_split.images(part), packed_split.labels(part), normalise)
        ((batch, _),) = make_batches(experiment, images, CPU).eval_batches()
        taken += batch.nbytes
    assert resident_bytes(experiment, size) == taken


def test_a_border_for_random_crops_counts_and_other_types_keep_their_size(
    make_experiment: MakeExperiment,
) -> None:
    plain, cropped = make_experiment(), make_experiment(augmentation={"crop_padding": 2})
    size = SplitSize((1, 8, 8), train=10, validation=5)
    assert resident_bytes(plain, size) == 4 * 64 * 15
    assert resident_bytes(cropped, size) == 4 * (144 * 10 + 64 * 5)
    assert (
        resident_bytes(plain, SplitSize((10,), train=10, validation=5, dtype="float32")) == 4 * 150
    )
    assert resident_bytes(plain, SplitSize((10,), train=10, validation=5, dtype="int64")) == 8 * 150


def test_the_message_names_the_key_both_figures_and_the_alternative(
    make_experiment: MakeExperiment,
) -> None:
    size = SplitSize((3, 224, 224), train=75_750, validation=10_000)
    with pytest.raises(ConfigError) as refused:
        check_memory_needed("food", make_experiment(), size, [Room("the main memory", 24 * GIB)])
    for text in (
        "experiments.food.input",
        "75,750",
        "48.1 GiB",
        "the main memory has 24.0 GiB",
        "`input: loader`",
    ):
        assert text in str(refused.value)
    border = r"of 3x224x224, a border of 9 pixels added for training .*crop_padding\), take"
    with pytest.raises(ConfigError, match=border):
        check_memory_needed(
            "food", make_experiment(augmentation={"crop_padding": 9}), size, [Room("it", GIB)]
        )


def test_processes_that_share_the_memory_hold_a_copy_each_and_the_loader_none(
    make_experiment: MakeExperiment,
) -> None:
    size = SplitSize((1, 16, 16), train=900, validation=100)
    check_memory_needed("small", make_experiment(), size, [Room("the main memory", 1024 * 1000)])
    with pytest.raises(ConfigError, match="once in each of 2 processes"):
        check_memory_needed(
            "small", make_experiment(), size, [Room("the main memory", 1024 * 1000, copies=2)]
        )
    check_memory_needed(
        "small", make_experiment(input={"name": "loader"}), size, [Room("the main memory", 1)]
    )


def test_room_is_the_gpus_own_memory_or_what_is_free_of_the_main_memory(
    cpu_host: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: GIB)
    for host, processes, sizes in (
        (cpu_host, 1, [(GIB, 1)]),
        (gpu_host(8 * GIB, 6 * GIB), 2, [(8 * GIB, 1), (6 * GIB, 1)]),
        (gpu_host(None), 2, [(GIB, 2)]),
    ):
        assert [(room.available_bytes, room.copies) for room in room_now(host, processes)] == sizes


def test_a_training_is_refused_before_it_loads_anything(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.check()
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 1000)
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(ConfigError, match=r"experiments\.small\.input"):
        run.check()


def test_memory_that_other_programs_hold_on_the_device_is_not_free(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from photofinish.runs import setup
    from photofinish.training.world import World

    run, meta = replace(run, device="gpu"), torch.device("meta")
    monkeypatch.setattr(setup, "free_memory_bytes", lambda _device: 1000)
    with pytest.raises(ConfigError, match=r"experiments\.small\.input .*; meta now has 1000 bytes"):
        setup.Setup(run, meta, World(meta))
    monkeypatch.setattr(setup, "free_memory_bytes", lambda _device: None)  # it doesn't tell
    assert run.resident_fits([])
    assert not run.resident_fits([Room("meta now", 1000)])


@pytest.mark.parametrize(
    ("own_group", "files", "available"),
    [
        ("0::/", {"memory.max": "max"}, None),
        (
            "0::/job/step",
            {
                "job/memory.max": "9000",
                "job/memory.stat": "anon 4000\nfile 5000",
                "job/step/memory.max": "max",
            },
            5000,
        ),
        ("0::/of-the-host", {"memory.max": "9000", "memory.stat": "file 1\nanon 9500"}, 0),
    ],
    ids=["no limit", "the group around it", "in a container"],
)
def test_a_control_group_limits_the_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own_group: str,
    files: dict[str, str],
    available: int | None,
) -> None:
    for name, text in {
        "own": own_group,
        **{f"groups/{name}": text for name, text in files.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_OWN_CGROUP", tmp_path / "own")
    if available is None:
        assert available_memory_bytes() > GIB // 16
    else:
        assert available_memory_bytes() == available
