"""The report's files: a page that stands alone, a Markdown table, CSV for pandas, JSON for `dvc metrics`."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from conftest import MakeResult

from photofinish.comparison import COLUMNS, DeviceResult
from photofinish.report import write_report

REASON = "no accelerator: cuda: no driver"
NASTY_NAME = "<script>alert('a & b')</script>"
ATTRIBUTES_THAT_LOAD = {"src", "srcset", "href", "xlink:href", "data", "poster", "action", "background"}


class Page(HTMLParser):
    """What a browser would make of a page, as far as the tests want to know."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ATTRIBUTES_THAT_LOAD]
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


@pytest.fixture
def pair(make_result: MakeResult) -> list[DeviceResult]:
    return [make_result(), make_result(device="gpu", epoch_seconds=(0.5,), total_seconds=20.0, device_name="Some GPU")]


@pytest.fixture
def without_gpu(make_result: MakeResult) -> list[DeviceResult]:
    return [make_result(), make_result(device="gpu", unavailable=REASON)]


@pytest.fixture(params=["pair", "without_gpu"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    write_report(request.getfixturevalue(request.param), tmp_path)
    return (tmp_path / "index.html").read_text(encoding="utf-8")


def test_the_page_loads_nothing_from_anywhere(page: str) -> None:
    parsed = Page(page)
    assert {"h1", "table", "svg"} <= set(parsed.tags)
    assert not {"script", "link", "iframe", "object", "embed", "img", "base"} & set(parsed.tags)
    assert all(target.startswith("#") for target in parsed.loads)
    assert not re.search(r"@import|url\((?!#)", page)


def test_the_page_has_every_figure_of_a_made_up_gpu(pair: list[DeviceResult], tmp_path: Path) -> None:
    write_report(pair, tmp_path)
    header, cpu, gpu = Page((tmp_path / "index.html").read_text(encoding="utf-8")).rows
    assert len(header) == len(cpu) == len(gpu)
    shown = dict(zip(header, gpu, strict=True))
    assert (shown["device"], shown["hardware"], shown["epoch (median)"]) == ("gpu", "Some GPU", "500 ms")
    assert (shown["epoch speed-up"], shown["end-to-end speed-up"]) == ("6.00x", "1.50x")
    assert dict(zip(header, cpu, strict=True))["epoch speed-up"] == "n/a"


def test_a_gpu_that_was_not_there_is_a_row_that_says_so_with_the_reason_beside_it(
    without_gpu: list[DeviceResult], tmp_path: Path
) -> None:
    write_report(without_gpu, tmp_path)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    _, _, gpu = Page(text).rows
    assert gpu[:3] == ["small-mlp", "gpu", "unavailable"]
    assert set(gpu[3:]) == {"n/a"}
    assert REASON in text
    assert REASON in (tmp_path / "comparison.md").read_text(encoding="utf-8")


def test_what_looks_like_html_is_shown_as_text(make_result: MakeResult, tmp_path: Path) -> None:
    results = [
        make_result(NASTY_NAME, device_name="<b>CPU</b>"),
        make_result(NASTY_NAME, "gpu", unavailable="<img src=http://example.com/x>"),
    ]
    write_report(results, tmp_path)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "b", "img"} & set(page.tags)
    assert NASTY_NAME in page.words
    assert [row[0] for row in page.rows[1:]] == [NASTY_NAME, NASTY_NAME]


def test_the_markdown_table_has_a_row_for_each_device(pair: list[DeviceResult], tmp_path: Path) -> None:
    write_report(pair, tmp_path)
    lines = (tmp_path / "comparison.md").read_text(encoding="utf-8").splitlines()
    table = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    assert len({len(row) for row in table}) == 1
    assert set(table[1]) == {" --- "}
    assert [[cell.strip() for cell in row[:3]] for row in table[2:]] == [
        ["small-mlp", "cpu", "Some CPU"],
        ["small-mlp", "gpu", "Some GPU"],
    ]


def test_the_csv_reads_back_in_pandas_with_every_digit(pair: list[DeviceResult], tmp_path: Path) -> None:
    write_report(pair, tmp_path)
    table = pd.read_csv(tmp_path / "comparison.csv")
    assert list(table.columns) == list(COLUMNS)
    assert table["device"].tolist() == ["cpu", "gpu"]
    assert table["epoch_seconds"].tolist() == [3.0, 0.5]
    assert table["epoch_speedup"].iloc[1] == 6.0
    history = pd.read_csv(tmp_path / "history.csv")
    assert history["validation_loss"].tolist()[:3] == [1.0, 1 / 2, 1 / 3]
    assert pd.read_csv(tmp_path / "confusion.csv")["images"].sum() == 16


def test_the_metrics_are_by_experiment_device_and_figure(pair: list[DeviceResult], tmp_path: Path) -> None:
    write_report(pair, tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["small-mlp"]["gpu"]["end_to_end_speedup"] == 1.5
    assert metrics["small-mlp"]["cpu"]["total_seconds"] == 30.0


def test_writing_again_gives_the_same_bytes(pair: list[DeviceResult], tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_report(pair, tmp_path / name)
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("first", "second")
    )
    assert first == second


def test_a_verdict_comes_back_for_each_experiment_in_their_order(make_result: MakeResult, tmp_path: Path) -> None:
    results = [make_result(name, device) for name in ("zebra", "ape") for device in ("cpu", "gpu")]
    assert [verdict.experiment for verdict in write_report(results, tmp_path)] == ["zebra", "ape"]
