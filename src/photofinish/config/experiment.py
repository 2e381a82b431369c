"""Settings of an experiment: optimizer, loss, metrics, schedule and input."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, model_validator

from photofinish.config.base import (
    BUILT_IN,
    OWN,
    Decay,
    Name,
    NonNegativeFloat,
    OwnCode,
    PositiveFloat,
    PositiveInt,
    Seed,
    Settings,
    Share,
    built_in_or_own,
    list_of,
)
from photofinish.config.networks import Model
from photofinish.custom_code import Reference, is_reference

TORCHMETRICS = "torchmetrics.functional"
SHORTHAND_KEYS = ("model", "loss", "optimizer", "schedule", "input")
"""Keys whose block may be written as its name alone."""


def spelled_out(code: Any) -> Any:
    """Expand a name into a mapping with that name."""
    return {"name": code} if isinstance(code, str) else code


# -- optimizers ---------------------------------------------------------------------------------------


class Sgd(Settings):
    """torch.optim.SGD."""

    name: Literal["sgd"]
    lr: PositiveFloat
    momentum: Decay = 0.0
    dampening: Annotated[float, Field(ge=0, le=1)] = 0.0
    nesterov: bool = False
    weight_decay: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Sgd:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov needs a momentum above 0 and a dampening of 0")
        return self


class _AdamSettings(Settings):
    lr: PositiveFloat
    betas: Annotated[tuple[Decay, Decay], list_of(2, "numbers")] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8


class Adam(_AdamSettings):
    """torch.optim.Adam."""

    name: Literal["adam"]
    weight_decay: NonNegativeFloat = 0.0


class AdamW(_AdamSettings):
    """torch.optim.AdamW."""

    name: Literal["adamw"]
    weight_decay: NonNegativeFloat = 0.01


Optimizer = Annotated[Sgd | Adam | AdamW, Field(discriminator="name")]

# -- losses ------------------------------------------------------------------------------------------

NumberForEach = Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] | None


class CrossEntropy(Settings):
    """torch.nn.CrossEntropyLoss, for one class an image."""

    name: Literal["cross_entropy"]
    label_smoothing: Share = 0.0
    weight: NumberForEach = None
    """Weight of each class. A mean is over these weights."""


class ValueLoss(Settings):
    """torch.nn.MSELoss or L1Loss, for values."""

    name: Literal["mse", "l1"]


class SmoothL1(Settings):
    """torch.nn.SmoothL1Loss, for values."""

    name: Literal["smooth_l1"]
    beta: PositiveFloat = 1.0


class BceWithLogits(Settings):
    """torch.nn.BCEWithLogitsLoss, for several labels an image."""

    name: Literal["bce_with_logits"]
    pos_weight: NumberForEach = None
    """Weight of a yes of each label, where a no has weight 1. A mean is over the items."""


class OwnLoss(OwnCode):
    """Custom class or function of (outputs, targets).

    It returns the mean over the batch, or a sum and the weight to divide it by.
    """


_BuiltInLoss = Annotated[CrossEntropy | ValueLoss | SmoothL1 | BceWithLogits, Field(discriminator="name")]
Loss = Annotated[Annotated[_BuiltInLoss, Tag(BUILT_IN)] | Annotated[OwnLoss, Tag(OWN)], built_in_or_own("name")]

# -- metrics ------------------------------------------------------------------------------------------


def _metric_reference(name: str) -> Reference:
    return Reference.of(name if is_reference(name) else f"{TORCHMETRICS}:{name}")


class Metric(OwnCode):
    """Function of torchmetrics.functional by its name, or a custom function of (outputs, targets)."""

    name: Annotated[str, AfterValidator(lambda name: _metric_reference(name) and name)]

    @property
    def reference(self) -> Reference:
        """Return where the code is defined."""
        return _metric_reference(self.name)

    @property
    def label(self) -> str:
        """Return the name of the metric's column."""
        return self.reference.name.rpartition(".")[2]


