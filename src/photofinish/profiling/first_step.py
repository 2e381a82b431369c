"""A training's first step, taken before it on networks that are thrown away.

Layer by layer, what the first batch holds, and what the first forward and backward make of it: devices that agree here
compute the same; where they part, this names the layer. Computed in the precision of the training, on the batch's first
images. Dropout is off, since each kind of device draws from a stream of its own; batch normalisation works as in
training.

One's own network, and loss, are tried before: is there all that a training, its record and its comparison ask of them?
What is not is told with the layer, or with the user's part of the traceback.
"""

from __future__ import annotations

import copy
import pickle
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

from photofinish.config.experiment import Experiment
from photofinish.custom_code import users_code
from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes
from photofinish.models.own import same_bits, tensors_in
from photofinish.results.records import FirstStep, TensorFingerprint
from photofinish.training.batches import Batch, Batches, batch_order, seed_epoch
from photofinish.training.failures import nondeterminism_explained
from photofinish.training.optimisation import Loss
from photofinish.training.torch_device import autocast, memory_format, to_memory_format
from photofinish.training.world import World

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_CHUNK = 1 << 20
_FALLBACK = re.compile(r"operator '(?:aten::)?([\w.]+)'.* fall back to run on the CPU")
_MOST_IMAGES, _FEWEST_IMAGES = 64, 8
"""of the first batch; one device of several may not have the memory for the whole of it"""
_MOST_VALUES = 64 * 3 * 64 * 64
"""of those images, so that the step takes seconds on the CPU also where images are large"""
_PRINTED_IMAGES = 4
"""of each module's output: normalisation has mixed the whole batch into each image"""
_MOVED_BY = {"fp32": 2**-15, "tf32": 2**-11, "fp16": 2**-11, "bf16": 2**-8}
"""How far each weight moves, relative to itself, to see what rounding may change. For fp32 far more than one rounding
(2**-24), because convolutions differ by some dozens of these between libraries, and because the few activations that
cross ReLU's corner, or win a pooling window, must be likely to show in a single step (docs/verdict.md)."""
_MOVING_SEED = 0x5EED_0F_57E9
"""not one that an experiment starts from: weights drawn from the same numbers would all move the same way"""
_Tensors = dict[str, torch.Tensor]
_Step = list[tuple[str, torch.Tensor]]
"""what each layer gives, then each gradient, by name"""
_OUTPUT = "output of the network"


