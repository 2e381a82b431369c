"""Training on an accelerator: the CPU's start and batches, repeatable bits, a clock that waits.

Needs torch, NumPy and pytest only, so that it also runs on a bare GPU machine:
`PYTHONPATH=src pytest --noconftest -c /dev/null tests/test_gpu.py`.
"""

from __future__ import annotations

import gc
import io
import os
import time
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from photofinish.models.registry import build_model
from photofinish.results import EpochMetrics
from photofinish.training import graphs
from photofinish.training.batches import Batches, Normaliser, Part
from photofinish.training.graphs import CudaRecorder, recorder_of
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU, Clock, accelerator, autocast, configure_torch
from photofinish.training.trainer import Trainer
from photofinish.training.world import DataParallelWorld, DistributedWorld, World

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator here"),
]

# Read once, at the first matrix product.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
SHAPE, CLASSES, IMAGES, VALIDATION_IMAGES = (1, 16, 16), 4, 500, 100
CNN = SimpleNamespace(
    name="cnn", channels=(8, 16), hidden=(32,), kernel_size=3, padding=1, init="default",
    compile=False,
)  # fmt: skip
LOADER = SimpleNamespace(
    name="loader", workers=2, pin_memory=True, non_blocking=True, prefetch_factor=None,
    persistent_workers=True, transform=None, eval_transform=None, collate=None,
)  # fmt: skip
NOT_AUGMENTED, AUGMENTED = (
    SimpleNamespace(flip=0.0, crop_padding=0),
    SimpleNamespace(flip=0.5, crop_padding=2),
)
PRECISIONS = ["fp32", "tf32", "bf16", "fp16"]
SGD = {
    "name": "sgd", "lr": 0.02, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0,
    "nesterov": False,
}  # fmt: skip
ADAM = {"name": "adam", "lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
ONE_CYCLE = {"name": "one_cycle", "max_lr": 0.1, "pct_start": 0.3}


@pytest.fixture
def device() -> torch.device:
    return accelerator("auto")


def optimizer_of(name: str, **arguments: Any) -> SimpleNamespace:
    return SimpleNamespace(name=name, weight_decay_exclude=None, arguments=arguments)


def schedule_of(name: str, **arguments: Any) -> SimpleNamespace:
    return SimpleNamespace(name=name, every=None, arguments=arguments)


def experiment(**changes: Any) -> Any:
    """Return the settings that the trainer reads, without pydantic."""
    settings: dict[str, Any] = {
        "model": CNN, "optimizer": optimizer_of(**SGD), "loss": None,
        "schedule": schedule_of(name="constant"), "input": SimpleNamespace(name="resident"),
        "augmentation": NOT_AUGMENTED, "deterministic": True, "cuda_graphs": "auto",
        "precision": "fp32", "epochs": 4, "batch_size": 32, "validation_batch_size": None,
        "seed": 0, "warmup_steps": 0, "clip_grad_norm": None, "accumulate": 1, "ema": None,
        "early_stopping": None, "sampler": None, "batch_transform": None, "step": None,
        "validation_step": None,
    }  # fmt: skip
    return SimpleNamespace(**(settings | changes))


def batches(
    settings: Any, device: torch.device, name: Literal["train", "validation"], *process: int
) -> Batches:
    """Noise with one bright row, whose place is the class."""
    count, seed = (IMAGES, 0) if name == "train" else (VALIDATION_IMAGES, 1)
    random = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int64) % CLASSES
    images = random.integers(0, 160, size=(count, *SHAPE), dtype=np.uint8)
    images[np.arange(count), 0, labels * 3] = 255
    part = Part(name, images, labels, Normaliser((0.3,), (0.2,)))
    return make_batches(settings, part, device, *process)


def trainer(
    settings: Any, device: torch.device, team: World | None = None, network: nn.Module | None = None
) -> Trainer:
    configure_torch(device, settings.precision, threads=1)
    team = team or World(device)
    network = network or build_model(CNN, SHAPE, CLASSES, settings.seed)  # type: ignore[arg-type]  # stands for a CnnModel
    training = batches(settings, device, "train", team.rank, team.size)
    validation = batches(settings, device, "validation", team.rank, team.size)
    return Trainer(settings, network, training, validation, device, team)


def run(
    settings: Any, device: torch.device, team: World | None = None, network: nn.Module | None = None
) -> Trainer:
    trained = trainer(settings, device, team, network)
    trained.prepare()
    list(trained.epochs())
    return trained


