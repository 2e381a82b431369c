"""The recorder in a script's process: without photofinish, without a GPU, without an optimizer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import warm_python
from conftest import ROOT, run_command
from watched_scripts import figures_of, recorded

from photofinish.errors import UserError
from photofinish.inside.hooks import MAPS_CUDA
from photofinish.inside.recorder_files import LineFile
from photofinish.scripts.run_script import Limits, Watched, recording, watch
from photofinish.scripts.script_lines import Process, WatchedScript
from photofinish.scripts.script_record import jobs

BLOCKED = """
import sys
for name in ("photofinish", "pydantic", "numpy", "psutil", "filelock"):
    sys.modules[name] = None  # then its import fails
"""
TRAINS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
data = TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def train(loader):
    net.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        seen = loss.item()
def validate():
    net.eval()
    with torch.no_grad():
        for _ in range(20):
            net(data.tensors[0])
"""


def recorded_alone(folder: Path, script: str, python: str = sys.executable) -> Process:
    """Return what a process recorded that can import nothing but torch."""
    (folder / "train.py").write_text(TRAINS + script, encoding="utf-8")
    with recording("cpu") as (lines, variables):
        sitecustomize = lines / "sitecustomize.py"
        sitecustomize.write_text(BLOCKED + sitecustomize.read_text(encoding="utf-8"))
        environment = os.environ | variables
        run_command([python, "train.py"], folder, environment)
        watched = WatchedScript(lines)
        watched.read()
    assert watched.process
    return watched.process


EPOCHS = """
for epoch in range(6):
    optimizer.param_groups[0]["params"][0].requires_grad_(epoch > 1)  # a frozen weight
    train(DataLoader(data, batch_size=8))
    validate()
"""


def test_a_script_without_our_packages_is_recorded_and_counted(tmp_path: Path) -> None:
    for name in ("parts.py", "small.yaml", "written.yaml"):
        (tmp_path / name).touch()
    files = "import os, parts\nopen('small.yaml').close()\nopen('written.yaml', 'w').close()\n"
    process = recorded_alone(tmp_path, f"{files}os.chdir('..')\n{EPOCHS}")
    figures = figures_of(process)
    assert (figures.steps, figures.epochs, figures.longest_epoch_steps) == (48, 6, 8)
    assert [part.holds for part in figures.parts].count("start") >= 2  # one may be counted
    assert process.counts
    assert process.counts["operations"]["images"] == 8
    of_all_weights = 2 * 8 * (2 * 4 * 8 + 3 * 8 * 2)
    assert process.counts["operations"]["flops"] == of_all_weights
    assert [what for _, _, what in process.stalls] == ["item"]
    assert [Path(file).name for file in process.files] == ["parts.py", "small.yaml", "train.py"]
    assert min(process.step_parts.values()) > 0
    assert process.peak_bytes["host_bytes"]
    assert 0 < figures.validation_step_seconds < 20 * figures.step_seconds


COMPILES = """
import sys
del sys.modules["filelock"]  # PyTorch's compiler needs it
net = torch.compile(net, backend="eager")
"""


@pytest.mark.parametrize(
    ("version", "begin", "uncounted", "unseen"),
    [
        ((2, 1), "", "from torch 2.2 on", None),
        ((2, 5), COMPILES, "from torch 2.6 on", None),
        ((2, 2), COMPILES, "", "torch.compile"),
    ],
)
def test_a_script_with_an_older_torch_runs_and_what_is_not_seen_of_it_has_a_reason(
    tmp_path: Path, version: tuple[int, int], begin: str, uncounted: str, unseen: str | None
) -> None:
    older = f"import _photofinish.hooks\n_photofinish.hooks.start().torch_version = {version}\n"
    process = recorded_alone(tmp_path, f"{older}{begin}{EPOCHS}", warm_python.executable())
    assert figures_of(process).steps == 48
    assert uncounted in (process.uncounted or "")
    assert (unseen or "") in (process.unseen or "")
    assert bool(process.unseen) == bool(unseen)


