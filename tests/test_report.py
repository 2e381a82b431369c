"""The report's files: a page that stands alone, a Markdown table, CSV for pandas, JSON for `dvc metrics`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path

import pandas as pd
import pytest
from conftest import MakeResult
from result_files import changed_history, pair_of, trained, with_timings

from photofinish.comparing.pairs import Pair
from photofinish.files import write_json_atomically
from photofinish.report.report import MOST_ON_ONE_PAGE, number_columns, write_for_dvc, write_report
from photofinish.report.rows import COMPARISON
from photofinish.results.records import StepsTaken

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
        self.tables: list[list[list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ATTRIBUTES_THAT_LOAD]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1].append(data)

    @property
    def rows(self) -> list[list[str]]:
        """Of the table of all figures, the last but the one that tells how they were measured."""
        return self.tables[-2]


def page_in(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture
def pair(make_result: MakeResult) -> list[Pair]:
    gpu = make_result(device="gpu", epoch_seconds=(0.5,), total_seconds=20.0, device_name="Some GPU")
    return [pair_of(make_result(), gpu)]


@pytest.fixture
def without_gpu(make_result: MakeResult) -> list[Pair]:
    return [pair_of(make_result(), make_result(device="gpu", unavailable=REASON))]


@pytest.mark.parametrize("pairs", ["pair", "without_gpu"])
def test_the_page_loads_nothing_from_anywhere(pairs: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    write_report(request.getfixturevalue(pairs), tmp_path)
    page = page_in(tmp_path)
    parsed = Page(page)
    assert {"h1", "table", "svg"} <= set(parsed.tags)
    assert not {"link", "iframe", "object", "embed", "img", "base"} & set(parsed.tags)
    assert all(target.startswith(("#", "data:image/png;")) for target in parsed.loads)
    assert not re.search(r"@import|url\((?!#)", page)
    assert "default-src 'none'" in page


def test_the_page_has_every_figure_of_a_made_up_gpu(pair: list[Pair], tmp_path: Path) -> None:
    write_report(pair, tmp_path)
    header, _, gpu = Page(page_in(tmp_path)).rows
    shown = dict(zip(header, gpu, strict=True))
    assert (shown["device"], shown["hardware"], shown["epoch (median)"]) == ("gpu", "Some GPU", "500 ms")
    assert float(shown["images/s"].replace(",", "")) * 0.5 == 600  # throughput times seconds equals samples
    assert (shown["between epochs"], shown["measured"]) == ("70.0 ms (0.7%)", "2023-11-14 22:13 UTC, workbench")


def test_of_a_long_cell_the_first_part_is_shown_and_the_rest_folded_away(
    make_result: MakeResult, tmp_path: Path
) -> None:
    write_report([pair_of(make_result("<b>", total_seconds=4.0))], tmp_path)
    shown, folded = re.findall(r"<details><summary>(.*?)</summary>(.*?)</details></td>", page_in(tmp_path))[0]
    assert shown == "start-up (imports, device, data, warm-up) is 62% of the whole job"
    assert folded == "2.50 s of 4.00 s; an epoch takes 3.00 s, and there are 3"
    assert "&lt;b&gt;</th>" in page_in(tmp_path)


def test_the_three_speed_ups_have_their_intervals_or_none(make_result: MakeResult, tmp_path: Path) -> None:
    gpu = make_result(device="gpu", epoch_seconds=(0.5,) * 5, step_seconds=(0.01,) * 5, total_seconds=20.0)
    write_report([pair_of(make_result(epoch_seconds=(3.0,) * 5, step_seconds=(0.02,) * 5), gpu)], tmp_path)
    for rows in (Page(page_in(tmp_path)).tables[0], markdown_tables(tmp_path)[0]):
        assert [row[1:] for row in rows[1:]] == [
            ["a step, its data at hand", "20.0 ms", "10.0 ms", "2.00x", "1.90 to 2.10", "the GPU is faster"],
            ["an epoch with its data", "3.00 s", "500 ms", "6.00x", "5.71 to 6.30", "the GPU is faster"],
            [
                "end to end, start-up included", "30.0 s", "20.0 s", "1.50x", "n/a",
                "no winner is named without an interval (1 repeat, and it takes 5)",
            ],
        ]  # fmt: skip


def test_what_was_compared_of_the_models_is_listed_with_what_was_found(make_result: MakeResult, tmp_path: Path) -> None:
    write_report([pair_of(make_result(), make_result(device="gpu", initial_weights_sha256="c" * 64))], tmp_path)
    _, same, weights, accuracy = markdown_tables(tmp_path)[1]
    assert same[1].startswith("settings, data, batch order, first batch, first forward, first gradient")
    assert same[2:] == ["bit for bit", "the same"]
    assert weights[1:] == ["initial weights", "they differ", "different"]
    assert accuracy[2:] == ["75.00% on the CPU, 75.00% on the GPU; McNemar's exact p = 1", "the same"]


@pytest.mark.parametrize(
    ("run_began", "told"), [(None, ""), (1.6e9, " (an earlier run)"), (1.8e9, " (an earlier run)")]
)
def test_each_figure_tells_when_and_where_it_was_measured(
    pair: list[Pair], tmp_path: Path, run_began: float | None, told: str
) -> None:
    write_report(pair, tmp_path, run_began)
    table = markdown_tables(tmp_path)[-2]
    assert table[1][table[0].index("measured")] == f"2023-11-14 22:13 UTC, workbench{told}"


def test_what_this_machine_measured_since_the_run_began_is_of_this_run(
    pair: list[Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "workbench")
    write_report(pair, tmp_path, 1.6e9)
    assert pd.read_csv(tmp_path / "comparison.csv")["measured_in"].tolist() == ["this run", "this run"]


def markdown_tables(folder: Path) -> list[list[list[str]]]:
    """Of comparison.md, without the lines below their headers."""
    text = (folder / "comparison.md").read_text(encoding="utf-8")
    tables = [part.split("\n") for part in text.split("\n\n") if part.startswith("|")]
    cells = [[[cell.strip() for cell in line.strip("|").split("|")] for line in table if line] for table in tables]
    return [[table[0], *table[2:]] for table in cells]


def test_a_gpu_that_was_not_there_is_a_row_that_says_so_with_the_reason_beside_it(
    without_gpu: list[Pair], tmp_path: Path
) -> None:
    write_report(without_gpu, tmp_path)
    text = page_in(tmp_path)
    _, _, gpu = Page(text).rows
    columns = [table[0][0:2] for table in Page(text).tables]
    assert columns == [["experiment", "of"], ["experiment", "device"], ["experiment", "device"]]  # nothing to compare
    assert gpu[:3] == ["small-mlp", "gpu", "unavailable"]
    assert set(gpu[3:]) == {"n/a"}
    assert REASON in text
    assert REASON in (tmp_path / "comparison.md").read_text(encoding="utf-8")


def test_what_looks_like_html_is_shown_as_text(make_result: MakeResult, tmp_path: Path) -> None:
    cpu = make_result(NASTY_NAME, device_name="<b>CPU</b>")
    gpu = make_result(NASTY_NAME, "gpu", unavailable="<img src=http://example.com/x>")
    write_report([pair_of(cpu, gpu)], tmp_path)
    page = Page(page_in(tmp_path))
    assert not {"b", "img"} & set(page.tags)
    assert page.tags.count("script") == 1  # its own
    assert NASTY_NAME in page.words
    assert [row[0] for row in page.rows[1:]] == [NASTY_NAME, NASTY_NAME]
    assert not re.search(r"(?<!\\)<", (tmp_path / "comparison.md").read_text(encoding="utf-8"))


def test_no_cell_of_a_csv_is_a_formula(make_result: MakeResult, tmp_path: Path) -> None:
    gpu = make_result(device="gpu", unavailable="@SUM(1)")
    write_report([pair_of(make_result(device_name='=HYPERLINK("http://a")'), gpu)], tmp_path)
    table = pd.read_csv(tmp_path / "comparison.csv")
    assert table["device_name"].iloc[0] == """'=HYPERLINK("http://a")"""
    assert table["reason"].iloc[1] == "'@SUM(1)"


