"""`photofinish ask`: what it says of commands and options that give no answer or half of one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import warm_python
from watched_scripts import in_epochs

from photofinish.commands.ask import ask
from photofinish.commands.cli import main
from photofinish.commands.rent import rent
from photofinish.errors import UserError
from photofinish.inside.lengths import lengths_in_command
from photofinish.machine.load import load_warnings
from photofinish.reporting.ask_lines import AskFiles
from photofinish.scripts import run_script
from photofinish.scripts.run_script import Limits
from photofinish.scripts.script_lines import Length, Process, WatchedScript

LIMITS = Limits(60, 60)


def _refusal(script: str, python: str = sys.executable) -> str:
    """Return the error of asking for a script."""
    Path("train.py").write_text(script, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        ask([python, "train.py"], None, LIMITS, AskFiles())
    return str(raised.value)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_script, "_POLL_SECONDS", 0.1)


def test_a_fixed_cuda_device_means_the_cpu_and_another_error_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for code, is_mapped in (("torch.ones(1).cuda()", True), ("torch.nope", False)):
        _refusal(f"import torch; {code}", warm_python.executable())
        said = "train.py:1 needs a GPU, and none is here. Running the script again, with cuda"
        assert (said in capsys.readouterr().err) is is_mapped


def _refusal_on_cuda(script: str) -> str:
    Path("train.py").write_text(f"import os, torch; {script}", encoding="utf-8")
    with pytest.raises(UserError) as raised:
        run_script.watch([warm_python.executable(), "train.py"], kind="cuda", limits=LIMITS)
    return str(raised.value)


@pytest.mark.parametrize(("chosen", "shown"), [("", ["0", "0,1"]), ("5", ["5", "5"])])
def test_a_command_is_shown_a_gpu_for_each_of_its_processes(
    chosen: str, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"CUDA_VISIBLE_DEVICES": chosen, "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    prints = "print(os.environ['CUDA_VISIBLE_DEVICES'], file=open('shown', 'a')); exit(1)"
    assert "2 processes. With fewer GPUs: --nproc-per-node 1" in _refusal_on_cuda(prints)
    assert Path("shown").read_text(encoding="utf-8").split() == shown


def test_another_gpu_than_the_one_that_is_shown_is_named_with_the_way_to_choose_it() -> None:
    refusal = _refusal_on_cuda("raise RuntimeError('CUDA error: invalid device ordinal')")
    assert re.search("train.py:1 uses a GPU .* CUDA_VISIBLE_DEVICES=1 chooses another", refusal)


def test_a_launcher_of_two_processes_is_rented_two_gpus() -> None:
    Path("requirements.txt").touch()
    task, commands = rent("T4", [".venv/bin/torchrun", "--nproc_per_node=2", "train.py"])
    assert "accelerators:\n    T4: 2\n" in task
    assert "Asks on 2 T4s" in task
    assert "-- torchrun --nproc_per_node=2 train.py" in commands


def test_libraries_that_train_without_torch_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jax", "sklearn"):
        Path(f"{name}.py").touch()
    assert "imported sklearn but not torch" in _refusal("import sklearn")
    monkeypatch.setattr(run_script, "UNSEEN_SECONDS", 0.5)
    assert "imported jax but not torch" in _refusal("import jax, time; time.sleep(50)")


WITHOUT_GRADIENTS = """
import time, torch
net = torch.nn.Linear(2, 1)
for _ in range(4):
    for weight in net.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    time.sleep(0.3)
"""


def test_steps_that_cannot_be_seen_are_said_while_the_script_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_script, "UNSEEN_SECONDS", 0.5)
    refusal = _refusal(WITHOUT_GRADIENTS, warm_python.executable())
    assert "ended with exit status 0. It took no optimizer step" in refusal
    assert capsys.readouterr().err.count("On the CPU: no optimizer step so far.") == 1


SLEEPS = """
import time, torch
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(1200):
    weight.sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""


