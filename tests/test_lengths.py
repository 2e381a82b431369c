"""The length of a script's job, as its recorder finds it in small scripts of many kinds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from watched_scripts import recorded

from photofinish.inside.lengths import unit_of
from photofinish.scripts.script_lines import Length

BEGIN = """
from photofinish.inside.hooks import start
start()
import argparse, sys, types
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(4, 2))
loader = DataLoader(data, batch_size=2)
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def step(batch):
    net(batch[0]).mean().backward()
    optimizer.step()
def train(epochs):
    for epoch in range(epochs):
        for batch in loader: step(batch)
class Trainer:
    def __init__(self, epochs):
        self.epochs = epochs
    def fit(self):
        for epoch in range(1, self.epochs + 1): self.train_epoch(net, loader)
    def train_epoch(self, model, batches):
        for i, batch in enumerate(batches, 1):
            if i % 1 == 0: step(batch)
class Folds:
    n_splits = 3
    def split(self, samples):
        for fold in range(3): yield [fold], [0]
library = {"__name__": "lightning.trainer"}
exec('''
class Trainer:
    def __init__(self, max_epochs, current_epoch=0):
        self.max_epochs, self.current_epoch = max_epochs, current_epoch
    def fit(self, step, loader):
        for _ in range(self.current_epoch, self.max_epochs):
            for batch in loader: step(batch)
''', library)
Lightning = library["Trainer"]
"""
SHAPES = """
# a Trainer that resumes: 6 epochs, the trainer
Lightning(10, 4).fit(step, loader)
# a Trainer for each fold: 50 epochs, the trainer
for fold in range(5): Lightning(10).fit(step, loader)
# two Trainers: a part, 4 epochs, the trainer
Lightning(4).fit(step, loader)
Lightning(2).fit(step, loader)
# Trainers with their own epochs: a part, 2 epochs, the trainer
for epochs in (2, 3): Lightning(epochs).fit(step, loader)
# a number: 30 epochs, range(30)
for _ in range(30):
    for batch in loader: step(batch)
# an argument of the command line: 7 epochs, args.epochs
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=7)
args = parser.parse_args()
for epoch in range(args.epochs):
    for batch in loader: step(batch)
# epochs that a counter of bad ones ends, which is reset: up to 50 epochs, epochs
def fit(epochs, best=9.0, bad=0, patience=3):
    for epoch in range(epochs):
        train(1)
        if net(data[0][0]) < best:
            bad = 0
        else:
            bad += 1
            if bad >= patience: return
fit(50)
# steps that an object ends: up to 80 steps, range(80)
stopper = types.SimpleNamespace(step=lambda loss: None, stops=False)
for _ in range(80):
    step(data[0])
    stopper.step(net(data[0][0]))
    if stopper.stops: break
# epochs that a setting ends, and passes that a loss does: 50 epochs, range(50)
args = types.SimpleNamespace(dry_run=False)
for epoch in range(50):
    for batch in loader:
        step(batch)
        loss = net(batch[0]).mean()
        if loss < -1e9: break
    if args.dry_run: break
# a range from a start: 11 epochs, range(begin, int(n / 2) * 3 + 1)
begin, n = 2, 8
for _ in range(begin, int(n / 2) * 3 + 1): train(1)
# progress bars: 15 epochs, range(3) x bar
from tqdm import tqdm, trange
for seed in trange(3):
    bar = tqdm(range(5), desc=f"seed {seed}")
    for epoch in bar:
        for batch in tqdm(loader, total=2): step(batch)
# methods: 12 epochs, range(1, self.epochs + 1)
Trainer(12).fit()
# nested ranges: 65 steps, range(5) x range(0, len(X), size)
X, size = torch.randn(100, 2), 8
for epoch in range(5):
    for i in range(0, len(X), size): step([X[i : i + size]])
# a while loop with a counter of steps: 50 steps, most
done, most = 0, 50
while done < most:
    for batch in loader:
        done += 1
        step(batch)
        if done >= most: break