@pytest.fixture
def many(make_result: MakeResult) -> list[Pair]:
    names = [f"net-{number}" for number in range(MOST_ON_ONE_PAGE + 1)]
    return [pair_of(make_result(name), make_result(name, "gpu", epoch_seconds=(0.5,))) for name in names]


def test_many_experiments_are_an_overview_that_leads_to_a_page_of_each(many: list[Pair], tmp_path: Path) -> None:
    former = tmp_path / "experiments" / "former.html"
    write_report(many, tmp_path)
    former.touch()
    write_report(many, tmp_path)
    page = Page(page_in(tmp_path))
    assert len(page.tables[0]) == 1 + len(many)
    assert page.loads[1:] == [f"experiments/{pair.experiment}.html" for pair in many]
    assert "21 experiments. The GPU: no winner 21." in page.words
    assert page.tags.count("figure") == len(list((tmp_path / "figures").iterdir())) == 2
    pages = sorted((tmp_path / "experiments").iterdir())
    assert [each.stem for each in pages] == sorted(pair.experiment for pair in many)
    one = Page(pages[0].read_text(encoding="utf-8"))
    assert {"net-0", "../index.html"} <= {*one.words, *one.loads}
    assert one.rows[1][0] == "net-0"
    assert one.tags.count("figure") == 6  # three speed-ups, losses, two confusion matrices
    assert len(pd.read_csv(tmp_path / "comparison.csv")) == 2 * len(many)
    assert len(markdown_tables(tmp_path)[0]) == 1 + len(many)


