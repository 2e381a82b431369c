"""Training steps, launched one by one or several at once, captured in a CUDA graph.

Launching a kernel costs the host a few microseconds, often more than a small network's kernel takes
to run. A graph holds several whole steps on static buffers and is launched at once, without running
Python. Captured and eager steps give the same bits. An epoch's last batches, too few for a graph,
take eager steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from photofinish.config.cuda_graphs import why_not_captured
from photofinish.machine import most_steps_at_once
from photofinish.nested import as_nested, leaves, samples_in
from photofinish.training.batches import Batch, bytes_of_a_sample, first_samples, map_batch
from photofinish.training.optimization import DeviceLearningRates, override_group

if TYPE_CHECKING:
    from photofinish.training.state import TrainState
    from photofinish.training.trainer import Trainer

Kind = Literal["eager", "graph"]


class Recorded(NamedTuple):
    """Captured work."""

    output: torch.Tensor
    """Result, overwritten by each replay."""
    replay: Callable[[], None]


class CudaRecorder:
    """Captures work in CUDA graphs, on a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run work eagerly on the capture's stream, for which libraries create workspaces then."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def record(self, work: Callable[[], torch.Tensor]) -> Recorded:
        """Capture the work without running it."""
        stream = torch.cuda.current_stream()
        generator = torch.cuda.default_generators[self._device.index]
        graph = torch.cuda.CUDAGraph()
        # Thread-local, as a loader's thread may pin memory meanwhile.
        capture = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        try:
            with capture:
                output = work()
        except RuntimeError:
            # PyTorch stays on the capture's stream, and before 2.14 its generator refuses to draw.
            torch.cuda.set_stream(stream)
            generator.graphsafe_set_state(generator.clone_state())
            raise
        return Recorded(output, graph.replay)


@cache
def recorder_of(device: torch.device) -> CudaRecorder | None:
    """Return the recorder of a CUDA or ROCm device, or None for others, whose graphs are untested.

    A device has one, because cuBLAS keeps a workspace for each stream it ever used.
    """
    return CudaRecorder(device) if device.type == "cuda" else None


