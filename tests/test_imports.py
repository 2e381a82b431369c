"""What a machine needs: the trainer no more than torch and NumPy, the comparison no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

FREE_OF_THE_REST = (
    "trainer", "clock", "batches", "devices", "models", "optimisation", "checkpoint", "randomness", "epochs", "summary",
    "torchvision_models", "augmentation", "input_paths", "loader", "resident", "batch_norm", "eager_optimizers",
)  # fmt: skip
THE_REST = (
    "pydantic", "mlflow", "dvc", "pandas", "sklearn", "safetensors", "matplotlib", "rich", "psutil", "pynvml", "PIL",
)  # fmt: skip
FREE_OF_TORCH = (
    "comparison", "records", "report", "verdict", "parity", "speedups", "load", "watch",
    "machine_lock", "params_reader", "plan", "plan_reader", "hosts", "tasks",
    "datasets.sources", "datasets.split", "datasets.packed", "train_stage", "tracking.client", "datasets.fetching",
    "datasets.archives", "local_files",
    "datasets.torchvision_source", "pretrained", "weights_download",
)  # fmt: skip

# Each import starts without the project's own modules, so that none profits from what another has loaded.
TRY_IMPORTS = """
import importlib, sys
blocked, modules = (argument.split() for argument in sys.argv[1:])

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Missing())
for module in modules:
    for name in [name for name in sys.modules if name.partition(".")[0] == "photofinish"]:
        del sys.modules[name]
    try:
        importlib.import_module(f"photofinish.{module}")
        print(module)
    except ImportError as error:
        print(f"{module}: {error}", file=sys.stderr)
"""


def imported(modules: tuple[str, ...], *, without: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Import each module in a process where some packages are missing; those that did are printed."""
    command = [sys.executable, "-c", TRY_IMPORTS, " ".join(without), " ".join(modules)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


@pytest.fixture(scope="module")
def without_the_rest() -> subprocess.CompletedProcess[str]:
    return imported(FREE_OF_THE_REST, without=THE_REST)


@pytest.fixture(scope="module")
def without_torch() -> subprocess.CompletedProcess[str]:
    return imported(FREE_OF_TORCH, without=("torch", "torchvision"))


@pytest.mark.parametrize("module", FREE_OF_THE_REST)
def test_what_trains_needs_neither_dvc_nor_mlflow_nor_pydantic(
    without_the_rest: subprocess.CompletedProcess[str], module: str
) -> None:
    assert module in without_the_rest.stdout.splitlines(), without_the_rest.stderr


@pytest.mark.parametrize("module", FREE_OF_TORCH)
def test_what_only_reads_files_needs_no_torch(without_torch: subprocess.CompletedProcess[str], module: str) -> None:
    assert module in without_torch.stdout.splitlines(), without_torch.stderr


def test_a_package_that_is_missing_would_be_noticed() -> None:
    tried = imported(("records",), without=("pydantic",))
    assert tried.stdout == ""
    assert "pydantic" in tried.stderr
