"""What a training learned, to compare models, and where and how it ran.

That is its first step, its scores and its predictions, and the machine, peaks and overhead.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt
from pydantic import Field

from photofinish.config.base import Record
from photofinish.data import Shape, TaskName
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.machine.host import git_commit, package_versions
from photofinish.results import EpochMetrics, EpochTiming

DeviceLabel = Literal["cpu", "gpu"]
DEVICE_LABELS: tuple[DeviceLabel, ...] = ("cpu", "gpu")
TensorFingerprint = tuple[float, ...]
"""Norm of a tensor, and eight sums with fixed random signs.

The difference of two such sums is about as large as the norm of the tensors' difference.
"""


class FirstStep(Record):
    batch_order_sha256: str
    """SHA-256 of the first epoch's row numbers and labels, in order."""
    first_batch_sha256: str
    loss: float
    weights: dict[str, TensorFingerprint]
    """Parameters before the first step."""
    outputs: dict[str, TensorFingerprint]
    """Outputs of the innermost modules, in the order in which they run."""
    gradients: dict[str, TensorFingerprint]
    output_rounding: dict[str, float] = Field(default_factory=dict)
    """Change of each output if all weights change slightly. Measured on the CPU only."""
    gradient_rounding: dict[str, float] = Field(default_factory=dict)
    """Change of each gradient if all weights change slightly."""
    draws: bool = False
    """True if the step drew from the device's own generator, although dropout was off."""
    has_dropout: bool = False
    """True if the network has dropout, which draws in training and was off for this step."""

    @property
    def draws_in_training(self) -> bool:
        return self.draws or self.has_dropout


class SeedRun(Record):
    """Training from a further seed, whose weights are in model/seeds."""

    seed: int
    weights_sha256: str
    history: tuple[EpochMetrics, ...]


class NetworkScores(Record):
    """Test scores of one network, computed on the CPU."""

    weights_sha256: str = ""
    main: str
    """Name of the main score, which is one of those below."""
    test_accuracy: float | None = None
    """None if no prediction is right or wrong."""
    test_loss: float
    macro_f1: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    """Custom metrics, and errors of predicted values, by name."""

    @property
    def values(self) -> dict[str, float]:
        ours = {
            "test_accuracy": self.test_accuracy,
            "test_loss": self.test_loss,
            "macro_f1": self.macro_f1,
        }
        return {name: value for name, value in ours.items() if value is not None} | self.metrics

    @property
    def main_name(self) -> str:
        return "macro F1" if self.main == "macro_f1" else self.main.replace("_", " ")

    def main_text(self, value: float | None = None) -> str:
        """Format the main score, or another value or difference of it."""
        value = self.values[self.main] if value is None else value
        return f"{value:.2%}" if self.main == "test_accuracy" else f"{value:.4g}"

    @property
    def in_words(self) -> str:
        size = self.main_text()
        is_share = self.main == "test_accuracy"
        return f"{size} {self.main_name}" if is_share else f"{self.main_name} {size}"


class SeedScores(NetworkScores):
    seed: int


class DeviceEvaluation(NetworkScores):
    """Test scores of the network that one device trained."""

    confusion: tuple[tuple[int, ...], ...] = ()
    """Confusion matrix, with a row for each true class."""
    seeds: tuple[SeedScores, ...] = ()

    def of_all_seeds(self, name: str) -> tuple[float, ...]:
        """Return a score of each seed's network, the experiment's own seed first."""
        return tuple(network.values[name] for network in (self, *self.seeds))


class FirstScriptSteps(Record):
    """First step of a script, to compare it on two devices."""

    inputs: list[list[float]]
    """Fingerprint of each tensor that enters the network, as of an experiment's tensors."""
    weights: str
    """SHA-256 of the weights before the first step."""
    losses: list[float]
    gradients: dict[str, list[float]]
    """Fingerprint of each weight's gradient before the optimizer's step."""
    draws: bool
    """True if a forward pass drew random numbers, such as for dropout."""
    seed: int | None = None
    """Seed of torch, which is another in each run of a script without one."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions and true targets, with a row for each test item, or for each value or label."""

    actual: npt.NDArray[Any]
    predicted: npt.NDArray[Any]


@dataclass(frozen=True)
class Trained:
    """Model that an experiment's training on one device learned, epoch by epoch."""

    device: DeviceLabel
    settings: Mapping[str, str]
    """Settings by their dotted names."""
    seed: int
    stops_early: bool
    precision: str
    task: TaskName
    class_names: tuple[str, ...]
    target_shape: Shape
    test_samples: int
    data_sha256: str
    initial_weights_sha256: str
    weights_sha256: str
    history: Sequence[EpochMetrics]
    scores: DeviceEvaluation
    predictions: Predictions
    first_step: FirstStep | None
    no_first_step: str | None
    """Reason for a missing first step."""
    seed_runs: tuple[SeedRun, ...]
    startup_seconds: float
    epochs: tuple[EpochTiming, ...]
    epochs_left: int
    """Number of planned epochs that were not trained."""
    repeats: tuple[tuple[EpochTiming, ...], ...]
    """Epochs of each further training from the same start."""
    seeds: tuple[tuple[EpochTiming, ...], ...]
    """Epochs of the training from each further seed."""
    resumed_at_epochs: tuple[int, ...]
    overhead: Overhead
    steps_taken: StepsTaken | None


class Readings(Record):
    peak_memory_bytes: int | None = None
    """Peak memory of the device, or of the process on the CPU. The largest of several peaks."""
    peak_reserved_bytes: int | None = None
    """Most memory that PyTorch's allocator held on a script's GPU."""
    peak_host_memory_bytes: int | None = None
    """Largest resident set of the training process, or of any rank."""


class Where(Record):
    host: CpuTarget | GpuTarget
    host_name: str
    device_name: str
    device_count: int = 1
    """Number of GPUs, or of processes on the CPU, that shared the training."""
    git_commit: str | None
    packages: dict[str, str]
    started_at_unix_seconds: float


class Overhead(Record):
    """Time of the training loop outside the timed passes, in the last process of the training.

    It is photofinish's own, so it is in no job's time.
    """

    seconds: float
    """Time for display and sampling the load."""
    checkpoint_seconds: float
    """Time to save checkpoints."""


class StepsTaken(Record):
    """Way in which the training's steps were launched: one by one, or captured in a CUDA graph."""

    kind: Literal["eager", "graph"]
    at_once: int
    """Number of steps in a graph."""
    why: str


def made_here(host: CpuTarget | GpuTarget) -> dict[str, Any]:
    """Return the fields about machine and software, for a job of this process."""
    return {
        "host": host,
        "host_name": platform.node(),
        "git_commit": git_commit(),
        "packages": package_versions(),
    }
