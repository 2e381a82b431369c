"""Custom data sets: faulty items are reported; samples of any shape are packed and trained on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PARTS, CustomFiles, MakeExperiment, MakeRun
from torch.nn import functional
from training_process import train_here
from training_stage import contents

from photofinish.config.losses_and_metrics import CrossEntropy, Metric
from photofinish.data.packed import PackedSplit
from photofinish.data.sources import named_targets
from photofinish.errors import ConfigError, UserError
from photofinish.evaluation.evaluate import evaluate, write_evaluation
from photofinish.results import records
from photofinish.runs.run import Run
from photofinish.training.batches import part_of
from photofinish.training.input_paths import make_batches
from photofinish.training.losses import Loss
from photofinish.training.torch_device import CPU

HEAD = (
    "import io, os, random, threading\nimport numpy as np, torch\n"
    "from PIL import Image; from torch import nn\n"
)
Pack = Callable[..., PackedSplit]


def items(item: str, *, count: object = 40, more: str = "") -> str:
    """Return a file with a class Scans whose items `item` makes from their index i."""
    methods = f"    def __len__(self): return {count}\n    def __getitem__(self, i): {item}\n"
    return f"class Scans:\n{more}{methods}"


@pytest.fixture
def pack(custom_files: CustomFiles) -> Pack:
    """Run `download` and `split` on a source's data set, with these settings and arguments."""

    def run(source: str, **settings: Any) -> PackedSplit:
        kind = source.partition(":")[0].partition("(")[0].split()[1]
        return custom_files.pack("scans", kind, HEAD + source, **settings)

    return run


