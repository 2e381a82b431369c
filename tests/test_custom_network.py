"""Custom networks are built from the seed and checked before training."""

from __future__ import annotations

import copy
import gc
import textwrap
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import recipe
import torch
from conftest import CustomFiles, HeldClock, MakeExperiment, MakeRun
from torch import nn
from training_process import measure_here, train_here

from photofinish.config.loss_settings import CustomLoss
from photofinish.config.networks import CustomModel
from photofinish.errors import UserError
from photofinish.models.custom import blank
from photofinish.models.registry import build_model
from photofinish.results.learned import weights_of
from photofinish.results.measured import read_trained
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.stage.process import seconds_since_process_start
from photofinish.training.batches import Batch
from photofinish.training.custom_check import validate_custom_model
from photofinish.training.custom_step import step_with_a_loss
from photofinish.training.losses import Loss
from photofinish.training.torch_device import CPU
from photofinish.training.world import World

SHAPE, CLASSES = (1, 8, 8), 3
HEAD = "import numpy as np, os, random, time, torch\nfrom torch import nn\n"
LINEAR = "nn.Sequential(nn.Flatten(), nn.Linear(64, 3))"

Build = Callable[..., nn.Module]
Check = Callable[[str], None]


def network_file(init: str = "", forward: str = "return self.inner(x)", inner: str = LINEAR) -> str:
    """Return a file whose class Net holds `inner` and runs `init` and `forward`."""
    body = textwrap.indent(f"super().__init__()\nself.inner = {inner}\n{init}", " " * 8)
    return (
        f"{HEAD}class Net(nn.Module):\n    def __init__(self):\n{body}\n"
        f"    def forward(self, x):\n        {forward}\n"
    )


def a_batch() -> Batch:
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    return images, torch.tensor([0, 1, 2, 0])


@pytest.fixture
def build(custom_files: CustomFiles) -> Build:
    def build_net(
        source: str, *, classes: int = CLASSES, seed: int = 0, **arguments: int | str
    ) -> nn.Module:
        name = custom_files.write("net.py", source) + ":Net"
        model = CustomModel.model_validate({"name": name, **arguments})
        return build_model(model, SHAPE, classes, seed)

    return build_net


@pytest.fixture
def run_of(custom_files: CustomFiles, make_run: MakeRun) -> Callable[[str], Run]:
    """Make a run of a network's source."""

    def make(source: str) -> Run:
        name = custom_files.write("net.py", source) + ":Net"
        return make_run(model={"name": name}, epochs=1, custom_code={name: ""})

    return make


@pytest.fixture
def check(run_of: Callable[[str], Run]) -> Check:
    """Do what a training stage does first: build the network twice, and take two steps."""

    def run(source: str) -> None:
        setup = Setup(run_of(source), CPU, World(CPU))
        setup.check_custom_code(setup.new_network())

    return run


VALID = {
    "a view of convolved images": network_file(
        "self.last = nn.Linear(144, 3)",
        "return self.last(self.inner(x).view(x.size(0), -1))",
        "nn.Sequential(nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 2))",
    ),
    "a view of a strided shortcut": network_file(
        "self.last = nn.Linear(64, 3)",
        "return self.last(self.inner(x).view(x.size(0), -1))",
        "nn.Sequential(nn.Conv2d(1, 16, 2), nn.Conv2d(16, 4, 1, stride=2))",
    ),
    "lazy, batch norm and dropout": network_file(
        inner="nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(), "
        "nn.LazyLinear(3))"
    ),
    "draws, seeds and reads a command line when imported": network_file()
    + "torch.manual_seed(42)\nmodel = Net()\n"
    + "import argparse\nargs = argparse.ArgumentParser().parse_args()\n",
    "unused, frozen, parametrized and sparse": network_file(
        "self.unused = nn.Linear(2, 2)\n"
        "self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)\n"
        "torch.nn.utils.parametrizations.weight_norm(self.inner[1])\n"
        "self.register_buffer('near', torch.eye(64).to_sparse(), persistent=False)",
        "return self.inner[1](torch.sparse.mm(self.near, x.flatten(1).t()).t())",
    ),
    "a counter in its state": network_file(
        "self.register_buffer('t', torch.ones(()))", "self.t *= 0.9; return self.inner(x) * self.t"
    ),
    "a function": f"{HEAD}def Net(classes, shape):\n"
    "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * 8, classes))\n",
}


