"""Recurrent layers and attention by formula, as accelerators compute them.

The CPU computes them as one operator without shapes, or as thousands of small operators. An
accelerator has one operator for each pass, so the CPU's operators are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .tensors import tensors_in
from .timed_batches import is_loading
from .without_formula import custom_functions, nodes_between

if TYPE_CHECKING:
    from .counting import Operators


class FusedCount(NamedTuple):
    flops: int
    kernels: int
    saved: tuple[Tensor, ...]
    """Inputs that are saved for the backward pass, without weights."""
    other_saved_bytes: int
    """Bytes of other tensors that are saved for the backward pass."""
    time_steps: int = 0
    """Number of time steps that a recurrent layer takes one after another."""


class FusedOperators(TorchFunctionMode):
    """Counter of recurrent layers and attention, which pauses other counts during them."""

    def __init__(self, counts: Operators) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_loading():
            return func(*args, **kwargs)
        if func is Tensor.backward:
            self._counts.custom_functions |= custom_functions(args[0])
        if func is functional.multi_head_attention_forward:
            # This mode is off within the function, so replace its call of the attention.
            name = "scaled_dot_product_attention"
            run = partial(self._run, _ATTENTION, attention)
            with patch.object(functional, name, run):
                return func(*args, **kwargs)
        if formula := _FORMULAS.get(func):
            return self._run(func, formula, *args, **kwargs)
        return func(*args, **kwargs)

    def _run(self, func: Any, formula: Formula, *args: Any, **kwargs: Any) -> Any:
        if self._counts.failure:  # hooks may be forbidden
            return func(*args, **kwargs)
        paused = patch.object(self._counts, "is_paused", new=True)
        kept = list[Tensor]()
        # An output that was saved with its own node would never be freed.
        with paused, saved_tensors_hooks(Tensor.detach, lambda tensor: tensor):
            output = func(*args, **kwargs)
            outputs = list(tensors_in(output))
            try:
                kept += self._counts.add_fused(formula(*args, **kwargs), outputs)
            except Exception as error:  # noqa: BLE001  # as the script goes on
                self._counts.failure = error
        for node in nodes_between(outputs, tensors_in([*args, *kwargs.values()])):
            node.register_prehook(self._node_begins)
            node.register_hook(partial(self._node_ended, kept))
        return output

    def _node_begins(self, _gradients: Any) -> None:
        self._counts.is_paused = True

    def _node_ended(self, kept: list[Tensor], *_gradients: Any) -> None:
        self._counts.is_paused = False
        kept.clear()  # as the backward pass of a fused operator frees it


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,  # noqa: ARG001  # PyTorch's signature
    dropout_p: float = 0.0,  # noqa: ARG001
    is_causal: bool = False,
    **_: Any,
) -> FusedCount:
    """Count both products of each query and key, and their gradients.

    A causal mask leaves pairs out. Other masks are tensors, which leave no pair out.
    """
    queries, keys = query.shape[-2], key.shape[-2]
    pairs = queries * keys
    if is_causal:  # the first query sees the first key only
        both = min(queries, keys)
        pairs = both * (both + 1) // 2 + (queries - both) * keys
    pairs *= query.numel() // (queries * query.shape[-1])
    needs_scores = query.requires_grad or key.requires_grad
    flops = 2 * pairs * value.shape[-1] * (1 + value.requires_grad + needs_scores)
    flops += 2 * pairs * query.shape[-1] * (1 + query.requires_grad + key.requires_grad)
    saved = (query, key, value) if needs_scores or value.requires_grad else ()
    return FusedCount(flops, 1 + bool(saved), saved, 0)


def _layers(data: Tensor, hidden_or_sizes: Any, *others: Any) -> FusedCount:
    """Count stacked recurrent layers, by the arguments of torch.lstm, torch.gru and torch.rnn_tanh.

    cuDNN has one operator for all layers. Each layer counts as one operator forward, and as one
    operator for each of the two kinds of gradients.
    """
    is_packed = isinstance(others[1], (list, tuple))  # then the hidden state follows
    weights, _, layers, _, _, is_bidirectional, *rest = others[1:] if is_packed else others
    batch_first = not is_packed and rest[0]
    length = len(hidden_or_sizes) if is_packed else data.shape[1 if batch_first else 0]
    matrices = [each for each in weights if each.dim() > 1]
    layers *= 1 + is_bidirectional
    firsts = [0, len(matrices) // layers] if is_bidirectional else [0]
    count = _recurrent(data, matrices, firsts, (layers, 2 * layers))
    passes = 1 + bool(count.saved)
    return count._replace(time_steps=passes * layers * length)


def _cell(data: Tensor, _hidden: Any, *weights: Tensor | None) -> FusedCount:
    """Count one step of a cell: two products, the operators between them, and all gradients."""
    matrices = [each for each in weights if each is not None and each.dim() > 1]
    return _recurrent(data, matrices, [0], (3, 5))


def _recurrent(
    data: Tensor, matrices: list[Tensor], firsts: list[int], kernels: tuple[int, int]
) -> FusedCount:
    """Count the product of each matrix with each sample at each time step.

    Only the first matrices read the data. For the backward pass, the data and the gates are saved.
    The number of gates is the number of values in each product.
    """
    samples = data.numel() // data.shape[-1]
    trains = data.requires_grad or any(each.requires_grad for each in matrices)
    flops = gates = 0
    for number, matrix in enumerate(matrices):
        needs_gradient = data.requires_grad if number in firsts else trains
        passes = 1 + needs_gradient + matrix.requires_grad
        flops += 2 * samples * matrix.numel() * passes
        gates += samples * len(matrix)
    if not trains:
        return FusedCount(flops, kernels[0], (), 0)
    gate_bytes = gates // 2 * data.element_size()
    return FusedCount(flops, sum(kernels), (data,), gate_bytes)


Formula = Callable[..., FusedCount]
_ATTENTION = functional.scaled_dot_product_attention
_FORMULAS: dict[Any, Formula] = {
    _ATTENTION: attention,
    torch.lstm: _layers,
    torch.gru: _layers,
    torch.rnn_tanh: _layers,
    torch.rnn_relu: _layers,
    torch.lstm_cell: _cell,
    torch.gru_cell: _cell,
    torch.rnn_tanh_cell: _cell,
    torch.rnn_relu_cell: _cell,
}
