"""Networks that users write themselves: built from the seed, tried before the training, told of by their own lines."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest
import torch
from conftest import MakeExperiment, OwnFiles
from torch import nn

from photofinish.config.networks import CustomModel
from photofinish.errors import UserError
from photofinish.models.own import check_same_network
from photofinish.models.registry import build_model
from photofinish.profiling.first_step import validate_custom_model
from photofinish.results.learned import weights_of
from photofinish.training.batches import Batch
from photofinish.training.optimisation import Loss
from photofinish.training.torch_device import CPU

SHAPE, CLASSES = (1, 8, 8), 3
HEAD = "import numpy as np, os, random, time, torch\nfrom torch import nn\n"
LINEAR = "nn.Sequential(nn.Flatten(), nn.Linear(64, 3))"

Shape = tuple[int, int, int]
Build = Callable[..., nn.Module]
Try = Callable[[str], None]


def network_file(init: str = "", forward: str = "return self.inner(x)", inner: str = LINEAR) -> str:
    """A file whose class Net holds `inner`, and does more in its constructor and forward where that is given."""
    body = textwrap.indent(f"super().__init__()\nself.inner = {inner}\n{init}", " " * 8)
    return (
        f"{HEAD}class Net(nn.Module):\n    def __init__(self):\n{body}\n    def forward(self, x):\n        {forward}\n"
    )


def a_batch() -> Batch:
    return torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])


@pytest.fixture
def build(own_files: OwnFiles) -> Build:
    """The network that Net in a file of this source gives: `build(source, classes=4, width=5)`."""

    def network(source: str, *, shape: Shape = SHAPE, classes: int = CLASSES, seed: int = 0, **given: int) -> nn.Module:
        model = CustomModel.model_validate({"name": own_files.write("net.py", source) + ":Net", **given})
        return build_model(model, shape, classes, seed)

    return network


@pytest.fixture
def try_it(build: Build, make_experiment: MakeExperiment) -> Try:
    """What a training stage does with a network before it trains: build it, build it again, and take two steps."""

    def run(source: str) -> None:
        network = build(source)
        check_same_network("./net.py:Net", network, lambda: build(source))
        experiment = make_experiment(model={"name": "./net.py:Net"})
        validate_custom_model(experiment, network, Loss(None, "classes", CPU), a_batch(), CLASSES)

    return run


USUAL = {
    "plain": network_file(),
    "lazy": network_file(inner="nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(3))"),
    "dropout": network_file(inner="nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 3))"),
    "buffer": network_file("self.register_buffer('scale', torch.tensor(2.0))", "return self.inner(x * self.scale)"),
    "a counter": network_file(
        "self.register_buffer('t', torch.tensor(1.0))", "self.t = self.t * 0.9; return self.inner(x) * self.t"
    ),
    "unused": network_file("self.unused = nn.Linear(2, 2)"),
    "frozen": network_file("self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)"),
    "numpy": network_file("with torch.no_grad(): self.inner[1].weight.copy_(torch.from_numpy(np.random.rand(3, 64)))"),
    "random": network_file("nn.init.constant_(self.inner[1].bias, random.random())"),
    "tied": network_file("self.tied = nn.Linear(64, 3)\nself.tied.weight = self.inner[1].weight"),
    "function": HEAD
    + "def Net(classes, shape):\n    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * 8, classes))\n",
    "dict": network_file(
        inner="nn.ModuleDict({'a': nn.Linear(64, 3)})", forward="return self.inner['a'](x.flatten(1))"
    ),
    "sparse, not kept": network_file(
        "self.register_buffer('near', torch.eye(64).to_sparse(), persistent=False)",
        "return self.inner[1](torch.sparse.mm(self.near, x.flatten(1).t()).t())",
    ),
}


@pytest.mark.parametrize("source", USUAL.values(), ids=USUAL)
def test_networks_of_every_usual_kind_are_taken(try_it: Try, source: str) -> None:
    try_it(source)


OWN_GENERATOR = network_file("nn.init.normal_(self.inner[1].weight, generator=OWN)").replace(
    HEAD, f"{HEAD}OWN = torch.Generator()\n"
)
DRAWS_IN_FORWARD = network_file(
    "self.counter = [0]", "self.counter[0] = time.time_ns(); return self.inner(x + self.counter[0] % 997)"
)
WITHOUT_A_SEED = network_file("self.inner[1].bias.data += torch.from_numpy(np.random.default_rng().random(3))")
FAULTS = {
    "urandom": (
        network_file("nn.init.constant_(self.inner[1].bias, int.from_bytes(os.urandom(3)))"),
        r"inner\.1\.bias differs",
    ),
    "a generator without a seed": (WITHOUT_A_SEED, r"inner\.1\.bias differs"),
    "the time": (network_file("nn.init.constant_(self.inner[1].bias, time.time() % 1)"), r"inner\.1\.bias differs"),
    "a global generator": (OWN_GENERATOR, r"inner\.1\.weight differs"),
    "raises": (
        network_file("raise ValueError('no such width')"),
        r"(?s)can't be built:\n  File .*net\.py., line 7.*ValueError: no such width",
    ),
    "several outputs": (network_file(forward="return self.inner(x), x"), "gives a tuple for 4 images: .* of 4 x 3"),
    "state of another kind": (
        network_file(forward="return self.inner(x)\n    def get_extra_state(self): return {'a': 1}"),
        r"its state_dict has _extra_state, which is a dict, as get_extra_state gives",
    ),
    "on no device": (
        network_file("self.late = nn.Linear(2, 2, device='meta')"),
        r"its state_dict has late\.weight, which is on the meta device",
    ),
    "a sparse buffer": (
        network_file("self.register_buffer('near', torch.eye(64).to_sparse())"),
        r"its state_dict has near, which is a sparse tensor",
    ),
    "too few scores": (network_file(forward="return self.inner(x)[:, :2]"), r"gives \(4, 2\) for 4 images"),
    "a typo": (network_file(forward="return self.iner(x)"), "(?s)line 9, in forward.*no attribute 'iner'"),
    "draws in forward": (DRAWS_IN_FORWARD, "doesn't repeat: .* another output of"),
    "a counter": (
        network_file("self.t = 1.0", "self.t *= 0.9; return self.inner(x) * self.t"),
        "keeps something between steps that is not in its state_dict",
    ),
    "a layer now and then": (
        network_file(
            "self.calls = 0",
            "self.calls += 1; return self.inner(x) + 0 * self.inner(x) if self.calls == 2 else self.inner(x)",
        ),
        "a second step gives another .* where a new network",
    ),
    "a lock": (network_file("import threading; self.lock = threading.Lock()"), "can't be copied"),
    "a lambda": (network_file("self.late = lambda x: x"), "can't be pickled"),
    "fails in evaluation": (
        network_file(forward="return self.inner(x) if self.training else self.missing(x)"),
        "(?s)fails in evaluation.*no attribute 'missing'",
    ),
    "in place": (network_file(forward="y = self.inner(x).exp(); y += 1; return y"), "(?s)fails in a step.*inplace"),
    "a number": (HEAD + "Net = 3\n", "is no class or function, but a int"),
    "no module": (HEAD + "def Net():\n    return 3\n", "gives a int: it must give a torch.nn.Module"),
    "an import": (
        HEAD + "import no_such_neighbour\nclass Net(nn.Module): pass\n",
        "(?s)can't be imported:\n  File .*line 3.*no_such_neighbour",
    ),
    "a command line of its own": (
        HEAD + "import argparse\nargparse.ArgumentParser().parse_args(['--lr', '1'])\nclass Net(nn.Module): pass\n",
        "(?s)can't be imported:\n  File .*line 4.*SystemExit: 2",
    ),
}


@pytest.mark.parametrize(("source", "told"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_trained_or_repeated_is_told_before_the_training(try_it: Try, source: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        try_it(source)


def test_arguments_lie_beside_the_name_and_classes_and_shape_are_given_where_taken(build: Build) -> None:
    source = f"{HEAD}def Net(shape, width, *, classes):\n    return nn.Linear(width, classes * shape[2])\n"
    network = build(source, shape=(1, 6, 7), classes=4, width=5)
    assert [tuple(each.shape) for each in network.parameters()] == [(28, 5), (28,)]


def test_classes_and_shape_are_given_where_reading_does_not_tell_that_they_are_taken(
    own_files: OwnFiles, build: Build
) -> None:
    base = f"{HEAD}class Base(nn.Sequential):\n    def __init__(self, classes, shape):\n"
    own_files.write("bases.py", f"{base}        super().__init__(nn.Flatten(), nn.Linear(64, classes))\n")
    assert build("import bases\nclass Net(bases.Base): pass\n")(torch.zeros(1, *SHAPE)).shape == (1, 3)


def test_the_same_seed_gives_the_same_network_and_draws_nothing_from_the_caller(build: Build) -> None:
    source = network_file("self.inner[1].bias.data *= np.random.rand()")
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, second, other = (weights_of(build(source, seed=seed)) for seed in (0, 0, 1))
    assert first == second != other
    assert torch.equal(torch.rand(1), expected)


def test_a_neighbour_and_a_package_around_the_file_are_imported_as_python_does(own_files: OwnFiles) -> None:
    own_files.write("nets/__init__.py", "")
    own_files.write("nets/parts.py", "WIDTH = 5\n")
    source = f"from .parts import WIDTH\n{HEAD}def Net(classes):\n    return nn.Linear(WIDTH, classes)\n"
    network = build_model(CustomModel(name=own_files.write("nets/net.py", source) + ":Net"), SHAPE, CLASSES, seed=0)
    assert next(network.parameters()).shape == (3, 5)


def test_a_network_of_timm_is_made_for_the_images_and_classes_there_are() -> None:
    pytest.importorskip("timm")
    network = build_model(CustomModel.model_validate({"name": "timm:resnet10t"}), (1, 32, 32), CLASSES, seed=0)
    assert network(torch.zeros(2, 1, 32, 32)).shape == (2, CLASSES)


def test_a_network_of_an_installed_package_is_one_s_own_too() -> None:
    model = CustomModel.model_validate({"name": "torch.nn:Linear", "in_features": 4, "out_features": 2})
    assert next(build_model(model, SHAPE, CLASSES, seed=0).parameters()).shape == (2, 4)


def test_a_loss_that_keeps_something_between_its_calls_is_told_before_the_training(
    own_files: OwnFiles, make_experiment: MakeExperiment
) -> None:
    source = "calls = []\ndef Fading(outputs, targets):\n    calls.append(1)\n    return outputs.sum() / len(calls)\n"
    experiment = make_experiment(loss={"name": own_files.write("losses.py", source) + ":Fading"})
    network = build_model(experiment.model, SHAPE, CLASSES, seed=0)
    loss = Loss(experiment.loss, "classes", CPU)
    with pytest.raises(UserError, match=r"loss \./losses\.py:Fading doesn't repeat: .* for the same outputs"):
        validate_custom_model(experiment, network, loss, a_batch(), CLASSES)


def test_an_operation_without_a_deterministic_implementation_names_the_setting(try_it: Try) -> None:
    text = "upsample_bilinear2d_backward_out_cuda does not have a deterministic implementation, but you set ..."
    with pytest.raises(UserError, match=r"no deterministic upsample_bilinear2d.*deterministic: false") as raised:
        try_it(network_file(forward=f"raise RuntimeError({text!r})"))
    assert "Traceback" not in str(raised.value)
    assert "you set" not in str(raised.value)
