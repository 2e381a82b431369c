"""Networks: sizes, initial and published weights, and the images that they refuse."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from conftest import MakeExperiment, digits_plan, from_array, learnable_images
from pydantic import TypeAdapter, ValidationError
from torch import nn
from torchvision.models import ShuffleNet_V2_X0_5_Weights, get_model, get_model_builder, regnet
from training_process import train_here

from photofinish.config.catalogue import CLASSIFIERS
from photofinish.config.networks import (
    CustomModel,
    FetchedWeights,
    InitialWeights,
    Model,
    PublishedWeights,
    TorchvisionModel,
    WeightsPlan,
    fetched_weights,
    published_weights,
)
from photofinish.data import Shape
from photofinish.data.split import split
from photofinish.errors import UserError
from photofinish.files import sha256_of_file
from photofinish.machine.fingerprint import CpuTarget
from photofinish.models.registry import build_model, replace_last_layer
from photofinish.models.weights_download import download_weights
from photofinish.planning.checks import network_problem
from photofinish.results import records
from photofinish.results.learned import load_network, weights_of
from photofinish.runs.run import Run

MNIST: Shape = (1, 28, 28)
CIFAR: Shape = (3, 32, 32)
LINEAR: dict[str, Any] = {"name": "linear"}
MLP: dict[str, Any] = {"name": "mlp", "hidden": (128,)}
CNN: dict[str, Any] = {"name": "cnn", "channels": (16, 32), "hidden": (64,)}
LENET: dict[str, Any] = {"name": "lenet"}


def built(
    settings: dict[str, Any], shape: Shape = MNIST, classes: int = 10, seed: int = 0
) -> nn.Module:
    model: Model = TypeAdapter(Model).validate_python(settings)
    return build_model(model, shape, classes, seed)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


@pytest.mark.parametrize(
    ("settings", "shape", "parameters"),
    [
        (LINEAR, MNIST, 7_850),
        (MLP, MNIST, 784 * 128 + 128 + 128 * 10 + 10),
        (CNN, (1, 8, 8), 160 + 4_640 + (128 * 64 + 64) + (64 * 10 + 10)),
        (CNN | {"hidden": ()}, (1, 8, 8), 160 + 4_640 + 128 * 10 + 10),
        (LENET, MNIST, 156 + 1_812 + (192 * 120 + 120) + (120 * 60 + 60) + (60 * 10 + 10)),
        ({"name": "resnet18"}, CIFAR, 11_181_642),
    ],
    ids=str,
)
def test_networks_have_the_parameters_of_their_layers_and_need_no_photofinish(
    settings: dict[str, Any], shape: Shape, parameters: int
) -> None:
    network = built(settings, shape)
    assert sum(weight.numel() for weight in network.parameters()) == parameters
    packages = {type(module).__module__.partition(".")[0] for module in network.modules()}
    assert packages <= {"torch", "torchvision"}  # so its pickle needs no photofinish


@pytest.mark.parametrize("settings", [LINEAR, MLP, CNN, LENET, {"name": "resnet18"}], ids=str)
def test_the_first_weights_depend_on_the_seed_and_nothing_else(settings: dict[str, Any]) -> None:
    torch.manual_seed(1)
    first = built(settings, CIFAR)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    again = built(settings, CIFAR)
    assert torch.equal(torch.get_rng_state(), before)
    assert same_weights(first, again)
    assert not same_weights(first, built(settings, CIFAR, seed=1))


def test_each_kind_of_layer_has_the_initial_weights_that_are_set_for_it() -> None:
    init = {"conv": "xavier_normal", "linear": {"normal": 0.01}}
    convolution, *_, linear = built({**CNN, "hidden": (), "init": init}, classes=100)
    assert convolution.weight.std().item() == pytest.approx((2 / (9 + 9 * 16)) ** 0.5, rel=0.2)
    assert linear.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert not any(layer.bias.any() for layer in (convolution, linear))
    half = built({**CNN, "init": {"linear": "xavier_normal"}})
    assert torch.equal(half[0].weight, built(CNN)[0].weight)  # PyTorch's default
    assert not half[-1].bias.any()


@pytest.mark.parametrize(
    "init", ["he", {"dense": "default"}, {"conv": {"normal": 0}}, {"conv": {"std": 1}}, 1], ids=str
)
def test_initial_weights_that_are_unknown_are_refused_at_their_key(init: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        built({**CNN, "init": init})
    assert [error["loc"][-1] for error in refused.value.errors()] == ["init"]


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"name": "resnet18"}, MNIST, "model resnet18 can't take"),
        (LENET, (1, 15, 40), r"model lenet can't take samples of shape \(1, 15, 40\)"),
    ],
)
def test_unfit_images_are_refused(settings: dict[str, Any], shape: Shape, message: str) -> None:
    with torch.device("meta"), pytest.raises(UserError, match=message):
        built(settings, shape)


FAMILIES = {get_model_builder(name).__module__: name for name in CLASSIFIERS}


def model_of(name: str) -> TorchvisionModel:
    return TypeAdapter(TorchvisionModel).validate_python(
        {"name": name, "weights": CLASSIFIERS[name][0]}
    )


@pytest.mark.parametrize(
    ("name", "rename"),
    [
        pytest.param("squeezenet1_1", ("", ""), id="last layer is a convolution"),
        pytest.param("densenet121", ("norm1.", "norm.1."), id="old names"),
        pytest.param("googlenet", ("", ""), id="auxiliary heads"),
        pytest.param("mnasnet0_5", ("", ""), id="modules have versions"),
        pytest.param("mobilenet_v3_small", ("", ""), id="several layers to classify"),
    ],
)
@pytest.mark.filterwarnings("ignore:The default weight initialization of GoogleNet:FutureWarning")
def test_published_weights_are_loaded(name: str, rename: tuple[str, str], tmp_path: Path) -> None:
    published: nn.Module = get_model(name, weights=None)
    # As torchvision publishes it. The state also has the modules' versions.
    renamed = published.state_dict()
    for key in [key for key in renamed if rename[0] and rename[0] in key]:
        renamed[key.replace(*rename)] = renamed.pop(key)
    torch.save(renamed, file := tmp_path / "weights.pth")
    network = build_model(model_of(name), CIFAR, 7, 0, file)
    loaded, state = network.state_dict(), published.state_dict()
    changed = [
        key for key in loaded if key not in state or not torch.equal(loaded[key], state[key])
    ]
    assert {key.rpartition(".")[0] for key in changed} == {changed[0].rpartition(".")[0]}
    assert 7 in loaded[changed[0]].shape
    assert network.training
    assert network(torch.zeros(2, *CIFAR)).shape == (2, 7)
    empty = build_model(model_of(name), CIFAR, 7, 0)  # as a trained one is read back
    empty.load_state_dict(loaded)
    assert str(empty) == str(network)


@pytest.mark.parametrize("name", FAMILIES.values())
def test_the_last_layer_has_the_1000_classes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_blocks = regnet.BlockParams.from_init_params

    def on_the_cpu(*arguments: object, **named: object) -> object:
        with torch.device("cpu"):  # it computes layer widths with tensors
            return make_blocks(*arguments, **named)

    monkeypatch.setattr(regnet.BlockParams, "from_init_params", on_the_cpu)
    with torch.device("meta"):  # shapes without memory
        arguments = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        network: nn.Module = get_model(name, weights=None, **arguments)
        replace_last_layer(network, 7)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    assert 7 in (getattr(layers[-1], "out_features", 0), getattr(layers[-1], "out_channels", 0))
    weights = dict(network.named_parameters()).items()
    assert 1000 not in [len(each) for key, each in weights if not key.lower().startswith("aux")]


def test_published_weights_of_inception_expect_its_own_normalisation() -> None:
    with torch.device("meta"):
        network = build_model(model_of("inception_v3"), (3, 299, 299), 7, 0)
    assert network.transform_input is True


SHUFFLENET = PublishedWeights(model="shufflenet_v2_x0_5", weights="IMAGENET1K_V1")
ASKING = {"name": "shufflenet_v2_x0_5", "weights": "IMAGENET1K_V1"}
Download = Callable[..., Path]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in torch.hub's cache, whose name has its sha256."""
    folder = tmp_path_factory.mktemp("hub") / "checkpoints"
    folder.mkdir()
    torch.manual_seed(3)
    torch.save(get_model("shufflenet_v2_x0_5", weights=None).state_dict(), folder / "new.pth")
    name = f"shufflenet_v2_x0_5-{sha256_of_file(folder / 'new.pth')[:8]}.pth"
    return (folder / "new.pth").rename(folder / name)


