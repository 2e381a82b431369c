"""Every input path gives bit-identical batches, by seed and epoch. Workers end with a pass."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import torch
from conftest import CustomFiles, MakeExperiment
from training_process import FORK_SERVER
from training_stage import wait_for

from photofinish.config.experiment import Augmentation, CustomTransform, Experiment, LoaderInput
from photofinish.data import PartName
from photofinish.errors import EXIT_FAILED, UserError
from photofinish.stage.process import run_stage
from photofinish.training.batches import Batch, Batches, BatchPlan, Normaliser, Part, seed_epoch
from photofinish.training.failures import failures_explained
from photofinish.training.input_paths import make_batches
from photofinish.training.loading import LoadedSamples
from photofinish.training.torch_device import CPU
from photofinish.training.world import World

MakeBatches = Callable[..., Batches]
COUNT, SHAPE = 22, (3, 6, 5)
IMAGES = np.random.default_rng(0).integers(1, 256, size=(COUNT, *SHAPE), dtype=np.uint8)
"""Noise without black pixels, which a crop's border has."""
NORMALISE = Normaliser((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
AUGMENTED = {"flip": 0.5, "crop_padding": 2}
RESIDENT, LOADER = {"name": "resident"}, {"name": "loader"}
AHEAD = LOADER | {"workers": 2, "prefetch_factor": 5, "non_blocking": True, "pin_memory": True}
PERSISTENT = LOADER | {"workers": 2, "persistent_workers": True, "prefetch_factor": 1}


@pytest.fixture
def numbered(make_experiment: MakeExperiment) -> MakeBatches:
    """Make batches of images labelled with their rows: `numbered("validation", batch_size=5)`."""

    def make(name: PartName = "train", *process: int, **settings: Any) -> Batches:
        part = Part(name, IMAGES, np.arange(COUNT), NORMALISE)
        return make_batches(make_experiment(**settings), part, CPU, *process)

    return make


@pytest.fixture(params=[RESIDENT, LOADER], ids=["resident", "loader"])
def on_each_path(request: pytest.FixtureRequest, numbered: MakeBatches) -> MakeBatches:
    return partial(numbered, input=request.param)


def numbers(batches: Batches, epoch: int) -> list[int]:
    return [number for _, labels in batches.train_batches(epoch) for number in labels.tolist()]


def three_passes(batches: Batches) -> list[Batch]:
    return [*batches.train_batches(3), *batches.eval_batches(), *batches.train_batches(4)]


def by_label(batches: Batches, epoch: int) -> dict[int, torch.Tensor]:
    return {
        int(label): image
        for images, labels in batches.train_batches(epoch)
        for image, label in zip(images, labels, strict=True)
    }


def assert_same_batches(some: list[Batch], others: list[Batch]) -> None:
    for (images, labels), (other_images, other_labels) in zip(some, others, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)
        assert images.dtype == other_images.dtype == torch.float32


@pytest.mark.parametrize(
    ("source", "augmentation"),
    [(LOADER, {}), (LOADER, AUGMENTED), (AHEAD, AUGMENTED), (PERSISTENT, AUGMENTED)],
)
def test_the_loader_gives_the_resident_batches_bit_for_bit_in_the_same_order(
    numbered: MakeBatches, source: dict[str, Any], augmentation: dict[str, Any]
) -> None:
    resident, loaded = (
        three_passes(numbered(input=each, batch_size=5, augmentation=augmentation))
        for each in (RESIDENT, source)
    )
    assert len(resident) == 15
    assert_same_batches(resident, loaded)


def worked_out_slowly(row: int, draws: torch.Tensor, padding: int) -> npt.NDArray[np.uint8]:
    """Augment an image pixel by pixel."""
    channels, height, width = SHAPE
    result = np.zeros(SHAPE, dtype=np.uint8)
    top, left, mirrored = draws[row].tolist()
    for channel, y, x in np.ndindex(channels, height, width):
        from_y, from_x = y + top - padding, x + left - padding
        if 0 <= from_y < height and 0 <= from_x < width:
            to_x = width - 1 - x if mirrored else x
            result[channel, y, to_x] = IMAGES[row][channel, from_y, from_x]
    return result


@pytest.mark.parametrize(("flip", "padding"), [(0.5, 2), (0.5, 0), (1.0, 0), (0.0, 2), (0.0, 9)])
def test_pixels_are_augmented_as_by_hand(numbered: MakeBatches, flip: float, padding: int) -> None:
    augmentation = Augmentation(flip=flip, crop_padding=padding)
    draws = BatchPlan(COUNT, 1, seed=0, augmentation=augmentation).draws(3, torch.arange(COUNT))
    assert draws is not None
    for row, image in by_label(numbered(augmentation=augmentation, batch_size=5), 3).items():
        expected = NORMALISE(torch.from_numpy(worked_out_slowly(row, draws, padding)))
        assert torch.equal(image, expected)
        assert image.is_contiguous()


def test_a_sample_drawn_again_is_augmented_again_on_each_path(numbered: MakeBatches) -> None:
    settings = {"augmentation": AUGMENTED, "sampler": {"name": "balanced"}, "batch_size": 5}
    resident, loaded = (
        [*numbered(input=source, **settings).train_batches(3)] for source in (RESIDENT, LOADER)
    )
    assert_same_batches(resident, loaded)
    labels = {int(label) for _, labels in resident for label in labels}
    images = {image.numpy().tobytes() for images, _ in resident for image in images}
    assert len(labels) < len(images)


def test_validation_images_and_images_in_order_are_not_augmented(on_each_path: MakeBatches) -> None:
    settings = {"augmentation": {"flip": 1.0, "crop_padding": 3}, "batch_size": 5}
    expected = NORMALISE(torch.from_numpy(IMAGES))
    for name in ("train", "validation"):
        batches = on_each_path(name, **settings).eval_batches()
        assert torch.equal(torch.cat([images for images, _ in batches]), expected)
    for row, image in by_label(on_each_path("validation", **settings), 0).items():
        assert torch.equal(image, expected[row])


@pytest.mark.parametrize("source", [RESIDENT, LOADER, PERSISTENT])
def test_a_pass_left_halfway_leaves_no_trace(numbered: MakeBatches, source: dict[str, Any]) -> None:
    settings = {"input": source, "batch_size": 2, "augmentation": AUGMENTED}
    fresh, used = (numbered(**settings) for _ in range(2))
    left_halfway = used.train_batches(0)
    next(left_halfway)
    next(used.eval_batches())
    assert_same_batches(list(fresh.train_batches(1)), list(used.train_batches(1)))


def test_the_shares_of_processes_make_up_each_batch(on_each_path: MakeBatches) -> None:
    # of 22 images: the last batch has but one
    whole = [labels.tolist() for _, labels in on_each_path(batch_size=7).train_batches(2)]
    first, second = (
        list(on_each_path("train", rank, 2, batch_size=7).train_batches(2)) for rank in (0, 1)
    )
    assert [labels.tolist() for _, labels in first] == [batch[::2] for batch in whole]
    assert [labels.tolist() for _, labels in second] == [batch[1::2] for batch in whole]
    assert second[-1][0].shape == (0, *SHAPE)
    assert second[-1][0].dtype == torch.float32


def test_validation_has_a_batch_size_of_its_own_if_asked(numbered: MakeBatches) -> None:
    own = {"batch_size": 5, "validation_batch_size": 20}
    sizes = [len(labels) for _, labels in numbered("validation", **own).eval_batches()]
    assert sizes == [20, 2]
    assert numbered(**own).batch_size == 5


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_items_that_are_no_images_keep_their_type_and_whole_numbers_their_batch_size(
    make_experiment: MakeExperiment, dtype: type[Any]
) -> None:
    items = np.arange(40, dtype=dtype).reshape(10, 4)
    part = Part("validation", items, np.arange(10), Normaliser((), ()))
    on_cpu, on_accelerator = (
        make_batches(make_experiment(batch_size=5), part, device)
        for device in (CPU, torch.device("meta"))
    )
    sizes = on_cpu.batch_size, on_accelerator.batch_size
    assert sizes == ((5, 5) if dtype is np.int64 else (4 << 20 >> 4, 64 << 20 >> 4))
    assert torch.cat([items for items, _ in on_cpu.eval_batches()]).numpy().dtype == dtype


def test_the_order_depends_on_the_seed_and_epoch_alone(numbered: MakeBatches) -> None:
    order = numbers(numbered(), epoch=4)
    torch.manual_seed(1)
    batches = numbered(batch_size=7)
    numbers(batches, epoch=0)
    assert numbers(batches, epoch=4) == order
    assert numbers(batches, epoch=5) != order
    assert numbers(numbered(seed=1), epoch=4) != order


def test_a_network_draws_by_seed_epoch_and_rank_what_it_drew_in_earlier_versions() -> None:
    drawn = []
    for place in ((0, 0), (0, 1), (3, 0), (0, 0, 1)):
        seed_epoch(*place)
        drawn.append(torch.randint(10**6, (1,)).item())
    assert drawn == [369066, 877346, 596075, 351075]


def test_making_batches_draws_from_no_stream_of_the_process(on_each_path: MakeBatches) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    three_passes(on_each_path(augmentation=AUGMENTED))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]


def test_images_are_normalised_by_channel_floats_by_column_and_other_items_not() -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    expected = (IMAGES / 255.0 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert NORMALISE(torch.from_numpy(IMAGES)).numpy() == pytest.approx(expected, abs=1e-6)
    floats, numbers = torch.tensor([[6.0, 9.0]]), torch.tensor([[6, 9]])
    assert Normaliser((2.0, 3.0), (4.0, 2.0), dimensions=1)(floats).tolist() == [[1.0, 3.0]]
    assert floats.tolist() == [[6.0, 9.0]]
    assert Normaliser((), ())(numbers) is numbers


HEAD = "import random, numpy as np, torch\n"
NOISE = (
    f"{HEAD}def noise(item, strength=50):\n"
    "    drawn = torch.rand(1) + np.random.rand() + random.random()\n"
    "    return item + (strength * drawn).to(torch.uint8)\n"
)
SHADES = np.arange(12, dtype=np.uint8).repeat(4).reshape(12, 1, 2, 2)

Load = Callable[..., Batches]


@pytest.fixture
def load(custom_files: CustomFiles, make_experiment: MakeExperiment) -> Load:
    """Make batches of twelve images, each changed by `noise` in a file of this source."""

    def batches(
        source: str,
        part: PartName = "train",
        workers: int = 0,
        seed: int = 0,
        key: str = "transform",
        **given: Any,
    ) -> Batches:
        sampler, arguments = given.pop("sampler", None), given
        function = {"name": f"{custom_files.write('t.py', source)}:noise", **arguments}
        loader = {"name": "loader", "workers": workers, key: function}
        experiment = make_experiment(input=loader, batch_size=5, seed=seed, sampler=sampler)
        packed = Part(part, SHADES, np.arange(12), Normaliser((0.0,), (1 / 255,)))
        return make_batches(experiment, packed, CPU)

    return batches


def changes(batches: Batches, epoch: int) -> list[int]:
    """Return the increase of each image's brightness."""
    shades = {
        int(row): round(float(image[0, 0, 0]))
        for images, rows in batches.train_batches(epoch)
        for image, row in zip(images, rows, strict=True)
    }
    return [shades[row] - row for row in range(12)]


def test_a_sample_changes_each_epoch_and_equally_for_any_number_of_workers(load: Load) -> None:
    alone, beside = load(NOISE), load(NOISE, workers=2)
    first, second = changes(alone, 0), changes(alone, 1)
    assert len(set(first)) > 6
    assert first != second
    assert changes(load(NOISE, seed=1), 0) != first
    assert changes(alone, 0) == first
    assert [changes(beside, epoch) for epoch in (1, 0)] == [second, first]
    again = [*load(NOISE, sampler={"name": "balanced"}).train_batches(0)]
    rows = torch.cat([rows for _, rows in again]).tolist()
    shades = torch.cat([images[:, 0, 0, 0] for images, _ in again]).tolist()
    assert len(set(rows)) < len(set(zip(rows, shades, strict=True)))  # of rows drawn again, too


COLLATE = """
from torch.utils.data import default_collate
def noise(samples):
    images, rows = default_collate(samples)
    drawn = torch.rand(1) + np.random.rand() + random.random()
    return images + drawn, rows
"""


def test_collate_draws_by_seed_epoch_and_batch_whoever_collates(load: Load) -> None:
    def drawn(epoch: int, workers: int = 0, seed: int = 0) -> list[float]:
        batches = load(HEAD + COLLATE, workers=workers, seed=seed, key="collate")
        return [
            round(float(images[0, 0, 0, 0] - rows[0]), 4)
            for images, rows in batches.train_batches(epoch)
        ]

    state = torch.get_rng_state(), random.getstate()
    first, second = drawn(0), drawn(1)
    assert (torch.get_rng_state().tolist(), random.getstate()) == (state[0].tolist(), state[1])
    assert len({*first, *second, *drawn(0, seed=1)}) == 9
    assert [drawn(epoch, workers=2) for epoch in (1, 0)] == [second, first]


BY_A_CLASS = (
    "class noise:\n    def __init__(self, by): self.by = by\n"
    "    def __call__(self, item): return item + self.by\n"
)


@pytest.mark.parametrize(
    ("source", "arguments", "change"), [(NOISE, {"strength": 0}, 0), (BY_A_CLASS, {"by": 3}, 3)]
)
def test_arguments_reach_a_function_or_a_class(
    load: Load, source: str, arguments: dict[str, int], change: int
) -> None:
    assert set(changes(load(source, **arguments), 0)) == {change}


def test_what_it_draws_is_what_earlier_versions_drew_and_nothing_in_evaluation(load: Load) -> None:
    source = f"{HEAD}def noise(item): return item + random.randrange(100)\n"
    assert changes(load(source, seed=3), 1)[:6] == [8, 15, 75, 33, 6, 72]
    for part in ("train", "validation"):
        batches = load(NOISE, part=part).eval_batches()
        shades = torch.cat([images[:, 0, 0, 0] for images, _ in batches])
        assert shades.round().tolist() == list(range(12))


FAULTS = {
    "raises": (
        "1 / 0",
        r"(?s)^transform \./t\.py:noise fails on training item \d+:\n"
        r"  File .*t\.py.*ZeroDivisionError",
    ),
    "another shape": (
        "item[:, :1]",
        r"uint8 of shape \(1, 1, 2\) for torch.uint8 of shape \(1, 2, 2\)",
    ),
    "another type": ("item / 255", r"float32 of shape"),
}


@pytest.mark.parametrize(("result", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_names_the_sample(load: Load, result: str, message: str) -> None:
    workers = int(result == "1 / 0")
    with pytest.raises(UserError, match=message):
        changes(load(f"{HEAD}def noise(item): return {result}\n", workers=workers), 0)
    gc.collect()


def test_training_and_validation_are_both_normalised_or_neither(custom_files: CustomFiles) -> None:
    file = custom_files.write("t.py", "def scaled(image):\n    return image / 255\n")
    scaled = CustomTransform(name=f"{file}:scaled")
    grey = CustomTransform(name="Grayscale")
    part = Part("test", SHADES, np.arange(12), Normaliser((0.0,), (1 / 255,)))
    for training, other, alone in ((None, scaled, "training"), (scaled, grey, "validation")):
        settings = LoaderInput(name="loader", transform=training, eval_transform=other)
        with pytest.raises(UserError, match=f"would normalise {alone} samples alone"):
            LoadedSamples(part, settings, 0).kind()


WORKERS = 2
Loaded = Callable[..., Batches]


def batches_of(experiment: Any, normalise: Normaliser) -> Batches:
    images = np.random.default_rng(0).integers(0, 256, size=(64, 1, 4, 4), dtype=np.uint8)
    return make_batches(experiment, Part("train", images, np.arange(64), normalise), CPU)


def worker_pids() -> set[int]:
    return {process.pid for process in multiprocessing.active_children() if process.pid}


@pytest.fixture
def loaded(make_experiment: MakeExperiment) -> Iterator[Loaded]:
    assert not worker_pids()
    yield lambda **settings: batches_of(
        make_experiment(input={"name": "loader", "workers": WORKERS} | settings, batch_size=4),
        Normaliser((0.5,), (0.2,)),
    )
    assert not worker_pids()


def pids_of_an_epoch(batches: Batches, epoch: int) -> set[int]:
    seen = batches.train_batches(epoch)
    next(seen)
    pids = worker_pids()
    assert len(list(seen)) == 15
    return pids


def test_persistent_workers_live_on_also_when_a_pass_is_left_halfway(loaded: Loaded) -> None:
    batches = loaded(persistent_workers=True)
    next(batches.train_batches(0))
    halfway, first, second = worker_pids(), *(pids_of_an_epoch(batches, epoch) for epoch in (0, 1))
    assert len(halfway) == WORKERS
    assert halfway == first == second == worker_pids()


def test_workers_end_when_a_pass_is_left_halfway(loaded: Loaded) -> None:
    batches = loaded()
    for step, _ in enumerate(batches.train_batches(0)):
        if step == 2:
            break
    assert not worker_pids()


@pytest.mark.parametrize(
    ("fault", "message"),
    [("kill persistent", r"DataLoader worker \(pid"), ("full", "No space left")],
)
def test_a_dead_worker_ends_the_run_in_one_line(fault: str, message: str, tmp_path: Path) -> None:
    process = FORK_SERVER.Process(
        target=train_until_the_fault, args=(fault, tmp_path / "output.txt")
    )
    process.start()
    process.join()
    output = (tmp_path / "output.txt").read_text(encoding="utf-8")
    assert process.exitcode == EXIT_FAILED
    assert re.fullmatch(rf"error: .*{message}.*/dev/shm.*input\.workers: 0.*\n", output), output


@pytest.mark.slow
def test_workers_end_soon_after_the_training_process_was_killed(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    parent = FORK_SERVER.Process(
        target=train_until_the_fault, args=("kill-parent persistent", output)
    )
    parent.start()
    parent.join()
    pids = output.read_text(encoding="utf-8").split()
    assert parent.exitcode == -signal.SIGKILL
    assert len(pids) == WORKERS
    wait_for(lambda: not any(is_running(int(pid)) for pid in pids))


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_states_of_generators_are_kept_once_a_batch(
    make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(row: int) -> tuple[Any, Any]:
        return np.random.rand(2), np.int64(row)

    kept = Mock(wraps=random.getstate)
    monkeypatch.setattr(random, "getstate", kept)
    part = Part("train", None, np.arange(8), Normaliser((), ()), read)
    batches = make_batches(make_experiment(input={"name": "loader"}, batch_size=4), part, CPU)
    before = np.random.get_state()[1]
    assert len(list(batches.train_batches(0))) == kept.call_count == 2
    assert np.array_equal(np.random.get_state()[1], before)


class _FullSharedMemory(Normaliser):
    """Fails in the worker as PyTorch does where it can't place a batch."""

    def __call__(self, _image: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_1>: "
            "No space left on device (28)"
        )


def train_until_the_fault(fault: str, output: Path) -> None:
    """Train in a separate process."""
    multiprocessing.set_start_method(
        "fork", force=True
    )  # as a training's, whose workers are its own children
    with output.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    run_stage(lambda: train(fault))


def train(fault: str) -> None:
    source = LoaderInput(name="loader", workers=WORKERS, persistent_workers="persistent" in fault)
    experiment = SimpleNamespace(
        input=source,
        batch_size=4,
        validation_batch_size=None,
        seed=0,
        augmentation=Augmentation(),
        sampler=None,
    )
    normalise = _FullSharedMemory if fault == "full" else Normaliser
    with failures_explained("small", cast(Experiment, None), World(CPU)):
        for step, _ in enumerate(
            batches_of(experiment, normalise((0.5,), (0.2,))).train_batches(0)
        ):
            if step == 1 and "kill-parent" in fault:
                print(*worker_pids(), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 1 and "kill" in fault:
                os.kill(min(worker_pids()), signal.SIGKILL)
