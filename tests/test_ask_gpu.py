"""`photofinish ask` on a machine with a GPU, whose run is planted: what it says of both runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import warm_python
from result_files import STEP, text_of
from watched_scripts import process_of, recorded

from photofinish.commands import ask as ask_module
from photofinish.commands.ask import ask, ask_command
from photofinish.config.compare import Comparing
from photofinish.config.kinds import KINDS, AcceleratorKind
from photofinish.errors import UserError
from photofinish.inside.single_steps import SingleSteps
from photofinish.machine.accelerators import AcceleratorFacts
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.reporting import sentences
from photofinish.reporting.ask_lines import AskFiles
from photofinish.results.trained import FirstScriptSteps
from photofinish.scripts.run_script import Limits, NoStepsError, Watched, recording, watch
from photofinish.scripts.script_lines import Length, Loader, Process
from photofinish.scripts.script_record import files_of, measured_script, named_files

STEPPING = """
import time, torch
weight = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(weight.parameters())
for seconds in 0, 50:
    weight(torch.ones(1)).sum().backward()
    time.sleep(seconds)
    optimizer.step()
"""
Plant = Callable[..., None]


def planted(process: Process, startup_seconds: float = 2.0) -> Watched:
    """Return a run that photofinish ended after its steps."""
    began_at = (process.first_step_at or 0.0) - startup_seconds
    return Watched("python train.py", process, process.figures(), began_at, 40.0, 0.0, (), None)


def loading(batches: float | None, step_seconds: float, device: str) -> Process:
    process = process_of([step_seconds] * 40, device, loader=0, batches=1)
    process.loaders[0] = Loader(batches, 0)
    return process


def counts(images: int, precision: str = "fp32") -> dict[str, Any]:
    operations = STEP.model_dump() | {"images": images, "without_formula": [], "in_double": False}
    return {"operations": operations, "precision": precision, "parameter_count": 1}


@pytest.fixture
def plant(cpu_host: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Plant the runs on a GPU and, if wanted, on the CPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("photofinish.scripts.run_script._POLL_SECONDS", 0.1)

    def plant(
        on_gpu: Process | None, on_cpu: Process | None = None, **startup_seconds: float
    ) -> None:
        gpu = AcceleratorFacts("cuda", "NVIDIA Test", 2**34, "1")
        own = {"threads": 1, "cpu": cpu_host.cpu, "software": cpu_host.software}
        here: dict[str, Any] = {"kind": "cuda", "count": 1, "if_missing": "skip", "missing": None}
        if on_cpu and on_gpu is None:
            here["missing"] = "none is here"
        host = GpuTarget(**own, **here, accelerators=() if here["missing"] else (gpu,))
        monkeypatch.setattr(ask_module, "fingerprint", lambda _: (cpu_host, host))
        runs = {kind: run for kind, run in (("cuda", on_gpu), ("cpu", on_cpu)) if run}

        def either(command: list[str], kind: str, **named: Any) -> Watched:
            if kind in runs:
                return planted(runs[kind], startup_seconds.get(kind, 2.0))
            try:
                return replace(watch(command, kind=kind, **named), load=())  # a quiet machine
            except NoStepsError as error:
                quiet = replace(error.watched, load=())
                raise NoStepsError(str(error), quiet) from None

        monkeypatch.setattr(ask_module, "watch", either)

    return plant


def asked(length: Length | None = None, script: str = "") -> list[Any]:
    Path("train.py").write_text(script, encoding="utf-8")
    command = [warm_python.executable(), "train.py"]
    ask(command, length, Limits(1, 60), AskFiles(Path("a.json")))
    answers: list[Any] = json.loads(Path("a.json").read_bytes())
    return answers


def test_a_cpu_on_which_no_step_ends_gives_a_bound(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(process_of([0.001] * 40, "cuda"))
    (answer,) = asked(Length("max_steps", 100_000, "--steps"), STEPPING)
    assert answer["answer"]["answer"] == "Yes"
    line = r"1 ms a step, and no step finished in ([\d.]+) s on the CPU \(([\d,]+)x faster or more"
    words = rf"Yes, use the Test: {line}\)\.\nNext: train on the GPU"
    found = re.search(words, capsys.readouterr().out)
    assert found
    assert 0.1 < int(found[2].replace(",", "")) / (1000 * float(found[1])) < 1.5


def test_a_command_that_fails_on_the_cpu_still_shows_the_gpu_s_step(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(process_of([0.01] * 40, "cuda"))
    with pytest.raises(UserError) as raised:
        asked(script="import torch; torch.cuda.CUDAGraph()")
    assert re.search("on the GPU, then on the CPU, both without stdin", capsys.readouterr().err)
    assert "NVIDIA Test, a step takes 10 ms (40 steps seen)" in str(raised.value)
    assert "train.py:1 needs a GPU: `import torch; torch.cuda.CUDAGraph()`" in str(raised.value)


@pytest.mark.parametrize(
    ("batches", "images", "cpu_seconds", "gpu_seconds"),
    [((20, 80), (64, 64), 8.0, 2.0), ((None, None), (256, 64), 100.0, 25.0)],
    ids=["epochs by batches", "no epochs, compared by samples"],
)
def test_each_run_counts_its_own_steps_of_an_epoch(
    plant: Plant, batches: Any, images: Any, cpu_seconds: float, gpu_seconds: float
) -> None:
    of_devices = zip(batches, ("cuda", "cpu"), strict=True)
    runs = [loading(count, 0.1, device) for count, device in of_devices]
    for process, of_step in zip(runs, images, strict=True):
        process.counts = counts(of_step)
    plant(*runs)
    (answer,) = asked(Length("max_steps", 1000, "--steps"))
    passes = {each["of"]: each for each in answer["answer"]["speedups"]}["epoch"]
    assert passes["cpu_seconds"] == pytest.approx(cpu_seconds)
    assert passes["gpu_seconds"] == pytest.approx(gpu_seconds)


@pytest.mark.parametrize(
    ("gpu_start", "line", "later"),
    [
        (4.0, "longer start-up after 2.3 s of training", ""),
        (2.0, "", ""),
        (60.0, "longer start-up", "the run on the GPU took 60 s and the later run on the CPU 2 s"),
    ],
)
def test_a_start_is_repaid_after_a_time_of_training_however_long_an_epoch_is(
    plant: Plant, capsys: pytest.CaptureFixture[str], gpu_start: float, line: str, later: str
) -> None:
    plant(loading(20, 0.01, "cuda"), loading(20, 0.1, "cpu"), cuda=gpu_start)
    asked()
    shown = capsys.readouterr()
    assert line in shown.out
    assert ("longer start-up" in shown.out) is bool(line)
    assert "no estimates" not in shown.out  # of other GPUs, beside a measured one
    assert later in shown.err
    assert ("the later run" in shown.err) is bool(later)


def test_what_a_run_writes_is_no_part_of_the_script(tmp_path: Path) -> None:
    train, out, config = (tmp_path / name for name in ("train.py", "out.json", "small.yaml"))
    for path in (train, out, config):
        path.write_text("1", encoding="utf-8")
    named = named_files(["python", f"{train} --out {out}", f"--config={config}"])
    assert {*named} == {str(train), str(out), str(config)}
    out.write_text("2", encoding="utf-8")
    assert {*files_of(named, [])} == {str(train), str(config)}


def test_a_record_of_a_rented_gpu_counts_until_the_script_changes(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Length("max_steps", 100_000, "--steps")
    both = process_of([0.001] * 40, "cuda"), process_of([0.2] * 40)
    Path("model.py").write_text("", encoding="utf-8")
    for process in both:
        process.files = [str(Path("model.py").absolute())]
        process.first_steps = first_steps()
    plant(*both)
    asked(steps)
    Path("rented-Test").mkdir()
    Path("a.json").rename("rented-Test/photofinish-answer.json")
    plant(None, process_of([0.1] * 40))
    (answer,) = asked(steps)
    found = [answer["answer"][key] for key in ("answer", "evidence", "gpu")]
    assert found == ["Probably yes", "recorded", "Test"]
    assert answer["answer"]["model"] == "yes, bit for bit (first step)* on a Test"
    assert answer["answer"]["gpu_seconds"]["value"] == pytest.approx(102, rel=0.01)
    Path("model.py").write_text("changed = 1", encoding="utf-8")
    (answer,) = asked(steps)
    assert answer["answer"]["evidence"] != "recorded"
    assert "the script has changed since" in capsys.readouterr().err
    Path("rented-Test/photofinish-answer.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match=r"rented-Test.* remove it"):
        asked(steps)


@pytest.mark.parametrize(
    ("bug", "model"),
    [("pass", "yes, bit for bit (first step)"), ("nn.init.ones_(net.bias)", "weights differ")],
)
def test_runs_are_seeded_and_their_first_steps_compared(
    plant: Plant,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bug: str,
    model: str,
) -> None:
    script = f"""
