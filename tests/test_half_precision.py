"""A CPU's rate is measured where steps are in half precision, which it may compute slowly."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import MakeExperiment
from training_process import train_here

from photofinish.data.packed import PackedSplit
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results.records import Timings, read_record
from photofinish.runs.run import Run


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_training_in_half_precision_records_the_rate_of_an_fp32_product(
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    packed_split: PackedSplit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = make_experiment(epochs=1, precision=precision)
    run = Run("small", "cpu", experiment, cpu_host, packed_split.folder, tmp_path / "small" / "cpu")
    train_here(run)
    rate = read_record(run.out / "timings" / "timings.json", Timings).fp32_flops_a_second
    assert (rate is not None and rate > 1e7) is (precision == "fp16")
