"""A training beside the project's own, in a folder of its own: results, dvc.lock and MLflow's runs stay as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from photofinish.comparing.pairs import NotTrained, Recorded, read_run
from photofinish.errors import UserError
from photofinish.params.reader import Params, read_params
from photofinish.params.yaml_reader import YamlDocument
from photofinish.results.records import DeviceLabel


def with_values(params_file: Path, values: Mapping[str, Any], copy: Path) -> Params:
    """The settings with other values in some places: written to a copy, in which they are checked like any other."""
    settings: dict[str, Any] = YamlDocument(params_file).value
    for key, value in values.items():
        block = settings
        *above, last = key.split(".")
        for name in above:
            block[name] = block.get(name) or {}
            block = block[name]
        block[last] = value
    copy.write_text(json.dumps(settings, default=str), encoding="utf-8")  # JSON is YAML too
    return read_params(copy)


def run_apart(script: str, folder: Path, arguments: Mapping[str, Path | str], *, quietly: bool = False) -> bool:
    """A stage's script, where the user's code is, whose own files lie in the folder; whether it went well."""
    command = [sys.executable, str(Path.cwd() / "stages" / script)]
    command += [text for argument, value in arguments.items() for text in (f"--{argument}", str(value))]
    # Without what points to the user's MLflow: its runs, locks and checkpoints are in that folder too.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))}
    shown = subprocess.DEVNULL if quietly else None
    ran = subprocess.run(command, env={**environment, "DVC_ROOT": str(folder)}, stdout=shown, check=False)
    return ran.returncode == 0


def train_apart(name: str, device: DeviceLabel, folder: Path, what: str, **inputs: Path) -> Recorded:
    """As the stage does, by these of its arguments; `what` it is, for the message that it failed."""
    out = folder / "results" / name / device
    if not run_apart("train.py", folder, {"device": device, "out": out, **inputs}):
        raise UserError(f"{what} failed, as told above")
    run = read_run(name, out)
    if isinstance(run, NotTrained):
        raise UserError(f"{what} found no such device: {run.record.reason}")
    return run
