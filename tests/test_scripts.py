"""Scripts with their own training loop: what `photofinish.steps` measures, and what is refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_python
import yaml
from conftest import CustomFiles, run_command
from outputs import verdict
from result_files import text_of
from torch import nn
from watched_scripts import figures_of, in_epochs, process_of, recorded

import photofinish
from photofinish.answer.comparison import Comparison, compare
from photofinish.config.base import read_plan
from photofinish.config.loader import read_params
from photofinish.config.scripts import ScriptPlan
from photofinish.custom.code_text import code_text
from photofinish.errors import ConfigError, UserError
from photofinish.files import sha256_of_bytes
from photofinish.inside.script_step import ScriptStep
from photofinish.machine.fingerprint import CpuTarget
from photofinish.planning.checks import check_paths
from photofinish.planning.plan import keep_results_of
from photofinish.reporting.sentences import Verdict
from photofinish.results.measured import (
    MEASURED,
    MEASURED_FOLDER,
    Measured,
    read_measured,
    write_measured,
)
from photofinish.results.measured_jobs import job_of_script, read_script
from photofinish.scripts import script_stage
from photofinish.scripts.run_script import Watched
from photofinish.scripts.script_lines import Length
from photofinish.scripts.script_record import measured_script, whole_length

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
    print(time.perf_counter())
    time.sleep(0.1)  # as a validation, before the iterator is dropped
loader = photofinish.steps(torch.utils.data.DataLoader([(torch.ones(4), 0)] * 96, 8))
run_epoch(loader)
run_epoch(loader)
"""
"""Takes batches as Hugging Face's Trainer does, which accumulates the gradients of two."""
APPLE = """
from types import SimpleNamespace
import photofinish
import torch
torch.accelerator.is_available = lambda: True
torch.get_device_module = lambda *_: SimpleNamespace(current_allocated_memory=lambda: 1024)
for _ in photofinish.steps(range(3)):
    pass
"""
WRAPPED = """
import torch
class Wrapped:
    loader = torch.utils.data.DataLoader([(torch.ones(4), 0)] * 40, 8)
    def __len__(self):
        return len(self.loader)
    def __iter__(self):
        yield from self.loader
"""
WITHOUT_TORCH = 'import sys, photofinish; assert "torch" not in sys.modules'
WITH_LINE, WITHOUT = LOOP.replace("STEPS", "photofinish.steps"), LOOP.replace("STEPS", "")

NEXT = """
import photofinish
def batches():
    for _ in range(30): yield [1.0] * 8
steps = photofinish.steps(batches())
for _ in range(20):
    next(steps)
raise ValueError("it fails in its first epoch")
"""


def test_next_takes_a_step_and_a_script_that_fails_leaves_its_steps(tmp_path: Path) -> None:
    process, _ = recorded(tmp_path, WITHOUT_TORCH + NEXT, is_warm=False)
    figures = figures_of(process)
    assert (figures.steps, figures.epochs) == (19, 1)  # the last is not known to have ended


def test_steps_measure_epochs_and_count_a_step(tmp_path: Path) -> None:
    batches = [1, 2]
    assert photofinish.steps(batches) is batches  # outside of a stage
    process, _ = recorded(tmp_path, WITH_LINE)
    figures = figures_of(process)
    assert (figures.steps, figures.epochs, figures.longest_epoch_steps) == (15, 3, 5)
    assert process.loaders[0].batches == 5
    # The forward product and the gradient of the weights: 2 * 8 * 4 * 2 operations each.
    assert process.counts
    assert process.counts["operations"]["flops"] == 2 * 128
    assert process.counts["operations"]["images"] == 8
    assert figures.loop_steps
    assert figures.loop_steps.quickest_seconds <= figures.step_seconds


def test_an_epoch_ends_with_its_last_step_where_the_loader_is_not_exhausted(tmp_path: Path) -> None:
    process, printed = recorded(tmp_path, TAKES_TWO)
    figures = figures_of(process)
    assert (figures.steps, figures.epochs) == (12, 2)
    assert (len(process.loaders), figures.batches_per_step) == (1, 2)
    first_ended, second_ended = map(float, printed.split())
    assert figures.last_step_at <= second_ended
    (start,) = (part for part in figures.parts if part.holds == "start")
    assert start.seconds > 0.1
    assert first_ended < figures.last_step_at
    assert process.counts
    operations = process.counts["operations"]
    assert (operations["images"], operations["flops"]) == (16, 2 * 2 * 128)


def test_a_loader_in_a_loader_that_a_script_names_is_not_counted_once_more(tmp_path: Path) -> None:
    process, _ = recorded(tmp_path, WRAPPED + WITH_LINE.replace("(batches)", "(Wrapped())"))
    figures = figures_of(process)
    assert (len(process.loaders), figures.batches_per_step, figures.epochs) == (1, 1, 3)


