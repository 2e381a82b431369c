"""The report's figures, and their descriptions for those who cannot see them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from conftest import MakeResult
from outputs import record_of
from result_files import (
    STEP,
    changed_history,
    pair_of,
    paired,
    trained,
    with_timings,
)
from test_default_jobs import cpu_result, shipped

from photofinish.answer.comparison import Comparison
from photofinish.answer.record import Cell, Grid
from photofinish.config.compare import Comparing
from photofinish.reporting.answer_words import action_text
from photofinish.reporting.drawing import DEVICE_COLOURS, Picture
from photofinish.reporting.pictures import heat_map, job_pictures
from photofinish.results.references import Reference, reference_of

CPU, GPU = DEVICE_COLOURS["cpu"], DEVICE_COLOURS["gpu"]
SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: Picture) -> list[str]:
    root = ElementTree.fromstring(picture.inline)  # noqa: S314
    return [(text.text or "").strip() for text in root.iter(f"{SVG}text")]


def drawn(pair: Comparison) -> dict[str, Picture]:
    """Return a job's pictures by their questions."""
    return {each.caption: each for each in job_pictures(record_of(pair))}


def default_job(
    make_result: MakeResult, name: str, references: Sequence[Reference] = ()
) -> Comparison:
    """Return a job of params.yaml on two quiet cores, without a GPU."""
    (pair,) = paired([cpu_result(make_result, name, 1.0)], shipped().comparing, references)
    return pair


def test_renting_pays_from_as_many_runs_as_the_answer_says(make_result: MakeResult) -> None:
    step = STEP.model_copy(update={"flops": 10**13})  # which takes a T4 1.2 s by estimate
    cpu = trained(make_result, epoch_seconds=(89.4,) * 5, total_seconds=450.0)
    pair = pair_of(with_timings(cpu, operations=step), settings=Comparing(accelerators=("T4",)))
    picture, action = drawn(pair)["When does renting pay?"], action_text(record_of(pair))
    assert re.fullmatch(r"Renting pays off after \d+-\d+ runs\.", picture.note)
    assert picture.note in action
    assert {"runs", "on this CPU", "T4 with setup"} <= set(texts(picture))
    assert picture.note in picture.description
    for name in ("pictures-resnet", "digits-cnn"):  # it pays at once, and after unknown runs
        assert "When does renting pay?" not in drawn(default_job(make_result, name))


def test_each_gpu_with_a_price_is_a_named_dot_and_the_answers_is_filled(
    make_result: MakeResult,
) -> None:
    picture = drawn(default_job(make_result, "pictures-resnet"))["Which GPU?"]
    assert {"T4", "L4", "A10G", "L40S", "A100", "H100", "USD"} <= set(texts(picture))
    assert re.search(r"T4 [\d.]+ min and 0\.\d\d USD", picture.description)


def test_pictures_that_decide_nothing_are_left_out(make_result: MakeResult) -> None:
    for name in ("digits-linear", "digits-mlp"):  # no GPU helps, and all take 5 min
        pair = default_job(make_result, name)
        assert list(drawn(pair)) == ["Where does a step go?"]


def test_a_gpu_that_is_here_has_its_losses(make_result: MakeResult) -> None:
    cpu = make_result(epoch_seconds=(3.0,) * 6)
    gpu = trained(make_result, device="gpu", epoch_seconds=(0.5,) * 6, total_seconds=20.0)
    gpu = with_timings(gpu, startup_seconds=6.5)
    both = drawn(pair_of(cpu, gpu))["Same model?"]
    assert {"epoch", "training loss", "CPU", "GPU"} <= set(texts(both))
    assert "GPU from" in both.description
    dashed, of_gpu = r"stroke-dasharray: [\d., ]+;", rf"stroke: {GPU};?"
    assert re.search(rf"{dashed}[^\"]*{of_gpu}|{of_gpu}[^\"]*{dashed}", both.svg)


def test_the_losses_of_a_record_are_drawn_with_a_star(make_result: MakeResult) -> None:
    cpu = trained(make_result, epoch_seconds=(3.0,) * 3)
    assert "Same model?" not in drawn(pair_of(cpu))
    there = trained(make_result, device="gpu", device_name="NVIDIA Made-Up 100")
    (pair,) = paired([cpu], references=[reference_of(there, "there")])
    picture = drawn(pair)["Same model?"]
    assert {"CPU", "Made-Up 100*"} <= set(texts(picture))
    assert f"var(--cpu, {CPU})" in picture.inline  # the page's colours, and in a file its own
    assert "var(" not in picture.file
    assert "epochs of losses" in picture.note


def test_a_loss_that_is_not_finite_is_left_out_of_the_curve(make_result: MakeResult) -> None:
    cpu = trained(make_result)
    some = replace(cpu, history=changed_history(cpu, training_loss=[1.0, float("nan"), 0.5]))
    gpu = make_result(device="gpu")
    picture = drawn(pair_of(some, gpu))["Same model?"]
    assert "nan" not in picture.svg.partition(">")[2]
    none = replace(cpu, history=changed_history(cpu, training_loss=[float("nan")] * 3))
    assert "Same model?" not in drawn(pair_of(none, gpu))


def test_two_settings_that_vary_give_a_heat_map() -> None:
    places = [(row, column) for row in ("0.1", "0.01") for column in ("16", "32")]
    cells = {place: Cell(2.0, place == places[0], "Yes") for place in places}
    picture = heat_map(Grid("optimizer.lr", "batch_size", ("0.1", "0.01"), ("16", "32"), cells))
    assert {"optimizer.lr", "batch_size", "up to 2.0x", "2.0x", "Yes"} <= set(texts(picture))
    assert "0.01, 32: 2.0x Yes" in picture.description


@pytest.mark.parametrize("name", ['<b a="1">&', "$x^2$", "很长的名称"])
def test_any_name_gives_a_valid_figure(make_result: MakeResult, name: str) -> None:
    for picture in drawn(pair_of(make_result(name, device_name=name))).values():
        assert re.fullmatch(r"[\w.-]+", picture.name)
        root = ElementTree.fromstring(picture.inline)  # noqa: S314
        assert root.attrib["aria-label"] == picture.description
        ElementTree.fromstring(picture.file)  # noqa: S314
