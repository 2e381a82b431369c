"""The line at which most of loading goes, of planted loaders and stacks, and where it is named."""

from __future__ import annotations

import re
import runpy
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import warm_python
from conftest import ROOT, run_command
from outputs import verdict
from torch.utils.data import DataLoader
from watched_scripts import figures_of, process_of, recorded

from photofinish.answer.comparison import compare
from photofinish.config.compare import Comparing
from photofinish.inside.timed_batches import charged, loaded, sample_lines, slowest_line
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results.job import JobPair
from photofinish.results.measured_jobs import job_of_script
from photofinish.scripts.run_script import Watched
from photofinish.scripts.script_record import measured_script

PLANTED = """
import io, math, threading, time
import numpy as np
import torch
from PIL import Image
from torchvision import transforms
lock, file = threading.Lock(), io.BytesIO()
picture = Image.fromarray(np.random.randint(0, 255, (256, 256, 3), np.uint8))
picture.save(file, "JPEG")
np.save("items.npy", np.ones(1 << 20))
sizes = [transforms.Resize((size, size)) for size in (512, 64)]
both = transforms.Compose([*sizes, transforms.ToTensor()])
class Items(list):
    def __getitem__(self, row):
        return self.read(row)
def burn(row):
    return float(row) + sum([math.sqrt(value) for value in range(20_000)])  # burn
def resized(row):
    larger = picture.rotate(row).resize((600, 600), Image.LANCZOS)  # resized: PIL's resize
    return np.asarray(larger).mean()
def read(row):
    items = np.load("items.npy")  # read: numpy's load
    return items[row]
def waits(row):
    with lock:
        time.sleep(0.01)  # waits
    return row
def collate(rows):
    burned = sum(value * value for value in range(50_000))  # collate
    return torch.tensor(rows)
def nested(row):
    def helper(value):
        return sum(map(math.sqrt, range(value, 50_000)))  # nested
    return helper(row) - 1
def comprehension(row):
    return {value: value * value % 7 for value in range(30_000)}[row]  # comprehension
def composed(row):
    tensor = both(picture)  # composed: torchvision's resize
    return tensor[0, 0, row]
def looped(row):
    return third(row) + 1
def third(row):
    total = 0.0
    for value in range(500):
        total += math.fsum([value, *range(row, row + 100)])  # looped
    return total
def decoded(row):
    file.seek(0)
    return np.asarray(Image.open(file).convert("RGB"))[row].mean()  # decoded: PIL's convert
"""
LOADERS = re.findall(r"# (\w+)", PLANTED)


def line_of(name: str, file: str) -> str:
    """Return the slow line of a planted loader, as an answer has it."""
    before, after = PLANTED.split(f"# {name}")
    call = after.splitlines()[0].removeprefix(": ")
    return f"{file}:{len(before.splitlines())}{f' ({call})' if call else ''}"


@pytest.mark.parametrize("name", LOADERS)
def test_the_line_of_a_planted_loader_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("planted.py").write_text(PLANTED, encoding="utf-8")
    planted: dict[str, Any] = runpy.run_path("planted.py")
    items, collate = planted["Items"](range(64)), None
    items.read = planted[name]
    if name == "collate":
        items.read, collate = int, planted[name]
    loader = DataLoader(items, batch_size=4, collate_fn=collate)
    expected, line = line_of(name, "planted.py"), ""
    samples, ends_at = sample_lines(20.0), time.monotonic() + 20.0
    # A process that waits for a core has many samples where it waits, which may be any line.
    while line != expected and len(samples) < 200 and time.monotonic() < ends_at:
        batches = iter(loader)
        for _ in range(len(loader)):
            loaded(next, batches)
        _share, line = slowest_line(samples) or (0.0, "")
    assert line == expected


OWN, LINE, PYTHON = "/home/me/augment.py", "augment.py:17", threading.__file__
TORCH, PIL, VISION = (
    f"/env/lib/site-packages/{name}.py" for name in ("torch/a", "PIL/Image", "torchvision/b")
)
CROP, FETCH = (OWN, 17, "crop"), (TORCH, 5, "fetch")
RESIZE, READ = (PIL, 8, "resize"), (VISION, 4, "__getitem__")