def first_batch(training: Batches, team: World) -> Batch | None:
    """The first batch as the network gets it, put together from everyone's shares; None where another one leads."""
    images, labels = next(iter(training.train_batches(0)))
    shares = team.all_gather_object([images.cpu(), labels.cpu()])
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
    labels: np.typing.NDArray[np.int64],
    seed: int,
) -> FirstStep:
    """Return what the first step computes in a network with its initial weights, layer by layer.

    On the CPU a second step measures what rounding may change in each layer. `labels` are those of all training images.
    """
    weights = {name: fingerprint_tensor(parameter) for name, parameter in network.named_parameters()}
    moved = copy.deepcopy(network) if device.type == "cpu" else None
    values_an_item = batch[0][0].numel()
    count = min(_MOST_IMAGES, max(_FEWEST_IMAGES, _MOST_VALUES // values_an_item))
    images, targets = (part[:count] for part in batch)
    with fallbacks_counted() as fallbacks:
        outputs, gradients, loss = _layer_by_layer(network, criterion, (images, targets), device, precision)
    output_rounding: dict[str, float] = {}
    gradient_rounding: dict[str, float] = {}
    if moved is not None:
        _move_weights(moved, _MOVED_BY[precision])
        others, other_gradients, _ = _layer_by_layer(moved, criterion, (images, targets), device, precision)
        output_rounding, gradient_rounding = _distances(outputs, others), _distances(gradients, other_gradients)
    rows = batch_order(len(labels), seed, 0).numpy()
    return FirstStep(
        batch_order_sha256=sha256_of_bytes(rows.tobytes() + np.asarray(labels)[rows].tobytes()),
        first_batch_sha256=sha256_of_bytes(batch[0].numpy().tobytes() + batch[1].numpy().tobytes()),
        loss=loss,
        weights=weights,
        outputs={name: fingerprint_tensor(output) for name, output in outputs.items()},
        gradients={name: fingerprint_tensor(gradient) for name, gradient in gradients.items()},
        output_rounding=output_rounding,
        gradient_rounding=gradient_rounding,
        cpu_fallbacks=dict(fallbacks),
    )


def _layer_by_layer(
    network: nn.Module, criterion: Loss, batch: Batch, device: torch.device, precision: str
) -> tuple[_Tensors, _Tensors, float]:
    """Return each innermost module's output, in the order in which they run, each gradient, and the loss."""
    outputs: _Tensors = {}

    def note(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        for tensor in tensors_in(output)[:1]:
            if name not in outputs:
                some = tensor[:_PRINTED_IMAGES] if tensor.dim() else tensor
                outputs[name] = some.detach().clone()  # a later module may work in place

    layout = memory_format(network, device, precision)
    network.to(device, memory_format=layout).train()  # type: ignore[call-overload]
    hooks = []
    for name, module in network.named_modules():
        if next(module.children(), None) is None:
            hooks.append(module.register_forward_hook(partial(note, name or "(network)")))
        if isinstance(module, _DROPOUTS) or type(module).__name__ == "StochasticDepth":
            module.eval()
    images, targets = to_memory_format(batch[0].to(device), layout), batch[1].to(device)
    seed_epoch(0, 0)  # custom networks may draw
    with autocast(device, precision):
        loss = criterion.mean(network(images), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    for hook in hooks:
        hook.remove()
    gradients = {name: each.grad for name, each in network.named_parameters() if each.grad is not None}
    return outputs, gradients, loss.item()


def _move_weights(network: nn.Module, share: float) -> None:
    """Multiply each weight by a random factor between 1 - share and 1 + share."""
    generator = torch.Generator().manual_seed(_MOVING_SEED)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(1 + share * (2 * torch.rand(weight.shape, generator=generator) - 1))


def _distances(first: _Tensors, second: _Tensors) -> dict[str, float]:
    """Return the norm of the difference between two tensors of each name."""
    return {
        name: fingerprint_tensor(first[name].double() - second[name].double())[0] for name in first if name in second
    }


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


def fingerprint_tensor(tensor: torch.Tensor) -> TensorFingerprint:
    """In double precision on the CPU, chunk by chunk, so that equal tensors give equal figures on every device. What
    isn't finite (masked scores, say) counts as 0, for no record holds it."""
    squares = signed = 0.0
    for chunk in torch.split(tensor.detach().flatten(), _CHUNK):
        values = chunk.cpu().double().nan_to_num(0.0, 0.0, 0.0)
        squares += float(values.square().sum())
        signed += float(values @ _signs()[: len(values)])
    return squares**0.5, signed


@cache
def _signs() -> torch.Tensor:
    return torch.randint(0, 2, (_CHUNK,), generator=torch.Generator().manual_seed(0)).double() * 2 - 1


def validate_custom_model(
    experiment: Experiment, network: nn.Module, criterion: Loss, batch: Batch, outputs: int
) -> None:
    """Raise UserError if a training, its record or its comparison can't use the network. Tries it on copies."""
    name, precision = f"model {experiment.model.name}", experiment.precision
    images, targets = batch
    device = images.device
    with users_code(f"{name} can't be copied, as copy.deepcopy does"):
        copies = [copy.deepcopy(network) for _ in range(3)]
    with users_code(f"{name} can't be pickled, which MLflow keeps it as"):
        pickle.dumps(network)
    layout = memory_format(network, device, precision)
    failing = f"{name} fails in a step on {len(images)} images of shape {tuple(images.shape[1:])}"
    with users_code(failing), nondeterminism_explained(experiment):
        for each in copies:
            each.to(device, memory_format=layout)  # type: ignore[call-overload]
        images = to_memory_format(images, layout)
        first, second = (_one_step(each, criterion, (images, targets), precision, outputs) for each in copies[:2])
        copies[2].load_state_dict(copies[1].state_dict())  # as a training that goes on, or an evaluation, has it
        third, restored = (_one_step(each, criterion, (images, targets), precision, outputs) for each in copies[1:])
    if experiment.deterministic:
        _refuse_loss_that_remembers(criterion, dict(first)[_OUTPUT], targets, precision)
        if what := _difference(first, second):
            raise UserError(
                f"{name} doesn't repeat: two steps from the same start, on the same images, give another {what}. "
                f"torch's generators are seeded, as numpy.random and random are when it is built: what else is drawn "
                f"there, or depends on the time? deterministic: false in params.yaml allows it"
            )
        if what := _difference(third, restored):
            raise UserError(
                f"{name} keeps something between steps that is not in its state_dict, so no checkpoint or result has "
                f"it: a second step gives another {what} where a new network is given the state after the first. Keep "
                f"it in a buffer (register_buffer)"
            )
    in_evaluation = users_code(f"{name} fails in evaluation (after eval(), in inference mode)")
    with in_evaluation, torch.inference_mode(), autocast(device, precision):
        copies[0].eval()(images)


def _refuse_loss_that_remembers(criterion: Loss, outputs: torch.Tensor, targets: torch.Tensor, precision: str) -> None:
    """Raise UserError if the loss gives another number for the same outputs."""
    values = []
    for _ in range(2):
        seed_epoch(0, 0)
        with autocast(outputs.device, precision):
            values.append(criterion.mean(outputs, targets))
    if not same_bits(*values):
        raise UserError(
            f"loss {criterion.name} doesn't repeat: it gives another number for the same outputs and targets. "
            f"What it keeps from one call to the next no checkpoint has: a loss must go by what it is given alone, and "
            f"draw from torch's generator alone. deterministic: false in params.yaml allows it"
        )


def _difference(here: _Step, there: _Step) -> str | None:
    """Return the name of the first difference, or None."""
    more = "number of outputs and gradients" if len(here) != len(there) else None
    pairs = zip(here, there, strict=False)
    return next((what for (what, one), (_, other) in pairs if not same_bits(one, other)), more)


def _one_step(network: nn.Module, criterion: Loss, batch: Batch, precision: str, wanted: int) -> _Step:
    images, targets = batch
    found: _Step = []

    def note(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        found.extend((f"output of {name}" if name else _OUTPUT, each.detach().clone()) for each in tensors_in(output))

    hooks = [module.register_forward_hook(partial(note, name)) for name, module in network.named_modules()]
    seed_epoch(0, 0)
    network.zero_grad()
    with autocast(images.device, precision):
        outputs = network.train()(images)
        if not isinstance(outputs, torch.Tensor) or outputs.shape != (len(images), wanted):
            told = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else f"a {type(outputs).__name__}"
            raise UserError(
                f"{type(network).__name__} gives {told} for {len(images)} images: it must give a tensor of "
                f"{len(images)} x {wanted}, a number for each class, value or label"
            )
        loss = criterion.mean(outputs, targets)
    loss.backward()  # type: ignore[no-untyped-call]
    for hook in hooks:
        hook.remove()
    gradients = {key: each.grad for key, each in network.named_parameters() if each.grad is not None}
    if odd := [key for key, gradient in gradients.items() if gradient.is_sparse or gradient.is_complex()]:
        raise UserError(
            f"{type(network).__name__} has sparse or complex gradients ({', '.join(odd)}), which PyTorch's fused "
            f"optimisers don't take: leave out sparse=True, and keep complex weights as real ones (torch.view_as_real)"
        )
    return found + [(f"gradient of {key}", gradient) for key, gradient in gradients.items()]
