"""The report's files: one page, Markdown, CSV for pandas, JSON for `dvc metrics`."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
import yaml
from conftest import ROOT
from outputs import record_of, write_report
from planted_jobs import SCORES, compared, history_of, make_job, make_model
from training_stage import contents

import photofinish
from photofinish.answer.candidates import About
from photofinish.answer.comparison import Comparison, compare
from photofinish.answer.diagnosis import Diagnosis, Gain, Remedy
from photofinish.answer.record import answer_record
from photofinish.config.kinds import KINDS
from photofinish.errors import UserError
from photofinish.files import to_json
from photofinish.reporting.answers import Answers
from photofinish.reporting.report import FILES, write_for_dvc
from photofinish.reporting.tables import COLUMNS
from photofinish.reporting.templates import TEMPLATES
from photofinish.results.job import Job, JobPair
from photofinish.results.trained import DeviceLabel, StepsTaken

SOURCES = ROOT / "src/photofinish"
REASON = "; ".join(f"{name}: {kind.absent}" for name, kind in KINDS.items())
NASTY_NAME = "<script>alert('a & b')</script>"
ATTRIBUTES_THAT_LOAD = {
    *("src", "srcset", "href", "xlink:href"),
    *("data", "poster", "action", "background"),
}


class Page(HTMLParser):
    """Tags, links, words and tables of a page."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self._in_cell = False
        self.text = (folder / "index.html").read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ATTRIBUTES_THAT_LOAD]
        label = dict(attrs).get("aria-label") or ""
        if tag == "div" and label.startswith("Table: "):
            title = label.removeprefix("Table: ").partition(" (")[0]
            self._rows = self.tables.setdefault(title, [])
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._in_cell = True
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._in_cell:
            self._rows[-1][-1] += data

    def column(self, title: str, heading: str) -> dict[str, str]:
        """Return a column of a table, by the first cell of each row."""
        header, *rows = self.tables[title]
        return {row[0]: row[header.index(heading)] for row in rows}


def job(
    name: str = "small-mlp",
    device: DeviceLabel = "cpu",
    *,
    passes: Sequence[float] = (2.1, 4.1, 3.1),
    model: dict[str, Any] | None = None,
    **changed: Any,
) -> Job:
    """Make a job of 30 s whose passes take 3 s, or on a GPU one of 20 s whose pass takes 0.5 s."""
    if device == "gpu":
        passes = (0.6,) * 5
    of_model = {"history": history_of(*(1 / epoch for epoch in range(1, len(passes) + 1)))}
    given = {
        "name": name,
        "seconds": 30.0 if device == "cpu" else 20.0,
        "trained": make_model(device, **of_model | (model or {})),
    }
    return make_job(passes, device, **given | changed)


def on_both(name: str = "small-mlp") -> Comparison:
    return compared(job(name), job(name, "gpu"))


def without_gpu(cpu: Job, why: str = REASON, **pair: Any) -> Comparison:
    return compare(JobPair(cpu, None, why, **pair))