BY_PART = items(
    "return np.array([float(self.start + i)]), i % 2",
    count="self.count",
    more="    def __init__(self, part, seed, root='.'):\n"
    "        sizes = {'train': (0, 20), 'validation': (100, 6), 'test': (200, 4)}\n"
    "        self.start, self.count = sizes[part]\n",
)
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
    "a matrix of floats": (
        items("return torch.full((1,), i), np.zeros((2, 2))"),
        "item 0: .* a class at each position",
    ),
    "no pair": (items("return {'image': 1}"), "item 0: it is a dict: an item is a pair"),
    "ragged": (items("return [[1, 2], [3]], 0"), "item 0: its input can't be an array"),
    "empty": (items("return 0, 0", count=0), "it has no items"),
    "endless": ("def Scans(): return iter([1])\n", "must return a map-style data set"),
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
    "in the test part": (
        BY_PART.replace("np.array([", "np.array([1 // (self.start + i - 202) * "),
        r"(?s)\ntest item 2: it raises.*ZeroDivisionError",
        ("validation", 4),
        ("test", None),
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
def test_items_of_each_kind_are_packed_with_their_shape_and_dtype(
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


def test_settings_of_images_are_refused_for_other_samples(pack: Pack, make_run: MakeRun) -> None:
    folder = pack(items("return np.zeros(3), i % 2")).folder
    run = make_run(folder, augmentation={"flip": 0.5})
    with pytest.raises(ConfigError, match=r"small\.augmentation is only for images, .* float32"):
        run.check()


WORDS = """
class Words:
    def __len__(self): return 60
    def __getitem__(self, i):
        word = (torch.arange(8) + i) % 5
        target = (torch.arange(8) + i + 1) % 5
        target[0] = -100
        return word, target
"""
LAST = """
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.embed, self.out = nn.Embedding(classes, 16), nn.Linear(16, classes)
    def forward(self, words): return self.out(self.embed(words))
"""
FIRST = LAST.replace("self.out(self.embed(words))", "self.out(self.embed(words)).movedim(2, 1)")
TWO = """
class Rows:
    def __len__(self): return 60
    def __getitem__(self, i):
        kind, number = i % 4, np.array([i % 7 / 7, 1.0])
        return {inputs}, float(kind) + number[0]
"""
NET_OF_TWO = """
class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        assert shape == {shape}, shape
        self.embed, self.out = nn.Embedding(4, 4), nn.Linear(6, classes)
    def forward(self, {arguments}):
        return self.out(torch.cat([self.embed(kind), number], dim=1))
"""


class Trained:
    """A finished run: what it learned, and the scores of its network."""

    def __init__(self, run: Run, packed: PackedSplit) -> None:
        self.folder = run.out / records.MODEL
        self.learned = contents(self.folder)
        self.judged = evaluate("small", {"cpu": self.folder}, packed)
        self.scores = self.judged.evaluation.devices["cpu"]

    @property
    def history(self) -> list[Any]:
        return records.read_history(self.folder)


Train = Callable[..., Trained]


@pytest.fixture
def train(custom_files: CustomFiles, make_run: MakeRun) -> Train:
    """Train a network of this source as its stage does, and evaluate it."""
    numbers = count()

    def train(packed: PackedSplit, network: str, **settings: Any) -> Trained:
        # Python remembers a file that it has imported.
        file = custom_files.write(f"net{next(numbers)}.py", HEAD + network)
        given = {
            "model": {"name": f"{file}:Net"},
            "optimizer": {"name": "adam", "lr": 0.05},
            "epochs": 20,
        }
        for key in ("transform", "eval_transform", "collate"):
            if function := settings.pop(key, None):
                settings["input"] = settings["input"] | {key: {"name": f"{file}:{function}"}}
        if "def own(" in network:
            given["loss"] = {"name": f"{file}:own"}
        run = make_run(packed.folder, **given | settings)
        run.check()
        train_here(run)
        return Trained(run, packed)

    return train


def test_sequences_have_a_class_at_each_position(pack: Pack, train: Train, tmp_path: Path) -> None:
    packed = pack(WORDS)
    manifest = packed.manifest
    assert (manifest.task, manifest.target_shape) == ("classes", (8,))
    assert manifest.class_names == ("0", "1", "2", "3", "4")
    last, first = train(packed, LAST), train(packed, FIRST)
    for trained in (last, first):
        assert trained.scores.test_accuracy == 1
        assert trained.history[-1].validation_accuracy == 1
    assert first.learned[records.WEIGHTS] == last.learned[records.WEIGHTS]
    assert len(last.judged.actual) == 15 * 7  # without ignored positions
    write_evaluation(last.judged, tmp_path)
    assert len((tmp_path / records.PREDICTIONS).read_text().splitlines()) == 1 + 15 * 7


@pytest.mark.parametrize("ignored", [-100, -1, 0, 255])
@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)])
def test_loss_and_accuracy_count_positions_but_those_of_ignore_index_as_plain_pytorch_does(
    ignored: int, weights: tuple[float, ...] | None
) -> None:
    torch.manual_seed(0)
    outputs, targets = torch.randn(3, 4, 6), torch.randint(1, 6, (3, 4))
    targets[0, :3], outputs[0, :3, 0] = ignored, 9.0  # class 0 is predicted there
    rows, classes = outputs.view(-1, 6), targets.view(-1)
    settings = CrossEntropy(name="cross_entropy", weight=weights, ignore_index=ignored)
    criterion = Loss(settings, "classes", CPU)
    plain = None if weights is None else torch.tensor(weights)
    expected = functional.cross_entropy(rows, classes, weight=plain, ignore_index=ignored)
    hits = (rows.argmax(1) == classes)[classes != ignored].sum()
    for layout in (outputs, outputs.movedim(2, 1)):
        assert criterion.mean(layout, targets).equal(expected)
        total, weight = criterion.sum_and_weight(layout, targets)
        assert torch.isclose(total / weight, expected)
        assert criterion.task.num_correct(layout, targets) == hits
    assert criterion.task.num_predictions(targets) == 9
    with pytest.raises(UserError, match="as many classes as positions"):
        criterion.mean(outputs.movedim(2, 1)[:, :4], targets)


def test_a_number_that_is_no_class_needs_ignore_index(pack: Pack, train: Train) -> None:
    packed = pack(WORDS.replace("-100", "-1"))
    assert (len(packed.manifest.class_names), packed.manifest.ignored_class) == (5, -1)
    with pytest.raises(UserError, match="ignore_index: -1"):
        train(packed, LAST)
    ignoring = train(packed, LAST, loss={"name": "cross_entropy", "ignore_index": -1})
    assert ignoring.scores.test_accuracy == 1
    assert len(ignoring.judged.actual) == 15 * 7
    with pytest.raises(ConfigError, match=r"-2 and -1.*ignore_index"):
        named_targets("data", np.array([[-2, -1, 0]]), None)
    with pytest.raises(ConfigError, match="target of item 1 is -100, which PyTorch ignores"):
        named_targets("data", np.array([0, -100, 2]), None)
    assert named_targets("data", np.array([1, -1]), None)[2] == ("-1", "1")


