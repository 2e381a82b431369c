"""Memory of a replayed step over a published one: `python -m benchmarks.published.memory`.

Rows of memory.csv are what PyTorch reserved for a training, or what a forward pass kept. `fp16` is
an autocast, and `bf16` a network of that type. On the meta device nothing computes.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy
from torchvision.models import get_model

from benchmarks.published import rows
from photofinish.answer.estimates import RESERVED_FACTOR
from photofinish.inside.counting import Operators
from photofinish.inside.fused import FusedOperators
from photofinish.inside.memory import Allocations


def main() -> None:
    for row, ratio in zip(rows("memory.csv"), found := ratios(), strict=True):
        print(f"{ratio:.3f}, {RESERVED_FACTOR * ratio:.3f} with the factor: {[*row.values()][:-2]}")
    print(f"factor of every second row: {chosen_factor(found):.3f}")


def ratios() -> list[float]:
    return [_replayed_bytes(row) / int(row["bytes"]) for row in rows("memory.csv")]


def chosen_factor(found: list[float]) -> float:
    """Return the factor that brings every second ratio as near to 1 as it can."""
    return 2 / (min(found[::2]) + max(found[::2]))


def _replayed_bytes(row: dict[str, str]) -> int:
    memory = Allocations(is_cast=row["precision"] == "fp16")
    dtype = torch.bfloat16 if row["precision"] == "bf16" else torch.float32
    with torch.device("meta"):
        network = get_model(row["model"]).to(dtype)
        images = torch.empty(int(row["batch_size"]), 3, 224, 224, dtype=dtype)
        labels = torch.zeros(len(images), dtype=torch.int64)
        weights = list(network.parameters())
        memory.note([weights, list(network.buffers()), images, labels], is_new=False)
        before_bytes = memory.replayed().allocated_bytes
        optimizer, state = torch.optim.Adam(weights), [*map(torch.empty_like, 2 * weights)]
        if row["what"] == "reserved":
            for weight in weights:
                weight.grad = torch.empty_like(weight)
            memory.note([state, [weight.grad for weight in weights]], is_new=False)
        with Operators(memory) as operators, FusedOperators(operators):
            outputs = network(images)
            if row["what"] == "kept":
                return memory.replayed().allocated_bytes - before_bytes
            loss = cross_entropy(outputs, labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
    memory.optimizer_stepped(optimizer, optimizer.defaults)
    return memory.fields([weight.grad for weight in weights])["peak_reserved_bytes"]


if __name__ == "__main__":
    main()
