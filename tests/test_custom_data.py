"""Custom data sets: faulty items are reported, and samples of any shape are packed."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import PARTS, CustomFiles, MakeExperiment

from photofinish.config.datasets import CustomDataset
from photofinish.config.loader import read_params
from photofinish.data.local_files import sha256_of_local_files
from photofinish.data.packed import PackedSplit
from photofinish.errors import ConfigError, UserError
from photofinish.machine.fingerprint import CpuTarget
from photofinish.planning.checks import check_custom_code_calls, check_paths
from photofinish.runs.run import Run

HEAD = "import io, os, random, threading\nimport numpy as np, torch\nfrom PIL import Image\n"
Pack = Callable[..., PackedSplit]


def items(item: str, *, count: object = 40, more: str = "") -> str:
    """Return a file with a class Scans whose items `item` makes from their index i."""
    methods = f"    def __len__(self): return {count}\n    def __getitem__(self, i): {item}\n"
    return f"{HEAD}class Scans:\n{more}{methods}"


def image_and(target: str) -> str:
    return items(f"return torch.full((1, 4, 4), i, dtype=torch.uint8), {target}")


@pytest.fixture
def pack(custom_files: CustomFiles) -> Pack:
    """Run `download` and `split` on a data set's source, with these settings and arguments."""
    return partial(custom_files.pack, "scans", "Scans")