# a while loop over epochs, from 1 on: 5 epochs, 6
epoch = 1
while epoch < 6 and net is not None:
    train(1)
    epoch += 1
# an endless loop that a counter ends: 61 steps, max_iters
iter_num, max_iters = 0, 60
while True:
    step(data[0])
    iter_num += 1
    if iter_num > max_iters: break
# a while loop that a flag ends, too: up to 5 epochs, 5
epoch, stops = 0, False
while epoch < 5 and not stops:
    train(1)
    epoch += 1
    stops = net(data[0][0]) < -1e9
# a while loop with two ends: 2 epochs, 4
epoch = done = 0
while epoch < 10 and done < 4:
    train(1)
    done += 2
    epoch += 1
# a while loop with either of two ends: a part, 1 epochs, epochs
epoch, is_wanted = 0, iter([True] * 9 + [False] * 9)
while epoch < 3 or next(is_wanted):
    train(1)
    epoch += 1
# phases: 25 epochs, range(25)
for epoch in range(25):
    for phase in ["train", "val"]:
        for batch in {"train": loader, "val": loader}[phase]:
            if phase == "train": step(batch)
# phases by another name in a function: 5 epochs, range(5)
def run(mode):
    for batch in loader:
        if mode == "train": step(batch)
for epoch in range(5):
    for phase in ["train", "val"]: run(phase)
# phases by a flag that is not theirs: None
for epoch in range(5):
    for phase in ["train", "val"]:
        net.train(phase == "train")
        for batch in loader:
            if net.training: step(batch)
# phases by a function that returns: None
def run(is_training):
    if not is_training: return
    for batch in loader: step(batch)
for epoch in range(5):
    for is_training in (True, False): run(is_training)
# accumulated gradients: 9 epochs, range(9)
for epoch in range(9):
    for i, row in enumerate(data.tensors[0]):
        net(row).mean().backward()
        if i % 2 == 0: step([row])
# several optimizers: 40 steps, range(40)
other = torch.optim.Adam(net.parameters())
for i in range(40):
    net(data[0][0]).mean().backward()
    for each in {1: optimizer, 2: other}.values(): each.step()
# a counter in a closure: 1 steps, runs[0] < 30
runs = [0]
while runs[0] < 30:
    def closure():
        runs[0] += 1
        loss = net(data[0][0]).mean()
        loss.backward()
        return loss
    torch.optim.LBFGS(net.parameters()).step(closure)
    break
# a counter of all batches, where every other steps: None
done = 0
while done < 30:
    for batch in loader:
        done += 1
        if done % 2: continue
        step(batch)
# a counter that ends a loop sooner: 6 steps, 7
done = 0
for epoch in range(1000):
    for batch in loader:
        done += 1
        if done >= 7:
            sys.exit()
            break
        step(batch)
# a budget that ends all loops: 7 steps, most
def fit(most, done=0):
    for epoch in range(1000):
        for batch in loader:
            step(batch)
            done += 1
            if most > 0 and done >= most: return
fit(7)
# a range in which every fourth iteration steps: None
for epoch in range(5):
    for i in range(40):
        updates = (i + 1) % 4 == 0
        if updates: step(data[0])
# an argument that says which iteration steps: None
def run(batch, updates):
    if updates: step(batch)
for i in range(40): run(data[0], updates=i > 9)
# two steps of an iteration: None
for i in range(9):
    step(data[0])
    step(data[1])
# epochs that are skipped: a part, 1 epochs, epochs
for epoch in range(6):
    if epoch < 2: continue
    train(1)
# a dictionary of models: 6 epochs, models.items() x epochs
models = {"small": net, "large": net}
for name, model in models.items(): train(3)
# a list of folds: 8 epochs, folds x epochs
folds = [([0, 1], [2, 3]), ([2, 3], [0, 1])]
for train_rows, test_rows in folds: train(4)
# folds of a generator, in a list: 6 epochs, folds x epochs
folds = list(Folds().split(data))
for fold, (rows, others) in enumerate(folds): train(2)
# folds of a splitter that has no name: a part, 2 epochs, epochs
for seed in range(2):
    for rows, others in Folds().split(data): train(2)
