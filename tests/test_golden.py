"""Results that users rely on: weights, history, comparison.csv, causes, MLflow's names.

All are compared with golden/pipeline.json. Rewrite it with `PHOTOFINISH_UPDATE_GOLDEN=1 pytest
tests/test_golden.py`, and read the difference before you commit it. Bits hold on one kind of
machine. On others, numbers are compared with a tolerance.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import ONE_THREAD, ROOT, Project, clone_project
from PIL import Image

pytestmark = pytest.mark.slow

# Names that may change on purpose stand here, and nowhere below.
MODEL, TIMINGS = "model", "timings/timings.json"
WEIGHTS, HISTORY, RECORD, FIRST_STEP = (
    "weights.safetensors",
    "history.csv",
    "record.json",
    "first_step.json",
)
PARTS = "attribution.parts"
SAME_BATCH, OTHER_BATCH = (
    "attribution.same_batch.sample_seconds",
    "attribution.other_batch.sample_seconds",
)
VALUES = (  # columns of comparison.csv that hold no time and nothing of the machine
    *(
        "experiment",
        "device",
        "status",
        "precision",
        "parameters",
        "epochs",
        "repeats",
        "test_accuracy",
        "test_loss",
    ),
    *(
        "macro_f1",
        "test_metrics",
        "target_accuracy",
        "target_epoch",
        "cost_currency",
        "resumed_at_epochs",
    ),
)
MADE_UP_VALUES = (  # and those of made-up results
    *(
        "cause",
        "epoch_cause",
        "same_model",
        "first_divergence",
        "same_initial_weights",
        "step_seconds",
        "epoch_seconds",
    ),
    *(
        "step_speedup",
        "epoch_speedup",
        "end_to_end_speedup",
        "payback_epochs",
        "cost",
        "target_cost",
    ),
    *("busy_share", "waiting_share", "copying_share", "forward_share"),
)
NOT_ELSEWHERE = (
    "weights_sha256",
    "test_metrics",
    "target_epoch",
    "target_cost",
)  # what other bits may change
GOLDEN = Path(__file__).parent / "golden" / "pipeline.json"
PART_SIZES = {"validation": 0.2, "test": 0.2}
MADE = {"source": "synthetic", "images": 60, "classes": 4, **PART_SIZES}
# For each experiment: the file and experiment it is a small version of, and its small data set.
SYSTEMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mnist-linear": (
        "mnist-linear",
        "mnist-linear",
        MADE | {"shape": [1, 28, 28], "mean": [0.13], "std": [0.31]},
    ),
    "mnist-mlp": ("mnist-mlp", "mnist-mlp", MADE | {"shape": [1, 28, 28], "seed": 1}),
    "lenet": (
        "fashion-lenet-grid",
        "lenet-1000-workers-0",
        MADE | {"shape": [1, 28, 28], "seed": 2},
    ),
    "cnn": (
        "caltech101-cnn",
        "caltech101-cnn",
        {"source": "csv", "path": "made/images.csv", "size": 32, **PART_SIZES},
    ),
    "resnet18": ("cifar10-resnet18", "cifar10-resnet18", MADE | {"shape": [3, 32, 32]}),
    "own-network": ("own-network", "residual-focal", {"count": 90}),
    "own-table": ("own-table", "progression-smooth", {}),
}
# Made-up seconds of a CPU's step: start-up, waiting for a batch, copying it, the step, the step on
# the other batch. Then cores, and the share of them that other programs used.
CAUSES = {
    "digits": (1000.0, 0.01, 0.0, 0.1, 0.2, 1, 0.0),
    "mnist-linear": (0.1, 0.01, 0.0, 0.1, 0.1, 1, 0.0),
    "mnist-mlp": (0.1, 0.5, 0.0, 0.1, 0.2, 1, 0.0),
    "lenet": (0.1, 0.01, 0.3, 0.1, 0.2, 1, 0.0),
    "cnn": (0.1, 0.01, 0.0, 0.1, 0.2, 1, 0.0),
    "resnet18": (0.1, 0.01, 0.0, 0.1, 0.2, 8, 0.0),
    "own-network": (0.1, 0.01, 0.0, 0.1, 0.2, 1, 0.9),
    "own-table": (0.1, 0.01, 0.0, 0.1, 0.1, 1, 0.0),
}
# Made-up GPUs: ratio of their first gradients to the CPU's, and a digit of their first weights.
GPUS = {
    "mnist-linear": (1.0, ""),
    "cnn": (1 + 1e-7, ""),
    "lenet": (1.5, ""),
    "own-network": (1.0, "0"),
}


def merged(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {key: merged(below.get(key), value) for key, value in above.items()}


def params() -> dict[str, Any]:
    """Return the tutorials' systems on small data sets for two epochs, and one run on digits."""
    datasets: dict[str, Any] = {"digits": {"source": "digits", **PART_SIZES}}
    rate = {"name": "sgd", "lr": 0.125, "momentum": 0.9}
    experiments = {"digits": {"dataset": "digits", "model": "linear", "seed": 7}}
    for name, (file, original, dataset) in SYSTEMS.items():
        example = yaml.safe_load((ROOT / "examples" / f"{file}.yaml").read_text(encoding="utf-8"))
        experiment = merged(example["defaults"], example["experiments"][original])
        if isinstance(experiment["model"], dict):
            experiment["model"].pop("weights", None)
        experiments[name] = merged(experiment, {"dataset": name, "epochs": 2, "batch_size": 16})
        settings = example["datasets"][example["experiments"][original]["dataset"]]
        datasets[name] = dataset if "source" in dataset else settings | dataset
    return {
        "defaults": {"epochs": 3, "batch_size": 64, "optimizer": rate},
        "devices": ONE_THREAD,
        "datasets": datasets,
        "experiments": experiments,
        "compare": {
            "target_accuracy": 0.5,
            "prices": {"currency": "EUR", "cpu_hour": 1, "gpu_hour": 2},
        },
    }