FOLDS = """
torch.autocast("cpu", torch.bfloat16, True, False)
def fit(weights):
    global optimizer
    optimizer = torch.optim.SGD(weights, 0.1)
    for epoch in range(2):
        train(DataLoader(data, batch_size=8))
    del optimizer  # a later one may have its address
for fold in range(3):
    net = nn.Linear(4, 2)
    fit([net.bias])
    fit(net.parameters())
"""
HEAD_THEN_ALL = """
all_weights, optimizer = optimizer, torch.optim.SGD(net[2].parameters(), 0.1)
train(DataLoader(data, batch_size=8))
optimizer = all_weights
for epoch in range(3):
    train(DataLoader(data, batch_size=8))
"""
CUT = """
import os, tempfile
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)  # which is gone when the first step is taken
for epoch in range(3):
    for batch, (x, y) in enumerate(DataLoader(data, batch_size=8)):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        if batch == 3:
            break
    validate()
"""
PARTS = """
from torch.utils.data import SubsetRandomSampler
for epoch in range(3):
    train(DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(range(48))))
    net.eval()
    with torch.no_grad():
        for x, _ in DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(range(48, 64))):
            net(x)
"""
FORK = """
class WithoutLength(torch.utils.data.SequentialSampler):
    def __len__(self):
        raise NotImplementedError
def main():
    others = DataLoader(data, batch_size=8, sampler=WithoutLength(data))
    for epoch in range(3):
        for (x, y), (other, _) in zip(DataLoader(data, batch_size=8), others):
            optimizer.zero_grad()
            (net(x).sum() + net(other).sum()).backward()
            optimizer.step()
import multiprocessing
fork = multiprocessing.get_context("fork").Process(target=main)
fork.start()
fork.join()
"""
MANY = """
import copy
nets = [copy.deepcopy(net) for _ in range(30)]
optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in nets]
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=8):
        for net, optimizer in zip(nets, optimizers):
            net(x).sum().backward()
            optimizer.step()
"""
IN_BACKWARD = """
optimizers = {each: torch.optim.SGD([each], 0.1) for each in net.parameters()}
def step(weight):
    optimizers[weight].step()
    weight.grad = None
for each in net.parameters():
    each.register_post_accumulate_grad_hook(step)
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=8):
        net(x).sum().backward()
"""


TRAININGS = {
    "folds": (FOLDS, 3 * 2 * 2 * 8, 8),
    "a head, then all": (HEAD_THEN_ALL, 4 * 8, 8),
    "cut short": (CUT, 3 * 4, 4),
    "parts of one data set": (PARTS, 3 * 6, 6),
    "a fork": (FORK, 3 * 8, 8),
    "many": (MANY, 3 * 8, 8),
    "in backward": (IN_BACKWARD, 3 * 8, 8),
}


@pytest.mark.parametrize(("script", "steps", "epoch_steps"), TRAININGS.values(), ids=TRAININGS)
def test_all_trainings_count_and_an_epoch_is_as_long_as_it_was(
    tmp_path: Path, script: str, steps: int, epoch_steps: int
) -> None:
    process = recorded_alone(tmp_path, script, warm_python.executable())
    figures = figures_of(process)
    assert figures.steps == steps
    assert bool(process.uncounted) == (script is IN_BACKWARD)
    assert len(process.steps) > 1 or script in (CUT, PARTS, FORK)
    assert process.counts or script in (HEAD_THEN_ALL, CUT, IN_BACKWARD)
    assert figures.longest_epoch_steps == epoch_steps
    run = Watched("train", process, figures, -9.0, figures.last_step_at, 1.7e9, (), 0)
    (job,) = jobs([run], None)
    assert (job.epochs, job.epoch_steps) == (steps / epoch_steps, epoch_steps)


SPAWNS = """
from torch import distributed, multiprocessing
def run(rank, store):
    global net
    distributed.init_process_group("gloo", store, rank=rank, world_size=2)
    alone, net = net, nn.parallel.DistributedDataParallel(net)
    for epoch in range(3):
        train(DataLoader(data, batch_size=8))
    distributed.destroy_process_group()
    net = alone
    for epoch in range(rank):
        train(DataLoader(data, batch_size=8))
if __name__ == "__main__":
    multiprocessing.spawn(run, ("file://STORE",), nprocs=2)
"""


