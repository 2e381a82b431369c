"""Operators whose time on an accelerator can't be estimated, because no formula counts them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge

_MOST_SHARE = 0.1
"""Largest share of the CPU's time without a formula that allows an estimate, by hand."""
_MEMORY_BOUND = re.compile(
    "_foreach|_fused_|amp|arange|as_strided|batch_norm|bernoulli|bincount|cat|clone|col2im|copy|cum|dot|"
    "dropout|embedding|empty|entropy|equal|exponential|eye|fill|flip|full|gather|glu|grid_sampler|hard|"
    "im2col|index|item|_like|linspace|log_sigmoid|(?<!ctc_)loss|max|mean|median|min|multinomial|mv|"
    "nonzero|norm|one_hot|ones|pad|pixel|pool|[pr]relu|prod|rand|reduce|repeat|resize|roll|rot90|"
    "scalar|scatter|select|shuffle|slice|softmax|split|stack|std|sum|tril|triu|uniform|unfold|"
    "upsample|var|view|where|zero|all$|any$"
)
"""Parts of the names of operators that move many values and compute little."""


def is_memory_bound(operator: Any) -> bool:
    """Return True if an operator's time on an accelerator is the time to move its tensors.

    Such operators compute a fixed number of operations for each value that they move. They are
    elementwise operators, copies, reductions, normalisation, pooling, interpolation, indexing,
    losses, random numbers and optimizers. Their formula is the saved tensors. PyTorch tags
    elementwise operators and views, and the names show the rest.

    Other operators have no formula. Their operations for each value grow with the size (Fourier
    transforms, sorting, decompositions, distances), or they are custom. The CPU's time does not
    show the difference. Compared to a copy of the same tensors, one thread took 23 times as long
    for a variance, 24 for a pooling, 4 to 12 for a Fourier transform, and 74 for a sort.
    """
    if operator.is_view or torch.Tag.pointwise in operator.tags:
        return True
    if operator.namespace != "aten":
        return False
    # A backward pass moves and computes as much as its forward pass, which alone has the tag.
    forward = operator.name().removeprefix("aten::").removesuffix("_backward")
    tags = getattr(getattr(torch.ops.aten, forward, None), "default", operator).tags
    return torch.Tag.pointwise in tags or bool(_MEMORY_BOUND.search(operator.name()))


def custom_functions(loss: Tensor) -> set[str]:
    return {
        node.name().removesuffix("Backward")
        for node in nodes_between([loss], [])
        if isinstance(node, BackwardCFunction)
    }


def nodes_between(outputs: Iterable[Tensor], inputs: Iterable[Tensor]) -> Iterator[Node]:
    """Yield each node of the backward pass from outputs to inputs, or to its end without inputs."""
    seen = {get_gradient_edge(tensor).node for tensor in inputs if tensor.requires_grad}
    nodes = [tensor.grad_fn for tensor in outputs]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        yield node


def costly(
    profile: Any,
    operators: Iterable[str],
    functions: Iterable[str],
) -> tuple[str, ...]:
    """Return the names that take most of a profile, if together they take more than _MOST_SHARE.

    Operators that a custom function calls count separately.
    """
    operators, total, own = set(operators), 0.0, Counter[str]()
    backward = {f"{name}Backward": name for name in functions} | {n: n for n in functions}
    for event in profile.events() or ():
        total += event.self_cpu_time_total
        if event.name.startswith("enumerate(DataLoader)"):  # loading, and all within it
            total -= event.cpu_time_total
        is_inner = event.cpu_parent is not None and event.cpu_parent.name == event.name
        if event.name in operators and not is_inner:
            own[event.name] += event.cpu_time_total
        elif name := backward.get(event.name):
            own[name] += event.self_cpu_time_total
    if sum(own.values()) <= _MOST_SHARE * total:
        return ()
    least = _MOST_SHARE / 2 * total
    return tuple(name for name, seconds in own.most_common() if seconds > least)
