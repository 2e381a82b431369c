"""Other shapes of data: a class at each position, and several inputs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import CustomFiles, MakeExperiment
from torch.nn import functional
from training_stage import TrainingStage

from photofinish.config.loss_settings import CrossEntropy
from photofinish.config.metrics import Metric
from photofinish.data.packed import PackedSplit
from photofinish.data.samples import named_targets
from photofinish.errors import ConfigError, UserError
from photofinish.evaluation.evaluate import evaluate, write_evaluation
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results import records
from photofinish.training.batches import part_of
from photofinish.training.input_paths import make_batches
from photofinish.training.losses import Loss
from photofinish.training.torch_device import CPU

HEAD = "import numpy as np, torch\nfrom torch import nn\n"
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
    """A finished stage: what it learned, and the scores of its network."""

    def __init__(self, stage: TrainingStage, packed: PackedSplit) -> None:
        self.folder, self.learned = stage.out / records.MODEL, stage.learned()
        self.judged = evaluate("small", {"cpu": self.folder}, packed)
        self.scores = self.judged.evaluation.devices["cpu"]

    @property
    def history(self) -> list[Any]:
        return records.read_history(self.folder)


Train = Callable[..., Trained]


@pytest.fixture
def pack(custom_files: CustomFiles) -> Callable[..., PackedSplit]:
    def run(source: str, **settings: Any) -> PackedSplit:
        (kind,) = (line for line in source.splitlines() if line.startswith("class"))
        return custom_files.pack("small", kind[6:-1], HEAD + source, **settings)

    return run


@pytest.fixture
def train(custom_files: CustomFiles, make_experiment: MakeExperiment, cpu_host: CpuTarget) -> Train:
    """Train a network of this source as its stage does, and evaluate it."""
    numbers = count()

    def run(packed: PackedSplit, network: str, **settings: Any) -> Trained:
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
        experiment = make_experiment(**given | settings)
        stage = TrainingStage.prepare(custom_files.folder, experiment, cpu_host, packed.folder)
        with stage.fork() as process:
            output, _ = process.communicate()
        if process.returncode:
            raise UserError(output)
        return Trained(stage, packed)

    return run


def test_a_network_of_sequences_is_trained_on_a_class_at_each_position(
    pack: Callable[..., PackedSplit], train: Train, tmp_path: Path
) -> None:
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


def test_a_number_that_is_no_class_needs_ignore_index(
    pack: Callable[..., PackedSplit], train: Train
) -> None:
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
    pack: Callable[..., PackedSplit], train: Train, inputs: str, shape: str
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
    pack: Callable[..., PackedSplit], train: Train, custom_files: CustomFiles
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


def test_one_hot_rows_read_in_each_epoch_are_classes(
    pack: Callable[..., PackedSplit], train: Train
) -> None:
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


def test_a_training_survives_that_a_part_of_a_collated_batch_is_none(
    pack: Callable[..., PackedSplit], train: Train
) -> None:
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


def test_positions_that_collate_adds_do_not_count(
    pack: Callable[..., PackedSplit], train: Train
) -> None:
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


def test_a_data_set_is_read_in_each_epoch_and_transformed_to_another_shape(
    pack: Callable[..., PackedSplit], train: Train
) -> None:
    parts = {"validation": None, "test": None, "allow_duplicates": True}
    packed = pack(NOISE, decode="each_epoch", **parts)
    with pytest.raises(UserError, match=r"each_epoch: resident samples are read once"):
        train(packed, CROPS)
    crops = {"transform": "crop", "eval_transform": "center"}
    trained = train(packed, CROPS, **crops, input={"name": "loader"})
    assert trained.scores.test_accuracy == 1
    record = records.read_record(trained.folder / records.RECORD, records.TrainingRecord)
    assert (record.image_shape, record.dtype, record.mean) == ((1, 8, 8), "float32", ())


def test_items_read_live_differ_in_each_epoch_and_repeat_with_the_seed(
    pack: Callable[..., PackedSplit], make_experiment: MakeExperiment
) -> None:
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
