"""A captured validation gives the sums of an eager one, and falls back to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import assert_same_run, network_with_state
from recorded_jobs import (
    ADAM,
    LOADER,
    MakeJob,
    assert_recorded,
    job_maker,  # noqa: F401  # a fixture
    stand_in,  # noqa: F401  # a fixture
    trained,
    warmed,
)
from torch import nn

from photofinish.measure.take_parts import take_parts
from photofinish.results.learned import weights_of

WITH_STATE = {"shape": (1, 8, 8), "images": 17, "optimizer": ADAM}
WEIGHTED = {"name": "cross_entropy", "weight": (1.0, 2.0, 3.0)}
AUROC = {
    "early_stopping": {"monitor": "auroc", "mode": "max", "patience": 2},
    "metrics": ({"name": "auroc"},),
}


def assert_same_with_and_without(
    make_job: MakeJob, network: nn.Module | None, **settings: Any
) -> Any:
    eager, recorded = (
        trained(make_job(network, cuda_graphs=kind, **settings)) for kind in ("off", "auto")
    )
    assert_recorded(recorded)
    assert_same_run(recorded, eager)
    return recorded


@pytest.mark.parametrize(
    "settings",
    [
        {"ema": 0.5, "validation_batch_size": 2},  # whose batches have two sizes
        {"precision": "bf16"},
        {"loss": WEIGHTED},
        {"early_stopping": {"monitor": "validation_accuracy", "patience": 1}, "epochs": 4},
    ],
    ids=str,
)
def test_captured_validation_has_the_same_sums(make_job: MakeJob, settings: dict[str, Any]) -> None:
    settings = WITH_STATE | settings
    recorded = assert_same_with_and_without(make_job, network_with_state(), **settings)
    assert recorded.validator.is_captured is ("early_stopping" not in settings)  # it has ended
    first = make_job(network_with_state(), **(settings | {"schedule": {"name": "constant"}}))
    first.prepare()
    next(first.epochs())
    resumed = make_job(network_with_state(), **settings)
    resumed.load_state_dict(first.state_dict())
    assert_same_run(trained(resumed), recorded)


@pytest.mark.parametrize("kind", ["off", "auto"])
def test_averaged_weights_have_the_networks_running_means(make_job: MakeJob, kind: str) -> None:
    made = trained(make_job(network_with_state(), cuda_graphs=kind, ema=0.5, **WITH_STATE))
    assert made.validator.is_captured is (kind == "auto")
    pairs = zip(made.result.buffers(), made.network.buffers(), strict=True)
    assert all(torch.equal(averaged, own) for averaged, own in pairs)


def counts(network: nn.Module, _images: object, outputs: torch.Tensor) -> torch.Tensor | None:
    """Depends on how often validation ran."""
    if network.training:
        return None
    network.calls = getattr(network, "calls", 0) + 1
    return outputs * (1 + network.calls % 2)


def reads_back(network: nn.Module, _images: object, outputs: torch.Tensor) -> None:
    if not network.training:
        assert outputs.isfinite().all()


@pytest.mark.parametrize(
    ("python", "why"),
    [(counts, "captured, it gave other sums"), (reads_back, "capturing it failed (aten.")],
)
def test_validation_is_eager_if_capturing_it_fails_or_gives_other_sums(
    make_job: MakeJob, python: Callable[..., Any], why: str
) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    network.register_forward_hook(python)
    recorded = trained(make_job(network))
    assert_recorded(recorded)
    assert weights_of(recorded.network) == weights_of(
        trained(make_job(network, cuda_graphs="off")).network
    )
    assert f"; validation is launched one by one: {why}" in recorded.steps.why
    assert not recorded.validator.is_captured


@pytest.mark.parametrize(
    "settings",
    [
        {"input": LOADER},
        AUROC,
        {"validation_batch_size": 1, "model": {"name": "mlp", "hidden": (4,) * 110}},
    ],
    ids=["loaded", "with a metric on outputs", "of many batches"],
)
def test_validation_is_eager(make_job: MakeJob, settings: dict[str, Any]) -> None:
    recorded = assert_same_with_and_without(make_job, None, **settings)
    assert not recorded.validator.is_captured
    assert "validation" not in recorded.steps.why


@pytest.mark.parametrize("most_seconds", [1e-9, 500.0], ids=["by parts", "whole epochs"])
def test_measuring_a_training_replays_it(make_job: MakeJob, most_seconds: float) -> None:
    trainer, sizes = warmed(make_job()), list[int]()
    trainer.network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    _parts, validation_seconds = take_parts(trainer, 1e-3, most_seconds, epochs=5)
    assert validation_seconds > 0
    assert sizes == []