def test_of_processes_that_a_script_joins_only_the_first_is_recorded(tmp_path: Path) -> None:
    script = SPAWNS.replace("STORE", str(tmp_path / "store"))
    process = recorded_alone(tmp_path, script, sys.executable)
    assert (process.ranks, figures_of(process).steps) == (2, 3 * 8)
    assert process.counts
    assert process.counts["operations"]["without_formula"] == []


def test_a_processs_lines_are_no_program(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        LineFile(tmp_path).note(kind="has_torch", value=True)
    finally:
        os.umask(before)
    (lines,) = tmp_path.iterdir()
    assert oct(lines.stat().st_mode & 0o777) == "0o666"


# -- scripts that insist on CUDA, and scripts without an optimizer ----------

SPELLINGS = {
    "x.cuda().cuda(0).cuda(non_blocking=True).cuda(device='cuda:0').pin_memory()": "x",
    "x.to('cuda').to(0).to(device='cuda', non_blocking=True).to(torch.device('cuda'))": "x",
    "x.to('cuda:0', torch.float64)": "x.to(torch.float64)",
    "x.to(torch.float16)": "x.half()",
    "x.to(other)": "x.double()",
    "x.type(torch.cuda.DoubleTensor)": "x.double()",
    "x.type('torch.cuda.DoubleTensor')": "x.double()",
    "x.new_zeros(2, device='cuda')": "torch.zeros(2)",
    "x.new_tensor([1.0], device='cuda:0')": "torch.ones(1)",
    "net.cuda()(x)": "net(x)",
    "net.to('cuda').to(device=torch.device('cuda', 0))(x)": "net(x)",
    "nn.Linear(2, 3, device='cuda').weight * 0": "torch.zeros(3, 2)",
    "nn.DataParallel(net, device_ids=[0])(x)": "net(x)",
    "nn.Sequential(net).cuda(0)(x)": "net(x)",
    "torch.zeros(2, device='cuda', pin_memory=True)": "torch.zeros(2)",
    "torch.ones_like(x, device='cuda')": "torch.ones_like(x)",
    "torch.tensor([1.0], device=torch.device('cuda'))": "torch.ones(1)",
    "torch.arange(3, device='cuda:0')": "torch.arange(3)",
    "torch.full((2,), 5, device=0)": "torch.full((2,), 5)",
    "torch.normal(0.0, 0.0, (2,), device='cuda')": "torch.zeros(2)",
    "torch.cuda.FloatTensor([1.0])": "torch.ones(1)",
    "seeded(torch.Generator(device='cuda'))": "seeded(torch.Generator())",
    "str(torch.device('cuda:0'))": "'cpu'",
    "isinstance(x.device, torch.device)": "True",
    "within(torch.device('cuda'))": "torch.ones(1)",
    "within(torch.cuda.device(0))": "torch.ones(1)",
    "within(torch.cuda.stream(torch.cuda.Stream()))": "torch.ones(1)",
    "within(torch.autocast('cuda'))": "torch.ones(1)",
    "by_default(torch.set_default_device, 'cuda')": "torch.ones(1)",
    "by_default(torch.set_default_tensor_type, 'torch.cuda.FloatTensor')": "torch.ones(1)",
    "torch.load(saved(), map_location='cuda')": "x",
    "torch.load(f=saved(), map_location=torch.device('cuda'))": "x",
    "torch.load(saved(), map_location=lambda storage, _: storage.cuda())": "x",
    "torch.load(saved({'at': torch.device('cuda')}), weights_only=False)['at'].type": "'cpu'",
    "[torch.cuda.synchronize(), torch.cuda.set_device(0)]": "[None, None]",
    "[torch.cuda.empty_cache(), torch.cuda.reset_peak_memory_stats()]": "[None, None]",
    "torch.cuda.manual_seed_all(0)": "None",
    "torch.cuda.max_memory_allocated()": "0",
    "torch.cuda.get_device_properties(0).total_memory": "1",
    "torch.cuda.memory_stats()['allocated_bytes.all.peak']": "0",
    "torch.cuda.get_rng_state(0).shape": "torch.get_rng_state().shape",
    "torch.cuda.get_device_name(0)": "'CPU'",
    "5 % torch.cuda.device_count()": "0",
    "compiled(lambda y: torch.zeros(2, device='cuda') + y.to(y.device))": "x",
    "timed() >= 0": "True",
    "torch.cuda.is_available()": "False",
    "torch.cuda.amp.GradScaler().is_enabled()": "False",
}
"""Expressions, each with what it is by hand."""
GIVEN = """
import io, json, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {source!r})
import torch
from torch import nn
from photofinish.inside.without_gpu import map_cuda_to_the_cpu

torch.manual_seed(0)
x, other, net = torch.randn(2), torch.ones(1, dtype=torch.float64), nn.Linear(2, 3)

def seeded(generator):
    return torch.randn(2, generator=generator.manual_seed(1))

def within(context):
    with context:
        return torch.ones(1)

def by_default(set_default, place):
    set_default(place)
    made = torch.ones(1)
    set_default("cpu" if place == "cuda" else "torch.FloatTensor")
    return made

def saved(value=None):
    file = io.BytesIO()
    torch.save(x if value is None else value, file)
    file.seek(0)
    return file

def timed():
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record(), end.record(), torch.cuda.current_stream().wait_event(end)
    return begin.elapsed_time(end)

def compiled(function):  # at the first call, torch.compile looks at all functions of torch.cuda
    return torch.compile(function, backend="eager", fullgraph=True)(x)

def value(code):
    made = eval(code)
    return [str(made.dtype), made.tolist()] if isinstance(made, torch.Tensor) else made

by_hand = [value(each) for each in {by_hand!r}]
map_cuda_to_the_cpu(torch)
print(json.dumps([[value(each) for each in {spelled!r}], by_hand]))
"""
TRAIN = """
import torch
from torch import nn
{check}
net = nn.Linear(8, 4){move}
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(3):
    for x, y in torch.utils.data.DataLoader([(torch.ones(8), 1)] * 64, 8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x{move}), y{move}).backward()
        optimizer.step()
"""
START = "from photofinish.inside.hooks import start; start()\n"
BY_HAND = """
import torch
from torch import nn
from torch.nn import functional

data = [(torch.randn(8, 6), torch.randint(4, (8,))) for _ in range(20)]
net = nn.Linear(6, 4)
named = {"w": torch.randn(6, 4, requires_grad=True), "b": torch.zeros(4, requires_grad=True)}

class Sgd:
    def step(self):
        with torch.no_grad():
            for weight in net.parameters():
                weight -= 0.1 * weight.grad
                weight.grad = None

own = Sgd()
def loss_of(weights, x, y):
    return functional.cross_entropy(x @ weights["w"] + weights["b"], y)
gradients_of = torch.func.grad(loss_of)

for epoch in range(3):
    for x, y in data:
"""
UPDATES = {
    """
        functional.cross_entropy(net(x), y).backward()
        for weight in net.parameters():
            weight.data.add_(weight.grad, alpha=-0.1)
        net.zero_grad()
""": 10,
    """
        (loss := loss_of(named, x, y)).backward()
        with torch.no_grad():
            for weight in named.values():
                weight -= 0.1 * weight.grad
                weight.grad.zero_()
        loss.item()
""": 18,
    """
        gradients = gradients_of(named, x, y)
        named = {name: weight - 0.1 * gradients[name] for name, weight in named.items()}
""": None,
    """
        functional.cross_entropy(net(x), y).backward()
        net(x).square().mean().backward()
        own.step()
""": 24,
    """
        gradients = torch.autograd.grad(loss_of(named, x, y), named.values())
        pairs = zip(named.items(), gradients)
        named = {key: (value - 0.1 * g).detach().requires_grad_() for (key, value), g in pairs}
""": 13,
}
"""Updates of weights by hand, each with the operations that a step launches."""


def test_each_spelling_of_cuda_does_what_it_does_by_hand_on_the_cpu(tmp_path: Path) -> None:
    texts = {"by_hand": [*SPELLINGS.values()], "spelled": [*SPELLINGS]}
    (tmp_path / "mine.py").write_text(GIVEN.format(source=str(ROOT / "src"), **texts), "utf-8")
    ran = run_command([warm_python.executable(), "mine.py"], tmp_path)
    spelled, by_hand = json.loads(ran.stdout)
    assert dict(zip(SPELLINGS, spelled, strict=True)) == dict(zip(SPELLINGS, by_hand, strict=True))


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, **parts: str) -> Any:
    monkeypatch.chdir(folder)
    Path("train.py").write_text(TRAIN.format(**({"check": "", "move": ""} | parts)), "utf-8")
    return watch([warm_python.executable(), "train.py"], kind="cpu", limits=Limits(60.0, 60.0))


