"""Figures as a person reads them."""

from __future__ import annotations

import pytest

from photofinish.wording import energy, markdown_text, money, printable, ratio, seconds, utc_day


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
    ("value", "text"),
    [
        (12345.678, "12,345.68"),
        (1.0, "1.00"),
        (0.1, "0.10"),
        (0.0946, "0.095"),
        (0.00123, "0.0012"),
        (1e-7, "0.0000001"),
    ],
)
def test_a_ratio_is_never_written_as_nothing(value: float, text: str) -> None:
    assert ratio(value) == text


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("Some CPU", "Some CPU"),
        ("CPU | 8 cores", r"CPU \| 8 cores"),
        ("a\\|b", r"a\\\|b"),
        ("<b>&amp;", r"\<b\>\&amp;"),
        ("[here](http://a) *b*", r"\[here\](http://a) \*b\*"),
        ("To try: `a.b: {c: <1>}`, ` alone", r"To try: `a.b: {c: <1>}`, \` alone"),
        ("two\nlines", "two lines"),
    ],
)
def test_what_means_something_in_markdown_is_shown_as_text(text: str, markdown: str) -> None:
    assert markdown_text(text) == markdown


@pytest.mark.parametrize(
    ("joules", "text"), [(0.5, "0.50 J"), (123.4, "123 J"), (1234.0, "1.23 kJ"), (4.5e6, "4.50 MJ"), (3e9, "3,000 MJ")]
)
def test_energy_has_three_digits_in_the_unit_that_suits(joules: float, text: str) -> None:
    assert energy(joules) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(0.0, "0 EUR"), (0.0000123, "0.0000123 EUR"), (0.5, "0.5 EUR"), (1234.567, "1,234.57 EUR")]
)
def test_however_little_money_it_is_it_is_written_out(amount: float, text: str) -> None:
    assert money(amount, "EUR") == text


def test_a_day_is_that_of_utc() -> None:
    assert utc_day(1.7e9) == "2023-11-14"


def test_what_a_terminal_obeys_or_hides_is_shown_as_escapes() -> None:
    assert printable("größe 日本\x1b[31m\u202e") == r"größe 日本\x1b[31m\u202e"
