"""How an epoch's steps reach the device: one by one, or several at once, captured in a CUDA graph.

Launching a kernel costs the host a few microseconds, often more than a small network's kernel takes to run. A graph
holds several whole steps on static buffers and is launched at once. None of the network's Python runs then. What a
replay reads besides its batches (learning rates, optimizer state) lies on the device and is changed in place. Captured
and eager steps learn the same bits; what is left of an epoch after its last whole graph is eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from photofinish.custom_code import is_reference
from photofinish.machine import most_steps_at_once
from photofinish.training.batches import Batch, Batches
from photofinish.training.optimisation import DeviceLearningRates, has_another_first_step, make_momentum, override_group

if TYPE_CHECKING:
    from photofinish.training.trainer import Trainer, TrainState

Kind = Literal["eager", "graph"]


class Recorded(NamedTuple):
    """Captured work."""

    output: torch.Tensor
    """where each replay writes its result"""
    replay: Callable[[], None]


class CudaRecorder:
    """Captures work in CUDA graphs, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run work eagerly on the capture's stream, which creates what libraries keep for a stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def record(self, work: Callable[[], torch.Tensor]) -> Recorded:
        """Capture the work without running it."""
        before, generator = torch.cuda.current_stream(), torch.cuda.default_generators[self._device.index]
        graph = torch.cuda.CUDAGraph()
        # Thread-local, as a loader's thread may pin memory meanwhile.
        capture = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        try:
            with capture:
                output = work()
        except RuntimeError:
            # PyTorch stays on the capture's stream, and before 2.14 its generator refuses to draw.
            torch.cuda.set_stream(before)
            generator.graphsafe_set_state(generator.clone_state())
            raise
        return Recorded(output, graph.replay)


@cache
def recorder_of(device: torch.device) -> CudaRecorder | None:
    """Return the recorder of a CUDA or ROCm device, or None for other kinds, whose graphs nobody has tried.

    There is one recorder a device, because cuBLAS keeps a workspace for each stream that it ever computed on.
    """
    return CudaRecorder(device) if device.type == "cuda" else None


class Steps:
    """Eager steps. They hold no reference to the trainer that holds them."""

    kind: Kind = "eager"
    at_once = 1
    """steps that are launched together, at most"""

    def __init__(self, why: str = "") -> None:
        self.why = why
        """the reason for this kind, for the record"""

    def epoch(self, trainer: Trainer, state: TrainState, epoch: int) -> Iterator[torch.Tensor]:
        """Train one epoch. Yields the loss of each step, or the losses of several, still on the device."""
        for number, batch in enumerate(trainer.training.train_batches(epoch)):
            loss = trainer.step(state, number, batch)
            state.schedule.batch_ended()
            yield loss

    def batches_only(self, training: Batches, epoch: int) -> Iterator[int]:
        """Load an epoch's batches as `epoch` does, without training. Yields how many each load brings."""
        return (1 for _batch in training.unplaced(epoch))

    def repeat(self, trainer: Trainer, state: TrainState, batch: Batch, steps: int) -> Callable[[], object]:
        """Return a function that takes so many steps on one batch."""
        return lambda: [trainer.step(state, 0, batch) for _ in range(steps)]

    def resized(self, _at_once: int) -> Steps:
        """Return new steps of this kind, so many at once if they are captured."""
        return Steps()

    def note_failure(self, error: BaseException) -> None:
        """Add to `why` that a capture failed while measuring, so that eager steps were measured."""
        note = f"; some were measured one by one, as recording them failed ({first_failure(error)})"
        self.why += "" if note in self.why else note

    def capture(self, trainer: Trainer, state: TrainState) -> None:
        """Capture steps, at the addresses that network and optimizer have now."""

    def release(self) -> None:
        """Free what was captured."""


class CapturedSteps:
    """A few steps on static batches, as one graph. The number of a step in its epoch matters to several ranks only."""

    def __init__(self, trainer: Trainer, state: TrainState, batches: Sequence[Batch], recorder: CudaRecorder) -> None:
        self._rates = DeviceLearningRates(len(batches), trainer.device)
        # Given, because each backward pass would otherwise launch a kernel to fill it.
        state = state._replace(first_gradient=torch.ones((), device=trainer.device))
        # A replay reads these at the addresses that they had during the capture, so they live as long as it can.
        self._read = state, batches

        def steps() -> torch.Tensor:
            rated = zip(batches, self._rates.each, strict=True)
            return torch.stack([trainer.step(state, 0, batch, rate) for batch, rate in rated])

        state.network.train()
        state.scaler.scale(torch.zeros((), device=trainer.device))  # creates the scaler's own tensors
        targets = [] if state.scaler.is_enabled() else [labels for _images, labels in batches]
        try:
            # Adam refuses to be captured unless it is capturable.
            with trainer.criterion.gradients_at_once(targets), override_group(state.optimizer, capturable=True):
                self._losses, self._replay = recorder.record(steps)
        except RuntimeError:
            _clear_unfinished_step(state)
            raise

    def run(self, rates: list[float]) -> torch.Tensor:
        """Take the steps with these learning rates. The next run overwrites the losses that it returns."""
        self._rates.fill(rates)
        self._replay()
        return self._losses


def _clear_unfinished_step(state: TrainState) -> None:
    """Remove what a capture leaves behind that failed within a step: the next step would read it."""
    for name in ("grad_scale", "found_inf"):
        vars(state.optimizer).pop(name, None)
    state.scaler.update(state.scaler.get_scale())
    state.optimizer.zero_grad()