# folds of a splitter: 6 epochs, folds.split(data) x epochs
folds = Folds()
for fold, (rows, others) in enumerate(folds.split(data)): train(2)
# seeds and folds in functions of the call stack: 12 epochs, seeds x folds x epochs
def run(seed, folds):
    for fold in range(folds): train(2)
def main(seeds):
    for seed in seeds: run(seed, folds=3)
main([1, 2])
# a list of seeds, and a comprehension: 12 epochs, [0, 1, 2] x epochs
def fit(epochs):
    for epoch in range(epochs):
        losses = [step(batch) for batch in loader]
for seed in [0, 1, 2]: fit(4)
# an unknown number of trainings: a part, 10 epochs, epochs
for setting in iter([1, 2].pop, 3):
    train(10)
    if setting == 1: break
# settings with their own epochs: a part, 2 epochs, epochs
for setting in [{"epochs": 2}, {"epochs": 3}]: train(setting["epochs"])
# stages with their own epochs: a part, 4 epochs, epochs
for stage, count in {"head": 2, "all": 3}.items(): train(epochs=2 * count)
# objects with their own epochs: a part, 2 epochs, range(1, self.epochs + 1)
for count in (2, 3):
    trainer = Trainer(count)
    trainer.fit()
# functions with their own epochs: a part, 2 epochs, epochs
for fit in (lambda: train(2), lambda: train(3)): fit()
# a curriculum: a part, 1 epochs, epochs
for count in [1, 3]:
    for epoch in range(count): train(1)
# one function that is called twice: a part, 2 epochs, epochs
train(2)
train(3)
# one function that is called twice for each seed: a part, 2 epochs, epochs
for seed in range(2):
    train(2)
    train(3)
# two functions: a part, 2 epochs, epochs
def tune(): Trainer(3).fit()
train(2)
tune()
# two loops: a part, 2 epochs, range(2)
for epoch in range(2):
    for batch in loader: step(batch)
other = torch.optim.SGD(net.parameters(), 0.1)
for batch in loader:
    net(batch[0]).mean().backward()
    other.step()
# either of two functions, and a test: 2 epochs, epochs
def tune(): Trainer(3).fit()
def test(): net.train()
if net is not None:
    train(2)
else:
    tune()
test()
# one function for training and validation: 4 epochs, range(4)
def run(is_training):
    for batch in loader:
        if is_training: step(batch)
for epoch in range(4):
    run(True)
    run(False)
# networks that train one after another: 6 epochs, pairs x epochs
nets = [torch.nn.Linear(2, 1) for _ in range(2)]
pairs = [(net, torch.optim.SGD(net.parameters(), 0.1)) for net in nets]
for net, optimizer in pairs: train(3)
# a generator that trains: 3 epochs, range(3)
def losses():
    for epoch in range(3):
        train(1)
        yield epoch
for loss in losses(): print(loss)
# epochs that go on while they help: up to 9 epochs, range(9)
for epoch in range(9):
    train(1)
    if net(data[0][0]) > -1e9: pass
    else: break
# an iterator that ends sooner than its range: None
rows = iter(data.tensors[0])
for _ in range(100):
    try: row = next(rows)
    except StopIteration: break
    step([row])
# a flag that a called function sets: up to 9 epochs, range(9)
stopper = types.SimpleNamespace(stops=False)
def validate(): stopper.stops = bool(net(data[0][0]) < -1e9)
for epoch in range(9):
    train(1)
    validate()
    if stopper.stops: break
# a flag of the module that a called function sets: up to 9 epochs, range(9)
stops = False
def validate():
    global stops
    stops = bool(net(data[0][0]) < -1e9)
for epoch in range(9):
    train(1)
    validate()
    if stops: break
# epochs that pass through keywords: a part, 2 epochs, epochs
def run(**settings): train(**settings)
for epochs in (2, 3): run(epochs=epochs)
# epochs that pass through a class method: a part, 2 epochs, epochs
class Run:
    @classmethod
    def start(cls, *values): train(*values)