@pytest.fixture
def download(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Download:
    """Download the weights of three experiments from an address, into a folder for each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.hub._hub_dir", str(published.parent.parent))
    weights = ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1
    plan = WeightsPlan(experiments={"scratch": None, "fine": SHUFFLENET, "finer": SHUFFLENET})

    def download(address: str = f"http://127.0.0.1:9/models/{published.name}") -> Path:
        monkeypatch.setattr(weights, "_value_", replace(weights.value, url=address))
        download_weights(plan, tmp_path / "weights")
        return tmp_path / "weights"

    return download


def test_each_experiment_has_a_folder_with_its_weights(download: Download, published: Path) -> None:
    folder = download()
    names = {path.name: sorted(file.name for file in path.iterdir()) for path in folder.iterdir()}
    with_file = [published.name, "weights.json"]
    assert names == {"scratch": ["weights.json"], "fine": with_file, "finer": with_file}
    scratch, fine = (
        InitialWeights.model_validate_json((folder / name / "weights.json").read_bytes()).published
        for name in ("scratch", "fine")
    )
    assert scratch is None
    sha256 = sha256_of_file(published)
    assert fine == FetchedWeights(**SHUFFLENET.model_dump(), file=published.name, sha256=sha256)


def test_a_file_with_another_sha256_is_refused(
    download: Download, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "shufflenet_v2_x0_5-00000000.pth"
    damaged.write_bytes(published.read_bytes())
    monkeypatch.setattr("torch.hub._hub_dir", str(tmp_path / "hub"))
    with pytest.raises(UserError, match=r"IMAGENET1K_V1 of shufflenet_v2_x0_5: .*TORCH_HOME"):
        download(damaged.as_uri())


def test_training_starts_from_them_and_its_record_says_so(
    download: Download,
    published: Path,
    cpu_host: CpuTarget,
    make_experiment: MakeExperiment,
    tmp_path: Path,
) -> None:
    grey = learnable_images(60, side=32)
    coloured = from_array(np.repeat(grey.inputs, 3, axis=1), grey.labels, grey.class_names)
    data, out = tmp_path / "split", tmp_path / "out" / "fine" / "cpu"
    split(digits_plan(), coloured, data)
    experiment = make_experiment(model=ASKING, epochs=1, optimizer={"name": "sgd", "lr": 1e-12})
    train_here(Run("fine", "cpu", experiment, cpu_host, data, out, download() / "fine"))
    record = records.read_training(out / records.MODEL)
    assert isinstance(record, records.TrainingRecord)
    assert record.published_weights_sha256 == sha256_of_file(published)
    trained = load_network(out / records.MODEL, record).state_dict()["conv1.0.weight"]
    started = torch.load(published, weights_only=True)["conv1.0.weight"]
    assert torch.allclose(trained, started, atol=1e-6)


RESNET = CustomModel.model_validate({"name": "timm:resnet10t", "pretrained": True})
SHAPE, CLASSES = (1, 32, 32), 3


class _Hub(SimpleHTTPRequestHandler):
    """Sends a file's sha256 like the Hugging Face hub."""

    sha256: str

    def end_headers(self) -> None:
        self.send_header("X-Linked-ETag", f'"{self.sha256}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        super().end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def on_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The hub's file, of a network for 1,000 classes of coloured images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "hub/timm/resnet10t.c3_in1k/resolve/main/model.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(weights_of(timm.create_model("resnet10t")))
    _Hub.sha256 = sha256_of_file(path)
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Hub, directory=str(tmp_path / "hub"))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield path
        server.shutdown()


def plan_of(model: CustomModel) -> WeightsPlan:
    return WeightsPlan(experiments={"fine": published_weights(model)})


def test_weights_are_fetched_checked_and_adapted_to_classes_and_channels(on_hub: Path) -> None:
    download_weights(plan_of(RESNET), Path("weights"))
    fetched = fetched_weights(RESNET, Path("weights/fine"))
    assert fetched
    assert (fetched.file, fetched.sha256) == (
        "resnet10t.c3_in1k.safetensors",
        sha256_of_file(on_hub),
    )
    file = Path("weights/fine") / fetched.file
    first, again, other = (
        build_model(RESNET, SHAPE, CLASSES, seed, file).state_dict() for seed in (0, 0, 1)
    )
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert [name for name, tensor in first.items() if not torch.equal(tensor, other[name])] == [
        "fc.weight",
        "fc.bias",
    ]
    assert first["fc.weight"].shape == (CLASSES, 512)
    build_model(RESNET, SHAPE, CLASSES, 0).load_state_dict(first)  # as a trained one is read back


def test_without_experiments_the_folder_of_weights_is_not_empty(tmp_path: Path) -> None:
    download_weights(WeightsPlan(experiments={}), tmp_path)
    assert [*tmp_path.iterdir()]  # or DVC would warn of it


def test_a_missing_file_is_reported_with_the_cache_to_fill(on_hub: Path) -> None:
    on_hub.unlink()
    with pytest.raises(UserError, match=r"weights pretrained of timm:resnet10t: .*HF_HOME"):
        download_weights(plan_of(RESNET), Path("weights"))


def test_every_network_of_timm_is_known_and_a_misspelt_one_is_not() -> None:
    for name in timm.list_models(pretrained=True)[::7] + timm.list_models():
        assert network_problem(name) is None
    problem = network_problem("resnet18x")
    assert problem
    assert problem.startswith("timm has no network resnet18x; did you mean 'resnet18")
