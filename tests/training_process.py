"""A training stage without MLflow that kills itself at a chosen moment. Imports little: each process does it anew."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

FILE_OPERATIONS = frozenset(
    {"os.chmod", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "tempfile.mkstemp"}
)
RENAMES = frozenset({"os.rename"})


@dataclass(frozen=True)
class KillBefore:
    """The process kills itself just before its n-th operation on files, counted from 1."""

    number: int
    operations: frozenset[str] = FILE_OPERATIONS


NEVER = KillBefore(0)


class NoTracker:
    """In place of MLflow, whose start would take most of the time of a test that kills dozens of trainings."""

    waited_seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def start(self, *_told: object) -> None: ...

    def wait_until_ready(self) -> None: ...

    def epoch_ended(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None: ...

    def training_ended(self, *_told: object) -> None: ...

    def sync(self, *_told: object) -> None: ...


def train(folder: Path, data: Path, out: Path, kill: KillBefore, dvc_stage: str | None) -> None:
    """The whole stage but MLflow, with a checkpoint after every epoch; as DVC runs it if the stage has a name there."""
    from photofinish.runs import stage as train_stage
    from photofinish.runs import train as training

    os.chdir(folder)
    if dvc_stage:
        os.environ["DVC_STAGE"] = dvc_stage
    training.CHECKPOINT_SECONDS = 0
    train_stage.Tracker = NoTracker  # type: ignore[assignment, misc]
    seen: list[str] = []

    def note(event: str, _arguments: tuple[object, ...]) -> None:
        if event in kill.operations:
            seen.append(event)
            if len(seen) == kill.number:
                os.kill(os.getpid(), signal.SIGKILL)

    with (folder / "output.txt").open("w", encoding="utf-8", buffering=1) as sys.stdout:
        sys.addaudithook(note)
        train_stage.train("cpu", Path("small.json"), Path("cpu.json"), data, None, out)
        operations = list(seen)
    (folder / "operations.txt").write_text("\n".join(operations), encoding="utf-8")