for epochs in (2, 3): Run.start(epochs)
# epochs that a called function changes: a part, 2 epochs, range(1, self.epochs + 1)
trainer = Trainer(2)
def grow(): trainer.epochs += 1
for _ in range(2):
    trainer.fit()
    grow()
# epochs that a setter changes: a part, 2 epochs, range(1, self.epochs + 1)
class Tuned(Trainer):
    def set(self, epochs): self.epochs = epochs
trainer = Tuned(0)
for epochs in (2, 3):
    trainer.set(epochs)
    trainer.fit()
# training in another file that follows: a part, 2 epochs, epochs
from pathlib import Path
Path("tuning.py").write_text("def tune(train):\\n    train(3)\\n")
import tuning
train(2)
tuning.tune(train)
# episodes that end within their range: None
for episode in range(3):
    for t in range(50):
        step(data[0])
        is_done = net(data[0][0]) > -1e9
        if is_done: break
# an object that says which iteration steps: None
class Every:
    calls = 0
    def is_due(self):
        self.calls += 1
        return self.calls % 3 == 0
every = Every()
for i in range(30):
    if every.is_due(): step(data[0])
# a list that grows: a part, 2 epochs, epochs
tasks = [1]
for task in tasks:
    train(2)
    if len(tasks) < 3: tasks.append(task)
# a dry run: 1 epochs, epochs
args = types.SimpleNamespace(dry_run=True)
for epoch in range(9):
    train(1)
    if args.dry_run: break
# a return within two conditions: up to 9 epochs, epochs
def fit(epochs):
    for epoch in range(epochs):
        train(1)
        if epoch > 1:
            if net(data[0][0]) < -1e9: return
fit(9)
# an else after a loop that leaves: None
for epoch in range(9):
    for batch in loader:
        step(batch)
        if net(batch[0]).mean() < -1e9: break
    else:
        continue
    break
# a length whose property has effects: a part, 1 epochs, epochs
class Shrinking:
    left = 5
    @property
    def epochs(self):
        self.left -= 1
        return self.left
shrinking = Shrinking()
for epoch in range(shrinking.epochs): train(1)
# a dictionary of its own kind: a part, 1 epochs, epochs
class Counting:
    calls = 0
    def get(self, name):
        self.calls += 1
        return self.calls
counting = Counting()
for epoch in range(counting.get("epochs") + 2): train(1)
# steps of varying size: a part, 1 epochs, epochs
done = 0
while done < 30:
    size = 5 if done < 10 else 10
    train(1)
    done += size
# an endless loop with a setting, as in nanoGPT: 4 steps, max_iters
iter_num, max_iters, eval_only = 0, 3, False
while True:
    if iter_num == 0 and eval_only: break
    for micro_step in range(2): net(data[0][0]).mean().backward()
    optimizer.step()
    iter_num += 1
    if iter_num > max_iters: break
# an endless loop that begins its data again, as in minGPT: 9 steps, args.max_iters
args, iter_num, batches = types.SimpleNamespace(max_iters=9), 0, iter(loader)
while True:
    try: batch = next(batches)
    except StopIteration:
        batches = iter(loader)
        batch = next(batches)
    step(batch)
    iter_num += 1
    if args.max_iters is not None and iter_num >= args.max_iters: break
# a budget of all epochs, as of Hugging Face: 5 epochs, range(5)
done, most = 0, 5 * len(loader)
for epoch in range(5):
    for i, batch in enumerate(loader):
        net(batch[0]).mean().backward()
        if i % 1 == 0 or i == len(loader) - 1:
            optimizer.step()
            done += 1
        if done >= most: break
# a budget within the last epoch, as of Hugging Face: up to 4 epochs, range(4)
done, most = 0, 7
for epoch in range(4):
    for batch in loader:
        step(batch)
        done += 1
        if done >= most: break
# batches since the last step, as in YOLO: 6 epochs, range(6)
last, accumulate = -1, 1
for epoch in range(6):
    for i, batch in enumerate(loader):
        ni = i + len(loader) * epoch
        net(batch[0]).mean().backward()
        if ni - last >= accumulate:
            optimizer.step()
            last = ni