def weights(network: nn.Module) -> list[torch.Tensor]:
    return [tensor.cpu() for tensor in network.state_dict().values()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


def losses(metrics: list[EpochMetrics]) -> list[float]:
    return [loss for each in metrics for loss in (each.training_loss, each.validation_loss)]


def test_it_starts_from_the_same_weights_as_on_the_cpu(device: torch.device) -> None:
    on_cpu, there = trainer(experiment(), CPU), trainer(experiment(), device)
    assert next(there.network.parameters()).device.type == device.type
    assert same(weights(on_cpu.network), weights(there.network))


@pytest.mark.parametrize(
    "augmentation", [NOT_AUGMENTED, AUGMENTED], ids=["as they are", "augmented"]
)
@pytest.mark.parametrize(
    "source", [SimpleNamespace(name="resident"), LOADER], ids=["resident", "loader"]
)
def test_it_sees_the_same_batches_in_the_same_order_as_on_the_cpu(
    device: torch.device, source: Any, augmentation: Any
) -> None:
    settings = experiment(input=source, augmentation=augmentation)
    # It refuses operators that do not repeat bit for bit.
    configure_torch(device, settings.precision, threads=1)
    on_cpu, there = (
        list(batches(settings, place, "train").train_batches(3)) for place in (CPU, device)
    )
    for batch, batch_there in zip(on_cpu, there, strict=True):
        assert {tensor.device.type for tensor in batch_there} == {device.type}
        assert same(list(batch), [tensor.cpu() for tensor in batch_there])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_training_again_gives_the_same_bits(device: torch.device, precision: str) -> None:
    first, again = (run(experiment(precision=precision), device) for _ in range(2))
    assert first.progress.metrics == again.progress.metrics
    assert same(weights(first.network), weights(again.network))


def captured(device: torch.device, make: Any = lambda: None, **settings: Any) -> Trainer:
    """Return a captured training, after comparing it with an eager one."""
    if recorder_of(device) is None:
        pytest.skip("PyTorch records no steps here")
    eager, trained = (
        run(experiment(cuda_graphs=kind, **settings), device, network=make())
        for kind in ("off", "auto")
    )
    assert trained.steps.kind == "graph", trained.steps.why
    assert trained.progress.metrics == eager.progress.metrics
    assert same(weights(trained.network), weights(eager.network))
    assert same(weights(trained.result), weights(eager.result))
    return trained


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"augmentation": AUGMENTED}, {"input": LOADER}],
    ids=["resident", "resident, augmented", "loader"],
)
def test_recorded_steps_give_the_same_bits_as_steps_one_by_one(
    device: torch.device, precision: str, settings: dict[str, Any]
) -> None:
    captured(device, precision=precision, **settings)


@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        (SGD | {"momentum": 0.0}, ONE_CYCLE),
        (SGD | {"nesterov": True}, ONE_CYCLE),
        (ADAM, {"name": "constant"}),
        (ADAM | {"name": "adamw"}, ONE_CYCLE),
    ],
    ids=["sgd", "nesterov", "adam", "adamw"],
)
def test_they_do_so_under_every_optimizer(
    device: torch.device, optimizer: dict[str, Any], schedule: dict[str, Any]
) -> None:
    captured(device, optimizer=optimizer_of(**optimizer), schedule=schedule_of(**schedule))


class WithState(nn.Sequential):
    """Network that draws random numbers and has running means."""

    def __init__(self, *, reads_back: bool = False) -> None:
        torch.manual_seed(0)
        super().__init__(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
            *(nn.Dropout(0.5), nn.Linear(8 * 16 * 16, CLASSES)),
        )
        self.reads_back = reads_back

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = super().forward(images)
        if self.reads_back and not self.training:
            assert outputs.isfinite().all()
        return outputs


@pytest.mark.parametrize("at_once", [15, 2], ids=["a smaller batch", "a batch and a smaller one"])
@pytest.mark.parametrize(
    "settings",
    [
        {"ema": 0.9},
        {"precision": "bf16", "optimizer": optimizer_of(**ADAM)},
        {"precision": "fp16", "accumulate": 2, "clip_grad_norm": 0.5},
    ],
    ids=["ema", "bf16", "fp16, accumulate"],
)
def test_a_captured_epoch_end_and_validation_have_the_same_bits(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, settings: Any, at_once: int
) -> None:
    monkeypatch.setattr(graphs, "MOST_BYTES", at_once * 32 * 4 * 16 * 16)
    settings = {"schedule": schedule_of(**ONE_CYCLE), **settings}
    trained = captured(device, WithState, validation_batch_size=32, **settings)
    assert trained.steps.at_once == at_once
    assert trained.validator.is_captured, trained.steps.why
    # A further training starts with the graphs of the first in memory.
    again = run(experiment(validation_batch_size=32, **settings), device, network=WithState())
    assert again.progress.metrics == trained.progress.metrics