def test_the_overview_leaves_out_columns_without_figures(make_result: MakeResult, tmp_path: Path) -> None:
    pairs = [pair_of(make_result(f"net-{number}")) for number in range(MOST_ON_ONE_PAGE + 1)]
    write_report(pairs, tmp_path)
    assert Page(page_in(tmp_path)).tables[0][0] == ["experiment", "the GPU", "CPU: total", "CPU: accuracy"]
    assert not (tmp_path / "figures" / "speedups-in-order.svg").exists()


def test_the_markdown_table_has_a_row_for_each_device(pair: list[Pair], tmp_path: Path) -> None:
    write_report(pair, tmp_path)
    header, *rows = markdown_tables(tmp_path)[-2]
    assert {len(row) for row in rows} == {len(header)}
    assert [row[:3] for row in rows] == [["small-mlp", "cpu", "Some CPU"], ["small-mlp", "gpu", "Some GPU"]]


def test_a_bar_in_a_name_does_not_break_the_markdown_table(make_result: MakeResult, tmp_path: Path) -> None:
    write_report([pair_of(make_result(device_name="CPU | 8 cores"), make_result(device="gpu"))], tmp_path)
    lines = (tmp_path / "comparison.md").read_text(encoding="utf-8").split("\n## ")[-2].splitlines()
    cells = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines if line.startswith("|")]
    assert len({len(row) for row in cells}) == 1
    assert cells[2][2] == r" CPU \| 8 cores "


def test_the_csv_reads_back_in_pandas_with_every_digit(pair: list[Pair], tmp_path: Path) -> None:
    write_report(pair, tmp_path)
    table = pd.read_csv(tmp_path / "comparison.csv")
    assert list(table.columns) == list(COMPARISON)
    assert table["device"].tolist() == ["cpu", "gpu"]
    assert table["epoch_seconds"].tolist() == [3.0, 0.5]
    assert table["epoch_speedup"].iloc[1] == 6.0
    history = pd.read_csv(tmp_path / "history.csv")
    assert history["validation_loss"].tolist()[:3] == [1.0, 1 / 2, 1 / 3]
    assert pd.read_csv(tmp_path / "confusion.csv")["images"].sum() == 16


def test_each_experiment_of_this_report_has_its_file_of_metrics(pair: list[Pair], tmp_path: Path) -> None:
    former = tmp_path / "metrics" / "former.json"
    write_json_atomically(former, {})
    write_report(pair, tmp_path)
    write_for_dvc(pair, tmp_path, tmp_path / "metrics", tmp_path / "plots")
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"history.csv", "confusion.csv", "speedups.csv"}
    (file,) = (tmp_path / "metrics").iterdir()
    metrics = json.loads(file.read_text(encoding="utf-8"))
    assert file.name == "small-mlp.json"
    assert metrics["gpu"]["end_to_end_speedup"] == 1.5
    assert metrics["cpu"]["total_seconds"] == 30.0