@pytest.mark.parametrize("pairs", [[on_both("one"), on_both("two")], [without_gpu(job())]])
def test_the_page_loads_nothing_its_links_lead_somewhere_and_each_part_has_a_name_of_its_own(
    pairs: list[Comparison], tmp_path: Path
) -> None:
    write_report(pairs, tmp_path)
    page = Page(tmp_path)
    assert {"h1", "table", "svg"} <= set(page.tags)
    assert not {"link", "iframe", "object", "embed", "img", "base"} & set(page.tags)
    ids = re.findall(r'\bid="([^"]*)"', page.text)
    assert len(ids) == len(set(ids))
    assert {target.removeprefix("#") for target in page.loads} <= set(ids)
    assert set(re.findall(r"url\(#([^)]*)", page.text)) <= set(ids)
    assert not re.search(r"@import|url\((?!#)", page.text)
    assert "default-src 'none'" in page.text
    pictures = re.findall(r"<svg role=\"img\" aria-label=\"([^\"]*)\"", page.text)
    assert len(pictures) == page.text.count("<svg ")
    assert all(len(name) > 30 for name in pictures)
    regions = re.findall(r"role=\"region\" aria-label=\"([^\"]*)\"", page.text)
    assert len(regions) == len(set(regions)) == page.text.count("<table")
    levels = [int(level) for level in re.findall(r"<h(\d)", page.text)]  # none is skipped
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("with_gpu", [False, True])
def test_the_page_says_which_devices_trained_and_whose_figures_are_a_record(
    tmp_path: Path, with_gpu: bool
) -> None:
    there = job(device="gpu", hardware="NVIDIA Made-Up 100", machine="there")
    pair = on_both() if with_gpu else without_gpu(job(), references=(there,))
    write_report([pair], tmp_path)
    words = " ".join("".join(Page(tmp_path).words).split())
    assert ("Each device trains the same network" in words) is with_gpu
    assert ("No GPU in this machine." in words) is not with_gpu
    assert ("Made-Up 100: measured on another machine." in words) is not with_gpu


def test_the_page_has_every_figure_of_both_devices_and_their_speed_ups(tmp_path: Path) -> None:
    passes, steps = (3.1,) * 5, StepsTaken(kind="graph", at_once=130, why="some were tried")
    cpu = job(passes=passes, step_seconds=(0.02,) * 5)
    other = {"steps_taken": steps, "initial_weights_sha256": "c" * 64}
    gpu = job(device="gpu", step_seconds=(0.01,) * 5, model=other)
    write_report([compared(cpu, gpu)], tmp_path)
    page = Page(tmp_path)
    of_cpu, of_gpu = (page.column("Figures", device) for device in ("CPU", "GPU"))
    expected = {
        "hardware": "Some GPU",
        "epoch (median)": "500 ms",
        "samples/s": "1,200",
        "began": "2023-11-14 22:13 UTC",
        "steps": "in graphs of 130",
    }
    assert {name: of_gpu[name] for name in expected} == expected
    assert of_cpu["steps"] == "n/a"
    assert of_cpu["epoch (median)"] == "3 s"
    _, *rows = page.tables["Speed-ups"]
    assert [row[1:5] for row in rows] == [
        ["20 ms", "10 ms", "2.0x", "1.67 to 2.4"],
        ["3 s", "500 ms", "6.0x", "5.0 to 7.2"],
        ["30 s", "20 s", "1.50x", "1.24 to 1.81"],
    ]
    verdicts = page.column("Is it the same model?", "verdict")
    assert verdicts["initial weights"] == "different"
    assert verdicts["test accuracy"] == "the same"


def test_the_page_has_the_commands_that_try_a_suggestion_and_a_short_trial_of_it(
    tmp_path: Path,
) -> None:
    remedy = Remedy("batch size", {"experiments.mlp.batch_size": 256}, Gain(1.2, 3.0))
    advised = Diagnosis("an epoch", "input-bound", (remedy,))
    pair = replace(without_gpu(job("mlp")), causes={"cpu": (advised,)})
    write_report([pair], tmp_path)
    command = "dvc exp run --temp -S '++experiments.mlp.batch_size=256'"
    trial = f"{command} -S '++experiments.mlp.epochs=3'"
    assert f"{command}\n{trial}" in "".join(Page(tmp_path).words)


def test_html_in_names_is_shown_as_text_and_formulas_are_not_computed(tmp_path: Path) -> None:
    cpu = job(NASTY_NAME, device_name="=<b>CPU</b>")
    write_report([without_gpu(cpu, "@<img src=http://example.com/x>")] * 2, tmp_path)
    page = Page(tmp_path)
    assert "img" not in page.tags
    assert page.tags.count("script") == 1  # the page's
    assert list(page.column("Answers", "verdict")) == [NASTY_NAME]
    assert "<b>CPU</b>" not in page.text
    text = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    markup = re.findall(r"(?<!\\)<[^>]*>", text)
    assert markup == ["<details>", "<summary>", "</summary>", "</details>"]
    table = pd.read_csv(tmp_path / "comparison.csv")
    assert table["device_name"].iloc[0] == "'=<b>CPU</b>"
    assert table["reason"].iloc[1].startswith("'@")


