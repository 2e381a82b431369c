"""The start of a training, layer by layer: what its first batch holds, and what the first forward and backward make
of it. Devices that agree here compute the same; where they part, this names the layer.

Computed in the precision of the training, on the batch's first images, on a network that is thrown away afterwards.
Dropout is off, since each kind of device draws from a stream of its own; batch normalisation works as in training.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from photofinish.data.images import Int64Array
from photofinish.models.own import tensors_in
from photofinish.results.records import FirstStep, Print
from photofinish.training.batches import Batch, Batches, batch_order
from photofinish.training.optimisation import Loss
from photofinish.training.teams import Team
from photofinish.training.torch_device import autocast

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_CHUNK = 1 << 20
_FALLBACK = re.compile(r"operator '(?:aten::)?([\w.]+)'.* fall back to run on the CPU")
_MOST_IMAGES = 64
"""Of a batch that several devices share, one alone may not have the memory for more."""
_PRINTED_IMAGES = 4
"""of each module's output: normalisation has mixed the whole batch into each image"""


def first_batch(training: Batches, team: Team) -> Batch | None:
    """The first batch as the network gets it, put together from everyone's shares; None where another one leads."""
    images, labels = next(iter(training.shuffled(0)))
    shares = team.gather_lists([images.cpu(), labels.cpu()])
    if team.rank != 0:
        return None
    whole_images, whole_labels = (torch.cat([share[part] for share in shares]) for part in (0, 1))
    for rank, (own_images, own_labels) in enumerate(shares):
        whole_images[rank :: team.size], whole_labels[rank :: team.size] = own_images, own_labels
    return whole_images, whole_labels


def first_step(
    network: nn.Module,
    criterion: Loss,
    batch: Batch,
    device: torch.device,
    precision: str,
    labels: Int64Array,
    seed: int,
) -> FirstStep:
    """Of a network with its initial weights; `labels` are those of all training images."""
    weights = {name: tensor_print(parameter) for name, parameter in network.named_parameters()}
    outputs: dict[str, Print] = {}
    hooks = [
        module.register_forward_hook(partial(_print_output, outputs, name or "(network)"))
        for name, module in network.named_modules()
        if next(module.children(), None) is None
    ]
    images, targets = (part[:_MOST_IMAGES].to(device) for part in batch)
    network.to(device).train()
    for module in network.modules():
        if isinstance(module, _DROPOUTS) or type(module).__name__ == "StochasticDepth":
            module.eval()
    with fallbacks_counted() as fallbacks:
        with autocast(device, precision):
            loss = criterion.mean(network(images), targets)
        loss.backward()  # type: ignore[no-untyped-call]
    for hook in hooks:
        hook.remove()
    parameters = network.named_parameters()
    rows = batch_order(len(labels), seed, 0).numpy()
    return FirstStep(
        batch_order_sha256=_sha256(rows, np.asarray(labels)[rows]),
        first_batch_sha256=_sha256(batch[0].numpy(), batch[1].numpy()),
        loss=loss.item(),
        weights=weights,
        outputs=outputs,
        gradients={name: tensor_print(parameter.grad) for name, parameter in parameters if parameter.grad is not None},
        cpu_fallbacks=dict(fallbacks),
    )


@contextmanager
def fallbacks_counted() -> Iterator[Counter[str]]:
    """How often each operator that the device lacks is computed on the CPU inside, known afterwards: only where the
    user lets it (PYTORCH_ENABLE_MPS_FALLBACK=1). By itself PyTorch warns of the first one alone."""
    counted: Counter[str] = Counter()
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield counted
    finally:
        torch.set_warn_always(before)
    for each in told:
        if found := _FALLBACK.search(str(each.message)):
            counted[found[1]] += 1
        else:  # of something else: not ours to keep
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def tensor_print(tensor: torch.Tensor) -> Print:
    """In double precision on the CPU, chunk by chunk, so that equal tensors give equal figures on every device."""
    squares = signed = 0.0
    for chunk in torch.split(tensor.detach().flatten(), _CHUNK):
        values = chunk.cpu().double()
        squares += float(values.square().sum())
        signed += float(values @ _signs()[: len(values)])
    return squares**0.5, signed


@cache
def _signs() -> torch.Tensor:
    return torch.randint(0, 2, (_CHUNK,), generator=torch.Generator().manual_seed(0)).double() * 2 - 1


def _print_output(prints: dict[str, Print], name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
    for tensor in tensors_in(output)[:1]:
        prints.setdefault(name, tensor_print(tensor[:_PRINTED_IMAGES]))


def _sha256(*arrays: np.typing.NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
