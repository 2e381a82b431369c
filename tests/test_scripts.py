"""Scripts with their own training loop: what `photofinish.steps` measures, and what is refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_python
import yaml
from conftest import ROOT, CustomFiles, MakeResult, run_command
from result_files import trained
from torch import nn

import photofinish
from photofinish.comparing.diagnosis import diagnose
from photofinish.comparing.pairs import Comparison, read_script_pair
from photofinish.comparing.result import Result
from photofinish.config.base import read_plan
from photofinish.config.compare import Comparing
from photofinish.config.loader import read_params
from photofinish.config.scripts import ScriptPlan
from photofinish.custom_loops.command import run_script
from photofinish.errors import ConfigError, UserError
from photofinish.machine.fingerprint import CpuTarget
from photofinish.planning.checks import check_deps
from photofinish.profiling.script_step import ScriptStep
from photofinish.reporting.sentences import verdict
from photofinish.results import EpochTiming
from photofinish.results.records import write_record
from photofinish.results.script_runs import ScriptEpoch, ScriptRun, read_script_run

LOOP = """
import photofinish
import torch
network = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
batches = [(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))] * 5
for _ in range(3):
    for inputs, targets in STEPS(batches):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
open("metrics.json", "w").write('{"loss": 0.5}')
"""
TAKES_TWO = """
import time
import photofinish
import torch
network = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
def run_epoch(loader):
    batches = iter(loader)
    for _ in range(len(loader) // 2):
        for inputs, targets in [next(batches), next(batches)]:
            torch.nn.functional.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(time.monotonic())
    time.sleep(0.1)  # as a validation, before the iterator is dropped
loader = photofinish.steps([(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))] * 12)
run_epoch(loader)
run_epoch(loader)
"""
"""Takes batches as Hugging Face's Trainer does, which accumulates the gradients of two."""
EVENTS = """
import sys
from types import SimpleNamespace
class Event:
    record = elapsed_time = lambda *_: 1.0
sys.modules["torch"] = SimpleNamespace(
    Event=lambda *_, **__: Event(),
    accelerator=SimpleNamespace(synchronize=lambda: None),
    cuda=SimpleNamespace(is_initialized=lambda: False),
    get_device_module=lambda _: None,
)
import photofinish
from photofinish.custom_loops import timed_steps
timed_steps._MEASURED.may_count = False
for _ in photofinish.steps(iter(range(100_000))):
    pass
"""
LONG_STEPS = """
import photofinish
from photofinish.custom_loops import timed_steps
timed_steps._LONG_STEP_SECONDS = 0.0
"""
APPLE = """
import sys
from types import SimpleNamespace
sys.modules["torch"] = SimpleNamespace(
    accelerator=SimpleNamespace(is_available=lambda: True),
    get_device_module=lambda: SimpleNamespace(current_allocated_memory=lambda: 1024),
)
import photofinish
for _ in photofinish.steps(range(1)):
    pass
"""
WITHOUT_TORCH = 'import sys, photofinish; assert "torch" not in sys.modules'
WITH_LINE, WITHOUT = LOOP.replace("STEPS", "photofinish.steps"), LOOP.replace("STEPS", "")


def measured_by(tmp_path: Path, script: str, device: str = "cpu") -> Any:
    """Run a script as its stage does, and return what it measured and printed."""
    own = {"PHOTOFINISH_STEPS_FOLDER": str(tmp_path), "PHOTOFINISH_STEPS_DEVICE": device}
    environment = os.environ | own | {"PYTHONPATH": str(ROOT / "src")}
    (tmp_path / "mine.py").write_text(script, encoding="utf-8")
    python = sys.executable if "sys.modules" in script else warm_python.executable()
    ran = run_command([python, "mine.py"], tmp_path, environment)
    return json.loads((tmp_path / "steps.json").read_text()) | {"printed": ran.stdout}


NEXT = """
import photofinish, torch
from photofinish.custom_loops import timed_steps
timed_steps._LONG_STEP_SECONDS = 1e9  # on a busy machine
def batches():
    for _ in range(30): yield torch.ones(8, 4)
steps = photofinish.steps(batches())
for _ in range(20):
    next(steps).sum()
raise ValueError("it fails in its first epoch")
"""


def test_next_takes_a_step_and_a_script_that_fails_leaves_its_steps(tmp_path: Path) -> None:
    (epoch,) = (measured := measured_by(tmp_path, NEXT))["epochs"]
    assert (epoch["steps"], epoch["is_whole"]) == (19, False)  # the last is not known to have ended
    assert len(epoch["counted_seconds"]) == 2
    assert not measured["used_accelerator"]
    assert measured_by(tmp_path, APPLE)["used_accelerator"]  # which nothing hides


def test_a_long_step_is_counted_once(tmp_path: Path) -> None:
    script = WITH_LINE.replace("import photofinish\n", LONG_STEPS, 1)
    epochs = measured_by(tmp_path, script)["epochs"]
    assert [len(epoch["counted_seconds"]) for epoch in epochs] == [1, 0, 0]