@pytest.mark.parametrize(
    ("move", "at"),
    [(".cuda()", "train.py:5"), (".to(0 % torch.cuda.device_count())", "train.py:5"), ("", "")],
)
def test_only_a_script_that_fails_without_a_gpu_runs_with_cuda_meaning_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: str, at: str
) -> None:
    run = watched(tmp_path, monkeypatch, move=move)
    assert (run.cuda_at, run.status) == (at, 0)
    assert run.figures.steps == 24


def test_a_move_is_named_as_the_source_has_it(tmp_path: Path) -> None:
    moves = "\n        torch.ones(3).cuda()\n        torch.ones(3).to('cuda')\n"
    script = START + TRAIN.format(check="", move=".cuda()") + moves
    process, _ = recorded(tmp_path, script, **{MAPS_CUDA: "mine.py:5"})
    assert [what for _, _, what in process.stalls] == ["cuda", "to"]


@pytest.mark.parametrize(
    ("check", "remedy"),
    [
        ("if not torch.cuda.is_available(): raise ValueError", "Remove"),
        ("torch.cuda.CUDAGraph()", "Nothing on"),
    ],
)
def test_what_nothing_on_the_cpu_stands_in_for_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str, remedy: str
) -> None:
    with pytest.raises(UserError) as raised:
        watched(tmp_path, monkeypatch, check=check)
    assert f"train.py:4 needs a GPU: `{check}`. {remedy}" in str(raised.value)


