"""MLflow's mirror of the results, and the name of the project's experiment in it.

A stage uses `client.Tracker`. Importing this needs no MLflow.
"""

from __future__ import annotations

import os
from pathlib import Path

from photofinish.files import write_text_atomically

# MLflow reads these variables at import. By default, it retries a missing server for four minutes.
for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}.items():
    os.environ.setdefault(_name, _value)

OWN_EXPERIMENT = "photofinish"
"""Name of the experiment in the project's own store."""


def experiment_name(root: Path, state: Path, *, is_shared: bool) -> str:
    """Return the name in MLFLOW_EXPERIMENT_NAME, or else the project's name.

    In a shared store, the project's name is its folder's name at the first use. The state folder
    stores the name, so that a moved or copied folder keeps its experiment.
    """
    if name := os.environ.get("MLFLOW_EXPERIMENT_NAME"):
        return name
    if not is_shared:
        return OWN_EXPERIMENT
    file = state / "mlflow-experiment"
    if not file.is_file():
        write_text_atomically(file, root.name)
    return file.read_text(encoding="utf-8")


def first_line(error: Exception) -> str:
    """Return the error's first line, without the SQL or HTML that may follow."""
    return next(iter(str(error).strip().splitlines()), repr(error))
