"""Figures as a person reads them."""

from __future__ import annotations

import pytest

from photofinish.wording import markdown_cell, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00 µs"),
        (1.25e-5, "12.5 µs"),
        (0.00234, "2.34 ms"),
        (0.5, "500 ms"),
        (1.0, "1.00 s"),
        (59.94, "59.9 s"),
        (600.4, "600 s"),
        (86400.0, "86,400 s"),
    ],
)
def test_seconds_have_three_digits_in_the_unit_that_suits(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("text", "cell"), [("Some CPU", "Some CPU"), ("CPU | 8 cores", r"CPU \| 8 cores"), ("a\\|b", r"a\\\|b")]
)
def test_a_bar_in_a_cell_does_not_end_it(text: str, cell: str) -> None:
    assert markdown_cell(text) == cell
