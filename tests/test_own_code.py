"""Custom code: `plan` reads it without running it, and finds every file that it runs."""

from __future__ import annotations

import io
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import OwnFiles

from photofinish.config.loader import read_params
from photofinish.custom_code import Reference
from photofinish.errors import ConfigError, UserError
from photofinish.files import sha256_of_bytes
from photofinish.plan import faults_in_own_code
from photofinish.source_code import check_code_unchanged, code_of_users

NET = "from torch import nn\nclass Net(nn.Module):\n    def __init__(self, width, depth=2, *, classes): pass\n"
LOSSES = "def focal(outputs, labels, gamma=2.0): ...\nclass Focal:\n    def __init__(self, gamma): ...\n"


def told_of(own_files: OwnFiles, **settings: Any) -> str:
    """Return what `plan` reports of an experiment with these settings."""
    experiment = {"dataset": "digits", "model": "linear", "optimizer": {"name": "sgd", "lr": 0.1}}
    document = {
        "datasets": {"digits": {"source": "digits", "validation": 0.1, "test": 0.1}},
        "experiments": {"mine": {**experiment, "epochs": 1, "batch_size": 8, **settings}},
    }
    path = own_files.folder / "params.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        read_params(path, faults_in_own_code)
    except ConfigError as error:
        return str(error)
    return ""


MISTAKES = [
    ({"model": {"name": "./net.py:Net", "width": 8}}, ""),
    ({"model": {"name": "./net.py:Net", "width": 8, "classes": 3}}, ""),  # which the trainer gives too
    ({"model": {"name": "./nets.py:Net"}}, "there is no file"),
    ({"model": {"name": "./net.py:Nett", "width": 8}}, "has no Nett; did you mean 'Net'?"),
    ({"model": {"name": "./net.py"}}, "name code as file.py:Name"),
    ({"model": {"name": "./net.py:Net", "width": 8, "dept": 3}}, "unknown argument; did you mean 'depth'?"),
    ({"model": {"name": "./net.py:Net"}}, "takes width, and has no default for it"),
    ({"model": {"name": "./broken.py:Net"}}, "./broken.py, line 2: invalid syntax"),
    ({"model": {"name": "./random.py:Net"}}, "name of a module of Python's own"),
    ({"model": {"name": "./decorated.py:Net"}}, ""),  # only running it would show what it takes
    ({"model": {"name": "./tries.py:Net"}}, ""),
    ({"model": {"name": "./heir.py:Net", "anything": 1}}, ""),  # found when the stage starts
    ({"model": {"name": "nowhere.nets:Net"}}, "there is no module nowhere.nets"),
    ({"model": {"name": "torch.nn.modules.linear:Linear", "in_features": 1, "out_features": 2}}, ""),
    ({"model": {"name": "torch.nn.modules.linear:Linear", "in_feature": 1}}, "did you mean 'in_features'?"),
    ({"model": {"name": "timm:resnet18", "pretrained": True}}, ""),
    ({"loss": "./losses.py:focal"}, ""),
    ({"loss": {"name": "./losses.py:focal", "gama": 1}}, "did you mean 'gamma'?"),
    ({"loss": "./losses.py:Focal"}, "takes gamma, and has no default"),
    ({"loss": "cross_entropi"}, "did you mean 'cross_entropy'?"),
    ({"metrics": ["accuracy", {"name": "f1_score", "average": "macro"}, "./losses.py:focal"]}, ""),
    ({"metrics": ["mean_absolut_error"]}, "did you mean 'mean_absolute_error'?"),
    ({"metrics": ["./losses.py:focl"]}, "has no focl; did you mean 'Focal'? it defines Focal, focal"),
    ({"metrics": ["accuracy", "accuracy"]}, "two metrics have one name"),
]