@pytest.mark.parametrize(
    ("inputs", "shape"),
    [
        ("(kind, number)", "((), (2,))"),
        ("{'number': torch.from_numpy(number), 'kind': kind}", "{'number': (2,), 'kind': ()}"),
    ],
)
def test_a_network_gets_a_tuple_as_arguments_and_a_dict_as_keywords_on_both_input_paths(
    pack: Pack, train: Train, inputs: str, shape: str
) -> None:
    packed = pack(TWO.replace("{inputs}", inputs))
    network = NET_OF_TWO.replace("{shape}", shape).replace("{arguments}", "kind, number")
    resident, loader = (
        train(packed, network, input={"name": path}, epochs=60) for path in ("resident", "loader")
    )
    assert resident.scores.metrics["r2"] > 0.9
    assert resident.learned[records.WEIGHTS] == loader.learned[records.WEIGHTS]
    images = packed.images("train")
    columns = images if isinstance(images, tuple) else (images["kind"], images["number"])
    assert [column.shape for column in columns] == [(30,), (30, 2)]
    message = r"experiments\.small\.model .* one input of one shape.*datasets\.small"
    with pytest.raises(UserError, match=message):
        train(packed, "", model={"name": "linear"})


HEADS = """
class Scenes:
    def __len__(self): return 60
    def __getitem__(self, i):
        x = torch.tensor([i % 2, i % 3 / 2, 1.0])
        return x, {"kind": i % 2, "place": torch.tensor([[x[1], -x[1]]])}
"""
NET_OF_HEADS = """
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        assert classes == 2
        self.kind, self.place = nn.Linear(3, 2), nn.Linear(3, 2)
    def forward(self, x): return {"kind": self.kind(x), "place": self.place(x).unsqueeze(1)}
def own(outputs, targets):
    kind = nn.functional.cross_entropy(outputs["kind"], targets["kind"])
    return kind + nn.functional.mse_loss(outputs["place"], targets["place"])
def right(outputs, targets):
    return (outputs["kind"].argmax(1) == targets["kind"]).float().mean()
"""


def test_a_dict_of_targets_is_judged_by_a_custom_loss_or_step_and_custom_metrics(
    pack: Pack, train: Train, custom_files: CustomFiles
) -> None:
    packed = pack(HEADS)
    assert (packed.manifest.task, packed.manifest.class_names) == ("custom", ("kind", "place"))
    without_loss = NET_OF_HEADS.replace("own(", "mine(")
    with pytest.raises(UserError, match=r"experiments\.small\.loss is missing"):
        train(packed, without_loss)
    resident, loader = (
        train(packed, NET_OF_HEADS, input={"name": path}) for path in ("resident", "loader")
    )
    assert resident.learned[records.WEIGHTS] == loader.learned[records.WEIGHTS]
    metric = Metric(name=custom_files.write("right.py", HEAD + NET_OF_HEADS) + ":right")
    judged = evaluate("small", {"cpu": resident.folder}, packed, (metric,))
    assert judged.evaluation.devices["cpu"].metrics == {"right": 1.0}
    assert resident.scores.test_loss < 0.4
    assert resident.history[-1].validation_loss < 0.4
    assert resident.scores.test_accuracy is None
    step = "def step(network, batch): return own(network(batch[0]), batch[1])\n"
    file = custom_files.write("step.py", HEAD + NET_OF_HEADS + step)
    stepped = train(packed, without_loss, step={"name": f"{file}:step"})
    assert stepped.scores.test_loss < 0.4


def test_one_hot_rows_read_in_each_epoch_are_classes(pack: Pack, train: Train) -> None:
    rows = """
class Rows:
    def __len__(self): return 60
    def __getitem__(self, i): return torch.eye(3)[i % 3], torch.eye(3)[i % 3]
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(3, 3))
"""
    data, network = rows.split("class Net")
    packed = pack(data, task="classes", decode="each_epoch")
    assert train(packed, f"class Net{network}", input={"name": "loader"}).scores.test_accuracy == 1


