"""params.yaml is checked as a whole: every mistake is reported in one go, with its line, key, value and remedy."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

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
EXPERIMENTS = GOOD[GOOD.index("experiments:") :]
OPTIMIZER = "optimizer: {name: sgd, lr: 0.1, momentum: 0.9}"
DIGITS = "digits: {source: digits, validation: 0.15, test: 0.15}"
LINEAR = "linear: {dataset: digits, model: linear}"
LAST = "optimizer: {lr: 0.05}"
A_NAME_IS = "a name is 1 to 64 letters, digits, '-' and '_', and starts with a letter or a digit (it names a folder)"
OPTIMIZERS = "allowed: sgd, adam, adamw"
SETTINGS = (
    "allowed: dataset, model, loss, optimizer, schedule, input, precision, epochs, batch_size, validation_batch_size, "
    "seed, augmentation, deterministic, steps, save_weights"
)
LONG_NAME = "x" * 65

# What is changed in GOOD, to what; where it must be reported, as what value; and what must be said about it.
ONE_MISTAKE = [
    # unknown keys, at each level
    ("devices:", "device:", "9  device = {", "unknown key; did you mean 'devices'? allowed: defaults, devices, "),
    ("devices:", "extra: 1\ndevices:", "9  extra = 1", "unknown key; allowed: defaults, devices, datasets, exp"),
    ("datasets:", "datasts:", "12  datasts = {", "did you mean 'datasets'?"),
    ("defaults:", "default:", "1  default = {", "did you mean 'defaults'?"),
    ("epochs: 10", "epoch: 10", "3  defaults.epoch = 10", f"unknown key; did you mean 'epochs'? {SETTINGS}"),
    ("batch_size", "batch-size", "4  defaults.batch-size = 128", "did you mean 'batch_size'?"),
    ("momentum", "momentun", "5  defaults.optimizer.momentun = 0.9", "did you mean 'momentum'? allowed: name, lr,"),
    ("thread", "tread", '10  devices.cpu.treads = "auto"', "unknown key; did you mean 'threads'? allowed: threads"),
    ("  cpu:", "  cpus:", '10  devices.cpus = {"threads": "auto"}', "did you mean 'cpu'? allowed: cpu, gpu"),
    ("test: 0.15", "test: 0.15, tst: 1", "13  datasets.digits.tst = 1", "did you mean 'test'? allowed: source, val"),
    (LAST, "epoch: 3", "16  experiments.mlp.epoch = 3", f"did you mean 'epochs'? {SETTINGS}"),
    (LAST, "optimizer: {Lr: 1}", "16  experiments.mlp.optimizer.Lr = 1", "unknown key; did you mean 'lr'?"),
    ("resident", "{name: resident, workers: 1}", "7  defaults.input.workers = 1", "unknown key; allowed: name"),
    (
        "model: linear",
        "model: {name: linear, hidden: [3]}",
        "15  experiments.linear.model.hidden = [3]",
        "allowed: compile, name",
    ),
    # whole numbers
    ("epochs: 10", "epochs: 0", "3  defaults.epochs = 0", "must be at least 1"),
    ("epochs: 10", "epochs: 1.5", "3  defaults.epochs = 1.5", "must be a whole number"),
    (
        "epochs: 10",
        "epochs: 1e1",
        "3  defaults.epochs = 10.0",
        "must be a whole number, without a point or an exponent",
    ),
    ("epochs: 10", 'epochs: "10"', '3  defaults.epochs = "10"', "must be a whole number, without quotes"),
    ("epochs: 10", "epochs: ten", '3  defaults.epochs = "ten"', "must be a whole number"),
    ("epochs: 10", "epochs: true", "3  defaults.epochs = true", "must be a whole number"),
    ("epochs: 10", "epochs:", "3  defaults.epochs = null", "must be a whole number"),
    ("epochs: 10", "epochs: [10]", "3  defaults.epochs = [10]", "must be a whole number"),
    ("epochs: 10", "epochs: {a: 1}", '3  defaults.epochs = {"a": 1}', "must be a whole number"),
    ("epochs: 10", "epochs: .inf", "3  defaults.epochs = Infinity", "must be a whole number"),
    ("epochs: 10", "epochs: 1:30", '3  defaults.epochs = "1:30"', "must be a whole number"),
    ("epochs: 10", "epochs: 2024-01-01", '3  defaults.epochs = "2024-01-01"', "must be a whole number"),
    ("epochs: 10", "epochs: 2147483648", "3  defaults.epochs = 2147483648", "must be less than 2147483648"),
    ("batch_size: 128", "batch_size: -4", "4  defaults.batch_size = -4", "must be at least 1"),
    ("seed: 0", "seed: -1", "2  defaults.seed = -1", "must be at least 0"),
    ("seed: 0", "seed: 4294967296", "2  defaults.seed = 4294967296", "must be less than 4294967296"),
    (
        "seed: 0",
        "seeds: 3\n  seed: 4294967294",
        "2  defaults.seeds = 3",
        "seed 4294967294 has no 2 after it: the last one is 4294967295",
    ),
    # rates and other numbers
    ("lr: 0.1", "lr: -0.1", "5  defaults.optimizer.lr = -0.1", "must be greater than 0"),
    ("lr: 0.1", "lr: 0", "5  defaults.optimizer.lr = 0", "must be greater than 0"),
    ("lr: 0.1", "lr: .nan", "5  defaults.optimizer.lr = NaN", "must be a finite number"),
    ("lr: 0.1", "lr: .inf", "5  defaults.optimizer.lr = Infinity", "must be a finite number"),
    ("lr: 0.1", 'lr: "1e-3"', '5  defaults.optimizer.lr = "1e-3"', "must be a number, without quotes"),
    ("lr: 0.1", "lr: false", "5  defaults.optimizer.lr = false", "must be a number"),
    ("lr: 0.1", "lr: ~", "5  defaults.optimizer.lr = null", "must be a number"),
    ("lr: 0.05", "lr: fast", '16  experiments.mlp.optimizer.lr = "fast"', "must be a number"),
    ("momentum: 0.9", "momentum: 1", "5  defaults.optimizer.momentum = 1", "must be less than 1"),
    ("momentum: 0.9", "momentum: .nan", "5  defaults.optimizer.momentum = NaN", "must be a finite number"),
    ("momentum: 0.9", "weight_decay: -1", "5  defaults.optimizer.weight_decay = -1", "must be at least 0"),
    # optimisers
    (OPTIMIZER, "optimizer: rmsprop", '5  defaults.optimizer = "rmsprop"', f"unknown optimizer; {OPTIMIZERS}"),
    (
        "name: sgd",
        "name: sdg",
        '5  defaults.optimizer.name = "sdg"',
        f"unknown optimizer; did you mean 'sgd'? {OPTIMIZERS}",
    ),
    ("name: sgd", "name: 3", "5  defaults.optimizer.name = 3", "unknown optimizer; allowed: sgd, adam, adamw"),
    ("name: sgd, ", "", "5  defaults.optimizer.name", "this key is required"),
    ("lr: 0.1, ", "", "5  defaults.optimizer.lr", "this key is required"),
    (OPTIMIZER, "optimizer: [sgd]", '5  defaults.optimizer = ["sgd"]', "must be a name, or a mapping of its name and"),
    (OPTIMIZER, "optimizer:", "5  defaults.optimizer = null", "must be a name, or a mapping of its name and settings"),
    (
        "momentum: 0.9",
        "nesterov: true",
        "5  defaults.optimizer = {",
        "nesterov needs a momentum above 0",
    ),
    ("momentum: 0.9", "nesterov: yes", '5  defaults.optimizer.nesterov = "yes"', "must be true or false"),
    (
        LAST,
        "optimizer: {momentum: 0, nesterov: true}",
        "16  experiments.mlp.optimizer = {",
        "nesterov needs a momentum",
    ),
    (
        LAST,
        "optimizer: adam",
        "16  experiments.mlp.optimizer.lr",
        "this key is required: another optimizer than the one",
    ),
    (
        LAST,
        "optimizer: {name: adam, lr: 1, momentum: 0.9}",
        "16  experiments.mlp.optimizer.momentum = 0.9",
        "allowed: lr",
    ),
    (
        LAST,
        "optimizer: {name: adam, lr: 1, betas: [0.9]}",
        "16  experiments.mlp.optimizer.betas = [0.9]",
        "list of 2 num",
    ),
    (
        LAST,
        "optimizer: {name: adam, lr: 1, betas: 0.9}",
        "16  experiments.mlp.optimizer.betas = 0.9",
        "a list of 2 numb",
    ),
    (LAST, "optimizer: {name: adam, lr: 1, betas: [0, 1]}", "16  experiments.mlp.optimizer.betas.1 = 1", "less than 1"),
    # schedules, input paths, precision
    (
        "constant",
        "cosin",
        '6  defaults.schedule = "cosin"',
        "unknown schedule; did you mean 'cosine'? allowed: constant,",
    ),
    ("constant", "step", "6  defaults.schedule.step_size", "this key is required"),
    ("constant", "{step_size: 2}", "6  defaults.schedule.name", "this key is required"),
    ("constant", "{name: step, step_size: 1, gamma: 2}", "6  defaults.schedule.gamma = 2", "must be at most 1"),
    (
        "input: resident",
        "input: resdent",
        '7  defaults.input = "resdent"',
        "did you mean 'resident'? allowed: resident, l",
    ),
    ("resident", "{name: loader, workers: -1}", "7  defaults.input.workers = -1", "must be at least 0"),
    ("resident", "{name: loader, pin_memory: 1}", "7  defaults.input.pin_memory = 1", "must be true or false"),
    (
        "fp32",
        "fp8",
        '8  defaults.precision = "fp8"',
        "unknown value; did you mean 'fp32'? allowed: fp32, tf32, bf16, fp16",
    ),
    ("fp32", "32", "8  defaults.precision = 32", "allowed: fp32, tf32, bf16, fp16"),
    # devices
    ("kind: auto", "kind: rocm", '11  devices.gpu.kind = "rocm"', "unknown value; allowed: auto, cuda, mps, xpu"),
    ("kind: auto", 'kind: "cuda:0"', '11  devices.gpu.kind = "cuda:0"', "did you mean 'cuda'?"),
    ("count: 1", "count: 0", "11  devices.gpu.count = 0", "must be 'all', or a count of at least 1"),
    ("count: 1", "count: '1'", '11  devices.gpu.count = "1"', "or a count of at least 1, without quotes"),
    ("count: 1", "count: true", "11  devices.gpu.count = true", "must be 'all', or a count of at least 1"),
    ("count: 1", "count: every", '11  devices.gpu.count = "every"', "must be 'all', or a count of at least 1"),
    ("count: 1", "strategy: dp", '11  devices.gpu.strategy = "dp"', "unknown value; did you mean 'ddp'?"),
    ("count: 1", "count: 2, device_ids: [0, 1]", "11  devices.gpu = {", "need strategy: data_parallel"),
    (
        "count: 1",
        "count: 2, strategy: data_parallel, device_ids: [0, 0]",
        "11  devices.gpu = {",
        "device_ids names a GPU twice",
    ),
    (
        "count: 1",
        "count: 3, strategy: data_parallel, device_ids: [0, 1]",
        "11  devices.gpu = {",
        "device_ids names 2 GPUs, but count is 3",
    ),
    (
        "count: 1",
        "count: 2, strategy: data_parallel, output_device: 2",
        "11  devices.gpu.output_device = 2",
        "must be one of the GPUs in use: 0, 1",
    ),
    (
        "count: 1",
        "count: 2, nodes: 2, strategy: data_parallel",
        "11  devices.gpu = {",
        "nodes must be 1; or use strategy: ddp",
    ),
    ("threads: auto", "threads: auto, nodes: 0", "10  devices.cpu.nodes = 0", "must be at least 1"),
    ("threads: auto", "threads: auto, processes: 0", "10  devices.cpu.processes = 0", "must be at least 1"),
    ("skip", "error", '11  devices.gpu.if_missing = "error"', "unknown value; allowed: skip, fail"),
    (
        "threads: auto",
        "threads: 0",
        "10  devices.cpu.threads = 0",
        "must be 'auto' (all the cores this process may use)",
    ),
    ("threads: auto", "threads: 2.0", "10  devices.cpu.threads = 2.0", "or a count from 1 to 1024"),
    ("cpu: {threads: auto}", "cpu: 4", "10  devices.cpu = 4", "must be a mapping of keys to values"),
    (DEVICES, "devices: []\n", "9  devices = []", "must be a mapping of keys to values"),
    # data sets
    (
        "source: digits",
        "source: mnist",
        '13  datasets.digits.source = "mnist"',
        "did you mean 'MNIST'? allowed: digits, ",
    ),
    ("source: digits", "source: MNIST", "13  datasets.digits.test = 0.15", "has its own test part: leave this key out"),
    (
        "{source: digits, validation: 0.15, test: 0.15}",
        "{source: MNIST}",
        "13  datasets.digits.validation",
        "this key is required: a fraction between 0 and 1, or a count",
    ),
    (
        "{source: digits, validation: 0.15, test: 0.15}",
        "{source: EMNIST, validation: 0.1}",
        "13  datasets.digits.variant",
        "this key is required",
    ),
    ("source: digits", "source: csv", "13  datasets.digits = {", "give either path, or parts"),
    (
        "{source: digits, validation: 0.15, test: 0.15}",
        "{source: csv, path: images.csv, validation: 0.1}",
        "13  datasets.digits = {",
        "test is required: a fraction between 0 and 1, or a count",
    ),
    (
        "source: digits,",
        "source: folder, parts: {train: a, test: b},",
        "13  datasets.digits = {",
        "both parts.test and test: is it given, or to be drawn?",
    ),
    ("source: digits,", "source: folder, parts: {test: b},", "13  datasets.digits.parts.train", "this key is required"),
    (
        "source: digits,",
        "source: synthetic, images: 9, classes: 1, shape: [1, 2, 2],",
        "13  datasets.digits.classes = 1",
        "must be at least 2",
    ),
    (
        "source: digits,",
        "source: synthetic, images: 9, classes: 2, shape: [8, 8],",
        "13  datasets.digits.shape = [8, 8]",
        "must be a list of 3 numbers: channels, height, width",
    ),
    (
        OWN_TEST,
        "source: MNIST, validation: 0.15, size: 0",
        "13  datasets.digits.size = 0",
        "must be a side length from 1 to 4096",
    ),
    (
        OWN_TEST,
        "source: MNIST, validation: 0.15, size: [8]",
        "13  datasets.digits.size = [8]",
        "or a list of height and width",
    ),
    *(
        (
            OWN_TEST,
            f"source: MNIST, validation: 0.15, channels: {wrong}",
            f"13  datasets.digits.channels = {shown}",
            told,
        )
        for wrong, shown, told in (
            ("2", "2", "must be 1 (grey) or 3 (colours)"),
            ("true", "true", "must be 1 (grey) or 3 (colours)"),
            ("'1'", '"1"', "must be 1 (grey) or 3 (colours), without quotes"),
        )
    ),
    *(
        (
            OWN_TEST,
            f"source: MNIST, validation: 0.15, mean: [{mean}], std: [{std}]",
            f"13  datasets.digits.{where}",
            told,
        )
        for mean, std, where, told in (
            ("0.5", "1e308", "std.0 = 1e+308", "must be from 0.001 to 1: pixels are on the scale from 0 to 1"),
            ("0.5", "58.4", "std.0 = 58.4", "must be from 0.001 to 1"),
            ("0.5", "1e-9", "std.0 = 1e-09", "must be from 0.001 to 1"),
            ("0.5", ".nan", "std.0 = NaN", "must be from 0.001 to 1"),
            ("33.3", "0.3", "mean.0 = 33.3", "must be from 0 to 1"),
        )
    ),
    ("test: 0.15}", "test: 0.15, size: 32}", "13  datasets.digits.size = 32", "of one shape: leave this key out"),
    ("test: 0.15}", "test: 0.15, channels: 3}", "13  datasets.digits.channels = 3", "of one shape: leave this key out"),
    *(
        (OWN_TEST, f"source: {source}", "13  datasets.digits = {", told)
        for source, told in (
            (
                "digits, validation: 1700, test: 97",
                "validation (1700) and test (97) leave nothing to train on: there are 1797",
            ),
            ("digits, validation: 1527, test: 0.15", "validation (1527) and test (270) leave nothing to train on"),
            ("MNIST, validation: 60000", "validation (60000) leave nothing to train on: there are 60000"),
            ("EMNIST, variant: letters, validation: 124800", "there are 124800"),
            ("Caltech101, validation: 0.5, test: 5000", "there are 8677"),
            ("synthetic, images: 9, classes: 2, shape: [1, 2, 2], validation: 8, test: 1", "there are 9"),
        )
    ),
    ("test: 0.15}", "test: 0.15, mean: [0.5]}", "13  datasets.digits = {", "mean and std go together"),
    (
        OWN_TEST,
        "source: MNIST, validation: 0.15, channels: 3, mean: [0.5], std: [0.5]",
        "13  datasets.digits = {",
        "mean and std have 1 numbers for 3 channels",
    ),
    # networks, input and augmentation of the systems that load their data anew each epoch
    (
        "model: linear",
        "model: {name: cnn, channels: [8], padding: -1}",
        "15  experiments.linear.model.padding = -1",
        "at least 0",
    ),
    (
        "model: linear",
        "model: {name: lenet, init: xavier}",
        '15  experiments.linear.model.init = "xavier"',
        "xavier_uniform",
    ),
    (
        "model: linear",
        "model: {name: resnet18, weights: imagenet}",
        '15  experiments.linear.model.weights = "imagenet"',
        "resnet18 has no such weights; allowed: IMAGENET1K_V1",
    ),
    (
        "model: linear",
        "model: linear, input: {name: loader, persistent_workers: true}",
        "15  experiments.linear.input = {",
        "need workers of at least 1",
    ),
    (
        "model: linear",
        "model: linear, augmentation: {flip: 2.0}",
        "15  experiments.linear.augmentation.flip = 2.0",
        "must be at most 1",
    ),
    (
        "model: linear",
        "model: linear, augmentation: {crop: 4}",
        "15  experiments.linear.augmentation.crop = 4",
        "did you mean 'crop_padding'?",
    ),
    (
        "model: linear",
        "model: linear, save_weights: all",
        '15  experiments.linear.save_weights = "all"',
        "allowed: last, every_epoch",
    ),
    (
        "source: digits",
        "source: digts",
        '13  datasets.digits.source = "digts"',
        "unknown source; did you mean 'digits'?",
    ),
    ("source: digits, ", "", "13  datasets.digits.source", "this key is required"),
    (
        "test: 0.15",
        "test: 1.5",
        "13  datasets.digits.test = 1.5",
        "must be a fraction between 0 and 1, or a count of at",
    ),
    ("test: 0.15", "test: 1.0", "13  datasets.digits.test = 1.0", "must be a fraction between 0 and 1"),
    ("test: 0.15", "test: 0", "13  datasets.digits.test = 0", "or a count of at least 1"),
    ("test: 0.15", "test: .nan", "13  datasets.digits.test = NaN", "must be a fraction between 0 and 1"),
    ("test: 0.15", "test: true", "13  datasets.digits.test = true", "must be a fraction between 0 and 1"),
    ("test: 0.15", "test: 0.9", "13  datasets.digits = {", "validation and test together must be less than 1"),
    (DIGITS, "digits:", "13  datasets.digits = null", "must be a mapping of settings, at least source"),
    (f"datasets:\n  {DIGITS}\n", "datasets:\n", "12  datasets = null", "must be a mapping with at least one entry"),
    (f"datasets:\n  {DIGITS}\n", "", "1  datasets", "this key is required, with at least one entry"),
    # experiments
    (
        "{dataset: digits, model: l",
        "{dataset: digit, model: l",
        '15  experiments.linear.dataset = "digit"',
        "not listed under datasets (digits); did you mean 'digits'?",
    ),
    ("{dataset: digits, model: l", "{dataset: 3, model: l", "15  experiments.linear.dataset = 3", "must be text"),
    ("{dataset: digits, model: l", "{model: l", "15  experiments.linear.dataset", "this key is required"),
    (LINEAR, "linear:", "15  experiments.linear = null", "must be a mapping of settings, at least dataset and model"),
    (
        LINEAR,
        "linear: digits",
        '15  experiments.linear = "digits"',
        "must be a mapping of settings, at least dataset and",
    ),
    (
        "model: linear",
        "model: liner",
        '15  experiments.linear.model = "liner"',
        "unknown model; did you mean 'linear'? allow",
    ),
    ("model: linear", "model: resnet19", '15  experiments.linear.model = "resnet19"', "did you mean 'resnet18'?"),
    (", model: linear", "", "15  experiments.linear.model", "this key is required"),
    (
        "model: linear",
        "model: 3",
        "15  experiments.linear.model = 3",
        "must be a name, or a mapping of its name and settings",
    ),
    ("model: linear", "model: cnn", "15  experiments.linear.model.channels", "this key is required"),
    (
        "{dataset: digits, model: linear",
        "{dataset: 2024-01-01, model: linear",
        '15  experiments.linear.dataset = "2024-01-01"',
        "not listed under datasets (digits)",
    ),
    *(
        (
            "model: linear",
            f"model: {{name: resnet18, weights: {wrong}}}",
            f"15  experiments.linear.model.weights = {shown}",
            told,
        )
        for wrong, shown, told in (
            ("0.0", "0.0", "resnet18 has no such weights; allowed: IMAGENET1K_V1"),
            ("true", "true", "resnet18 has no such weights; allowed: IMAGENET1K_V1"),
        )
    ),
    ("hidden: [32]", "hidden: 32.0", "16  experiments.mlp.model.hidden = 32.0", "must be a list, in brackets"),
    ("source: digits", "source: csv, path: 3", "13  datasets.digits.path = 3", "must be text, so in quotes"),
    # networks that can't take the images
    *(
        ("model: linear", f"model: {model}", f'15  experiments.linear.model = "{name}"', told)
        for model, name, told in (
            ("resnet18", "resnet18", "model resnet18 takes images of 3 channels; these have 1"),
            ("lenet", "lenet", "model lenet needs images of at least 16x16 pixels; these are 8x8"),
            (
                "{name: cnn, channels: [4], kernel_size: 11}",
                "cnn",
                "leaves nothing of images of 8x8 pixels at convolution 1",
            ),
            ("{name: cnn, channels: [4, 4, 4, 4]}", "cnn", "at convolution 4, which sees 1 of them"),
        )
    ),
    # mirrors
    *(
        (
            "defaults:",
            f"mirror: {wrong}\ndefaults:",
            f"1  mirror = {wrong}",
            "must be a folder or an address (http://, https://)",
        )
        for wrong in ('""', '" "', '"ftp://somewhere/data"', '"file:///data"', '"http://"')
    ),
    (
        "model: linear",
        "model: {name: cnn, channels: []}",
        "15  experiments.linear.model.channels = []",
        "at least 1 item",
    ),
    ("hidden: [32]", "hidden: []", "16  experiments.mlp.model.hidden = []", "must have at least 1 item"),
    ("hidden: [32]", "hidden: 32", "16  experiments.mlp.model.hidden = 32", "must be a list"),
    ("hidden: [32]", "hidden: [0]", "16  experiments.mlp.model.hidden.0 = 0", "must be at least 1"),
    ("hidden: [32]", "hidden: [8, 1.5]", "16  experiments.mlp.model.hidden.1 = 1.5", "must be a whole number"),
    ("hidden: [32]", "hidden: [[32]]", "16  experiments.mlp.model.hidden.0 = [32]", "must be a whole number"),
    (EXPERIMENTS, "experiments: {}\n", "14  experiments = {}", "must be a mapping with at least one entry"),
    # names, which become folders
    ("linear: {", "../x: {", '15  experiments."../x"', A_NAME_IS),
    ("linear: {", "a/b: {", '15  experiments."a/b"', A_NAME_IS),
    ("linear: {", "..: {", '15  experiments.".."', A_NAME_IS),
    ("linear: {", '"": {', '15  experiments.""', A_NAME_IS),
    ("linear: {", '" ": {', '15  experiments." "', A_NAME_IS),
    ("linear: {", '"a\\n": {', '15  experiments."a\\n"', A_NAME_IS),
    ("linear: {", "a.b: {", '15  experiments."a.b"', A_NAME_IS),
    ("linear: {", "-x: {", "15  experiments.-x", A_NAME_IS),
    ("linear: {", "größe: {", "15  experiments.größe", A_NAME_IS),
    ("linear: {", f"{LONG_NAME}: {{", f"15  experiments.{LONG_NAME}", A_NAME_IS),
    ("linear: {", "MLP: {", "16  experiments.mlp", "differs from 'MLP' by upper and lower case only"),
    ("linear: {", "3: {", "15  experiments.3", "YAML reads this key as a number: put it in quotes"),
    ("linear: {", "007: {", "15  experiments.007", "YAML reads this key as a number: put it in quotes"),
    ("linear: {", "1.5: {", '15  experiments."1.5"', "YAML reads this key as a number: put it in quotes"),
    ("linear: {", "true: {", "15  experiments.true", "YAML reads this key as true or false: put it in quotes"),
    ("linear: {", "~: {", '15  experiments."~"', "YAML reads this key as nothing: put it in quotes"),
    ("linear: {", "2024-01-01: {", "15  experiments.2024-01-01", "YAML reads this key as a date: put it in quotes"),
    (LAST, "optimizer: {lr: 0,05}", "16  experiments.mlp.optimizer.lr", "where a decimal point belongs: lr: 0.05"),
    (LAST, "optimizer: {1: 3}", "16  experiments.mlp.optimizer.1", "YAML reads this key as a number: put it in quotes"),
    ("gpu:", "con.x: 1\n  gpu:", '11  devices."con.x" = 1', "unknown key; allowed: cpu, gpu"),
    # keys given twice
    ("  linear: {", "  mlp: {", "16  experiments.mlp", "this key is given twice"),
    ("lr: 0.05", "lr: 0.05, lr: 0.1", "16  experiments.mlp.optimizer.lr", "this key is given twice"),
    ("epochs: 10", "epochs: 10\n  epochs: 20", "4  defaults.epochs", "this key is given twice"),
    ("devices:", "devices: {}\ndevices:", "10  devices", "this key is given twice"),
    # what defaults can't hold
    ("seed: 0", "dataset: digits", '2  defaults.dataset = "digits"', "name the data set in each experiment"),
    (DEFAULTS, "defaults: 3\n", "1  defaults = 3", "must be a mapping of settings"),
]

LAUGHS = "a: &a {ha: 1}\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefghijklmnop")
)
UNREADABLE = [
    ("", ":1  (the whole file) = null", "must be a mapping with the keys defaults, devices, datasets, experiments"),
    ("# nothing yet\n", ":1  (the whole file) = null", "must be a mapping with the keys"),
    ("- a\n- b\n", ':1  (the whole file) = ["a", "b"]', "must be a mapping with the keys"),
    ("hello", ':1  (the whole file) = "hello"', "must be a mapping with the keys"),
    (
        "defaults: [1,\n",
        ":2  this is not valid YAML",
        "while parsing a flow node that begins in line 2, did not find expected node",
    ),
    (
        "a: [b\nc: d\n",
        ":2  this is not valid YAML",
        "while parsing a flow sequence that begins in line 1, did not find",
    ),
    ("defaults:\n\tseed: 0\n", ":2  this is not valid YAML", "found character that cannot start any token"),
    ("defaults: a: b", ":1  this is not valid YAML", "mapping values are not allowed in this context"),
    ("a: 1\n---\nb: 2\n", ":2  this is not valid YAML", "found another document"),
    ("a: 1\nb: *nowhere\n", ":2  this is not valid YAML", "undefined alias 'nowhere'"),
    ("a: 1\nb: !!python/object:os.system x\n", ":2  this is not valid YAML", "python/object:os.system"),
    ("a:\n  b: 2024-13-45\n", ":2  this is not valid YAML", "'2024-13-45' can't be read as timestamp"),
    ("a:\n  b: !!bool maybe\n", ":2  this is not valid YAML", "'maybe' can't be read as bool"),
    ('a: "\\ud800"\n', ":1  this is not valid YAML", "found invalid Unicode character escape code"),
    ("a: 1\nb: \0\n", ":2  this is not valid YAML", "it has a character '\\x00'"),
    ("[1, 2]: 3\n", ":1  this is not valid YAML", "unhashable key"),
    ("é: 1\nb: \x07\n", ":2  this is not valid YAML", "it has a character '\\x07'"),
    (
        "a: 1\nb: &loop [*loop]\n",
        ":2  this is not valid YAML",
        "more than 500,000 values, with those that aliases stand for",
    ),
    (LAUGHS, ":7  this is not valid YAML", "more than 500,000 values, with those that aliases stand for"),
    (LAUGHS.replace("[", "{<<: [").replace("]", "]}"), ":7  this is not valid YAML", "more than 500,000 values"),
    (f"a: 1\nb: {'9' * 5000}\n", ":2  this is not valid YAML", "99… can't be read as int"),
    (f"a: 1\nb: 0x{'9' * 5000}\n", ":2  this is not valid YAML", "99… can't be read as int"),
    ("a: 1\nb: {x:1}\n", ":2  this is not valid YAML", "'x:1' within brackets: put a space behind the colon"),
    ("[" * 60 + "]" * 60, ":1  this is not valid YAML", "nested deeper than 50 levels"),
    ("[" * 5000, "  this is not valid YAML", "nested deeper than 50 levels"),
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


def mistakes_in(params_file: Path, text: str) -> list[str]:
    """The report's lines below the heading, which names the file and counts the mistakes."""
    with pytest.raises(MistakeError) as raised:
        read(params_file, text)
    heading, *lines = str(raised.value).splitlines()
    count = len(lines) // 2
    assert heading == f"{params_file} has {count} mistake{'s' if count > 1 else ''}; nothing was started"
    return lines


