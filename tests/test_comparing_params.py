"""The settings of the comparison: all can be left out, and each mistake is told with the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from photofinish.config.compare import SHORT_LIST, ComparePlan, Comparing, Prices, Watts, accelerators
from photofinish.config.reader import read_params
from photofinish.errors import ConfigError

REST = """\
defaults: {epochs: 2, batch_size: 16, optimizer: {name: sgd, lr: 0.1}}
datasets: {digits: {source: digits, validation: 0.15, test: 0.15}}
experiments: {linear: {dataset: digits, model: linear}}
"""


def comparing(params_file: Path, section: str) -> Comparing:
    params_file.write_text(REST + section, encoding="utf-8")
    return read_params(params_file).comparing


@pytest.mark.parametrize("section", ["", "compare:\n", "compare: {}\n", "compare: {prices: {gpu_hour: null}}\n"])
def test_left_out_nothing_is_priced_or_aimed_at_and_every_reference_is_shown(params_file: Path, section: str) -> None:
    assert comparing(params_file, section) == Comparing(
        target_accuracy=None, prices=Prices(currency="USD"), watts=Watts(), references="all"
    )


def test_what_is_given_is_read(params_file: Path) -> None:
    section = (
        "compare: {target_accuracy: 0.9, prices: {currency: EUR, cpu_hour: 0.1, gpu_hour: 2, kilowatt_hour: 0.3}, "
        "watts: {cpu: 65}, references: [some-gpu]}\n"
    )
    assert comparing(params_file, section) == Comparing(
        target_accuracy=0.9,
        prices=Prices(currency="EUR", cpu_hour=0.1, gpu_hour=2.0, kilowatt_hour=0.3),
        watts=Watts(cpu=65.0),
        references=("some-gpu",),
    )


@pytest.mark.parametrize(
    ("section", "where", "told"),
    [
        ("{target: 0.9}", "compare.target = 0.9", "did you mean 'target_accuracy'? allowed: target_accuracy, prices,"),
        ("{target_accuracy: 90}", "compare.target_accuracy = 90", "less than or equal to 1"),
        ("{target_accuracy: high}", 'compare.target_accuracy = "high"', "number"),
        ("{prices: 2}", "compare.prices = 2", "object"),
        ("{prices: {gpu_hours: 2}}", "compare.prices.gpu_hours = 2", "did you mean 'gpu_hour'? allowed: currency,"),
        ("{prices: {gpu_hour: -2}}", "compare.prices.gpu_hour = -2", "greater than or equal to 0"),
        ("{prices: {currency: ''}}", 'compare.prices.currency = ""', "at least 1 character"),
        ("{watts: {gpu: 0}}", "compare.watts.gpu = 0", "greater than 0"),
        (
            "{prices: {accelerator_hour: {H10: 2}}}",
            "compare.prices.accelerator_hour.H10",
            "did you mean 'H100'? allowed: T4, L4,",
        ),
        ("{accelerators: [T4, H10]}", 'compare.accelerators.1 = "H10"', "unknown accelerator; did you mean 'H100'?"),
        ("{accelerators: most}", 'compare.accelerators = "most"', "must be 'all', 'none', or a list of"),
        ("{accelerators: [T4, T4]}", 'compare.accelerators = ["T4", "T4"]', "must name each once"),
        ("{references: [lab, lab]}", 'compare.references = ["lab", "lab"]', "must name each once"),
        ("{accelerators: T4}", 'compare.accelerators = "T4"', "in brackets: [T4]"),
        ("{references: some}", 'compare.references = "some"', "must be 'all', 'none', or a list of names"),
        ("{references: [../secret]}", 'compare.references = ["../secret"]', "must be 'all', 'none', or a list"),
        ("[1]", "compare = [1]", "object"),
    ],
)
def test_a_mistake_is_told_with_what_is_allowed(params_file: Path, section: str, where: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r"params\.yaml has 1 mistake") as caught:
        comparing(params_file, f"compare: {section}\n")
    assert f"params.yaml:4  {where}" in str(caught.value)
    assert told in str(caught.value)


def test_accelerators_are_a_short_list_all_none_or_ones_own(params_file: Path) -> None:
    assert comparing(params_file, "").accelerators == SHORT_LIST
    assert comparing(params_file, "compare: {accelerators: all}\n").accelerators == tuple(accelerators())
    assert comparing(params_file, "compare: {accelerators: none}\n").accelerators == ()
    own = comparing(params_file, "compare: {accelerators: [H200, RTX-4090], prices: {accelerator_hour: {H200: 3}}}\n")
    assert own.accelerators == ("H200", "RTX-4090")
    assert own.prices.accelerator_hour == {"H200": 3.0}
    planned = ComparePlan(**dict(own), experiments=()).model_dump_json()
    assert ComparePlan.model_validate_json(planned).prices == own.prices


def test_each_wrong_accelerator_is_told_on_its_line(params_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"params\.yaml has 2 mistakes") as caught:
        comparing(params_file, "compare:\n  accelerators:\n    - A100\n    - L5\n    - V10O\n")
    assert "params.yaml:7  compare.accelerators.1" in str(caught.value)
    assert "params.yaml:8  compare.accelerators.2" in str(caught.value)


def test_mistakes_are_told_together_with_those_elsewhere(params_file: Path) -> None:
    params_file.write_text(REST.replace("epochs: 2", "epochs: 0") + "compare: {watts: {cpu: -1}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"params\.yaml has 2 mistakes"):
        read_params(params_file)
