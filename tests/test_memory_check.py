"""Images that can't fit where they are to lie are refused before anything is loaded, with figures and the way out."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, MakeExperiment

from photofinish.data.packed import PackedSplit
from photofinish.errors import MistakeError
from photofinish.machine import memory
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.machine.memory import (
    Room,
    SplitSize,
    available_memory_bytes,
    refuse_too_large,
    resident_bytes,
    room_ever,
    room_now,
    total_memory_bytes,
)
from photofinish.params.reader import read_params
from photofinish.plan import write_plan
from photofinish.runs.run import Run

GIB = 2**30
TEN_MILLION = """
defaults: {{epochs: 1, batch_size: 128, optimizer: {{name: sgd, lr: 0.1}}, {settings}}}
datasets:
  many: {{source: synthetic, images: {images}, shape: [3, 32, 32], classes: 10, validation: 0.1, test: 0.1}}
experiments:
  large: {{dataset: many, model: linear}}
"""


@pytest.fixture
def one_gibibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "total_memory_bytes", lambda: GIB)
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: GIB // 2)


def plan(params_file: Path, images: int = 10_000_000, settings: str = "input: resident") -> Path:
    params_file.write_text(TEN_MILLION.format(images=images, settings=settings), encoding="utf-8")
    folder = params_file.parent / "plan"
    write_plan(read_params(params_file), folder, params_file.parent / "splits", ROOT / "stages")
    return folder


def gpu_host(*memory_bytes: int | None) -> GpuHost:
    accelerators = [{"kind": "cuda", "name": "Some GPU", "memory_bytes": size, "driver": "1"} for size in memory_bytes]
    facts = {"kind": "auto", "count": 1, "if_missing": "skip", "missing": None, "threads": 1}
    return GpuHost.model_validate_json(
        json.dumps({**facts, "accelerators": accelerators, "cpu": None, "software": None})
    )


@pytest.fixture
def run(make_experiment: MakeExperiment, cpu_host: CpuHost, packed_split: PackedSplit, tmp_path: Path) -> Run:
    return Run("small", "cpu", make_experiment(), cpu_host, packed_split.folder, tmp_path)


def test_the_bytes_are_those_of_the_tensors(make_experiment: MakeExperiment, packed_split: PackedSplit) -> None:
    from photofinish.training.batches import Normaliser, Part
    from photofinish.training.input_paths import make_batches
    from photofinish.training.torch_device import CPU

    manifest = packed_split.manifest
    size = SplitSize(manifest.shape, manifest.counts["train"], manifest.counts["validation"])
    experiment = make_experiment(batch_size=1000)
    taken, normalise = 0, Normaliser(manifest.mean, manifest.std)
    for part in ("train", "validation"):
        images = Part(part, packed_split.images(part), packed_split.labels(part), normalise)
        ((batch, _),) = make_batches(experiment, images, CPU).in_order()
        taken += batch.nbytes
    assert resident_bytes(experiment, size) == taken


def test_a_border_for_random_crops_counts_and_what_is_no_image_takes_what_it_is_packed_in(
    make_experiment: MakeExperiment,
) -> None:
    plain, cropped = make_experiment(), make_experiment(augmentation={"crop_padding": 2})
    size = SplitSize((1, 8, 8), train=10, validation=5)
    assert resident_bytes(plain, size) == 4 * 64 * 15
    assert resident_bytes(cropped, size) == 4 * (144 * 10 + 64 * 5)
    assert resident_bytes(plain, SplitSize((10,), train=10, validation=5, dtype="float32")) == 4 * 150
    assert resident_bytes(plain, SplitSize((10,), train=10, validation=5, dtype="int64")) == 8 * 150


def test_the_message_names_the_key_both_figures_and_the_alternative(make_experiment: MakeExperiment) -> None:
    size = SplitSize((3, 224, 224), train=75_750, validation=10_000)
    with pytest.raises(MistakeError) as refused:
        refuse_too_large("food", make_experiment(), size, [Room("the main memory", 24 * GIB)])
    for said in ("experiments.food.input", "75,750", "48.1 GiB", "the main memory has 24.0 GiB", "`input: loader`"):
        assert said in str(refused.value)
    border = r"of 3x224x224, a border of 9 pixels added for training .*crop_padding\), take"
    with pytest.raises(MistakeError, match=border):
        refuse_too_large("food", make_experiment(augmentation={"crop_padding": 9}), size, [Room("it", GIB)])


def test_processes_that_share_the_memory_hold_a_copy_each_and_the_loader_none(make_experiment: MakeExperiment) -> None:
    size = SplitSize((1, 16, 16), train=900, validation=100)
    refuse_too_large("small", make_experiment(), size, [Room("the main memory", 1024 * 1000)])
    with pytest.raises(MistakeError, match="once in each of 2 processes"):
        refuse_too_large("small", make_experiment(), size, [Room("the main memory", 1024 * 1000, copies=2)])
    refuse_too_large("small", make_experiment(input={"name": "loader"}), size, [Room("the main memory", 1)])


@pytest.mark.usefixtures("one_gibibyte")
def test_room_is_what_is_free_when_training_starts_and_all_there_is_when_planning(cpu_host: CpuHost) -> None:
    def sizes(rooms: list[Room]) -> list[tuple[int, int]]:
        return [(room.available_bytes, room.copies) for room in rooms]

    assert sizes(room_now(cpu_host, 1)) == [(GIB // 2, 1)]
    assert sizes(room_now(gpu_host(8 * GIB, 6 * GIB), 2)) == [(8 * GIB, 1), (6 * GIB, 1)]
    shares_the_cpus_memory = gpu_host(None)
    assert sizes(room_now(shares_the_cpus_memory, 2)) == [(GIB // 2, 2)]
    assert sizes(room_ever(cpu_host, gpu_host(8 * GIB))) == [(GIB, 1), (8 * GIB, 1)]
    assert sizes(room_ever(cpu_host, gpu_host(8 * GIB, None))) == [(GIB, 2), (8 * GIB, 1)]
    assert sizes(room_ever(cpu_host, gpu_host(None, None)))[0] == (GIB, 2)
    assert sizes(room_ever(cpu_host, gpu_host(GIB), cpu_is_here=False)) == [(GIB, 1)]


@pytest.mark.usefixtures("one_gibibyte")
def test_plan_refuses_synthetic_images_that_do_not_fit_and_writes_nothing(params_file: Path) -> None:
    with pytest.raises(MistakeError, match=r"experiments\.large\.input .* 8,000,000 for training"):
        plan(params_file)
    assert not (params_file.parent / "plan").exists()
    assert plan(params_file, settings="input: loader").is_dir()
    assert plan(params_file, images=1000).is_dir()


@pytest.mark.usefixtures("one_gibibyte")
def test_plan_knows_a_split_that_was_made_from_it_and_no_other(params_file: Path) -> None:
    split = params_file.parent / "splits" / "many" / "manifest.json"
    split.parent.mkdir(parents=True)
    folder = plan(params_file, images=1000)
    split.write_text(json.dumps({"shape": [3, 512, 512], "counts": {"train": 800, "validation": 100, "test": 100}}))
    with pytest.raises(MistakeError, match="3x512x512"):
        plan(params_file, images=1000)
    plan(params_file, images=2000)  # as with a smaller `size`: the old split says nothing of the new one
    older = (folder / "datasets" / "many.json").stat().st_mtime - 1
    os.utime(split, (older, older))  # planned, but not split yet
    plan(params_file, images=2000)


def test_a_training_is_refused_before_it_loads_anything(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.check()
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 1000)
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(MistakeError, match=r"experiments\.small\.input"):
        run.check()


def test_what_other_programs_hold_on_the_device_is_no_room(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from photofinish.runs import setup
    from photofinish.training.teams import Team

    run, meta = replace(run, device="gpu"), torch.device("meta")
    monkeypatch.setattr(setup, "free_memory_bytes", lambda _device: 1000)
    with pytest.raises(MistakeError, match=r"experiments\.small\.input .*; meta now has 1000 bytes"):
        setup.Setup(run, meta, Team(meta))
    monkeypatch.setattr(setup, "free_memory_bytes", lambda _device: None)  # it doesn't tell
    assert run.resident_fits([])
    assert not run.resident_fits([Room("meta now", 1000)])


@pytest.mark.parametrize(
    ("own_groups", "files", "total_and_available"),
    [
        ("0::/", {"memory.max": "max"}, None),
        (
            "0::/job/step",
            {"job/memory.max": "9000", "job/memory.stat": "anon 4000\nfile 5000", "job/step/memory.max": "max"},
            (9000, 5000),
        ),
        ("0::/of-the-host", {"memory.max": "9000", "memory.stat": "file 1\nanon 9500"}, (9000, 0)),
    ],
    ids=["no limit", "the group around it", "in a container"],
)
def test_a_control_group_limits_the_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own_groups: str,
    files: dict[str, str],
    total_and_available: tuple[int, int] | None,
) -> None:
    for name, text in {"own": own_groups, **{f"groups/{name}": text for name, text in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_OWN_CGROUP", tmp_path / "own")
    if total_and_available is None:
        assert total_memory_bytes() > GIB
    else:
        assert (total_memory_bytes(), available_memory_bytes()) == total_and_available
