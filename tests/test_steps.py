"""Steps that are recorded and done again learn the same bits as steps one by one, and what can't be recorded isn't."""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import assert_same_run, network_with_state
from recorded_jobs import (
    ADAM,
    ADAMW,
    DAMPED,
    LOADER,
    SGD,
    MakeJob,
    assert_recorded,
    job_maker,  # noqa: F401  # a fixture
    stand_in,  # noqa: F401  # a fixture
    trained,
    warmed,
)
from recorder import OperationRecorder
from torch import nn

from photofinish.config.experiment import Experiment
from photofinish.errors import UserError
from photofinish.profiling import scratch
from photofinish.profiling.scratch import warm_up
from photofinish.results.learned import weights_of
from photofinish.training import steps
from photofinish.training.trainer import Trainer


def assert_same_bits(make_job: MakeJob, network: nn.Module | None = None, **settings: Any) -> None:
    eager, recorded = make_job(network, **settings), trained(make_job(network, **settings))
    list(eager.epochs())
    assert_recorded(recorded)
    assert_same_run(recorded, eager)
    assert eager.steps_done == eager.experiment.epochs * eager.steps_per_epoch


# -- the same bits ---------------------------------------------------------------------------------

TORCHVISION = {"images": 6, "batch_size": 2, "epochs": 1}


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"name": "linear"}},
        {"model": {"name": "mlp", "hidden": (8, 4)}},
        {"model": {"name": "cnn", "channels": (3,), "hidden": (4,)}},
        {"model": {"name": "lenet"}, "shape": (1, 16, 16)},
        {"model": {"name": "resnet18"}, "shape": (3, 32, 32), **TORCHVISION},
        # What looks on at PyTorch's operations changes how it adds up gradients of images that came down to one pixel.
        {"model": {"name": "mobilenet_v3_small"}, "shape": (3, 64, 64), **TORCHVISION},
    ],
    ids=lambda settings: settings["model"]["name"],
)
def test_every_network_learns_the_same_bits(make_job: MakeJob, settings: dict[str, Any]) -> None:
    assert_same_bits(make_job, **settings)


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD,
        SGD | {"momentum": 0.9},
        SGD | {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        ADAM,
        ADAMW,
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "schedule", [{"name": "constant"}, {"name": "one_cycle", "max_lr": 0.1}], ids=str
)
def test_every_optimizer_learns_the_same_bits(
    make_job: MakeJob, optimizer: dict[str, Any], schedule: dict[str, Any]
) -> None:
    assert_same_bits(make_job, optimizer=optimizer, schedule=schedule)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": {"name": "step", "step_size": 1}},
        {"schedule": {"name": "cosine"}},
        {"schedule": {"name": "reduce_on_plateau", "patience": 0, "factor": 0.5}},
        {"precision": "bf16", "optimizer": ADAM},
        {"precision": "tf32"},
        {"precision": "fp16", "optimizer": SGD | {"momentum": 0.9}},
        {"precision": "fp16", "optimizer": ADAM},
        {"augmentation": {"flip": 0.5, "crop_padding": 1}},
        {"loss": {"name": "cross_entropy", "label_smoothing": 0.1}},
        {"images": 12},  # whose windows leave nothing over
        {"input": LOADER, "optimizer": ADAM, "schedule": {"name": "one_cycle", "max_lr": 0.1}},
        {"input": LOADER, "augmentation": {"flip": 0.5, "crop_padding": 1}, "precision": "fp16"},
        {"input": {**LOADER, "workers": 1, "persistent_workers": True}, "images": 12},
    ],
    ids=str,
)
def test_under_every_setting_the_same_bits_are_learned(
    make_job: MakeJob, settings: dict[str, Any]
) -> None:
    assert_same_bits(make_job, **settings)


