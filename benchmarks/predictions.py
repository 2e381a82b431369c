"""Does what a remedy brings lie in the interval that was predicted?

`python -m benchmarks.predictions` trains a grid of experiments as they are, and again with the line that the diagnosis
gives, by turns, and prints a row for each. Some run beside a loop that keeps a core busy: nothing may be claimed there.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks import machine
from photofinish.comparing.device_results import NotTrained, Recorded, read_run
from photofinish.comparing.diagnosis import diagnose
from photofinish.comparing.trial import with_values
from photofinish.data.sources import download, read_raw
from photofinish.data.split import split
from photofinish.files import write_summed
from photofinish.machine.fingerprint import fingerprint
from photofinish.params.datasets import DatasetPlan
from photofinish.params.reader import Params, read_params
from photofinish.runs import stage

INPUTS: tuple[Any, ...] = ("resident", *({"name": "loader", "workers": workers} for workers in (0, 1, 2)))
MODELS: tuple[Any, ...] = (
    "linear",
    {"name": "mlp", "hidden": [256]},
    {"name": "cnn", "channels": [8], "hidden": []},
    "lenet",
)
BATCHES = (16, 64, 512)
EPOCHS = 5
DATASET = {"source": "synthetic", "shape": [1, 28, 28], "classes": 4, "images": 6000, "validation": 0.1, "test": 0.1}
ROUNDS = 2


class _Nobody:
    """In MLflow's place, which would take most of the time."""

    waited_seconds = 0.0

    def __enter__(self) -> _Nobody:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments: None


def main() -> None:
    stage.Tracker = _Nobody  # type: ignore[assignment, attr-defined]
    held = told = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number, (model, batch_size, source) in enumerate(itertools.product(MODELS, BATCHES, INPUTS), start=1):
            settings = {"model": model, "batch_size": batch_size, "input": source}
            is_busy = number % 9 == 0
            with _busy_loop() if is_busy else contextlib.nullcontext():
                found, row = _tried(folder / f"{number}", settings)
            told += found is not None
            held += bool(found)
            in_short = yaml.safe_dump(settings, default_flow_style=True, width=1000).strip()
            print(f"{number:2} {'busy ' if is_busy else ''}{in_short}: {row}", flush=True)
    print(f"{held} of {told} predictions held")
    print(", ".join(f"{name} {value}" for name, value in machine.describe(machine.cores()).items()))


def _tried(folder: Path, settings: dict[str, Any]) -> tuple[bool | None, str]:
    """Whether the prediction held, None where there was none; and a row that tells of it."""
    folder.mkdir()
    defaults = {"dataset": "made-up", "optimizer": {"name": "sgd", "lr": 0.01}, "epochs": EPOCHS}
    params_file = folder / "params.yaml"
    document = {"datasets": {"made-up": DATASET}, "experiments": {"tried": {**defaults, **settings}}}
    params_file.write_text(yaml.safe_dump(document), encoding="utf-8")
    params = read_params(params_file)
    ((name, dataset),) = params.datasets.items()
    plan = DatasetPlan(name=name, dataset=dataset, local_files=None)
    download(plan, folder / "raw")
    split(plan, read_raw(plan, folder / "raw"), folder / "split")
    first = _train(folder / "first", params, folder / "split")
    found = next((each for each in diagnose(first) if each.of == "an epoch"), None)
    if not (found and found.remedy and found.remedy.predicted):
        return None, f"{found.cause}: {found.advice}" if found else "nothing"
    changed = with_values(params_file, {found.remedy.key: found.remedy.value}, folder / "changed.yaml")
    before, after = [first], []
    for turn in range(ROUNDS):
        after.append(_train(folder / f"with-{turn}", changed, folder / "split"))
        before.append(_train(folder / f"without-{turn}", params, folder / "split"))
    without_seconds, with_seconds = (
        statistics.median(run.timings.median_epoch_seconds for run in runs) for runs in (before[1:], after)
    )
    gain, predicted = without_seconds / with_seconds, found.remedy.predicted
    is_held = predicted.low <= gain <= predicted.high
    row = f"{found.cause}, {found.remedy.line}: {predicted}; really {gain:.2f}{'' if is_held else '  MISSED'}"
    return is_held, row


def _train(folder: Path, params: Params, data: Path) -> Recorded:
    """As the stage does, in a process forked from this one, which has everything imported."""
    folder.mkdir()
    experiment, host, out = folder / "tried.json", folder / "cpu.json", folder / "tried" / "cpu"
    write_summed(experiment, params.experiments["tried"].model_dump_json().encode())
    write_summed(host, fingerprint(params.devices)[0].model_dump_json().encode())

    def train() -> None:
        os.chdir(folder)
        with (folder / "output.txt").open("w", encoding="utf-8") as sys.stdout:
            stage.train("cpu", experiment, host, data, None, out)

    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{folder} ended with {process.exitcode}")
    run = read_run("tried", out)
    assert not isinstance(run, NotTrained)
    return run


@contextlib.contextmanager
def _busy_loop() -> Iterator[None]:
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


if __name__ == "__main__":
    main()
