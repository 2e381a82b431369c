"""Stages that take no time, in the place of a project's own: they write down what they are told, and leave what they
are given to leave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """\
import os, pathlib, shutil, sys
script, arguments = pathlib.Path(sys.argv[0]).stem, dict(zip(sys.argv[1::2], sys.argv[2::2]))
told = " ".join([script, *(f"{{name[2:]}}={{value}}" for name, value in arguments.items())])
with open({log!r}, "a") as file:
    print(told.replace(os.environ["DVC_ROOT"], "APART").replace(os.getcwd(), "PROJECT"), file=file)
for name, value in arguments.items():
    if os.path.isfile(value):
        shutil.copy(value, os.path.join({read!r}, f"{{script}}-{{name[2:]}}"))
if {leaves!r}:
    shutil.copytree({leaves!r}, arguments["--out"])
"""


@dataclass(frozen=True)
class StandInStages:
    """What they have been told, in a folder beside the project."""

    folder: Path

    @classmethod
    def put(cls, project: Path, folder: Path, leaves: dict[str, Path | None]) -> StandInStages:
        """Write one for each name, which leaves a copy of that folder as its `--out`."""
        folder.mkdir()
        (project / "stages").mkdir()
        for name, left in leaves.items():
            script = _SCRIPT.format(log=str(folder / "told.txt"), read=str(folder), leaves=str(left) if left else "")
            (project / "stages" / f"{name}.py").write_text(script, encoding="utf-8")
        return cls(folder)

    @property
    def told(self) -> list[str]:
        """Script and arguments of each that ran; APART is its own root, PROJECT the project's."""
        return (self.folder / "told.txt").read_text(encoding="utf-8").splitlines()

    def read(self, script: str, argument: str) -> str:
        """The file that this argument named when the script ran last."""
        return (self.folder / f"{script}-{argument}").read_text(encoding="utf-8")
