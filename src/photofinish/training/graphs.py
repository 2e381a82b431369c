"""Captured steps: several steps on static buffers, launched together as one CUDA graph.

Launching a kernel costs the host a few microseconds, often more than a small network's kernel takes
to run. A replay runs no Python. Captured and eager steps give equal bits. If an epoch's last
batches do not fill a graph, a second graph holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import nn

from photofinish.config.cuda_graphs import TURNED_OFF, why_not_captured
from photofinish.errors import UserError
from photofinish.models.custom import same_bits
from photofinish.nested import samples_in
from photofinish.training.batches import (
    Batch,
    Batches,
    bytes_of_a_sample,
    first_samples,
    map_batch,
    seed_epoch,
    split_batch,
    tensors_of,
)
from photofinish.training.learning_rates import DeviceLearningRates, Rates, override_groups
from photofinish.training.losses import Loss
from photofinish.training.state import TrainState
from photofinish.training.step import Step

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment
    from photofinish.training.trainer import Trainer

MOST_BYTES = 256 << 20
"""Maximum size of the batches of one graph."""
_MOST_OPERATIONS = 4000
"""Maximum number of operations of one graph: each takes memory, and time to capture."""
_OPERATIONS_A_LAYER = 8
"""Approximate number of operations per layer in a training step."""
TRIED_STEPS = 3
"""Number of captured steps whose bits a trial compares with eager steps, by hand."""
Output = TypeVar("Output")


class Recorded(NamedTuple, Generic[Output]):
    output: Output
    """Result, which each replay overwrites."""
    replay: Callable[[], None]


class CudaRecorder:
    """Recorder of work in CUDA graphs, on a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run work on the capture's stream, so that libraries create their workspaces for it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def new_pool(self) -> Any:
        """Return a handle of memory that several graphs may share."""
        return torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], Output], pool: Any = None) -> Recorded[Output]:
        """Capture the work without running it.

        A replay may overwrite all results and intermediate tensors of other graphs in its pool.
        """
        stream = torch.cuda.current_stream()
        generator = torch.cuda.default_generators[self._device.index]
        graph = torch.cuda.CUDAGraph()
        # Thread-local, as a loader's thread may pin memory meanwhile.
        capture = torch.cuda.graph(
            graph, pool, stream=self._stream, capture_error_mode="thread_local"
        )
        try:
            with capture:
                output = work()
        except RuntimeError:
            # PyTorch would stay on the capture's stream. Before 2.14 its generator would not draw.
            torch.cuda.set_stream(stream)
            generator.graphsafe_set_state(generator.clone_state())
            raise
        return Recorded(output, graph.replay)


@cache
def recorder_of(device: torch.device) -> CudaRecorder | None:
    """Return the recorder of a CUDA or ROCm device, or None: other devices' graphs are untested.

    A device has a single recorder, because cuBLAS keeps a workspace for each stream it ever used.
    """
    return CudaRecorder(device) if device.type == "cuda" else None


def first_failure(error: BaseException) -> str:
    """Return the first line of the original error, which the end of a failed capture hides."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return str(error).strip().partition("\n")[0]


class CapturedSteps:
    """Graph of a few steps on static buffers."""

    def __init__(
        self,
        step: Step,
        criterion: Loss,
        state: TrainState,
        batches: list[Batch],
        record: Callable[[Callable[[], torch.Tensor]], Recorded[torch.Tensor]],
        number: int = 0,
    ) -> None:
        """Capture steps on an epoch's batches, from the batch `number`."""
        self.count = len(batches)
        device = tensors_of(batches[0])[0].device
        groups = len(state.optimizer.param_groups)
        self._rates = DeviceLearningRates(len(batches), groups, device)
        # Otherwise each backward pass would launch a kernel to fill the first gradient.
        state = state._replace(first_gradient=torch.ones((), device=device))
        # A replay reads these tensors at their addresses in the capture, so keep them alive.
        self._read = state, batches

        def steps() -> torch.Tensor:
            losses = []
            for place, (batch, rate) in enumerate(zip(batches, self._rates.slots, strict=True)):
                losses.append(step(state, number + place, batch, rate, moves_schedule=False))
            return torch.stack(losses)

        state.network.train()
        state.scaler.scale(torch.zeros((), device=device))  # creates the scaler's tensors
        targets = [] if state.scaler.is_enabled() else [labels for _images, labels in batches]
        gradients_at_once = criterion.gradients_at_once(targets)
        # Adam can only be captured with capturable=True.
        capturable = override_groups(state.optimizer, "capturable", [True] * groups)
        try:
            with gradients_at_once, capturable:
                self._losses, self._replay = record(steps)
        except RuntimeError:
            # The next step would read what the unfinished step left behind.
            for name in ("grad_scale", "found_inf"):
                vars(state.optimizer).pop(name, None)
            state.scaler.update(state.scaler.get_scale())
            state.optimizer.zero_grad()
            raise

    def run(self, rates: list[Rates]) -> torch.Tensor:
        """Take the steps with these learning rates. The next run overwrites the returned losses."""
        self._rates.fill(rates)
        self._replay()
        return self._losses


