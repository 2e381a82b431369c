"""A CPU's rate is measured where steps are in half precision, which it may compute slowly."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import MakeExperiment
from training_process import measure_here

from photofinish.data.packed import PackedSplit
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results.measured import MEASURED, MEASURED_FOLDER, Measured, read_measured
from photofinish.runs.run import Run


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_job_in_half_precision_records_the_rate_of_an_fp32_product(
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    packed_split: PackedSplit,
    tmp_path: Path,
    precision: str,
) -> None:
    experiment = make_experiment(epochs=1, precision=precision)
    measure_here(Run("small", "cpu", experiment, cpu_host, packed_split.folder, tmp_path))
    measured = read_measured(tmp_path / MEASURED_FOLDER / MEASURED)
    assert isinstance(measured, Measured)
    rate = measured.fp32_flops_a_second
    assert (rate is not None and rate > 1e7) is (precision == "fp16")
