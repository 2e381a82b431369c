"""Settings of an experiment: optimizer, loss, metrics, schedule and input."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, model_validator

from photofinish.config.base import (
    BUILT_IN,
    OWN,
    CallsCode,
    CustomCode,
    Decay,
    Name,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Seed,
    Settings,
    Share,
    built_in_or_own,
)
from photofinish.config.networks import Model
from photofinish.custom_code import Reference, is_reference

TORCHMETRICS = "torchmetrics.functional"
SHORTHAND_KEYS = {"model", "loss", "optimizer", "schedule", "input"}
"""Keys whose block may be written as its name alone."""


def spelled_out(block: Any) -> Any:
    """Expand a name into a mapping with that name."""
    return {"name": block} if isinstance(block, str) else block


class Sgd(Settings):
    """Optimizer torch.optim.SGD."""

    name: Literal["sgd"]
    lr: PositiveFloat
    momentum: Decay = 0.0
    dampening: Annotated[float, Field(ge=0, le=1)] = 0.0
    nesterov: bool = False
    weight_decay: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _check_nesterov(self) -> Sgd:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov needs a momentum above 0 and a dampening of 0")
        return self


class Adam(Settings):
    """Optimizer torch.optim.Adam."""

    name: Literal["adam"]
    lr: PositiveFloat
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0


class AdamW(Adam):
    """Optimizer torch.optim.AdamW."""

    name: Literal["adamw"]  # type: ignore[assignment]  # the other settings are Adam's
    weight_decay: NonNegativeFloat = 0.01


Optimizer = Annotated[Sgd | Adam | AdamW, Field(discriminator="name")]
NumberForEach = Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] | None


class CrossEntropy(Settings):
    """Loss torch.nn.CrossEntropyLoss, for one class per sample."""

    name: Literal["cross_entropy"]
    label_smoothing: Share = 0.0
    weight: NumberForEach = None
    """Weight of each class. A mean is over these weights."""


class ValueLoss(Settings):
    """Loss torch.nn.MSELoss or L1Loss, for values."""

    name: Literal["mse", "l1"]


class SmoothL1(Settings):
    """Loss torch.nn.SmoothL1Loss, for values."""

    name: Literal["smooth_l1"]
    beta: PositiveFloat = 1.0


class BceWithLogits(Settings):
    """Loss torch.nn.BCEWithLogitsLoss, for several labels per sample."""

    name: Literal["bce_with_logits"]
    pos_weight: NumberForEach = None
    """Weight of a yes of each label, where a no has weight 1. A mean is over the items."""


class CustomLoss(CustomCode):
    """Custom class or function of (outputs, targets).

    It returns the mean over the batch, or a sum and the weight to divide it by.
    """


_BuiltInLoss = Annotated[
    CrossEntropy | ValueLoss | SmoothL1 | BceWithLogits, Field(discriminator="name")
]
Loss = Annotated[
    Annotated[_BuiltInLoss, Tag(BUILT_IN)] | Annotated[CustomLoss, Tag(OWN)],
    built_in_or_own("name"),
]


class Metric(CustomCode):
    """Function of torchmetrics.functional, or a custom function of (outputs, targets)."""

    name: Annotated[str, AfterValidator(lambda name: _metric_reference(name) and name)]

    @property
    def reference(self) -> Reference:
        """Return where the code is defined."""
        return _metric_reference(self.name)

    @property
    def label(self) -> str:
        """Return the name of the metric's column."""
        return self.reference.name.rpartition(".")[2]


def _metric_reference(name: str) -> Reference:
    return Reference.of(name if is_reference(name) else f"{TORCHMETRICS}:{name}")


