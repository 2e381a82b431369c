"""Shared fixtures: a small data set that can be learned, an experiment, a host, a project."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import warm_python
import yaml
from filelock import FileLock
from hypothesis import settings

from photofinish.config.datasets import CustomDataset, DatasetPlan, DigitsDataset
from photofinish.config.experiment import Experiment, ExperimentPlan
from photofinish.custom.imports import custom_code_hashes
from photofinish.data import PartName
from photofinish.data.images import Int64Array, UInt8Array
from photofinish.data.packed import PackedSplit
from photofinish.data.sources import download
from photofinish.data.split import RawData, read_raw, split
from photofinish.git import git
from photofinish.machine.fingerprint import CpuTarget, cpu_facts, software_facts
from photofinish.machine.host import CPU_VARIABLES
from photofinish.machine.load import LoadWindow
from photofinish.results.trained import DeviceLabel

if TYPE_CHECKING:
    from result_files import DeviceResult
    from torch import nn
    from training_stage import TrainingStage

    from photofinish.runs.run import Run
    from photofinish.tracking.store import Store
    from photofinish.training.trainer import Trainer

ROOT = Path(__file__).parent.parent
PARTS: tuple[PartName, ...] = ("train", "validation", "test")

# Tests run side by side, and torch's threads spin while they wait for each other: with more threads
# than cores, a training of seconds takes minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
ONE_THREAD = {"cpu": {"threads": 1}}
"""One thread, for `devices` in params.yaml."""

# MLflow's server would start ten processes of 2 s each, for jobs that no test has.
os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")

# Hypothesis limits each example's time by default.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# A shell that starts the tests in the background makes them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

MakeExperiment = Callable[..., ExperimentPlan]
MakeTrainer = Callable[..., "Trainer"]
MakeResult = Callable[..., "DeviceResult"]
MakeRun = Callable[..., "Run"]
PrepareStage = Callable[..., "TrainingStage"]


def pytest_configure(config: pytest.Config) -> None:
    """Tests side by side share one warm Python."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        warm_python.path("")


LONGEST = (
    *("fleet", "kill_and_resume", "pipeline", "accelerator_rehearsal", "commands", "ask"),
    *("distributed", "benchmarks", "golden", "inside", "mlflow_faults", "gate"),
)
"""Files of tests that take from a quarter of a minute to one, longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, then those with slow tests: quick ones fill the rest."""
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    last = len(places)
    items.sort(key=lambda item: places.get(item.path.stem, last + (item.path not in slow_files)))


def pytest_collection_finish() -> None:
    """Exclude imports from garbage collection, which took half the time of each small training."""
    gc.freeze()