def _each_once(metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
    if len({metric.label for metric in metrics}) < len(metrics):
        raise ValueError("two metrics have one name: give each its own")
    return metrics


Metrics = Annotated[tuple[Annotated[Metric, BeforeValidator(spelled_out)], ...], AfterValidator(_each_once)]


class MetricsPlan(Settings):
    """data/plan/metrics/<experiment>.json: further metrics that `evaluate` computes, and their code."""

    metrics: Metrics
    custom_code: dict[str, str]


# -- schedules ----------------------------------------------------------------------------------------


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
    ConstantSchedule | StepSchedule | CosineSchedule | OneCycleSchedule | PlateauSchedule, Field(discriminator="name")
]

# -- input --------------------------------------------------------------------------------------------


class ResidentInput(Settings):
    """All images stay on the device."""

    name: Literal["resident"]


class CustomTransform(OwnCode):
    """Custom function of a packed item, a tensor, that returns it changed."""


class LoaderInput(Settings):
    """PyTorch's DataLoader, with its own names and defaults."""

    name: Literal["loader"]
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    pin_memory: bool = False
    non_blocking: bool = False
    prefetch_factor: PositiveInt | None = None
    persistent_workers: bool = False
    transform: Annotated[CustomTransform | None, BeforeValidator(spelled_out)] = None
    """Transform of the training items, applied in each epoch."""

    @model_validator(mode="after")
    def _only_workers_prefetch_and_persist(self) -> LoaderInput:
        if self.workers == 0 and (self.prefetch_factor is not None or self.persistent_workers):
            raise ValueError("prefetch_factor and persistent_workers need workers of at least 1")
        return self


Input = Annotated[ResidentInput | LoaderInput, Field(discriminator="name")]

# -- experiments --------------------------------------------------------------------------------------


class Augmentation(Settings):
    """Augmentation of the training images in each epoch, decided by seed, epoch and image."""

    flip: Share = 0.0
    """Probability that an image is mirrored horizontally."""
    crop_padding: Annotated[int, Field(ge=0, le=1024)] = 0
    """Black pixels added on each side before a random crop to the original size."""


class Experiment(Settings):
    """One training job with every setting spelled out."""

    dataset: Name
    model: Model
    loss: Loss | None = None
    """By default the loss that fits the data set's targets."""
    optimizer: Optimizer
    schedule: Schedule = ConstantSchedule()
    input: Input
    precision: Literal["fp32", "tf32", "bf16", "fp16"]
    epochs: PositiveInt
    batch_size: PositiveInt
    validation_batch_size: PositiveInt | None = None
    """By default `batch_size`, or as many images as fill 4 MiB as float32 if those are more."""
    seed: Seed
    augmentation: Augmentation = Augmentation()
    deterministic: bool = True
    """Refuse operations that do not give the same bits each time."""
    cuda_graphs: Literal["auto", "off", "on"] = "auto"
    """Whether a GPU's steps are launched one by one or as CUDA graphs."""
    save_weights: Literal["last", "every_epoch"] = "last"
    metrics: Metrics = Field(default=(), exclude=True)
    """Written to a plan of their own, for `evaluate`: they do not influence the training."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of timed trainings from the same start."""
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of seeds to train from, beginning with `seed`."""


def own_code_of(experiment: Experiment) -> list[OwnCode]:
    """Return the custom code that the experiment's training runs."""
    transform = experiment.input.transform if isinstance(experiment.input, LoaderInput) else None
    return [part for part in (experiment.model, experiment.loss, transform) if isinstance(part, OwnCode)]


class ExperimentPlan(Experiment):
    """data/plan/experiments/<name>.json: settings of the training stages."""

    custom_code: dict[str, str] = Field(default_factory=dict)
    """sha256 of each custom file that the training runs, and the versions of packages it names."""