def test_steps_measure_epochs_and_count_two_steps(tmp_path: Path) -> None:
    measured = measured_by(tmp_path, WITHOUT_TORCH + WITH_LINE)
    assert [(epoch["steps"], epoch["samples"]) for epoch in measured["epochs"]] == [(5, 40)] * 3
    assert [len(epoch["counted_seconds"]) for epoch in measured["epochs"]] == [2, 0, 0]
    counted_seconds = sum(measured["epochs"][0]["counted_seconds"])  # imports torch
    for epoch in measured["epochs"]:
        assert 0 < epoch["quickest_step_seconds"] < epoch["seconds"]
        assert 0 < epoch["cpu_seconds"] < counted_seconds
    # The forward product and the gradient of the weights: 2 * 8 * 4 * 2 operations each.
    assert measured["operations"]["flops"] == 2 * 128


SLOW_LOADER = """
import time
import torch
import photofinish
class Slow(torch.utils.data.Dataset):
    def __init__(self): self.transform = self.sleepy
    def sleepy(self, item):
        time.sleep(0.002)
        return item
    def __len__(self): return 8
    def __getitem__(self, row): return self.transform(torch.ones(4)), 0
for batch in photofinish.steps(torch.utils.data.DataLoader(Slow(), batch_size=4)):
    pass
"""


def test_the_loader_of_a_loop_is_taken_apart_after_it(tmp_path: Path) -> None:
    batches = [1, 2]
    assert photofinish.steps(batches) is batches  # outside of a stage
    measured = measured_by(tmp_path, SLOW_LOADER)
    assert next(iter(measured["loader"]["parts"])) == "sleepy"
    assert measured["taking_apart_seconds"] > 0


def test_an_epoch_ends_with_its_last_step_where_the_loader_is_not_exhausted(
    tmp_path: Path,
) -> None:
    measured = measured_by(tmp_path, TAKES_TWO)
    for epoch, stepped_at in zip(measured["epochs"], measured["printed"].split(), strict=True):
        assert (epoch["is_whole"], epoch["steps"], epoch["samples"]) == (True, 12, 96)
        assert epoch["ended_at"] <= float(stepped_at)
    operations = measured["operations"]
    assert (operations["images"], operations["flops"]) == (16, 2 * 2 * 128)


def test_an_epoch_of_many_steps_keeps_some_thousand_events(tmp_path: Path) -> None:
    (epoch,) = measured_by(tmp_path, EVENTS, "cuda")["epochs"]
    assert epoch["steps"] == 100_000
    assert 1000 < len(epoch["device_step_seconds"]) < 5000


TAKEN_APART = f"""
import atexit, json, os, pathlib
def change():
    file = pathlib.Path(os.environ["PHOTOFINISH_STEPS_FOLDER"], "steps.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {{"taking_apart_seconds": 1e6}}))
atexit.register(change)
{WITH_LINE}
"""
"""Takes its loader apart for longer than it runs."""
FAILS = WITH_LINE.replace("range(3)", "range(2)") + "raise ValueError('no metrics')\n"
ONE_EPOCH = WITH_LINE.replace("range(3)", "range(1)").replace("metrics.json", "other.json")
RunScript = Callable[..., ScriptRun]


@pytest.fixture
def run_mine(custom_files: CustomFiles, cpu_host: CpuTarget) -> RunScript:
    """Run `mine.py` on the CPU as its stage does. Return the record that lies there afterwards."""
    out, host = custom_files.folder / "results/cpu", custom_files.folder / "cpu.json"
    host.write_text(cpu_host.model_dump_json(), encoding="utf-8")

    def run(script: str, error: str = "", **settings: Any) -> ScriptRun:
        custom_files.write("mine.py", script)
        command = f"{warm_python.executable()} mine.py"
        planned = {"command": command, "metrics": None, "files": {}} | settings
        plan = ScriptPlan.model_validate({"name": "mine", "epochs": 200} | planned)
        file = custom_files.folder / "plan.json"
        file.write_text(plan.model_dump_json(), encoding="utf-8")
        with pytest.raises(UserError, match=error) if error else nullcontext():
            run_script("cpu", file, host, out)
        record = read_script_run(out)
        assert isinstance(record, ScriptRun)
        return record

    return run


def test_what_a_failing_script_measured_is_kept_unless_an_earlier_run_of_it_was_complete(
    run_mine: RunScript, custom_files: CustomFiles
) -> None:
    custom_files.write("results/cpu/script.json", "{}")  # by another version
    failed = run_mine(FAILS, "exit status 1")
    assert (failed.ended, len(failed.epochs)) == ("exit status 1", 2)
    assert (failed.timings.planned_epochs, failed.timings.epochs_left) == (200, 198)
    complete = run_mine(WITH_LINE)
    assert (complete.ended, len(complete.epochs)) == (None, 3)
    assert run_mine(FAILS, "exit status 1") == complete
    changed = run_mine(FAILS, "exit status 1", files={"mine.py": "another sha256"})
    assert (changed.ended, len(changed.epochs)) == ("exit status 1", 2)
    assert run_mine(TAKEN_APART).timings.total_seconds < 0


