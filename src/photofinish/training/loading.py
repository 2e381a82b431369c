"""Samples one at a time: read, transformed and normalised, then collated into batches."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from photofinish.config.pytorch_names import TRANSFORMS
from photofinish.custom.reference import CodeReference
from photofinish.custom.running import as_function, run_custom_code, seed_generators
from photofinish.data.ragged import Ragged
from photofinish.errors import UserError
from photofinish.models.custom import generators_kept, generators_seeded
from photofinish.nested import Nested, leaves, map_nested, samples_in
from photofinish.training.batches import (
    SEEDS,
    Batch,
    Draw,
    Part,
    augmented,
    derived_seed,
    map_batch,
    to_tensor,
)

if TYPE_CHECKING:
    from photofinish.config.experiment import CustomTransform, LoaderInput
    from photofinish.data import Dtype, Shape

Key = tuple[int, Draw | None, int | None, int]
"""Row, augmentation, epoch (None in evaluation) and repeat of a sample."""


class SampleKind(NamedTuple):
    """Shape and dtype that a network gets for one sample in evaluation."""

    shape: Nested[Shape]
    dtype: Nested[Dtype]
    is_normalised: bool
    """True if the data set's normalisation is the last step before the network."""


class LoadedSamples(Dataset[Batch]):
    """Samples of one part in the form that a network gets, and their collation into batches."""

    def __init__(
        self,
        part: Part,
        settings: LoaderInput,
        seed: int,
        padding: int = 0,
    ) -> None:
        self.part, self._seed, self._padding = part, seed, padding
        self.transform = _Transform.of(settings.transform, seed, "training item")
        self._eval_transform = _Transform.of(settings.eval_transform, seed, f"{part.name} item")
        self._targets: torch.Tensor | None = None
        """Targets of packed arrays without a transform, the usual case, which is read faster."""
        are_arrays = all(isinstance(column, np.ndarray) for column in (part.images, part.labels))
        if are_arrays and not (self.transform or self._eval_transform):
            self._targets = to_tensor(part.labels)
        self._may_change = settings.eval_transform is not None
        self._has_collate = settings.collate is not None
        self._keys: list[Key] = []
        """Keys of the samples that were read last, which seed a custom `collate`."""
        self.make_batch: Any = default_collate
        if given := settings.collate:
            with run_custom_code(f"collate {given.name} can't be made"):
                self.make_batch = as_function(CodeReference.of(given.name).load(), given.arguments)

    def __len__(self) -> int:
        return samples_in(self.part.labels)

    def __getitem__(self, key: Key) -> Batch:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[Key]) -> list[Batch]:
        """Return the samples of a batch, as DataLoader asks for them.

        Keeping the generators' states takes ten times as long as seeding, so it is done once.
        """
        self._keys = keys
        custom = self.part.read, self.transform, self._eval_transform
        may_draw = any(each is not None for each in custom)
        with generators_kept() if may_draw else nullcontext():
            return [self._sample(key) for key in keys]

    def _sample(self, key: Key) -> Batch:
        row, draw, *_ = key
        if self._targets is not None and not draw:
            return self.part.normalise(to_tensor(self.part.images[row])), self._targets[row]
        item, changed, target = self._changed(key)
        # A transform that converts an image to floats also normalises it.
        if changed is item or _dtypes(changed) == _dtypes(item):
            changed = self.part.normalise(changed)
        return changed, map_nested(to_tensor, target)

    def _changed(self, key: Key) -> tuple[Any, Any, Any]:
        """Return a sample's input before and after the transform, and the target."""
        row, draw, epoch, repeat = key
        arrays, target = self.read(row, epoch, repeat)
        if draw:
            arrays = augmented(arrays, draw, self._padding)
        item = map_nested(to_tensor, arrays)
        transform = self._eval_transform if epoch is None else self.transform
        if transform is None:
            return item, item, target
        changed = transform(item, row, epoch, repeat)
        if not self._may_change and _kind(changed) != _kind(item):
            raise UserError(
                f"transform {transform.name} returns {_kind(changed)} for {_kind(item)}. Samples "
                f"of validation aren't transformed, so shape and type must stay the same. With an "
                f"eval_transform next to it in params.yaml, both may change them"
            )
        return item, changed, target

    def kind(self) -> SampleKind:
        """Return shape and dtype of samples in evaluation, with None for sides that differ."""
        rows = {0, len(self) - 1}
        for column in leaves(self.part.images):
            if isinstance(column, Ragged):
                rows |= {int(row) for row in (*column.shapes.argmin(0), *column.shapes.argmax(0))}
        with generators_kept():
            samples = [self._changed((row, None, None, 0)) for row in rows]
            item, trained, _ = self._changed((0, None, 0, 0))
        is_normalised = _dtypes(samples[0][0]) == _dtypes(samples[0][1])
        if self._may_change and is_normalised != (_dtypes(item) == _dtypes(trained)):
            alone = "validation" if is_normalised else "training"
            raise UserError(
                f"input: transform turns {_kind(item)} into {_kind(trained)}, and eval_transform "
                f"into {_kind(samples[0][1])}, so mean and std would normalise {alone} samples "
                f"alone. Let both transforms make floats, or neither"
            )
        kinds = [changed for _, changed, _ in samples]
        if self._has_collate:
            is_normalised = False
            batches = [self.collate([self[row, None, None, 0]]) for row in rows]
            kinds = [map_nested(lambda leaf: leaf[0], inputs) for inputs, _ in batches]
        dtype = map_nested(lambda leaf: str(leaf.dtype).removeprefix("torch."), kinds[0])
        return SampleKind(map_nested(_common_shape, *kinds), dtype, is_normalised)

    def read(self, row: int, epoch: int | None, repeat: int = 0) -> tuple[Any, Any]:
        """Return a sample's input and target, from packed files or from the data set.

        The data set's code may draw, so this seeds the CPU generators.
        """
        part = self.part
        if part.read is None:
            return map_batch(lambda column: column[row], (part.images, part.labels))
        _seed_for("item", self._seed, epoch, row, repeat)
        with run_custom_code("an item can't be read"):
            return part.read(row)

    def collate(self, samples: list[Batch]) -> Batch:
        """Collate samples. A rank without a share of a small last batch gets an empty batch."""
        some = samples or [self[0, None, None, 0]]
        keys = "collate", self._seed, *self._keys
        with generators_seeded(derived_seed(*keys) % SEEDS) if self._has_collate else nullcontext():
            inputs, targets = self.make_batch(some)
        batch = _as_tuple(inputs), _as_tuple(targets)
        return batch if samples else map_batch(lambda leaf: leaf[:0], batch)


