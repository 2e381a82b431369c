"""The report as Chromium shows it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeResult
from outputs import write_report
from planted_jobs import several_pairs
from result_files import paired
from test_default_jobs import ANSWERS, cpu_result, shipped, shipped_references

CHROMIUM = shutil.which("chromium")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
WAIT_SECONDS = 60
OPEN_ALL = "document.querySelectorAll('details').forEach((folded) => { folded.open = true; })"
SIZES_AND_NAMES = """
all => all.map(svg => [svg.getBoundingClientRect().toJSON(), svg.getAttribute('aria-label')])
"""
LOOKS = {
    "desk": {"viewport": DESK, "color_scheme": "light"},
    "phone": {"viewport": PHONE, "color_scheme": "light"},
    "desk-dark": {"viewport": DESK, "color_scheme": "dark"},
    "phone-dark": {"viewport": PHONE, "color_scheme": "dark"},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no chromium (Debian: apt-get install chromium)"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(QUIET), timeout=1000 * WAIT_SECONDS
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, make_result: MakeResult) -> dict[str, Path]:
    """Return reports of 3 and 15 made-up experiments, and of params.yaml without a GPU."""
    folder = tmp_path_factory.mktemp("reports")
    write_report(several_pairs(), folder / "gpu")
    jobs = [cpu_result(make_result, name, 1.0) for name in ANSWERS]
    write_report(paired(jobs, shipped().comparing, shipped_references()), folder / "no-gpu")
    write_report(several_pairs(15), folder / "grid")
    return {path.name: path / "index.html" for path in folder.iterdir()}


@contextmanager
def opened(browser: Any, address: str, **look: Any) -> Iterator[tuple[Any, list[str]]]:
    """Yield a page, and the errors on its console with what it asked for over the network."""
    page = browser.new_page(**look)
    page.set_default_timeout(1000 * WAIT_SECONDS)
    errors: list[str] = []

    def listen(message: Any) -> None:
        if message.type in ("error", "warning"):
            errors.append(f"{message.text} {message.location['url']}")

    def note(request: Any) -> None:
        if not request.url.startswith(("data:", "file:")):
            errors.append(request.url)

    page.on("console", listen)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", note)
    page.goto(address)
    yield page, errors
    page.close()


@pytest.mark.parametrize(
    ("report", "look"),
    [("gpu", "phone-dark"), ("no-gpu", "phone"), ("no-gpu", "desk-dark"), ("grid", "desk")],
)
def test_every_figure_fits_on_every_screen_without_errors_or_requests(
    browser: Any, reports: dict[str, Path], report: str, look: str
) -> None:
    with opened(browser, reports[report].as_uri(), **LOOKS[look]) as (page, errors):
        if report == "grid":
            assert page.evaluate("document.documentElement.scrollHeight") < 4000
        page.evaluate(OPEN_ALL)
        figures = page.eval_on_selector_all("figure svg", SIZES_AND_NAMES)
        assert len(figures) == len(list((reports[report].parent / "figures").iterdir()))
        assert all(size["width"] > 200 and size["height"] > 90 for size, _ in figures)
        assert all(len(name) > 30 for _, name in figures)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert errors == []


@pytest.mark.parametrize(
    ("report", "look"),
    [("gpu", "desk"), ("gpu", "phone-dark"), ("no-gpu", "phone"), ("no-gpu", "desk-dark")],
)
def test_axe_finds_nothing_in_the_report_with_all_folds_open(
    browser: Any, reports: dict[str, Path], report: str, look: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # The page allows only its own script.
    with opened(browser, reports[report].as_uri(), bypass_csp=True, **LOOKS[look]) as (page, _):
        page.evaluate(OPEN_ALL)
        found = Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


def column(page: Any, heading: str) -> list[str]:
    """Return the cells of a column of the overview."""
    header = page.locator("#overview").get_by_role("columnheader", name=heading)
    place = header.evaluate("cell => cell.cellIndex")
    rows = page.locator("#overview tbody tr")
    cells: list[str] = rows.evaluate_all(f"rows => rows.map(row => row.cells[{place}].innerText)")
    return cells


def test_the_overview_is_sorted_by_value_with_a_click_and_with_the_keyboard(
    browser: Any, reports: dict[str, Path]
) -> None:
    with opened(browser, reports["gpu"].as_uri(), viewport=DESK) as (page, errors):
        heading = page.locator("#overview").get_by_role("columnheader", name="on a GPU")
        heading.get_by_role("button").click()
        times = [f"{time} s on the Made-up accelerator" for time in (4, 8, 16)]
        assert column(page, "on a GPU") == times
        assert heading.get_attribute("aria-sort") == "ascending"
        heading.get_by_role("button").press("Enter")
        assert column(page, "on a GPU") == times[::-1]
        assert heading.get_attribute("aria-sort") == "descending"
        heading = page.locator("#overview").get_by_role("columnheader", name="on this CPU")
        heading.get_by_role("button").press("Space")
        assert column(page, "on this CPU") == ["20 s", "20 s", "3.3 min"]
        assert errors == []


def test_the_overview_of_fifteen_is_filtered_prints_on_white_and_leads_to_an_experiment(
    browser: Any, reports: dict[str, Path]
) -> None:
    look = {"viewport": DESK, "color_scheme": "dark"}
    with opened(browser, reports["grid"].as_uri(), **look) as (page, errors):
        table = page.locator("#overview")
        page.get_by_label("Only rows with").fill("NETWORK-13 yes")
        assert table.locator("tbody tr:visible th").all_inner_texts() == ["digits-network-13"]
        assert page.locator("output").inner_text() == "1 of 15"
        page.get_by_label("Only rows with").fill("")
        assert table.locator("tbody tr:visible").count() == 15
        assert page.locator("details.experiment[open]").count() == 0
        printed = page.pdf(prefer_css_page_size=True)
        page.emulate_media(media="print")
        assert printed.startswith(b"%PDF-")
        assert printed.count(b"/Type /Page\n") <= 8
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(255, 255, 255)"
        page.emulate_media(media="screen")
        table.get_by_role("link", name="digits-network-3", exact=True).click()
        page.locator("details.experiment[open] h2", has_text="digits-network-3").wait_for()
        assert errors == []
