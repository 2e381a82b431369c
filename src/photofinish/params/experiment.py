"""The settings of training: optimiser, schedule, input path, and the experiment they make up."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, ValidationInfo, field_validator, model_validator

from photofinish.own_code import Reference, is_reference
from photofinish.params.base import (
    BUILT_IN,
    MOST_SEEDS,
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
from photofinish.params.networks import Model

TORCHMETRICS = "torchmetrics.functional"

# -- optimisers ---------------------------------------------------------------------------------------


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
    """how much an item of each class counts; a mean is over these weights"""


class ValueLoss(Settings):
    """torch.nn.MSELoss and L1Loss, for values."""

    name: Literal["mse", "l1"]


class SmoothL1(Settings):
    """torch.nn.SmoothL1Loss, for values."""

    name: Literal["smooth_l1"]
    beta: PositiveFloat = 1.0


class BceWithLogits(Settings):
    """torch.nn.BCEWithLogitsLoss, for several labels an image."""

    name: Literal["bce_with_logits"]
    pos_weight: NumberForEach = None
    """how much a yes of each label counts, where a no counts 1; a mean is over the items"""


class OwnLoss(OwnCode):
    """A class or function of (outputs, targets) that gives the mean over the batch, or a sum and the weight that it is
    to be divided by; a class is made first."""


_BuiltInLoss = Annotated[CrossEntropy | ValueLoss | SmoothL1 | BceWithLogits, Field(discriminator="name")]
Loss = Annotated[Annotated[_BuiltInLoss, Tag(BUILT_IN)] | Annotated[OwnLoss, Tag(OWN)], built_in_or_own("name")]

# -- metrics ------------------------------------------------------------------------------------------


def spelled_out(code: Any) -> Any:
    """A name is short for a mapping with it alone."""
    return {"name": code} if isinstance(code, str) else code


def _metric_reference(name: str) -> Reference:
    return Reference.of(name if is_reference(name) else f"{TORCHMETRICS}:{name}")


class Metric(OwnCode):
    """A function of torchmetrics.functional by its name, or one of one's own, of (outputs, targets)."""

    name: Annotated[str, AfterValidator(lambda name: _metric_reference(name) and name)]

    @property
    def reference(self) -> Reference:
        """Where it is written."""
        return _metric_reference(self.name)

    @property
    def label(self) -> str:
        """What its figure is called."""
        return self.reference.name.rpartition(".")[2]


def _each_once(metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
    labels = [metric.label for metric in metrics]
    if len(set(labels)) < len(labels):
        raise ValueError("two metrics have one name: give each its own")
    return metrics


Metrics = Annotated[tuple[Annotated[Metric, BeforeValidator(spelled_out)], ...], AfterValidator(_each_once)]


class MetricsPlan(Settings):
    """data/plan/metrics/<experiment>.json: what `evaluate` computes besides, and the code of it."""

    metrics: Metrics
    own_code: dict[str, str]


# -- schedules ----------------------------------------------------------------------------------------


class ConstantSchedule(Settings):
    """One learning rate throughout."""

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
    """ReduceLROnPlateau, by the loss on the validation images."""

    name: Literal["reduce_on_plateau"]
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    patience: Annotated[int, Field(ge=0)] = 10
    min_lr: NonNegativeFloat = 0.0


Schedule = Annotated[
    ConstantSchedule | StepSchedule | CosineSchedule | OneCycleSchedule | PlateauSchedule, Field(discriminator="name")
]

# -- input paths --------------------------------------------------------------------------------------


class ResidentInput(Settings):
    """All images lie on the device."""

    name: Literal["resident"]


class OwnTransform(OwnCode):
    """A function of an item as it is packed, a tensor, that gives it changed; a class is made first."""


class LoaderInput(Settings):
    """PyTorch's DataLoader, with its own names and defaults."""

    name: Literal["loader"]
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    pin_memory: bool = False
    non_blocking: bool = False
    prefetch_factor: PositiveInt | None = None
    persistent_workers: bool = False
    transform: Annotated[OwnTransform | None, BeforeValidator(spelled_out)] = None
    """of the training items, anew each epoch"""

    @model_validator(mode="after")
    def _only_workers_prefetch_and_persist(self) -> LoaderInput:
        if self.workers == 0 and (self.prefetch_factor is not None or self.persistent_workers):
            raise ValueError("prefetch_factor and persistent_workers need workers of at least 1")
        return self


Input = Annotated[ResidentInput | LoaderInput, Field(discriminator="name")]

# -- experiments --------------------------------------------------------------------------------------

SHORTHAND_KEYS = ("model", "loss", "optimizer", "schedule", "input")


class Augmentation(Settings):
    """Of the training images, anew each epoch; what happens to an image follows from seed, epoch and image alone."""

    flip: Share = 0.0
    """how probably an image is mirrored, left to right"""
    crop_padding: Annotated[int, Field(ge=0, le=1024)] = 0
    """so many black pixels are added on each side, then the image is cut out anew at a random place"""


class Experiment(Settings):
    """One training job with every setting spelled out; what `plan` writes and the trainer reads."""

    dataset: Name
    model: Model
    loss: Loss | None = None
    """by default the one that fits the data set's targets (params/catalogue.py)"""
    optimizer: Optimizer
    schedule: Schedule = ConstantSchedule()
    input: Input
    precision: Literal["fp32", "tf32", "bf16", "fp16"]
    epochs: PositiveInt
    batch_size: PositiveInt
    validation_batch_size: PositiveInt | None = None
    """by default that of the training, or as many images as fill 4 MiB as float32 if those are more"""
    seed: Seed
    augmentation: Augmentation = Augmentation()
    deterministic: bool = True
    """whether each operation must give the same bits each time; one that can't is refused then"""
    steps: Literal["auto", "eager", "graph"] = "auto"
    """how a GPU is handed a training's steps: one by one, or many at once, recorded; see training/steps.py"""
    save_weights: Literal["last", "every_epoch"] = "last"
    metrics: Metrics = Field(default=(), exclude=True)
    """read by `evaluate` alone, from a plan of their own: they are no part of what is trained"""
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    """how often the training is timed, each time from the same start; more give times that vary less, and intervals"""
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    """how many seeds it is trained from, `seed` and those after it; more tell what chance alone makes of it"""

    @field_validator("seeds")
    @classmethod
    def _every_seed_is_one(cls, seeds: int, info: ValidationInfo) -> int:
        if (seed := info.data.get("seed", 0)) + seeds > MOST_SEEDS:
            raise ValueError(f"seed {seed} has no {seeds - 1} after it: the last one is {MOST_SEEDS - 1}")
        return seeds


def own_code_of(experiment: Experiment) -> list[OwnCode]:
    """What its training runs of the user's own."""
    transform = experiment.input.transform if isinstance(experiment.input, LoaderInput) else None
    return [part for part in (experiment.model, experiment.loss, transform) if isinstance(part, OwnCode)]


class ExperimentPlan(Experiment):
    """data/plan/experiments/<name>.json: what the training stages go by."""

    own_code: dict[str, str] = Field(default_factory=dict)
    """the sha256 of each of the user's own files that the training runs, and the versions of packages they name"""
