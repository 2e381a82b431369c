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
from result_files import text_of
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
    first = process.first_step_at or 0.0
    return Watched(
        "python train.py", process, process.figures(), first - startup_seconds, 40.0, 0.0, (), None
    )


def loading(batches: float, step_seconds: float, device: str) -> Process:
    process = process_of([step_seconds] * 40, device, loader=0, batches=1)
    process.loaders[0] = Loader(batches, 0)
    return process


@pytest.fixture
def plant(cpu_host: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Plant the runs on a GPU and, if wanted, on the CPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

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


def test_each_run_counts_its_own_steps_of_an_epoch(plant: Plant) -> None:
    plant(loading(20, 0.1, "cuda"), loading(80, 0.1, "cpu"))
    (answer,) = asked(Length("epochs", 10, "--epochs"))
    passes = {each["of"]: each for each in answer["answer"]["speedups"]}["epoch"]
    assert (passes["cpu_seconds"], passes["gpu_seconds"]) == pytest.approx((8.0, 2.0))


@pytest.mark.parametrize(
    ("gpu_start", "line"), [(4.0, "longer start-up after 2.3 s of training"), (2.0, "")]
)
def test_a_start_is_repaid_after_a_time_of_training_however_long_an_epoch_is(
    plant: Plant, capsys: pytest.CaptureFixture[str], gpu_start: float, line: str
) -> None:
    plant(loading(20, 0.01, "cuda"), loading(20, 0.1, "cpu"), cuda=gpu_start)
    asked()
    out = capsys.readouterr().out
    assert line in out
    assert ("longer start-up" in out) is bool(line)
    assert "no estimates" not in out  # of other GPUs, beside a measured one


def test_a_longer_start_up_of_the_gpus_run_which_is_first_is_said(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(loading(20, 0.01, "cuda"), loading(20, 0.1, "cpu"), cuda=60.0)
    asked()
    err = capsys.readouterr().err
    assert "the run on the GPU took 60 s and the later run on the CPU 2 s" in err


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
        step = {"losses": [1.0], "gradients": {"weight": [1.0, 1.0]}}
        first = {"inputs": [[1.0, 1.0]], "weights": "same", "draws": False, **step}
        process.first_steps = FirstScriptSteps.model_validate(first)
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


def test_runs_are_seeded_and_their_first_steps_compared(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """
import torch
net = torch.nn.Linear(3, 1)
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
    assert "Same model: yes, bit for bit (first step)" in shown.out
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


def counts(images: int, precision: str = "fp32") -> dict[str, Any]:
    return {
        "operations": {"images": images} | dict.fromkeys(
            ("flops", "kernels", "convolutions", "time_steps", "saved_tensor_bytes",
             "fixed_bytes", "peak_allocated_bytes", "peak_reserved_bytes"), 0,
        ) | {"without_formula": [], "in_double": False},
        "precision": precision, "parameter_count": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("precision", "same"), [("tf32", "yes"), ("fp32", "no")])
def test_a_gpu_without_tf32_has_the_limits_of_fp32(plant: Plant, precision: str, same: str) -> None:
    """PyTorch's flags allow it, which the run on the CPU can't tell."""
    runs = []
    for device, gradient, of_run in (("cuda", 1.05, precision), ("cpu", 1.0, "tf32")):
        process = process_of([0.1] * 40, device)
        process.counts = counts(8, of_run)
        gradients = {"first": [1.0, 1.0], "last": [gradient, gradient]}
        step = {"inputs": [[1.0, 1.0]], "losses": [1.0], "gradients": gradients}
        process.first_steps = FirstScriptSteps.model_validate(
            {"weights": "same", "draws": False, **step}
        )
        runs.append(process)
    plant(*runs)
    (answer,) = asked(Length("max_steps", 1000, "--steps"))
    assert answer["answer"]["model"].startswith(same)


def test_what_a_gpu_reserved_and_that_a_script_compiles_are_recorded(plant: Plant) -> None:
    on_gpu, on_cpu = process_of([0.1] * 40, "cuda"), process_of([0.1] * 40)
    on_gpu.add({"kind": "memory", "host_bytes": 1, "device_bytes": 10, "reserved_bytes": 12})
    on_cpu.add({"kind": "compiles", "value": True})
    plant(on_gpu, on_cpu)
    (answer,) = asked(Length("max_steps", 1000, "--steps"))
    there, here = answer["records"]["gpu"], answer["records"]["cpu"]
    assert (there["peak_memory_bytes"], there["peak_reserved_bytes"]) == (10, 12)
    assert here["script"]["compiles"]


def test_steps_without_epochs_are_compared_by_their_samples(plant: Plant) -> None:
    runs = [process_of([0.1] * 40, device, loader=0, batches=1) for device in ("cuda", "cpu")]
    for process, images in zip(runs, (256, 64), strict=True):
        process.loaders[0] = Loader(None, 0)
        process.counts = counts(images)
    plant(*runs)
    (answer,) = asked(Length("max_steps", 1000, "--steps"))
    passes = {each["of"]: each for each in answer["answer"]["speedups"]}["epoch"]
    assert (passes["cpu_seconds"], passes["gpu_seconds"]) == pytest.approx((100.0, 25.0))


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
        ("cpu", (), None, ""),
        ("cuda", (0,), None, "0"),
        ("cuda", (0,), "3,1", "3"),
        ("cuda", (1, 2), "5,6,7", "6,7"),
    ],
)
def test_a_run_sees_only_its_gpus(
    kind: str, gpus: tuple[int, ...], own: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if own:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
    with recording(kind, gpus) as (_, variables):
        environment = os.environ | variables
    assert environment["CUDA_VISIBLE_DEVICES"] == chosen
    assert kind == "cpu" or environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_run_on_the_cpu_hides_each_kind_of_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "npu", AcceleratorKind("no NPU", hidden_by={"NPU_VISIBLE": "none"}))
    with recording("cpu") as (_, variables):
        assert variables["NPU_VISIBLE"] == "none"
        assert (variables["CUDA_VISIBLE_DEVICES"], variables["HIP_VISIBLE_DEVICES"]) == ("", "-1")


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