def test_any_number_of_experiments_is_one_page_with_the_details_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("photofinish.reporting.report.MOST_SHOWN", 3)
    names = [f"net-{number}" for number in range(5)]
    write_report(list(map(on_both, names)), tmp_path)
    page = Page(tmp_path)
    _, *rows = page.tables["Answers"]
    assert [row[0] for row in rows] == names
    assert "<h1>Is a GPU worth it for these 5 jobs?</h1>" in page.text
    assert all(len(rows[0]) <= 8 for title, rows in page.tables.items() if "classes" not in title)
    links = [target for target in page.loads if target.startswith("#experiment-")]
    assert links == [f"#experiment-{number}" for number in (1, 2, 3)]
    assert page.text.count('class="experiment ') == 3
    assert len(list((tmp_path / "figures").glob("loss-*.svg"))) == 3
    assert len(pd.read_csv(tmp_path / "comparison.csv")) == 2 * len(names)
    assert set(pd.read_csv(tmp_path / "history.csv")["experiment"]) == set(names)


def test_the_markdown_fits_into_a_comment_at_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("photofinish.reporting.report.MOST_MARKDOWN_CHARACTERS", 8_000)
    monkeypatch.setattr("photofinish.reporting.report.MOST_SHOWN", 1)  # figures take long
    pair = compared(job(device_name="CPU | 8 cores"), job(device="gpu"))
    for count in (1, 40):
        write_report([pair] * count, tmp_path)
        text = (tmp_path / "comparison.md").read_text(encoding="utf-8")
        assert len(text) <= 8_000 + 100
        assert ("The rest is on the page" in text) == (count == 40)
        assert text.endswith("</details>\n")


