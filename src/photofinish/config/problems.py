"""Problems in params.yaml: where they are, what is wrong, and the nearest valid name.

No training reads this file, so a reworded message reruns nothing.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from photofinish.config.base import BUILT_IN, OWN, CallsCode
from photofinish.errors import SettingError
from photofinish.wording import printable, shortened, unknown_name

KeyPath = tuple[str | int, ...]
NO_VALUE: Any = object()
REQUIRED = "this key is required"
NO_MAPPING = "must be a mapping"
UNKNOWN_KEY = "unknown key"


@dataclass(frozen=True)
class ConfigProblem:
    path: KeyPath
    problem: str
    value: Any = NO_VALUE

    def describe(self, place: str) -> str:
        key = ".".join(map(str, self.path)) or "(the whole file)"
        value = ""
        if self.value is not NO_VALUE:
            value = f" = {shortened(json.dumps(self.value, ensure_ascii=False))}"
        return printable(f"{place}  {key}{value}\n    {self.problem}")


def problems_in(error: ValidationError, schema: Any) -> Iterator[ConfigProblem]:
    """Yield pydantic's errors as problems. Paths start at the validated part."""
    for detail in error.errors():
        # Pydantic also calls a list too short if it has faulty items.
        if detail["type"] != "too_short" or not detail["input"]:
            yield _problem_in(detail, schema)


def _problem_in(error: ErrorDetails, schema: Any) -> ConfigProblem:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    path, _ = _resolve(schema, error["loc"])
    if kind == "extra_forbidden":
        _, models = _resolve(schema, error["loc"][:-1])
        names = list(dict.fromkeys(name for model in models for name in model.model_fields))
        same = [setting for setting, others in _SAME.items() if path[-1] in others]
        if same and "optimizer" in names:
            return ConfigProblem(path, f"{UNKNOWN_KEY}; write {same[0]}", value)
        return ConfigProblem(path, unknown_name("key", path[-1], names), value)
    if kind == "missing":
        return ConfigProblem(path, REQUIRED)
    if kind == "missing_key":
        return ConfigProblem((*path, context["key"]), REQUIRED)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        key = context["discriminator"].strip("'")
        if kind == "union_tag_not_found":
            return ConfigProblem((*path, key), REQUIRED)
        what = str(path[-1]) if path and key == "name" else key
        problem = unknown_name(what, value[key], _names_in(context["expected_tags"]))
        return ConfigProblem((*path, key), problem, value[key])
    if kind == "literal_error":
        names = _names_in(context["expected"].replace(" or ", ", "))
        return ConfigProblem(path, unknown_name("value", value, names), value)
    if kind == "value_error":
        return ConfigProblem(
            path, _message_of(context["error"]), NO_VALUE if value is None else value
        )
    return ConfigProblem(path, error["msg"], value)


def _names_in(quoted: str) -> list[str]:
    return [name.strip(" '") for name in quoted.split(",")]


def _resolve(schema: Any, location: tuple[int | str, ...]) -> tuple[KeyPath, list[type[BaseModel]]]:
    """Return the key path in the user's file, and the models allowed there.

    Unlike a key path, pydantic's location contains the tag of each union.
    """
    path: KeyPath = ()
    models = _models_in(schema)
    for part in location:
        if len(models) > 1:
            models = [model for model in models if part in _tags_of(model)]
        elif part != "[key]":  # follows a faulty key of a dict
            path = (*path, part)
            fields = [model.model_fields.get(str(part)) for model in models]
            models = [inner for field in fields if field for inner in _models_in(field.annotation)]
    return path, models


def _tags_of(model: type[BaseModel]) -> tuple[Any, ...]:
    if issubclass(model, CallsCode):
        return (OWN,)
    named_by = model.model_fields.get("name") or model.model_fields["source"]
    return (BUILT_IN, *get_args(named_by.annotation))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if get_origin(annotation) is Annotated:
        return _models_in(get_args(annotation)[0])
    if get_origin(annotation) in (types.UnionType, Union):
        return [model for option in get_args(annotation) for model in _models_in(option)]
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return [annotation] if is_model else []


