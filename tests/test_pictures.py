"""The report's pictures: what they show, in SVG whose text is text, and in words for those who can't see them."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from photofinish.report.pictures import (
    DEVICE_COLOURS,
    Picture,
    break_even_pictures,
    confusion_pictures,
    learning_curves,
    speedup_pictures,
    step_pictures,
)

CPU, GPU = DEVICE_COLOURS["cpu"], DEVICE_COLOURS["gpu"]


def words(picture: Picture) -> list[str]:
    root = ElementTree.fromstring(picture.inline)  # noqa: S314
    return [(text.text or "").strip() for text in root.iter("{http://www.w3.org/2000/svg}text")]


def history(**training_seconds: list[float]) -> pd.DataFrame:
    """Of one experiment, on the devices given."""
    parts = [
        pd.DataFrame(
            {
                "experiment": "mlp",
                "device": device,
                "epoch": range(1, len(seconds) + 1),
                "validation_loss": [2.0 / epoch for epoch in range(1, len(seconds) + 1)],
                "training_seconds_so_far": seconds,
            }
        )
        for device, seconds in training_seconds.items()
    ]
    return pd.concat(parts)


def ratios(*rows: tuple[str, str, float, float | None, float | None]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["experiment", "of", "speedup", "low", "high"])
    return table.astype({"low": float, "high": float})


def test_loss_is_drawn_against_epochs_and_against_seconds_and_told_in_words() -> None:
    (picture,) = learning_curves(history(cpu=[1.0, 2.0, 3.0], gpu=[0.1, 0.2, 0.3]))
    assert {"epoch", "seconds of training", "validation loss", "CPU", "GPU"} <= set(words(picture))
    assert picture.told == (
        "Validation loss of mlp: on the CPU from 2 to 0.667 in 3 epochs and 3.00 s of training "
        "and on the GPU from 2 to 0.667 in 3 epochs and 300 ms of training"
    )


def test_devices_are_told_apart_by_line_as_well_as_by_colour() -> None:
    (picture,) = learning_curves(history(cpu=[1.0, 2.0], gpu=[0.1, 0.2]))
    dashed = re.findall(r"stroke-dasharray: [^;]*;[^\"]*stroke: (#\w+)", picture.svg)
    assert set(dashed) == {GPU}
    assert CPU in picture.svg


def test_one_device_alone_is_drawn_alone() -> None:
    (picture,) = learning_curves(history(cpu=[1.0, 2.0]))
    assert "GPU" not in words(picture)
    assert GPU not in picture.svg


def test_each_kind_of_speed_up_is_a_picture_with_a_row_for_each_experiment() -> None:
    pictures = speedup_pictures(
        ratios(("mlp", "step", 2.0, 1.5, 2.5), ("mlp", "epoch", 0.02, None, None), ("cnn", "step", 31.0, 30.0, 32.0))
    )
    assert [picture.caption for picture in pictures] == ["A step, its data at hand", "An epoch with its data"]
    assert {"mlp: 2.00 (1.50 to 2.50)", "cnn: 31.00 (30.00 to 32.00)"} <= set(words(pictures[0]))
    assert pictures[1].told == "Speed-up of an epoch with its data: mlp 0.02 (no interval)"


def filled_dots(picture: Picture) -> int:
    return len(re.findall(rf"fill: {GPU}", picture.svg))


def test_a_ratio_without_an_interval_is_drawn_open() -> None:
    (sure,) = speedup_pictures(ratios(("mlp", "step", 2.0, 1.5, 2.5)))
    (unsure,) = speedup_pictures(ratios(("mlp", "step", 2.0, None, None)))
    assert filled_dots(sure) > 0
    assert filled_dots(unsure) == 0
    assert GPU in unsure.svg


def test_without_a_gpu_no_speed_up_is_drawn() -> None:
    assert speedup_pictures(ratios()) == []


def attribution() -> pd.DataFrame:
    parts = {"waiting for data": 0.02, "forward": 0.03, "backward": 0.05}
    rows = [
        ("mlp", device, part, share * scale, share * 10)
        for device, scale in (("cpu", 1.0), ("gpu", 0.1))
        for part, share in parts.items()
    ]
    return pd.DataFrame(rows, columns=["experiment", "device", "part", "median_seconds", "share"])


def test_the_parts_of_a_step_are_bars_with_their_shares_and_the_whole_in_seconds() -> None:
    (picture,) = step_pictures(attribution())
    assert {"100 ms", "10.0 ms", "20%", "30%", "50%", "waiting for data", "forward", "backward"} <= set(words(picture))
    assert "cpu backward 50.0 ms" in picture.told
    assert "gpu backward 5.00 ms" in picture.told


def scaling() -> pd.DataFrame:
    rows = [("mlp", "batch size", x, f"mlp-{x}", x / 100, x / 110, x / 90) for x in (200, 50, 100)]
    columns = ["series", "x_name", "x", "experiment", "speedup", "speedup_low", "speedup_high"]
    return pd.DataFrame(rows, columns=columns)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([("mlp", "batch size", 100.0, 90.0, 110.0)], "mlp: break-even at 100 (90 to 110)"),
        ([("mlp", "batch size", 100.0, None, 110.0)], "mlp: break-even at 100 (below to 110)"),
        ([("mlp", "batch size", 100.0, None, None)], "mlp: break-even at 100 by the medians, no interval"),
        ([("mlp", "batch size", None, None, None)], "mlp: no break-even within what was measured"),
        ([], "mlp: no break-even within what was measured"),
    ],
)
def test_the_break_even_is_marked_with_its_interval_where_there_is_one(found: list[Any], told: str) -> None:
    records = pd.DataFrame(found, columns=["series", "x_name", "break_even", "low", "high"])
    (picture,) = break_even_pictures(scaling(), records)
    assert picture.caption == told
    assert "batch size" in words(picture)
    assert picture.told.endswith("50: 0.50; 100: 1.00; 200: 2.00")


def confusion(classes: int) -> pd.DataFrame:
    names = [f"class-{index}" for index in range(classes)]
    rows = [
        ("mlp", device, actual, predicted, 9 if actual == predicted else int((actual, predicted) == tuple(names[:2])))
        for device in ("cpu", "gpu")
        for actual in names
        for predicted in names
    ]
    return pd.DataFrame(rows, columns=["experiment", "device", "actual", "predicted", "images"])


def test_confusion_is_a_picture_for_each_device_that_names_the_commonest_mistake() -> None:
    cpu, gpu = confusion_pictures(confusion(3))["mlp"]
    assert [cpu.caption, gpu.caption] == ["CPU", "GPU"]
    assert words(cpu).count("9") == 3
    assert cpu.told == (
        "Confusion matrix of mlp, CPU: 27 of 28 images right; the commonest mistake: class-0 taken for class-1 (1)"
    )


def test_many_classes_are_drawn_without_figures_or_names_that_would_cover_each_other() -> None:
    cpu, _ = confusion_pictures(confusion(40))["mlp"]
    assert set(words(cpu)) == {"predicted", "actual"}
    assert len(cpu.svg) < 50_000


def test_pictures_on_one_page_share_no_ids_and_have_the_pages_colours() -> None:
    pictures = confusion_pictures(confusion(2))["mlp"] + learning_curves(history(cpu=[1.0, 2.0]))
    ids = [set(re.findall(r'\bid="([^"]*)"', picture.inline)) for picture in pictures]
    assert sum(map(len, ids)) == len(set().union(*ids))
    for picture, named in zip(pictures, ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', picture.inline)) <= named
    assert f"var(--cpu, {CPU})" in pictures[-1].inline
    assert "var(" not in pictures[-1].file


def test_names_that_look_like_html_stay_text() -> None:
    table = history(cpu=[1.0, 2.0]).assign(experiment='<b a="1">&')
    (picture,) = learning_curves(table)
    assert re.fullmatch(r"[\w.-]+", picture.name)
    assert ElementTree.fromstring(picture.inline).attrib["aria-label"] == picture.told  # noqa: S314
