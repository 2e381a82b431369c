"""The sentence that answers the question, with the figures it rests on."""

from __future__ import annotations

import pytest
from conftest import MakeResult

from photofinish.verdict import verdict


def test_a_faster_gpu_is_said_to_be_faster_by_both_ratios(make_result: MakeResult) -> None:
    gpu = make_result(device="gpu", epoch_seconds=(0.5,), total_seconds=20.0, device_name="Some GPU", accuracy=0.5)
    found = verdict("small-mlp", [make_result(), gpu])
    assert found.missing is None
    assert "Some GPU takes 500 ms for an epoch, Some CPU 3.00 s: 6.00 times the CPU's speed" in found.sentence
    assert "1.50 times (20.0 s against 30.0 s)" in found.sentence
    assert "50.00% on the GPU, 75.00% on the CPU" in found.sentence


def test_a_slower_gpu_is_a_fraction_of_the_cpus_speed(make_result: MakeResult) -> None:
    found = verdict("small-mlp", [make_result(), make_result(device="gpu", epoch_seconds=(6.0,), total_seconds=120.0)])
    assert "0.50 times the CPU's speed" in found.sentence
    assert "0.25 times" in found.sentence


def test_the_ratios_come_without_a_winner_while_they_have_no_interval(make_result: MakeResult) -> None:
    sentence = verdict("small-mlp", [make_result(), make_result(device="gpu", epoch_seconds=(2.9,))]).sentence
    assert "without an interval" in sentence
    assert not {"faster", "slower", "wins", "worth"} & set(sentence.split())


def test_without_a_gpu_the_cpu_stands_alone_and_the_reason_is_kept(make_result: MakeResult) -> None:
    gpu = make_result(device="gpu", unavailable="no accelerator: cuda: no driver")
    found = verdict("small-mlp", [make_result(), gpu])
    assert found.missing == "no accelerator: cuda: no driver"
    assert "Some CPU trained it to 75.00% test accuracy in 30.0 s, of which 2.50 s were start-up" in found.sentence
    assert "nothing can be said" in found.sentence


@pytest.mark.parametrize("swapped", [False, True])
def test_the_order_of_the_results_does_not_matter(make_result: MakeResult, swapped: bool) -> None:
    results = [make_result(), make_result(device="gpu", epoch_seconds=(1.0,))]
    assert "3.00 times the CPU's speed" in verdict("small-mlp", results[::-1] if swapped else results).sentence