def test_what_is_no_number_is_left_out_everywhere(make_result: MakeResult, tmp_path: Path) -> None:
    cpu = trained(make_result)
    diverged = replace(
        cpu,
        scores=cpu.scores.model_copy(update={"test_loss": float("nan")}),
        history=changed_history(cpu, validation_loss=[float("nan")] * 3),
    )
    write_report([pair_of(diverged)], tmp_path)
    write_for_dvc([pair_of(diverged)], tmp_path, tmp_path / "metrics", tmp_path / "plots")
    assert "test_loss" not in json.loads((tmp_path / "metrics" / "small-mlp.json").read_text(encoding="utf-8"))["cpu"]
    assert pd.read_csv(tmp_path / "comparison.csv")["test_loss"].isna().all()
    assert pd.read_csv(tmp_path / "history.csv")["validation_loss"].isna().all()
    header, cpu_row, _ = Page(page_in(tmp_path)).rows
    assert dict(zip(header, cpu_row, strict=True))["test loss"] == "n/a"


def test_writing_again_gives_the_same_bytes(pair: list[Pair], tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_report(pair, tmp_path / name)
    first, second = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("first", "second")
    )
    assert first == second


def test_figures_stand_flush_right_whatever_their_unit_and_words_do_not() -> None:
    first = {"time": "1,234 s", "share": "70.0 ms (0.7%)", "ratio": "2.00x", "date": "2023-11-14 22:13 UTC",
             "interval": "1.50 to 2.50", "nothing": "n/a"}  # fmt: skip
    second = dict.fromkeys(first, "n/a") | {"share": "1.00 s (10.0%)"}
    assert number_columns([first, second]) == {"time", "share", "ratio"}


def test_no_picture_of_a_former_report_is_left(pair: list[Pair], without_gpu: list[Pair], tmp_path: Path) -> None:
    for pairs, gpu_was_there in ((pair, True), (without_gpu, False)):
        write_report(pairs, tmp_path)
        assert (tmp_path / "figures" / "speedup-epoch.svg").is_file() is gpu_was_there
        assert (tmp_path / "figures" / "loss-small-mlp.svg").is_file()


def test_the_speed_ups_are_there_for_programs_too(pair: list[Pair], tmp_path: Path) -> None:
    write_report(pair, tmp_path)
    table = pd.read_csv(tmp_path / "speedups.csv").set_index("of")
    assert table.loc["epoch", ["experiment", "speedup", "cpu_seconds", "gpu_seconds"]].tolist() == [
        "small-mlp", 6.0, 3.0, 0.5,
    ]  # fmt: skip
    assert table.loc["epoch", ["low", "high"]].isna().all()


def test_the_page_tells_where_and_how_often_each_run_was_measured(pair: list[Pair], tmp_path: Path) -> None:
    write_report(pair, tmp_path)
    for table in (
        markdown_tables(tmp_path)[-1],
        Page(page_in(tmp_path)).tables[-1],
    ):
        told = dict(zip(table[0], table[2], strict=True))
        assert (told["experiment"], told["device"], told["hardware"]) == ("small-mlp", "gpu", "Some GPU")
        assert (told["epochs timed"], told["steps timed"], told["warm-up"]) == ("1", "1 x 1", "250 ms")
        assert told["machine"].startswith("workbench: ")
        assert f"torch {metadata.version('torch')}" in told["versions"]


@pytest.mark.parametrize(
    ("taken", "told"),
    [
        (None, "one by one"),
        (StepsTaken(kind="graph", at_once=130, why="some were tried"), "in graphs of 130"),
        (StepsTaken(kind="eager", at_once=1, why="it reads back"), "one by one: it reads back"),
    ],
    ids=["of an earlier record", "graph", "eager"],
)
def test_the_page_tells_how_a_gpu_was_handed_its_steps(
    pair: list[Pair], tmp_path: Path, taken: StepsTaken | None, told: str
) -> None:
    cpu, gpu = pair[0].trained
    with_steps = with_timings(gpu, steps_taken=taken)
    write_report([pair_of(cpu, with_steps)], tmp_path)
    heading, of_cpu, of_gpu = markdown_tables(tmp_path)[-1]
    column = heading.index("steps handed out")
    assert (of_cpu[column], of_gpu[column]) == ("one by one", told)