@pytest.mark.parametrize(("settings", "problem"), MISTAKES, ids=str)
def test_what_is_wrong_with_custom_code_is_reported_with_its_line(
    own_files: OwnFiles, settings: dict[str, Any], problem: str
) -> None:
    own_files.write("net.py", NET)
    own_files.write("losses.py", LOSSES)
    own_files.write("broken.py", "x = 1\nclass Net(:\n")
    own_files.write("random.py", NET)
    own_files.write("heir.py", "from net import Net as Base\nclass Net(Base): pass\n")
    own_files.write("tries.py", "try:\n    import lightning\nexcept ImportError:\n    def Net(classes): ...\n")
    own_files.write("decorated.py", "from elsewhere import give\n@give(width=8)\ndef Net(width): ...\n")
    found = told_of(own_files, **settings)
    assert (found == "") == (problem == "")
    assert problem in found
    assert not problem or ("params.yaml:" in found and f"experiments.mine.{next(iter(settings))}" in found)


def test_all_arguments_are_checked_at_once(own_files: OwnFiles) -> None:
    own_files.write("net.py", NET)
    problems = told_of(own_files, model={"name": "./net.py:Net", "dept": 3})
    assert "has 2 mistakes" in problems
    assert all(key in problems for key in ("mine.model.dept", "mine.model.width"))


def test_a_file_that_git_does_not_know_is_named_in_a_copy_of_dvc(
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
        "nets/parts.py": "def late():\n    import helper\n    from plain.layers import y\n",
        "nets/sub/__init__.py": "",
        "nets/sub/deep.py": "try:\n    import nets.other as o\nexcept ImportError:\n    x = 1\n",
        "nets/other.py": "",
        "nets/unused.py": "",
        "helper.py": "",
        "plain/layers.py": "y = 1\n",  # in a folder without __init__.py
    }
    for name, text in files.items():
        own_files.write(name, text)
    expected = {name: sha256_of_bytes(text.encode()) for name, text in files.items() if name != "nets/unused.py"}
    expected |= {f"package {name}": version(name) for name in ("torch", "pillow")}
    assert code_of_users([Reference.of("./nets/net.py:Net")]) == expected
    assert code_of_users([Reference.of("nets.net:Net")]) == expected
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


def test_two_files_that_python_would_take_for_one_are_refused(own_files: OwnFiles) -> None:
    for name in ("a/net.py", "b/loss.py"):
        own_files.write(name, "import tools\n")
        own_files.write(f"{name[0]}/tools.py", "")
    with pytest.raises(ConfigError, match=r"tools\.py and .*tools\.py have the same name"):
        code_of_users([Reference.of("./a/net.py:Net"), Reference.of("./b/loss.py:Loss")])


def test_code_that_changed_after_plan_read_it_is_refused(own_files: OwnFiles) -> None:
    name = own_files.write("net.py", NET)
    code = code_of_users([Reference.of(f"{name}:Net")])
    check_code_unchanged(code)
    own_files.write("net.py", f"{NET}# a comment\n")
    with pytest.raises(UserError, match=r"net\.py changed after `plan` read it"):
        check_code_unchanged(code)


RAISES = {
    "Exception": "raise ValueError('no')",
    "BaseException": "class Odd(BaseException): pass\nraise Odd('no')",
    "sys.exit": "import sys\nsys.exit('no')",
    "another folder": "import os\nos.chdir('/')\nraise ValueError('no')",
}


@pytest.mark.parametrize("source", RAISES.values(), ids=RAISES)
def test_what_custom_code_raises_is_shown_from_the_users_first_line_on(own_files: OwnFiles, source: str) -> None:
    own_files.write("net.py", f"{source}\nclass Net: pass\n")
    with pytest.raises(UserError, match=r"net\.py can't be imported:\n  File \".*net\.py\"") as raised:
        Reference.of("./net.py:Net").load()
    assert "no" in str(raised.value)
    assert Path.cwd() == own_files.folder


def test_custom_code_that_closes_stdout_is_reported(own_files: OwnFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    own_files.write("net.py", "import sys\nsys.stdout.close()\nclass Net: pass\n")
    monkeypatch.setattr("sys.stdout", io.StringIO())
    with pytest.raises(UserError, match=r"net\.py can't be imported: it closed sys\.stdout"):
        Reference.of("./net.py:Net").load()


def test_a_module_of_the_same_name_that_is_imported_already_is_reported(own_files: OwnFiles) -> None:
    own_files.write("a/net.py", "class Net: pass\n")
    own_files.write("b/net.py", "class Net: pass\n")
    Reference.of("./a/net.py:Net").load()
    with pytest.raises(UserError, match="has the same name"):
        Reference.of("./b/net.py:Net").load()
