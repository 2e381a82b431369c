"""Answers for the four jobs of params.yaml, on machines of other speeds than this one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from conftest import ROOT, MakeResult
from result_files import (
    made_up_attribution,
    paired,
    resident_tried,
    trained,
    whole_epoch,
    with_record,
    with_timings,
)

from photofinish.answer.decision import decide_all
from photofinish.config.loader import Params, read_params
from photofinish.results.measured import TrainedRecords
from photofinish.results.measurements import Operations, SteadyState, StepParts
from photofinish.results.references import Reference, read_references

ANSWERS = {
    "digits-linear": ("No", "any GPU", "start-up"),
    "digits-mlp": ("No", "any GPU", "loading"),
    "digits-cnn": ("No", "renting"),
    "pictures-resnet": ("Probably yes", "renting", "saves enough"),
}


@dataclass(frozen=True)
class Figures:
    """Times of a job on two quiet cores, and the operations of its step."""

    startup_seconds: float
    epoch_seconds: float
    validation_seconds: float
    batch_seconds: float
    """Time to load a batch."""
    parts: tuple[float, float, float]
    """Forward pass, backward pass and optimizer of a step."""
    larger_step_seconds: float
    """Step of twice the batch."""
    images: int
    flops: int
    kernels: int
    convolutions: int
    saved_tensor_bytes: int

    def operations(self) -> Operations:
        return Operations(
            images=128,
            flops=self.flops,
            kernels=self.kernels,
            convolutions=self.convolutions,
            saved_tensor_bytes=self.saved_tensor_bytes,
            peak_allocated_bytes=2**28,
            peak_reserved_bytes=2**28,
        )


MEASURED = {
    "digits-linear": Figures(
        2.64, 0.0032, 0.0002, 24e-6, (106e-6, 88e-6, 64e-6), 281e-6,
        1257, 327_680, 15, 0, 38_916,
    ),
    "digits-mlp": Figures(
        2.41, 0.0269, 0.0039, 2.05e-3, (227e-6, 183e-6, 103e-6), 343e-6,
        1257, 1_294_336, 25, 0, 55_300,
    ),
    "digits-cnn": Figures(
        2.61, 0.15, 0.008, 86e-6, (5.1e-3, 9.5e-3, 0.5e-3), 29.9e-3,
        1257, 3_763_273_728, 48, 5, 11_638_788,
    ),
    "pictures-resnet": Figures(
        3.62, 1.2, 0.063, 1.1e-3, (0.038, 0.085, 0.008), 0.24,
        1120, 27_847_557_120, 311, 59, 58_324_996,
    ),
}  # fmt: skip


@cache
def shipped() -> Params:
    return read_params(ROOT / "params.yaml")


def cpu_result(make_result: MakeResult, name: str, speed: float) -> TrainedRecords:
    """Make the CPU's result of a shipped job on a machine of this speed."""
    given, experiment = MEASURED[name], shipped().experiments[name]
    startup_seconds, whole = given.startup_seconds / speed, given.epoch_seconds / speed
    epochs = experiment.epochs
    if limit := experiment.time_limit:
        in_time = (limit - startup_seconds) / (whole + given.validation_seconds / speed)
        epochs = min(epochs, max(2, int(in_time)))
    # The epochs differ by 1 %, as they do on a quiet machine.
    seconds = tuple(whole * (0.99, 1.01)[epoch % 2] for epoch in range(epochs))
    made_up = trained(make_result, name, epoch_seconds=seconds)
    epochs_done = tuple(
        type(each)(each.training_seconds, given.validation_seconds / speed, 1.7e9)
        for each in made_up.times.epochs
    )
    passes_seconds = sum(each.training_seconds + each.validation_seconds for each in epochs_done)
    step_seconds = tuple(part / speed for part in given.parts)
    whole_step = sum(step_seconds)
    steps = given.images / 128
    waited_seconds = steps * given.batch_seconds / speed
    names = ("forward_seconds", "backward_seconds", "optimizer_seconds")
    parts = dict(zip(names, step_seconds, strict=True))
    parts |= {"waiting_seconds": given.batch_seconds / speed, "copying_seconds": 0.0}
    parts["rest_seconds"] = 0.0
    attribution = made_up_attribution(
        given.batch_seconds / speed,
        step_seconds=whole_step,
        other_step_seconds=given.larger_step_seconds / speed,
        other_batch_images=256,
        parts=StepParts(**{part: (value,) * 3 for part, value in parts.items()}),
    )
    of_records = {each.experiment: each.training.data_sha256 for each in shipped_references()}
    return with_timings(
        with_record(made_up, experiment=experiment, data_sha256=of_records.get(name, "d" * 64)),
        epochs=epochs_done,
        epochs_left=experiment.epochs - epochs,
        startup_seconds=startup_seconds,
        startup_cpu_seconds=0.95 * startup_seconds,
        total_seconds=startup_seconds + passes_seconds,
        training_image_count=given.images,
        steps_per_epoch=-(-given.images // 128),
        operations=given.operations(),
        attribution=attribution,
        parts=tuple(whole_epoch(each, steps, waited_seconds) for each in seconds),
        epoch_steps=steps,
        steady_state=SteadyState(steps_per_sample=1, sample_seconds=(whole_step,) * 3),
        loader=resident_tried(whole_step + given.batch_seconds / speed, whole_step)
        if experiment.input.name == "loader"
        else None,
    )


@cache
def shipped_references() -> tuple[Reference, ...]:
    return tuple(read_references(ROOT / "reference", "all"))


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.0, 2.0, 4.0])  # over the measured machine's
def test_each_job_has_its_answer_on_a_machine_of_any_speed(
    make_result: MakeResult, speed: float
) -> None:
    results: list[Any] = [cpu_result(make_result, name, speed) for name in ANSWERS]
    for references, counts in (((), [0, 0, 0, 0]), (shipped_references(), [0, 0, 1, 2])):
        pairs = paired(results, shipped().comparing, references)
        assert [len(pair.references) for pair in pairs] == counts
        for (name, answer), found in zip(ANSWERS.items(), decide_all(pairs), strict=True):
            own = found.answer, found.worth.about, found.worth.reason
            assert own[: len(answer)] == answer, name