def _check_labels(metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
    if len({metric.label for metric in metrics}) < len(metrics):
        raise ValueError("two metrics have one name: rename one")
    return metrics


Metrics = Annotated[
    tuple[Annotated[Metric, BeforeValidator(spelled_out)], ...], AfterValidator(_check_labels)
]


class MetricsPlan(Settings):
    """Metrics that `evaluate` adds, and their code: data/plan/metrics/<experiment>.json."""

    metrics: Metrics
    custom_code: dict[str, str]


class ConstantSchedule(Settings):
    """Constant learning rate."""

    name: Literal["constant"] = "constant"


class StepSchedule(Settings):
    """StepLR, stepped after each epoch."""

    name: Literal["step"]
    step_size: PositiveInt
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1


class CosineSchedule(Settings):
    """CosineAnnealingLR over all epochs."""

    name: Literal["cosine"]
    eta_min: NonNegativeFloat = 0.0


class OneCycleSchedule(Settings):
    """OneCycleLR, stepped after each step."""

    name: Literal["one_cycle"]
    max_lr: PositiveFloat
    pct_start: Annotated[float, Field(gt=0, lt=1)] = 0.3


class PlateauSchedule(Settings):
    """ReduceLROnPlateau, by the validation loss."""

    name: Literal["reduce_on_plateau"]
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    patience: Annotated[int, Field(ge=0)] = 10
    min_lr: NonNegativeFloat = 0.0


Schedule = Annotated[
    ConstantSchedule | StepSchedule | CosineSchedule | OneCycleSchedule | PlateauSchedule,
    Field(discriminator="name"),
]


class ResidentInput(Settings):
    """All samples stay on the device."""

    name: Literal["resident"]


class CustomTransform(CustomCode):
    """Custom function of a packed sample, a tensor, that returns it changed."""


class CustomCollate(CustomCode):
    """Custom function of a list of samples that returns a batch, as a DataLoader takes it."""


class LoaderInput(Settings):
    """PyTorch's DataLoader, with its own names and defaults."""

    name: Literal["loader"]
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    pin_memory: bool = False
    non_blocking: bool = False
    prefetch_factor: PositiveInt | None = None
    persistent_workers: bool = False
    transform: Annotated[CustomTransform | None, BeforeValidator(spelled_out)] = None
    """Transform of the training samples, applied in each epoch."""
    eval_transform: Annotated[CustomTransform | None, BeforeValidator(spelled_out)] = None
    """Transform of the validation and test samples. With it, both may change shape and type."""
    collate: Annotated[CustomCollate | None, BeforeValidator(spelled_out)] = None
    """Makes a batch of (input, target) pairs, whose shapes may differ."""

    @model_validator(mode="after")
    def _check_workers(self) -> LoaderInput:
        if self.workers == 0 and (self.prefetch_factor is not None or self.persistent_workers):
            raise ValueError("prefetch_factor and persistent_workers need workers of at least 1")
        return self


Input = Annotated[ResidentInput | LoaderInput, Field(discriminator="name")]


class Augmentation(Settings):
    """Augmentation of the training images, seeded by (seed, epoch, image)."""

    flip: Share = 0.0
    """Probability that an image is mirrored horizontally."""
    crop_padding: Annotated[int, Field(ge=0, le=1024)] = 0
    """Black pixels added on each side before a random crop to the original size."""


def _off_or_on(value: Any) -> Any:
    # YAML 1.1 and `dvc exp run -S` turn off and on into booleans.
    return ("on" if value else "off") if isinstance(value, bool) else value


class Experiment(Settings):
    """One training job with every setting spelled out."""

    dataset: Name
    model: Model
    loss: Loss | None = None
    """Loss function. Default: the one that fits the data set's targets."""
    optimizer: Optimizer
    schedule: Schedule = ConstantSchedule()
    input: Input
    precision: Literal["fp32", "tf32", "bf16", "fp16"]
    epochs: PositiveInt
    batch_size: PositiveInt
    validation_batch_size: PositiveInt | None = None
    """Batch size. Default: `batch_size`, or the samples that fill 4 MiB as float32, if more."""
    seed: Seed
    augmentation: Augmentation = Augmentation()
    deterministic: bool = True
    """Refuse operators that do not repeat bit for bit."""
    cuda_graphs: Annotated[Literal["auto", "off", "on"], BeforeValidator(_off_or_on)] = "auto"
    """Launch a GPU's operators one by one (off), or capture steps in CUDA graphs (on)."""
    save_weights: Literal["last", "every_epoch"] = "last"
    metrics: Metrics = Field(default=(), exclude=True)
    """Metrics that `evaluate` adds. They are planned apart and do not change the training."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of timed training runs from the same start."""
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of seeds to train from, beginning with `seed`."""


def custom_code_of(experiment: Experiment) -> dict[tuple[str | int, ...], CallsCode]:
    """Return the custom code that an experiment names, by its keys in params.yaml."""
    code: dict[tuple[str | int, ...], Any] = {
        ("model",): experiment.model,
        ("loss",): experiment.loss,
    }
    if isinstance(experiment.input, LoaderInput):
        for key in ("transform", "eval_transform", "collate"):
            code["input", key] = getattr(experiment.input, key)
    for number, metric in enumerate(experiment.metrics):
        code["metrics", number] = metric
    return {keys: part for keys, part in code.items() if isinstance(part, CallsCode)}


class ExperimentPlan(Experiment):
    """Settings of the training stages: data/plan/experiments/<name>.json."""

    custom_code: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each custom file that the training runs, and the versions of packages it names."""
