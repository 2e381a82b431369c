"""Operations and saved tensors of a step, counted by hand for small networks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeTrainer
from torch import distributed, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from photofinish.answer.estimates import estimated_device_seconds
from photofinish.config.compare import accelerators
from photofinish.inside.counting import Operators
from photofinish.inside.counting import count_step as counts_of_step
from photofinish.inside.memory import Allocations
from photofinish.inside.script_step import ScriptStep
from photofinish.measure.operations import count_operations
from photofinish.nested import leaves

IMAGES = 4


def count_step(network: nn.Module, loss: Callable[[], torch.Tensor]) -> SimpleNamespace:
    return SimpleNamespace(**counts_of_step(network, loss))


def counted(network: nn.Module, *shape: int) -> SimpleNamespace:
    """Count a step on made-up images that need no gradients."""
    images = torch.ones(IMAGES, *shape)
    return count_step(network, lambda: network(images).sum())


def counted_on(network: nn.Module, data: Any) -> SimpleNamespace:
    """Count a step whose loss is the sum of the network's first output."""

    def total() -> torch.Tensor:
        first = next(iter(leaves(network(data))))
        return (first.data if isinstance(first, PackedSequence) else first).sum()

    return count_step(network, total)


def test_a_linear_layer_is_a_product_forward_and_up_to_two_backward() -> None:
    found = counted(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)), 10)
    first, second = 2 * IMAGES * 10 * 20, 2 * IMAGES * 20 * 5
    assert found.flops == 2 * first + 3 * second


def test_a_dropout_saves_a_byte_for_each_value_as_it_does_on_a_gpu() -> None:
    found = counted(nn.Sequential(nn.Linear(10, 20), nn.Dropout(0.5)), 10)
    assert found.saved_tensor_bytes == IMAGES * (4 * 10 + 20)


def test_a_convolution_applies_its_filter_at_each_place_of_its_output() -> None:
    found = counted(nn.Conv2d(3, 8, 3, stride=2, padding=1), 3, 16, 16)
    assert found.flops == 2 * 2 * IMAGES * 3 * 8 * 8 * 8 * 9
    assert found.convolutions == 2


TIMES, WIDE, HIDDEN = 10, 16, 32
VALUES = 2 * IMAGES * TIMES
"""Operations for each weight of a layer that sees all samples at all times."""
PAIRS = 2 * IMAGES * 2 * 8
"""Operations for each pair of a query and a key, in two heads of 8 values."""