def test_steps_draw_the_same_numbers_after_a_validation_that_cant_be_captured(
    device: torch.device,
) -> None:
    trained = captured(device, lambda: WithState(reads_back=True))
    assert not trained.validator.is_captured
    assert "validation is launched one by one" in trained.steps.why


def test_the_graphs_of_a_training_share_memory(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type != "cuda":
        pytest.skip("PyTorch records no steps here")

    def reserved_bytes() -> int:
        gc.collect()
        torch.cuda.empty_cache()
        before_bytes = torch.cuda.memory_reserved(device)
        wide = nn.Sequential(
            *(nn.Conv2d(1, 512, 3, padding=1), nn.ReLU(), nn.Flatten()),
            nn.Linear(512 * 256, CLASSES),
        )
        kept = run(experiment(epochs=1), device, network=wide)
        assert kept.validator.is_captured, kept.steps.why
        gc.collect()
        torch.cuda.empty_cache()  # which leaves the memory of graphs
        return torch.cuda.memory_reserved(device) - before_bytes

    reserved_bytes()  # with the libraries' workspaces, which stay
    shared_bytes = reserved_bytes()
    monkeypatch.setattr(CudaRecorder, "new_pool", lambda _recorder: None)
    separate_bytes = reserved_bytes()
    print(f"reserved: {shared_bytes >> 20} MiB shared, {separate_bytes >> 20} MiB separate")
    assert shared_bytes < separate_bytes


def test_a_recording_that_fails_leaves_the_gpu_as_it_was(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("PyTorch records no steps here")
    ones = torch.ones(1000, device=device)

    def draw() -> torch.Tensor:
        torch.manual_seed(0)
        return nn.functional.dropout(ones)

    stream, drawn = torch.cuda.current_stream(), draw()
    with pytest.raises(RuntimeError):
        CudaRecorder(device).record(lambda: nn.functional.dropout(ones) * ones.sum().item())
    assert torch.cuda.current_stream() == stream
    assert torch.equal(draw(), drawn)
    recorded = CudaRecorder(device).record(lambda: nn.functional.dropout(ones))
    torch.manual_seed(0)
    recorded.replay()
    assert torch.equal(recorded.output, drawn)


@pytest.mark.parametrize("draws", [False, True], ids=["cnn", "it draws"])
def test_a_resumed_run_ends_with_the_same_bits(device: torch.device, draws: bool) -> None:
    settings = {"optimizer": optimizer_of(**ADAM), "ema": 0.9} if draws else {}
    make: Any = WithState if draws else lambda: None
    resumed, whole, half = (
        trainer(experiment(epochs=epochs, **settings), device, network=make())
        for epochs in (4, 4, 2)
    )
    for trained in (whole, half):
        trained.prepare()
        list(trained.epochs())
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    state = torch.load(file, map_location="cpu", weights_only=True)
    resumed.load_state_dict(state)
    resumed.prepare()
    if draws:
        resumed.load_state_dict(state)  # also into captured steps
    if recorder_of(device):
        assert resumed.steps.kind == "graph", resumed.steps.why
    list(resumed.epochs())
    assert resumed.progress.metrics == whole.progress.metrics
    assert same(weights(resumed.result), weights(whole.result))


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 0.01), ("tf32", 0.05), ("bf16", 0.15), ("fp16", 0.05)]
)
def test_the_losses_follow_those_of_the_cpu(
    device: torch.device, precision: str, tolerance: float
) -> None:
    on_cpu, there = run(experiment(), CPU), run(experiment(precision=precision), device)
    assert on_cpu.progress.metrics[-1].validation_accuracy > 0.9
    assert losses(there.progress.metrics) == pytest.approx(
        losses(on_cpu.progress.metrics), rel=tolerance, abs=tolerance
    )


def test_the_clock_waits_until_the_device_has_finished(device: torch.device) -> None:
    matrix = torch.rand(2048, 2048, device=device)
    clock = Clock(device)
    clock.now_seconds()
    for _ in range(50):
        matrix = torch.nn.functional.normalize(matrix @ matrix)
    clock.now_seconds()
    started_seconds = time.perf_counter()
    torch.accelerator.synchronize()
    nothing_left_seconds = time.perf_counter() - started_seconds
    started_seconds = clock.now_seconds()
    for _ in range(50):
        matrix = torch.nn.functional.normalize(matrix @ matrix)
    assert clock.now_seconds() - started_seconds > nothing_left_seconds