def test_equal_results_give_an_equal_report_and_csv_with_every_digit(tmp_path: Path) -> None:
    pair = on_both()
    write_report([pair], tmp_path / "first")
    write_report([pair], tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    tables = {path.stem: pd.read_csv(path) for path in (tmp_path / "first").glob("*.csv")}
    assert tables["comparison"]["epoch_speedup"].iloc[1] == pytest.approx(6.0)
    history = tables["history"]
    assert history["validation_loss"].tolist()[:3] == [1.0, 1 / 2, 1 / 3]
    assert history["run"].tolist() == ["small-mlp cpu"] * 3 + ["small-mlp gpu"] * 5
    assert history["training_seconds_so_far"].tolist()[:4] == [3.0, 6.0, 9.0, 3.0]
    rows = [[*row][3:] for row in tables["confusion"].values]
    cat, dog = ("cat", "dog"), ("dog", "cat")
    assert rows[:4] == [["cat", "cat", 3], [*cat, 1], [*dog, 1], ["dog", "dog", 3]]
    assert set(tables) == {"comparison", "history", "confusion"}
    for figures in record_of(pair).figures.values():
        assert {*figures} <= {column.name for column in COLUMNS}
    answers = json.loads((tmp_path / "first/answers.json").read_text(encoding="utf-8"))
    epoch = answers["answers"]["small-mlp"]["speedups"][1]
    assert (epoch["of"], epoch["cpu_seconds"]) == ("epoch", pytest.approx(3.0))
    assert epoch["speedup"]["value"] == pytest.approx(6.0)
    assert epoch["speedup"]["low"] < 6.0 < epoch["speedup"]["high"]


def test_sentences_stand_in_the_table_of_templates_alone_and_each_is_used() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.[pj][y2]")}
    words: set[str] = set()
    for path, source in sources.items():
        if path.parent.name == "reporting" and path.name != "templates.py":
            nodes = [*ast.walk(ast.parse(source))]
            documented = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            headings = {
                id(key) for node in nodes if isinstance(node, ast.Dict) for key in node.keys
            }
            words |= {
                str(node.value)
                for node in nodes
                if isinstance(node, ast.Constant) and id(node) not in documented | headings
            }
    assert [text for text in words - {*TEMPLATES} if len(re.findall(r"\b[a-z]+ ", text)) >= 5] == []
    others = "".join(text for path, text in sources.items() if path.name != "templates.py")
    formed = "none: |by: |learns: |why: |model: |GPU |slow GPU: |mark of |fits |legend of "
    formed += "".join(f"|{about}: " for about in get_args(About))
    named = [name for name in TEMPLATES if not re.match(formed, name)]
    assert [name for name in named if not re.search(f"[\"']{re.escape(name)}[\"']", others)] == []


def test_each_plot_of_dvc_has_its_columns_and_its_template() -> None:
    plots = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["plots"]
    assert len(plots) == 5
    for plot in (settings for each in plots for settings in each.values()):
        ((file, y),) = plot["y"].items()
        columns = FILES[file.removeprefix("plots/")]
        assert {plot["x"], y} <= {*columns}
        template = (ROOT / f".dvc/plots/{plot['template']}.json").read_text(encoding="utf-8")
        fields = set(re.findall(r"\bdatum\.(\w+)|\"field\": \"(\w+)\"", template)) - {("", "rev")}
        assert {"".join(each) for each in fields} <= {*columns}


def test_a_notebook_shows_the_answers_of_the_page_escaped_and_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match="photofinish run"):
        photofinish.report()
    write_report([on_both(), without_gpu(job(NASTY_NAME), "<img src=x>")], Path("report"))
    report, page = photofinish.report(), Page(Path("report"))
    html = report._repr_html_()
    assert "<img" not in html
    assert "<script" not in html
    plain = re.sub(r"</?code>", "", html)
    shown = re.findall(r"<t[dh]\b[^>]*>(?:<span[^>]*>)?([^<]*)", plain)
    cells = [cell for row in page.tables["Answers"] for cell in row]
    assert list(map(unescape, shown)) == cells
    assert [text in html for text in ("Some GPU", NASTY_NAME)] == [True, False]
    lines = Path("report/comparison.md").read_text(encoding="utf-8").splitlines()
    table = [line.split(" | ") for line in lines if line.startswith("| ")]
    assert [len(row) for row in table] == [len(page.tables["Answers"][0])] * 4
    assert NASTY_NAME in str(report).splitlines()[2]
    pd.testing.assert_frame_equal(report.table, pd.read_csv("report/comparison.csv"))
    Path("report").rename("photofinish-report")
    Path("photofinish").mkdir()
    Path("photofinish-report").rename("photofinish/report")
    assert str(photofinish.report()) == str(report)


def test_a_loss_that_is_not_finite_is_left_out_everywhere(tmp_path: Path) -> None:
    nan = float("nan")
    history = [replace(epoch, validation_loss=nan) for epoch in history_of(1.0, 0.5, 0.3)]
    scores = SCORES.model_copy(update={"test_loss": nan})
    pair = without_gpu(job(model={"history": history, "scores": scores}))
    write_report([pair], tmp_path)
    write_for_dvc(answer_record([pair]), tmp_path, tmp_path / "metrics", tmp_path / "plots")
    metrics = json.loads((tmp_path / "metrics" / "small-mlp.json").read_text(encoding="utf-8"))
    assert "test_loss" not in metrics["cpu"]
    assert pd.read_csv(tmp_path / "comparison.csv")["test_loss"].isna().all()
    assert pd.read_csv(tmp_path / "history.csv")["validation_loss"].isna().all()
    assert "test loss" not in Page(tmp_path).column("Figures", "CPU")


