"""Files that scripts depend on, as `plan` finds them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import CustomFiles

from photofinish.config.scripts import Script
from photofinish.custom.imports import check_code_unchanged
from photofinish.planning.dependencies import dep_hashes, script_plan


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