class Attention(nn.Module):
    """Attention of two heads, whose queries, keys and values have gradients."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.weight, self.settings = nn.Parameter(torch.ones(3, 1)), settings

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        heads = samples.unflatten(2, (2, 8)).transpose(1, 2)
        three = [weight * heads for weight in self.weight]
        return functional.scaled_dot_product_attention(*three, **self.settings)


class SelfAttention(nn.MultiheadAttention):
    def forward(self, samples: torch.Tensor, **_: Any) -> torch.Tensor:  # type: ignore[override]
        return super().forward(samples, samples, samples)[0]


class Einsum(nn.Linear):
    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return torch.einsum("btw,hw->bth", samples, self.weight)


def gated(gates: int) -> int:
    """A recurrent layer by hand: the data have no gradient, the hidden state has."""
    return VALUES * gates * HIDDEN * (2 * WIDE + 3 * HIDDEN)


MULTIHEAD = VALUES * WIDE * (2 * 3 * WIDE + 3 * WIDE) + 6 * PAIRS * TIMES**2
ENCODER = MULTIHEAD + VALUES * 6 * WIDE * HIDDEN
BOTH_WAYS = 2 * gated(4) + 2 * VALUES * 4 * HIDDEN * 3 * (2 * HIDDEN + HIDDEN)
MASK = torch.ones(TIMES, TIMES, dtype=torch.bool).tril()
BATCH_FIRST = {"batch_first": True}


@pytest.mark.parametrize(
    ("network", "flops", "most_kernels"),
    [
        (nn.LSTM(WIDE, HIDDEN, **BATCH_FIRST), gated(4), 10),
        (nn.LSTM(WIDE, HIDDEN, 2, bidirectional=True, **BATCH_FIRST), BOTH_WAYS, 20),
        (nn.GRU(WIDE, HIDDEN, **BATCH_FIRST), gated(3), 10),
        (nn.RNN(WIDE, HIDDEN, **BATCH_FIRST), gated(1), 10),
        (Attention(), 6 * PAIRS * TIMES**2, 20),
        (Attention(attn_mask=MASK, dropout_p=0.1), 6 * PAIRS * TIMES**2, 20),
        (Attention(is_causal=True), 6 * PAIRS * TIMES * (TIMES + 1) // 2, 20),
        (SelfAttention(WIDE, 2, **BATCH_FIRST), MULTIHEAD, 40),
        (nn.TransformerEncoderLayer(WIDE, 2, HIDDEN, **BATCH_FIRST), ENCODER, 65),
        (nn.ConvTranspose1d(TIMES, 6, 2, stride=2), 2 * 2 * IMAGES * TIMES * 6 * WIDE * 2, 10),
        # PyTorch's formula counts its weight gradient `groups` times.
        (nn.Conv1d(TIMES, 20, 3, groups=10, bias=False), 2 * 2 * IMAGES * 20 * 14 * 3, 10),
        (Einsum(WIDE, HIDDEN), VALUES * 2 * WIDE * HIDDEN, 10),
    ],
    ids=str,
)
def test_products_count_as_by_hand_and_fused_operators_as_few(
    network: nn.Module, flops: int, most_kernels: int
) -> None:
    """The CPU has one operator without shapes for some, and many small ones for others."""
    found = counted_on(network, torch.ones(IMAGES, TIMES, WIDE))
    assert found.flops == flops
    assert found.kernels <= most_kernels
    assert found.without_formula == ()


def test_a_recurrent_layer_takes_its_time_steps_one_after_another() -> None:
    samples = torch.ones(IMAGES, TIMES, WIDE)
    packed = pack_sequence([torch.ones(length, WIDE) for length in (7, 5)])
    both_ways = nn.GRU(WIDE, HIDDEN, 2, bidirectional=True)

    for network, data, time_steps in (
        (nn.LSTM(WIDE, HIDDEN, **BATCH_FIRST), samples, 2 * TIMES),  # forward and backward
        (nn.LSTM(WIDE, HIDDEN), samples, 2 * IMAGES),
        (both_ways, packed, 2 * 4 * 7),
        (nn.Linear(WIDE, HIDDEN), samples, 0),
    ):
        assert counted_on(network, data).time_steps == time_steps


def test_a_layer_that_is_not_trained_computes_in_the_fast_path_too() -> None:
    layer = nn.TransformerEncoderLayer(WIDE, 2, HIDDEN, batch_first=True).eval()
    samples = torch.ones(IMAGES, TIMES, WIDE)
    with torch.inference_mode():
        found = count_step(layer, lambda: layer(samples))
    products = VALUES * WIDE * (4 * WIDE + 2 * HIDDEN) + 2 * PAIRS * TIMES**2
    assert found.flops == products


class InNumPy(torch.autograd.Function):
    """Computes what no operator of torch shows."""

    @staticmethod
    def forward(_context: Any, values: torch.Tensor) -> torch.Tensor:
        found = values.numpy()
        for _ in range(50):
            found = np.tanh(found)
        return torch.from_numpy(found)

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class InTorch(InNumPy):
    @staticmethod
    def forward(_context: Any, values: torch.Tensor) -> torch.Tensor:
        return values @ values


def repeated(compute: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Compute it often enough that another program's time slice changes no share by much."""

    def compute_often(values: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            values = compute(values)
        return values

    return compute_often


SQUARED = repeated(lambda values: values @ values / 400)


@pytest.mark.parametrize(
    ("compute", "named"),
    [
        (repeated(torch.fft.fft2), ("aten::_fft_c2c",)),
        (repeated(InNumPy.apply), ("InNumPy",)),
        (InTorch.apply, ()),
        (lambda values: functional.embedding_bag(torch.arange(99).view(9, 11), values), ()),
        (lambda values: SQUARED(values) + values[:1, :9].sort()[0].sum(), ()),  # a small sort
    ],
    ids=["fft", "numpy", "torch", "embedding_bag", "small sort"],
)
def test_operators_without_a_formula_are_named_if_they_take_long(
    compute: Callable[[torch.Tensor], torch.Tensor], named: tuple[str, ...]
) -> None:
    weight = torch.ones(400, 400, requires_grad=True)
    found = count_step(nn.Identity(), lambda: compute(weight).abs().sum())
    assert found.without_formula == named


OVER_A_DIMENSION = {"GLU", "MultiheadAttention", "Softmax", "Softmin", "Softmax2d", "LogSoftmax"}
ACTIVATIONS = {name: getattr(nn, name) for name in nn.modules.activation.__all__}
ACTIVATIONS["Threshold"] = lambda: nn.Threshold(0.1, 0.2)
ENTROPY = partial(functional.binary_cross_entropy, reduction="none")
ACTIVATIONS["a loss"] = lambda: lambda values: ENTROPY(values, values.detach()).sigmoid()


@pytest.mark.parametrize("name", sorted(ACTIVATIONS.keys() - OVER_A_DIMENSION))
def test_every_activation_and_loss_of_single_values_has_a_formula(name: str) -> None:
    compute = repeated(ACTIVATIONS[name]())
    values = torch.full((400, 400), 0.3, requires_grad=True)
    assert count_step(nn.Identity(), lambda: compute(values).sum()).without_formula == ()


def test_counting_a_step_leaves_the_trainer_as_it_was(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of(input={"name": "loader", "workers": 0})
    before = [each.clone() for each in trainer.network.parameters()]
    found = count_operations(trainer)
    parameter_bytes = 4 * (64 * 8 + 8 + 8 * 3 + 3)
    assert found.images == 16
    assert found.flops == 2 * 16 * (2 * 64 * 8 + 3 * 8 * 3)
    assert found.fixed_bytes == 3 * parameter_bytes  # with gradients and momentum
    assert found.peak_allocated_bytes
    assert found.peak_reserved_bytes == 2**21
    after = trainer.network.parameters()
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert not trainer.state.optimizer.state


@pytest.mark.parametrize(
    ("optimizer", "moves"),
    [
        ({"name": "adamw"}, 8),  # fused: weights, gradients and both averages, there and back
        ({"name": "adamw", "foreach": True}, 21),
        ({"name": "sgd", "foreach": True}, 3),
        ({"name": "sgd"}, 4),
    ],
)
def test_what_an_optimizer_reads_and_writes_is_counted(
    trainer_of: MakeTrainer, optimizer: dict[str, Any], moves: int
) -> None:
    found = count_operations(trainer_of(optimizer=optimizer | {"lr": 0.1}))
    assert found.optimizer_bytes / (4 * (64 * 8 + 8 + 8 * 3 + 3)) == pytest.approx(moves, abs=0.5)


def test_a_batch_in_parts_computes_as_much_and_saves_the_tensors_of_a_part(
    trainer_of: MakeTrainer,
) -> None:
    whole, split = (count_operations(trainer_of(accumulate=each)) for each in (1, 2))
    assert (split.images, split.flops) == (whole.images, whole.flops)
    assert 2 * split.saved_tensor_bytes == pytest.approx(whole.saved_tensor_bytes, rel=0.01)
    assert whole.kernels < split.kernels < 2 * whole.kernels  # the optimizer's count once
    in_fp16 = accelerators()["T4"], "fp16", 1.0
    seconds = [estimated_device_seconds(step, *in_fp16) for step in (split, whole)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.01)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_step_in_a_short_precision_computes_as_much(
    trainer_of: MakeTrainer, precision: str
) -> None:
    model = {"name": "cnn", "channels": (4,), "hidden": ()}
    whole, short = (
        count_operations(trainer_of(precision=each, model=model)) for each in ("fp32", precision)
    )
    for figure in ("flops", "fixed_bytes"):
        assert getattr(short, figure) == getattr(whole, figure)


def test_a_network_that_computes_in_double_precision_is_counted_as_such(
    trainer_of: MakeTrainer,
) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    network.register_forward_pre_hook(lambda _, inputs: inputs[0].double())
    assert count_operations(trainer_of(network)).in_double
    assert not count_operations(trainer_of(precision="bf16")).in_double


def test_a_scripts_optimizer_counts_as_it_steps_on_a_gpu() -> None:
    """On the CPU it takes one weight after another by default, on a GPU all at once."""
    network = nn.Sequential(*(nn.Linear(2, 2) for _ in range(10)))
    kernels = []

    def passes() -> Any:
        loss: Any = network(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    closures: Any = {"closure": passes}, {}
    for implementation in (*closures, {"foreach": True}, {"fused": True}, {"foreach": False}):
        closure = implementation.pop("closure", None)
        optimizer = torch.optim.AdamW(network.parameters(), **implementation)
        for _ in range(2):  # the first makes the state
            counting = ScriptStep()
            if not closure:
                passes()
            optimizer.step(closure)
            counting.optimizer_stepped(optimizer)
            counted = counting.end()
        kernels.append(counted["operations"]["kernels"])
    with_closure, usual, at_once, fused, one_by_one = kernels
    assert one_by_one > 2 * usual
    assert with_closure == usual == at_once == fused + 13


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_script_may_compute_what_cannot_be_counted() -> None:
    network, inputs = nn.Linear(4, 2), torch.ones(3, 4)
    counting = ScriptStep()
    torch.sparse.mm(torch.eye(3).to_sparse(), network(inputs)).sum().backward()
    assert counting.end()["operations"]["flops"] == 2 * (2 * 3 * 4 * 2) + 2 * 3 * 2
    counting = ScriptStep()
    torch.vmap(torch.func.grad(lambda each: network(each).sum()))(inputs)
    with pytest.raises(RuntimeError, match=r"torch\.func"):
        counting.end()
    nested = torch.nested.nested_tensor([inputs, inputs[:2]], layout=torch.jagged)
    heads = nested.view(2, -1, 2, 2).transpose(1, 2)
    counting = ScriptStep()
    functional.scaled_dot_product_attention(heads, heads, heads)
    with pytest.raises(ValueError, match="unsupported"):
        counting.end()


def test_a_script_that_profiles_itself_keeps_its_profile() -> None:
    network = nn.Linear(4, 2)
    with torch.profiler.profile(acc_events=True) as profile:
        counting = ScriptStep(is_profiled=True)
        network(torch.ones(3, 4))
        counting.end()
    assert "aten::addmm" in {event.name for event in profile.events()}


@pytest.mark.parametrize("network", [nn.Sigmoid(), Attention()], ids=str)
def test_a_pass_without_a_backward_pass_is_freed(network: nn.Module) -> None:
    counting = ScriptStep()
    output = network(torch.ones(IMAGES, TIMES, WIDE, requires_grad=True))
    storage = weakref.ref(output.untyped_storage())
    del output
    counting.end()
    gc.collect()
    assert storage() is None


def test_sparse_gradients_and_what_an_optimizer_lacks_leave_the_script_running() -> None:
    network = nn.Embedding(9, 2, sparse=True)
    optimizer = torch.optim.SGD(network.parameters())
    for is_cast in (False, True):
        counting = ScriptStep(is_cast=is_cast)
        network(torch.arange(3)).sum().backward()
        optimizer.step()
        counting.optimizer_stepped(optimizer)
        assert counting.end()["parameter_count"] == 9 * 2
    counting = ScriptStep()
    optimizer.param_groups = [{}]
    counting.optimizer_stepped(optimizer)
    with pytest.raises(KeyError, match="params"):
        counting.end()


def test_weights_that_are_computed_in_the_step_are_no_further_parameters() -> None:
    network, inputs = nn.Linear(4, 2), torch.ones(3, 4)
    weights = dict(network.named_parameters())
    counting = ScriptStep()
    loss = torch.func.functional_call(network, weights, (inputs,)).sum()
    gradients = torch.autograd.grad(loss, [*weights.values()], create_graph=True)
    fast = {
        name: weights[name] - gradient for name, gradient in zip(weights, gradients, strict=True)
    }
    torch.func.functional_call(network, fast, (inputs,)).square().sum().backward()
    assert counting.end()["parameter_count"] == 4 * 2 + 2


def test_what_processes_exchange_counts_as_nothing() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    operators, values = Operators(Allocations()), torch.ones(4)
    with operators:
        distributed.all_reduce(values)
    distributed.destroy_process_group()
    assert (operators.kernels, operators.needs_profile) == (0, False)