FAULTS: dict[str, tuple[Any, ...]] = {
    "raises": (
        items("return [torch.zeros(3), 1 // (i - 777)]", count=800),
        r"(?s)item 777: it raises:\n  File .*scans\.py., line 6, in __getitem__.*ZeroDivisionError",
    ),
    "NaN": (items("return torch.full((3,), [0.0, float('nan')][i == 7]), 0"), "item 7: .*finite"),
    "other dimensions": (
        items("return torch.zeros([2] * (1 + (i == 5))), 0"),
        r"item 5: its input is float32 of shape \(2, 2\), the first sample's is float32 of shape",
    ),
    "a matrix of floats": (image_and("np.zeros((2, 2))"), "item 0: .* a class at each position"),
    "no pair": (items("return {'image': 1}"), "item 0: it is a dict: an item is a pair"),
    "ragged": (items("return [[1, 2], [3]], 0"), "item 0: its input can't be an array"),
    "empty": (items("return 0, 0", count=0), "it has no items"),
    "endless": (f"{HEAD}def Scans(): return iter([1])\n", "must return a map-style data set"),
    "its constructor": (
        items("...", more="    def __init__(self): self.file = open('no.csv')\n"),
        r"(?s)^data set \S+scans\.py:Scans can't be built:\n  File .*line 5.*No such file",
    ),
    "too few names": (
        items("return torch.zeros(2), i % 3", more="    classes = ['a', 'b']\n"),
        "data set 'scans': its targets contain 2, .* numbered from 0 to 1",
    ),
    "mean of two inputs": (
        items("return (torch.ones(2), torch.ones(3)), i % 2"),
        r"datasets\.scans\.mean is auto",
        ("mean", "auto"),
    ),
    "classes of floats": (
        items("return torch.ones(2), torch.ones(3)"),
        "whole numbers, or one-hot rows",
        ("task", "classes"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_reported_with_the_index_and_nothing_is_written(
    pack: Pack, custom_files: CustomFiles, fault: tuple[Any, ...]
) -> None:
    source, message, *settings = fault
    with pytest.raises(UserError, match=message):
        pack(source, **dict(settings))
    assert not (custom_files.folder / "data/splits").exists()


OPEN_FILE = (
    "    def __init__(self):\n"
    "        self.file, self.lock, self.f = open(__file__), threading.Lock(), lambda i: i\n"
    "    def __del__(self): self.file.close()\n"
)
KINDS = {
    "an image": ("torch.zeros(3, 4, 5, dtype=torch.uint8)", (3, 4, 5), "uint8"),
    "PIL, grey": ("Image.new('L', (5, 4))", (1, 4, 5), "uint8"),
    "half precision": ("torch.zeros(7, dtype=torch.bfloat16)", (7,), "float32"),
    "a film": ("np.zeros((2, 1, 4, 5), dtype='f2')", (2, 1, 4, 5), "float32"),
    "token ids": ("torch.arange(6) + i", (6,), "int64"),
}


@pytest.mark.parametrize(("item", "shape", "dtype"), KINDS.values(), ids=KINDS)
def test_items_of_any_shape_and_type_are_packed(
    pack: Pack, item: str, shape: tuple[int, ...], dtype: str
) -> None:
    packed = pack(items(f"self.file.tell(); return {item}, i % 2", more=OPEN_FILE))
    images = packed.images("train")
    assert (packed.manifest.shape, packed.manifest.dtype) == (shape, dtype)
    assert (str(images.dtype), images.shape) == (dtype, (20, *shape))
    assert bool(packed.manifest.mean) == (dtype == "uint8")


def test_mean_auto_normalises_the_columns_of_a_table_by_the_training_part(pack: Pack) -> None:
    table = items("return torch.tensor([i, 100.0 - 3 * i, 7.0]), i % 2")
    packed = pack(table, mean="auto")
    train = packed.images("train")
    assert packed.manifest.mean == pytest.approx(train.mean(axis=0).tolist())
    assert packed.manifest.std == pytest.approx([*train.std(axis=0)[:2].tolist(), 1.0])


LABELS = ("label-0", "label-1")
TARGETS: dict[str, tuple[str, str, str | None, str, tuple[str, ...], list[float]]] = {
    "classes": ("np.int8(i % 3)", "", None, "classes", ("0", "1", "2"), [2]),
    "named": ("i % 2", "classes = ['a', 'b', 'c']", None, "classes", ("a", "b", "c"), [1]),
    "a value": ("torch.tensor(i / 2).bfloat16()", "", None, "values", ("value",), [2.5]),
    "named values": ("(i / 2,)", "target_names = ('age',)", None, "values", ("age",), [2.5]),
    "one-hot": ("torch.eye(2)[i % 2]", "", None, "labels", LABELS, [0.0, 1.0]),
    "one-hot classes": ("torch.eye(2)[i % 2]", "", "classes", "classes", ("0", "1"), [1]),
    "labels": ("torch.tensor([i % 2, 1])", "", None, "labels", LABELS, [1.0, 1.0]),
}


@pytest.mark.parametrize(
    ("target", "attribute", "given", "task", "names", "fifth"), TARGETS.values(), ids=TARGETS
)
def test_the_task_follows_from_the_targets_or_is_given(
    pack: Pack,
    target: str,
    attribute: str,
    given: str | None,
    task: str,
    names: tuple[str, ...],
    fifth: list[float],
) -> None:
    more = f"    {attribute}\n" if attribute else ""
    packed = pack(items(f"return np.array([float(i)]), {target}", more=more), task=given)
    assert (packed.manifest.task, packed.manifest.class_names) == (task, names)
    rows = np.concatenate([packed.images(part)[:, 0] for part in PARTS])
    labels = np.concatenate([packed.labels(part) for part in PARTS])
    assert labels.dtype == (np.int64 if task == "classes" else np.float32)
    assert np.atleast_1d(labels[rows == 5][0]).tolist() == fifth


BY_PART = items(
    "return np.array([float(self.start + i)]), i % 2",
    count="self.count",
    more="    def __init__(self, part, seed, root='.'):\n"
    "        sizes = {'train': (0, 20), 'validation': (100, 6), 'test': (200, 4)}\n"
    "        self.start, self.count = sizes[part]\n",
)


def test_a_data_set_with_parts_is_built_for_each_that_is_not_drawn(pack: Pack) -> None:
    for validation, counts, starts in (
        (None, [20, 6, 4], [0, 100, 200]),
        (4, [16, 4, 4], [0, 0, 200]),
    ):
        packed = pack(BY_PART, validation=validation, test=None)
        assert packed.manifest.counts == dict(zip(PARTS, counts, strict=True))
        lowest = [packed.images(part)[:, 0].min() // 100 * 100 for part in PARTS]
        assert lowest == starts
        assert packed.images("validation").max() < (20 if validation else 106)


def test_a_faulty_item_is_reported_with_its_part(pack: Pack) -> None:
    faulty = BY_PART.replace("np.array([", "np.array([1 // (self.start + i - 202) * ")
    with pytest.raises(ConfigError, match=r"(?s)\ntest item 2: it raises.*ZeroDivisionError"):
        pack(faulty, validation=4, test=None)


def test_any_number_of_workers_packs_the_same_items(pack: Pack) -> None:
    source = items("return np.array([i, i * i]), i % 2")
    alone, packed = (np.array(pack(source, workers=workers).images("train")) for workers in (0, 2))
    assert np.array_equal(packed, alone)


def test_random_items_are_refused_with_two_ways_out(pack: Pack) -> None:
    drawn = items("return torch.rand(3) + np.random.rand() + random.random(), i % 2")
    with pytest.raises(
        ConfigError, match=r"item 0 differs .*transform: .*scans\.decode: each_epoch"
    ):
        pack(drawn)
    packed = pack(drawn, decode="each_epoch")
    assert packed.manifest.shape == (3,)
    assert not (packed.folder / "train-images.npy").exists()


PLANNED = f"""{HEAD}raise SystemExit('it ran')
class Scans:
    def __init__(self, root, size=3): ...
class Parts:
    def __init__(self, part, seed): ...
def Clash(std): ...
"""
SIZES = {"validation": 0.1, "test": 0.1}
SCANS = {"source": "./scans.py:Scans", "root": "/data", **SIZES}
FINE: dict[str, dict[str, Any]] = {"scans": SCANS, "parts": {"source": "./scans.py:Parts"}}
FAULTY: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({**SCANS, "sise": 8}, ".sise = 8\n    unknown argument; did you mean 'size'?"),
    "clash": (
        {"source": "./scans.py:Clash", **SIZES},
        ".std\n    Clash takes std, which is a setting",
    ),
    "missing": (
        {"source": "./scans.py:Scans", **SIZES},
        ".root\n    Scans in ./scans.py needs root",
    ),
    "no-file": ({**SCANS, "files": ["no.csv"]}, '.files.0 = "no.csv"\n    no such file'),
}


def test_plan_reports_mistakes_without_running_the_code(custom_files: CustomFiles) -> None:
    custom_files.write("scans.py", PLANNED)
    datasets = FINE | {name: dataset for name, (dataset, _) in FAULTY.items()}
    one = {"dataset": "scans", "model": "linear", "epochs": 1, "batch_size": 8}
    one["optimizer"] = {"name": "sgd", "lr": 0.1}
    params = {"datasets": datasets, "experiments": {"one": one}}
    custom_files.write("params.yaml", yaml.safe_dump(params))
    folder = custom_files.folder
    with pytest.raises(ConfigError) as error:
        read_params(folder / "params.yaml", check_paths, check_custom_code_calls)
    for name, (_, message) in FAULTY.items():
        assert f"datasets.{name}{message}" in str(error.value)
    assert "has 4 mistakes" in str(error.value)


def test_settings_of_images_are_refused_for_other_samples(
    pack: Pack, make_experiment: MakeExperiment, cpu_host: CpuTarget
) -> None:
    folder = pack(items("return np.zeros(3), i % 2")).folder
    experiment = make_experiment(augmentation={"flip": 0.5})
    run = Run("small", "cpu", experiment, cpu_host, folder, Path("out"))
    with pytest.raises(ConfigError, match=r"small\.augmentation is only for images, .* float32"):
        run.check()


def test_files_named_under_files_count(custom_files: CustomFiles) -> None:
    custom_files.write("scans/a/1.txt", "1")
    table, sizes = custom_files.write("labels.csv", "1"), {"validation": 0.2, "test": 0.2}
    source = {"source": "./scans.py:Scans", "files": ("scans", table), **sizes}
    dataset = CustomDataset.model_validate(source)
    seen = {sha256_of_local_files({"scans": dataset})["scans"]}
    for name in ("scans/a/1.txt", "labels.csv"):
        os.utime(custom_files.folder / name, ns=(1, 1))
        seen.add(sha256_of_local_files({"scans": dataset})["scans"])
    custom_files.write("scans/b/2.txt", "2")
    seen.add(sha256_of_local_files({"scans": dataset})["scans"])
    os.utime(custom_files.folder / "scans", ns=(1, 1))  # its own time doesn't count
    seen.add(sha256_of_local_files({"scans": dataset})["scans"])
    assert len(seen) == 4