def make_images(folder: Path) -> None:
    """Write 60 noisy pictures of three classes, and the CSV that lists them."""
    folder.mkdir()
    random, lines = np.random.default_rng(0), ["path,label"]
    for number in range(60):
        pixels = random.integers(0, 150, size=(40, 36, 3), dtype=np.uint8)
        pixels[:, :, number % 3] += 100
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{['red', 'green', 'blue'][number % 3]}")
    (folder / "images.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One project, in which everything has run once on a machine whose GPUs are hidden."""
    project = clone_project(tmp_path_factory.mktemp("golden") / "project")
    project.environment.update({"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})
    make_images(project.root / "made")
    project.write_params(params())
    project.commit()
    project.repro()
    return project


@pytest.fixture
def project(reproduced: Project, tmp_path: Path) -> Project:
    """A copy of it, for a test to change."""
    root = tmp_path / "project"
    shutil.copytree(reproduced.root, root)
    return Project(root, reproduced.environment | {"PYTHONPATH": str(root / "src")})


@pytest.fixture(scope="module")
def golden() -> Iterator[dict[str, Any]]:
    """Return what is frozen, and rewrite its file afterwards where that is wanted."""
    found: dict[str, Any] = (
        json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.is_file() else {}
    )
    yield found
    if os.environ.get("PHOTOFINISH_UPDATE_GOLDEN"):
        text = json.dumps(found, indent=1, sort_keys=True) + "\n"
        GOLDEN.write_text(text, encoding="utf-8")


def machine() -> dict[str, str]:
    """Return what bits depend on."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.is_file() else []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cpu": model,
    }


def assert_frozen(golden: dict[str, Any], topic: str, found: Any, *, bits: bool = False) -> None:
    """Compare with the golden file: bits on the machine that wrote it, loosely on another."""
    found = json.loads(json.dumps(found))
    if os.environ.get("PHOTOFINISH_UPDATE_GOLDEN"):
        golden[topic], golden["machine"] = found, machine()
    elif golden["machine"] != machine():
        assert near(found, 0.2, NOT_ELSEWHERE) == near(golden[topic], 0.2, NOT_ELSEWHERE), topic
    elif bits:
        assert found == golden[topic], topic
    else:
        assert near(found, 1e-9) == near(golden[topic], 1e-9), topic


def near(value: Any, tolerance: float, without: Collection[str] = ()) -> Any:
    """Return it with numbers that equal all near them, and without some keys."""
    if isinstance(value, dict):
        return {
            key: near(each, tolerance, without) for key, each in value.items() if key not in without
        }
    if isinstance(value, list):
        return [near(each, tolerance, without) for each in value]
    try:
        return pytest.approx(float(value), rel=tolerance, abs=tolerance)
    except (TypeError, ValueError):
        return value


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_every_system_learns_the_same_bits(reproduced: Project, golden: dict[str, Any]) -> None:
    learned = {}
    for name in CAUSES:
        folder = reproduced.root / "results" / name / "cpu" / MODEL
        sha256 = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
        learned[name] = {"weights_sha256": sha256, "history": rows(folder / HISTORY)}
    assert_frozen(golden, "model", learned, bits=True)


def test_the_comparison_has_the_same_columns_and_values(
    reproduced: Project, golden: dict[str, Any]
) -> None:
    compared = rows(reproduced.root / "report" / "comparison.csv")
    assert_frozen(golden, "columns", list(compared[0]))
    assert_frozen(
        golden, "comparison", [{column: row[column] for column in VALUES} for row in compared]
    )


def test_mlflow_has_the_same_names(reproduced: Project, golden: dict[str, Any]) -> None:
    names: dict[str, Any] = {}
    with closing(sqlite3.connect(reproduced.root / "mlflow.db")) as database:
        runs = dict(database.execute("SELECT name, run_uuid FROM runs"))
        for run in ("resnet18/cpu", "own-network/cpu", "own-table/cpu", "comparison"):
            for table in ("params", "metrics", "tags"):
                query = f"SELECT DISTINCT key FROM {table} WHERE run_uuid = ?"  # noqa: S608 # of the three above
                found = {key for (key,) in database.execute(query, [runs[run]])}
                names[f"{run} {table}"] = sorted(
                    {"system/*" if key.startswith("system/") else key for key in found}
                )
    assert_frozen(golden, "mlflow", {"runs": sorted(runs), "names": names})


def set_at(record: dict[str, Any], place: str, value: Any) -> None:
    """Set what stands there; of a list, every value."""
    *above, last = place.split(".")
    for key in above:
        record = record[key]
    record[last] = [value] * 10 if isinstance(record[last], list) else value


def make_up_timings(timings: dict[str, Any], name: str, faster: float) -> None:
    batch_size = 64 if name == "digits" else 16
    startup, waiting, copying, step, other, cores, busy = CAUSES[name]
    waiting, copying, step, other = (
        seconds / faster for seconds in (waiting, copying, step, other)
    )
    epochs = timings["epochs"]
    epoch_seconds = -(-timings["training_image_count"] // batch_size) * (waiting + copying + step)
    for epoch in epochs:
        epoch |= {"training_seconds": epoch_seconds, "validation_seconds": 0.0}
    parts = {
        "waiting": waiting,
        "copying": copying,
        "forward": step / 2,
        "backward": step / 4,
        "optimizer": step / 4,
    }
    for part, seconds in (parts | {"rest": 0.0}).items():
        set_at(timings, f"{PARTS}.{part}_seconds", seconds)
    set_at(timings, "attribution.batch_alone_seconds", waiting)
    timings |= {"startup_seconds": startup, "warm_up_seconds": 0.01, "data_seconds": 0.01}
    set_at(timings, "total_seconds", startup + len(epochs) * epoch_seconds)
    set_at(timings, "images_per_second", timings["training_image_count"] / epoch_seconds)
    set_at(
        timings, "steady_state.sample_seconds", step * timings["steady_state"]["steps_per_sample"]
    )
    for place, seconds in ((SAME_BATCH, step), (OTHER_BATCH, other)):
        set_at(timings, place, seconds)
        set_at(timings, place.replace("sample_seconds", "steps_per_sample"), 1)
    timings["attribution"]["other_batch_images"] = batch_size * 2
    timings["host"]["cpu"] |= {"usable_cores": cores, "cgroup_cores_limit": None}
    quiet = {
        "wall_seconds": 10.0,
        "cores": 2,
        "own_cpu_seconds": 10.0,
        "others_cpu_seconds": 20 * busy,
    }
    quiet |= {"waited_for_core_seconds": 0.0, "major_page_faults": 0, "swapped_pages": 0}
    timings["load"] = [timings["load"][-1] | quiet]


def change_json(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a record, and its sha256 where one is noted beside it."""
    old = file.read_bytes()
    record = json.loads(old)
    change(record)
    new = json.dumps(record).encode()
    file.write_bytes(new)
    if (sums := file.parent / "SHA256SUMS").is_file():
        old_sha256, new_sha256 = (hashlib.sha256(data).hexdigest() for data in (old, new))
        sums.write_text(
            sums.read_text(encoding="utf-8").replace(old_sha256, new_sha256), encoding="utf-8"
        )


def make_up_gpu(folder: Path, name: str) -> None:
    """Turn a copy of the CPU's model into a GPU's, with changed gradients or initial weights."""
    factor, digit = GPUS[name]

    def change_record(record: dict[str, Any]) -> None:
        record |= {"device": "gpu", "device_kind": "cuda"}
        record["initial_weights_sha256"] = digit + record["initial_weights_sha256"][len(digit) :]

    def change_first_step(step: dict[str, Any]) -> None:
        for part, numbers in step["gradients"].items():
            step["gradients"][part] = [number * factor for number in numbers]

    change_json(folder / MODEL / RECORD, change_record)
    change_json(folder / MODEL / FIRST_STEP, change_first_step)


def test_made_up_results_have_the_same_causes_and_likeness(
    project: Project, golden: dict[str, Any]
) -> None:
    stages = yaml.safe_load((project.root / "dvc.lock").read_text(encoding="utf-8"))["stages"]
    commands = []
    for name in CAUSES:
        cpu, gpu = (project.root / "results" / name / device for device in ("cpu", "gpu"))
        if name in GPUS:
            shutil.rmtree(gpu)
            shutil.copytree(cpu, gpu)
            make_up_gpu(gpu, name)
            change_json(gpu / TIMINGS, partial(make_up_timings, name=name, faster=4.0))
            commands.append(stages[f"evaluate@{name}"]["cmd"])
        change_json(cpu / TIMINGS, partial(make_up_timings, name=name, faster=1.0))
    for command in (*commands, stages["compare"]["cmd"]):
        ran = project.run("sh", "-c", command)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    compared = rows(project.root / "report" / "comparison.csv")
    found = [{column: row[column] for column in (*VALUES, *MADE_UP_VALUES)} for row in compared]
    assert {row["cause"] for row in found} >= {
        "input-bound",
        "launch-bound",
        "compute-bound",
        "start-up-bound",
    }
    assert_frozen(golden, "made-up results", found)