class Steps:
    """Eager steps."""

    kind: Kind = "eager"
    at_once = 1
    """Number of steps that are launched together, at most."""

    def __init__(self, why: str = "") -> None:
        self.why = why
        """Reason for this kind, for the record."""

    def capture(self, trainer: Trainer, state: TrainState) -> None:
        """Capture steps at the addresses of network and optimizer, unless they are captured."""

    def take(self, trainer: Trainer, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Train on the epoch's batch of this number. Returns its loss, on the device."""
        loss = trainer.step(state, number, batch)
        state.schedule.batch_ended()
        return loss

    def repeat(
        self, trainer: Trainer, state: TrainState, batch: Batch, steps: int
    ) -> Callable[[], object]:
        """Return a function that takes so many steps on one batch."""
        return lambda: [trainer.step(state, 0, batch) for _ in range(steps)]

    def note_failure(self, error: BaseException) -> None:
        """Add to `why` that a capture failed while measuring, so that eager steps were measured."""
        note = f"; some were measured one by one, as recording them failed ({first_failure(error)})"
        self.why += "" if note in self.why else note

    def release(self) -> None:
        """Free what was captured."""


class CapturedSteps:
    """A few steps on static buffers, as one graph."""

    def __init__(
        self, trainer: Trainer, state: TrainState, batches: list[Batch], recorder: CudaRecorder
    ) -> None:
        self._rates = DeviceLearningRates(len(batches), trainer.device)
        # Otherwise each backward pass would launch a kernel to fill it.
        state = state._replace(first_gradient=torch.ones((), device=trainer.device))
        # A replay reads these at the addresses of the capture, so they must live as long.
        self._read = state, batches

        def steps() -> torch.Tensor:
            losses = []
            for batch, rate in zip(batches, self._rates.slots, strict=True):
                losses.append(trainer.step(state, 0, batch, rate))
            return torch.stack(losses)

        state.network.train()
        state.scaler.scale(torch.zeros((), device=trainer.device))  # creates the scaler's tensors
        targets = [] if state.scaler.is_enabled() else [labels for _images, labels in batches]
        gradients_at_once = trainer.criterion.gradients_at_once(targets)
        # Adam refuses to be captured unless it is capturable.
        capturable = override_group(state.optimizer, capturable=True)
        try:
            with gradients_at_once, capturable:
                self._losses, self._replay = recorder.record(steps)
        except RuntimeError:
            # The next step would read what the unfinished one left behind.
            for name in ("grad_scale", "found_inf"):
                vars(state.optimizer).pop(name, None)
            state.scaler.update(state.scaler.get_scale())
            state.optimizer.zero_grad()
            raise

    def run(self, rates: list[float]) -> torch.Tensor:
        """Take the steps with these learning rates. The next run overwrites the returned losses."""
        self._rates.fill(rates)
        self._replay()
        return self._losses


class GraphedSteps(Steps):
    """Captured steps, and eager ones for the rest of an epoch."""

    kind: Kind = "graph"

    def __init__(self, recorder: CudaRecorder, at_once: int, why: str = "") -> None:
        super().__init__(why)
        self._recorder, self.at_once = recorder, at_once
        self._captured: tuple[Batch, CapturedSteps] | None = None
        """Static buffers, and the steps on them."""

    def capture(self, trainer: Trainer, state: TrainState) -> None:
        if self._captured:
            return
        buffers = next(iter(trainer.training.train_batches(0, self.at_once)))
        batches = split_batch(buffers, trainer.training.batch_size)
        self._captured = buffers, CapturedSteps(trainer, state, batches, self._recorder)

    def take(self, trainer: Trainer, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Train on several batches joined into one. Returns the loss of each."""
        assert self._captured
        buffers, captured = self._captured
        if samples_in(batch[1]) < samples_in(buffers[1]):
            losses = []
            parts = split_batch(batch, trainer.training.batch_size)
            for part_number, one in enumerate(parts, start=number):
                losses.append(super().take(trainer, state, part_number, one))
            return torch.stack(losses)
        for buffer, part in zip(_tensors(buffers), _tensors(batch), strict=True):
            buffer.copy_(part)
        return captured.run(state.schedule.next_rates(self.at_once)).clone()

    def run_each_kind(self, trainer: Trainer, state: TrainState) -> None:
        """Replay the graph, and take an eager step of each size that an epoch leaves over."""
        assert self._captured
        buffers, captured = self._captured
        for buffer in _tensors(buffers):
            buffer.copy_(buffer.clone())  # an epoch's batches need memory beside the buffers
        captured.run([state.schedule.learning_rate] * self.at_once)
        batch_size = trainer.training.batch_size
        whole, last = divmod(trainer.training.image_count, batch_size)
        for size in (batch_size if whole % self.at_once else 0, last):
            if size:
                batch = map_batch(torch.clone, first_samples(buffers, size))
                trainer.step(state, 0, batch)

    def repeat(
        self, trainer: Trainer, state: TrainState, batch: Batch, steps: int
    ) -> Callable[[], object]:
        """Capture as many steps as divide the number and fit into an epoch's graph.

        Falls back to eager steps if the capture fails: a finished training must not be lost.
        """
        with self._recorder.beside():  # libraries can't prepare for a batch size in a capture
            trainer.step(state, 0, batch)
        at_once = max(size for size in range(1, self.at_once + 1) if steps % size == 0)
        try:
            captured = CapturedSteps(trainer, state, [batch] * at_once, self._recorder)
        except RuntimeError as error:
            self.note_failure(error)
            return super().repeat(trainer, state, batch, steps)
        rates = [state.schedule.learning_rate] * at_once
        return lambda: [captured.run(rates) for _ in range(steps // at_once)]

    def release(self) -> None:
        self._captured = None


def split_batch(batch: Batch, size: int) -> list[Batch]:
    """Split a batch into parts of so many samples."""
    parts = [torch.split(tensor, size) for tensor in _tensors(batch)]
    inputs = len(leaves(batch[0]))
    split = []
    for tensors in zip(*parts, strict=True):
        images, labels = list(tensors[:inputs]), list(tensors[inputs:])
        split.append((as_nested(images, batch[0]), as_nested(labels, batch[1])))
    return split


def _tensors(batch: Batch) -> list[torch.Tensor]:
    inputs, targets = batch
    return [*leaves(inputs), *leaves(targets)]


def steps_per_graph(trainer: Trainer) -> int:
    """Return how many steps a graph holds: few are left over at the end of an epoch.

    It depends on the experiment and its data alone, so that a resumed training takes the same path.
    """
    if trainer.experiment.input.name == "loader":
        return 1  # so that loading the next batch overlaps with the step
    sample_bytes = bytes_of_a_sample(next(iter(trainer.training.eval_batches())))
    layers = sum(1 for module in trainer.network.modules() if not any(module.children()))
    image_count, batch_size = trainer.training.image_count, trainer.training.batch_size
    most = most_steps_at_once(image_count, batch_size, sample_bytes, layers)
    whole = image_count // batch_size
    return min(range(most, most // 2, -1), key=lambda size: whole % size)


def first_failure(error: BaseException) -> str:
    """Return the first line of the original error. The end of a failed capture hides it."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return str(error).strip().partition("\n")[0]


def why_not_capturable(trainer: Trainer) -> str | None:
    """Return why steps can't be captured, or None if they can."""
    if trainer.state.network is not trainer.network:
        return "its network is wrapped, for several devices"
    if trainer.training.image_count < trainer.training.batch_size:
        return "an epoch has no whole batch"
    return why_not_captured(trainer.experiment)