def test_tf32_is_used_only_where_it_is_asked_for(device: torch.device) -> None:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        pytest.skip("this accelerator has no TF32")
    random = torch.Generator().manual_seed(0)
    one, other = (torch.rand(512, 512, generator=random) for _ in range(2))
    exact = one.double() @ other.double()
    errors = {}
    for precision in ("fp32", "tf32"):
        configure_torch(device, precision, threads=1)
        with autocast(device, precision):
            product = (one.to(device) @ other.to(device)).cpu().double()
        errors[precision] = (product - exact).abs().max().item()
    assert errors["fp32"] < errors["tf32"] / 10


@pytest.mark.parametrize("changes", [{"precision": "tf32"}, {"deterministic": False}], ids=str)
def test_steps_with_other_settings_are_measured_and_later_ones_are_as_before(
    device: torch.device, changes: dict[str, Any]
) -> None:
    attribution = pytest.importorskip("photofinish.measure.attribution")  # which needs pydantic
    settings = experiment()
    settings.model_copy = lambda update: experiment(**update)
    trained = run(settings, device)
    why = trained.steps.why
    assert attribution.try_change(trained, 2, 0.1, "tf32", changes)
    assert trained.steps.why == why
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cudnn.benchmark


def launches(trained: Trainer) -> dict[str, int]:
    """Return how often each of CUDA's functions is called in the second epoch."""
    epochs = trained.epochs()
    next(epochs)
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiled:
        next(epochs)
    return {each.key: each.count for each in profiled.key_averages()}


def kernels_in(found: dict[str, int]) -> int:
    return sum(count for name, count in found.items() if "LaunchKernel" in name)


def test_an_epoch_launches_three_graphs_and_few_kernels(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("PyTorch records no steps here")
    found = []
    for kind in ("off", "auto"):
        made = trainer(experiment(cuda_graphs=kind), device)
        made.prepare()
        found.append(launches(made))
    eager, in_graphs = found
    if not kernels_in(eager):
        pytest.skip("the profiler sees no launches here")
    print(f"kernels launched in an epoch: {kernels_in(eager)}, beside graphs {in_graphs}")
    assert in_graphs["cudaGraphLaunch"] == 3  # fifteen steps, the last one, validation
    # Two batches of images and labels are gathered, and PyTorch sets each graph's generator.
    assert kernels_in(in_graphs) <= 20
    assert kernels_in(eager) > 10 * kernels_in(in_graphs)


def test_a_captured_compiled_training_has_the_bits_of_a_compiled_eager_one(
    device: torch.device,
) -> None:
    if device.type != "cuda":
        pytest.skip("PyTorch records no steps here")
    try:
        torch.compile(torch.sin)(torch.ones(8, device=device))
    except Exception as error:  # noqa: BLE001  # whatever a compiler lacks here
        pytest.skip(f"torch.compile does not work here: {str(error)[:200]}")
    torch.compiler.reset()
    model = SimpleNamespace(**(vars(CNN) | {"compile": True}))
    trained = captured(device, model=model, epochs=2)
    assert trained.validator.is_captured, trained.steps.why


# -- several GPUs ----------

two_gpus = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2,
    reason="fewer than two CUDA devices here",
)


@two_gpus
@pytest.mark.parametrize(("first", "second", "output"), [(0, 1, 0), (1, 0, 0)])
def test_data_parallel_learns_what_one_gpu_learns(first: int, second: int, output: int) -> None:
    devices = torch.device("cuda", first), torch.device("cuda", second)
    alone = run(experiment(), accelerator("cuda"))
    team = DataParallelWorld(devices, torch.device("cuda", output))
    parallel = run(experiment(), accelerator("cuda", first), team)
    assert losses(parallel.progress.metrics) == pytest.approx(
        losses(alone.progress.metrics), rel=0.01, abs=0.01
    )
    assert parallel.network.state_dict().keys() == alone.network.state_dict().keys()
    assert (team.peak_memory_bytes() or 0) > 0


@two_gpus
def test_two_processes_over_nccl_learn_what_one_gpu_learns(tmp_path: Any) -> None:
    alone = run(experiment(), accelerator("cuda"))
    torch.multiprocessing.spawn(run_rank, args=(2, str(tmp_path)), nprocs=2)  # type: ignore[no-untyped-call]
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert both[0] == both[1]
    assert both[0] == pytest.approx(losses(alone.progress.metrics), rel=0.01, abs=0.01)


def run_rank(rank: int, size: int, folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size
    )
    device = accelerator("cuda", rank)
    torch.save(
        losses(run(experiment(), device, DistributedWorld(rank, size, device)).progress.metrics),
        f"{folder}/{rank}.pt",
    )
    torch.distributed.destroy_process_group()
