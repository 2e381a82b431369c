"""params.yaml is checked as a whole: every mistake is reported in one go, with its line, key, value and remedy."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from photofinish.errors import MistakeError
from photofinish.params.experiment import Adam, ConstantSchedule, CosineSchedule, LoaderInput, Sgd
from photofinish.params.networks import LinearModel, MlpModel
from photofinish.params.reader import Params, read_params

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
OWN_TEST = "source: digits, validation: 0.15, test: 0.15"
DEFAULTS = GOOD[: GOOD.index("devices:")]
DEVICES = GOOD[GOOD.index("devices:") : GOOD.index("datasets:")]
DATASETS = GOOD[GOOD.index("datasets:") : GOOD.index("experiments:")]
EXPERIMENTS = GOOD[GOOD.index("experiments:") :]
OPTIMIZER = "optimizer: {name: sgd, lr: 0.1, momentum: 0.9}"
GPU = "gpu: {kind: auto, count: 1, if_missing: skip}"
LINEAR = "linear: {dataset: digits, model: linear}"
LAST = "optimizer: {lr: 0.05}"
A_NAME_IS = "a name is 1 to 64 letters, digits, '-' and '_', and starts with a letter or a digit (it names a folder)"
OPTIMIZERS = "allowed: sgd, adam, adamw"
SETTINGS = (
    "allowed: dataset, model, loss, optimizer, schedule, input, precision, epochs, batch_size, validation_batch_size, "
    "seed, augmentation, deterministic, steps, save_weights"
)
LONG_NAME = "x" * 65
# What is changed in GOOD, to what, and where that must be reported as what value; below it what stands for "…" in the
# latter two, case by case, and what must be said about it.
MISTAKES: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {
    # the file as a whole
    (DEFAULTS, "…", "…"): [("defaults: 3\n", "1  defaults = 3", "must be a mapping of settings")],
    (DEVICES, "…", "…"): [("devices: []\n", "9  devices = []", "must be a mapping of keys to values")],
    (DATASETS, "…", "…"): [
        ("datasets:\n  digits:\n", "13  datasets.digits = null", "must be a mapping of settings, at least source"),
        ("datasets:\n", "12  datasets = null", "must be a mapping with at least one entry"),
        ("", "1  datasets", "this key is required, with at least one entry"),
    ],
    (EXPERIMENTS, "…", "…"): [
        ("experiments: {}\n", "14  experiments = {}", "must be a mapping with at least one entry"),
    ],
    ("devices:", "…", "…"): [
        ("device:", "9  device = {", "unknown key; did you mean 'devices'? allowed: defaults, devices, "),
        ("extra: 1\ndevices:", "9  extra = 1", "unknown key; allowed: defaults, devices, datasets, experiments"),
        ("devices: {}\ndevices:", "10  devices", "this key is given twice"),
    ],
    ("datasets:", "…", "…"): [("datasts:", "12  datasts = {", "did you mean 'datasets'?")],
    ("defaults:", "mirror: …\ndefaults:", "1  mirror = …"): [("/data", '"/data"', "let datasets.NAME.root name")],
    ("defaults:", "…", "…"): [("default:", "1  default = {", "did you mean 'defaults'?")],
    # defaults
    ("seed: 0", "seed: …", "2  defaults.seed = …"): [
        ("-1", "-1", "must be at least 0"),
        ("4294967296", "4294967296", "must be less than 4294967296"),
    ],
    ("seed: 0", "…", "2  defaults.…"): [
        ("seeds: 3\n  seed: 4294967294", "seeds = 3", "seed 4294967294 has no 2 after it: the last one is 4294967295"),
        ("dataset: digits", 'dataset = "digits"', "name the data set in each experiment"),
    ],
    ("epochs: 10", "epochs: …", "3  defaults.epochs = …"): [
        ("0", "0", "must be at least 1"),
        ("1.5", "1.5", "must be a whole number"),
        ("1e1", "10.0", "must be a whole number, without a point or an exponent"),
        ('"10"', '"10"', "must be a whole number, without quotes"),
        ("ten", '"ten"', "must be a whole number"),
        ("true", "true", "must be a whole number"),
        ("", "null", "must be a whole number"),
        ("[10]", "[10]", "must be a whole number"),
        ("{a: 1}", '{"a": 1}', "must be a whole number"),
        (".inf", "Infinity", "must be a whole number"),
        ("1:30", '"1:30"', "must be a whole number"),
        ("2024-01-01", '"2024-01-01"', "must be a whole number"),
        ("2147483648", "2147483648", "must be less than 2147483648"),
    ],
    ("epochs: 10", "…", "…"): [
        ("epoch: 10", "3  defaults.epoch = 10", f"unknown key; did you mean 'epochs'? {SETTINGS}"),
        ("epochs: 10\n  epochs: 20", "4  defaults.epochs", "this key is given twice"),
    ],
    ("batch_size: 128", "…", "4  defaults.…"): [
        ("batch-size: 128", "batch-size = 128", "did you mean 'batch_size'?"),
        ("batch_size: -4", "batch_size = -4", "must be at least 1"),
    ],
    # the rate of sgd, which mlp has another one of
    ("lr: 0.1", "lr: …", "5  defaults.optimizer.lr = …"): [
        ("-0.1", "-0.1", "must be greater than 0"),
        ("0", "0", "must be greater than 0"),
        (".nan", "NaN", "must be a finite number"),
        (".inf", "Infinity", "must be a finite number"),
        ('"1e-3"', '"1e-3"', "must be a number, without quotes"),
        ("false", "false", "must be a number"),
        ("~", "null", "must be a number"),
    ],
    ("momentum: 0.9", "…", "5  defaults.optimizer…"): [
        ("momentun: 0.9", ".momentun = 0.9", "did you mean 'momentum'? allowed: name, lr,"),
        ("momentum: 1", ".momentum = 1", "must be less than 1"),
        ("momentum: .nan", ".momentum = NaN", "must be a finite number"),
        ("weight_decay: -1", ".weight_decay = -1", "must be at least 0"),
        ("nesterov: true", " = {", "nesterov needs a momentum above 0"),
        ("nesterov: yes", '.nesterov = "yes"', "must be true or false"),
    ],
    (OPTIMIZER, "optimizer: …", "5  defaults.optimizer…"): [
        ("rmsprop", ' = "rmsprop"', f"unknown optimizer; {OPTIMIZERS}"),
        (
            "{name: sdg, lr: 0.1, momentum: 0.9}",
            '.name = "sdg"',
            f"unknown optimizer; did you mean 'sgd'? {OPTIMIZERS}",
        ),
        ("{name: 3, lr: 0.1, momentum: 0.9}", ".name = 3", "unknown optimizer; allowed: sgd, adam, adamw"),
        ("{lr: 0.1, momentum: 0.9}", ".name", "this key is required"),
        ("{name: sgd, momentum: 0.9}", ".lr", "this key is required"),
        ("[sgd]", ' = ["sgd"]', "must be a name, or a mapping of its name and settings"),
        ("", " = null", "must be a name, or a mapping of its name and settings"),
    ],
    ("constant", "…", "6  defaults.schedule…"): [
        ("cosin", ' = "cosin"', "unknown schedule; did you mean 'cosine'? allowed: constant,"),
        ("step", ".step_size", "this key is required"),
        ("{step_size: 2}", ".name", "this key is required"),
        ("{name: step, step_size: 1, gamma: 2}", ".gamma = 2", "must be at most 1"),
    ],
    ("resident", "…", "7  defaults.input…"): [
        ("{name: resident, workers: 1}", ".workers = 1", "unknown key; allowed: name"),
        ("resdent", ' = "resdent"', "did you mean 'resident'? allowed: resident, loader"),
        ("{name: loader, workers: -1}", ".workers = -1", "must be at least 0"),
        ("{name: loader, pin_memory: 1}", ".pin_memory = 1", "must be true or false"),
    ],
    ("fp32", "…", "8  defaults.precision = …"): [
        ("fp8", '"fp8"', "unknown value; did you mean 'fp32'? allowed: fp32, tf32, bf16, fp16"),
        ("32", "32", "allowed: fp32, tf32, bf16, fp16"),
    ],
    # devices
    ("cpu: {threads: auto}", "…", "10  devices.…"): [
        ("cpu: {treads: auto}", 'cpu.treads = "auto"', "unknown key; did you mean 'threads'? allowed: threads"),
        ("cpus: {threads: auto}", 'cpus = {"threads": "auto"}', "did you mean 'cpu'? allowed: cpu, gpu"),
        ("cpu: {threads: auto, nodes: 0}", "cpu.nodes = 0", "must be at least 1"),
        ("cpu: {threads: auto, processes: 0}", "cpu.processes = 0", "must be at least 1"),
        ("cpu: {threads: 0}", "cpu.threads = 0", "must be 'auto' (all the cores this process may use)"),
        ("cpu: {threads: 2.0}", "cpu.threads = 2.0", "or a count from 1 to 1024"),
        ("cpu: 4", "cpu = 4", "must be a mapping of keys to values"),
    ],
    (GPU, "gpu: {strategy: data_parallel, …}", "11  devices.gpu…"): [
        ("count: 2, device_ids: [0, 0]", " = {", "device_ids names a GPU twice"),
        ("count: 3, device_ids: [0, 1]", " = {", "device_ids names 2 GPUs, but count is 3"),
        ("count: 2, output_device: 2", ".output_device = 2", "must be one of the GPUs in use: 0, 1"),
        ("count: 2, nodes: 2", " = {", "nodes must be 1; or use strategy: ddp"),
    ],
    (GPU, "gpu: {…}", "11  devices.gpu…"): [
        ("kind: rocm", '.kind = "rocm"', "unknown value; allowed: auto, cuda, mps, xpu"),
        ('kind: "cuda:0"', '.kind = "cuda:0"', "did you mean 'cuda'?"),
        ("count: 0", ".count = 0", "must be 'all', or a count of at least 1"),
        ("count: '1'", '.count = "1"', "or a count of at least 1, without quotes"),
        ("count: true", ".count = true", "must be 'all', or a count of at least 1"),
        ("count: every", '.count = "every"', "must be 'all', or a count of at least 1"),
        ("count: 2, device_ids: [0, 1]", " = {", "need strategy: data_parallel"),
        ("strategy: dp", '.strategy = "dp"', "unknown value; did you mean 'ddp'?"),
        ("if_missing: error", '.if_missing = "error"', "unknown value; allowed: skip, fail"),
    ],
    ("gpu:", "…", "…"): [("con.x: 1\n  gpu:", '11  devices."con.x" = 1', "unknown key; allowed: cpu, gpu")],
    # data sets
    ("source: digits", "source: …", "13  datasets.digits…"): [
        ("mnist", '.source = "mnist"', "did you mean 'MNIST'? allowed: digits, "),
        ("MNIST", ".test = 0.15", "has its own test part: leave this key out"),
        ("csv", " = {", "give either path, or parts"),
        ("folder, parts: {train: a, test: b}", " = {", "both parts.test and test: is it given, or to be drawn?"),
        ("folder, parts: {test: b}", ".parts.train", "this key is required"),
        ("synthetic, images: 9, classes: 1, shape: [1, 2, 2]", ".classes = 1", "must be at least 2"),
        (
            "synthetic, images: 9, classes: 2, shape: [8, 8]",
            ".shape = [8, 8]",
            "must be a list of 3 numbers: channels, height, width",
        ),
        ("digts", '.source = "digts"', "unknown source; did you mean 'digits'?"),
        ("csv, path: 3", ".path = 3", "must be text, so in quotes"),
    ],
    ("source: digits, ", "…", "13  datasets.digits…"): [("", ".source", "this key is required")],
    ("test: 0.15", "test: …", "13  datasets.digits…"): [
        ("0.15, tst: 1", ".tst = 1", "did you mean 'test'? allowed: source, validation"),
        ("0.15, size: 32", ".size = 32", "of one shape: leave this key out"),
        ("0.15, channels: 3", ".channels = 3", "of one shape: leave this key out"),
        ("0.15, mean: [0.5]", " = {", "mean and std go together"),
        ("1.5", ".test = 1.5", "must be a fraction between 0 and 1, or a count of at least 1"),
        ("1.0", ".test = 1.0", "must be a fraction between 0 and 1"),
        ("0", ".test = 0", "or a count of at least 1"),
        (".nan", ".test = NaN", "must be a fraction between 0 and 1"),
        ("true", ".test = true", "must be a fraction between 0 and 1"),
        ("0.9", " = {", "validation and test together must be less than 1"),
    ],
    (OWN_TEST, "source: MNIST, validation: 0.15, …", "13  datasets.digits…"): [
        ("size: 0", ".size = 0", "must be a side length from 1 to 4096"),
        ("size: [8]", ".size = [8]", "or a list of height and width"),
        ("channels: 2", ".channels = 2", "must be 1 (grey) or 3 (colours)"),
        ("channels: true", ".channels = true", "must be 1 (grey) or 3 (colours)"),
        ("channels: '1'", '.channels = "1"', "must be 1 (grey) or 3 (colours), without quotes"),
        (
            "mean: [0.5], std: [1e308]",
            ".std.0 = 1e+308",
            "must be at most 1",
        ),
        ("mean: [0.5], std: [58.4]", ".std.0 = 58.4", "must be at most 1"),
        ("mean: [0.5], std: [1e-9]", ".std.0 = 1e-09", "must be at least 0.001"),
        ("mean: [0.5], std: [.nan]", ".std.0 = NaN", "must be at"),
        ("mean: [33.3], std: [0.3]", ".mean.0 = 33.3", "must be at most 1"),
        ("channels: 3, mean: [0.5], std: [0.5]", " = {", "mean and std have 1 numbers for 3 channels"),
    ],
    (OWN_TEST, "source: …", "13  datasets.digits…"): [
        ("MNIST", ".validation", "this key is required: a fraction between 0 and 1, or a count"),
        ("EMNIST, validation: 0.1", ".variant", "this key is required"),
        ("csv, path: images.csv, validation: 0.1", " = {", "test is required: a fraction between 0 and 1, or a count"),
        (
            "digits, validation: 1700, test: 97",
            " = {",
            "validation (1700) and test (97) leave nothing to train on: there are 1797",
        ),
        ("digits, validation: 1527, test: 0.15", " = {", "validation (1527) and test (270) leave nothing to train on"),
        ("MNIST, validation: 60000", " = {", "validation (60000) leave nothing to train on: there are 60000"),
        ("EMNIST, variant: letters, validation: 124800", " = {", "there are 124800"),
        ("Caltech101, validation: 0.5, test: 5000", " = {", "there are 8677"),
        ("synthetic, images: 9, classes: 2, shape: [1, 2, 2], validation: 8, test: 1", " = {", "there are 9"),
    ],
    # experiments and their names, which become folders
    ("linear: {", "…: {", "15  experiments.…"): [
        *((name, f'"{name}"', A_NAME_IS) for name in ("../x", "a/b", "..", "a.b")),
        *((name, name, A_NAME_IS) for name in ('""', '" "', '"a\\n"', "-x", "größe", LONG_NAME)),
        ("3", "3", "YAML reads this key as a number: put it in quotes"),
        ("007", "007", "YAML reads this key as a number: put it in quotes"),
        ("1.5", '"1.5"', "YAML reads this key as a number: put it in quotes"),
        ("true", "true", "YAML reads this key as true or false: put it in quotes"),
        ("~", '"~"', "YAML reads this key as nothing: put it in quotes"),
        ("2024-01-01", "2024-01-01", "YAML reads this key as a date: put it in quotes"),
    ],
    ("linear: {", "…: {", "…"): [
        ("MLP", "16  experiments.mlp", "differs from 'MLP' by upper and lower case only"),
        ("mlp", "16  experiments.mlp", "this key is given twice"),
    ],
    ("dataset: digits", "dataset: …", "15  experiments.linear.dataset = …"): [
        ("digit", '"digit"', "not listed under datasets (digits); did you mean 'digits'?"),
        ("3", "3", "must be text"),
        ("2024-01-01", '"2024-01-01"', "not listed under datasets (digits)"),
    ],
    ("model: linear", "model: {name: resnet18, weights: …}", "15  experiments.linear.model.weights = …"): [
        ("imagenet", '"imagenet"', "resnet18 has no such weights; allowed: IMAGENET1K_V1"),
        ("0.0", "0.0", "resnet18 has no such weights; allowed: IMAGENET1K_V1"),
        ("true", "true", "resnet18 has no such weights; allowed: IMAGENET1K_V1"),
    ],
    ("model: linear", "model: {name: cnn, …}", "15  experiments.linear.model…"): [
        ("channels: [8], padding: -1", ".padding = -1", "at least 0"),
        ("channels: [4], kernel_size: 11", ' = "cnn"', "leaves nothing of images of 8x8 pixels at convolution 1"),
        ("channels: [4, 4, 4, 4]", ' = "cnn"', "at convolution 4, which sees 1 of them"),
        ("channels: []", ".channels = []", "at least 1 item"),
    ],
    ("model: linear", "model: linear, …", "15  experiments.linear.…"): [
        ("input: {name: loader, persistent_workers: true}", "input = {", "need workers of at least 1"),
        ("augmentation: {flip: 2.0}", "augmentation.flip = 2.0", "must be at most 1"),
        ("augmentation: {crop: 4}", "augmentation.crop = 4", "did you mean 'crop_padding'?"),
        ("save_weights: all", 'save_weights = "all"', "allowed: last, every_epoch"),
    ],
    ("model: linear", "model: …", "15  experiments.linear.model…"): [
        ("{name: linear, hidden: [3]}", ".hidden = [3]", "allowed: compile, name"),
        ("{name: lenet, init: xavier}", '.init = "xavier"', "xavier_uniform"),
        ("liner", ' = "liner"', "unknown model; did you mean 'linear'? allowed: "),
        ("resnet19", ' = "resnet19"', "did you mean 'resnet18'?"),
        ("3", " = 3", "must be a name, or a mapping of its name and settings"),
        ("cnn", ".channels", "this key is required"),
        ("resnet18", ' = "resnet18"', "model resnet18 takes images of 3 channels; these have 1"),
        ("lenet", ' = "lenet"', "model lenet needs images of at least 16x16 pixels; these are 8x8"),
    ],
    (LINEAR, "linear: …", "15  experiments.linear…"): [
        ("{model: linear}", ".dataset", "this key is required"),
        ("", " = null", "must be a mapping of settings, at least dataset and model"),
        ("digits", ' = "digits"', "must be a mapping of settings, at least dataset and model"),
        ("{dataset: digits}", ".model", "this key is required"),
    ],
    # networks, also such as can't take the images
    ("hidden: [32]", "hidden: …", "16  experiments.mlp.model.hidden…"): [
        ("32.0", " = 32.0", "must be a list, in brackets"),
        ("[]", " = []", "must have at least 1 item"),
        ("32", " = 32", "must be a list"),
        ("[0]", ".0 = 0", "must be at least 1"),
        ("[8, 1.5]", ".1 = 1.5", "must be a whole number"),
        ("[[32]]", ".0 = [32]", "must be a whole number"),
    ],
    (LAST, "optimizer: {name: adam, lr: 1, …}", "16  experiments.mlp.optimizer…"): [
        ("momentum: 0.9", ".momentum = 0.9", "allowed: lr"),
        ("betas: [0.9]", ".betas = [0.9]", "list of 2 numbers"),
        ("betas: 0.9", ".betas = 0.9", "a list of 2 numbers"),
        ("betas: [0, 1]", ".betas.1 = 1", "less than 1"),
    ],
    (LAST, "optimizer: {…}", "16  experiments.mlp.optimizer…"): [
        ("Lr: 1", ".Lr = 1", "unknown key; did you mean 'lr'?"),
        ("lr: fast", '.lr = "fast"', "must be a number"),
        ("momentum: 0, nesterov: true", " = {", "nesterov needs a momentum"),
        ("lr: 0,05", ".lr", "where a decimal point belongs: lr: 0.05"),
        ("1: 3", ".1", "YAML reads this key as a number: put it in quotes"),
        ("lr: 0.05, lr: 0.1", ".lr", "this key is given twice"),
    ],
    (LAST, "…", "16  experiments.mlp.…"): [
        ("epoch: 3", "epoch = 3", f"did you mean 'epochs'? {SETTINGS}"),
        ("optimizer: adam", "optimizer.lr", "this key is required: another optimizer than the one"),
    ],
}

LAUGHS = "a: &a {ha: 1}\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefghijklmnop")
)
TOO_MANY = "more than 500,000 values, with those that aliases stand for"
NO_YAML = [
    ("defaults: [1,\n", ":2", "while parsing a flow node that begins in line 2, did not find expected node"),
    ("a: [b\nc: d\n", ":2", "while parsing a flow sequence that begins in line 1, did not find"),
    ("defaults:\n\tseed: 0\n", ":2", "found character that cannot start any token"),
    ("defaults: a: b", ":1", "mapping values are not allowed in this context"),
    ("a: 1\n---\nb: 2\n", ":2", "found another document"),
    ("a: 1\nb: *nowhere\n", ":2", "undefined alias 'nowhere'"),
    ("a: 1\nb: !!python/object:os.system x\n", ":2", "python/object:os.system"),
    ("a:\n  b: 2024-13-45\n", ":2", "'2024-13-45' can't be read as timestamp"),
    ("a:\n  b: !!bool maybe\n", ":2", "'maybe' can't be read as bool"),
    ('a: "\\ud800"\n', ":1", "found invalid Unicode character escape code"),
    ("a: 1\nb: \0\n", ":2", "it has a character '\\x00'"),
    ("[1, 2]: 3\n", ":1", "unhashable key"),
    ("é: 1\nb: \x07\n", ":2", "it has a character '\\x07'"),
    ("a: 1\nb: &loop [*loop]\n", ":2", TOO_MANY),
    (LAUGHS, ":7", TOO_MANY),
    (LAUGHS.replace("[", "{<<: [").replace("]", "]}"), ":7", "more than 500,000 values"),
    (f"a: 1\nb: {'9' * 5000}\n", ":2", "99… can't be read as int"),
    (f"a: 1\nb: 0x{'9' * 5000}\n", ":2", "99… can't be read as int"),
    ("a: 1\nb: {x:1}\n", ":2", "'x:1' within brackets: put a space behind the colon"),
    ("[" * 60 + "]" * 60, ":1", "nested deeper than 50 levels"),
    ("[" * 5000, "", "nested deeper than 50 levels"),
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
    """The place and the problem of each, as they stand below the heading, which names the file and counts them."""
    with pytest.raises(MistakeError) as raised:
        read(params_file, text)
    heading, *lines = str(raised.value).splitlines()
    places, problems = lines[::2], lines[1::2]
    assert heading == f"{params_file} has {len(places)} mistake{'s' * (len(places) > 1)}; nothing was started"
    assert all(place.startswith(f"{params_file}:") for place in places)
    return [(place.removeprefix(f"{params_file}:"), told) for place, told in zip(places, problems, strict=True)]


def places_in(params_file: Path, text: str) -> list[str]:
    return [place for place, _ in mistakes_in(params_file, text)]


@pytest.mark.parametrize(
    ("old", "new", "where", "problem"),
    [
        pytest.param(
            old, new.replace("…", written), where.replace("…", shown), told, id=f"{where.replace('…', shown)}: {told}"
        )
        for (old, new, where), cases in MISTAKES.items()
        for written, shown, told in cases
    ],
)
def test_one_mistake_is_one_report_of_its_line_key_value_and_remedy(
    params_file: Path, old: str, new: str, where: str, problem: str
) -> None:
    [(place, told)] = mistakes_in(params_file, changed((old, new)))
    assert place == where or (where.endswith("= {") and place.startswith(where))
    assert problem in told


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", "null"), ("# nothing yet\n", "null"), ("- a\n- b\n", '["a", "b"]'), ("hello", '"hello"')],
)
def test_what_is_no_mapping_is_told_with_the_keys_it_must_have(params_file: Path, text: str, shown: str) -> None:
    [(place, told)] = mistakes_in(params_file, text)
    assert place == f"1  (the whole file) = {shown}"
    assert "must be a mapping with the keys defaults, devices, datasets, experiments" in told


@pytest.mark.parametrize(
    ("text", "line", "problem"), NO_YAML, ids=[f"{text!r:.40}: {told}" for text, _, told in NO_YAML]
)
def test_what_is_no_yaml_is_told_with_its_line(params_file: Path, text: str, line: str, problem: str) -> None:
    with pytest.raises(MistakeError) as raised:
        read(params_file, text)
    assert f"{params_file}{line}  this is not valid YAML" in str(raised.value)
    assert problem in str(raised.value)


def test_a_file_that_is_not_there_is_named(params_file: Path) -> None:
    with pytest.raises(MistakeError, match=r"params\.yaml  there is no such file"):
        read_params(params_file)


def test_a_folder_in_place_of_the_file_is_named(params_file: Path) -> None:
    params_file.mkdir()
    with pytest.raises(MistakeError, match=r"params\.yaml  can't be read: Is a directory"):
        read_params(params_file)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_file_that_is_not_utf8_is_named(params_file: Path, encoding: str) -> None:
    params_file.write_bytes("# größe\n".encode(encoding))
    with pytest.raises(MistakeError, match=r"params\.yaml  this is not UTF-8 text \(byte \d\)"):
        read_params(params_file)


def test_several_mistakes_are_all_reported_in_the_order_of_their_lines(params_file: Path) -> None:
    text = changed(
        ("lr: 0.05", "lr: 0"),
        ("hidden: [32]", "hidden: [32], hidden: [16]"),
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
        "16  experiments.mlp.optimizer.lr = 0",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("epochs: 10", "epochs: -1", 3),
        ("epochs: 10", "epoch: 10", 3),
        ("lr: 0.1", "lr: x", 5),
        ("lr: 0.1, ", "", 5),
        ("name: sgd", "name: sdg", 5),
        (OPTIMIZER, "optimizer: {}", 5),
        ("momentum: 0.9", "nesterov: true", 5),
        ("constant", "step", 6),
        ("defaults:", "defalts:", 1),
    ],
)
def test_a_mistake_in_the_defaults_is_reported_once_however_many_inherit_it(
    params_file: Path, old: str, new: str, line: int
) -> None:
    heirs = "".join(
        f"  heir-{number}: {{dataset: digits, model: linear, optimizer: {{weight_decay: 0.1}}}}\n"
        for number in range(20)
    )
    [place] = places_in(params_file, changed((old, new)) + heirs)
    assert place.startswith(f"{line}  defa")


def test_an_experiment_with_a_mistake_of_its_own_is_reported_beside_the_defaults(params_file: Path) -> None:
    text = changed(("lr: 0.1, ", ""), (LAST, "optimizer: adam"))
    assert places_in(params_file, text) == ["5  defaults.optimizer.lr", "16  experiments.mlp.optimizer.lr"]


def test_a_setting_that_neither_defaults_nor_experiment_has_is_missed_in_each_experiment(params_file: Path) -> None:
    told = "    this key is required, here or under defaults"
    assert mistakes_in(params_file, changed(("  epochs: 10\n", ""))) == [
        ("14  experiments.linear.epochs", told),
        ("15  experiments.mlp.epochs", told),
    ]


def test_a_misspelt_required_key_is_reported_as_missing_and_as_unknown(params_file: Path) -> None:
    (missing, _), (unknown, hint) = mistakes_in(params_file, changed(("hidden: [32]", "hiden: [32]")))
    assert missing == "16  experiments.mlp.model.hidden"
    assert unknown == "16  experiments.mlp.model.hiden = [32]"
    assert "did you mean 'hidden'?" in hint


def test_a_data_set_with_a_bad_name_is_reported_with_those_who_ask_for_another(params_file: Path) -> None:
    assert places_in(params_file, changed(("digits: {", "a/b: {"))) == [
        '13  datasets."a/b"',
        '15  experiments.linear.dataset = "digits"',
        '16  experiments.mlp.dataset = "digits"',
    ]


def test_a_long_value_is_shortened(params_file: Path) -> None:
    [place] = places_in(params_file, changed(("epochs: 10", f"epochs: {'x' * 500}")))
    assert place.endswith("…")
    assert len(place.rpartition(" = ")[2]) == 70


def test_names_and_values_reach_the_terminal_without_what_it_would_obey(params_file: Path) -> None:
    hidden = r'"\0\e[2J\u202e\u0085"'
    text = changed(("digits: {", f"{hidden}: {{"), ("epochs: 10", f"{hidden}: {hidden}"), ("fp32", hidden))
    told = " ".join(f"{place} {problem}" for place, problem in mistakes_in(params_file, text))
    assert told.isprintable()
    assert r'defaults."\u0000\u001b[2J\u202e\x85" = "\u0000\u001b[2J\u202e\x85"' in told
    assert r"not listed under datasets (\x00\x1b[2J\u202e\x85)" in told


# -- good files ---------------------------------------------------------------------------------------


ALL_IT_NEEDS = f"epochs: 1, batch_size: 8, {OPTIMIZER}"

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
        [(LAST, "optimizer: {name: adam, lr: 0.001}")],
        "mlp",
        {"optimizer": Adam(name="adam", lr=0.001)},
    ),
    "a block of the same kind merges also with a default that is a name alone": (
        [("constant", "cosine"), (LAST, "schedule: {eta_min: 0.01}")],
        "mlp",
        {"schedule": CosineSchedule(name="cosine", eta_min=0.01)},
    ),
    "a name alone is short for a block with that name": (
        [("constant", "cosine"), ("resident", "loader")],
        "linear",
        {"schedule": CosineSchedule(name="cosine"), "input": LoaderInput(name="loader")},
    ),
    "a block with a name alone is what the name is": (
        [("model: linear", "model: {name: linear}")],
        "linear",
        {"model": LinearModel(name="linear")},
    ),
    "what defaults leave out has a built-in value": (
        [("  seed: 0\n", ""), ("  schedule: constant\n", ""), ("  precision: fp32\n", "")],
        "linear",
        {"seed": 0, "schedule": ConstantSchedule(), "precision": "fp32"},
    ),
    "an experiment needs no defaults": (
        [(DEFAULTS, ""), (LINEAR, f"{LINEAR[:-1]}, {ALL_IT_NEEDS}}}"), (LAST, ALL_IT_NEEDS)],
        "linear",
        {"epochs": 1},
    ),
    "keys merged by YAML count as the experiment's own": (
        [(LAST, "<<: {epochs: 3, seed: 5}, seed: 6")],
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


@pytest.mark.parametrize(
    ("written", "rate"), [("1e-3", 0.001), ("1E-3", 0.001), (".5", 0.5), ("1.5e3", 1500.0), ("2", 2.0)]
)
def test_a_rate_is_a_number_however_it_is_written(params_file: Path, written: str, rate: float) -> None:
    assert read(params_file, changed(("lr: 0.05", f"lr: {written}"))).experiments["mlp"].optimizer.lr == rate


@pytest.mark.parametrize("devices", ["devices:\n", "", "devices: {}\n", "devices: {cpu: {}}\n"])
def test_devices_may_be_left_empty_or_out(params_file: Path, devices: str) -> None:
    read_devices = read(params_file, changed((DEVICES, devices))).devices
    assert (read_devices.cpu.threads, read_devices.gpu.kind, read_devices.gpu.if_missing) == (None, "auto", "skip")


def test_a_data_set_part_is_a_fraction_or_a_count(params_file: Path) -> None:
    digits = read(params_file, changed(("test: 0.15", "test: 360"))).datasets["digits"]
    assert (digits.validation, digits.test) == (0.15, 360)


@pytest.mark.parametrize(
    ("written", "name"), [('"3"', "3"), ("x" * 64, "x" * 64)], ids=["a quoted number", "64 characters"]
)
def test_a_quoted_number_is_a_name_and_the_longest_one_has_64_characters(
    params_file: Path, written: str, name: str
) -> None:
    assert name in read(params_file, changed(("linear: {", f"{written}: {{"))).experiments


def test_the_params_file_of_this_project_is_good() -> None:
    params = read_params(Path(__file__).parent.parent / "params.yaml")
    assert params.experiments
    assert {experiment.dataset for experiment in params.experiments.values()} <= params.datasets.keys()


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan", "1e400", "[1, {deep: .nan}]"])
@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("model: linear", "model: {name: 'net.py:Net', limit: NUMBER}", "15  experiments.linear.model"),
        ("linear}", "linear, loss: {name: 'net.py:Loss', limit: NUMBER}}", "15  experiments.linear.loss"),
        ("linear}", "linear, metrics: [{name: 'net.py:F1', limit: NUMBER}]}", "15  experiments.linear.metrics.0"),
        (OWN_TEST, "source: 'own.py:Data', limit: NUMBER, test: 0.1, validation: 0.1", "13  datasets.digits"),
    ],
    ids=["model", "loss", "metric", "data set"],
)
def test_an_argument_that_plan_files_cannot_hold_is_refused(
    params_file: Path, old: str, new: str, where: str, number: str
) -> None:
    [(place, told)] = mistakes_in(params_file, changed((old, new.replace("NUMBER", number))))
    assert place.startswith(f"{where} = {{")
    assert "limit: .inf and .nan can't be handed over" in told


def test_an_argument_of_own_code_may_be_null_and_nested(params_file: Path) -> None:
    own = "model: {name: 'net.py:Net', limit: null, sizes: [1, {x: 2.5}]}"
    params = read(params_file, changed(("model: linear", own)))
    assert params.experiments["linear"].model.model_extra == {"limit": None, "sizes": [1, {"x": 2.5}]}
