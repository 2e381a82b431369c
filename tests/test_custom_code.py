"""Custom code is read by `plan` without running it; custom networks are checked before training."""

from __future__ import annotations

import copy
import gc
import os
import textwrap
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import recipe
import torch
import yaml
from conftest import CustomFiles, HeldClock, MakeExperiment, MakeRun
from torch import nn
from training_process import measure_here, train_here

from photofinish.config.loader import read_params
from photofinish.config.losses_and_metrics import CustomLoss
from photofinish.config.networks import CustomModel
from photofinish.config.scripts import Script
from photofinish.custom.code_text import sha256_of_code
from photofinish.custom.imports import check_code_unchanged, custom_code_hashes
from photofinish.custom.reference import CodeReference
from photofinish.errors import ConfigError, UserError
from photofinish.models.custom import blank
from photofinish.models.registry import build_model
from photofinish.planning.checks import check_custom_code_calls, check_paths
from photofinish.planning.plan import dep_hashes, script_plan
from photofinish.results.learned import weights_of
from photofinish.results.measured import read_trained
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.runs.training import CheckpointStore
from photofinish.stage.process import seconds_since_process_start
from photofinish.training.batches import Batch
from photofinish.training.custom_check import validate_custom_model
from photofinish.training.losses import Loss, step_with_a_loss
from photofinish.training.torch_device import CPU
from photofinish.training.world import World

FILES = {
    "net.py": "from torch import nn\nclass Net(nn.Module):\n"
    "    def __init__(self, width, depth=2, *, classes): pass\n"
    "raise SystemExit('it ran')\n",
    "scans.py": "raise SystemExit('it ran')\n"
    "class Scans:\n    def __init__(self, root, size=3): ...\n"
    "class Parts:\n    def __init__(self, part, seed): ...\n",
    "losses.py": "def focal(outputs, labels, gamma=2.0): ...\n"
    "class Focal:\n    def __init__(self, gamma): ...\n",
    "broken.py": "x = 1\nclass Net(:\n",
    "heir.py": "from net import Net as Base\nclass Net(Base): pass\n",
    "tries.py": "try:\n    import lightning\nexcept ImportError:\n    def Net(classes): ...\n",
    "decorated.py": "from elsewhere import give\n@give(width=8)\ndef Net(width): ...\n",
}


def problems_of(custom_files: CustomFiles, **settings: Any) -> str:
    """Return what `plan` reports of an experiment with these settings, or of its data set."""
    experiment = {"dataset": "mine", "model": "linear", "optimizer": {"name": "sgd", "lr": 0.1}}
    dataset = {"validation": 0.1, "test": 0.1, **settings.pop("dataset", {"source": "digits"})}
    document = {
        "datasets": {"mine": dataset},
        "experiments": {"mine": {**experiment, "epochs": 1, "batch_size": 8, **settings}},
    }
    path = custom_files.folder / "params.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        read_params(path, check_paths, check_custom_code_calls)
    except ConfigError as error:
        return str(error)
    return ""


SCANS = {"source": "./scans.py:Scans", "root": "/data"}
CALLS = [
    ({"model": {"name": "./net.py:Net", "width": 8}}, ""),
    ({"model": {"name": "./nets.py:Net"}}, "there is no file"),
    ({"model": {"name": "./net.py:Nett", "width": 8}}, "has no Nett; did you mean 'Net'?"),
    ({"model": {"name": "./net.py"}}, "name code as file.py:Name"),
    ({"model": {"name": "./net.py:Net", "width": 8, "dept": 3}}, "did you mean 'depth'?"),
    ({"model": {"name": "./net.py:Net"}}, "needs width: add this argument"),
    ({"model": {"name": "./net.py:Net", "dept": 3}}, "has 2 mistakes"),
    ({"model": {"name": "./broken.py:Net"}}, "./broken.py, line 2: invalid syntax"),
    ({"model": {"name": "./decorated.py:Net"}}, ""),  # only running it would show its arguments
    ({"model": {"name": "./tries.py:Net"}}, ""),
    ({"model": {"name": "./heir.py:Net", "anything": 1}}, ""),
    ({"model": {"name": "nowhere.nets:Net"}}, "there is no module nowhere.nets"),
    ({"model": {"name": "torch.nn.modules.linear:Linear", "in_feature": 1}}, "'in_features'?"),
    ({"model": {"name": "timm:resnet18", "pretrained": True}}, ""),
    ({"loss": {"name": "./losses.py:focal", "gama": 1}}, "did you mean 'gamma'?"),
    ({"loss": "./losses.py:Focal"}, "needs gamma: add"),
    ({"metrics": ["accuracy", {"name": "f1_score", "average": "macro"}, "./losses.py:focal"]}, ""),
    ({"input": {"name": "loader", "transform": "./losses.py:focl"}}, "it defines Focal, focal"),
    ({"metrics": ["mean_absolut_error"]}, "did you mean 'mean_absolute_error'?"),
    ({"metrics": ["accuracy", "accuracy"]}, "two metrics have the same name"),
    ({"dataset": SCANS}, ""),
    ({"dataset": {"source": "./scans.py:Parts"}}, ""),
    ({"dataset": SCANS | {"sise": 8}}, ".sise = 8\n    unknown argument; did you mean 'size'?"),
    ({"dataset": {"source": "./scans.py:Scans"}}, ".root\n    Scans in ./scans.py needs root"),
    ({"dataset": SCANS | {"files": ["no.csv"]}}, '.files.0 = "no.csv"\n    no such file'),
]


