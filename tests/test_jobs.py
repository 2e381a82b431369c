"""Jobs of every kind are trained, evaluated and answered: those of examples/own-jobs.yaml."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from conftest import ROOT, CustomFiles
from in_process import train_and_evaluate

from photofinish.comparing.pairs import read_pair
from photofinish.machine.fingerprint import CpuTarget
from photofinish.reporting.sentences import verdict

PARAMS: dict[str, Any] = yaml.safe_load((ROOT / "examples/own-jobs.yaml").read_text("utf-8"))
AT_LEAST = {"photos": 0.6, "characters": 0.2, "signals": 0.6, "tags": 0.6, "mixed": 0.6}
"""Accuracies that no chance reaches."""


@pytest.mark.parametrize("name", PARAMS["experiments"])
def test_a_job_is_trained_evaluated_and_answered(
    name: str, custom_files: CustomFiles, cpu_host: CpuTarget
) -> None:
    defaults = PARAMS["defaults"] | {"epochs": 3}
    params = PARAMS | {"defaults": defaults, "experiments": {name: PARAMS["experiments"][name]}}
    pair = read_pair(name, train_and_evaluate(name, params, custom_files.folder, cpu_host))
    scores = pair.cpu.scores
    if name in ("table", "gan", "contrastive"):
        assert scores.test_accuracy is None
        assert scores.test_loss > 0
    else:
        assert scores.test_accuracy > AT_LEAST.get(name, 0)
    assert name != "table" or len(pair.cpu.history) < 30  # it stopped early
    assert verdict(pair).answer
