"""Recorded steps run as often as they must and no more, and what is measured takes them as the training does."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from recorded_jobs import (
    LOADER,
    MakeJob,
    job_maker,  # noqa: F401  # a fixture
    stand_in,  # noqa: F401  # a fixture
    trained,
    warmed,
)
from recorder import OperationRecorder
from torch import nn

from photofinish import machine
from photofinish.profiling.attribution import (
    AttributionPlan,
    SamplePlan,
    measure_batches_alone,
    measure_by_turns,
    profile_step,
)
from photofinish.profiling.scratch import warm_up
from photofinish.results.learned import weights_of
from photofinish.training import batches as batches_module
from photofinish.training import steps


@pytest.mark.parametrize(
    ("source", "left_over", "windows"),
    [({"name": "resident"}, [3, 1], 2), (LOADER, [1], 5)],
    ids=["resident", "loader"],
)
def test_an_epoch_runs_the_networks_python_for_what_is_left_of_it_alone(
    make_job: MakeJob,
    recorder: OperationRecorder,
    source: dict[str, Any],
    left_over: list[int],
    windows: int,
) -> None:
    trainer, images = warmed(make_job(input=source)), []
    trainer.network.register_forward_pre_hook(
        lambda network, inputs: images.append(len(inputs[0])) if network.training else None
    )
    done = recorder.times_done
    list(trainer.epochs())
    assert images == left_over * 2
    assert recorder.times_done - done == windows * 2


@pytest.mark.parametrize(("model", "most"), [("linear", 7), ("mlp", 13)])
def test_a_step_takes_no_more_operations_than_it_must(
    make_job: MakeJob, recorder: OperationRecorder, model: str, most: int
) -> None:
    hidden = {"hidden": (8,)} if model == "mlp" else {}
    trainer = warmed(make_job(model={"name": model, **hidden}))
    names = [each.name.partition(".")[2].partition(".")[0] for each in recorder.recordings[-1]]
    for once in (
        "cat",
        "new_zeros",
        "scatter_",
        "stack",
    ):  # the losses' gradients, and the losses, of all steps
        names.remove(once)
    assert len(names) <= most * trainer.steps.at_once, names


def test_the_step_that_is_measured_after_the_training_is_recorded_too(
    make_job: MakeJob, recorder: OperationRecorder
) -> None:
    trainer = trained(make_job())
    before, done = weights_of(trainer.network), recorder.times_done
    recorded = len(recorder.recordings)
    same, other = measure_by_turns(trainer, SamplePlan(5, 4), 2)
    assert same.steps_per_sample == other.steps_per_sample == 4
    assert len(recorder.recordings) - recorded == 2
    assert recorder.times_done - done == 2 * (1 + 5) * 2  # two of each window make four steps
    assert weights_of(trainer.network) == before


def test_a_capture_that_fails_while_measuring_leaves_figures_and_a_reason(
    make_job: MakeJob, recorder: OperationRecorder
) -> None:
    trainer = trained(make_job())
    recorder.fails = True
    measured = measure_by_turns(trainer, SamplePlan(3, 2), 2)
    assert [len(each.sample_seconds) for each in measured] == [3, 3]
    reason = "; some were measured one by one, as recording them failed (operation not permitted"
    assert trainer.steps.why.count(reason) == 1
    assert trainer.steps.kind == "graph"  # as the training's own were


@pytest.mark.parametrize(
    ("settings", "training_sizes"),
    [({}, {3, 1}), ({"images": 12}, set()), ({"input": LOADER}, {1})],
    ids=str,
)
def test_what_an_epoch_takes_eagerly_has_run_after_the_capture_and_before_the_epoch(
    make_job: MakeJob,
    recorder: OperationRecorder,
    settings: dict[str, Any],
    training_sizes: set[int],
) -> None:
    """Its memory is beside the graph's, and would be allocated within the first epoch's time."""
    trainer, ran = make_job(**settings), set()
    trainer.network.register_forward_pre_hook(
        lambda network, inputs: ran.add(
            (len(recorder.recordings), network.training, len(inputs[0]))
        )
    )
    warm_up(trainer)
    after_capture = {(is_training, size) for recorded, is_training, size in ran if recorded == 2}
    assert after_capture == {(True, size) for size in training_sizes} | {(False, 5)}


def test_no_epochs_order_is_made_while_batches_are_timed(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, happened = trained(make_job()), []
    order, now_seconds = batches_module.batch_order, trainer.clock.now_seconds
    monkeypatch.setattr("photofinish.profiling.attribution.is_accelerator", lambda _device: True)
    monkeypatch.setattr(
        batches_module, "batch_order", lambda *given: happened.append("order") or order(*given)
    )
    monkeypatch.setattr(
        trainer.clock, "now_seconds", lambda: happened.append("clock") or now_seconds()
    )
    measure_batches_alone(trainer, 4)
    assert "order" not in happened[happened.index("clock") :]


def test_the_host_hands_out_nothing_worth_timing(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("photofinish.profiling.attribution.is_accelerator", lambda _device: True)
    plan = AttributionPlan(2, 2, SamplePlan(1, 2), tries_bf16=False)
    recorded, eager = (
        profile_step(trained(make_job(cuda_graphs=kind)), plan) for kind in ("auto", "off")
    )
    assert recorded.launch_seconds == ()  # so the fixed cost comes from the two sizes of a batch
    assert len(eager.launch_seconds) == 2


@pytest.mark.parametrize(("steps", "at_once"), [(1, [1]), (2, [2]), (3, [1, 1, 1]), (4, [2, 2])])
def test_so_many_steps_are_repeated_on_a_batch_as_were_asked_for(
    make_job: MakeJob, steps: int, at_once: list[int]
) -> None:
    for kind, expected in (("auto", at_once), ("off", [1] * steps)):
        trainer = warmed(make_job(cuda_graphs=kind))
        again: Any = trainer.steps.repeat(
            trainer, trainer.state, next(trainer.training.train_batches(0)), steps
        )
        assert [losses.numel() for losses in again()] == expected


@pytest.mark.parametrize(("kind", "at_once", "samples"), [("auto", 2, 5), ("off", 1, 10)])
def test_what_images_on_the_device_would_bring_is_tried_as_such_a_training_takes_its_steps(
    make_job: MakeJob, recorder: OperationRecorder, kind: str, at_once: int, samples: int
) -> None:
    """Many at once, though the loader's own come one by one."""
    trainer, resident = (
        trained(make_job(input=LOADER, cuda_graphs=kind, images=33)),
        make_job(images=33).training,
    )
    plan = AttributionPlan(10, 2, SamplePlan(1, 2), tries_bf16=False)
    found = profile_step(trainer, plan, resident).resident
    assert found
    assert (found.steps_per_sample, len(found.sample_seconds)) == (at_once, samples)
    recorder.fails = True
    found = profile_step(trainer, plan, resident).resident
    assert found
    assert (found.steps_per_sample, len(found.sample_seconds)) == (1, 10)


