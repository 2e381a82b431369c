"""Checks of params.yaml as a whole: each problem is reported with its line, key and value."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Hashable, Iterator
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from dvc.utils.hydra import apply_overrides
from dvc.utils.serialize import parse_yaml

from photofinish.config.compare import SHORT_LIST, ComparePlan, Comparing, accelerators
from photofinish.config.experiment import Augmentation, LoaderInput, Optimizer, Schedule
from photofinish.config.loader import Params, read_params
from photofinish.config.losses_and_metrics import BceWithLogits, CrossEntropy, EarlyStopping
from photofinish.config.networks import MlpModel
from photofinish.errors import ConfigError
from photofinish.planning.checks import check_custom_code_calls

GOOD = """\
defaults:
  seed: 0
  epochs: 10
  batch_size: 128
  optimizer: {name: sgd, lr: 0.1, momentum: 0.9}
  schedule: constant
  input: resident
  precision: fp32
devices:
  cpu: {threads: auto}
  gpu: {kind: auto, count: 1, if_missing: skip}
datasets:
  digits: {source: digits, validation: 0.15, test: 0.15}
experiments:
  linear: {dataset: digits, model: linear}
  mlp: {dataset: digits, model: {name: mlp, hidden: [32]}, optimizer: {lr: 0.05}}
