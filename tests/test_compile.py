"""`compile: true` trains the compiled network, and compiles it before anything is timed."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config as inductor
from conftest import HeldClock, MakeRun, MakeTrainer
from torch import nn
from training_process import measure_here, train_here

from photofinish.results.learned import weights_of
from photofinish.results.measured import read_trained
from photofinish.training.trainer import Trainer

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


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize(("compiles", "seconds"), [(True, 0.19 + 0.19 + 0.39), (False, 0.38)])
def test_what_only_first_steps_and_compilation_take_is_the_jobs_time(
    trainer_of: MakeTrainer, clock: HeldClock, compiles: bool, seconds: float
) -> None:
    """Each size of a batch takes 0.2 s once, and 0.01 s from then on, which is no first time."""
    settings = {"model": COMPILED} if compiles else {}
    trainer = trainer_of(epochs=1, batch_size=16, validation_batch_size=10, **settings)
    seen: set[tuple[int, bool]] = set()

    def begins(network: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        shape = len(inputs[0]), network.training
        clock.take(0.01 if shape in seen else 0.2)
        seen.add(shape)

    trainer.network.register_forward_pre_hook(begins)
    warm_up = trainer.prepare()
    assert warm_up.first_seconds == pytest.approx(seconds)
    assert warm_up.seconds > seconds


def test_first_steps_are_in_the_start_up_of_both_stages(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Trainer.prepare
    first = {"first_seconds": 100.0}
    monkeypatch.setattr(Trainer, "prepare", lambda trainer: prepare(trainer)._replace(**first))
    run = make_run()
    measure_here(run)
    train_here(run)
    times, measured = read_trained(run.out)
    assert min(times.startup_seconds, measured.startup_seconds, times.total_seconds) > 100


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
