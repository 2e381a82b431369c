"""The builds of torch and torchvision are known without importing them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torchvision

from photofinish.machine import host as builds
from photofinish.machine.host import build_version, torch_cuda_version


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(builds.util, "find_spec", lambda _package: None)
    builds._build.cache_clear()
    yield monkeypatch
    builds._build.cache_clear()


def test_they_are_what_the_packages_themselves_say() -> None:
    assert build_version("torch") == torch.__version__
    assert build_version("torchvision") == torchvision.__version__
    assert torch_cuda_version() == (torch.version.cuda or torch.version.hip)


@pytest.mark.usefixtures("no_torch")
def test_of_what_is_not_installed_no_version_is_known() -> None:
    assert build_version("torch") == build_version("torchvision") == "unknown"
    assert torch_cuda_version() is None


def test_one_built_for_rocm_tells_that_version_and_nothing_in_the_file_is_run(
    no_torch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = (
        "__version__: str = '9.9+rocm'",
        "cuda = None",
        "hip: Optional[str] = '7.0'",
        "raise SystemExit",
    )
    (tmp_path / "version.py").write_text("\n".join(lines), encoding="utf-8")
    spec = builds.util.spec_from_loader("torch", None, origin=str(tmp_path / "__init__.py"))
    no_torch.setattr(builds.util, "find_spec", lambda _package: spec)
    assert build_version("torch") == "9.9+rocm"
    assert torch_cuda_version() == "7.0"