import os, torch
from torch import nn
net = nn.Linear(3, 1)
if os.environ["CUDA_VISIBLE_DEVICES"]: {bug}
optimizer = torch.optim.SGD(net.parameters())
for _ in range(20):
    optimizer.zero_grad()
    net(torch.randn(8, 3)).square().mean().backward()
    optimizer.step()
"""
    plant(None)
    monkeypatch.setattr(Process, "used_accelerator", True)  # as if it were one
    Path("train.py").write_text(script, encoding="utf-8")
    command = [warm_python.executable(), "train.py"]
    ask_command(command, None, Limits(60, 60), Comparing())
    shown = capsys.readouterr()
    assert re.search(f"Same model: .*{re.escape(model)}", shown.out)
    assert "Seeding" in shown.err


@pytest.mark.parametrize("gpu_seconds", [0.01, 1.0])
def test_lines_that_stall_a_gpu_are_shown_if_the_answer_names_one(
    gpu_seconds: float, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    on_cpu = process_of([0.1] * 40)
    on_cpu.add({"kind": "stalls", "value": [[f"{Path.cwd() / 'train.py'}", 3, "item"]]})
    on_cpu.add({"kind": "step_parts", "value": {"forward": 0.02, "backward": 0.06}})
    plant(process_of([gpu_seconds] * 40, "cuda"), on_cpu)
    command, length = [warm_python.executable(), "train.py"], Length("max_steps", 1000, "--steps")
    (answer,), _ = ask_command(command, length, Limits(1, 60), Comparing())
    shown = capsys.readouterr().out
    report = text_of(sentences.verdict(answer.record))
    assert "train.py:3 calls `item`" in report
    assert "\ntrain.py:3 calls `item` in every step" in shown
    assert re.search("one step on .*, 100 ms: █+forward 20% █+backward 60% █+rest 20%", shown)


def first_steps(**changed: Any) -> FirstScriptSteps:
    gradients = {"first": [1.0, 1.0], "last": [1.0, 1.0]}
    usual = {"inputs": [[1.0, 1.0]], "losses": [1.0], "gradients": gradients}
    return FirstScriptSteps.model_validate(usual | {"weights": "same", "draws": False} | changed)


def scaled(first: float, last: float) -> dict[str, Any]:
    return {"gradients": {"first": [first, first], "last": [last, last]}}


@pytest.mark.parametrize(
    ("changed", "precision", "model"),
    [
        ({"losses": [1 + 2**-20]}, "fp32", "yes, within rounding"),
        (scaled(1.0, 1.05), "tf32", "yes, within rounding"),  # which the run on the CPU can't tell
        (scaled(1.0, 1.05), "fp32", "no, the first step differs (last)"),
        (scaled(1.001, 1.001), "fp32", "no, the first step differs (each gradient)"),
        ({"gradients": {}}, "fp32", "no, the first step differs (the number of weights)"),
        ({"inputs": [[2.0, 2.0]]}, "fp32", "can't compare; the first batches differ"),
        ({"weights": "other"}, "fp32", "can't compare; the first weights differ"),
        ({"weights": "other", "seed": 8}, "fp32", "can't compare; call `torch.manual_seed(0)`"),
    ],
)
def test_first_steps_are_the_same_within_the_rounding_of_what_the_gpu_computed(
    plant: Plant, changed: dict[str, Any], precision: str, model: str
) -> None:
    on_gpu, on_cpu = process_of([0.1] * 40, "cuda"), process_of([0.1] * 40)
    on_gpu.counts, on_cpu.counts = counts(8, precision), counts(8, "tf32")
    on_gpu.first_steps, on_cpu.first_steps = first_steps(**changed), first_steps()
    plant(on_gpu, on_cpu)
    (answer,) = asked(Length("max_steps", 1000, "--steps"))
    assert answer["answer"]["model"].startswith(model)


def test_a_script_that_computes_on_the_wrong_device_is_told(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(process_of([0.1] * 40, "cuda"), process_of([0.1] * 40, "cuda"))
    with pytest.raises(UserError, match=r"used cuda in its run on the CPU.* \{device\}"):
        asked()
    plant(process_of([0.1] * 40), process_of([0.1] * 40))
    (answer,) = asked()
    assert list(answer["records"]) == ["cpu"]
    assert "ran on the CPU although this machine has a GPU" in capsys.readouterr().err


def test_what_a_gpu_reserved_and_that_a_script_compiles_are_recorded(plant: Plant) -> None:
    on_gpu, on_cpu = process_of([0.1] * 40, "cuda"), process_of([0.1] * 40)
    on_gpu.add({"kind": "memory", "host_bytes": 1, "device_bytes": 10, "reserved_bytes": 12})
    on_cpu.add({"kind": "compiles", "value": True})
    plant(on_gpu, on_cpu)
    (answer,) = asked(Length("max_steps", 1000, "--steps"))
    there, here = answer["records"]["gpu"], answer["records"]["cpu"]
    assert (there["peak_memory_bytes"], there["peak_reserved_bytes"]) == (10, 12)
    assert here["script"]["compiles"]


def test_what_follows_the_first_batch_before_the_first_step_is_each_devices_own(
    plant: Plant,
) -> None:
    """The CPU downloads for 12 s and the GPU starts in 8 s; then both validate."""
    runs = []
    for device, until_batch, until_step in (("cuda", 8.0, 15.0), ("cpu", 12.0, 300.0)):
        process, seen_at = process_of([0.1] * 40, device), 0.1 - until_step + until_batch
        process.add({"kind": "seen", "batches": 1, "forward_passes": 0, "at": seen_at})
        runs.append(process)
    plant(*runs, cpu=300.0, cuda=15.0)
    (answer,) = asked(Length("max_steps", 100, "--steps"))
    starts = [record["startup_seconds"] for record in answer["records"].values()]
    assert starts == pytest.approx([295.9, 14.9])


def test_a_step_takes_at_least_the_time_since_the_first_batch_or_step() -> None:
    process = Process()
    process.add({"kind": "seen", "batches": 1, "forward_passes": 1, "at": 10.0})
    assert planted(process).least_step_seconds == 30
    assert planted(process_of([4.0, 6.0])).least_step_seconds == 18


@pytest.mark.parametrize(
    ("kind", "gpus", "own", "chosen"),
    [
        ("cpu", (), None, ""),  # which hides each kind
        ("cuda", (0,), None, "0"),
        ("cuda", (0,), "3,1", "3"),
        ("cuda", (1, 2), "5,6,7", "6,7"),
    ],
)
def test_a_run_sees_only_its_gpus(
    kind: str, gpus: tuple[int, ...], own: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "npu", AcceleratorKind("no NPU", hidden_by={"NPU_VISIBLE": "none"}))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if own:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
    with recording(kind, gpus) as (_, variables):
        environment = os.environ | variables
    assert environment["CUDA_VISIBLE_DEVICES"] == chosen
    if kind == "cpu":
        assert (variables["NPU_VISIBLE"], variables["HIP_VISIBLE_DEVICES"]) == ("none", "-1")
    else:
        assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_weights_that_are_offloaded_still_compute_on_the_gpu() -> None:
    process = process_of([0.1] * 4)
    process.add({"kind": "memory", "host_bytes": 1, "device_bytes": 10})
    assert process.used_accelerator


def test_a_compiled_step_never_runs_uncompiled_on_a_gpu() -> None:
    note = Mock()
    facts: Any = {"is_training": True, "is_early": False, "compiles": True, "version": (2, 14)}
    assert SingleSteps(note).step_ended(**facts, is_on_cpu=False)
    assert note.call_args.kwargs["kind"] == "uncounted"


def test_a_script_that_loads_batches_alone_is_not_waited_for_long() -> None:
    process = Process()
    process.add({"kind": "seen", "batches": 500, "forward_passes": 500, "at": 10.0})
    assert not process.steps_by_itself(60.0)
    assert process.steps_by_itself(80.0)


def test_an_autocast_for_cuda_only_counts_for_estimates(
    tmp_path: Path, cpu_host: CpuTarget
) -> None:
    script = """