class GraphedSteps(Steps):
    """Captured steps, and eager ones for what is left of an epoch."""

    kind: Kind = "graph"

    def __init__(self, recorder: CudaRecorder, at_once: int, why: str = "") -> None:
        super().__init__(why)
        self._recorder, self.at_once = recorder, at_once
        self._captured: tuple[Batch, CapturedSteps] | None = None
        """the buffers that batches are copied to, and the steps on them"""
        self._first_is_ahead = False
        """True until the training's first step, if the optimizer computes it in another way than was captured"""

    def capture(self, trainer: Trainer, state: TrainState) -> None:
        place = trainer.training.place(self.at_once)
        images, labels = (torch.split(part, trainer.training.batch_size) for part in place)
        batches = list(zip(images, labels, strict=True))
        self._first_is_ahead = has_another_first_step(trainer.experiment.optimizer) and not state.optimizer.state
        try:
            if self._first_is_ahead:
                make_momentum(state.optimizer)
            self._captured = place, CapturedSteps(trainer, state, batches, self._recorder)
        except RuntimeError:
            if self._first_is_ahead:  # eager steps make it in the first
                state.optimizer.state.clear()
            raise

    def run_each_kind(self, trainer: Trainer, state: TrainState) -> None:
        """Replay the graph once, and take an eager step of each size that an epoch leaves over."""
        assert self._captured
        (images, labels), steps = self._captured
        steps.run([state.schedule.learning_rate] * self.at_once)
        batch_size = trainer.training.batch_size
        whole, last = divmod(trainer.training.image_count, batch_size)
        full = batch_size if whole % self.at_once or self._first_is_ahead else 0
        for size in filter(None, (full, last)):
            trainer.step(state, 0, (images[:size].clone(), labels[:size].clone()))

    def release(self) -> None:
        self._captured = None

    def epoch(self, trainer: Trainer, state: TrainState, epoch: int) -> Iterator[torch.Tensor]:
        if self._captured is None:
            self.capture(trainer, state)
        assert self._captured
        place, steps = self._captured
        for left_over in trainer.training.put(place, epoch, alone=int(self._first_is_ahead)):
            if left_over is None:
                yield steps.run(state.schedule.next_rates(self.at_once)).clone()
                continue
            undamped = override_group(state.optimizer, dampening=0.0) if self._first_is_ahead else nullcontext()
            with undamped:  # a momentum of zeros then becomes the gradient, as PyTorch's own does
                loss = trainer.step(state, 0, left_over)
            state.schedule.batch_ended()
            self._first_is_ahead = False
            yield loss

    def batches_only(self, training: Batches, epoch: int) -> Iterator[int]:
        if self.at_once == 1:
            return super().batches_only(training, epoch)
        placed = training.put(training.place(self.at_once), epoch)
        return (self.at_once if left_over is None else 1 for left_over in placed)

    def repeat(self, trainer: Trainer, state: TrainState, batch: Batch, steps: int) -> Callable[[], object]:
        """Capture as many steps as divide the number, and as fit into an epoch's graph.

        Falls back to eager steps if the capture fails, because it is measured after a training, which must not be lost.
        """
        with self._recorder.beside():  # libraries can't prepare for another batch size during the capture
            trainer.step(state, 0, batch)
        at_once = max(size for size in range(1, self.at_once + 1) if steps % size == 0)
        try:
            captured = CapturedSteps(trainer, state, [batch] * at_once, self._recorder)
        except RuntimeError as error:
            self.note_failure(error)
            return super().repeat(trainer, state, batch, steps)
        rates = [state.schedule.learning_rate] * at_once
        return lambda: [captured.run(rates) for _ in range(steps // at_once)]

    def resized(self, at_once: int) -> Steps:
        return GraphedSteps(self._recorder, at_once)


def steps_per_graph(trainer: Trainer) -> int:
    """Return how many steps a graph holds: of the larger half of what is allowed, what leaves fewest steps over.

    It depends on the experiment and its data alone, so that a resumed training takes the same path.
    """
    if trainer.experiment.input.name == "loader":
        return 1  # so that loading the next batch overlaps with the step
    images, _labels = next(iter(trainer.training.eval_batches()))
    layers = sum(1 for module in trainer.network.modules() if next(module.children(), None) is None)
    image_count, batch_size = trainer.training.image_count, trainer.training.batch_size
    most, whole = most_steps_at_once(image_count, batch_size, images[0].nbytes, layers), image_count // batch_size
    return min(range(most, most // 2, -1), key=lambda size: whole % size)


def first_failure(error: BaseException) -> str:
    """Return the first line of the error that began it: the end of a failed capture raises another one, of no help."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return str(error).strip().partition("\n")[0]


def why_not_capturable(trainer: Trainer) -> str | None:
    """Return why steps can't be captured, or None if they can.

    With `cuda_graphs: auto`, the reason may also be that a trial before the training couldn't prove the bits of all steps.
    """
    experiment, training = trainer.experiment, trainer.training
    must_be_proven = experiment.cuda_graphs == "auto"
    is_own = is_reference(experiment.model.name) or (experiment.loss and is_reference(experiment.loss.name))
    reasons = {
        "its network is wrapped, for several devices": trainer.state.network is not trainer.network,
        "a compiled network is handed out in another way": experiment.model.compile,
        "an epoch has no whole batch": training.image_count < training.batch_size,
        "deterministic is false: no two steps need have the same bits": must_be_proven and not experiment.deterministic,
        "custom code may do something else in a later step": must_be_proven and is_own,
        "PyTorch reads a value back where a loss has both weight and label_smoothing": trainer.criterion.reads_back,
    }
    return next((why for why, holds in reasons.items() if holds), None)
