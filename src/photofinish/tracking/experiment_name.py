"""Name of the project's experiment in MLflow. Does not import MLflow."""

from __future__ import annotations

import os
from pathlib import Path

from photofinish.files import write_text_atomically

OWN_EXPERIMENT = "photofinish"
"""Experiment in the project's own store."""


def experiment_name(root: Path, state: Path, *, is_shared: bool) -> str:
    """Return the name that MLFLOW_EXPERIMENT_NAME gives, or that the project got.

    In a store that others may share, it is that of the project's folder when it was first used. The
    state folder keeps it, so that a folder that is moved or copied keeps its experiment.
    """
    if name := os.environ.get("MLFLOW_EXPERIMENT_NAME"):
        return name
    if not is_shared:
        return OWN_EXPERIMENT
    file = state / "mlflow-experiment"
    if not file.is_file():
        write_text_atomically(file, root.name)
    return file.read_text(encoding="utf-8")
