"""The schema of params.yaml: what a user can set, of which type, within which limits.

Names and defaults follow PyTorch where PyTorch has them. Nothing here imports torch: `plan` and `compare`
read settings in milliseconds.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from photofinish.model_names import TORCHVISION_CLASSIFIERS

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"  # it names folders and stages

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


def is_name(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(NAME_PATTERN, name) is not None


class Settings(BaseModel):
    """Frozen, strict, and closed: an unknown key is a mistake, never ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


# -- optimisers ---------------------------------------------------------------------------------------


class Sgd(Settings):
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


def _check_pair(value: Any) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("must be a list of 2 numbers")
    return tuple(value)


class _AdamSettings(Settings):
    lr: PositiveFloat
    betas: Annotated[tuple[Decay, Decay], BeforeValidator(_check_pair)] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8


class Adam(_AdamSettings):
    name: Literal["adam"]
    weight_decay: NonNegativeFloat = 0.0


class AdamW(_AdamSettings):
    name: Literal["adamw"]
    weight_decay: NonNegativeFloat = 0.01


Optimizer = Annotated[Sgd | Adam | AdamW, Field(discriminator="name")]

# -- schedules ----------------------------------------------------------------------------------------


class ConstantSchedule(Settings):
    name: Literal["constant"] = "constant"


class StepSchedule(Settings):
    name: Literal["step"]
    step_size: PositiveInt
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1


class CosineSchedule(Settings):
    name: Literal["cosine"]
    eta_min: NonNegativeFloat = 0.0


class OneCycleSchedule(Settings):
    name: Literal["one_cycle"]
    max_lr: PositiveFloat
    pct_start: Annotated[float, Field(gt=0, lt=1)] = 0.3


class PlateauSchedule(Settings):
    name: Literal["reduce_on_plateau"]
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    patience: Annotated[int, Field(ge=0)] = 10
    min_lr: NonNegativeFloat = 0.0


Schedule = Annotated[
    ConstantSchedule | StepSchedule | CosineSchedule | OneCycleSchedule | PlateauSchedule,
    Field(discriminator="name"),
]

# -- networks -----------------------------------------------------------------------------------------


class LinearModel(Settings):
    name: Literal["linear"]


class MlpModel(Settings):
    name: Literal["mlp"]
    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class CnnModel(Settings):
    name: Literal["cnn"]
    channels: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    hidden: tuple[PositiveInt, ...] = ()


class LenetModel(Settings):
    name: Literal["lenet"]


class TorchvisionModel(Settings):
    name: Literal[TORCHVISION_CLASSIFIERS]  # type: ignore[valid-type]  # a tuple of names is one


Model = Annotated[LinearModel | MlpModel | CnnModel | LenetModel | TorchvisionModel, Field(discriminator="name")]

# -- input paths --------------------------------------------------------------------------------------


class ResidentInput(Settings):
    name: Literal["resident"]


class LoaderInput(Settings):
    name: Literal["loader"]
    workers: Annotated[int, Field(ge=0)] = 0
    pin_memory: bool = False


Input = Annotated[ResidentInput | LoaderInput, Field(discriminator="name")]

# -- experiments, datasets, devices -------------------------------------------------------------------

SHORTHAND_KEYS = ("model", "optimizer", "schedule", "input")


class Experiment(Settings):
    """One training job with every setting spelled out; what `plan` writes and the trainer reads."""

    dataset: Name
    model: Model
    optimizer: Optimizer
    schedule: Schedule = ConstantSchedule()
    input: Input
    precision: Literal["fp32", "tf32", "bf16", "fp16"]
    epochs: PositiveInt
    batch_size: PositiveInt
    seed: Seed


def _check_part_size(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if whole or (isinstance(value, float) and 0 < value < 1):
        return value
    raise ValueError("must be a fraction between 0 and 1, or a count of at least 1")


PartSize = Annotated[float | int, BeforeValidator(_check_part_size)]


class DigitsDataset(Settings):
    """The 1,797 handwritten digits of 8x8 pixels that come with scikit-learn."""

    source: Literal["digits"]
    validation: PartSize
    test: PartSize
    seed: Seed = 0

    @model_validator(mode="after")
    def _something_is_left_to_train_on(self) -> DigitsDataset:
        if isinstance(self.validation, float) and isinstance(self.test, float) and self.validation + self.test >= 1:
            raise ValueError("validation and test together must be less than 1: the rest is what is trained on")
        return self


Dataset = DigitsDataset


_MOST_THREADS = 1024


def _check_threads(value: Any) -> Any:
    if value == "auto":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_THREADS:
        return value
    raise ValueError(f"must be 'auto' (all the cores this process may use) or a count from 1 to {_MOST_THREADS}")


class CpuDevice(Settings):
    threads: Annotated[int | None, BeforeValidator(_check_threads)] = None


def _check_gpu_count(value: Any) -> Any:
    if type(value) is not int:  # Python holds 1, 1.0 and true to be equal
        raise ValueError("must be a whole number; allowed: 1")
    return value


class GpuDevice(Settings):
    kind: Literal["auto", "cuda", "mps", "xpu"] = "auto"
    count: Annotated[Literal[1], BeforeValidator(_check_gpu_count)] = 1
    if_missing: Literal["skip", "fail"] = "skip"


class Devices(Settings):
    cpu: CpuDevice = CpuDevice()
    gpu: GpuDevice = GpuDevice()