@pytest.mark.parametrize("reads", ["freed", "held"])
def test_a_replay_sees_what_lies_where_it_read_and_fails_where_that_was_freed(reads: str) -> None:
    """As on a GPU, whose allocator gives freed memory to others; the tests of this file rely on it."""
    found = torch.ones(2)
    captured = OperationRecorder().record(lambda: found + 1)
    found.fill_(3.0)
    if reads == "freed":
        del found
        with pytest.raises(AssertionError, match="reads freed memory"):
            captured.replay()
    else:
        captured.replay()
        assert captured.output.tolist() == [4.0, 4.0]


FOR_STATE: dict[str, Any] = {
    "shape": (1, 8, 8),
    "images": 17,
}  # of one image alone nothing can be normalised


def test_dropout_draws_and_normalisation_counts_as_one_by_one(make_job: MakeJob) -> None:
    assert_same_bits(make_job, network_with_state(), **FOR_STATE)


@pytest.mark.parametrize("source", [{"name": "resident"}, LOADER], ids=["resident", "loader"])
def test_a_run_resumed_after_any_epoch_ends_with_the_same_bits(
    make_job: MakeJob, source: dict[str, Any]
) -> None:
    settings = {
        "epochs": 3,
        "optimizer": ADAM,
        "schedule": {"name": "cosine"},
        "input": source,
        **FOR_STATE,
    }
    whole = make_job(network_with_state(), **settings)
    states = [copy.deepcopy(whole.state_dict()) for _epoch in warmed(whole).epochs()]
    for state in states:
        resumed = make_job(network_with_state(), **settings)
        resumed.load_state_dict(state)
        assert_recorded(trained(resumed))
        assert_same_run(resumed, whole)


def test_steps_are_captured_again_after_a_checkpoint_is_loaded(make_job: MakeJob) -> None:
    optimizer = ADAM
    whole, other = (
        trained(make_job(optimizer=optimizer)),
        trained(make_job(optimizer=optimizer, epochs=1)),
    )
    late = warmed(make_job(optimizer=optimizer))
    late.load_state_dict(copy.deepcopy(other.state_dict()))
    list(late.epochs())
    assert weights_of(late.network) == weights_of(whole.network)


@pytest.mark.parametrize("kind", ["off", "auto"])
def test_a_trainer_that_nobody_needs_is_gone_at_once(make_job: MakeJob, kind: str) -> None:
    """Else its memory, and its loader's workers, would stay until Python looks for circles, in whichever process."""
    trainer = trained(make_job(cuda_graphs=kind))
    seen = weakref.ref(trainer)
    del trainer
    assert seen() is None


# -- what is taken one by one ----------------------------------------------------------------------


def reads_back(_network: nn.Module, _images: object, outputs: torch.Tensor) -> torch.Tensor:
    """Goes by a value that was computed."""
    return outputs if outputs.sum() > 0 else outputs * 2


def counts(network: nn.Module, _images: object, outputs: torch.Tensor) -> torch.Tensor:
    """Goes by how often it ran."""
    network.calls = getattr(network, "calls", 0) + 1
    return outputs * network.calls


@pytest.mark.parametrize(
    ("python", "why"),
    [
        (
            reads_back,
            r"recording some failed \(aten._local_scalar_dense.default reads a value back",
        ),
        (counts, "recorded, some gave other bits"),
    ],
    ids=["reads back", "counts"],
)
def test_what_gives_no_or_other_bits_when_tried_is_taken_one_by_one(
    make_job: MakeJob, python: Callable[..., torch.Tensor], why: str
) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    network.register_forward_hook(python)
    eager, tried = (trained(make_job(network, cuda_graphs=kind)) for kind in ("off", "auto"))
    assert re.match(why, tried.steps.why)
    assert weights_of(tried.network) == weights_of(eager.network)
    with pytest.raises(
        UserError, match=rf"cuda_graphs is on in params.yaml, which can't be: {why}"
    ):
        trained(make_job(network, cuda_graphs="on"))


