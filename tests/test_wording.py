"""Numbers and names as text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from photofinish import wording


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (
            wording.seconds,
            {1.25e-5: "12 µs", 0.00234: "2.3 ms", 0.418: "418 ms", 1.0: "1 s", 59.4: "59 s",
             600.4: "10 min", 86400.0: "24 h"},
        ),
        (
            wording.ratio,
            {12345.6: "12,000", 525.0: "520", 5.71: "5.7", 1.042: "1.04", 0.0946: "0.095",
             1e-7: "0.0000001"},
        ),
        (
            wording.bound,
            {1.001: "1.1x", 1.34: "1.4x", 2.0: "2.0x", 12.1: "13x", 1525.0: "1,525x",
             float("inf"): "∞x"},
        ),
        (wording.times, {300.0: "300x", 12.2: "12x", 6.04: "6.0x", 1.04: "1.04x", 0.5: "0.50x"}),
        (wording.factor, {0.5: "0.5x", 0.999: "1x", 2.04: "2x", 12.4: "12x", 1234.0: "1,200x"}),
        (
            lambda amount: wording.money(amount, "EUR"),
            {0.0: "0.00 EUR", 1e-5: "under 0.01 EUR", 0.5: "0.50 EUR", 1234.567: "1,234.57 EUR"},
        ),
        (wording.utc_day, {1.7e9: "2023-11-14"}),
    ],
    ids=["seconds", "ratio", "bound", "times", "factor", "money", "utc_day"],
)  # fmt: skip
def test_numbers_are_written_with_few_digits_and_no_exponent(
    write: Callable[[float], str], texts: dict[float, str]
) -> None:
    assert {value: write(value) for value in texts} == texts


def test_an_interval_has_the_unit_of_its_time_and_none_if_it_is_twelve_times_wide() -> None:
    assert wording.span(330.0, (144.0, 600.0)) == "5.5 min (2.4-10)"
    assert wording.span(12.0, (11.9, 12.1)) == "12 s"
    assert wording.span(12.0, (1.0, 13.0)) == "not known"
    assert wording.between((294.0, 390.0)) == "4.9-6.5 min"
    assert wording.between((-120.0, 840.0)) == "-2 to 14 min"


def test_memory_is_compared_with_a_gpus_in_one_unit() -> None:
    sizes = {369_050: "under 0.1", 2**30: "1", 40 * 2**30: "40"}
    assert {size: wording.gibibytes(size) for size in sizes} == sizes


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("Some CPU", "Some CPU"),
        ("a\\|b", r"a\\\|b"),
        ("<b>&amp;", r"\<b\>\&amp;"),
        ("[here](http://a) *b*", r"\[here\](http://a) \*b\*"),
        ("To try: `a.b: {c: <1>}`, ` alone", r"To try: `a.b: {c: <1>}`, \` alone"),
        ("two\nlines", "two lines"),
    ],
)
def test_markdown_is_shown_as_text(text: str, markdown: str) -> None:
    assert wording.markdown_text(text) == markdown