import photofinish, torch
photofinish.steps([])
for enabled, dtype in (True, torch.bfloat16), (False, torch.float16):
    with torch.autocast("cuda", dtype, enabled):
        torch.nn.Linear(1, 1)(torch.ones(1))
"""
    process, _ = recorded(tmp_path, script)
    record = measured_script("it", planted(process), "cpu", cpu_host)
    assert record.script
    assert record.script.precision == "bf16"


ON_ANOTHER = """
import photofinish
photofinish.steps([])
import torch
here = torch.nn.Embedding(4, 2)
there = torch.nn.Linear(2, 2, device="meta")
optimizer = torch.optim.SGD([*here.parameters(), *there.parameters()])
for _ in torch.utils.data.DataLoader(torch.ones(160), 4):
    there(torch.ones(4, 2, device="meta")).sum().backward()
    optimizer.step()
print("ended")
"""

WITHOUT_TIMES = """
import torch
def elapsed_time(*_):
    raise NotImplementedError("no times")
Event = type("Event", (), {"record": print, "elapsed_time": elapsed_time})
torch.Event = lambda *_, **__: Event()
torch.accelerator.current_stream = torch.accelerator.synchronize = str
"""


@pytest.mark.parametrize("begin", ["import torch\n", WITHOUT_TIMES])
def test_an_accelerator_without_a_clock_ends_no_script(tmp_path: Path, begin: str) -> None:
    """Nor does a first weight on the CPU, such as an offloaded embedding's, hide it."""
    process, printed = recorded(tmp_path, ON_ANOTHER.replace("import torch\n", begin))
    assert printed.endswith("ended\n")
    assert process.device == "meta"
    assert process.taken_steps == 40
    assert process.step_parts == {}  # which would be times until the device is given its work
    assert process.unseen == "trains on meta with a torch that can't time it"  # nor are steps
