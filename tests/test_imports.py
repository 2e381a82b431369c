"""What a machine needs: the trainer no more than torch and NumPy, the comparison no torch."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest
from source_imports import ROOT, SOURCES, imported_modules

FREE_OF_THE_REST = (
    "profiling.scratch", "models.registry", "results", "training.batches", "training.checkpoint",
    "training.failures", "training.input_paths", "training.optimisation", "training.teams",
    "training.torch_device", "training.trainer",
)  # fmt: skip
THE_REST = (
    "pydantic", "mlflow", "dvc", "pandas", "sklearn", "safetensors", "matplotlib", "rich", "psutil", "pynvml", "PIL",
)  # fmt: skip
FREE_OF_TORCH = (
    "comparing.device_results", "comparing.diagnosis", "comparing.pairs", "comparing.parity", "comparing.scaling",
    "comparing.speedups", "comparing.renting", "comparing.verdict",
    "data.packed", "machine.energy", "machine.fingerprint",
    "machine.load", "config.networks", "models.weights_download", "config.reader", "data.local_files",
    "plan", "processes", "report.report", "results.records", "results.references", "tracking.client", "runs.run",
    "runs.stage",
)  # fmt: skip
TRAINING_STAGE = ("runs.stage", "runs.train", "runs.views")
MISSING_ON_BARE_GPU_MACHINES = (
    "dvc", "mlflow", "pandas", "sklearn", "scipy", "matplotlib", "jinja2", "yaml", "ruamel", "requests", "torchmetrics",
    "sqlalchemy", "alembic", "cloudpickle",
)  # fmt: skip
PACKAGES = (
    ("display", "errors", "files", "wording"), ("processes", "locks", "custom_code"), ("source_code",),
    ("config",), ("machine",), ("data",), ("models",), ("results",), ("plan",), ("training",), ("profiling",),
    ("tracking",), ("runs",), ("comparing",), ("report",), ("remote",),
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
    return subprocess.run(command, capture_output=True, text=True, check=True)


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


def test_the_training_stage_needs_neither_dvc_nor_mlflow_nor_what_judges_it() -> None:
    tried = imported(TRAINING_STAGE, without=MISSING_ON_BARE_GPU_MACHINES)
    assert tuple(tried.stdout.splitlines()) == TRAINING_STAGE, tried.stderr


def test_a_package_that_is_missing_would_be_noticed() -> None:
    tried = imported(("results.records",), without=("pydantic",))
    assert tried.stdout == ""
    assert "pydantic" in tried.stderr


def test_data_flows_one_way_no_package_imports_one_that_comes_after_it() -> None:
    package = SOURCES / "photofinish"

    def belongs_to(path: Path) -> str:
        return path.relative_to(package).parts[0].removesuffix(".py")

    place = {name: number for number, names in enumerate(PACKAGES) for name in names}
    assert set(place) == {belongs_to(path) for path in package.iterdir() if not path.name.startswith("__")}
    backwards = [
        f"{path.relative_to(package)} imports {module}"
        for path in package.rglob("*.py")
        for module in imported_modules(path)
        if module.startswith("photofinish.") and place[module.split(".")[1]] > place[belongs_to(path)]
    ]
    assert not backwards


def test_no_two_modules_have_one_name() -> None:
    count = Counter(path.name for path in SOURCES.rglob("*.py") if path.name != "__init__.py")
    assert [name for name, modules in count.items() if modules > 1] == []


@cache
def provided() -> Mapping[str, list[str]]:
    """By which distributions each package is."""
    return packages_distributions()


def undeclared(folders: Iterable[str], requirements: Iterable[str]) -> set[str]:
    """The packages that are imported there and named by none of the requirements."""
    declared = {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements}
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    own = {"photofinish", "benchmarks", *(path.stem for path in files), *(path.parent.name for path in files)}
    imported = {module.partition(".")[0] for path in files for module in imported_modules(path)}
    providers = provided()
    return {
        name
        for name in imported - own - sys.stdlib_module_names
        if not {provider.lower().replace("_", "-") for provider in providers.get(name, [name])} & declared
    }


def test_every_package_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed, groups = project["project"]["dependencies"], project["dependency-groups"]
    optional = chain.from_iterable(project["project"]["optional-dependencies"].values())
    assert undeclared(("src", "stages"), [*needed, *optional]) == set()
    assert undeclared(("tests", "benchmarks", "examples"), [*needed, *groups["dev"], *groups["bench"]]) == set()
    assert "pydantic" in undeclared(("src",), ())
