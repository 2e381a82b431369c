"""The length of a script's job, as its recorder finds it in small scripts of many kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from watched_scripts import recorded

from photofinish.inside.lengths import unit_of
from photofinish.scripts.script_lines import Length

BEGIN = """
from photofinish.inside.hooks import start
start()
import argparse, itertools, sys, types
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(4, 2))
loader = DataLoader(data, batch_size=2)
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def step(batch):
    net(batch[0]).mean().backward()
    optimizer.step()
    raise SystemExit  # the first step shows enough
"""
TRAINER_OF_A_LIBRARY = """
space = {"__name__": "lightning.trainer"}
exec('''
class Trainer:
    def __init__(self, max_epochs, current_epoch=0):
        self.max_epochs, self.current_epoch = max_epochs, current_epoch
    def fit(self, step, loader):
        while True:
            for batch in loader:
                step(batch)
''', space)
Trainer = space["Trainer"]
"""
SCRIPTS = {
    "a Trainer that resumes": (
        TRAINER_OF_A_LIBRARY + "Trainer(10, 4).fit(step, loader)",
        "6 epochs, the trainer",
    ),
    "a Trainer for each fold": (
        TRAINER_OF_A_LIBRARY + "for fold in range(5):\n    Trainer(10).fit(step, loader)",
        "50 epochs, the trainer",
    ),
    "two Trainers": (
        TRAINER_OF_A_LIBRARY
        + "trainer = Trainer(10)\ntrainer.fit(step, loader)\ntrainer.fit(step, loader)",
        None,
    ),
    "a number": (
        "for _ in range(30):\n    for i, batch in enumerate(loader):\n        step(batch)",
        "30 epochs, range(30) in mine.py:15",
    ),
    "an argument that argparse gives": (
        """
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=7)
parser.add_argument("--warmup-epochs", type=int, default=2)
args = parser.parse_args()
for epoch in range(args.epochs):
    for batch in loader:
        step(batch)
""",
        "7 epochs, args.epochs in mine.py:20",
    ),
    "epochs that a counter of bad ones ends, which is reset": (
        """
def train(epochs, best=0.0, bad=0, patience=3):
    for epoch in range(epochs):
        for batch in loader:
            step(batch)
        if net(data[0][0]) < best:
            bad = 0
        else:
            bad += 1
            if bad >= patience:
                return
train(50)
""",
        "up to 50 epochs, epochs in mine.py:17, may stop at mine.py:24",
    ),
    "steps that an object ends": (
        """
stopper = types.SimpleNamespace(step=lambda loss: None, stops=False)
for _ in range(800):
    step(data[0])
    stopper.step(net(data[0][0]))
    if stopper.stops:
        break
""",
        "up to 800 steps, range(800) in mine.py:17, may stop at mine.py:20",
    ),
    "epochs that a setting ends": (
        """
args = types.SimpleNamespace(dry_run=False)
for epoch in range(50):
    for batch in loader:
        step(batch)
    if args.dry_run:
        break
""",
        "50 epochs, range(50) in mine.py:17",
    ),
    "passes that a loss ends": (
        """
for epoch in range(50):
    for batch in loader:
        step(batch)
        loss = net(batch[0]).mean()
        if loss < 0.1:
            break
""",
        "50 epochs, range(50) in mine.py:16",
    ),
    "a range from a start": (
        """
begin, n = 2, 8
for epoch in range(begin, int(n / 2) * 3 + 1):
    for batch in loader:
        step(batch)
""",
        "11 epochs, range(begin, int(n / 2) * 3 + 1) in mine.py:17",
    ),
    "progress bars": (
        """
from tqdm import tqdm, trange
for seed in trange(3):
    bar = tqdm(range(5))
    for epoch in bar:
        for batch in tqdm(loader, total=2):
            step(batch)
""",
        "15 epochs, range(3) x bar in mine.py:17",
    ),
    "functions": (
        """
class Trainer:
    def __init__(self, epochs):
        self.epochs = epochs
    def fit(self):
        for epoch in range(1, self.epochs + 1):
            train_epoch(net, loader)
def train_epoch(model, batches):
    for i, batch in enumerate(batches, 1):
        if i % 1 == 0:
            step(batch)
Trainer(12).fit()
""",
        "12 epochs, range(1, self.epochs + 1) in mine.py:20",
    ),
    "nested ranges": (
        """
X, size = torch.randn(100, 2), 8
for epoch in range(5):
    for i in range(0, len(X), size):
        step([X[i : i + size]])
""",
        "65 steps, range(5) x range(0, len(X), size) in mine.py:17",
    ),
    "a while loop with a counter": (
        """
done, most = 0, 500
while done < most:
    for batch in loader:
        done += 1
        step(batch)
        if done >= most:
            break
""",
        "500 steps, most in mine.py:17",
    ),
    "a while loop over epochs": (
        """
epoch = 0
while epoch < 6 and net is not None:
    for batch in loader:
        step(batch)
    epoch += 1
""",
        "6 epochs, 6 in mine.py:17",
    ),
    "phases": (
        """
for epoch in range(25):
    for phase in ["train", "val"]:
        for batch in {"train": loader, "val": loader}[phase]:
            if phase == "train":
                step(batch)
""",
        "25 epochs, range(25) in mine.py:16",
    ),
    "a list of seeds, and a comprehension": (
        """
def train(epochs):
    for epoch in range(epochs):
        losses = [step(batch) for batch in loader]
for seed in [0, 1, 2]:
    train(4)