# a limit that is not set, as in PPO: 24 steps, range(2) x range(3) x range(0, 32, 8)
target_kl = None
for iteration in range(2):
    for epoch in range(3):
        for start in range(0, 32, 8):
            loss = net(data[0][0]).mean()
            loss.backward()
            optimizer.step()
        if target_kl is not None and loss > target_kl: break
# patience that is reset beside the best: up to 40 epochs, range(40)
best, patience = 1e9, 0
for epoch in range(40):
    train(1)
    if 1.0 < best: best, patience = 1.0, 0
    else:
        patience += 1
        if patience >= 3: break
# settings whose items are attributes: 3 epochs, args.epochs
class Settings(dict): __getattr__ = dict.get
args = Settings(epochs=3)
for epoch in range(args.epochs):
    for batch in loader: step(batch)
# a counter that ends the outer loop alone: None
done = 0
while done < 9:
    for batch in loader:
        step(batch)
        done += 1
# a limit of batches: 4 steps, range(4)
for epoch in range(4):
    for i, batch in enumerate(loader):
        if i >= 1: break
        step(batch)
# one case of several: None
for epoch in range(6):
    match epoch % 3:
        case 0:
            for batch in loader: step(batch)
# a generator that is left: None
def epochs():
    for epoch in range(10):
        train(1)
        yield
running = epochs()
for epoch in range(3): next(running)
# a function that another one calls more than once: None
list(map(train, [1, 2, 3]))
# an exception that ends the loops: up to 30 epochs, range(30)
class Stop(Exception): pass
def check(epoch):
    if epoch == 2: raise Stop
try:
    for epoch in range(30):
        train(1)
        check(epoch)
except Stop: pass
# a buffer that is too short at first: None
buffer = []
for i in range(30):
    buffer.append(torch.randn(2))
    if len(buffer) < 8: continue
    step([torch.stack(buffer)])
# source that is not in a file: None
exec('for i in range(3):\\n for batch in loader:\\n  step(batch)')
"""
"""Each with the length that is found: of the whole run, of a part of it, or none."""
SCRIPTS = {
    name: (script, expected)
    for name, expected, script in re.findall(r"^# (.+?): (.+)\n((?:(?!# ).*\n)+)", SHAPES, re.M)
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_length_is_that_of_the_whole_run_or_none(tmp_path: Path, name: str) -> None:
    script, expected = SCRIPTS[name]
    process, _ = recorded(tmp_path, BEGIN + script)
    whole, in_source = process.length, process.in_source
    part = in_source if in_source and in_source.is_part else None
    shown = _shown(whole) or (part and f"a part, {_shown(part)}")
    assert str(shown).partition(" in mine.py")[0] == expected
    taken = process.steps[0] if name == "several optimizers" else process.taken_steps
    if length := whole or part:
        steps = length.value if length.is_steps else 2 * length.value
        assert steps == taken or (steps > taken if whole and whole.may_stop else part is not None)
        assert not part or steps <= taken


def test_the_loop_counts_where_the_command_line_says_another_length(tmp_path: Path) -> None:
    process, _ = recorded(tmp_path, BEGIN + SCRIPTS["a number"][0])
    process.on_command_line.append(Length("max_steps", 500, "--steps"))
    assert _shown(process.length) == "30 epochs, range(30) in mine.py:39"
    process.by_loops.clear()
    assert _shown(process.length) == "500 steps, --steps"
    process.on_command_line[0] = Length("max_steps", 5, "--steps")  # fewer than were taken
    assert process.length is None


def test_more_steps_than_the_loops_have_show_that_something_else_repeats_them(
    tmp_path: Path,
) -> None:
    process, _ = recorded(tmp_path, BEGIN + "for _ in range(3): [*map(step, loader)]")
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
    assert process.by_loops[0].by == "[0, 1] x n in mine.py:51"


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
    at_most = "up to " if length and length.may_stop else ""
    return f"{at_most}{length.value:g} {unit}, {length.by}" if length else None
