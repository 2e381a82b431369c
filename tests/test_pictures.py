"""The report's figures, and their descriptions for those who cannot see them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from conftest import MakeResult
from result_files import made_up_attribution, pair_of

from photofinish.answer.decision import decide
from photofinish.answer.scaling import Cell, Grid
from photofinish.reporting.comparison_rows import Rows
from photofinish.reporting.drawing import DEVICE_COLOURS, Picture
from photofinish.reporting.pictures import PART_COLOURS, heat_map, job_times, learning_curves

CPU, GPU = DEVICE_COLOURS["cpu"], DEVICE_COLOURS["gpu"]
SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: Picture) -> list[str]:
    root = ElementTree.fromstring(picture.inline)  # noqa: S314
    return [(text.text or "").strip() for text in root.iter(f"{SVG}text")]


def history(name: str = "mlp", **training_seconds: list[float]) -> Rows:
    """Return rows of one experiment on these devices."""
    return [
        {"experiment": name, "device": device, "epoch": epoch, "validation_loss": 2.0 / epoch,
         "training_seconds_so_far": so_far}
        for device, seconds in training_seconds.items()
        for epoch, so_far in enumerate(seconds, 1)
    ]  # fmt: skip


def test_loss_is_drawn_against_epochs_and_for_two_devices_against_seconds() -> None:
    both = learning_curves(history(cpu=[1.0, 2.0, 3.0], gpu=[0.1, 0.2, 0.3]))
    assert {"epoch", "seconds of training", "validation loss", "CPU", "GPU"} <= set(texts(both))
    assert "on the GPU from 2 to 0.667 in 3 epochs and 300 ms of training" in both.description
    assert CPU in both.svg
    assert re.search(
        rf"stroke-dasharray: [\d., ]+;[^\"]*stroke: {GPU}|stroke: {GPU};[^\"]*stroke-dasharray",
        both.svg,
    )
    alone = learning_curves(history(cpu=[1.0, 2.0]))
    assert f"var(--cpu, {CPU})" in alone.inline  # the page's colours, and in a file its own
    assert "var(" not in alone.file
    assert not {"GPU", "seconds of training"} & set(texts(alone))
    assert GPU not in alone.svg


def test_a_loss_that_is_not_finite_is_left_out_of_the_curve() -> None:
    rows = history(cpu=[1.0, 2.0, 3.0])
    rows[1]["validation_loss"], rows[2]["validation_loss"] = float("nan"), float("inf")
    picture = learning_curves(rows)
    assert "nan" not in picture.svg.partition(">")[2]
    for row in rows:
        row["validation_loss"] = float("nan")
    ElementTree.fromstring(learning_curves(rows).file)  # noqa: S314


def test_the_job_is_a_bar_for_each_device_split_into_its_parts(make_result: MakeResult) -> None:
    pair = pair_of(make_result(), make_result(device="gpu", total_seconds=20.0))
    picture = job_times(pair, decide(pair))
    assert {"CPU here, measured: 30 s", "GPU here, measured: 20 s"} <= set(texts(picture))
    assert "CPU here, measured: start-up 2.5 s, training 9 s" in picture.description
    assert PART_COLOURS["loading"] not in picture.svg
    alone = pair_of(make_result(attribution=made_up_attribution(0.01)))
    picture = job_times(alone, decide(alone))
    assert "an infinitely fast GPU: 2.5 s" in picture.description
    assert PART_COLOURS["loading"] in picture.svg


def test_two_settings_that_vary_give_a_heat_map() -> None:
    places = [(row, column) for row in ("0.1", "0.01") for column in ("16", "32")]
    cells = {place: Cell(2.0, place == places[0], "Yes") for place in places}
    picture = heat_map(Grid("optimizer.lr", "batch_size", ("0.1", "0.01"), ("16", "32"), cells))
    assert {"optimizer.lr", "batch_size", "up to 2.0x", "2.0x", "Yes"} <= set(texts(picture))
    assert "0.01, 32: 2.0x Yes" in picture.description


@pytest.mark.parametrize("name", ['<b a="1">&', "$x^2$", "很长的名称"])
def test_any_name_gives_a_valid_figure(name: str) -> None:
    picture = learning_curves(history(name, cpu=[1.0, 2.0]))
    assert re.fullmatch(r"[\w.-]+", picture.name)
    assert ElementTree.fromstring(picture.inline).attrib["aria-label"] == picture.description  # noqa: S314
    ElementTree.fromstring(picture.file)  # noqa: S314