SCHEMA = ROOT / "docs" / "answers.schema.json"
RESIDENT = Remedy("resident", {"experiments.mlp.input": "resident"}, Gain(1.5, 2.5))
BATCH = Remedy("batch size", {"experiments.mlp.batch_size": 64}, Gain(1.2, 3.0))
THREADS = Remedy("threads", {"devices.cpu.threads": 4}, Gain(1.2, 3.0))


def test_the_schema_is_that_of_the_answers() -> None:
    """PHOTOFINISH_UPDATE_GOLDEN=1 rewrites it."""
    schema = to_json(Answers.model_json_schema())
    if os.environ.get("PHOTOFINISH_UPDATE_GOLDEN"):
        SCHEMA.write_text(schema, encoding="utf-8")
    assert SCHEMA.read_text(encoding="utf-8") == schema


def suggesting(seconds: float, *remedies: Remedy) -> Comparison:
    """Compare a job of five epochs on the CPU, with suggestions."""
    job = replace(make_job((seconds + 0.1,) * 5, seconds=30.0), name="mlp")
    causes = []
    for remedy in remedies:
        in_job = replace(remedy, predicted=remedy.predicted.of_job(job))
        causes.append(Diagnosis("an epoch", "input-bound", (in_job,)))
    return replace(compared(job), causes={"cpu": tuple(causes)})


def answer_of(pair: Comparison, folder: Path) -> dict[str, Any]:
    write_report([pair], folder)
    text = (folder / "answers.json").read_text(encoding="utf-8")
    Answers.model_validate_json(text)
    answer: dict[str, Any] = json.loads(text)["answers"]["mlp"]
    return answer


def test_a_suggestion_has_its_gain_and_the_command_that_tries_it(tmp_path: Path) -> None:
    answer = answer_of(suggesting(2.0, RESIDENT, THREADS), tmp_path)
    resident, threads = answer["suggestions"]
    assert resident.pop("command") == "dvc exp run --temp -S '++experiments.mlp.input=resident'"
    assert resident == {
        "device": "cpu",
        "settings": {"experiments.mlp.input": "resident"},
        "line": "experiments.mlp.input: resident",
        "gain": {"low": pytest.approx(1.13, abs=0.1), "high": pytest.approx(1.27, abs=0.1)},
        "learns": "the same",
    }
    assert threads["learns"] == "other last bits"
    assert 1 < threads["gain"]["low"] < 1.2  # of the job, of which only epochs get faster
    assert answer["cpu_seconds"]["low"] < answer["cpu_seconds"]["value"]
    assert answer["cpu_seconds"]["value"] < answer["cpu_seconds"]["high"]
    assert [each["cause"] for each in answer["causes"]] == ["input-bound"] * 2
    assert (answer["gpu_seconds"], answer["evidence"]) == (None, "bound")


def test_the_example_applies_suggestions_until_none_is_left_that_keeps_what_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    params = Path("params.yaml")
    params.write_text("experiments: {mlp: {input: {name: loader, workers: 0}}}\n")

    def run(command: list[str], *, check: bool) -> None:
        assert (command, check) == (["photofinish", "run"], True)
        found = yaml.safe_load(params.read_text())
        settings, threads = found["experiments"]["mlp"], found.get("devices", {})
        is_resident = settings["input"] == "resident"
        left = [*([] if is_resident else [RESIDENT]), BATCH, *([] if threads else [THREADS])]
        seconds = (1.0 if is_resident else 2.0) / (2 if threads else 1)
        answer_of(suggesting(seconds, *left), Path("report"))

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("sys.argv", ["apply_suggestions.py", "mlp"])
    runpy.run_path(str(ROOT / "examples" / "apply_suggestions.py"))
    assert yaml.safe_load(params.read_text()) == {
        "experiments": {"mlp": {"input": "resident"}},
        "devices": {"cpu": {"threads": 4}},
    }
