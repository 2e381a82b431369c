"""Settings of an experiment: optimizer, schedule, input and steps."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from photofinish.config.base import (
    CallsCode,
    CustomCode,
    Duration,
    Name,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    Settings,
    Share,
    spelled_out,
)
from photofinish.config.cuda_graphs import why_not_captured
from photofinish.config.losses_and_metrics import EarlyStopping, Loss, Metric, Metrics
from photofinish.config.networks import Model
from photofinish.config.precisions import TrainingPrecision
from photofinish.config.pytorch_names import (
    CONSTANT,
    GIVEN_TO_SCHEDULES,
    LOSSES,
    OPTIMIZERS,
    SCHEDULES,
    TRANSFORMS,
    Namespace,
)
from photofinish.custom.reference import CodeReference, is_reference
from photofinish.errors import SettingError

_NO_NAMES = "augmentation", "early_stopping", "input", "model", "sampler", "step", "validation_step"
BLOCKS: dict[str, Namespace | None] = {
    **dict.fromkeys(_NO_NAMES),
    "loss": LOSSES,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "batch_transform": TRANSFORMS,
}
"""Mappings that are merged with the defaults, and their namespace."""
BALANCED = "balanced"


class _PytorchCode(CallsCode):
    """A class of PyTorch by a short name, or custom code."""

    namespace: ClassVar[Namespace]
    name: str

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name != CONSTANT or cls.namespace is not SCHEDULES:
            cls.namespace.reference(name)
        return name

    @property
    def reference(self) -> CodeReference:
        return self.namespace.reference(self.name)


class _PytorchClass(_PytorchCode):
    """A class of PyTorch, or a custom function of one argument in its place."""

    positional_arguments: ClassVar[int] = 1

    @property
    def is_custom(self) -> bool:
        return is_reference(self.name)


class Optimizer(_PytorchClass):
    """Optimizer of torch.optim, or a custom function of the network."""

    namespace: ClassVar[Namespace] = OPTIMIZERS
    lr: PositiveFloat | None = None
    weight_decay_exclude: Literal["norms and biases"] | None = None
    """Parameters without weight decay: biases, and parameters of at most one dimension."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.weight_decay_exclude:
            takes = None if self.is_custom else self.reference.takes()
            if takes is None or "weight_decay" not in takes.names:
                raise SettingError("no weight decay", name=self.name)
        if self.lr is None and not self.is_custom:
            raise PydanticCustomError("missing_key", "no learning rate", {"key": "lr"})
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        # A custom optimizer may not accept a learning rate.
        return ({} if self.lr is None else {"lr": self.lr}) | super().arguments


class Schedule(_PytorchClass):
    """Schedule of torch.optim.lr_scheduler, or a custom function that returns a schedule.

    `constant`, the default, keeps the learning rate.
    """

    namespace: ClassVar[Namespace] = SCHEDULES
    name: str = CONSTANT
    every: Literal["epoch", "step"] | None = None
    """When the rate changes. Default: after each step for one_cycle and cyclic, else each epoch."""

    @property
    def follows_validation(self) -> bool:
        """Return True for reduce_on_plateau. A custom schedule may follow validation, too."""
        return self.name != CONSTANT and self.reference.name == "ReduceLROnPlateau"

    @property
    def depends_on_epochs(self) -> bool:
        """Return True if the number of epochs may decide the rates."""
        if self.name == CONSTANT:
            return False
        takes = None if self.is_custom else self.reference.takes()
        set_here = {"cycle_momentum", *self.arguments}
        return takes is None or bool({*GIVEN_TO_SCHEDULES} & {*takes.names} - set_here)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name == CONSTANT and self.model_extra:
            raise SettingError("constant", names=", ".join(self.model_extra))
        if self.follows_validation and self.every == "step":
            raise SettingError("plateau each step")
        if self.follows_validation and self.arguments.get("mode") == "max":
            raise SettingError("plateau of a maximum")
        return self


