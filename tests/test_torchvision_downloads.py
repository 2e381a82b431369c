"""How torchvision's files are fetched: from its own addresses, one after the other, and nowhere but into the folder."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_torchvision_source import make_mirror, plan_of
from torchvision import datasets
from torchvision.datasets import utils

from photofinish.data.fetching import Fetcher
from photofinish.data.sources import download, read_raw
from photofinish.data.torchvision_downloads import own_downloads
from photofinish.errors import UserError

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address at which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(_QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_without_a_mirror_each_of_torchvisions_addresses_is_tried(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    make_mirror("MNIST", folder, monkeypatch)
    monkeypatch.setattr(datasets.MNIST, "mirrors", [f"{address}/gone/", f"{address}/MNIST/raw/"])
    plan = plan_of("MNIST", None)
    download(plan, tmp_path / "raw")
    assert len(read_raw(plan, tmp_path / "raw").labels) == 30


def test_where_no_address_has_the_file_the_error_names_each_and_advises_once(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = served
    monkeypatch.setattr(datasets.MNIST, "mirrors", [f"{address}/one/", f"{address}/two/"])
    with pytest.raises(UserError) as caught:
        download(plan_of("MNIST", None), tmp_path / "raw")
    for name in ("one", "two"):
        assert f"{address}/{name}/train-images-idx3-ubyte.gz" in str(caught.value)
    assert str(caught.value).count("PHOTOFINISH_MIRROR") == 1
    assert not (tmp_path / "raw").exists()


def test_an_address_may_be_the_mirror(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    make_mirror("Flowers102", folder, monkeypatch)
    plan = plan_of("Flowers102", address, size=4)
    download(plan, tmp_path / "raw")
    assert len(read_raw(plan, tmp_path / "raw").labels) == 12


def test_a_file_on_google_drive_is_asked_of_the_user(tmp_path: Path) -> None:
    url = "https://drive.google.com/file/d/137RyRjvTBkBiIfeYBNZBtViDHQ6_Ewsp"
    with (
        pytest.raises(UserError, match=r"pcam/train\.gz is on Google Drive.*save https.* as <folder>/pcam/train\.gz"),
        own_downloads(tmp_path, Fetcher(None, tmp_path / "cache")),
    ):
        utils.download_url(url, tmp_path / "pcam", "train.gz")


def test_nothing_is_fetched_or_unpacked_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.zip").write_bytes(b"")
    fetcher = Fetcher(NOBODY, tmp_path / "cache")
    with pytest.raises(UserError, match="outside"), own_downloads(tmp_path / "raw", fetcher):
        utils.download_url(f"{NOBODY}/file", tmp_path / "raw" / "..", "file")
    with pytest.raises(UserError, match="outside"), own_downloads(tmp_path / "raw", fetcher):
        utils.extract_archive(tmp_path / "elsewhere.zip", tmp_path / "raw")


def test_a_compressed_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "images.gz").write_bytes(b"\x1f\x8b\x08\x00 and no more")
    with (
        pytest.raises(UserError, match=r"images\.gz is damaged"),
        own_downloads(tmp_path, Fetcher(None, tmp_path)),
    ):
        utils.extract_archive(tmp_path / "images.gz")


def test_what_torchvision_finds_amiss_is_told_without_a_traceback(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="aren't as torchvision expects them: Dataset not found"),
        own_downloads(tmp_path, Fetcher(None, tmp_path)),
    ):
        datasets.CIFAR10(root=str(tmp_path), download=False)
