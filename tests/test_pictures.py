"""The report's figures, and their descriptions for those who cannot see them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from photofinish.report.pictures import (
    DEVICE_COLOURS,
    Picture,
    learning_curves,
    speedup_pictures,
)
from photofinish.report.rows import Rows

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


def ratios(*rows: tuple[str, str, float, float | None, float | None]) -> Rows:
    return [
        dict(zip(("experiment", "of", "speedup", "low", "high"), row, strict=True)) for row in rows
    ]


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


def test_each_kind_of_speed_up_is_a_figure_with_a_row_for_each_experiment() -> None:
    step, epoch = speedup_pictures(
        ratios(
            ("mlp", "step", 2.0, 1.5, 2.5),
            ("mlp", "epoch", 0.02, None, None),
            ("cnn", "step", 31.0, 30.0, 32.0),
        )
    )
    assert {"mlp: 2.0 (1.50 to 2.5)", "cnn: 31 (30 to 32)"} <= set(texts(step))
    assert "mlp 0.02 (no interval)" in epoch.description
    assert f"fill: {GPU}" in step.svg
    assert f"fill: {GPU}" not in epoch.svg  # an open point
    assert speedup_pictures(ratios()) == []


def test_many_speed_ups_are_drawn_in_order_without_names() -> None:
    (picture,) = speedup_pictures(
        ratios(*((f"e{number}", "epoch", 1.0 + number, None, None) for number in range(99)))
    )
    assert not [text for text in texts(picture) if text.startswith("e")]


def test_figures_on_one_page_share_no_ids_and_have_the_pages_colours() -> None:
    pictures = [
        *speedup_pictures(ratios(("mlp", "step", 2.0, 1.5, 2.5))),
        learning_curves(history(cpu=[1.0, 2.0])),
    ]
    ids = [set(re.findall(r'\bid="([^"]*)"', picture.inline)) for picture in pictures]
    assert sum(map(len, ids)) == len(set().union(*ids))
    for picture, named in zip(pictures, ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', picture.inline)) <= named
    assert f"var(--cpu, {CPU})" in pictures[-1].inline
    assert "var(" not in pictures[-1].file


@pytest.mark.parametrize("name", ['<b a="1">&', "$x^2$", "很长的名称"])
def test_any_name_gives_a_valid_figure(name: str) -> None:
    picture = learning_curves(history(name, cpu=[1.0, 2.0]))
    (speedup,) = speedup_pictures(ratios((name, "step", 2.0, 1.5, 2.5)))
    assert re.fullmatch(r"[\w.-]+", picture.name)
    for each in (picture, speedup):
        assert ElementTree.fromstring(each.inline).attrib["aria-label"] == each.description  # noqa: S314
        ElementTree.fromstring(each.file)  # noqa: S314
    assert any("2.0 (1.50 to 2.5)" in text for text in texts(speedup))
