"""Operators that a device lacks are counted, and the verdict names them."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace

import pytest
import torch
from conftest import MakeResult
from result_files import pair_of

from photofinish.comparing.device_results import Trained
from photofinish.profiling.first_step import fallbacks_counted
from photofinish.reporting.sentences import verdict

WARNING = (
    "The operator 'aten::{}' is not currently supported on the MPS backend "
    "and will fall back to run on the CPU."
)


def counted_while_warned() -> Counter[str]:
    with fallbacks_counted() as counted:
        for name in ("cumsum.out", "unfold", "cumsum.out"):
            warnings.warn(WARNING.format(name), stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        assert torch.is_warn_always_enabled()
    return counted


def test_each_operator_is_counted_and_other_warnings_are_passed_on() -> None:
    with pytest.warns(UserWarning, match="something else") as caught:
        counted = counted_while_warned()
    assert len(caught) == 1
    assert counted == {"cumsum.out": 2, "unfold": 1}
    assert not torch.is_warn_always_enabled()


def test_the_verdict_names_what_the_cpu_computed_for_the_gpu(make_result: MakeResult) -> None:
    cpu, gpu = make_result(), make_result(device="gpu")
    assert isinstance(gpu, Trained)
    step = gpu.first_step.model_copy(update={"cpu_fallbacks": {"cumsum.out": 2, "unfold": 1}})
    pair = pair_of(cpu, replace(gpu, first_step=step))
    text = verdict(pair).text
    assert (
        "The CPU computed some of the GPU's step: cumsum.out (2 per step) and unfold (1 per step)."
        in text
    )
    without = pair_of(cpu, gpu)
    assert "The CPU computed" not in verdict(without).text