@pytest.mark.parametrize(
    ("images", "batch_size", "most_bytes", "layers", "at_once"),
    [
        (
            50_000,
            128,
            256 << 20,
            2,
            195,
        ),  # of 390 whole batches: the operations of two layers allow 250
        (50_000, 128, 100 * 128 * 36 * 4, 2, 78),  # the bytes of a hundred batches
        (50_000, 128, 256 << 20, 62, 6),  # the operations of more layers
        (1_010, 10, 7 * 10 * 36 * 4, 2, 5),  # which leaves one over, as seven would three
        (50_000, 128, 1, 2, 1),
        (300, 100, 256 << 20, 2, 3),
    ],
)
def test_few_windows_leave_few_steps_over(
    make_job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    images: int,
    batch_size: int,
    most_bytes: int,
    layers: int,
    at_once: int,
) -> None:
    network = nn.Sequential(nn.Flatten(), *(nn.Linear(36, 36) for _ in range(layers - 1)))
    trainer = make_job(network, batch_size=batch_size)
    monkeypatch.setattr(machine, "MOST_BYTES", most_bytes)
    trainer.training.image_count = images
    assert steps.steps_per_graph(trainer) == at_once


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """What a recorder of CUDA graphs calls."""
    made = MagicMock()
    for name in (
        "Stream",
        "CUDAGraph",
        "graph",
        "current_stream",
        "set_stream",
        "default_generators",
    ):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    made.graph.return_value.__exit__.return_value = False
    return made


def test_a_loaders_thread_may_pin_memory_while_steps_are_recorded(cuda: MagicMock) -> None:
    """CUDA otherwise refuses that, to it and to the recording."""
    loss = torch.zeros(())
    recorded = steps.CudaRecorder(torch.device("cuda", 0)).record(lambda: loss)
    assert recorded == (loss, cuda.CUDAGraph.return_value.replay)
    assert cuda.graph.call_args.kwargs["capture_error_mode"] == "thread_local"
    assert cuda.graph.call_args.kwargs["stream"] is cuda.Stream.return_value
    cuda.set_stream.assert_not_called()


def test_after_a_recording_that_failed_steps_go_on_where_they_were_and_may_draw(
    cuda: MagicMock,
) -> None:
    fail = MagicMock(side_effect=RuntimeError("operation not permitted when stream is capturing"))
    with pytest.raises(RuntimeError, match="not permitted"):
        steps.CudaRecorder(torch.device("cuda", 0)).record(fail)
    cuda.set_stream.assert_called_once_with(cuda.current_stream.return_value)
    generator = cuda.default_generators[0]
    generator.graphsafe_set_state.assert_called_once_with(generator.clone_state.return_value)
