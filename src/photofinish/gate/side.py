"""One side of the gate: a process that trains a commit's experiment in turns.

`python -m photofinish.gate.side` runs in the folder of the commit's params.yaml. Its arguments are
the training's name, its device, the folders of its data and weights, and the folder of the other
commit, if any. It prints the training's identity. After a line of input, it prepares the training
and prints the number of steps in an epoch. Each further line is a number of steps to train,
answered by a `Turn`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from photofinish.config.experiment import ExperimentPlan, custom_code_of
from photofinish.config.loader import read_params
from photofinish.custom.imports import custom_code_hashes
from photofinish.errors import UserError
from photofinish.machine.fingerprint import fingerprint
from photofinish.planning.plan import dep_hashes
from photofinish.results.trained import DeviceLabel
from photofinish.runs.run import Run
from photofinish.stage.process import run_stage

_MANY_EPOCHS = 10_000
"""More epochs than all turns take, because some schedules fail after their last epoch."""


def main() -> None:
    name, label, data, weights, *others = sys.argv[1:]
    # Custom code may print to standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    run = run_here(name, "cpu" if label == "cpu" else "gpu", Path(data), Path(weights))
    print(run.identity(), file=answers, flush=True)
    if not sys.stdin.readline():
        return
    # Imported here, because torch takes seconds and equal trainings need none.
    from photofinish.gate.turns import Turns
    from photofinish.runs.distributed import team_for
    from photofinish.runs.setup import Setup, torch_configured

    with team_for(run, None) as team, torch_configured(run, team):
        trainer = Setup(run, team).new_trainer()
        turns = Turns(trainer)
        for other in others:
            _check_modules(Path(other))
        print(trainer.steps_per_epoch, file=answers, flush=True)
        for line in sys.stdin:
            print(*turns.take(int(line)), file=answers, flush=True)


def run_here(name: str, device: DeviceLabel, data: Path, weights: Path) -> Run:
    """Return this commit's experiment, on the working tree's data and this machine."""
    params = read_params(Path("params.yaml"))
    experiment = params.experiments[name]
    parts = custom_code_of(experiment.model_copy(update={"metrics": ()}))
    code = custom_code_hashes([part.reference for part in parts.values() if part.is_custom])
    # Both sides read the same file at an absolute path.
    code |= dep_hashes(dep for dep in experiment.deps if not Path(dep).expanduser().is_absolute())
    settings = dict(experiment) | {"epochs": _MANY_EPOCHS, "metrics": (), "time_limit": None}
    plan = ExperimentPlan(**settings, monitored=experiment.monitored_metric(), custom_code=code)
    cpu_host, gpu_host = fingerprint(params.devices)
    host = cpu_host if device == "cpu" else gpu_host
    return Run(name, device, plan, host, data, Path(), weights)


def _check_modules(other: Path) -> None:
    """Raise UserError if the other commit's code was imported, so that sides are equal."""
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "/")
        if file.is_relative_to(other) and not {"site-packages", ".venv"} & {*file.parts}:
            raise UserError(
                f"{file} would run for both commits: name the file in params.yaml by its path, "
                f"as in ./{file.name}:Name"
            )


if __name__ == "__main__":
    run_stage(main)
