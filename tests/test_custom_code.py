"""`plan` reads custom code without running it, and finds every file that it runs."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import CustomFiles, run_command
from source_imports import ROOT

from photofinish.config.loader import read_params
from photofinish.custom.code_text import sha256_of_code
from photofinish.custom.imports import check_code_unchanged, custom_code_hashes
from photofinish.custom.reference import CodeReference
from photofinish.errors import ConfigError, UserError
from photofinish.planning.checks import check_custom_code_calls

FILES = {
    "net.py": "from torch import nn\nclass Net(nn.Module):\n"
    "    def __init__(self, width, depth=2, *, classes): pass\n",
    "losses.py": "def focal(outputs, labels, gamma=2.0): ...\n"
    "class Focal:\n    def __init__(self, gamma): ...\n",
    "broken.py": "x = 1\nclass Net(:\n",
    "heir.py": "from net import Net as Base\nclass Net(Base): pass\n",
    "tries.py": "try:\n    import lightning\nexcept ImportError:\n    def Net(classes): ...\n",
    "decorated.py": "from elsewhere import give\n@give(width=8)\ndef Net(width): ...\n",
}


def problems_of(custom_files: CustomFiles, **settings: Any) -> str:
    """Return what `plan` reports of an experiment with these settings."""
    experiment = {"dataset": "digits", "model": "linear", "optimizer": {"name": "sgd", "lr": 0.1}}
    document = {
        "datasets": {"digits": {"source": "digits", "validation": 0.1, "test": 0.1}},
        "experiments": {"mine": {**experiment, "epochs": 1, "batch_size": 8, **settings}},
    }
    path = custom_files.folder / "params.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        read_params(path, check_custom_code_calls)
    except ConfigError as error:
        return str(error)
    return ""


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
]


@pytest.mark.parametrize(("settings", "problem"), CALLS, ids=str)
def test_a_wrong_call_of_custom_code_is_reported_with_its_line(
    custom_files: CustomFiles, settings: dict[str, Any], problem: str
) -> None:
    for name, text in FILES.items():
        custom_files.write(name, text)
    problems = problems_of(custom_files, **settings)
    assert (problems == "") == (problem == "")
    assert problem in problems
    key = f"experiments.mine.{next(iter(settings))}"
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


def test_plan_runs_no_custom_code(custom_files: CustomFiles) -> None:
    custom_files.write(
        "net.py", f"{FILES['net.py']}open('it_ran', 'w')\nraise SystemExit('it ran')\n"
    )
    assert problems_of(custom_files, model={"name": "./net.py:Net", "width": 8}) == ""
    command = [sys.executable, str(ROOT / "stages/plan.py"), "--stages", "nowhere"]
    ran = run_command(command, custom_files.folder)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (custom_files.folder / "it_ran").exists()


def test_the_code_of_a_network_is_each_file_it_imports_and_the_versions_of_packages(
    custom_files: CustomFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "nets/__init__.py": "",
        "nets/net.py": "import torch, os\nfrom . import parts\nfrom .sub.deep import x\n"
        "from PIL import Image\n",
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
def test_an_error_of_custom_code_is_shown_from_the_users_first_line_on(
    custom_files: CustomFiles, source: str
) -> None:
    custom_files.write("net.py", f"{source}\nclass Net: pass\n")
    with pytest.raises(UserError, match=r"can't be imported:\n  File \".*net\.py\"(.|\n)*no"):
        CodeReference.of("./net.py:Net").load()
    assert Path.cwd() == custom_files.folder