class ResidentInput(Settings):
    """Input from samples that are all kept on the device."""

    name: Literal["resident"]


class CustomTransform(_PytorchCode):
    """Transform of torchvision, or a custom function of a packed sample, a tensor."""

    namespace: ClassVar[Namespace] = TRANSFORMS
    positional_arguments: ClassVar[int] = 1


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
    """Transform of validation and test samples. If set, both may change shape and dtype."""
    collate: Annotated[CustomCode | None, BeforeValidator(spelled_out)] = None
    """Function that makes a batch of (input, target) pairs, whose shapes may differ."""


Input = Annotated[ResidentInput | LoaderInput, Field(discriminator="name")]


class Augmentation(Settings):
    """Augmentation of the training images, seeded by (seed, epoch, image)."""

    flip: Share = 0.0
    """Probability that an image is mirrored horizontally."""
    crop_padding: Annotated[int, Field(ge=0, le=1024)] = 0
    """Black pixels added on each side before a random crop to the original size."""


class BatchTransformSettings(_PytorchCode):
    """Transform of torchvision such as MixUp, or a custom function of (inputs, targets).

    It changes each training batch on the device. Its draws are seeded by (seed, epoch, batch).
    """

    namespace: ClassVar[Namespace] = TRANSFORMS


class Sampler(CallsCode):
    """Choice of an epoch's training samples.

    `balanced` draws every class equally often, with replacement. A custom function of (targets,
    seed) returns one row number per target.
    """

    name: str

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name != BALANCED:
            CodeReference.of(name)
        return name


class StepSettings(CustomCode):
    """Custom function of (network, batch) that returns the batch's mean loss.

    If the optimizer function returns several optimizers, the signature is (network, batch,
    optimizers), and the function steps the optimizers itself.
    """

    positional_arguments: ClassVar[int] = 3


