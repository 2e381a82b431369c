"""Operations and saved tensors of a step, counted by hand for small networks."""

from __future__ import annotations

import pytest
import torch
from conftest import MakeTrainer
from torch import nn

from photofinish.comparing.bounds import least_steps
from photofinish.config.compare import Accelerator
from photofinish.profiling.counting import Direction, StepCount, count_step, least_multiplications
from photofinish.profiling.operations import count_operations

IMAGES = 4


def counted(network: nn.Module, *shape: int) -> StepCount:
    """Count a step on made-up images that need no gradients."""
    images = torch.ones(IMAGES, *shape)
    return count_step(network, lambda: network(images).sum())


def moved(found: StepCount) -> list[tuple[int, int]]:
    return [(each.read_values, each.written_values) for each in found.products]


def least(found: StepCount) -> int:
    return sum(each.least_flops for each in found.products)


def test_a_linear_layer_is_a_product_forward_and_up_to_two_backward() -> None:
    found = counted(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)), 10)
    first, second = 2 * IMAGES * 10 * 20, 2 * IMAGES * 20 * 5
    assert found.flops == least(found) == 2 * first + 3 * second
    assert moved(found)[:2] == [(IMAGES * 10 + 200, IMAGES * 20), (IMAGES * 20 + 100, IMAGES * 5)]
    assert sorted(moved(found)[2:]) == sorted(
        [(IMAGES * 5 + 100, IMAGES * 20), (IMAGES * (5 + 20), 100), (IMAGES * (20 + 10), 200)]
    )
    assert found.saved_activations == IMAGES * (10 + 20)


def test_a_convolution_counts_the_fewest_multiplications_in_any_basis() -> None:
    found = counted(nn.Conv2d(3, 8, 3, padding=1), 3, 16, 16)
    products = 2 * IMAGES * 3 * 8
    assert found.flops == 2 * products * 16 * 16 * 9
    assert least(found) == pytest.approx(2 * products * (16 * 4 / 3) ** 2, rel=1e-4)
    images, out = IMAGES * 3 * 256, IMAGES * 8 * 256
    assert moved(found) == [(images + 216, out), (images + out, 216)]


def test_a_stride_that_leaves_places_out_does_not_read_them() -> None:
    found = counted(nn.Conv2d(4, 8, 1, stride=2, bias=False), 4, 16, 16)
    assert moved(found) == [(IMAGES * 4 * 64 + 32, IMAGES * 8 * 64), (IMAGES * (4 + 8) * 64, 32)]


def test_groups_share_no_work() -> None:
    """PyTorch's formula counts the weight gradient of a grouped convolution `groups` times."""
    found = counted(nn.Conv2d(8, 8, 3, groups=8, bias=False), 8, 10, 10)
    assert found.flops == 2 * 2 * IMAGES * 8 * 8 * 8 * 9


def test_a_transposed_convolution_lays_its_filter_on_what_comes_in() -> None:
    assert (
        counted(nn.ConvTranspose2d(4, 6, 2, stride=2), 4, 5, 5).flops
        == 2 * 2 * IMAGES * 4 * 6 * 25 * 4
    )


@pytest.mark.parametrize(
    ("geometry", "least"),
    [
        (((8,), (8,), (1,), (1,), (0,), (1,)), 8),  # one tap: as it is
        (((100,), (100,), (3,), (1,), (1,), (1,)), 100 * 4 / 3),
        (
            ((1,), (1,), (3,), (1,), (1,), (1,)),
            1,
        ),  # of an image of one pixel, the taps around it meet nothing
        (
            ((50,), (100,), (3,), (2,), (1,), (1,)),
            50 * (7 / 6 + 1),
        ),  # a stride of two: filters of two and of one
        (((25,), (100,), (4,), (4,), (0,), (1,)), 25 * 4),  # patches: each tap once
        (
            ((9,) * 3, (9,) * 3, (5,) * 3, (1,) * 3, (2,) * 3, (1,) * 3),
            2 * 9**3,
        ),  # in three directions FFT takes the fewest
    ],
)
def test_the_least_multiplications_of_a_filter(
    geometry: tuple[tuple[int, ...], ...], least: float
) -> None:
    directions = [Direction(*each) for each in zip(*geometry, strict=True)]
    assert least_multiplications(directions) == pytest.approx(least)


