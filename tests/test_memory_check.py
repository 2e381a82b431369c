"""The free memory of the machine, and what is measured only if it fits there."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import MakeExperiment

from photofinish.data.packed import PackedSplit
from photofinish.machine import host
from photofinish.machine.fingerprint import CpuTarget
from photofinish.machine.host import available_memory_bytes
from photofinish.profiling import loader_tries
from photofinish.runs import setup
from photofinish.runs.run import Run
from photofinish.training.torch_device import CPU
from photofinish.training.world import World

GIB = 2**30


def test_resident_batches_are_measured_beside_a_loader_only_if_they_fit(
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    packed_split: PackedSplit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = make_experiment(input={"name": "loader"})
    run = Run("small", "cpu", experiment, cpu_host, packed_split.folder, tmp_path)
    made = setup.Setup(run, CPU, World(CPU))
    assert made.resident_batches() is not None
    monkeypatch.setattr(loader_tries, "available_memory_bytes", lambda: 1000)
    assert made.resident_batches() is None


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
    monkeypatch.setattr(host, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(host, "_OWN_CGROUP", tmp_path / "own")
    if available is None:
        assert available_memory_bytes() > GIB // 16
    else:
        assert available_memory_bytes() == available
