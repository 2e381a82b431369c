"""Published weights of timm are fetched from a hub, checked, and loaded where they fit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from photofinish.config.networks import (
    CustomModel,
    WeightsPlan,
    fetched_weights,
    published_weights,
)
from photofinish.config.timm_names import arguments, network_problem
from photofinish.errors import ConfigError, UserError
from photofinish.files import sha256_of_file
from photofinish.models.registry import build_model
from photofinish.models.weights_download import download_weights
from photofinish.results.learned import weights_of

timm = pytest.importorskip("timm")

MODEL = CustomModel.model_validate({"name": "timm:resnet10t", "pretrained": True})
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
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The hub's file, of a network for 1,000 classes of coloured images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DVC_ROOT", raising=False)
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


def test_weights_are_fetched_checked_and_adapted_to_classes_and_channels(published: Path) -> None:
    download_weights(plan_of(MODEL), Path("weights"))
    fetched = fetched_weights(MODEL, Path("weights/fine"))
    assert fetched
    assert (fetched.file, fetched.sha256) == (
        "resnet10t.c3_in1k.safetensors",
        sha256_of_file(published),
    )
    file = Path("weights/fine") / fetched.file
    first, again, other = (
        build_model(MODEL, SHAPE, CLASSES, seed, file).state_dict() for seed in (0, 0, 1)
    )
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert [name for name, tensor in first.items() if not torch.equal(tensor, other[name])] == [
        "fc.weight",
        "fc.bias",
    ]
    assert first["fc.weight"].shape == (CLASSES, 512)
    build_model(MODEL, SHAPE, CLASSES, 0).load_state_dict(first)  # as a trained one is read back


def test_a_missing_file_is_reported_with_the_cache_to_fill(published: Path) -> None:
    published.unlink()
    with pytest.raises(UserError, match=r"weights pretrained of timm:resnet10t: .*HF_HOME"):
        download_weights(plan_of(MODEL), Path("weights"))


@pytest.mark.usefixtures("published")
def test_weights_without_safetensors_are_refused() -> None:
    model = CustomModel.model_validate({"name": "timm:resnet10t.nowhere", "pretrained": True})
    with pytest.raises(ConfigError, match=r"no weights of timm:resnet10t\.nowhere as safetensors"):
        download_weights(plan_of(model), Path("weights"))


def test_every_network_of_timm_is_known_with_its_usual_arguments() -> None:
    for name in timm.list_models(pretrained=True)[::7] + timm.list_models():
        assert network_problem(name) is None
    files = {timm.model_entrypoint(name).__module__: name for name in timm.list_models()}
    for name in files.values():
        assert {"num_classes", "in_chans", "pretrained", "drop_rate"} <= {*arguments(name)}