""",
        "12 epochs, [0, 1, 2] x epochs in mine.py:19",
    ),
    "an endless loop that a counter ends": (
        """
iter_num, max_iters = 0, 600
while True:
    step(data[0])
    iter_num += 1
    if iter_num > max_iters:
        break
""",
        "600 steps, max_iters in mine.py:17",
    ),
    "accumulated gradients": (
        """
for epoch in range(9):
    for i, row in enumerate(data.tensors[0]):
        net(row).mean().backward()
        if i % 4 == 0:
            step([row])
""",
        "9 epochs, range(9) in mine.py:16",
    ),
    "several optimizers": (
        """
other = torch.optim.Adam(net.parameters())
for i in range(40):
    net(data[0][0]).mean().backward()
    for each in {1: optimizer, 2: other}.values():
        each.step()
        raise SystemExit
""",
        "40 steps, range(40) in mine.py:17",
    ),
    "a counter in a closure": (
        """
runs = [0]
while runs[0] < 300:
    def closure():
        runs[0] += 1
        loss = net(data[0][0]).mean()
        loss.backward()
        return loss
    torch.optim.LBFGS(net.parameters()).step(closure)
    break
""",
        None,
    ),
    "a counter of all batches, where every fourth steps": (
        """
done = 0
while done < 300:
    for batch in loader:
        done += 1
        if done % 1:
            continue
        step(batch)
""",
        None,
    ),
    "an unknown number of trainings": (
        """
def settings():
    yield 1
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()
for lr in settings():
    for epoch in range(args.epochs):
        for batch in loader:
            step(batch)
""",
        None,
    ),
    "phases without a condition": (
        """
for epoch in range(25):
    for phase in ["train", "val"]:
        for batch in loader:
            step(batch)
""",
        None,
    ),
    "a counter that ends a loop sooner": (
        """
done = 0
for epoch in range(1000):
    for batch in loader:
        done += 1
        if done >= 7:
            sys.exit()
            break
        step(batch)
""",
        None,
    ),
    "a loop over as many as another says": (
        """
for epochs in [1, 3]:
    for epoch in range(epochs):
        for batch in loader:
            step(batch)
""",
        None,
    ),
    "a range in which every fourth iteration steps": (
        """
batches = iter(loader)
for epoch in range(50):
    for i in range(400):
        batch = next(batches)
        if (i + 1) % 1 == 0:
            step(batch)
""",
        None,
    ),
    "source that is not in a file": (
        "exec('for i in range(3):\\n for batch in loader:\\n  step(batch)')",
        None,
    ),
}
"""Each with the length that is found, and where."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_loops_around_the_step_have_the_length(tmp_path: Path, name: str) -> None:
    script, expected = SCRIPTS[name]
    process, _ = recorded(tmp_path, BEGIN + script)
    assert process.taken_steps == 1
    assert _shown(process.length) == expected


def test_the_loop_counts_where_the_command_line_says_another_length(tmp_path: Path) -> None:
    process, _ = recorded(tmp_path, BEGIN + SCRIPTS["a number"][0])
    process.on_command_line.append(Length("epochs", 90, "--epochs"))
    found = _shown(process.length)
    assert found
    assert found.startswith("30 epochs, range(30) in mine.py:15")
    assert "90 of --epochs" in found
    process.on_command_line[0] = Length("max_steps", 5, "--steps")
    assert _shown(process.length) == "30 epochs, range(30) in mine.py:15"
    process.by_loops.clear()
    assert _shown(process.length) == "5 steps, --steps"
    process.on_command_line[0] = Length("max_steps", -1, "--steps")  # fewer than were taken
    assert process.length is None


def test_more_steps_than_the_loops_have_show_that_something_else_repeats_them(
    tmp_path: Path,
) -> None:
    script = BEGIN.replace("raise SystemExit", "") + "for _ in range(3): [*map(step, loader)]"
    process, _ = recorded(tmp_path, script)
    assert process.taken_steps == 6
    assert process.length is None


def test_variables_of_the_script_are_neither_kept_alive_nor_lost(tmp_path: Path) -> None:
    script = """
import weakref
def train(n, keeps):
    mine = locals() if keeps else None
    for i in range(n):
        batch = torch.ones(2)
        net(batch).mean().backward()
        other = torch.optim.SGD(net.parameters(), 0.1)
        other.step()
        seen = weakref.ref(batch)
        del batch
        print(mine["n"] if keeps else seen() is None)
for keeps in [0, 1]:
    train(2, keeps)
"""
    process, shown = recorded(tmp_path, BEGIN + script)
    assert shown.split() == ["True", "True", "2", "2"]
    assert process.by_loops[0].by == "[0, 1] x n in mine.py:27"


@pytest.mark.parametrize(
    ("names", "unit"),
    [
        ("epochs num_epochs max-epochs nEpochs n_epoch total_epochs trainer.max_epochs", "epochs"),
        ("steps max_steps num_train_steps total_training_steps max_iters", "steps"),
        (
            "start_epoch epoch_save_freq warmup_steps log_steps eval_steps steps_per_epoch step "
            "accumulation_steps lr_step step_size warmup_epochs save_epochs n_timesteps",
            None,
        ),
    ],
)
def test_names_of_a_part_or_of_an_interval_are_no_lengths(names: str, unit: str | None) -> None:
    assert {name: unit_of(name) for name in names.split()} == dict.fromkeys(names.split(), unit)


def _shown(length: Length | None) -> str | None:
    unit = length and ("steps" if length.is_steps else "epochs")
    return f"{length.at_most}{length.value:g} {unit}, {length.by}" if length else None