PACKED = """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.read, self.out = nn.GRU(5, 8, batch_first=True), nn.Linear(8, classes)
    def forward(self, words, lengths):
        words = nn.functional.one_hot(words, 5).float()
        packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        return self.out(pad_packed_sequence(self.read(packed)[0], batch_first=True)[0])
def pad(samples):
    words, targets = zip(*samples)
    lengths = torch.tensor([len(word) for word in words])
    inputs = pad_sequence(words, batch_first=True), lengths
    return inputs, pad_sequence(targets, batch_first=True, padding_value=-100)
"""


def test_a_training_survives_a_collated_batch_with_none(pack: Pack, train: Train) -> None:
    sentences = SENTENCES.replace("4 + i % 3", "9 if i % 7 == 6 else 4 + i % 3")
    packed = pack(sentences, task="classes")
    trained = train(packed, PACKED, collate="pad", input={"name": "loader"}, batch_size=25)
    assert trained.scores.test_accuracy > 0.9


SENTENCES = """
class Sentences:
    def __len__(self): return 60
    def __getitem__(self, i):
        words = (torch.arange(4 + i % 3) + i) % 5
        return words, (words + 1) % 5
"""
PAD_BOTH = """
def pad(samples):
    pad = nn.utils.rnn.pad_sequence
    words, targets = zip(*samples)
    return pad(words, batch_first=True), pad(targets, batch_first=True, padding_value=-100)
"""


def test_positions_that_collate_adds_do_not_count(pack: Pack, train: Train) -> None:
    packed = pack(SENTENCES)
    assert (packed.manifest.shape, packed.manifest.target_shape) == ((None,), (None,))
    with pytest.raises(UserError, match=r"whose shapes differ \(any,\)\. .*collate"):
        train(packed, LAST)
    trained = train(packed, LAST + PAD_BOTH, collate="pad", input={"name": "loader"})
    assert trained.scores.test_accuracy == 1
    assert trained.history[-1].validation_accuracy == 1
    targets = packed.labels("test")
    assert len(trained.judged.actual) == sum(len(target) for target in targets)


NOISE = """
class Noise:
    def __init__(self, part="train"): self.is_training = part == "train"
    def __len__(self): return 40
    def __getitem__(self, i):
        drawn = torch.rand(1, 16, 18 + i % 3) * 0.2 * self.is_training
        return ((drawn + i % 2 * 0.5) * 255).to(torch.uint8), i % 2
"""
CROPS = """
class Net(nn.Sequential):
    def __init__(self, shape, classes):
        assert shape == (1, 8, 8), shape
        super().__init__(nn.Flatten(), nn.Linear(64, classes))
def crop(image):
    top, left = torch.randint(8, (2,))
    return image[:, top : top + 8, left : left + 8] / 255
def center(image): return image[:, 4:12, 4:12] / 255
"""


def test_a_data_set_is_read_each_epoch_and_given_another_shape(pack: Pack, train: Train) -> None:
    parts = {"validation": None, "test": None, "allow_duplicates": True}
    packed = pack(NOISE, decode="each_epoch", **parts)
    with pytest.raises(UserError, match=r"each_epoch: resident samples are read once"):
        train(packed, CROPS)
    crops = {"transform": "crop", "eval_transform": "center"}
    trained = train(packed, CROPS, **crops, input={"name": "loader"})
    assert trained.scores.test_accuracy == 1
    record = records.read_record(trained.folder / records.RECORD, records.TrainingRecord)
    assert (record.image_shape, record.dtype, record.mean) == ((1, 8, 8), "float32", ())


def test_live_items_follow_the_epoch_and_seed(pack: Pack, make_experiment: MakeExperiment) -> None:
    packed = pack(NOISE.replace("18 + i % 3", "18"), decode="each_epoch", allow_duplicates=True)

    def brightness(epoch: int, *, seed: int = 0, workers: int = 0) -> tuple[float, ...]:
        settings = make_experiment(input={"name": "loader", "workers": workers}, seed=seed)
        batches = make_batches(settings, part_of(packed, "train"), CPU)
        before = torch.get_rng_state()
        images = [image for batch, _ in batches.train_batches(epoch) for image in batch]
        assert torch.get_rng_state().equal(before)  # the network's generator
        return tuple(sorted(float(image.sum()) for image in images))

    assert brightness(0) == brightness(0) == brightness(0, workers=2)
    assert len({brightness(0), brightness(1), brightness(0, seed=1)}) == 3