_of_this_run: list[Path] = []
"""Folder for what all workers of xdist share."""


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give programs that tests start a lock of this test run, and compiled imports.

    No project or MLflow server of the user's counts.
    """
    root = tmp_path_factory.getbasetemp()
    _of_this_run[:] = [root.parent if "PYTEST_XDIST_WORKER" in os.environ else root]
    with (
        tempfile.TemporaryDirectory(prefix="pf-") as folder,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setenv("XDG_STATE_HOME", folder)
        for name in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
            monkeypatch.setenv(f"GIT_{name}", "test@example.com")
        for name in ("PYTHONDONTWRITEBYTECODE", "DVC_ROOT", "MLFLOW_TRACKING_URI"):
            monkeypatch.delenv(name, raising=False)
        yield


def from_array(
    images: UInt8Array,
    labels: Int64Array,
    class_names: tuple[str, ...],
    own_parts: Mapping[PartName, Int64Array] | None = None,
) -> RawData:
    return RawData(images, labels, class_names, own_parts or {})


def learnable_images(count: int = 120, classes: int = 3, side: int = 8, seed: int = 0) -> RawData:
    """Return noise with one bright row, whose index is the class."""
    random = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int64) % classes
    images = random.integers(0, 120, size=(count, 1, side, side), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, label] = 255
    return from_array(images, labels, tuple(f"class {index}" for index in range(classes)))


def digits_plan(**settings: Any) -> DatasetPlan:
    """Return the plan of a data set whose parts are all drawn at random."""
    dataset = DigitsDataset(**{"source": "digits", "validation": 0.2, "test": 0.2, **settings})
    return DatasetPlan(name="small", dataset=dataset, local_files=None)


@pytest.fixture(scope="session")
def packed_split(tmp_path_factory: pytest.TempPathFactory) -> PackedSplit:
    folder = tmp_path_factory.mktemp("split")
    split(digits_plan(), learnable_images(), folder)
    return PackedSplit(folder)


@pytest.fixture(scope="session")
def make_experiment() -> MakeExperiment:
    """Make an experiment with overridden settings: `make_experiment(epochs=2)`."""

    def make(**overrides: Any) -> ExperimentPlan:
        settings: dict[str, Any] = {
            "dataset": "small",
            "model": {"name": "mlp", "hidden": (8,)},
            "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
            "schedule": {"name": "constant"},
            "input": {"name": "resident"},
            "precision": "fp32",
            "epochs": 3,
            "batch_size": 16,
            "seed": 0,
        }
        return ExperimentPlan.model_validate({**settings, **overrides})

    return make


@pytest.fixture
def make_trainer(packed_split: PackedSplit) -> MakeTrainer:
    """Make a trainer on the CPU for an experiment on the small data set."""
    import torch

    from photofinish.models.registry import build_model
    from photofinish.training.batches import part_of
    from photofinish.training.input_paths import make_batches
    from photofinish.training.torch_device import CPU
    from photofinish.training.trainer import Trainer

    torch.set_num_threads(1)  # such small batches gain nothing from more

    def make(experiment: Experiment, network: nn.Module | None = None) -> Trainer:
        shape = packed_split.manifest.shape
        network = network or build_model(experiment.model, shape, 3, experiment.seed)
        training, validation = (
            make_batches(experiment, part_of(packed_split, part), CPU) for part in PARTS[:2]
        )
        rest: dict[str, Any] = {"classes": 3, "monitored": experiment.monitored_metric()}
        return Trainer(experiment, network, training, validation, CPU, **rest)

    return make


@pytest.fixture
def trainer_of(make_trainer: MakeTrainer, make_experiment: MakeExperiment) -> MakeTrainer:
    """Make a trainer from settings: `trainer_of(epochs=2)`, `trainer_of(network, seed=1)`."""
    return lambda network=None, **settings: make_trainer(make_experiment(**settings), network)


def network_with_state() -> nn.Module:
    """Return a network with random numbers and running means, which a resume could disturb."""
    import torch
    from torch.nn import BatchNorm1d, Dropout, Flatten, Linear, Sequential

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Sequential(Flatten(), Linear(64, 16), BatchNorm1d(16), Dropout(0.5), Linear(16, 3))


def assert_same_run(one: Trainer, other: Trainer) -> None:
    from photofinish.results.learned import weights_of

    assert one.progress.metrics == other.progress.metrics
    assert one.steps_done == other.steps_done
    assert weights_of(one.network) == weights_of(other.network)


@pytest.fixture(scope="session")
def make_result(make_experiment: MakeExperiment, cpu_host: CpuTarget) -> MakeResult:
    """Make up a result: `make_result(device="gpu", epoch_seconds=(1.0,))`."""
    from planted_jobs import FIRST_STEP, PREDICTIONS, SCORES, history_of
    from result_files import Missing, whole_epoch

    from photofinish.results import EpochTiming, measurements, records
    from photofinish.results.measured import TrainedRecords
    from photofinish.results.trained import Overhead

    def timed(seconds: tuple[float, ...]) -> tuple[EpochTiming, ...]:
        return tuple(EpochTiming(each, 0.1, 1.7e9) for each in seconds)

    def make(
        name: str = "small-mlp",
        device: DeviceLabel = "cpu",
        *,
        epoch_seconds: tuple[float, ...] = (2.0, 4.0, 3.0),
        total_seconds: float = 30.0,
        device_name: str = "Some CPU",
        accuracy: float = 0.75,
        initial_weights_sha256: str = "a" * 64,
        repeats: tuple[tuple[float, ...], ...] = (),
        step_seconds: tuple[float, ...] = (0.01,),
        load: tuple[LoadWindow, ...] = (),
        attribution: measurements.StepAttribution | None = None,
        unavailable: str | None = None,
    ) -> DeviceResult:
        of_experiment = {*Experiment.model_fields}
        settings = make_experiment(epochs=len(epoch_seconds)).model_dump(include=of_experiment)
        experiment = Experiment.model_validate(settings)
        if unavailable:
            return Missing(name, device, experiment, unavailable)
        trained = records.TrainingRecord(
            device=device,
            device_kind="cpu" if device == "cpu" else "cuda",
            experiment=experiment,
            precision="fp32",
            parameter_count=547,
            image_shape=(1, 8, 8),
            class_names=("cat", "dog"),
            samples={"train": 600},
            mean=(0.5,),
            std=(0.25,),
            data_sha256="d" * 64,
            initial_weights_sha256=initial_weights_sha256,
            weights_sha256="b" * 64,
        )
        steps, every = 600 / experiment.batch_size, [*epoch_seconds, *chain(*repeats)]
        parts = attribution.parts.median_seconds if attribution and device == "cpu" else {}
        waiting_seconds = steps * parts.get("waiting_seconds", 0.0)
        part = whole_epoch(float(np.median(every)), steps, waiting_seconds)
        times = records.TrainingTimes(
            host=cpu_host,
            host_name="workbench",
            device_name=device_name,
            git_commit=None,
            packages={},
            started_at_unix_seconds=1.7e9,
            startup_seconds=2.5,
            data_seconds=0.5,
            warm_up_seconds=0.25,
            epochs=timed(epoch_seconds),
            total_seconds=total_seconds,
            tracking_seconds=0.0,
            resumed_at_epochs=(),
            training_image_count=600,
            images_per_second=600 / part.seconds,
            peak_memory_bytes=None,
            repeats=tuple(map(timed, repeats)),
            overhead=Overhead(seconds=0.0, checkpoint_seconds=0.0),
            load=load,
        )
        steady_state = measurements.SteadyState(steps_per_sample=1, sample_seconds=step_seconds)
        of_steps = measurements.StepMeasurements(
            parts=(part,), epoch_steps=steps, steady_state=steady_state, attribution=attribution
        )
        judged = {"weights_sha256": trained.weights_sha256, "test_accuracy": accuracy}
        scores = SCORES.model_copy(update=judged)
        history = history_of(*(1 / epoch for epoch in range(1, len(epoch_seconds) + 1)))
        return TrainedRecords(
            name, trained, times, of_steps, load, history, scores, FIRST_STEP, PREDICTIONS
        )

    return make


@pytest.fixture(scope="session")
def cpu_host() -> CpuTarget:
    return CpuTarget(processes=1, threads=1, cpu=cpu_facts(), software=software_facts().of_cpu())


@pytest.fixture
def make_run(
    make_experiment: MakeExperiment, cpu_host: CpuTarget, packed_split: PackedSplit, tmp_path: Path
) -> MakeRun:
    """Make a run on the CPU from settings: `make_run(epochs=2)`. It writes to `small/cpu`."""
    from photofinish.runs.run import Run

    def make(
        data: Path = packed_split.folder, out: Path = tmp_path / "small/cpu", **settings: Any
    ) -> Run:
        return Run("small", "cpu", make_experiment(**settings), cpu_host, data, out)

    return make


@pytest.fixture
def prepare_stage(
    tmp_path: Path, packed_split: PackedSplit, cpu_host: CpuTarget, make_experiment: MakeExperiment
) -> PrepareStage:
    """Prepare a training stage in a folder: `prepare_stage("whole", epochs=4)`."""
    from training_stage import TrainingStage

    def prepare(name: str = "stage", **settings: Any) -> TrainingStage:
        experiment, data = make_experiment(**settings), packed_split.folder
        return TrainingStage.prepare(tmp_path / name, experiment, cpu_host, data)

    return prepare


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that is made once for all workers of xdist."""
    (root,) = _of_this_run
    made = root / name
    with FileLock(root / f"{name}.lock"):
        if not made.is_dir():
            make(making := root / f"making-{name}")
            making.rename(made)
    return made