@pytest.mark.parametrize(
    ("stack", "line"),
    [
        ([CROP, (OWN, 30, "__getitem__"), FETCH], LINE),
        ([(OWN, 17, "<listcomp>"), CROP, FETCH], LINE),
        ([(PIL, 9, "_new"), RESIZE, CROP], f"{LINE} (PIL's resize)"),
        ([RESIZE, (VISION, 4, "cut"), FETCH, READ, CROP], f"{LINE} (torchvision's cut)"),
        ([(VISION, 4, "pad"), (VISION, 3, "forward"), CROP], f"{LINE} (torchvision's pad)"),
        ([(TORCH, 8, "interpolate"), CROP], LINE),
        ([(PYTHON, 8, "wait"), CROP], LINE),
        ([RESIZE, READ, FETCH], "PIL's resize"),
        ([(TORCH, 8, "default_collate"), FETCH], ""),
        ([("<frozen importlib._bootstrap>", 8, "run"), (PYTHON, 8, "wait"), FETCH], ""),
    ],
)  # fmt: skip
def test_a_stack_is_charged_to_the_users_nearest_line_and_the_call_below_it(
    stack: list[tuple[str, int, str]], line: str
) -> None:
    assert charged(stack) == line


def test_a_line_is_named_if_there_are_enough_samples_and_many_are_there() -> None:
    few = [LINE] * 10 + [""] * 9
    assert slowest_line(few) is None
    assert slowest_line([*few, "b.py:1"]) == (0.5, LINE)
    assert slowest_line([LINE] * 3 + [""] * 17) is None
    assert slowest_line([""] * 20) is None


LOOP = """
import photofinish
Items.read = staticmethod(burn)
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(20):
    for x in photofinish.steps(torch.utils.data.DataLoader(Items(range(64)), batch_size=4)):
        net(x.float()[:, None]).mean().backward()
        optimizer.step()
"""


def test_a_scripts_slow_line_is_recorded(tmp_path: Path) -> None:
    process, _ = recorded(tmp_path, PLANTED + LOOP)
    _share, line = process.slow_line or (0.0, "")
    assert line == line_of("burn", "mine.py")


@pytest.mark.parametrize(("waiting_seconds", "is_cause"), [(0.006, True), (0.001, False)])
def test_the_line_is_named_where_loading_is_a_cause(
    waiting_seconds: float, is_cause: bool, cpu_host: CpuTarget
) -> None:
    process = process_of([0.01] * 100, batches=1, loader=0, waiting_seconds=waiting_seconds)
    process.add({"kind": "loader", "loader": 0, "batches": 20, "workers": 0, "is_named": False})
    process.add({"kind": "slow_line", "value": [0.416, f"{LINE} (PIL's resize)"]})
    run = Watched("train", process, figures_of(process), 0.0, 1.0, 1.7e9, ())
    job = job_of_script(measured_script("mine", run, "cpu", cpu_host))
    pair = compare(JobPair(job), Comparing())
    texts = ["42% of loading is augment.py:17 (PIL's resize)."] * is_cause
    assert [text for text in verdict(pair).details if "augment" in text] == texts


IN_WORKERS = """
import sys, threading
sys.path[:0] = {path!r}
from photofinish.inside import timed_batches
from torch.utils.data import DataLoader
class Interval(list):
    def __getitem__(self, row):
        return sys.getswitchinterval()
timed_batches._MOST_SECONDS = 2.0
loaders, usual = timed_batches.Loaders(lambda **_: None), sys.getswitchinterval()
loader = DataLoader(Interval([0]), num_workers=1, multiprocessing_context="fork")
loaders.number_of(loader, 0)
loaders.add(1)
assert sys.getswitchinterval() == usual  # nothing loads in this process
loaders.number_of(DataLoader(Interval([0])), 1)
loaders.add(1)
assert sys.getswitchinterval() < usual
assert [float(each) for each in loader] == [usual]
sys.setswitchinterval(0.25)
for thread in [each for each in threading.enumerate() if each.daemon]:
    thread.join()
assert sys.getswitchinterval() == 0.25
"""


def test_sampling_leaves_workers_and_what_the_script_sets_as_they_are(tmp_path: Path) -> None:
    script = IN_WORKERS.format(path=[str(ROOT / "src")])
    (tmp_path / "mine.py").write_text(script, encoding="utf-8")
    run_command([warm_python.executable(), "mine.py"], tmp_path)
