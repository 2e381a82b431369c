"""The report's pictures: what they show, in SVG whose text is text, and in words for those who can't see them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from photofinish.comparing.scaling import BreakEven
from photofinish.report.drawing import CHARACTER, DEVICE_COLOURS, Picture, Scale
from photofinish.report.pictures import (
    break_even_pictures,
    confusion_pictures,
    learning_curves,
    overview_pictures,
    speedup_pictures,
    step_pictures,
)
from photofinish.report.rows import COLUMNS, Rows

CPU, GPU = DEVICE_COLOURS["cpu"], DEVICE_COLOURS["gpu"]


def words(picture: Picture) -> list[str]:
    root = ElementTree.fromstring(picture.inline)  # noqa: S314
    return [(text.text or "").strip() for text in root.iter("{http://www.w3.org/2000/svg}text")]


def history(**training_seconds: list[float]) -> Rows:
    """Of one experiment, on the devices given."""
    return [
        {
            "experiment": "mlp",
            "device": device,
            "epoch": epoch,
            "validation_loss": 2.0 / epoch,
            "training_seconds_so_far": so_far,
        }
        for device, seconds in training_seconds.items()
        for epoch, so_far in enumerate(seconds, 1)
    ]


def ratios(*rows: tuple[str, str, float, float | None, float | None]) -> Rows:
    return [dict(zip(("experiment", "of", "speedup", "low", "high"), row, strict=True)) for row in rows]


def test_loss_is_drawn_against_epochs_and_against_seconds_and_told_in_words() -> None:
    (picture,) = learning_curves(history(cpu=[1.0, 2.0, 3.0], gpu=[0.1, 0.2, 0.3]))
    assert {"epoch", "seconds of training", "validation loss", "CPU", "GPU"} <= set(words(picture))
    assert picture.told == (
        "Validation loss of mlp: on the CPU from 2 to 0.667 in 3 epochs and 3.00 s of training "
        "and on the GPU from 2 to 0.667 in 3 epochs and 300 ms of training"
    )


def test_devices_are_told_apart_by_line_as_well_as_by_colour() -> None:
    (picture,) = learning_curves(history(cpu=[1.0, 2.0], gpu=[0.1, 0.2]))
    dashed = re.findall(r'stroke="(#\w+)" [^>]*stroke-dasharray="\d', picture.svg)
    assert set(dashed) == {GPU}
    assert CPU in picture.svg


def test_one_device_alone_is_drawn_alone() -> None:
    (picture,) = learning_curves(history(cpu=[1.0, 2.0]))
    assert "GPU" not in words(picture)
    assert GPU not in picture.svg


def test_each_kind_of_speed_up_is_a_picture_with_a_row_for_each_experiment() -> None:
    step, epoch = speedup_pictures(
        ratios(("mlp", "step", 2.0, 1.5, 2.5), ("mlp", "epoch", 0.02, None, None), ("cnn", "step", 31.0, 30.0, 32.0))
    )
    assert [step.caption, epoch.caption] == ["A step, its data at hand", "An epoch with its data"]
    assert {"mlp: 2.00 (1.50 to 2.50)", "cnn: 31.00 (30.00 to 32.00)"} <= set(words(step))
    assert epoch.told == "Speed-up of an epoch with its data: mlp 0.02 (no interval)"


def filled_dots(picture: Picture) -> int:
    return picture.svg.count(f'fill="{GPU}"')


def test_a_ratio_without_an_interval_is_drawn_open() -> None:
    (sure,) = speedup_pictures(ratios(("mlp", "step", 2.0, 1.5, 2.5)))
    (unsure,) = speedup_pictures(ratios(("mlp", "step", 2.0, None, None)))
    assert filled_dots(sure) > 0
    assert filled_dots(unsure) == 0
    assert GPU in unsure.svg


def test_without_a_gpu_no_speed_up_is_drawn() -> None:
    assert not list(speedup_pictures(ratios()))


def attribution() -> Rows:
    parts = {"waiting for data": 0.02, "forward": 0.03, "backward": 0.05}
    return [
        {"experiment": "mlp", "device": device, "part": part, "median_seconds": share * scale, "share": share * 10}
        for device, scale in (("cpu", 1.0), ("gpu", 0.1))
        for part, share in parts.items()
    ]


def test_the_parts_of_a_step_are_bars_with_their_shares_and_the_whole_in_seconds() -> None:
    (picture,) = step_pictures(attribution())
    assert {"CPU 100 ms", "GPU 10.0 ms", "20%", "30%", "50%", "waiting for data", "forward", "backward"} <= set(
        words(picture)
    )
    assert "cpu backward 50.0 ms" in picture.told
    assert "gpu backward 5.00 ms" in picture.told


def scaling() -> Rows:
    rows = [("mlp", "batch size", x, f"mlp-{x}", x / 100, x / 110, x / 90) for x in (50, 100, 200)]
    return [dict(zip(COLUMNS["scaling.csv"], row, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ((100.0, 90.0, 110.0), "mlp: break-even at 100 (90 to 110)"),
        ((100.0, None, 110.0), "mlp: break-even at 100 (below to 110)"),
        ((100.0, None, None), "mlp: break-even at 100 by the medians, no interval"),
        ((None, None, None), "mlp: no break-even within what was measured"),
    ],
)
def test_the_break_even_is_marked_with_its_interval_where_there_is_one(
    found: tuple[float | None, ...], told: str
) -> None:
    (picture,) = break_even_pictures(scaling(), {("mlp", "batch size"): BreakEven(*found, finding="")})
    assert picture.caption == told
    assert "batch size" in words(picture)
    assert picture.told.endswith("50: 0.50; 100: 1.00; 200: 2.00")


def confusion(classes: int) -> Rows:
    names = [f"class-{index}" for index in range(classes)]
    return [
        {"experiment": "mlp", "device": device, "actual": actual, "predicted": predicted,
         "images": 9 if actual == predicted else int((actual, predicted) == tuple(names[:2]))}
        for device in ("cpu", "gpu")
        for actual in names
        for predicted in names
    ]  # fmt: skip


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


def test_a_long_name_is_cut_and_characters_that_are_twice_as_wide_have_their_room() -> None:
    names = {"class-0": "a name of some length", "class-1": "很长的类别名称"}
    rows = [row | {key: names[row[key]] for key in ("actual", "predicted")} for row in confusion(2)]
    assert set(words(confusion_pictures(rows)["mlp"][0])) >= {"a name of s…", "很长的类别…"}
    narrow, wide = (
        confusion_pictures([row | {"actual": name, "predicted": name} for row in confusion(1)])["mlp"][0].inline
        for name in ("abcde", "很长的类别")
    )
    left_of_cells = [float(re.search(r"<rect x=\"([\d.]+)", drawn)[1]) for drawn in (narrow, wide)]  # type: ignore[index]
    assert left_of_cells[1] - left_of_cells[0] == pytest.approx(5 * CHARACTER, abs=0.1)


def test_pictures_on_one_page_share_no_ids_and_have_the_pages_colours() -> None:
    pictures = [*confusion_pictures(confusion(2))["mlp"], *learning_curves(history(cpu=[1.0, 2.0]))]
    ids = [set(re.findall(r'\bid="([^"]*)"', picture.inline)) for picture in pictures]
    assert sum(map(len, ids)) == len(set().union(*ids))
    for picture, named in zip(pictures, ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', picture.inline)) <= named
    assert f"var(--cpu, {CPU})" in pictures[-1].inline
    assert "var(" not in pictures[-1].file


def test_names_that_look_like_html_stay_text() -> None:
    (picture,) = learning_curves([row | {"experiment": '<b a="1">&'} for row in history(cpu=[1.0, 2.0])])
    assert re.fullmatch(r"[\w.-]+", picture.name)
    assert ElementTree.fromstring(picture.inline).attrib["aria-label"] == picture.told  # noqa: S314


def test_characters_that_no_picture_may_hold_are_marked_and_it_stays_valid() -> None:
    for name in ("a\x00b\x1b[31m", "c\u202ed", "e\uffff"):
        rows = [row | {"experiment": name, "actual": f"{row['actual']}{name}"} for row in confusion(2)]
        for picture in confusion_pictures(rows)[name]:
            ElementTree.fromstring(picture.inline)  # noqa: S314
            ElementTree.fromstring(picture.file)  # noqa: S314
            assert "\N{REPLACEMENT CHARACTER}" in picture.inline


def test_a_loss_that_is_no_number_is_left_out_of_the_curve() -> None:
    rows = history(cpu=[1.0, 2.0, 3.0])
    rows[1]["validation_loss"] = float("nan")
    rows[2]["validation_loss"] = float("inf")
    (picture,) = learning_curves(rows)
    assert "nan" not in picture.svg.replace("from 2 to", "")
    assert picture.svg.count("<circle") == 2 * 1 + 1  # one point in each panel, and the legend's


def test_seconds_and_losses_are_drawn_from_0_and_the_first_point_is_whole() -> None:
    (picture,) = learning_curves(history(cpu=[1000.0, 2000.0], gpu=[0.1, 0.2]))
    assert words(picture).count("0") == 4  # of both axes of both panels
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', picture.svg)]
    assert all(3 < x < 263 and 3 < y < 261 for x, y in places)


def test_a_row_too_long_for_its_picture_is_made_narrower() -> None:
    pictures = [next(speedup_pictures(ratios((name, "step", 123.45, 100.11, 150.22)))) for name in ("x" * 64, "x" * 20)]
    assert ['textLength="250"' in picture.svg for picture in pictures] == [True, False]


@pytest.mark.parametrize("losses", [(1.0, 0.2, -3.0), (-0.1, -0.5, -0.9)])
def test_a_loss_below_0_lies_within_the_picture(losses: tuple[float, ...]) -> None:
    rows = history(cpu=[1.0, 2.0, 3.0])
    for row, loss in zip(rows, losses, strict=True):
        row["validation_loss"] = loss
    (picture,) = learning_curves(rows)
    heights = [float(y) for y in re.findall(r'cy="([-\d.]+)"', picture.svg)[1:]]  # the first is the legend's
    assert all(18 <= y <= 108 for y in heights[:3])
    assert all(146 <= y <= 236 for y in heights[3:])


@pytest.mark.parametrize(
    ("low", "high", "ticks"), [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 0.3, [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3])]
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert Scale(low, high, 0, 1).ticks == ticks


def test_the_ticks_of_a_logarithmic_scale_are_round_and_few() -> None:
    assert Scale(0.4, 12, 0, 1, logarithmic=True).ticks == [0.5, 1, 2, 5, 10]
    assert Scale(0.001, 1e4, 0, 1, logarithmic=True).ticks == [0.001, 0.1, 10, 1000]
    assert Scale(2.2, 4.9, 0, 1, logarithmic=True).ticks == [2.5, 3, 3.5, 4, 4.5]


def trainings(count: int) -> Rows:
    return [
        {"experiment": f"e{number}", "device": device, "status": "trained", "total_seconds": 2.0 + number,
         "test_accuracy": 0.9 + number / 100 / count}
        for number in range(count)
        for device in ("cpu", "gpu")
    ]  # fmt: skip


def test_all_experiments_are_in_one_picture_by_time_and_accuracy_and_one_by_their_speed_up() -> None:
    speedups = ratios(*((f"e{number}", "epoch", 1.0 + number, 0.9, 200.0) for number in range(30)))
    time, order = overview_pictures(trainings(30), speedups)
    assert time.svg.count("<circle") == time.svg.count("<rect") == 30 + 1
    assert time.told == "60 trainings took 2.00 s to 31.0 s and reached 90.00% to 90.97% test accuracy"
    assert order.svg.count("<circle") == 30
    assert order.told == "The GPU's speed-up of an epoch: 1.00 to 30.00, half of them above 16.00"
    assert len(list(overview_pictures(trainings(30), []))) == 1