@pytest.fixture(scope="session")
def empty_database() -> Path:
    """Make MLflow's database once, because its tables take seconds."""
    from photofinish.tracking.store import open_store

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SQLAlchemy's, of MLflow's tables
        made = made_once("mlflow", lambda folder: open_store(folder, folder / ".photofinish"))
    return made / "mlflow.db"


def keep_known_code(project: Path) -> None:
    """Write the hashes of photofinish's files, which an earlier `plan` would have kept.

    They take most of the time of a small training.
    """

    def plan(folder: Path) -> None:
        shutil.copytree(ROOT / "stages", folder / "stages")
        shutil.copy(ROOT / "examples/mnist-linear.yaml", folder / "params.yaml")
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "stages/plan.py"]
        run_command(command, folder, environment).check_returncode()

    kept = Path(".photofinish/code.json")
    (project / kept).parent.mkdir(exist_ok=True)
    shutil.copy(made_once("planned", plan) / kept, project / kept)


@pytest.fixture
def store(tmp_path: Path, empty_database: Path) -> Store:
    """Open a store whose database was made in another folder."""
    from photofinish.tracking.store import open_store

    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return open_store(tmp_path, tmp_path / ".photofinish")


@dataclass
class HeldClock:
    """A clock on which time passes only in `take`."""

    now_seconds: float = 0.0

    def take(self, seconds: float) -> None:
        self.now_seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    held = HeldClock()
    monkeypatch.setattr("time.perf_counter", lambda: held.now_seconds)
    return held


