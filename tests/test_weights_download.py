"""Published weights of torchvision and timm are fetched once, checked, and loaded if they fit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from conftest import MakeExperiment, digits_plan, from_array, learnable_images
from torchvision.models import ShuffleNet_V2_X0_5_Weights, get_model
from training_process import train_here

from photofinish.config.networks import (
    CustomModel,
    FetchedWeights,
    InitialWeights,
    PublishedWeights,
    WeightsPlan,
    fetched_weights,
    published_weights,
)
from photofinish.data.split import split
from photofinish.errors import UserError
from photofinish.files import sha256_of_file
from photofinish.machine.fingerprint import CpuTarget
from photofinish.models.registry import build_model
from photofinish.models.weights_download import download_weights
from photofinish.planning.checks import network_problem
from photofinish.results import records
from photofinish.results.learned import load_network, weights_of
from photofinish.runs.run import Run

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