def test_a_complete_run_is_kept_if_it_does_not_do_what_its_settings_expect(
    run_mine: RunScript,
) -> None:
    kept = run_mine(ONE_EPOCH, r"mine\.metrics.*mine\.epochs", metrics="metrics.json")
    assert (kept.ended, len(kept.epochs), kept.timings.epochs_left) == (None, 1, 0)


def test_a_result_from_before_a_change_is_not_current_and_not_compared_with_another_version(
    run_mine: RunScript, custom_files: CustomFiles
) -> None:
    def pair() -> Comparison:
        plan = read_plan(custom_files.folder / "plan.json", ScriptPlan)
        return read_script_pair(plan, custom_files.folder / "results", Comparing())

    complete, note = run_mine(WITH_LINE), "The script has changed since this result"
    on_gpu = complete.model_copy(update={"device": "gpu"})
    write_record(custom_files.folder / "results/gpu/script.json", on_gpu)
    assert pair().compared
    assert note not in verdict(pair()).answer
    changed: dict[str, Any] = {"files": {"mine.py": "another sha256"}}
    failing = "raise ValueError('before its first epoch')"
    assert run_mine(failing, "no epoch, and the earlier result stays", **changed) == complete
    assert pair().compared
    assert note in verdict(pair()).answer
    run_mine(WITH_LINE, **changed)
    assert note not in verdict(pair()).answer
    assert "another version" in str(pair().why_no_gpu)


@pytest.fixture
def tf32_products() -> Iterator[Callable[[], None]]:
    """Let products use TF32 until the test ends."""
    yield lambda: torch.set_float32_matmul_precision("high")
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("network", "allowed", "autocast", "precision"),
    [
        (nn.Linear(8, 8), "neither", False, "fp32"),
        (nn.Linear(8, 8), "convolutions", False, "fp32"),
        (nn.Linear(8, 8), "products", False, "tf32"),
        (nn.Linear(8, 8, dtype=torch.float64), "products", False, "fp64"),
        (nn.Linear(8, 8), "products", True, "bf16"),
        (nn.Conv1d(8, 8, 1), "neither", False, "fp32"),
        (nn.Conv1d(8, 8, 1), "convolutions", False, "tf32"),
        (nn.GRU(8, 8), "convolutions", False, "tf32"),
    ],
    ids=str,
)
def test_the_precision_is_that_of_the_products_by_pytorchs_flags(
    network: nn.Module,
    allowed: str,
    *,
    autocast: bool,
    precision: str,
    tf32_products: Callable[[], None],
) -> None:
    if allowed == "products":
        tf32_products()
    inputs = torch.ones(8, 8, dtype=next(network.parameters()).dtype)
    with (
        torch.backends.cudnn.flags(allow_tf32=allowed == "convolutions"),  # type: ignore[no-untyped-call]
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        ScriptStep() as step,
    ):
        outputs = network(inputs)
        sum(each.sum() for each in outputs).backward()
        found = step.precision
    assert found == precision
    assert step.operations(8, 0).in_double == (precision == "fp64")


@pytest.mark.parametrize(
    ("waiting_seconds", "device_seconds", "step_seconds", "share", "cause"),
    [
        (0.6, (), 0.004, 0.6, "input-bound"),
        (0.6, (0.004,), 0.004, 0.6, "input-bound"),
        (0.6, (0.010,), 0.010, 0.0, None),  # the device computes while the host loads
        (0.2, (0.0001,), 0.008, 0.2, None),  # it computes on another stream
    ],
)
def test_a_script_waits_for_batches_while_the_device_has_nothing_to_compute(
    waiting_seconds: float,
    device_seconds: tuple[float, ...],
    step_seconds: float,
    share: float,
    cause: str | None,
    make_result: MakeResult,
) -> None:
    epoch = ScriptEpoch(
        is_whole=True,
        began_at=0.0,
        ended_at=1.0,
        seconds=1.0,
        waiting_seconds=waiting_seconds,
        steps=100,
        samples=100,
        counted_seconds=(),
        device_step_seconds=device_seconds,
    )
    timings = trained(make_result, "mine", "gpu").timings
    timings = timings.model_copy(update={"epochs": (EpochTiming(1.0, 0.0, 0.0),)})
    waited = (epoch.exposed_waiting_seconds,)
    run = Result("mine", "gpu", timings, "fp32", None, waiting_seconds=waited)
    assert epoch.step_seconds == pytest.approx(step_seconds)
    assert run.waiting_share == pytest.approx(share)
    assert [each.cause for each in diagnose(run)] == ([cause] if cause else [])


def test_a_missing_dependency_is_reported_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"command": "python a.py {device}", "deps": ["missing.py"]}
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"scripts": {"mine": settings}}))
    with pytest.raises(ConfigError, match=r"scripts\.mine\.deps\.0"):
        read_params(tmp_path / "params.yaml", check_deps)