RunScript = Callable[..., Measured]


@pytest.fixture
def run_mine(
    custom_files: CustomFiles, cpu_host: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> RunScript:
    """Run `mine.py` on the CPU as its stage does, or plant its run.

    Return the record that lies there afterwards.
    """
    out, host = custom_files.folder / "results/cpu", custom_files.folder / "cpu.json"
    host.write_text(cpu_host.model_dump_json(), encoding="utf-8")

    def run(script: str | Watched, error: str = "", **settings: Any) -> Measured:
        custom_files.write("mine.py", script if isinstance(script, str) else "")
        command = f"{warm_python.executable()} mine.py"
        planned = {"command": command, "metrics": None, "files": {}} | settings
        plan = ScriptPlan.model_validate({"name": "mine", "epochs": 200} | planned)
        file = custom_files.folder / "plan.json"
        file.write_text(plan.model_dump_json(), encoding="utf-8")
        with monkeypatch.context() as patch:
            if isinstance(script, Watched):
                watched = replace(script, command=command)
                patch.setattr(script_stage, "run_recorded", lambda *_, **__: watched)
            with pytest.raises(UserError, match=error) if error else nullcontext():
                script_stage.run_script("cpu", file, host, out)
        record = read_measured(out / MEASURED_FOLDER / MEASURED)
        assert isinstance(record, Measured)
        return record

    return run


def ran(epochs: int, ended: str | None = None, status: int | None = 0) -> Watched:
    """Plant a run of epochs of 20 steps each."""
    process = in_epochs([0.1] * 20 * epochs)
    last_at = 2.0 * epochs
    return Watched("mine", process, process.figures(), -2.0, last_at, 1.7e9, (), status, ended)


FAILED = ran(2, "exit status 1", 1)


def facts(record: Measured) -> tuple[str | None, int, float]:
    """Return how a script ended, its steps, and the epochs of the whole job."""
    assert record.script
    return record.script.ended, record.script.steps, job_of_script(record).epochs


def test_what_a_failing_script_measured_is_kept_unless_an_earlier_run_of_it_was_complete(
    run_mine: RunScript, custom_files: CustomFiles
) -> None:
    custom_files.write("results/cpu/measured/measured.json", "{}")  # by another version
    failed = run_mine(FAILED, "exit status 1")
    assert facts(failed) == ("exit status 1", 40, 200)
    complete = run_mine(ran(3))
    assert facts(complete) == (None, 60, 200)
    keep_results_of(["results"], Path())  # as `plan` does
    shutil.rmtree(custom_files.folder / "results/cpu/measured")  # as DVC does before each run
    assert run_mine(FAILED, "exit status 1") == complete
    changed = run_mine(FAILED, "exit status 1", files={"gone.py": "another sha256"})
    assert facts(changed) == ("exit status 1", 40, 200)


def test_a_complete_run_is_kept_if_it_does_not_do_what_its_settings_expect(
    run_mine: RunScript,
) -> None:
    kept = run_mine(ran(1), r"mine\.metrics.*mine\.epochs", metrics="metrics.json")
    assert facts(kept) == (None, 20, 1)
    assert not job_of_script(kept).untimed_epochs


def hash_of(source: str) -> str:
    return sha256_of_bytes(code_text(source.encode(), with_docstrings=True))


def test_a_file_that_changed_after_plan_read_it_is_named_before_the_run(
    run_mine: RunScript, custom_files: CustomFiles
) -> None:
    custom_files.write("lib.py", "V = 1")
    files = {"lib.py": hash_of("V = 1")}
    edited_meanwhile = "open('lib.py', 'w').write('V = 2')\n" + WITH_LINE
    kept = run_mine(edited_meanwhile, files=files)
    assert run_mine(ran(1), r"lib\.py changed after `plan` read it", files=files) == kept


def test_a_file_that_a_script_loads_and_its_deps_lack_is_named(
    run_mine: RunScript, custom_files: CustomFiles, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("left_out.py", "lib/planned.py"):
        custom_files.write(name, "")
    run = ran(3)
    assert run.process
    for lacking in ([], ["left_out.py"]):
        run.process.files = [str(Path(name).absolute()) for name in ("lib/planned.py", *lacking)]
        run_mine(run, files={"lib": "its state"})
        assert re.findall(r"in params.yaml: (.*?)\. Add", capfd.readouterr().err) == lacking


def test_a_result_from_before_a_change_is_not_current_and_not_compared_with_another_version(
    run_mine: RunScript, custom_files: CustomFiles
) -> None:
    def pair() -> Comparison:
        plan = read_plan(custom_files.folder / "plan.json", ScriptPlan)
        return compare(read_script(plan, custom_files.folder / "results"))

    complete, note = run_mine(ran(3)), "The script has changed since: `photofinish run`"
    on_gpu = complete.model_copy(update={"device": "gpu"})
    write_measured(custom_files.folder / "results/gpu/measured", on_gpu)
    assert pair().speedups
    assert note not in verdict(pair()).answer
    changed: dict[str, Any] = {"files": {"gone.py": "another sha256"}}
    before_its_first_step = ran(0, "exit status 1", 1)
    kept = run_mine(before_its_first_step, "so the earlier result is kept", **changed)
    assert kept == complete
    assert pair().speedups
    assert note in verdict(pair()).answer
    run_mine(ran(3), **changed)
    assert note not in verdict(pair()).answer
    assert "another version" in str(pair().why_no_gpu)


def test_the_time_of_recording_the_first_step_is_in_no_start_up(cpu_host: CpuTarget) -> None:
    process = process_of([0.1] * 40)
    run = Watched("train", process, figures_of(process), -2.0, 4.0, 1.7e9, ())
    whole = measured_script("mine", run, "cpu", cpu_host)
    process.recording_seconds = 0.5
    other = measured_script("mine", run, "cpu", cpu_host)
    assert other.startup_seconds == pytest.approx(whole.startup_seconds - 0.5)


ENDLESS = WITH_LINE.replace("range(3)", "iter(int, 1)")


def test_a_time_limit_stops_a_script_and_its_whole_job_is_extrapolated(
    run_mine: RunScript, custom_files: CustomFiles
) -> None:
    settings = {"epochs": 10**6, "metrics": "metrics.json"}
    run_command([warm_python.executable(), "-m", "this"], custom_files.folder)  # until it is warm
    for limit_seconds in (1.0, 4.0, 16.0, 64.0):  # until it has taken some steps
        with suppress(UserError, AssertionError):  # no step was timed
            record = run_mine(ENDLESS, time_limit=limit_seconds, **settings)
            if facts(record)[1] > 1:
                break
    else:
        pytest.fail(f"no step was timed in {limit_seconds} s")
    ended, steps, epochs = facts(record)
    assert (ended, epochs) == (None, 10**6)
    plan = read_plan(custom_files.folder / "plan.json", ScriptPlan)

    def found(plan: ScriptPlan) -> Verdict:
        return verdict(compare(read_script(plan, custom_files.folder / "results")))

    assert f"The CPU trained {steps:,} of 5,000,000 steps" in text_of(found(plan))
    assert "has changed" not in found(plan).answer
    assert "has changed" in found(plan.model_copy(update={"time_limit": 99.0})).answer


def test_a_time_limit_wants_a_step_and_the_length_of_the_job(run_mine: RunScript) -> None:
    part = ran(1, status=None)
    kept = run_mine(part, r"mine\.time_limit.*mine\.epochs", epochs=None, time_limit=4.0)
    assert kept.script
    assert not kept.script.lengths
    none = ran(0, status=None)
    assert run_mine(none, "time_limit, before a step was timed", time_limit=4.0) == kept


def test_a_script_of_which_no_step_is_seen_is_timed_as_a_whole(run_mine: RunScript) -> None:
    record = run_mine("import time; time.sleep(0.1)", epochs=None)
    assert [(part.holds, part.steps) for part in record.parts] == [("run", 1.0)]
    job = job_of_script(record)
    assert job.whole_seconds == pytest.approx(job.total_seconds)
    assert not job.has_steps
    with pytest.raises(UserError, match="used a GPU in its run on the CPU"):  # which nothing hides
        run_mine(APPLE)


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
    ):
        step = ScriptStep()
        outputs = network(inputs)
        sum(each.sum() for each in outputs).backward()
        found = step.end()
    assert found["precision"] == precision
    assert found["operations"]["in_double"] == (precision == "fp64")


def test_a_missing_dependency_is_reported_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"command": "python a.py {device}", "deps": ["missing.py"]}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"scripts": {"mine": settings}}))
    with pytest.raises(ConfigError, match=r"scripts\.mine\.deps\.0"):
        read_params(tmp_path / "params.yaml", check_paths)


@pytest.mark.parametrize(("epochs", "is_whole"), [(5, False), (10, True)])
def test_a_length_of_fewer_epochs_than_were_seen_is_a_parts(epochs: int, is_whole: bool) -> None:
    process = process_of([0.1] * 40, loader=0, batches=1)
    process.add({"kind": "loader", "loader": 0, "batches": 4, "workers": 0, "is_named": False})
    process.on_command_line = [Length("epochs", epochs, "--epochs")]
    run = Watched("train", process, figures_of(process), 0.0, 4.0, 1.7e9, ())
    assert bool(whole_length(run)) is is_whole