class GraphedSteps:
    """A graph of `at_once` steps, and one of the steps left at an epoch's end."""

    kind: Literal["eager", "graph"] = "graph"
    why = ""
    """Reason for launching steps together, for the record."""

    def __init__(
        self,
        step: Step,
        criterion: Loss,
        recorder: CudaRecorder,
        batch_size: int,
        at_once: int,
    ) -> None:
        self._step, self._criterion, self.recorder = step, criterion, recorder
        self._batch_size, self.at_once = batch_size, at_once
        self._pool = recorder.new_pool()
        self._captured: dict[int, tuple[Batch, CapturedSteps]] = {}
        """Static buffers and the captured steps that read them, by the number of samples."""

    def record(self, work: Callable[[], Output]) -> Recorded[Output]:
        """Capture work that runs between steps, in the memory of the steps' graphs."""
        return self.recorder.record(work, self._pool)

    def capture(self, state: TrainState, number: int, buffers: Batch) -> None:
        """Capture the steps from `number` on, on the state's tensors and batches in `buffers`."""
        batches = split_batch(buffers, self._batch_size)
        steps = CapturedSteps(self._step, self._criterion, state, batches, self.record, number)
        self._captured[samples_in(buffers[1])] = buffers, steps

    def capture_epoch(self, state: TrainState, training: Batches) -> None:
        """Capture the steps of an epoch's whole graphs, and of the batches that are left."""
        buffers = next(training.train_batches(0, self.at_once))
        self.capture(state, 0, buffers)
        graph_samples = self.at_once * self._batch_size
        graphs, left = divmod(training.image_count, graph_samples)
        if left:
            # Each batch is copied into its buffers before a replay, so both graphs may share them.
            self.capture(state, graphs * self.at_once, first_samples(buffers, left))

    def __call__(self, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Train on several batches joined into one. Return the loss of each batch."""
        samples = samples_in(batch[1])
        if samples not in self._captured:
            self.capture(state, number, map_batch(torch.clone, batch))
        buffers, captured = self._captured[samples]
        for buffer, part in zip(tensors_of(buffers), tensors_of(batch), strict=True):
            buffer.copy_(part)
        return captured.run(state.schedule.next_rates(captured.count)).clone()

    def run_each_kind(self, state: TrainState) -> None:
        for buffers, captured in self._captured.values():
            for buffer in tensors_of(buffers):
                buffer.copy_(buffer.clone())  # like an epoch's batches, which need memory, too
            captured.run([state.schedule.rates] * captured.count)

    def repeat(self, state: TrainState, batch: Batch, steps: int) -> Callable[[], object]:
        """Return a function that takes `steps` steps on one batch, in graphs of equal size.

        Falls back to eager steps if the capture fails, so that a finished training is not lost.
        """
        with self.recorder.beside():  # libraries prepare for a batch size here
            self._step(state, 0, batch, moves_schedule=False)
        at_once = max(size for size in range(1, self.at_once + 1) if steps % size == 0)
        batches = [batch] * at_once
        try:
            record = self.recorder.record
            captured = CapturedSteps(self._step, self._criterion, state, batches, record)
        except RuntimeError as error:
            note = "; some were measured one by one, as capturing them failed"
            note += f" ({first_failure(error)})"
            self.why += "" if note in self.why else note
            return self._step.repeat(state, batch, steps)
        rates = [state.schedule.rates] * at_once
        return lambda: [captured.run(rates) for _ in range(steps // at_once)]

    def resized(self, at_once: int) -> GraphedSteps:
        """Return steps for graphs of another size, not captured yet."""
        return GraphedSteps(self._step, self._criterion, self.recorder, self._batch_size, at_once)

    def release(self) -> None:
        self._captured.clear()
        self._pool = self.recorder.new_pool()  # a pool can't be used again after its last graph


Steps = Step | GraphedSteps
"""How steps are launched: one by one, or together."""


def choose_steps(trainer: Trainer) -> Steps:
    """Choose how steps are launched, by `cuda_graphs` in params.yaml. Nothing is captured yet.

    With `auto`, steps are captured if a trial on scratch copies gives the bits of eager steps.
    """
    experiment, step, training = trainer.experiment, trainer.step, trainer.training
    network = trainer.state.network
    device = next(network.parameters()).device
    recorder = recorder_of(device)
    if experiment.cuda_graphs == "off":
        return step.because(TURNED_OFF)
    if recorder is None:
        return step.because(f"steps are captured on CUDA and ROCm only, not on {device.type}")
    why_not = why_not_captured(experiment)
    if isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
        why_not = "its network is wrapped, for several devices"
    elif training.image_count < training.batch_size:
        why_not = "an epoch has no whole batch"
    if why_not:
        return fall_back(trainer, why_not)
    at_once = steps_per_graph(experiment, training, network)
    graphed = GraphedSteps(step, trainer.criterion, recorder, training.batch_size, at_once)
    if trainer.is_large():
        if experiment.cuda_graphs == "auto":
            return step.because("its network is too large for its device to try them on a copy")
        graphed.why = "params.yaml says so; no copy to try them on fits"
        return graphed
    try:
        has_same_bits = _try(graphed, trainer)
    except RuntimeError as error:
        return fall_back(trainer, f"capturing some failed ({first_failure(error)})")
    if experiment.deterministic and not has_same_bits:
        return fall_back(trainer, "captured, some gave other bits")
    graphed.why = "some were tried, and gave the same bits one by one"
    if not experiment.deterministic:
        graphed.why = "params.yaml says so; bits weren't compared, as deterministic is false"
    return graphed


def fall_back(trainer: Trainer, why: str) -> Step:
    """Return eager steps. Raise UserError if params.yaml requires captured steps."""
    if trainer.experiment.cuda_graphs == "on":
        raise UserError(
            f"cuda_graphs is on in params.yaml, which can't be: {why}. "
            f"`cuda_graphs: auto` takes them one by one then"
        )
    return trainer.step.because(why)


def _try(graphed: GraphedSteps, trainer: Trainer) -> bool:
    """Return True if captured and eager steps give the same bits."""
    training = trainer.training
    batch_size = training.batch_size
    whole, last = divmod(training.image_count, batch_size)
    trial = graphed.resized(min(graphed.at_once, TRIED_STEPS))
    count = min(whole, TRIED_STEPS) // trial.at_once * trial.at_once
    # Libraries choose kernels by a batch's size and alignment. The last batch follows `left` whole
    # ones in memory. Two or one of them align it as an even or an odd number does.
    left = whole % graphed.at_once
    left = min(left, 2 - left % 2)
    joined = next(training.train_batches(0, left + 1))
    end = [first_samples(joined, left * batch_size + last)] if left + last else []
    # An eager step's batch has memory of its own.
    singly = [map_batch(torch.clone, one) for part in end for one in split_batch(part, batch_size)]
    with trainer.scratch_copy() as state, graphed.recorder.beside():
        numbered = [*enumerate(singly, whole - left)]
        expected = _bits(trainer, state, trainer.step, count, numbered)
    with trainer.scratch_copy() as state:
        numbered = [*enumerate(end, whole - left)]
        captured = _bits(trainer, state, trial, count, numbered)
    return all(map(same_bits, expected, captured))


def _bits(
    trainer: Trainer, state: TrainState, steps: Steps, count: int, end: list[tuple[int, Batch]]
) -> list[torch.Tensor]:
    """Return losses, weights and optimizer state after up to two short epochs.

    An epoch has `count` steps, then those on the numbered batches of `end`. The schedule moves
    between epochs, so that a learning rate that is fixed in the graph changes the bits.
    """
    losses: list[torch.Tensor] = []
    for epoch in range(min(2, trainer.experiment.epochs)):
        seed_epoch(trainer.experiment.seed, epoch)
        batches = trainer.training.train_batches(epoch, steps.at_once)
        numbered = zip(range(0, count, steps.at_once), batches, strict=False)
        losses += [steps(state, number, batch) for number, batch in chain(numbered, end)]
        state.schedule.epoch_ended(0.0)
    tensors = [torch.cat([loss.reshape(-1) for loss in losses])]
    tensors.append(torch.tensor(state.scaler.get_scale()))
    tensors += state.network.state_dict().values()
    if state.average:
        tensors += state.average.network.state_dict().values()
    for values in state.optimizer.state.values():
        tensors += values.values()
    return [tensor.clone() for tensor in tensors]  # a compiled network has no scratch copy


def steps_per_graph(experiment: Experiment, training: Batches, network: nn.Module) -> int:
    """Return how many steps a graph holds, so that few steps are left at the end of an epoch.

    It depends only on the experiment and its data, so that a resumed training has equal graphs.
    """
    if experiment.input.name == "loader":
        return 1  # so that loading the next batch overlaps with the step
    sample_bytes = bytes_of_a_sample(next(iter(training.eval_batches())))
    whole = training.image_count // training.batch_size
    by_size = MOST_BYTES // (training.batch_size * sample_bytes)
    most = max(1, min(whole, by_size, most_steps(network)))
    return min(range(most, most // 2, -1), key=lambda size: whole % size)


def most_steps(network: nn.Module) -> int:
    """Return how many steps have as many operations as a graph may hold."""
    layers = sum(1 for module in network.modules() if not any(module.children()))
    return _MOST_OPERATIONS // (_OPERATIONS_A_LAYER * layers)
