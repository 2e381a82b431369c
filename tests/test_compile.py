"""`compile: true` trains the compiled network, and compiles it before anything is timed."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config as inductor
from conftest import MakeTrainer
from torch import nn

from photofinish.results.learned import weights_of

COMPILED = {"name": "mlp", "hidden": (8,), "compile": True}


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """List each call of a compiled network: the batch size, and if gradients are on."""
    seen: list[tuple[int, bool]] = []

    def compile_as_torch_does(network: nn.Module, *, dynamic: bool) -> None:
        assert not dynamic
        plain = network.forward

        def compiled(images: torch.Tensor) -> torch.Tensor:
            seen.append((len(images), torch.is_grad_enabled()))
            outputs: torch.Tensor = plain(images)
            return outputs

        monkeypatch.setattr(network, "forward", compiled)

    monkeypatch.setattr(nn.Module, "compile", compile_as_torch_does)
    return seen


def test_a_warm_up_compiles_for_every_shape_of_the_training(
    shapes: list[tuple[int, bool]], trainer_of: MakeTrainer
) -> None:
    trainer = trainer_of(model=COMPILED, epochs=1, batch_size=16, validation_batch_size=10)
    trainer.prepare()
    warmed = set(shapes)
    shapes.clear()
    list(trainer.epochs())
    assert set(shapes) == warmed == {(16, True), (8, True), (10, False), (4, False)}


@pytest.mark.usefixtures("shapes")
def test_a_warm_up_and_a_step_that_fails_on_a_scratch_copy_leave_the_network_as_it_was(
    trainer_of: MakeTrainer,
) -> None:
    trainer = trainer_of(model=COMPILED)
    before = weights_of(trainer.network)
    trainer.prepare()
    assert weights_of(trainer.network) == before

    def fail_after_a_step() -> None:
        with trainer.scratch_copy() as state:
            trainer.step(state, 0, trainer.training.first())
            raise MemoryError

    with pytest.raises(MemoryError):
        fail_after_a_step()
    assert weights_of(trainer.network) == before


def test_a_process_warms_up_on_its_own_share_of_the_last_batch(
    shapes: list[tuple[int, bool]], trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(model=COMPILED, epochs=1, batch_size=16)
    monkeypatch.setattr(trainer.team, "rank", 1)
    monkeypatch.setattr(trainer.team, "size", 3)
    trainer.prepare()
    assert (3, True) in shapes  # of 8: the second, the fifth and the eighth


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_compiler_is_as_deterministic_as_the_experiment(
    trainer_of: MakeTrainer, deterministic: bool
) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(not deterministic)
        trainer_of(model=COMPILED, deterministic=deterministic)
        found = inductor.deterministic, torch.are_deterministic_algorithms_enabled()
        assert found == (deterministic, deterministic)
    finally:
        torch.use_deterministic_algorithms(before)