@pytest.mark.parametrize(("old", "new", "where", "problem"), ONE_MISTAKE)
def test_one_mistake_is_one_report_of_its_line_key_value_and_remedy(
    params_file: Path, old: str, new: str, where: str, problem: str
) -> None:
    place, told = mistakes_in(params_file, changed((old, new)))
    expected = f"{params_file}:{where}"
    assert place == expected or (expected.endswith("= {") and place.startswith(expected))
    assert problem in told


@pytest.mark.parametrize(("text", "where", "problem"), UNREADABLE)
def test_what_is_no_mapping_or_no_yaml_is_told_with_its_line(
    params_file: Path, text: str, where: str, problem: str
) -> None:
    with pytest.raises(MistakeError) as raised:
        read(params_file, text)
    assert f"{params_file}{where}" in str(raised.value)
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
    places = [line.partition("params.yaml:")[2] for line in mistakes_in(params_file, text)[::2]]
    assert places == [
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
    place, _ = mistakes_in(params_file, changed((old, new)) + heirs)
    assert place.startswith(f"{params_file}:{line}  defa")


def test_an_experiment_that_mends_the_default_still_has_it_reported_of_the_defaults(params_file: Path) -> None:
    place, _ = mistakes_in(params_file, changed(("lr: 0.1", "lr: 0")))
    assert place == f"{params_file}:5  defaults.optimizer.lr = 0"


def test_an_experiment_with_a_mistake_of_its_own_is_reported_beside_the_defaults(params_file: Path) -> None:
    places = mistakes_in(params_file, changed(("lr: 0.1, ", ""), (LAST, "optimizer: adam")))[::2]
    assert places == [f"{params_file}:5  defaults.optimizer.lr", f"{params_file}:16  experiments.mlp.optimizer.lr"]


def test_a_setting_that_neither_defaults_nor_experiment_has_is_missed_in_each_experiment(params_file: Path) -> None:
    lines = mistakes_in(params_file, changed(("  epochs: 10\n", "")))
    assert lines[::2] == [f"{params_file}:14  experiments.linear.epochs", f"{params_file}:15  experiments.mlp.epochs"]
    assert lines[1].strip() == "this key is required, here or under defaults"


def test_a_misspelt_required_key_is_reported_as_missing_and_as_unknown(params_file: Path) -> None:
    missing, _, unknown, hint = mistakes_in(params_file, changed(("hidden: [32]", "hiden: [32]")))
    assert missing == f"{params_file}:16  experiments.mlp.model.hidden"
    assert unknown == f"{params_file}:16  experiments.mlp.model.hiden = [32]"
    assert "did you mean 'hidden'?" in hint


def test_a_data_set_with_a_bad_name_is_reported_with_those_who_ask_for_another(params_file: Path) -> None:
    lines = mistakes_in(params_file, changed(("digits: {", "a/b: {")))
    assert [line.partition("params.yaml:")[2] for line in lines[::2]] == [
        '13  datasets."a/b"',
        '15  experiments.linear.dataset = "digits"',
        '16  experiments.mlp.dataset = "digits"',
    ]


def test_a_long_value_is_shortened(params_file: Path) -> None:
    place, _ = mistakes_in(params_file, changed(("epochs: 10", f"epochs: {'x' * 500}")))
    assert place.endswith("…")
    assert len(place.rpartition(" = ")[2]) == 70


def test_names_and_values_reach_the_terminal_without_what_it_would_obey(params_file: Path) -> None:
    hidden = r'"\0\e[2J\u202e\u0085"'
    text = changed(("digits: {", f"{hidden}: {{"), ("epochs: 10", f"{hidden}: {hidden}"), ("fp32", hidden))
    told = "\n".join(mistakes_in(params_file, text))
    assert told.replace("\n", "").isprintable()
    assert r'defaults."\u0000\u001b[2J\u202e\x85" = "\u0000\u001b[2J\u202e\x85"' in told
    assert r"not listed under datasets (\x00\x1b[2J\u202e\x85)" in told


# -- good files ---------------------------------------------------------------------------------------


def test_an_experiment_has_the_defaults_for_all_it_does_not_set(params_file: Path) -> None:
    linear = read(params_file, GOOD).experiments["linear"]
    assert linear.model == LinearModel(name="linear")
    assert linear.optimizer == Sgd(name="sgd", lr=0.1, momentum=0.9)
    assert (linear.epochs, linear.batch_size, linear.seed, linear.precision) == (10, 128, 0, "fp32")


def test_a_block_of_the_same_kind_overrides_single_keys(params_file: Path) -> None:
    mlp = read(params_file, GOOD).experiments["mlp"]
    assert mlp.model == MlpModel(name="mlp", hidden=(32,))
    assert mlp.optimizer == Sgd(name="sgd", lr=0.05, momentum=0.9)


def test_a_block_that_names_another_kind_replaces_the_whole_block(params_file: Path) -> None:
    mlp = read(params_file, changed((LAST, "optimizer: {name: adam, lr: 0.001}"))).experiments["mlp"]
    assert mlp.optimizer == Adam(name="adam", lr=0.001)


def test_a_block_that_names_the_same_kind_merges_also_with_a_short_default(params_file: Path) -> None:
    text = changed(("schedule: constant", "schedule: cosine"), (LAST, "schedule: {eta_min: 0.01}"))
    experiments = read(params_file, text).experiments
    assert experiments["linear"].schedule == CosineSchedule(name="cosine")
    assert experiments["mlp"].schedule == CosineSchedule(name="cosine", eta_min=0.01)


def test_a_name_alone_is_short_for_a_block_with_that_name(params_file: Path) -> None:
    text = changed(("input: resident", "input: loader"), ("model: linear", "model: {name: linear}"))
    experiments = read(params_file, text).experiments
    assert experiments["linear"].input == LoaderInput(name="loader")
    assert experiments["linear"] == read(params_file, text.replace("{name: linear}", "linear")).experiments["linear"]


def test_what_defaults_leave_out_has_a_built_in_value(params_file: Path) -> None:
    text = changed(("  seed: 0\n", ""), ("  schedule: constant\n", ""), ("  precision: fp32\n", ""))
    linear = read(params_file, text).experiments["linear"]
    assert (linear.seed, linear.schedule, linear.precision) == (0, ConstantSchedule(), "fp32")


@pytest.mark.parametrize(
    ("written", "rate"), [("1e-3", 0.001), ("1E-3", 0.001), (".5", 0.5), ("1.5e3", 1500.0), ("2", 2.0)]
)
def test_a_rate_is_a_number_however_it_is_written(params_file: Path, written: str, rate: float) -> None:
    assert read(params_file, changed(("lr: 0.05", f"lr: {written}"))).experiments["mlp"].optimizer.lr == rate


@pytest.mark.parametrize("devices", ["devices:\n", "", "devices: {}\n", "devices: {cpu: {}}\n"])
def test_devices_may_be_left_empty_or_out(params_file: Path, devices: str) -> None:
    read_devices = read(params_file, changed((DEVICES, devices))).devices
    assert (read_devices.cpu.threads, read_devices.gpu.kind, read_devices.gpu.if_missing) == (None, "auto", "skip")


def test_an_experiment_needs_no_defaults(params_file: Path) -> None:
    own = f"experiments:\n  {LINEAR[:-1]}, epochs: 1, batch_size: 8, optimizer: {{name: sgd, lr: 1}}}}\n"
    assert read(params_file, changed((DEFAULTS, ""), (EXPERIMENTS, own))).experiments["linear"].epochs == 1


def test_a_data_set_part_is_a_fraction_or_a_count(params_file: Path) -> None:
    digits = read(params_file, changed(("test: 0.15", "test: 360"))).datasets["digits"]
    assert (digits.validation, digits.test) == (0.15, 360)


def test_a_quoted_number_is_a_name(params_file: Path) -> None:
    assert "3" in read(params_file, changed(("linear: {", '"3": {'))).experiments


def test_the_longest_name_has_64_characters(params_file: Path) -> None:
    assert "x" * 64 in read(params_file, changed(("linear: {", f"{'x' * 64}: {{"))).experiments


def test_keys_merged_by_yaml_count_as_the_experiments_own(params_file: Path) -> None:
    text = changed((LAST, "<<: {epochs: 3, seed: 5}, seed: 6"))
    mlp = read(params_file, text).experiments["mlp"]
    assert (mlp.epochs, mlp.seed) == (3, 6)


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
    place, told = mistakes_in(params_file, changed((old, new.replace("NUMBER", number))))
    assert place.startswith(f"{params_file}:{where} = {{")
    assert "limit: .inf and .nan can't be handed over" in told


def test_an_argument_of_own_code_may_be_null_and_nested(params_file: Path) -> None:
    params = read(
        params_file, changed(("model: linear", "model: {name: 'net.py:Net', limit: null, sizes: [1, {x: 2.5}]}"))
    )
    assert params.experiments["linear"].model.model_extra == {"limit": None, "sizes": [1, {"x": 2.5}]}