class Experiment(Settings):
    """One training job with every setting spelled out."""

    dataset: Name
    model: Model
    loss: Loss | None = None
    """Loss function. Default: the first loss that fits the data set's targets."""
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    warmup_steps: NonNegativeInt = 0
    """Number of steps in which the learning rate rises linearly to the schedule's value."""
    clip_grad_norm: PositiveFloat | None = None
    """Maximum norm of all gradients together."""
    accumulate: PositiveInt = 1
    """Number of parts of a batch whose gradients are added up before a step."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of averaged weights. Validation, test and the saved model use the average."""
    early_stopping: EarlyStopping | None = None
    input: Input
    precision: TrainingPrecision
    epochs: PositiveInt
    batch_size: PositiveInt
    validation_batch_size: PositiveInt | None = None
    """Batch size. Default: `batch_size`, or the samples that fill 4 MiB as float32, if more.

    On an accelerator, the default fills 64 MiB.
    """
    seed: Seed
    augmentation: Augmentation = Augmentation()
    sampler: Annotated[Sampler | None, BeforeValidator(spelled_out)] = None
    batch_transform: Annotated[BatchTransformSettings | None, BeforeValidator(spelled_out)] = None
    step: Annotated[StepSettings | None, BeforeValidator(spelled_out)] = None
    """Training step. Default: the loss of the network's outputs."""
    validation_step: Annotated[StepSettings | None, BeforeValidator(spelled_out)] = None
    """Function of (network, batch) that returns the validation loss. Default: `step`."""
    deterministic: bool = True
    """Refuse operators that do not repeat bit for bit."""
    cuda_graphs: Annotated[
        Literal["auto", "off", "on"],
        # YAML 1.1 and `dvc exp run -S` turn off and on into booleans.
        BeforeValidator(lambda value: ("off", "on")[value] if isinstance(value, bool) else value),
    ] = "auto"
    """Launch a GPU's operators one by one (off), or capture steps in CUDA graphs (on)."""
    save_weights: Literal["last", "every_epoch"] = "last"
    metrics: Metrics = Field(default=(), exclude=True)
    """Metrics that `evaluate` adds. They do not change the training."""
    time_limit: Duration | None = Field(default=None, exclude=True)
    """Time after which the CPU trains no further epoch. Only the plan in on_cpu/ has it."""
    deps: tuple[str, ...] = Field(default=(), exclude=True)
    """Files and folders that the experiment's code reads. The plan has their hashes, too."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of timed training runs from the same start."""
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of seeds to train from, beginning with `seed`."""

    def monitored_metric(self) -> Metric | None:
        """Return the metric that `early_stopping` follows, or None if it follows no metric."""
        monitor = self.early_stopping.monitor if self.early_stopping else None
        return next((metric for metric in self.metrics if metric.label == monitor), None)


_CODE = (
    "model", "loss", "optimizer", "schedule", "sampler", "batch_transform", "step",
    "validation_step",
)  # fmt: skip
"""Settings that may name code."""


def custom_code_of(experiment: Experiment) -> dict[tuple[str | int, ...], CallsCode]:
    """Return the custom code that an experiment names, by its keys in params.yaml."""
    code: dict[tuple[str | int, ...], Any] = {(key,): getattr(experiment, key) for key in _CODE}
    if experiment.schedule.name == CONSTANT:
        del code["schedule",]
    if experiment.sampler and experiment.sampler.name == BALANCED:
        del code["sampler",]
    if isinstance(experiment.input, LoaderInput):
        for key in ("transform", "eval_transform", "collate"):
            code["input", key] = getattr(experiment.input, key)
    code |= {("metrics", number): metric for number, metric in enumerate(experiment.metrics)}
    return {keys: part for keys, part in code.items() if isinstance(part, CallsCode)}


_MEASURED_RATE = 1e-3
"""Learning rate of measured steps: small, so that losses stay finite."""
_MEASURED_EPOCHS = 2
"""Epochs in the settings of measured steps, as many as a trial of captured steps needs."""


def on_cpu(experiment: Experiment) -> Experiment:
    """Return an experiment without the settings of accelerators alone."""
    changes: dict[str, Any] = {"cuda_graphs": "auto"}
    if isinstance(experiment.input, LoaderInput):
        unpinned = {"pin_memory": False, "non_blocking": False}
        changes["input"] = experiment.input.model_copy(update=unpinned)
    return experiment.model_copy(update=changes)


def step_settings(experiment: Experiment) -> Experiment:
    """Return an experiment with fixed values for the settings on which no step's time depends.

    So an experiment with another seed, learning rate or number of epochs is not measured again.
    """
    optimizer = experiment.optimizer
    if optimizer.lr is not None:
        optimizer = optimizer.model_copy(update={"lr": _MEASURED_RATE})
    changes: dict[str, Any] = {
        "optimizer": optimizer,
        "epochs": _MEASURED_EPOCHS,
        "schedule": Schedule(),
        "warmup_steps": 0,
        "early_stopping": None,
        "save_weights": "last",
        "seed": 0,
        "seeds": 1,
        "repeats": 1,
    }
    changed = experiment.model_copy(update=changes)
    if why_not_captured(experiment) and not why_not_captured(changed):
        changed = changed.model_copy(update={"cuda_graphs": "off"})  # as its schedule demands
    return changed


class ExperimentPlan(Experiment):
    """Settings of `train-gpu`: data/plan/experiments/<name>.json.

    on_cpu/ has the settings of `train-cpu`, without those that only accelerators read. steps/ and
    steps_on_cpu/ have the settings of `measure-gpu` and `measure-cpu`.
    """

    monitored: Metric | None = None
    """Metric that `early_stopping` follows. Changing any other metric reruns no training."""
    custom_code: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each custom file that the training runs, and the versions of its packages."""
    time_limit_seconds: PositiveFloat | None = None
    """Time limit on the CPU. It decides how many epochs are trained, but no epoch's result."""