def test_the_load_beside_a_script_is_that_of_each_second() -> None:
    Path("train.py").write_text(SLEEPS, encoding="utf-8")
    command = [warm_python.executable(), "train.py"]
    watched = run_script.watch(command, kind="cpu", limits=Limits(3, 60))
    assert watched.status is None
    assert len(watched.load) > 1
    busy = watched.load[0].model_copy(
        update={"wall_seconds": 1.0, "own_cpu_seconds": 0.1, "others_cpu_seconds": 1.9, "cores": 2}
    )
    quiet = busy.model_copy(update={"others_cpu_seconds": 0.0})
    mean = busy.model_copy(update={"others_cpu_seconds": 0.95})
    assert load_warnings([busy, quiet] * 5)
    assert not load_warnings([mean] * 10)  # as one window of all would have it


@pytest.mark.parametrize("trains", ["1.jsonl", "2.jsonl"])
def test_of_processes_without_a_step_the_one_whose_steps_cannot_be_seen_counts(
    tmp_path: Path, trains: str
) -> None:
    for name in ("1.jsonl", "2.jsonl"):
        lines = [{"kind": "has_torch", "value": True}]
        unseen = {"kind": "unseen", "why": "captures steps", "may_be_named": False}
        lines += [unseen] if name == trains else []
        (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    watched = WatchedScript(tmp_path)
    watched.read()
    assert watched.process
    assert watched.process.unseen == "captures steps"


@pytest.mark.parametrize(
    ("code", "moves_nothing"),
    [
        ("loss.backward()\nnet.train_on(samples, json.dumps(inputs))", True),
        ("loss.backward()\nnet.to(where)", False),
        ("loss.backward()\nnet = net.cuda()", False),
        ("loss.backward()\nx = torch.ones(2, device=there)", False),
        ("loss.backward()\nfrom lightning import Fabric", False),
        ("loss.backward()\nnet.npu()", False),
        ("YOLO('small').train(data)", False),  # the loop of a library
    ],
)
def test_a_script_moves_nothing_if_its_own_loop_has_no_word_of_a_device(
    tmp_path: Path, code: str, moves_nothing: bool
) -> None:
    (tmp_path / "train.py").write_text(code)
    process = Process()
    process.add({"kind": "files", "value": [str(tmp_path / "train.py"), str(tmp_path / "gone.py")]})
    assert process.moves_nothing == moves_nothing


def test_a_script_gets_our_input_if_it_runs_once() -> None:
    script = "import torch; print(int(input()) / 0)"
    Path("train.py").write_text(script, encoding="utf-8")
    python = warm_python.executable()
    command = [python, "-m", "photofinish", "ask", python, "train.py"]
    ended = subprocess.run(command, input="7\n", capture_output=True, text=True, check=False)
    assert "ZeroDivisionError" in ended.stderr


def test_a_question_that_nobody_sees_ends_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Mock(isatty=lambda: True))
    assert "EOFError" in _refusal("input('Continue?')")


def test_the_end_of_a_long_output_is_kept_and_shown_and_no_file_has_it_all() -> None:
    refusal = _refusal("""
import os, sys
print("begun")
print(5_000_000 * "x", flush=True)
folder = os.environ["PHOTOFINISH_RECORDS"]
print(sum(file.stat().st_size for file in os.scandir(folder)), "bytes are there")
sys.exit("failed")
""")
    assert "failed\nthe command ended with exit status 1" in refusal
    assert "begun" not in refusal
    assert len(refusal) < 70_000
    found = re.search(r"(\d+) bytes are there", refusal)
    assert found
    assert int(found[1]) < 100_000


