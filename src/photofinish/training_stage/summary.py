"""A network's summary: what each of its modules makes of one image, and with how many parameters.

One black image goes through it, where it is and in evaluation. (Torch's device "meta" would need none, but its
operations import the compiler: seconds.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_HEADER = ("layer", "type", "output", "parameters")
_FLOATING_POINT_OPERATIONS_PER_MULTIPLY_ADD = 2


@dataclass
class _Layer:
    name: str
    kind: str
    parameters: int
    outputs: list[str] = field(default_factory=list)
    """shapes, each once: a module may be used several times"""

    def note_output(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        tensor = output if isinstance(output, torch.Tensor) else next(iter(output))
        shape = "x".join(map(str, tensor.shape[1:]))
        if shape not in self.outputs:
            self.outputs.append(shape)

    def row(self) -> tuple[str, str, str, str]:
        return self.name, self.kind, ", ".join(self.outputs) or "-", f"{self.parameters:,}"


class _OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up PyTorch's own formulas, as its FlopCounterMode does, which would import the compiler: seconds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No compiler is at work here that would have to be kept out of `__torch_dispatch__`."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.operations += formula(*args, **kwargs, out_val=out)
        return out


def summarise(network: nn.Module, image_shape: tuple[int, int, int]) -> str:
    """A table of the modules that compute or hold parameters, and the totals; the network stays as it is."""
    layers = []
    with ExitStack() as undone, _evaluating(network), _OperationCounter() as counter:
        for name, module in network.named_modules():
            own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
            if own or not any(module.children()):
                layer = _Layer(name or "(network)", type(module).__name__, own)
                undone.callback(module.register_forward_hook(layer.note_output).remove)
                layers.append(layer)
        device = next(chain(network.parameters(), network.buffers())).device
        # Convolutions, matrix products and attention are counted. With gradients, as in training: without, attention
        # would take a fused path that is not.
        with torch.enable_grad():
            network(torch.zeros(1, *image_shape, device=device))
    rows = [_HEADER, *(layer.row() for layer in layers)]
    return f"{_table(rows)}\n\n{_totals(network, counter.operations // _FLOATING_POINT_OPERATIONS_PER_MULTIPLY_ADD)}"


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """So that no running mean is moved and no random number drawn."""
    were_training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in were_training:
            module.training = True


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1].rjust(widths[-1])]
        )
        for row in rows
    )


def _totals(network: nn.Module, multiply_adds: int) -> str:
    parameters = list(network.parameters())
    state_bytes = sum(tensor.numel() * tensor.element_size() for tensor in chain(parameters, network.buffers()))
    totals = {
        "parameters": f"{sum(parameter.numel() for parameter in parameters):,}",
        "trainable": f"{sum(parameter.numel() for parameter in parameters if parameter.requires_grad):,}",
        "size": f"{state_bytes / 1e6:,.2f} MB, with buffers",
        "multiply-adds": f"{multiply_adds:,} for one image, forward",
    }
    return "".join(f"{name:<13}  {total}\n" for name, total in totals.items())