def test_where_recording_fails_in_the_end_steps_are_taken_one_by_one(
    make_job: MakeJob, recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_job()
    monkeypatch.setattr(
        trainer.team, "forget_peak_memory", lambda: setattr(recorder, "fails", True)
    )
    trained(trainer)
    assert (
        trainer.steps.why
        == "recording them failed (operation not permitted when stream is capturing)"
    )
    recorder.fails = False
    assert weights_of(trainer.network) == weights_of(trained(make_job(cuda_graphs="off")).network)


def test_a_capture_that_fails_within_an_optimizers_step_leaves_nothing_to_the_next_one(
    make_job: MakeJob, recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, eager = (make_job(precision="fp16", cuda_graphs=kind) for kind in ("auto", "off"))
    monkeypatch.setattr(
        trainer.team, "forget_peak_memory", lambda: setattr(recorder, "fails_in", "aten._fused_sgd")
    )
    trained(trainer)
    assert trainer.steps.why.startswith("recording them failed (aten._fused_sgd")
    assert_same_run(trainer, trained(eager))


def test_where_what_an_epoch_takes_eagerly_has_no_memory_beside_the_graph_all_steps_are_eager(
    make_job: MakeJob, recorder: OperationRecorder
) -> None:
    def full(trainer: Trainer) -> Trainer:
        def allocate(_network: nn.Module, inputs: Any) -> None:
            if (
                trainer.steps.kind == "graph"
                and len(recorder.recordings) == 2
                and len(inputs[0]) == 1
            ):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        recorder.recordings.clear()
        trainer.network.register_forward_pre_hook(allocate)
        return trainer

    settings = {"optimizer": ADAM, "precision": "fp16"}
    trainer = trained(full(make_job(**settings)))
    assert (
        trainer.steps.why
        == "recording them failed (CUDA out of memory. Tried to allocate 2.00 GiB.)"
    )
    assert_same_run(trainer, trained(make_job(**settings, cuda_graphs="off")))
    with pytest.raises(
        UserError, match=r"cuda_graphs is on in params.yaml, which can't be: .* out of memory"
    ):
        trained(full(make_job(**settings, cuda_graphs="on")))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"optimizer": DAMPED}, "with dampening, the first step differs"),
        ({"batch_size": 17}, "an epoch has no whole batch"),
        (
            {"model": {"name": "linear", "compile": True}},
            "a compiled network is handed out in another way",
        ),
    ],
    ids=str,
)
def test_what_cant_be_recorded_is_taken_one_by_one_and_says_why(
    make_job: MakeJob, settings: dict[str, Any], why: str
) -> None:
    trainer = warmed(make_job(**settings))
    assert trainer.steps.why.startswith(why)
    assert (trainer.steps.kind, trainer.steps.at_once) == ("eager", 1)
    with pytest.raises(UserError, match=re.escape(why)):
        warm_up(make_job(cuda_graphs="on", **settings))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"deterministic": False}, "deterministic is false: no two steps need have the same bits"),
        ({"loss": {"name": "./my.py:loss"}}, "custom code may do something else in a later step"),
        ({"model": {"name": "./my.py:Net"}}, "custom code may do something else in a later step"),
    ],
    ids=str,
)
def test_what_a_trial_cant_prove_is_recorded_only_where_params_yaml_says_so(
    make_job: MakeJob, settings: dict[str, Any], why: str
) -> None:
    def as_if(kind: str) -> Trainer:
        trainer = make_job(cuda_graphs=kind)
        trainer.experiment = Experiment.model_validate(trainer.experiment.model_dump() | settings)
        return trainer

    assert warmed(as_if("auto")).steps.why == why
    recorded = trained(as_if("on"))
    assert_recorded(recorded)
    assert ("gave the same bits" in recorded.steps.why) == recorded.experiment.deterministic


def test_without_graphs_and_where_params_yaml_says_so_steps_are_taken_one_by_one(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warmed(make_job(cuda_graphs="off")).steps.why == "params.yaml says so"
    monkeypatch.setattr(scratch, "recorder_of", steps.recorder_of)
    for kind in ("auto", "on"):
        assert (
            warmed(make_job(cuda_graphs=kind)).steps.why
            == "steps are recorded on CUDA and ROCm alone, not on cpu"
        )
