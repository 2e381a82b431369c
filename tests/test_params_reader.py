"""params.yaml is checked as a whole: every mistake is reported at once, with its line, key, value and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from source_imports import ROOT

from photofinish.config.experiment import Adam, ConstantSchedule, CosineSchedule, LoaderInput, Sgd
from photofinish.config.networks import LinearModel, MlpModel
from photofinish.config.reader import Params, read_params
from photofinish.errors import ConfigError

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
DEVICES = GOOD[GOOD.index("devices:") : GOOD.index("datasets:")]
DATASETS = GOOD[GOOD.index("datasets:") : GOOD.index("experiments:")]
EXPERIMENTS = GOOD[GOOD.index("experiments:") :]
SGD = "optimizer: {name: sgd, lr: 0.1, momentum: 0.9}"
GPU = "gpu: {kind: auto, count: 1, if_missing: skip}"
DIGITS = "{source: digits, validation: 0.15, test: 0.15}"
LINEAR = "linear: {dataset: digits, model: linear}"
LR = "optimizer: {lr: 0.05}"

# What is changed in GOOD, to what, the place that is reported, and a part of the message.
MISTAKES = [
    # sections
    (DEFAULTS, "defaults: 3\n", "1  defaults = 3", "mapping"),
    (DEVICES, "devices: [1]\n", "9  devices = [1]", ""),
    (DATASETS, "datasets:\n  digits:\n", "13  datasets.digits = null", "at least source"),
    (DATASETS, "datasets:\n", "12  datasets", "required"),
    (DATASETS, "", "1  datasets", "required"),
    (EXPERIMENTS, "experiments: {}\n", "14  experiments", "at least one entry"),
    ("devices:", "device:", "9  device = {", "did you mean 'devices'?"),
    ("devices:", "extra: 1\ndevices:", "9  extra = 1", "allowed: defaults, devices, datasets, experiments"),
    ("devices:", "devices: {}\ndevices:", "10  devices", "given twice"),
    ("datasets:", "datasts:", "12  datasts = {", "did you mean 'datasets'?"),
    # keys
    ("seed: 0", "seed: -1", "2  defaults.seed = -1", "greater than or equal to 0"),
    ("seed: 0", "dataset: digits", '2  defaults.dataset = "digits"', "in each experiment"),
    ("epochs: 10", "epoch: 10", "3  defaults.epoch = 10", "did you mean 'epochs'? allowed: dataset, model"),
    ("epochs: 10", "epochs: 10\n  epochs: 20", "4  defaults.epochs", "given twice"),
    ("batch_size: 128", "batch-size: 128", "4  defaults.batch-size = 128", "did you mean 'batch_size'?"),
    ("lr: 0.1", "lr: .nan", "5  defaults.optimizer.lr = NaN", "finite"),
    (
        "momentum: 0.9",
        "momentun: 0.9",
        "5  defaults.optimizer.momentun = 0.9",
        "did you mean 'momentum'?",
    ),
    ("momentum: 0.9", "nesterov: true", "5  defaults.optimizer = {", "needs a momentum"),
    (SGD, "optimizer: rmsprop", '5  defaults.optimizer = "rmsprop"', "allowed: sgd, adam, adamw"),
    (SGD, "optimizer: {name: sdg, lr: 1}", '5  defaults.optimizer.name = "sdg"', "did you mean 'sgd'?"),
    (SGD, "optimizer: {lr: 1}", "5  defaults.optimizer.name", "required"),
    (SGD, "optimizer: {name: sgd}", "5  defaults.optimizer.lr", "required"),
    (SGD, "optimizer: [sgd]", '5  defaults.optimizer = ["sgd"]', ""),
    ("constant", "cosin", '6  defaults.schedule = "cosin"', "did you mean 'cosine'?"),
    ("constant", "step", "6  defaults.schedule.step_size", "required"),
    ("resident", "{name: resident, workers: 1}", "7  defaults.input.workers = 1", "allowed: name"),
    ("fp32", "fp8", '8  defaults.precision = "fp8"', "did you mean 'fp32'? allowed: fp32, tf32, bf16, fp16"),
    (LINEAR, "linear: {model: linear}", "15  experiments.linear.dataset", "required"),
    (LINEAR, "linear:", "15  experiments.linear = null", "at least dataset and model"),
    ("dataset: digits", "dataset: digit", '15  experiments.linear.dataset = "digit"', "did you mean 'digits'?"),
    (LR, "epoch: 3", "16  experiments.mlp.epoch = 3", "did you mean 'epochs'?"),
    (LR, "optimizer: {Lr: 1}", "16  experiments.mlp.optimizer.Lr = 1", "did you mean 'lr'?"),
    (LR, "optimizer: {lr: 1, lr: 2}", "16  experiments.mlp.optimizer.lr", "given twice"),
    (LR, "optimizer: adam", "16  experiments.mlp.optimizer.lr", "required"),
    (LR, "optimizer: {name: adam, lr: 1, betas: [1]}", "16  experiments.mlp.optimizer.betas = [1]", "2 numbers"),
    ("linear}", "linear, augmentation: {crop: 4}}", "15  experiments.linear.augmentation.crop = 4", "'crop_padding'?"),
    # devices
    ("{threads: auto}", "{treads: auto}", '10  devices.cpu.treads = "auto"', "did you mean 'threads'?"),
    ("{threads: auto}", "{threads: 2.0}", "10  devices.cpu.threads = 2.0", "a count from 1 to 1024"),
    ("{threads: auto}", "{nodes: 2}", "10  devices.cpu.nodes = 2", "unknown key"),
    (GPU, "gpu: {count: 2, nodes: 2}", "11  devices.gpu.nodes = 2", "unknown key"),
    (GPU, "gpu: {count: every}", '11  devices.gpu.count = "every"', "'all', or a count"),
    (GPU, "gpu: {device_ids: [0, 1]}", "11  devices.gpu = {", "strategy: data_parallel"),
    (GPU, "gpu: {strategy: data_parallel, device_ids: [0, 0]}", "11  devices.gpu = {", "twice"),
    (GPU, "gpu: {strategy: data_parallel, output_device: 2}", "11  devices.gpu.output_device = 2", "one of the GPUs"),
    # data sets
    ("source: digits, ", "", "13  datasets.digits.source", "required"),
    ("source: digits", "source: mnist", '13  datasets.digits.source = "mnist"', "did you mean 'MNIST'?"),
    ("test: 0.15", "tst: 0.1, test: 0.15", "13  datasets.digits.tst = 0.1", "did you mean 'test'?"),
    ("test: 0.15", "test: 1.5", "13  datasets.digits.test = 1.5", "fraction between 0 and 1"),
    ("test: 0.15", "test: 0.9", "13  datasets.digits = {", "must be less than 1"),
    (DIGITS, "{source: MNIST}", "13  datasets.digits.validation", "required"),
    (DIGITS, "{source: csv, validation: 1, test: 1}", "13  datasets.digits = {", "either path, or parts"),
    (DIGITS, "{source: folder, parts: {}, test: 1}", "13  datasets.digits.parts.train", "required"),
    # experiments and their names
    ("linear: {", "../x: {", "15  experiments.../x", "it names a folder"),
    ("linear: {", "3: {", "15  experiments.3", "put it in quotes"),
    ("linear: {", "MLP: {", "16  experiments.mlp", "upper and lower case"),
    # networks
    ("model: linear", "model: liner", '15  experiments.linear.model = "liner"', "did you mean 'linear'?"),
    ("model: linear", "model: resnet19", '15  experiments.linear.model = "resnet19"', "did you mean 'resnet18'?"),
    ("model: linear", "model: resnet18", '15  experiments.linear.model = "resnet18"', "3 channels; these have 1"),
    ("model: linear", "model: lenet", '15  experiments.linear.model = "lenet"', "images of 8x8"),
    ("model: linear", "model: cnn", "15  experiments.linear.model.channels", "required"),
    (
        "model: linear",
        "model: {name: resnet18, weights: imagenet}",
        '15  experiments.linear.model.weights = "imagenet"',
        "allowed: IMAGENET1K_V1",
    ),
    ("linear}", "linear, loss: mse}", '15  experiments.linear.loss = "mse"', "take cross_entropy"),
    ("hidden: [32]", "hidden: [8, 1.5]", "16  experiments.mlp.model.hidden.1 = 1.5", "integer"),
    ("hidden: [32]", "hidden: [0]", "16  experiments.mlp.model.hidden.0 = 0", "greater than or equal to 1"),
    ("hidden: [32]", "hidden: []", "16  experiments.mlp.model.hidden = []", "at least 1 item"),
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


def mistakes_in(params_file: Path, text: str) -> list[tuple[str, str]]:
    """Return the place and the problem of each."""
    with pytest.raises(ConfigError) as raised:
        read(params_file, text)
    heading, *lines = str(raised.value).splitlines()
    places, problems = lines[::2], lines[1::2]
    assert heading.startswith(f"{params_file} has {len(places)} mistake")
    assert all(place.startswith(f"{params_file}:") for place in places)
    return [(place.removeprefix(f"{params_file}:"), told) for place, told in zip(places, problems, strict=True)]


def places_in(params_file: Path, text: str) -> list[str]:
    return [place for place, _ in mistakes_in(params_file, text)]


@pytest.mark.parametrize(("old", "new", "where", "problem"), MISTAKES, ids=[f"{row[2]}: {row[3]}" for row in MISTAKES])
def test_one_mistake_is_one_report_of_its_line_key_value_and_remedy(
    params_file: Path, old: str, new: str, where: str, problem: str
) -> None:
    [(place, told)] = mistakes_in(params_file, changed((old, new)))
    assert place == where or (where.endswith("{") and place.startswith(where))
    assert problem in told


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "- a\n- b\n", "hello"])
def test_what_is_no_mapping_is_reported_with_the_keys_it_must_have(params_file: Path, text: str) -> None:
    [(place, told)] = mistakes_in(params_file, text)
    assert place.startswith("1  (the whole file) = ")
    assert "defaults, devices, datasets, experiments" in told


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("defaults: [1,\n", 2),
        ("defaults:\n\tseed: 0\n", 2),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: 1\nb: *nowhere\n", 2),
        ("a: 1\nb: !!python/object:os.system x\n", 2),
        ("[1, 2]: 3\n", 1),
        ("a: 1\nb: {name: net.py:Net}\n", 2),
    ],
)
def test_invalid_yaml_is_reported_with_its_line(params_file: Path, text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"params\.yaml:{line}  this is not valid YAML"):
        read(params_file, text)


@pytest.mark.parametrize("text", ["a: 2024-13-45\n", "a: \0\n", "größe".encode("latin-1")])
def test_a_file_that_cannot_be_read_is_named(params_file: Path, text: str | bytes) -> None:
    params_file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=r"params\.yaml"):
        read_params(params_file)
    params_file.unlink()
    with pytest.raises(ConfigError, match=r"params\.yaml: there is no such file"):
        read_params(params_file)


def test_several_mistakes_are_all_reported_in_the_order_of_their_lines(params_file: Path) -> None:
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
        "2  defaults.sede = 0",
        '4  defaults.batch_size = "none"',
        "10  devices.cpu.threads = -1",
        "13  datasets.digits.test = 2.5",
        '15  experiments.linear.model = "liner"',
        "16  experiments.mlp.model.hidden",
        "16  experiments.mlp.model.hiden = [32]",
        "16  experiments.mlp.optimizer.lr = 0",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("epochs: 10", "epochs: -1", 3),
        ("epochs: 10", "epoch: 10", 3),
        ("lr: 0.1, ", "", 5),
        ("name: sgd", "name: sdg", 5),
        ("momentum: 0.9", "nesterov: true", 5),
        ("constant", "step", 6),
        ("defaults:", "defalts:", 1),
    ],
)
def test_a_mistake_in_the_defaults_is_reported_once_however_many_inherit_it(
    params_file: Path, old: str, new: str, line: int
) -> None:
    heirs = "".join(f"  heir-{n}: {{dataset: digits, model: linear, optimizer: {{lr: 0.2}}}}\n" for n in range(20))
    heirs = heirs.replace("lr: 0.2", "weight_decay: 0.1")
    [place] = places_in(params_file, changed((old, new)) + heirs)
    assert place.startswith(f"{line}  defa")


def test_an_experiment_with_a_mistake_of_its_own_is_reported_beside_the_defaults(params_file: Path) -> None:
    text = changed(("lr: 0.1, ", ""), (LR, "optimizer: adam"))
    assert places_in(params_file, text) == ["5  defaults.optimizer.lr", "16  experiments.mlp.optimizer.lr"]


def test_a_setting_that_neither_defaults_nor_experiment_has_is_missed_in_each_experiment(params_file: Path) -> None:
    places = places_in(params_file, changed(("  epochs: 10\n", "")))
    assert places == ["14  experiments.linear.epochs", "15  experiments.mlp.epochs"]


# Under which sentence what is changed in GOOD, and which settings of which experiment then hold.
GOOD_FILES: dict[str, tuple[list[tuple[str, str]], str, dict[str, Any]]] = {
    "an experiment has the defaults for all it does not set": (
        [],
        "linear",
        {"model": LinearModel(name="linear"), "optimizer": Sgd(name="sgd", lr=0.1, momentum=0.9)}
        | {"epochs": 10, "batch_size": 128, "seed": 0, "precision": "fp32"},
    ),
    "a block of the same kind overrides single keys": (
        [],
        "mlp",
        {"model": MlpModel(name="mlp", hidden=(32,)), "optimizer": Sgd(name="sgd", lr=0.05, momentum=0.9)},
    ),
    "a block that names another kind replaces the whole block": (
        [(LR, "optimizer: {name: adam, lr: 1e-3}")],
        "mlp",
        {"optimizer": Adam(name="adam", lr=0.001)},
    ),
    "a name alone is short for a block with that name, and merges with one": (
        [("constant", "cosine"), ("resident", "loader"), (LR, "schedule: {eta_min: 0.01}")],
        "mlp",
        {"schedule": CosineSchedule(name="cosine", eta_min=0.01), "input": LoaderInput(name="loader")},
    ),
    "what defaults leave out has a built-in value": (
        [("  seed: 0\n", ""), ("  schedule: constant\n", ""), ("  precision: fp32\n", "")],
        "linear",
        {"seed": 0, "schedule": ConstantSchedule(), "precision": "fp32"},
    ),
    "an experiment needs no defaults": (
        [(DEFAULTS, ""), (LINEAR, f"{LINEAR[:-1]}, epochs: 1, batch_size: 8, {SGD}}}"), (EXPERIMENTS[-81:], "")],
        "linear",
        {"epochs": 1},
    ),
    "keys merged by YAML count as the experiment's own": (
        [(LR, "<<: {epochs: 3, seed: 5}, seed: 6")],
        "mlp",
        {"epochs": 3, "seed": 6},
    ),
}


@pytest.mark.parametrize(("changes", "experiment", "settings"), GOOD_FILES.values(), ids=GOOD_FILES)
def test_what_is_written_in_a_good_file_is_what_an_experiment_has(
    params_file: Path, changes: list[tuple[str, str]], experiment: str, settings: dict[str, Any]
) -> None:
    found = read(params_file, changed(*changes)).experiments[experiment]
    assert {key: getattr(found, key) for key in settings} == settings


@pytest.mark.parametrize("devices", ["devices:\n", "", "devices: {}\n", "devices: {cpu: {}}\n"])
def test_devices_may_be_left_empty_or_out(params_file: Path, devices: str) -> None:
    read_devices = read(params_file, changed((DEVICES, devices))).devices
    assert (read_devices.cpu.threads, read_devices.gpu.kind, read_devices.gpu.if_missing) == (None, "auto", "skip")


@pytest.mark.parametrize(
    "file", [ROOT / "params.yaml", *(ROOT / "examples").glob("*.yaml")], ids=lambda file: file.name
)
def test_the_files_of_this_project_are_good(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    params = read_params(file)
    assert params.experiments
    assert {experiment.dataset for experiment in params.experiments.values()} <= params.datasets.keys()


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("model: linear", "model: {name: 'net.py:Net', limit: .inf}", "15  experiments.linear.model"),
        ("linear}", "linear, loss: {name: 'net.py:Loss', limit: [.nan]}}", "15  experiments.linear.loss"),
        ("linear}", "linear, metrics: [{name: 'net.py:F1', limit: 1e400}]}", "15  experiments.linear.metrics.0"),
        (DIGITS, "{source: 'own.py:Data', limit: -.inf, test: 1, validation: 1}", "13  datasets.digits"),
    ],
)
def test_an_argument_that_plan_files_cannot_hold_is_refused(params_file: Path, old: str, new: str, where: str) -> None:
    [(place, told)] = mistakes_in(params_file, changed((old, new)))
    assert place.startswith(f"{where} = {{")
    assert "limit" in told


def test_an_argument_of_custom_code_may_be_null_and_nested(params_file: Path) -> None:
    own = "model: {name: 'net.py:Net', limit: null, sizes: [1, {x: 2.5}]}"
    params = read(params_file, changed(("model: linear", own)))
    assert params.experiments["linear"].model.model_extra == {"limit": None, "sizes": [1, {"x": 2.5}]}