"""
DEFAULTS = GOOD[: GOOD.index("devices:")]
DATASETS = GOOD[GOOD.index("datasets:") : GOOD.index("experiments:")]
EXPERIMENTS = GOOD[GOOD.index("experiments:") :]
SGD = "optimizer: {name: sgd, lr: 0.1, momentum: 0.9}"
SGD_SETTINGS: dict[str, Any] = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
GPU = "gpu: {kind: auto, count: 1, if_missing: skip}"
DIGITS = "{source: digits, validation: 0.15, test: 0.15}"
NO_VALIDATION = "{source: digits, validation: 0, test: 1}"
LINEAR = "linear: {dataset: digits, model: linear}"
LR = "optimizer: {lr: 0.05}"
UNNAMED = """epochs: 10
  augmentation: {crop_padding: 4}
  early_stopping: {patience: 1, min_delta: 0.1}"""
ACCURACY = "{monitor: validation_accuracy, patience: 9}"

# What is changed in GOOD, to what, the line and key of the only problem, and a part of its text.
PROBLEMS = [
    (DATASETS, "", "1  datasets", "required"),
    (EXPERIMENTS, "experiments: {}\n", "14  experiments", "at least one entry"),
    ("datasets:", "datasts:", "12  datasts", "did you mean 'datasets'?"),
    ("lr: 0.1", "lr: .nan", "5  defaults.optimizer.lr", "finite"),
    ("momentum: 0.9", "momentun: 0.9", "5  defaults.optimizer.momentun", "'momentum'?"),
    ("epochs: 10", "epochs: 10\n  grad_clip: 1", "4  defaults.grad_clip", "clip_grad_norm: 1.0"),
    (SGD, "optimizer: {name: rmsporp, lr: 1}", "5  defaults.optimizer.name", "'RMSprop'?"),
    ("constant", "step", "6  defaults.schedule.step_size", "needs step_size"),
    ("fp32", "fp8", "8  defaults.precision", "did you mean 'fp32'? allowed: fp32, tf32, bf16"),
    (LINEAR, "linear:", "15  experiments.linear", "mapping"),
    ("dataset: digits", "dataset: digit", "15  experiments.linear.dataset", "mean 'digits'?"),
    (LR, "optimizer: adam", "16  experiments.mlp.optimizer.lr", "required"),
    (LR, "schedule: {eta_min: 1}", "16  experiments.mlp.schedule", "constant schedule has no"),
    *(
        ("schedule: constant", f"schedule: {{name: {name}}}", "6  defaults.schedule", text)
        for name, text in (
            ("reduce_on_plateau, every: step", "validation loss, so remove `every: step`"),
            ("ReduceLROnPlateau, mode: max", "validation loss, so remove `mode: max`"),
        )
    ),
    ("linear}", "linear, cuda_graphs: yes}", "15  experiments.linear.cuda_graphs", "auto, off, on"),
    ("linear: {", "../x: {", "15  experiments.../x", "becomes a folder's"),
    ("{threads: auto}", "{threads: 2.0}", "10  devices.cpu.threads", "a count from 1 to 1024"),
    ("{threads: auto}", "{time_limit: 600}", "10  devices.cpu.time_limit", "s, min or h"),
    *(
        (
            LR,
            f"metrics: [auroc], early_stopping: {{monitor: {monitor}, patience: 1}}",
            f"16  experiments.mlp.early_stopping.{key}",
            text,
        )
        for monitor, key, text in (
            ("auroc", "mode", "larger (max) or smaller (min)"),
            ("auc, mode: max", "monitor", "mean 'auroc'?"),
        )
    ),
    (GPU, "gpu: {count: every}", "11  devices.gpu.count", "'all', or a count"),
    (GPU, "gpu: {device_ids: [0, 1]}", "11  devices.gpu", "strategy: data_parallel"),
    ("source: digits", "source: mnist", "13  datasets.digits.source", "did you mean 'MNIST'?"),
    ("test: 0.15", "test: 1.5", "13  datasets.digits.test", "fraction between 0 and 1"),
    (DIGITS, "{source: MNIST}", "13  datasets.digits.validation", "required"),
    (DIGITS, "{source: digits, validation: 0, test: 0}", "13  datasets.digits.test", "0"),
    *(
        (
            f"{DIGITS}\nexperiments:\n  linear: {{",
            f"{NO_VALIDATION}\nexperiments:\n  linear: {{{key}: {value}, ",
            f"15  experiments.linear.{key}",
            "this follows the validation part, but datasets.digits has none",
        )
        for key, value in (("early_stopping", "{patience: 2}"), ("schedule", "reduce_on_plateau"))
    ),
    (DIGITS, "{source: csv, validation: 1, test: 1}", "13  datasets.digits", "either path"),
    ("model: linear", "model: liner", "15  experiments.linear.model.name", "mean 'linear'?"),
    (
        "model: linear",
        "model: {name: resnet18, weights: imagenet}",
        "15  experiments.linear.model.weights",
        "allowed: IMAGENET1K_V1",
    ),
    ("model: linear", "model: {name: 'a.py:N', x: [.inf]}", "15  experiments.linear.model", "x"),
    *(
        ("devices:", f"compare: {{{section}}}\ndevices:", f"9  compare.{key}", text)
        for section, key, text in (
            ("prices: {accelerator_hour: {H10: 2}}", "prices.accelerator_hour.H10", "mean 'H100'?"),
            ("accelerators: [A100, H10]", "accelerators.1", "unknown accelerator; did you mean"),
            ("accelerators: T4", "accelerators", "[T4]"),
            ("budget: 5, prices: {cpu_hour: 1}", "budget", "compare.prices.gpu_hour"),
            ("budget: 5 EUR, prices: {cpu_hour: 1, gpu_hour: 2}", "budget", "a currency"),
        )
    ),
]


def read(params_file: Path, text: str) -> Params:
    params_file.write_text(text, encoding="utf-8")
    return read_params(params_file)


def changed(*changes: tuple[str, str]) -> str:
    text = GOOD
    for old, new in changes:
        assert old in text, f"nothing to change: {old}"
        text = text.replace(old, new, 1)
    return text


def problems_in(params_file: Path, text: str) -> list[tuple[str, str]]:
    """Return the line and key, and the text, of each problem."""
    params_file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        read_params(params_file, check_custom_code_calls)
    heading, *lines = str(raised.value).splitlines()
    assert heading.startswith(f"{params_file} has {len(lines) // 2} mistake")
    places = [line.removeprefix(f"{params_file}:").partition(" = ")[0] for line in lines[::2]]
    return list(zip(places, lines[1::2], strict=True))


def places_in(params_file: Path, text: str) -> list[str]:
    return [place for place, _ in problems_in(params_file, text)]


@pytest.mark.parametrize(
    ("old", "new", "place", "text"), PROBLEMS, ids=[row[1] for row in PROBLEMS]
)
def test_a_problem_is_reported_once_with_its_line_and_key(
    params_file: Path, old: str, new: str, place: str, text: str
) -> None:
    [(reported, problem)] = problems_in(params_file, changed((old, new)))
    assert reported == place
    assert text in problem


INVALID = {
    "defaults: [1,\n": 2,
    "a: 1\nb: !!python/object:os.system x\n": 2,
    "a: 1\nb: {name: net.py:Net}\n": 2,
    "a: 1\nb: 2\na: 3\n": 3,
    "a: 1\nnull: 2\n": 2,
    "a: 1\n[b, c]: 2\n": 2,
}
"""YAML that is not valid, or whose keys are no text; the reported line."""


def test_a_file_that_cannot_be_read_is_reported_with_its_line(params_file: Path) -> None:
    for text in ("", "- a\n- b\n"):
        [(place, problem)] = problems_in(params_file, text)
        assert place == "1  (the whole file)"
        assert "defaults, devices, datasets, experiments" in problem
    for text, line in INVALID.items():
        with pytest.raises(ConfigError, match=rf"params\.yaml:{line}  "):
            read(params_file, text)
    with pytest.raises(ConfigError, match=r"params\.yaml can't be read: Circular"):
        read(params_file, "a: 1\nb: &b [*b]\n")
    with pytest.raises(ConfigError, match=r"params\.yaml can't be read: month must be"):
        read(params_file, "a: 1\nb: 2024-13-45\n")
    both = LINEAR.replace("linear:", "8:"), LINEAR.replace("linear:", '"8":')
    with pytest.raises(ConfigError, match=r"yaml:15  a key must be text, not int"):
        read(params_file, changed((LINEAR, "\n  ".join(both))))
    params_file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"params\.yaml:1  this is not UTF-8"):
        read_params(params_file)
    params_file.unlink()
    with pytest.raises(ConfigError, match=r"params\.yaml can't be read"):
        read_params(params_file)


def test_several_problems_are_all_reported_in_the_order_of_their_lines(params_file: Path) -> None:
    text = changed(
        ("lr: 0.05", "lr: 0"),
        ("hidden: [32]", "hiden: [32]"),
        ("model: linear", "model: liner"),
        ("test: 0.15", "test: 2.5"),
        ("threads: auto", "threads: -1"),
        ("batch_size: 128", "batch_size: none"),
        ("seed: 0", "sede: 0"),
    )
    assert places_in(params_file, text) == [
        "2  defaults.sede",
        "4  defaults.batch_size",
        "10  devices.cpu.threads",
        "13  datasets.digits.test",
        "15  experiments.linear.model.name",
        "16  experiments.mlp.model.hiden",
        "16  experiments.mlp.optimizer.lr",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [("epochs: 10", "epochs: -1", 3), ("lr: 0.1, ", "", 5), ("name: sgd", "name: sdg", 5)],
)
def test_an_inherited_problem_is_told_once(
    params_file: Path, old: str, new: str, line: int
) -> None:
    heir = "{dataset: digits, model: linear, optimizer: {weight_decay: 0.1}}"
    heirs = "".join(f"  heir-{number}: {heir}\n" for number in range(20))
    [place] = places_in(params_file, changed((old, new)) + heirs)
    assert place.startswith(f"{line}  defa")


def test_an_experiments_own_problem_is_reported_beside_the_defaults(params_file: Path) -> None:
    text = changed(("lr: 0.1, ", ""), (LR, "optimizer: adam"))
    own = "16  experiments.mlp.optimizer.lr"
    assert places_in(params_file, text) == ["5  defaults.optimizer.lr", own]
    places = places_in(params_file, changed(("  epochs: 10\n", "")))
    assert places == ["14  experiments.linear.epochs", "15  experiments.mlp.epochs"]


# What is changed in GOOD, and some of the settings that mlp then has.
MERGED: dict[str, tuple[list[tuple[str, str]], dict[str, Any]]] = {
    "an experiment inherits the defaults": (
        [(f", {LR}", "")],
        {"model": MlpModel(name="mlp", hidden=(32,)), "optimizer": Optimizer(**SGD_SETTINGS)},
    ),
    "an experiment needs no defaults": (
        [
            (DEFAULTS, ""),
            ("linear}", f"linear, epochs: 1, batch_size: 8, {SGD}}}"),
            (LR, f"epochs: 1, batch_size: 8, {SGD}"),
        ],
        {"epochs": 1, "seed": 0, "schedule": Schedule(), "precision": "fp32"},
    ),
    "a block of the same kind overrides single keys": (
        [],
        {"optimizer": Optimizer(**SGD_SETTINGS | {"lr": 0.05})},
    ),
    "a block of another kind replaces the whole block": (
        [(LR, "optimizer: {name: adam, lr: 1e-3}")],
        {"optimizer": Optimizer(name="adam", lr=0.001)},
    ),
    "another spelling of its name is the same kind": (
        [(LR, "optimizer: {name: SGD, lr: 0.05}")],
        {"optimizer": Optimizer(**SGD_SETTINGS | {"name": "SGD", "lr": 0.05})},
    ),
    "blocks without a name are merged, too": (
        [("epochs: 10", UNNAMED), (LR, "augmentation: {flip: 0.2}, early_stopping: {patience: 9}")],
        {
            "augmentation": Augmentation(flip=0.2, crop_padding=4),
            "early_stopping": EarlyStopping(patience=9, min_delta=0.1),
        },
    ),
    "an empty block without a name is none": (
        [("epochs: 10", UNNAMED), (LR, "augmentation: {}")],
        {"augmentation": Augmentation()},
    ),
    "another value to follow replaces the whole block": (
        [("epochs: 10", UNNAMED), (LR, f"early_stopping: {ACCURACY}")],
        {"early_stopping": EarlyStopping(monitor="validation_accuracy", patience=9)},
    ),
    "a name alone is short for a block with that name": (
        [("constant", "cosine"), ("resident", "loader"), (LR, "schedule: {eta_min: 0.01}")],
        {"schedule": Schedule(name="cosine", eta_min=0.01), "input": LoaderInput(name="loader")},
    ),
    "a loss has a weight for each class": (
        [(LR, "loss: {name: cross_entropy, weight: [1, 2.5]}")],
        {"loss": CrossEntropy(name="cross_entropy", weight=(1.0, 2.5))},
    ),
    "a loss has a weight for each label": (
        [(LR, "loss: {name: BCEWithLogitsLoss, pos_weight: [1, 2.5]}")],
        {"loss": BceWithLogits(name="bce_with_logits", pos_weight=(1.0, 2.5))},
    ),
    "keys merged by YAML count as the experiment's own": (
        [(LR, "<<: {epochs: 3, seed: 5}, seed: 6")],
        {"epochs": 3, "seed": 6},
    ),
}


@pytest.mark.parametrize(("changes", "settings"), MERGED.values(), ids=MERGED)
def test_an_experiment_is_merged_with_the_defaults(
    params_file: Path, changes: list[tuple[str, str]], settings: dict[str, Any]
) -> None:
    experiment = read(params_file, changed(*changes)).experiments["mlp"]
    assert {key: getattr(experiment, key) for key in settings} == settings


def test_the_documented_values_of_dvc_exp_run_can_be_set(params_file: Path) -> None:
    params_file.write_text(GOOD, encoding="utf-8")
    apply_overrides(params_file, ["+experiments.linear.cuda_graphs=on"])  # + adds a key
    assert read_params(params_file).experiments["linear"].cuda_graphs == "on"
    params = {"your-repository": ROOT / "src/photofinish/commands/params.yaml"}
    count = 0
    for page in (ROOT / "docs").glob("*.md"):
        for value in re.findall(r"dvc exp run .*-S '([^']+)'", page.read_text(encoding="utf-8")):
            shutil.copy(params.get(page.stem, ROOT / "params.yaml"), params_file)
            before = read_params(params_file)
            apply_overrides(params_file, [value])
            assert read_params(params_file) != before, value
            count += 1
    assert count >= 4


ODD: list[Any] = [
    *(None, True, -1, 10**400, float("nan"), "a", "\ud800", date(2026, 1, 1)),
    *([], [{}], {"a": 1}, {None: 1}, {1.5: {}}),
]


def test_a_document_with_an_odd_value_or_key_is_loaded_or_refused(params_file: Path) -> None:
    def places(value: Any) -> Iterator[tuple[Any, Any]]:
        """Yield each mapping or list in the document, with each of its keys."""
        keys = value.keys() if isinstance(value, dict) else range(len(value))
        for key in [*keys]:
            yield value, key
            if isinstance(value[key], dict | list):
                yield from places(value[key])

    good = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    edits = product(range(len([*places(good)])), ODD, ("replace", "rename", "remove"))
    for number, value, edit in [*edits][::11]:
        parent, key = [*places(document := copy.deepcopy(good))][number]
        before = parent.pop(key)
        if edit == "replace" and isinstance(parent, list):
            parent.insert(key, value)
        elif edit == "replace":
            parent[key] = value
        elif edit == "rename" and isinstance(parent, dict) and isinstance(value, Hashable):
            parent[value] = before
        text = yaml.safe_dump(document)
        params_file.write_bytes(text.encode("utf-8", "surrogatepass"))
        message = str(params_file)
        try:
            read_params(params_file)
        except ConfigError as error:
            message = str(error)
        assert message.startswith(str(params_file)), text


def test_accelerators_and_prices_survive_the_plan_and_may_be_left_out(params_file: Path) -> None:
    default = Comparing(target_accuracy=None, references="all", accelerators=SHORT_LIST)
    assert read(params_file, GOOD + "compare:\n").comparing == default
    for names, expected in {"all": tuple(accelerators()), "none": ()}.items():
        section = f"compare: {{accelerators: {names}}}\n"
        assert read(params_file, GOOD + section).comparing.accelerators == expected
    section = "accelerators: [H200], references: [a], prices: {accelerator_hour: {H200: 3}}"
    comparing = read(params_file, f"{GOOD}compare: {{{section}}}\n").comparing
    assert (comparing.accelerators, comparing.references) == (("H200",), ("a",))
    plan = ComparePlan(**dict(comparing), experiments=())
    assert ComparePlan.model_validate_json(plan.model_dump_json()) == plan


def test_data_parallel_is_without_bf16(params_file: Path) -> None:
    gpu = (GPU, "gpu: {count: 2, strategy: data_parallel}")
    places = places_in(params_file, changed(gpu, ("fp32", "bf16")))
    assert places == ["15  experiments.linear.precision", "16  experiments.mlp.precision"]


@pytest.mark.parametrize(
    ("written", "value"), [("1e-3", 0.001), ("yes", "yes"), ("1:30", "1:30"), ("017", 17)]
)
def test_a_value_is_read_as_dvc_reads_it(params_file: Path, written: str, value: Any) -> None:
    assert parse_yaml(f"key: {written}\n", "params.yaml") == {"key": value}
    own = f"  own:\n    dataset: digits\n    model:\n      name: net.py:Net\n      key: {written}\n"
    model = read(params_file, GOOD + own).experiments["own"].model
    assert model.model_extra == {"key": value}