_SIZES = "a fraction between 0 and 1, or a count of at least 1"
_MESSAGES = {
    "arguments": "plan files are JSON, which has no .inf and no .nan: use null in {names}",
    "part size": f"must be {_SIZES}",
    "side lengths": "must be a side length from 1 to 4096, or a list of height and width",
    "no part": f"this key is required: {_SIZES}. Write 0 for no validation",
    "own part": "this source has its own {part} part: remove this key",
    "mean without std": "give both mean and std, each with a number for every channel",
    "place": "give either path, or parts with a path for each part",
    "threads": "must be 'auto' (all cores this process may use) or a count from 1 to 1024",
    "duration": "must be a number with s, min or h, such as 10 min",
    "gpu count": "must be 'all', or a count of at least 1",
    "ids without data_parallel": "device_ids and output_device need strategy: data_parallel",
    "ids and count": "device_ids names {ids} GPUs, but count is {count}: remove count",
    "constant": "a constant schedule has no {names}: remove it",
    "plateau each step": "reduce_on_plateau follows the validation loss, so remove `every: step`",
    "plateau of a maximum": "reduce_on_plateau follows the validation loss, so remove `mode: max`",
    "no weight decay": "weight_decay_exclude needs an optimizer of torch.optim with weight_decay",
    "mode": "is {name} better where it is larger (max) or smaller (min)?",
    "metric twice": "two metrics have the same name: rename one, as in `as: top5`",
    "metric name": "MLflow doesn't accept the name `{name}`: use letters, digits, _ . / -",
    "init": "must be one of {names}, or conv and linear, each with such a name or {{normal: 0.01}}",
    "weights": "there are no such weights; allowed: {names}",
}


def _message_of(error: ValueError) -> str:
    if not isinstance(error, SettingError):
        return str(error)
    if error.kind == "unknown class":
        return f"{unknown_name(**error.facts)}, or custom code as file.py:Name"
    return _MESSAGES[error.kind].format(**error.facts)


_SAME: dict[str, tuple[str, ...]] = {
    "clip_grad_norm: 1.0": ("grad_clip", "gradient_clip_val", "max_grad_norm", "clip_grad"),
    "accumulate: 4, the number of parts of a batch": (
        "accumulate_grad_batches", "gradient_accumulation_steps", "accumulation_steps",
    ),
    "warmup_steps: 500": ("warmup", "warmup_ratio", "warmup_epochs", "num_warmup_steps"),
    "ema: 0.999, the decay": ("model_ema", "ema_decay", "use_ema"),
    "early_stopping: {patience: 5}": ("patience", "early_stop"),
    "sampler: balanced": ("weights", "balanced", "class_balance", "weighted_sampler"),
    "batch_transform: MixUp, or CutMix": ("mixup", "cutmix", "mixup_alpha", "cutmix_alpha"),
    "optimizer: {lr: 0.1}": ("lr", "learning_rate"),
    "optimizer: {weight_decay: 0.01}": ("weight_decay",),
    "optimizer: {momentum: 0.9}": ("momentum",),
    "epochs": ("max_epochs", "num_epochs", "num_train_epochs", "n_epochs"),
    "schedule": ("scheduler", "lr_scheduler"),
    "loss": ("criterion", "loss_fn"),
    "model": ("network", "net"),
    "precision: bf16, or fp16": ("amp", "mixed_precision"),
    "input: {name: loader, workers: 2}": ("num_workers", "workers", "pin_memory"),
    "cuda_graphs": ("steps",),
    "model: {compile: true}": ("compile",),
    "devices.gpu.count": ("devices", "gpus", "num_gpus", "n_gpu"),
    "devices.gpu.strategy": ("strategy",),
    "devices.gpu.kind": ("accelerator", "device"),
    "save_weights: every_epoch": ("enable_checkpointing", "save_top_k", "save_every"),
}  # fmt: skip
"""Settings here, and their names in other trainers."""
