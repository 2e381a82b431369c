"""Code that params.yaml names: read without running it, and every file that it runs found."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import OwnFiles

from photofinish.errors import MistakeError, UserError
from photofinish.files import sha256_of_bytes
from photofinish.own_code import Reference
from photofinish.params.reader import read_params
from photofinish.plan import faults_in_own_code
from photofinish.source_code import code_of_users, refuse_changed_code

NET = "from torch import nn\nclass Net(nn.Module):\n    def __init__(self, width, depth=2, *, classes): pass\n"
LOSSES = "def focal(outputs, labels, gamma=2.0): ...\nclass Focal:\n    def __init__(self, gamma): ...\n"


def told_of(own_files: OwnFiles, **settings: Any) -> str:
    """What `plan` tells of an experiment with these settings."""
    experiment = {"dataset": "digits", "model": "linear", "optimizer": {"name": "sgd", "lr": 0.1}}
    document = {
        "datasets": {"digits": {"source": "digits", "validation": 0.1, "test": 0.1}},
        "experiments": {"mine": {**experiment, "epochs": 1, "batch_size": 8, **settings}},
    }
    path = own_files.folder / "params.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        read_params(path, faults_in_own_code)
    except MistakeError as error:
        return str(error)
    return ""


MODELS = {
    "right": ({"name": "./net.py:Net", "width": 8}, ""),
    "no such file": ({"name": "./nets.py:Net"}, "there is no file ./nets.py"),
    "no such name": ({"name": "./net.py:Nett", "width": 8}, "has no Nett; did you mean 'Net'?"),
    "no name": ({"name": "./net.py"}, "name code as file.py:Name, or package.module:Name"),
    "misspelt": ({"name": "./net.py:Net", "width": 8, "dept": 3}, "unknown argument; did you mean 'depth'?"),
    "missing": ({"name": "./net.py:Net"}, "Net in ./net.py takes width, and has no default for it"),
    "given by the trainer": ({"name": "./net.py:Net", "width": 8, "classes": 3}, ""),
    "a syntax error": ({"name": "./broken.py:Net"}, "./broken.py, line 2: invalid syntax"),
    "a name of Python's": ({"name": "./random.py:Net"}, "has the name of a module of Python's own"),
    "no such package": ({"name": "nowhere.nets:Net"}, "there is no module nowhere.nets in this environment"),
    "a package's": ({"name": "torch.nn.modules.linear:Linear", "in_features": 1, "out_features": 2}, ""),
    "timm's": ({"name": "timm:resnet18"}, ""),
    "misspelt of timm's": ({"name": "timm:resnet81"}, "timm has no resnet81; did you mean 'resnet18'?"),
    "pretrained of timm's": ({"name": "timm:resnet18", "pretrained": True}, ""),
    "inherited": ({"name": "./net.py:Deeper", "width": 8}, ""),
    "inherited from a neighbour by another name": ({"name": "./nets/deep.py:Deeper", "width": 8}, ""),
    "missing of a neighbour's": ({"name": "./nets/deep.py:Deeper"}, "takes width, and has no default for it"),
    "a package's that it imports from within": ({"name": "./nets/pack/__init__.py:Net", "with": 8}, "did you mean"),
    "of a base with a syntax error": ({"name": "./of_broken.py:Deeper"}, ""),  # which is told where code is listed
    "defined where another can't be imported": ({"name": "./tries.py:Net"}, ""),
    "decorated, so that it may take something else": ({"name": "./decorated.py:Net"}, ""),
    "a dot in the file's name": ({"name": "./net.v2.py:Net"}, "Python imports no file with a dot in its name"),
    "inherited and misspelt": ({"name": "./net.py:Deeper", "with": 8}, "did you mean 'width'?"),
}


@pytest.mark.parametrize(("model", "told"), MODELS.values(), ids=MODELS)
def test_what_is_wrong_with_a_network_of_one_s_own_is_told_by_line(
    own_files: OwnFiles, model: dict[str, Any], told: str
) -> None:
    own_files.write("net.py", f"{NET}class Deeper(Net): pass\n")
    own_files.write("broken.py", "x = 1\nclass Net(:\n")
    own_files.write("random.py", NET)
    own_files.write("of_broken.py", "from broken import Net\nclass Deeper(Net): pass\n")
    own_files.write("tries.py", "try:\n    import lightning\nexcept ImportError:\n    def Net(classes): ...\n")
    own_files.write("decorated.py", "from elsewhere import give\n@give(width=8)\ndef Net(width): ...\n")
    own_files.write("net.v2.py", NET)
    own_files.write("nets/base.py", NET)
    own_files.write("nets/deep.py", "from base import Net as Base\nclass Deeper(Base): pass\n")
    own_files.write("nets/pack/__init__.py", "from .net import Net\n")
    own_files.write("nets/pack/net.py", NET)
    found = told_of(own_files, model=model)
    assert told in found if told else not found
    assert not told or ("params.yaml:" in found and "experiments.mine.model" in found)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        ("./losses.py:focal", ""),
        ({"name": "./losses.py:focal", "gamma": 1}, ""),
        ({"name": "./losses.py:focal", "gama": 1}, "did you mean 'gamma'?"),
        ("./losses.py:Focal", "takes gamma, and has no default"),
        ({"name": "cross_entropy", "label_smoothing": 2}, "must be at most 1"),
        ("cross_entropi", "did you mean 'cross_entropy'?"),
    ],
)
def test_what_is_wrong_with_a_loss_is_told_likewise(own_files: OwnFiles, loss: Any, told: str) -> None:
    own_files.write("losses.py", LOSSES)
    found = told_of(own_files, loss=loss)
    assert told in found if told else not found


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (["accuracy", {"name": "f1_score", "average": "macro"}, "./losses.py:focal"], ""),
        (["mean_absolut_error"], "did you mean 'mean_absolute_error'?"),
        ([{"name": "f1_score", "averge": "macro"}], "did you mean 'average'?"),
        (["./losses.py:focl"], "has no focl; did you mean 'Focal'? it has Focal, focal"),
        (["accuracy", "accuracy"], "two metrics have one name"),
        ("accuracy", "must be a list, in brackets"),
    ],
)
def test_what_is_wrong_with_a_metric_is_told_likewise(own_files: OwnFiles, metrics: Any, told: str) -> None:
    own_files.write("losses.py", LOSSES)
    found = told_of(own_files, metrics=metrics)
    assert told in found if told else not found


def test_all_mistakes_are_told_at_once(own_files: OwnFiles) -> None:
    own_files.write("net.py", NET)
    found = told_of(own_files, model={"name": "./net.py:Net", "dept": 3}, batch_size=0)
    assert "has 3 mistakes" in found
    assert all(key in found for key in ("mine.model.dept", "mine.model.width", "mine.batch_size"))


def test_a_file_that_git_does_not_know_is_told_of_in_dvc_s_copy(
    own_files: OwnFiles, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path_factory.mktemp("project")
    (project / "net.py").write_text(NET, encoding="utf-8")
    monkeypatch.setenv("DVC_ROOT", str(project))
    assert "`git add ./net.py` first" in told_of(own_files, model={"name": "./net.py:Net", "width": 8})


def test_plan_runs_nothing_of_it(own_files: OwnFiles) -> None:
    own_files.write("net.py", f"{NET}open('it_ran', 'w')\nraise SystemExit('it ran')\n")
    assert told_of(own_files, model={"name": "./net.py:Net", "width": 8}) == ""
    code_of_users([Reference.of("./net.py:Net")])
    command = [sys.executable, str(Path(__file__).parent.parent / "stages/plan.py")]
    ran = subprocess.run([*command, "--stages", "nowhere"], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (own_files.folder / "it_ran").exists()


def test_the_code_of_a_network_is_every_file_that_it_imports_and_the_versions_of_packages(own_files: OwnFiles) -> None:
    files = {
        "nets/__init__.py": "",
        "nets/net.py": "import torch, os\nfrom . import parts\nfrom .sub.deep import x\nfrom PIL import Image\n",
        "nets/parts.py": "def late():\n    import importlib\n    return importlib.import_module('helper')\n",
        "nets/sub/__init__.py": "",
        "nets/sub/deep.py": "try:\n    import nets.other as o\nexcept ImportError:\n    x = 1\n",
        "nets/other.py": "",
        "nets/unused.py": "",
        "helper.py": "",
    }
    for name, text in files.items():
        own_files.write(name, text)
    expected = {name: sha256_of_bytes(text.encode()) for name, text in files.items() if name != "nets/unused.py"}
    expected |= {f"package {name}": version(name) for name in ("torch", "pillow")}
    assert code_of_users([Reference.of("./nets/net.py:Net")]) == expected
    assert code_of_users([Reference.of("torch.nn:Linear")]) == {"package torch": version("torch")}


def test_code_on_the_path_of_python_counts_by_its_files_too(
    own_files: OwnFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "lib/layers.py": "import deeper\n",
        "lib/deeper.py": "",
        "net.py": "from layers import x\n",
    }.items():
        own_files.write(name, text)
    monkeypatch.syspath_prepend(str(own_files.folder / "lib"))
    assert code_of_users([Reference.of("./net.py:Net")]).keys() == {"net.py", "lib/layers.py", "lib/deeper.py"}
    assert code_of_users([Reference.of("layers:Net")]).keys() == {"lib/layers.py", "lib/deeper.py"}


def test_a_project_may_lie_in_a_folder_that_is_called_like_one_of_packages(
    own_files: OwnFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_files.write("my-packages/project/nets/net.py", NET)
    monkeypatch.chdir(own_files.folder / "my-packages/project")
    assert "nets/net.py" in code_of_users([Reference.of("nets.net:Net")])


def test_two_files_that_python_would_take_for_one_are_refused(own_files: OwnFiles) -> None:
    for name in ("a/net.py", "b/loss.py"):
        own_files.write(name, "import tools\n")
        own_files.write(f"{name[0]}/tools.py", "")
    with pytest.raises(MistakeError, match=r"tools\.py and .*tools\.py have the same name"):
        code_of_users([Reference.of("./a/net.py:Net"), Reference.of("./b/loss.py:Loss")])


def test_code_that_changed_after_plan_read_it_is_refused(own_files: OwnFiles) -> None:
    name = own_files.write("net.py", NET)
    code = code_of_users([Reference.of(f"{name}:Net")])
    refuse_changed_code(code)
    own_files.write("net.py", f"{NET}# a comment\n")
    with pytest.raises(UserError, match=r"net\.py is not what it was when `plan` read it"):
        refuse_changed_code(code)
