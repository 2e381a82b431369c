"""A data set class over a CSV, through `dvc repro`: what its code and its files change runs again, and nothing else."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from conftest import ONE_THREAD, Project
from image_files import BLUE, RED, write_picture

pytestmark = pytest.mark.slow

SOURCE = "examples/own-caltech101/images.py"


def stages_run(output: str) -> set[str]:
    return set(re.findall(r"^Running stage '(.*)'", output, re.MULTILINE))


def write_scans(root: Path, labels: dict[str, str]) -> None:
    with (root / "labels.csv").open("w", newline="") as table:
        csv.writer(table).writerows([("path", "label"), *labels.items()])


def test_a_changed_class_is_packed_again_and_trained_on_again_only_where_it_packs_something_else(
    project: Project,
) -> None:
    labels = {f"{name}/{number}.png": name for name in ("red", "blue") for number in range(20)}
    for number, path in enumerate(labels):
        colour = RED if "red" in path else BLUE
        write_picture(project.root / "scans" / path, (colour[0], number, colour[2]), width=20, height=12)
    write_scans(project.root / "scans", labels)
    project.environment["CUDA_VISIBLE_DEVICES"] = ""
    project.write_params(
        {
            "defaults": {"epochs": 20, "batch_size": 8, "optimizer": {"name": "adam", "lr": 0.01}},
            "devices": ONE_THREAD,
            "datasets": {
                "scans": {
                    "source": f"./{SOURCE}:Listed", "table": "scans/labels.csv", "side": 8, "files": "scans",
                    "validation": 0.25, "test": 0.25,
                },
            },
            "experiments": {
                "one": {
                    "dataset": "scans",
                    "model": {"name": "./examples/own-network/net.py:Net", "width": 4},
                    "loss": {"name": "./examples/own-network/losses.py:Focal", "gamma": 2.0},
                    "metrics": ["./examples/own-network/metrics.py:top"],
                },
            },
        }
    )  # fmt: skip
    again = {"plan", "download@scans", "split@scans"}
    output = project.repro()
    assert stages_run(output) > again
    assert "train 20, validation 10, test 10\n2 classes: blue, red" in output
    assert "one on cpu: 100.00% test accuracy" in output

    source = project.root / SOURCE
    source.write_text(source.read_text() + "# a comment\n")
    assert stages_run(project.repro()) == again

    write_scans(project.root / "scans", dict(list(labels.items())[2:]))
    assert stages_run(project.repro("split@scans")) == again
    assert "train-cpu@one" in project.stages_to_run()