@pytest.mark.parametrize(("settings", "problem"), CALLS, ids=str)
def test_a_wrong_call_of_custom_code_is_reported_with_its_line_without_running_the_code(
    custom_files: CustomFiles, settings: dict[str, Any], problem: str
) -> None:
    for name, text in FILES.items():
        custom_files.write(name, text)
    problems = problems_of(custom_files, **settings)
    assert (problems == "") == (problem == "")
    assert problem in problems
    key = "datasets.mine" if "dataset" in settings else f"experiments.mine.{next(iter(settings))}"
    assert not problem or ("params.yaml:" in problems and key in problems)


def test_a_file_that_git_does_not_know_is_named_in_a_copy_of_dvc(
    custom_files: CustomFiles,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = tmp_path_factory.mktemp("project")
    (project / "net.py").touch()
    monkeypatch.setenv("DVC_ROOT", str(project))
    assert "`git add ./net.py` first" in problems_of(custom_files, model={"name": "./net.py:Net"})


def test_the_code_of_a_network_is_each_file_it_imports_and_the_versions_of_packages(
    custom_files: CustomFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "nets/__init__.py": "",
        "nets/net.py": "import torch, os\nfrom . import parts\nfrom .sub.deep import x\n"
        "from PIL import Image\nraise SystemExit('it ran')\n",
        "nets/parts.py": "def late():\n    import helper\n    from plain.layers import y\n",
        "nets/sub/__init__.py": "",
        "nets/sub/deep.py": "try:\n    import nets.other as o\nexcept ImportError:\n    x = 1\n",
        "nets/other.py": "",
        "nets/unused.py": "",
        "helper.py": "import deeper\n",
        "plain/layers.py": "y = 1\n",  # in a folder without __init__.py
        "lib/deeper.py": "",  # on Python's path
    }
    for name, text in files.items():
        custom_files.write(name, text)
    monkeypatch.syspath_prepend(str(custom_files.folder / "lib"))
    del files["nets/unused.py"]
    expected = {name: sha256_of_code(Path(name)) for name in files}
    expected |= {f"package {name}": version(name) for name in ("torch", "pillow")}
    assert custom_code_hashes([CodeReference.of("./nets/net.py:Net")]) == expected
    assert custom_code_hashes([CodeReference.of("nets.net:Net")]) == expected
    assert custom_code_hashes([CodeReference.of("torch.nn:Linear")]) == {
        "package torch": version("torch")
    }


def test_two_files_that_python_would_confuse_are_refused(custom_files: CustomFiles) -> None:
    for name in ("a/net.py", "b/net.py"):
        custom_files.write(name, "class Net: pass\n")
    both = [CodeReference.of("./a/net.py:Net"), CodeReference.of("./b/net.py:Net")]
    with pytest.raises(ConfigError, match=r"net\.py and .*net\.py have the same name"):
        custom_code_hashes(both)
    both[0].load()
    with pytest.raises(UserError, match="has the same name"):
        both[1].load()


def test_code_that_changed_after_plan_read_it_is_refused(custom_files: CustomFiles) -> None:
    code = custom_code_hashes(
        [CodeReference.of(custom_files.write("net.py", FILES["net.py"]) + ":Net")]
    )
    custom_files.write("net.py", f"# a comment\n{FILES['net.py']}")
    check_code_unchanged(code)
    custom_files.write("net.py", f"{FILES['net.py']}WIDTH = 2\n")
    with pytest.raises(UserError, match=r"net\.py changed after `plan` read it"):
        check_code_unchanged(code)


@pytest.mark.parametrize(
    "source",
    [
        "raise ValueError('no')",
        "class Odd(BaseException): pass\nraise Odd('no')",
        "import sys\nsys.exit('no')",
        "import os\nos.chdir('/')\nraise ValueError('no')",
    ],
)
def test_an_error_is_shown_from_the_users_first_line(
    custom_files: CustomFiles, source: str
) -> None:
    custom_files.write("net.py", f"{source}\nclass Net: pass\n")
    with pytest.raises(UserError, match=r"can't be imported:\n  File \".*net\.py\"(.|\n)*no"):
        CodeReference.of("./net.py:Net").load()
    assert Path.cwd() == custom_files.folder


SHAPE, CLASSES = (1, 8, 8), 3
HEAD = "import numpy as np, os, random, time, torch\nfrom torch import nn\n"
LINEAR = "nn.Sequential(nn.Flatten(), nn.Linear(64, 3))"

Build = Callable[..., nn.Module]
Check = Callable[[str], None]


def network_file(init: str = "", forward: str = "return self.inner(x)", inner: str = LINEAR) -> str:
    """Return a file whose class Net holds `inner` and runs `init` and `forward`."""
    body = textwrap.indent(f"super().__init__()\nself.inner = {inner}\n{init}", " " * 8)
    return (
        f"{HEAD}class Net(nn.Module):\n    def __init__(self):\n{body}\n"
        f"    def forward(self, x):\n        {forward}\n"
    )


def a_batch() -> Batch:
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    return images, torch.tensor([0, 1, 2, 0])


@pytest.fixture
def build(custom_files: CustomFiles) -> Build:
    def build_net(
        source: str, *, classes: int = CLASSES, seed: int = 0, **arguments: int | str
    ) -> nn.Module:
        name = custom_files.write("net.py", source) + ":Net"
        model = CustomModel.model_validate({"name": name, **arguments})
        return build_model(model, SHAPE, classes, seed)

    return build_net


@pytest.fixture
def run_of(custom_files: CustomFiles, make_run: MakeRun) -> Callable[[str], Run]:
    """Make a run of a network's source."""

    def make(source: str) -> Run:
        name = custom_files.write("net.py", source) + ":Net"
        return make_run(model={"name": name}, epochs=1, custom_code={name: ""})

    return make


@pytest.fixture
def check(run_of: Callable[[str], Run]) -> Check:
    """Do what a training stage does first: build the network twice, and take two steps."""

    def run(source: str) -> None:
        setup = Setup(run_of(source), World(CPU))
        setup.check_custom_code(setup.new_network())

    return run


VALID = {
    "a view of convolved images": network_file(
        "self.last = nn.Linear(144, 3)",
        "return self.last(self.inner(x).view(x.size(0), -1))",
        "nn.Sequential(nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 2))",
    ),
    "a view of a strided shortcut": network_file(
        "self.last = nn.Linear(64, 3)",
        "return self.last(self.inner(x).view(x.size(0), -1))",
        "nn.Sequential(nn.Conv2d(1, 16, 2), nn.Conv2d(16, 4, 1, stride=2))",
    ),
    "lazy, batch norm and dropout": network_file(
        inner="nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(), "
        "nn.LazyLinear(3))"
    ),
    "draws, seeds and reads a command line when imported": network_file()
    + "torch.manual_seed(42)\nmodel = Net()\n"
    + "import argparse\nargs = argparse.ArgumentParser().parse_args()\n",
    "unused, frozen, parametrized and sparse": network_file(
        "self.unused = nn.Linear(2, 2)\n"
        "self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)\n"
        "torch.nn.utils.parametrizations.weight_norm(self.inner[1])\n"
        "self.register_buffer('near', torch.eye(64).to_sparse(), persistent=False)",
        "return self.inner[1](torch.sparse.mm(self.near, x.flatten(1).t()).t())",
    ),
    "a counter in its state": network_file(
        "self.register_buffer('t', torch.ones(()))", "self.t *= 0.9; return self.inner(x) * self.t"
    ),
    "a function": f"{HEAD}def Net(classes, shape):\n"
    "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * 8, classes))\n",
}


@pytest.mark.parametrize("source", VALID.values(), ids=VALID)
def test_networks_of_every_usual_kind_are_accepted(check: Check, source: str) -> None:
    check(source)


def test_tries_of_channels_last_and_checkpoints_are_in_no_jobs_time(
    run_of: Callable[[str], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, slow = run_of(VALID["a view of convolved images"]), HeldClock()
    monotonic, began_seconds = time.monotonic, seconds_since_process_start()

    def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: [slow.take(1000.0), function(*arguments)][1]

    monkeypatch.setattr("photofinish.training.custom_check.blank", slowly(blank))
    monkeypatch.setattr(CheckpointStore, "save", slowly(CheckpointStore.save))
    monkeypatch.setattr("time.monotonic", lambda: monotonic() + slow.now_seconds)
    monkeypatch.setattr(
        "photofinish.stage.process.seconds_since_process_start",
        lambda: seconds_since_process_start() + slow.now_seconds,
    )
    measure_here(run)
    train_here(run)
    timings, measured = read_trained(run.out)
    assert slow.now_seconds == 3000
    assert measured.startup_seconds < began_seconds + 500
    # The process has also measured.
    assert max(timings.startup_seconds, timings.total_seconds) < began_seconds + 1500
    assert timings.whole_seconds < began_seconds + 1500
    assert timings.overhead.checkpoint_seconds == pytest.approx(1000, abs=100)
    assert timings.overhead.seconds < 500


def test_the_check_holds_two_copies_at_most(build: Build, make_experiment: MakeExperiment) -> None:
    def count() -> int:
        tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
        return sum(tensor.shape == (CLASSES, 64) for tensor in tensors)

    class CountingLoss(Loss):
        def mean(self, outputs: Any, targets: Any) -> torch.Tensor:
            counts.append(count())
            return super().mean(outputs, targets)

    gc.collect()  # what earlier tests left
    experiment, network = make_experiment(model={"name": "./net.py:Net"}), build(network_file())
    loss, counts = CountingLoss(None, "classes", CPU), [count()]
    validate_custom_model(experiment, network, loss, a_batch(), CLASSES)
    assert max(counts) - counts[0] == 3  # two copies' weights, and one's gradients


FAULTY = {
    "random without a seed": (
        network_file("nn.init.constant_(self.inner[1].bias, int.from_bytes(os.urandom(3)))"),
        r"differs each time it is built, in inner\.1\.bias",
    ),
    "raises": (
        network_file("raise ValueError('no such width')"),
        r"(?s)can't be built:\n  File .*net\.py., line 7.*ValueError: no such width",
    ),
    "too few scores": (network_file(forward="return self.inner(x)[:, :2]"), r"gives \(16, 2\)"),
    "random in forward": (
        network_file(forward="return self.inner(x + int.from_bytes(os.urandom(2)))"),
        "doesn't repeat: .* a different output of",
    ),
    "a counter outside the state": (
        network_file("self.t = 1.0", "self.t *= 0.9; return self.inner(x) * self.t"),
        "keeps state outside its state_dict",
    ),
    "two outputs": (
        network_file(forward="return self.inner(x), None"),
        "gives a tuple for .* `output: 0`, or a name",
    ),
}


@pytest.mark.parametrize(("source", "message"), FAULTY.values(), ids=FAULTY)
def test_a_network_that_cannot_repeat_is_refused(check: Check, source: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(source)


def test_a_seed_decides_the_weights_and_leaves_the_callers_generator_alone(build: Build) -> None:
    source = network_file("self.inner[1].bias.data *= np.random.rand()")
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, second, other = (weights_of(build(source, seed=seed)) for seed in (0, 0, 1))
    assert first == second != other
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("returned", "output"),
    [("y, None", 0), ("{'loss': None, 'logits': y}", "logits"), ("Result(None, y)", "logits")],
)
def test_one_of_several_outputs_counts(build: Build, returned: str, output: int | str) -> None:
    head = "from collections import namedtuple\nResult = namedtuple('Result', 'loss logits')\n"
    source = head + network_file(forward=f"y = self.inner(x); return {returned}")
    images, _ = a_batch()
    network = build(source, output=output)
    assert network(images).equal(network.inner(images))
    assert copy.deepcopy(network)(images).equal(network(images))
    assert [*network.state_dict()] == ["inner.1.weight", "inner.1.bias"]
    with pytest.raises(ValueError, match=r"model\.output is 'other'"):
        build(source, output="other")(images)


def test_neighbours_and_packages_are_imported_and_get_arguments(custom_files: CustomFiles) -> None:
    custom_files.write("nets/__init__.py", "")
    custom_files.write("nets/parts.py", "WIDTH = 5\n")
    net = "def Net(shape, by, *, classes): return nn.Linear(WIDTH * by, classes * shape[2])\n"
    name = custom_files.write("nets/net.py", f"from .parts import WIDTH\n{HEAD}{net}") + ":Net"
    model = CustomModel.model_validate({"name": name, "by": 2})
    assert next(build_model(model, SHAPE, CLASSES, seed=0).parameters()).shape == (24, 10)
    model = CustomModel.model_validate(
        {"name": "torch.nn:Linear", "in_features": 4, "out_features": 2}
    )
    assert next(build_model(model, SHAPE, CLASSES, seed=0).parameters()).shape == (2, 4)


def test_a_rank_without_samples_has_a_gradient_for_every_output() -> None:
    loss = Loss(CustomLoss(name=f"{recipe.__file__}:both"), "custom", CPU)
    one, other = (torch.zeros(0, 3, requires_grad=True) for _ in range(2))
    outputs = one, other.mean()  # such as a divergence over the batch
    total, weight = loss.sum_and_weight(outputs, (torch.zeros(0), torch.zeros(0)))
    total.backward()
    assert one.grad is not None
    assert other.grad is not None
    assert (total.item(), weight) == (0.0, 0.0)


@pytest.mark.parametrize(
    "functions", [{"loss": "fading"}, {"step": "AnnealedStep", "validation_step": "margin_step"}]
)
def test_a_loss_or_step_with_state_is_refused(make_run: MakeRun, functions: dict[str, str]) -> None:
    own = {key: {"name": f"{recipe.__file__}:{name}"} for key, name in functions.items()}
    setup = Setup(make_run(**own, custom_code={"recipe": ""}), World(CPU))
    with pytest.raises(UserError, match="doesn't repeat"):
        setup.check_custom_code(setup.new_network())


def test_a_validation_step_needs_no_gradient(
    custom_files: CustomFiles, make_experiment: MakeExperiment
) -> None:
    source = """
import torch
@torch.no_grad()
def errors(network, batch):
    return (network(batch[0]).argmax(1) != batch[1]).float().mean()
"""
    errors = {"name": f"{custom_files.write('steps.py', source)}:errors"}
    network, loss = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)), Loss(None, "classes", CPU)
    refused = pytest.raises(UserError, match="does not require grad")
    for key, ends in (("validation_step", nullcontext()), ("step", refused)):
        experiment = make_experiment(**{key: errors})
        step = step_with_a_loss(experiment)
        with ends:
            validate_custom_model(experiment, network, loss, a_batch(), CLASSES, step)


def files_of(*deps: str) -> dict[str, str]:
    return script_plan("mine", Script(command="python train.py", deps=deps)).files


@pytest.mark.parametrize(
    ("script", "line", "imported"),
    [
        ("src/train.py", "from model import V", "src/model.py"),
        ("bare/train.py", "import bare.model", "bare/model.py"),
        ("bare/train.py", "from . import model", "bare/model.py"),
        ("bare/train.py", "from model import V", "bare/model.py"),
        ("scripts/train.py", "from src import model", "src/model.py"),
        ("train.v2.py", "from bare.model import V", "bare/model.py"),
        ("torch/train.py", "from bare.model import V", "bare/model.py"),
    ],
)
def test_a_script_is_hashed_with_its_imports_by_path_and_by_name(
    custom_files: CustomFiles, script: str, line: str, imported: str
) -> None:
    for name in ("src/__init__.py", "src/model.py", "bare/model.py", "torch/data.txt"):
        custom_files.write(name, "V = 1\n")
    custom_files.write(script, f"{line}\nimport torch\n")
    assert {script, imported, "package torch"} <= files_of(script).keys()


def test_the_files_of_a_linked_folder_count(custom_files: CustomFiles) -> None:
    custom_files.write("big/train/a.txt", "a")
    custom_files.write("d/b.txt", "b")
    (custom_files.folder / "d/train").symlink_to("../big/train")
    (custom_files.folder / "d/broken").symlink_to("nowhere")
    (custom_files.folder / "big/train/above").symlink_to("../../d")
    assert dep_hashes(["d/"]).keys() == {"d/b.txt", "d/train/a.txt"}
    before = files_of("d/")
    custom_files.write("big/train/c.txt", "c")
    assert files_of("d/") != before


def test_what_the_pipeline_makes_is_no_dependency_unless_it_is_named(
    custom_files: CustomFiles,
) -> None:
    custom_files.write("data/mine.csv", "1")
    for name in ("plan/hosts/cpu.json", "raw/digits/raw.bin", "splits/a", "weights/b"):
        custom_files.write(f"data/{name}", "made")
    for name in ("results/a/cpu/model/record.json", "dvc.lock", "mlflow.db"):
        custom_files.write(name, "made")
    assert dep_hashes(["data/"]).keys() == dep_hashes(["."]).keys() == {"data/mine.csv"}
    assert dep_hashes(["data/raw"]).keys() == {"data/raw/digits/raw.bin"}


def test_an_experiments_copy_depends_on_its_own_files(
    custom_files: CustomFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    deps = ("train.py", "conf.yaml", "lib/")
    custom_files.write("vocab.json", "ignored by Git, so that a copy has none")
    (custom_files.folder / ".dvc").mkdir()
    copy = ".dvc/tmp/exps/one"
    for name in ("train.py", "conf.yaml", "lib/a.yaml"):
        custom_files.write(name, "1")
        custom_files.write(f"{copy}/{name}", "2")
    custom_files.write(f"{copy}/.dvc/config", "")
    before = files_of(*deps)
    monkeypatch.setenv("DVC_ROOT", str(custom_files.folder))
    monkeypatch.chdir(custom_files.folder / copy)
    own = files_of(*deps)
    assert [name for name in own if own[name] != before[name]] == ["conf.yaml", "lib/", "train.py"]
    for name in ("conf.yaml", "lib/a.yaml"):
        Path(name).write_text("1", encoding="utf-8")
    assert files_of(*deps) == before | {"train.py": own["train.py"]}
    assert [*dep_hashes(["vocab.json"])] == ["vocab.json"]
    check_code_unchanged(dep_hashes(["vocab.json"]))


@pytest.mark.parametrize(
    ("dep", "size", "is_read"),
    [
        ("d/", 10**6, True),
        ("d/", 10**6 + 1, False),
        ("d/data.json", 10**6 + 1, False),
        ("e/", 9, False),
        ("e/data.jpg", 9, True),
    ],
)
def test_large_files_and_data_in_folders_are_not_read(
    custom_files: CustomFiles, dep: str, size: int, is_read: bool
) -> None:
    name = "d/data.json" if dep.startswith("d") else "e/data.jpg"
    custom_files.write(name, "1" * size)
    file = custom_files.folder / name
    deps, state = (dep,), file.stat()
    before = files_of(*deps)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1000))
    assert (files_of(*deps) == before) == is_read  # another time and the same content
    file.write_text("2" * size, encoding="utf-8")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (files_of(*deps) == before) != is_read


def test_files_outside_the_project_have_one_name_in_each_folder(
    custom_files: CustomFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = str(custom_files.folder / "ext/net.py")
    custom_files.write("ext/net.py", "")
    for folder in ("project", "project/tmp/copy"):
        custom_files.write(f"{folder}/a.txt", "")
        monkeypatch.chdir(custom_files.folder / folder)
        Path("linked.json").symlink_to(outside)
        here = ["a.txt", "linked.json"]
        assert [*files_of(outside), *dep_hashes([outside, *here])] == [outside, outside, *here]
        check_code_unchanged(files_of(outside))
    (custom_files.folder / ".git").mkdir()  # all of it has the same place in each clone
    assert [*files_of(outside)] == ["../../../ext/net.py"]
