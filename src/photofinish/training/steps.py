"""How an epoch's steps are handed to the device: one by one, or many at once, recorded in a CUDA graph.

Handing out an operation takes the host some microseconds, and a small network's takes the device fewer. A graph holds
several whole steps on batches that are put into the same place each time, and is handed out at once. Nothing of the
network's Python runs then: what a step reads besides (its learning rate, the state of the optimiser) lies on the
device, where it is changed in place. The bits are those of the same steps one by one, which what is left of an epoch
after its last whole graph takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from photofinish.machine import most_steps_at_once
from photofinish.own_code import is_reference
from photofinish.training.batches import Batch, Batches
from photofinish.training.optimisation import RateSlots, has_another_first_step, lent, make_momentum

if TYPE_CHECKING:
    from photofinish.training.trainer import Trainer, TrainState

Kind = Literal["eager", "graph"]


class Recorded(NamedTuple):
    """Work that is done again at each call, on what then lies where it read when it was recorded."""

    output: torch.Tensor
    """where each time leaves what the work gives"""
    again: Callable[[], None]


class CudaRecorder:
    """Records work in CUDA graphs, captured on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Within it, work is done on that stream, which makes what it needs once: after what was handed out before and
        before what comes next."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def record(self, work: Callable[[], torch.Tensor]) -> Recorded:
        """None of it is done yet. Its memory is the graph's own; torch sees to it that random numbers go on from where
        the generator is."""
        before, generator = torch.cuda.current_stream(), torch.cuda.default_generators[self._device.index]
        graph = torch.cuda.CUDAGraph()
        # Meanwhile a loader's thread may pin memory for batches to come, which is no part of the work.
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

    One recorder a device, as cuBLAS keeps a workspace for each stream that it ever computed on.
    """
    return CudaRecorder(device) if device.type == "cuda" else None


class Steps:
    """The steps of a training, and of whatever is rehearsed for it; here one by one, each operation by itself.

    They hold no trainer: it holds them, and is to be gone as soon as nobody needs it.
    """

    kind: Kind = "eager"
    at_once = 1
    """how many are handed out at once, at most"""

    def __init__(self, why: str = "") -> None:
        self.why = why
        """they are taken so"""

    def epoch(self, trainer: Trainer, state: TrainState, epoch: int) -> Iterator[torch.Tensor]:
        """Train it, one step further or several with each loss or losses that it gives, still on the device."""
        for number, batch in enumerate(trainer.training.shuffled(epoch)):
            loss = trainer.step(state, number, batch)
            state.schedule.batch_ended()
            yield loss

    def fetched(self, training: Batches, epoch: int) -> Iterator[int]:
        """Nothing but the batches of an epoch, as steps get them; how many with each."""
        return (1 for _batch in training.unplaced(epoch))

    def repeated(self, trainer: Trainer, state: TrainState, batch: Batch, steps: int) -> Callable[[], object]:
        """What takes so many steps on one batch at each call."""
        return lambda: [trainer.step(state, 0, batch) for _ in range(steps)]

    def resized(self, _at_once: int) -> Steps:
        """Return new steps that are handed out as these are, so many at once where these are captured."""
        return Steps()

    def note_failure(self, error: BaseException) -> None:
        """Say in `why`, which is recorded, that steps were measured eagerly, as capturing them failed."""
        note = f"; some were measured one by one, as recording them failed ({first_failure(error)})"
        self.why += "" if note in self.why else note

    def begin(self, trainer: Trainer, state: TrainState) -> None:
        """Make what the first of them would make, and be bound to where network and optimiser now lie."""

    def forget(self) -> None:
        """Give that back."""


class Window:
    """A few steps on batches that lie at the same place each time, recorded."""

    def __init__(self, trainer: Trainer, state: TrainState, batches: Sequence[Batch], recorder: CudaRecorder) -> None:
        self._rates = RateSlots(len(batches), trainer.device)
        # An operation less a step: else each would make the loss's gradient with respect to itself, which is one.
        state = state._replace(first_gradient=torch.ones((), device=trainer.device))
        # A replay reads these at the addresses that they had during the capture, so they live as long as it can.
        self._read = state, batches

        def steps() -> torch.Tensor:
            numbered = enumerate(zip(batches, self._rates.each, strict=True))
            return torch.stack([trainer.step(state, number, batch, rate) for number, (batch, rate) in numbered])

        state.network.train()
        state.scaler.scale(torch.zeros((), device=trainer.device))  # which makes what a scaler keeps, for fp16
        try:
            targets = [] if state.scaler.is_enabled() else [labels for _images, labels in batches]
            ahead = trainer.criterion.gradients_at_once(targets)
            with ahead, lent(state.optimizer, capturable=True):  # else Adam refuses
                self._losses, self._again = recorder.record(steps)
        except RuntimeError:
            _clear_unfinished_step(state)
            raise

    def run(self, rates: list[float]) -> torch.Tensor:
        """With these learning rates. The losses lie where the next run puts its own."""
        self._rates.fill(rates)
        self._again()
        return self._losses


def _clear_unfinished_step(state: TrainState) -> None:
    """Remove what a capture leaves behind that failed within a step: the next step would read it."""
    for name in ("grad_scale", "found_inf"):
        vars(state.optimizer).pop(name, None)
    state.scaler.update(state.scaler.get_scale())
    state.optimizer.zero_grad()


class GraphedSteps(Steps):
    """So many at once, and one by one what is then left of an epoch."""

    kind: Kind = "graph"

    def __init__(self, recorder: CudaRecorder, at_once: int, why: str = "") -> None:
        super().__init__(why)
        self._recorder, self.at_once = recorder, at_once
        self._begun: tuple[Batch, Window] | None = None
        """where batches are put, and the steps on them"""
        self._first_is_ahead = False
        """the next step is the first of all, and the optimiser's is not what was recorded"""

    def begin(self, trainer: Trainer, state: TrainState) -> None:
        """Record them; the batches that are there meanwhile only say how large a place they need."""
        place = trainer.training.place(self.at_once)
        images, labels = (torch.split(part, trainer.training.batch_size) for part in place)
        self._first_is_ahead = has_another_first_step(trainer.experiment.optimizer) and not state.optimizer.state
        try:
            if self._first_is_ahead:
                make_momentum(state.optimizer)
            self._begun = place, Window(trainer, state, list(zip(images, labels, strict=True)), self._recorder)
        except RuntimeError:
            if self._first_is_ahead:  # steps one by one make it in the first
                state.optimizer.state.clear()
            raise

    def resized(self, at_once: int) -> Steps:
        return GraphedSteps(self._recorder, at_once)

    def run_each_kind(self, trainer: Trainer, state: TrainState) -> None:
        """Replay the graph once, and take an eager step of each size that an epoch leaves over."""
        assert self._begun
        (images, labels), window = self._begun
        window.run([state.schedule.learning_rate] * self.at_once)
        batch_size = trainer.training.batch_size
        whole, last = divmod(trainer.training.image_count, batch_size)
        full = batch_size if whole % self.at_once or self._first_is_ahead else 0
        for size in filter(None, (full, last)):
            trainer.step(state, 0, (images[:size].clone(), labels[:size].clone()))

    def forget(self) -> None:
        """The graph, and with it its memory."""
        self._begun = None

    def epoch(self, trainer: Trainer, state: TrainState, epoch: int) -> Iterator[torch.Tensor]:
        """The losses of so many steps, then those of the others one by one."""
        if self._begun is None:
            self.begin(trainer, state)
        assert self._begun
        place, window = self._begun
        done = 0
        for left_over in trainer.training.put(place, epoch, alone=int(self._first_is_ahead)):
            if left_over is None:
                yield window.run(state.schedule.next_rates(self.at_once)).clone()
                done += self.at_once
            else:
                undamped = lent(state.optimizer, dampening=0.0) if self._first_is_ahead else nullcontext()
                with undamped:  # a momentum of zeros then becomes the gradient, as PyTorch's own does
                    loss = trainer.step(state, done, left_over)
                state.schedule.batch_ended()
                self._first_is_ahead = False
                yield loss
                done += 1

    def fetched(self, training: Batches, epoch: int) -> Iterator[int]:
        """So many at once, too; one at a time, they come as to steps one by one."""
        if self.at_once == 1:
            return super().fetched(training, epoch)
        placed = training.put(training.place(self.at_once), epoch)
        return (self.at_once if left_over is None else 1 for left_over in placed)

    def repeated(self, trainer: Trainer, state: TrainState, batch: Batch, steps: int) -> Callable[[], object]:
        """Recorded for themselves: as many at once as divides their number, if it is no more than in an epoch. One by
        one where that fails, for what is measured after a training must not lose it."""
        with self._recorder.beside():  # what another size of batch needs once can't be made while it is recorded
            trainer.step(state, 0, batch)
        at_once = max(size for size in range(1, self.at_once + 1) if steps % size == 0)
        try:
            window = Window(trainer, state, [batch] * at_once, self._recorder)
        except RuntimeError as error:
            self.note_failure(error)
            return super().repeated(trainer, state, batch, steps)
        rates = [state.schedule.learning_rate] * at_once
        return lambda: [window.run(rates) for _ in range(steps // at_once)]


def most_at_once(trainer: Trainer) -> int:
    """How many steps a graph holds: by figures that are the same whenever the training is, so that one that goes on
    takes the same path. Of the sizes from the half of what may be on, one that leaves few of an epoch's steps over."""
    if trainer.experiment.input.name == "loader":
        return 1  # so that each batch is on its way while the step before it is at work
    images, _labels = next(iter(trainer.training.in_order()))
    layers = sum(1 for module in trainer.network.modules() if next(module.children(), None) is None)
    image_count, batch_size = trainer.training.image_count, trainer.training.batch_size
    most, whole = most_steps_at_once(image_count, batch_size, images[0].nbytes, layers), image_count // batch_size
    return min(range(most, most // 2, -1), key=lambda size: whole % size)


def first_failure(error: BaseException) -> str:
    """Return the first line of the error that began it: the end of a failed capture raises another one, of no help."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return str(error).strip().partition("\n")[0]


def hindrance(trainer: Trainer) -> str | None:
    """Why its steps aren't recorded; None where they may be. Of `auto`, also why nothing that is tried before the
    training could prove the bits of all its steps."""
    experiment, training = trainer.experiment, trainer.training
    must_be_proven = experiment.steps == "auto"
    is_own = is_reference(experiment.model.name) or (experiment.loss and is_reference(experiment.loss.name))
    reasons = {
        "its network is wrapped, for several devices": trainer.state.network is not trainer.network,
        "a compiled network is handed out in another way": experiment.model.compile,
        "an epoch has no whole batch": training.image_count < training.batch_size,
        "deterministic is false: no two steps need have the same bits": must_be_proven and not experiment.deterministic,
        "code of one's own may do something else in a later step": must_be_proven and is_own,
        "PyTorch reads a value back where a loss has both weight and label_smoothing": trainer.criterion.reads_back,
    }
    return next((why for why, holds in reasons.items() if holds), None)
