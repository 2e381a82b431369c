"""First step of a training, taken on networks that are thrown away.

It records each layer's output for the first batch. If two devices agree here, they compute the
same. If not, the first layer that differs is named. Each kind of device draws other random numbers
from a seed, so dropout is off, and the record notes any other draws. Batch normalisation works as
in training.
"""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from photofinish.config.precisions import PRECISIONS
from photofinish.data.packed import Column
from photofinish.data.ragged import Ragged
from photofinish.files import sha256_of_bytes
from photofinish.inside.tensors import fingerprint_tensor
from photofinish.nested import Nested, leaves, map_nested, samples_in
from photofinish.results.trained import FirstStep
from photofinish.training.batches import Batch, Batches, batch_order, map_batch
from photofinish.training.custom_check import StepResult, Tensors, run_step
from photofinish.training.losses import CustomStep, Loss
from photofinish.training.torch_device import memory_format, to_memory_format
from photofinish.training.world import World

_DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
# By hand: one of several devices may lack memory for a whole batch, and the CPU would be slow.
_MOST_IMAGES, _FEWEST_IMAGES = 64, 8
_MOST_VALUES = 64 * 3 * 64 * 64  # those of 64 small pictures
_MOVING_SEED = 0x5EED_0F_57E9
"""Seed for changing weights. With the seed that drew the weights, all would change alike."""


def first_batch(training: Batches, team: World) -> Batch:
    """Return the first batch, joined from all ranks' shares.

    If `collate` gave the shares different shapes, return rank 0's share.
    """
    own = map_batch(torch.Tensor.cpu, training.first())
    shares = team.all_gather_object(own)

    def joined(*parts: torch.Tensor) -> torch.Tensor:
        if len({part.shape[1:] for part in parts}) > 1:
            return parts[0]
        whole = torch.cat(parts)
        for rank, share in enumerate(parts):
            whole[rank :: team.size] = share
        return whole

    images, targets = zip(*shares, strict=True)
    return map_nested(joined, *images), map_nested(joined, *targets)


def first_step(
    network: nn.Module,
    criterion: Loss,
    batch: Batch,
    device: torch.device,
    precision: str,
    labels: Nested[Column],
    seed: int,
    custom_step: CustomStep | None = None,
    *,
    is_collated: bool = False,
) -> FirstStep:
    """Return the record of the first step of a network with initial weights, layer by layer.

    On the CPU, a second step measures what rounding may change in each layer. `labels` are the
    targets of all training images. A collated batch is not cut, as its pieces may not be valid
    batches.
    """
    weights = {name: fingerprint_tensor(weight) for name, weight in network.named_parameters()}
    has_dropout = _switch_dropout_off(network.train())
    moved = copy.deepcopy(network) if device.type == "cpu" else None
    values = sum(tensor[0].numel() for tensor in leaves(batch[0]))
    most = min(_MOST_IMAGES, max(_FEWEST_IMAGES, _MOST_VALUES // values))
    count = samples_in(batch[1]) if is_collated else most
    layout = memory_format(network, device, precision)
    images, targets = map_batch(lambda part: part[:count].to(device), batch)
    images = to_memory_format(images, layout)

    def step(network: nn.Module) -> StepResult:
        network.to(device, memory_format=layout)  # type: ignore[call-overload]
        return run_step(network, criterion, (images, targets), precision, custom_step=custom_step)

    taken = step(network)
    outputs, gradients = taken.first_outputs_and_gradients()
    rounding: tuple[dict[str, float], dict[str, float]] = {}, {}
    if moved is not None:
        _move_weights(moved, PRECISIONS[precision].moved_by)
        other_outputs, other_gradients = step(moved).first_outputs_and_gradients()
        rounding = _distances(outputs, other_outputs), _distances(gradients, other_gradients)
    rows = batch_order(samples_in(labels), seed, 0).numpy()
    return FirstStep(
        batch_order_sha256=sha256_of_bytes(rows.tobytes() + _bytes_of(labels, rows)),
        first_batch_sha256=sha256_of_bytes(
            b"".join(tensor.numpy().tobytes() for part in batch for tensor in leaves(part))
        ),
        loss=taken.loss,
        weights=weights,
        outputs={name: fingerprint_tensor(output) for name, output in outputs.items()},
        gradients={name: fingerprint_tensor(grad) for name, grad in gradients.items()},
        output_rounding=rounding[0],
        gradient_rounding=rounding[1],
        draws=taken.draws,
        has_dropout=has_dropout,
    )


def _move_weights(network: nn.Module, share: float) -> None:
    """Change each weight at random by up to a share of its size."""
    generator = torch.Generator().manual_seed(_MOVING_SEED)
    with torch.no_grad():
        for weight in network.parameters():
            numbers = torch.rand(weight.shape, generator=generator)
            weight.mul_(1 + share * (2 * numbers - 1))


def _switch_dropout_off(network: nn.Module) -> bool:
    """Switch off dropout in PyTorch's and torchvision's modules. Return True if there was any."""
    found = False
    for module in network.modules():
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            found |= module.dropout > 0
            module.dropout = 0.0
        elif isinstance(module, _DROPOUTS) or type(module).__name__ == "StochasticDepth":
            found |= bool(module.p)
            module.eval()
    return found


def _bytes_of(labels: Nested[Column], rows: npt.NDArray[np.int64]) -> bytes:
    if isinstance(labels, tuple | dict):
        return b"".join(_bytes_of(part, rows) for part in leaves(labels))
    if isinstance(labels, Ragged):
        return b"".join(labels[row].tobytes() for row in rows)
    return labels[rows].tobytes()


def _distances(first: Tensors, second: Tensors) -> dict[str, float]:
    distances = {}
    for name in first:
        if name in second:
            difference = first[name].double() - second[name].double()
            distances[name] = difference.nan_to_num(0.0, 0.0, 0.0).norm().item()
    return distances