def test_products_of_many_small_matrices_count_two_fifths() -> None:
    queries = torch.ones(2, 3, 4, requires_grad=True)
    found = count_step(nn.Identity(), lambda: (queries @ queries.transpose(1, 2)).sum())
    assert [each.least_flops for each in found.products] == [
        pytest.approx(0.4 * found.flops, abs=1)
    ]
    assert moved(found) == [(0, 0)]


def test_inputs_of_layers_are_saved_once_and_masks_do_not_count() -> None:
    layers = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.BatchNorm2d(2),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Conv2d(2, 2, 1),
        nn.MaxPool2d(2),
    )
    found, image = counted(layers, 1, 8, 8), IMAGES * 64
    assert (
        found.saved_activations == image + 2 * 2 * image
    )  # into both convolutions and the normalisation
    assert found.saved_tensor_bytes > 4 * found.saved_activations


def test_counting_a_step_leaves_the_trainer_as_it_was(
    trainer_of: MakeTrainer,
) -> None:
    trainer = trainer_of(input={"name": "loader", "workers": 0})
    before = [each.clone() for each in trainer.network.parameters()]
    found = count_operations(trainer)
    parameter_bytes = 4 * (64 * 8 + 8 + 8 * 3 + 3)
    assert found.images == 16
    assert found.flops == 2 * 16 * (2 * 64 * 8 + 3 * 8 * 3)
    assert (
        found.parameter_bytes == found.gradient_bytes == found.optimizer_bytes == parameter_bytes
    )  # with momentum
    assert found.batch_bytes == 16 * (64 * 4 + 8)
    assert found.resident_bytes == 0
    assert all(
        torch.equal(*pair) for pair in zip(before, trainer.network.parameters(), strict=True)
    )
    assert not trainer.state.optimizer.state


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_step_in_a_short_precision_computes_as_much(
    trainer_of: MakeTrainer, precision: str
) -> None:
    whole, short = (
        count_operations(
            trainer_of(precision=each, model={"name": "cnn", "channels": (4,), "hidden": ()})
        )
        for each in ("fp32", precision)
    )
    assert (short.flops, short.products, short.saved_activations) == (
        whole.flops,
        whole.products,
        whole.saved_activations,
    )
    assert short.optimizer_bytes == whole.optimizer_bytes


def test_a_network_that_computes_in_double_precision_is_counted_as_such(
    trainer_of: MakeTrainer,
) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    network.register_forward_pre_hook(lambda _, inputs: inputs[0].double())
    assert count_operations(trainer_of(network)).in_double
    assert not count_operations(trainer_of(precision="bf16")).in_double


def test_no_training_here_beats_the_bound_of_a_very_fast_cpu(trainer_of: MakeTrainer) -> None:
    fast = Accelerator("cpu", "Any thread", "cpu", 64, 1000.0, {"fp32": 1.0}, 1000, None)
    for model in (
        {"name": "mlp", "hidden": (64,)},
        {"name": "cnn", "channels": (8, 16), "hidden": (16,)},
    ):
        trainer = trainer_of(model=model, batch_size=64)
        operations, _ = count_operations(trainer), list(trainer.epochs())
        floor = least_steps(operations, fast, "fp32", trainer.training.image_count)
        assert (
            0
            < floor.arithmetic_seconds
            < min(epoch.training_seconds for epoch in trainer.progress.timings)
        )
        assert floor.seconds < min(epoch.training_seconds for epoch in trainer.progress.timings)