@pytest.mark.parametrize(("update", "kernels"), UPDATES.items())
def test_a_training_that_updates_its_weights_by_hand_has_steps_a_length_and_operations(
    tmp_path: Path, update: str, kernels: int | None
) -> None:
    process, _ = recorded(tmp_path, START + BY_HAND + update)
    assert figures_of(process).steps == 60 - 2  # those before its line is known
    assert [(each.name, each.value) for each in process.by_loops.values()] == [("max_steps", 60)]
    # torch.func allows no hooks, by which operations are counted.
    assert (process.counts["operations"]["kernels"] if process.counts else None) == kernels
    assert [what for _, _, what in process.stalls] == ["item"] * (".item()" in update)


def test_gradients_in_a_graph_that_may_not_break_are_left_to_the_compiler(tmp_path: Path) -> None:
    compiled = """
        compiled = torch.compile(gradients_of, fullgraph=True, backend="eager")
        print(torch.equal(compiled(named, x, y)["w"], gradients_of(named, x, y)["w"]))
"""
    process, printed = recorded(tmp_path, START + BY_HAND + next(iter(UPDATES)) + compiled)
    assert figures_of(process).steps == 60 - 2
    assert printed.split() == ["True"] * 60


def test_a_script_with_an_optimizer_is_left_alone_even_after_gradients_without_one(
    tmp_path: Path,
) -> None:
    watched = ["torch.Tensor.backward", "torch.autograd.backward", "torch.func.grad"]
    search = "import torch\nfor _ in range(9):\n    torch.ones(1, requires_grad=True).backward()\n"
    show = f"print([hasattr(eval(each), '__wrapped__') for each in {watched}])"
    process, printed = recorded(tmp_path, START + search + TRAIN.format(check=show, move="") + show)
    assert printed.split("\n")[:2] == [str([True] * 3), str([False] * 3)]
    assert figures_of(process).steps == 24
    assert process.length
    assert (process.length.name, process.length.value) == ("epochs", 3)
    assert process.counts
    assert process.counts["operations"]["flops"] == 2 * 2 * 8 * 8 * 4