def _common_shape(*samples: torch.Tensor) -> Shape:
    sides = zip(*(sample.shape for sample in samples), strict=True)
    return tuple(same[0] if len({*same}) == 1 else None for same in sides)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class _Transform:
    def __init__(self, settings: CustomTransform, seed: int, what: str) -> None:
        self.name, self._seed, self._what = settings.name, seed, what
        custom = TRANSFORMS.reference(settings.name).load()
        with run_custom_code(f"transform {settings.name} can't be made"):
            self.function = as_function(custom, settings.arguments)

    @classmethod
    def of(cls, settings: CustomTransform | None, seed: int, what: str) -> _Transform | None:
        return cls(settings, seed, what) if settings else None

    def __call__(self, item: Any, row: int, epoch: int | None, repeat: int) -> Any:
        failing = f"transform {self.name} fails on {self._what} {row}"
        _seed_for("transform", self._seed, epoch, row, repeat)
        with run_custom_code(failing):
            return _as_tuple(self.function(map_nested(torch.clone, item)))


def _seed_for(purpose: str, seed: int, epoch: int | None, row: int, repeat: int) -> None:
    parts = (purpose, seed, epoch, row, repeat)
    seed_generators(derived_seed(*(parts if repeat else parts[:-1])) % SEEDS)


def _kind(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return f"{item.dtype} of shape {tuple(item.shape)}"
    if isinstance(item, tuple | dict):
        return map_nested(_kind, item)
    return f"a {type(item).__name__}"


def _dtypes(item: Any) -> Any:
    return map_nested(lambda leaf: leaf.dtype, item)