@pytest.fixture
def params_file(tmp_path: Path) -> Path:
    return tmp_path / "params.yaml"


def run_command(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command, and return what it printed."""
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@dataclass(frozen=True)
class Project:
    """A clone of this project with its own DVC cache and MLflow store."""

    root: Path
    environment: dict[str, str]

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a user with the environment activated."""
        warm = {"PATH": warm_python.path(self.environment["PATH"])}
        return run_command(command, self.root, self.environment | warm | environment)

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command in a new process group, to be killed or interrupted."""
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def repro(self, *arguments: str, **environment: str) -> str:
        """Run `dvc repro`, which must succeed, and return what it printed."""
        ran = self.run("dvc", "repro", *arguments, **environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    def git(self, *arguments: str) -> str:
        ran = self.run("git", *arguments)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def commit(self) -> None:
        commit_all(self.root)

    def write_params(self, params: dict[str, Any]) -> None:
        text = yaml.safe_dump(params, sort_keys=False)
        (self.root / "params.yaml").write_text(text, encoding="utf-8")

    def without_mlflow(self) -> Project:
        """Replace MLflow, which takes most of the time of a small training, by nothing."""
        replace_mlflow(self.root / "src/photofinish")
        return self


def commit_all(folder: Path) -> str:
    """Commit all files, in a new repository if there is none, and return the commit."""
    for command in ("init", "add --all", "commit --allow-empty --message test"):
        git(folder, *command.split())
    return git(folder, "rev-parse", "HEAD")


def replace_mlflow(package: Path) -> None:
    """Replace the process that imports MLflow by one that does nothing."""
    worker = "def __getattr__(name):\n    return lambda *arguments: None\n"
    (package / "tracking/mlflow_worker.py").write_text(worker, encoding="utf-8")


def clone_project(root: Path) -> Project:
    """Clone the tracked and new files into `root`, as `git clone` of the next commit would."""
    files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    (listed := run_command(files, ROOT)).check_returncode()
    for file in filter(None, listed.stdout.split("\0")):
        is_made = Path(file).name == "dvc.lock" or Path(file).parts[0] in ("metrics", "plots")
        if (ROOT / file).is_file() and not is_made:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, root / file)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLFLOW_", "DVC_")) and name not in CPU_VARIABLES
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(root / "src")
    project = Project(root, environment)
    commit_all(root)
    keep_known_code(root)
    return project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return clone_project(tmp_path / "project")


@dataclass(frozen=True)
class CustomFiles:
    """Files of custom code, in a folder that is the project during a test."""

    folder: Path

    def write(self, name: str, text: str) -> str:
        """Write a file, and return its name in params.yaml."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return f"./{name}"

    def pack(self, name: str, class_name: str, source: str, **settings: Any) -> PackedSplit:
        """Download and split a custom data set with these settings and arguments."""
        file = self.write(f"{name}.py", source)
        sizes = {"source": f"{file}:{class_name}", "validation": 0.25, "test": 0.25}
        dataset = CustomDataset.model_validate_json(json.dumps(sizes | settings))
        code = custom_code_hashes([dataset.reference])
        plan = DatasetPlan(name=name, dataset=dataset, local_files=None, custom_code=code)
        raw, out = self.folder / f"data/raw/{name}", self.folder / f"data/splits/{name}"
        download(plan, raw)
        split(plan, read_raw(plan, raw), out)
        return PackedSplit(out)


@pytest.fixture
def custom_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CustomFiles]:
    """Give a folder for custom code, whose imports are undone afterwards."""
    monkeypatch.chdir(tmp_path)
    before, paths = set(sys.modules), [*sys.path]
    yield CustomFiles(tmp_path)
    sys.path[:] = paths
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def environment(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> dict[str, str]:
    """Return the environment of a process with the simulated accelerator."""
    from rehearsal.rehearsal_device import build, compiler
    from training_stage import clean_environment

    found = compiler()
    if found is None:
        pytest.skip("no C++ compiler here to build the simulated accelerator with")
    folder = tmp_path_factory.mktemp("plug-in") / "rehearsal"
    cache: Any = getattr(pytestconfig, "cache", None)  # -p no:cacheprovider leaves it out
    build(folder, found, cache.mkdir("rehearsal") if cache else tmp_path_factory.mktemp("kept"))
    return clean_environment() | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}