@pytest.mark.parametrize("source", VALID.values(), ids=VALID)
def test_networks_of_every_usual_kind_are_accepted(check: Check, source: str) -> None:
    check(source)


def test_channels_last_is_tried_in_no_start_up(
    run_of: Callable[[str], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, slow = run_of(VALID["a view of convolved images"]), HeldClock()
    monotonic, began_seconds = time.monotonic, seconds_since_process_start()

    def blank_slowly(*arguments: Any) -> Any:
        slow.take(1000.0)
        return blank(*arguments)

    monkeypatch.setattr("photofinish.training.custom_check.blank", blank_slowly)
    monkeypatch.setattr("time.monotonic", lambda: monotonic() + slow.now_seconds)
    monkeypatch.setattr(
        "photofinish.stage.process.seconds_since_process_start",
        lambda: seconds_since_process_start() + slow.now_seconds,
    )
    measure_here(run)
    train_here(run)
    timings, measured = read_trained(run.out)
    assert slow.now_seconds == 2000
    assert measured.startup_seconds < began_seconds + 500
    # The process has also measured.
    assert max(timings.startup_seconds, timings.total_seconds) < began_seconds + 1500


def test_the_check_holds_two_copies_of_a_network_at_most(
    build: Build, make_experiment: MakeExperiment
) -> None:
    def count() -> int:
        tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
        return sum(tensor.shape == (CLASSES, 64) for tensor in tensors)

    class CountingLoss(Loss):
        def mean(self, outputs: Any, targets: Any) -> torch.Tensor:
            counts.append(count())
            return super().mean(outputs, targets)

    gc.collect()  # what earlier tests left
    experiment, network = make_experiment(model={"name": "./net.py:Net"}), build(network_file())
    loss, counts = CountingLoss(None, "classes", CPU), [count()]
    validate_custom_model(experiment, network, loss, a_batch(), CLASSES)
    assert max(counts) - counts[0] == 3  # two copies' weights, and one's gradients


FAULTY = {
    "random without a seed": (
        network_file("nn.init.constant_(self.inner[1].bias, int.from_bytes(os.urandom(3)))"),
        r"differs each time it is built, in inner\.1\.bias",
    ),
    "raises": (
        network_file("raise ValueError('no such width')"),
        r"(?s)can't be built:\n  File .*net\.py., line 7.*ValueError: no such width",
    ),
    "too few scores": (network_file(forward="return self.inner(x)[:, :2]"), r"gives \(16, 2\)"),
    "random in forward": (
        network_file(forward="return self.inner(x + time.time_ns() % 997)"),
        "doesn't repeat: .* a different output of",
    ),
    "a counter outside the state": (
        network_file("self.t = 1.0", "self.t *= 0.9; return self.inner(x) * self.t"),
        "keeps state outside its state_dict",
    ),
    "two outputs": (
        network_file(forward="return self.inner(x), None"),
        "gives a tuple for .* `output: 0`, or a name",
    ),
}


@pytest.mark.parametrize(("source", "message"), FAULTY.values(), ids=FAULTY)
def test_a_network_that_cannot_be_trained_or_repeated_is_refused_before_training(
    check: Check, source: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check(source)


def test_a_seed_decides_the_weights_and_leaves_the_callers_generator_alone(build: Build) -> None:
    source = network_file("self.inner[1].bias.data *= np.random.rand()")
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, second, other = (weights_of(build(source, seed=seed)) for seed in (0, 0, 1))
    assert first == second != other
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("returned", "output"),
    [("y, None", 0), ("{'loss': None, 'logits': y}", "logits"), ("Result(None, y)", "logits")],
)
def test_one_of_several_outputs_counts(build: Build, returned: str, output: int | str) -> None:
    head = "from collections import namedtuple\nResult = namedtuple('Result', 'loss logits')\n"
    source = head + network_file(forward=f"y = self.inner(x); return {returned}")
    images, _ = a_batch()
    network = build(source, output=output)
    assert network(images).equal(network.inner(images))
    assert copy.deepcopy(network)(images).equal(network(images))
    assert [*network.state_dict()] == ["inner.1.weight", "inner.1.bias"]
    with pytest.raises(ValueError, match=r"model\.output is 'other'"):
        build(source, output="other")(images)


def test_neighbours_and_packages_are_imported_and_get_arguments(custom_files: CustomFiles) -> None:
    custom_files.write("nets/__init__.py", "")
    custom_files.write("nets/parts.py", "WIDTH = 5\n")
    net = "def Net(shape, by, *, classes): return nn.Linear(WIDTH * by, classes * shape[2])\n"
    name = custom_files.write("nets/net.py", f"from .parts import WIDTH\n{HEAD}{net}") + ":Net"
    model = CustomModel.model_validate({"name": name, "by": 2})
    assert next(build_model(model, SHAPE, CLASSES, seed=0).parameters()).shape == (24, 10)
    model = CustomModel.model_validate(
        {"name": "torch.nn:Linear", "in_features": 4, "out_features": 2}
    )
    assert next(build_model(model, SHAPE, CLASSES, seed=0).parameters()).shape == (2, 4)


def test_a_loss_that_keeps_state_between_calls_is_refused_before_training(
    custom_files: CustomFiles, make_experiment: MakeExperiment
) -> None:
    source = (
        "calls = []\n"
        "def Fading(outputs, targets):\n"
        "    calls.append(1)\n"
        "    return outputs.sum() / len(calls)\n"
    )
    name = custom_files.write("losses.py", source) + ":Fading"
    experiment = make_experiment(loss={"name": name})
    network = build_model(experiment.model, SHAPE, CLASSES, seed=0)
    loss = Loss(experiment.loss, "classes", CPU)
    with pytest.raises(UserError, match=r"doesn't repeat: .* a different loss"):
        validate_custom_model(experiment, network, loss, a_batch(), CLASSES)


def test_a_rank_without_samples_has_a_gradient_for_every_output() -> None:
    loss = Loss(CustomLoss(name=f"{recipe.__file__}:both"), "custom", CPU)
    one, other = (torch.zeros(0, 3, requires_grad=True) for _ in range(2))
    outputs = one, other.mean()  # such as a divergence over the batch
    total, weight = loss.sum_and_weight(outputs, (torch.zeros(0), torch.zeros(0)))
    total.backward()
    assert one.grad is not None
    assert other.grad is not None
    assert (total.item(), weight) == (0.0, 0.0)


def test_a_training_step_that_keeps_state_is_refused_also_beside_a_validation_step(
    make_run: MakeRun,
) -> None:
    own = f"{recipe.__file__}:"
    steps = {"step": {"name": f"{own}AnnealedStep"}}
    steps["validation_step"] = {"name": f"{own}margin_step"}
    setup = Setup(make_run(**steps, custom_code={"recipe": ""}), CPU, World(CPU))
    with pytest.raises(UserError, match="doesn't repeat"):
        setup.check_custom_code(setup.new_network())


def test_a_validation_step_needs_no_gradient(
    custom_files: CustomFiles, make_experiment: MakeExperiment
) -> None:
    source = """
import torch
@torch.no_grad()
def errors(network, batch):
    return (network(batch[0]).argmax(1) != batch[1]).float().mean()
"""
    errors = {"name": f"{custom_files.write('steps.py', source)}:errors"}
    network, loss = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)), Loss(None, "classes", CPU)
    refused = pytest.raises(UserError, match="does not require grad")
    for key, ends in (("validation_step", nullcontext()), ("step", refused)):
        experiment = make_experiment(**{key: errors})
        step = step_with_a_loss(experiment)
        with ends:
            validate_custom_model(experiment, network, loss, a_batch(), CLASSES, step)