@pytest.mark.parametrize("value", ["0", "-3", "nan", "inf", "many"])
@pytest.mark.parametrize("option", ["--epochs", "--steps", "--seconds", "--patience"])
def test_a_length_is_a_number_above_0(
    option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["photofinish", "ask", f"{option}={value}", "python"])
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 2
    assert f"argument {option}: {value} isn't a positive number\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "hint"),
    [
        ("raise OSError", "before an import of torch was seen."),
        ("import torch", "Use the Python that has torch"),
    ],
)
def test_a_script_that_fails_early_gets_the_hint_about_torch_only_if_torch_is_missing(
    script: str, hint: str
) -> None:
    Path("torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    assert hint in _refusal(script).splitlines()[-1]
    with pytest.raises(UserError, match=r"status 2, before an import of torch was seen\.$"):
        ask([sys.executable, "missing.py"], None, LIMITS, AskFiles())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--epoch 7", "7 --epoch"),
        ("--steps 4", "4 --steps"),
        ("--epochs=3 --lr 0.1", "3 --epochs"),
        ("--max_steps 10 --epochs 3", "10 --max_steps"),
        ("--num-epochs 2", "2 --num-epochs"),
        ("--epoch 5 --n_epochs 200", "200 --n_epochs"),
        ("trainer.max_epochs=9", "9 trainer.max_epochs"),
        ("--epochs many --steps -1 --steps-per-epoch 4 epochs 4", ""),
    ],
)
def test_the_command_line_has_the_length(words: str, expected: str) -> None:
    for command in (["python", "train.py", *words.split()], ["/bin/sh", "-c", f"train {words}"]):
        process = Process()
        process.on_command_line += [Length(*found) for found in lengths_in_command(command)]
        length = process.length
        assert (f"{length.value:g} {length.by}" if length else "") == expected


def test_the_first_line_has_the_length_or_the_option_that_gives_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One script runs. Then other lengths stand for those on its command line."""
    script = """
import torch, time
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight])
while True:
    weight.square().sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""
    Path("train.py").write_text(script, encoding="utf-8")
    command = [warm_python.executable(), "train.py", "--epoch", "7"]
    watched = run_script.watch(command, kind="cpu", limits=Limits(0.5, 60))
    monkeypatch.setattr("photofinish.commands.ask.watch", lambda *_, **__: watched)
    assert watched.process
    for on_command_line, wanted, line in (
        (watched.process.on_command_line, None, r"7 epochs \(--epoch\).*--steps"),
        ([], Length("epochs", 90, "--epochs"), r"90 epochs \(--epochs\).*--steps"),
        ([], None, r"Couldn't find how long.*--steps"),
        ([Length("max_steps", 9999, "--steps")], None, r"^9,999 steps \(--steps\)"),
        ([Length("max_steps", 9999, "n", may_stop=True)], None, r"^up to 9,999 steps \(n\)"),
        ([Length("epochs", 9, "n", may_stop=True)], None, r"its up to 9 epochs \(n\)"),
    ):
        watched.process.on_command_line = on_command_line
        ask(command, wanted, LIMITS, AskFiles())
        first = capsys.readouterr().out.strip().splitlines()[0]
        assert re.search(line, first)


def test_a_sample_that_ended_by_itself_is_not_asked_for_fewer_seconds_than_it_had(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its epochs take 1 s and 2 s in turn, 10 s in all."""
    process = in_epochs([0.05 + 0.05 * (step // 20 % 2) for step in range(140)])
    seen = process, process.figures()
    watched = run_script.Watched("python train.py", *seen, 0.0, 10.0, 1.7e9, (), None)
    monkeypatch.setattr("photofinish.commands.ask.watch", lambda *_, **__: watched)
    for allowed_seconds in (60.0, 10.0):
        limits = Limits(allowed_seconds, 60.0)
        ask(["python", "train.py"], Length("epochs", 1000, "--epochs"), limits, AskFiles())
        wanted = re.findall(r"--seconds (\d+)", capsys.readouterr().out)
        assert wanted == ([] if allowed_seconds == 60.0 else ["30"])


def test_a_script_without_its_program_is_named_with_it() -> None:
    for program, script in (("python", "train.py"), ("bash", "./train.sh")):
        with pytest.raises(UserError, match=rf"can't run {script}: .*\. Write {program} {script}"):
            run_script.watch([script], kind="cpu", limits=LIMITS)
