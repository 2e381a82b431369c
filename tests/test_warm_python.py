"""A program can't tell the tests' warm Python from another, but by what is imported already."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python

TELLS = """\
import json, os, sys
sys.stderr.write(f"{sys.stdin.read()} {'torch' in sys.modules}")
print(json.dumps([__name__, sys.argv[1:], sys.path, os.getcwd(), os.environ["SET"], sorted(os.sched_getaffinity(0))]))
"""
ENDS = {
    "nothing": "",
    "a status": "sys.exit(3)",
    "a text": "sys.exit('a mistake')",
    "an exception": "raise KeyError('x')",
    "a signal": "os.kill(os.getpid(), 9)",
    "something at exit": "atexit.register(lambda: print('at exit'))",
}

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="not on this system")


def run(folder: Path, *command: str, warm: bool, told: str = "") -> subprocess.CompletedProcess[str]:
    paths = str(Path(sys.executable).parent)
    environment = {
        "PATH": f"{warm_python.path(paths) if warm else paths}:/usr/bin:/bin",
        "SET": "ä",
        "PYTHONPATH": "/a:/b",
    }
    return subprocess.run(command, cwd=folder, env=environment, input=told, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("named", [["program.py"], ["-m", "program"]], ids=["script", "module"])
def test_it_has_the_callers_arguments_folder_environment_input_and_cores(tmp_path: Path, named: list[str]) -> None:
    (tmp_path / "program.py").write_text(TELLS, encoding="utf-8")
    core = str(min(os.sched_getaffinity(0)))
    cold, warm = (
        run(tmp_path, "taskset", "-c", core, "python", *named, "a", "b c", warm=warm, told="read")
        for warm in (False, True)
    )
    assert (cold.stderr, warm.stderr) == ("read False", "read True")
    assert warm.stdout == cold.stdout


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_it_ends_as_the_program_does(tmp_path: Path, end: str) -> None:
    (tmp_path / "program.py").write_text(f"import atexit, os, sys\nprint('begun')\n{end}\n", encoding="utf-8")
    cold, warm = (run(tmp_path, "python", "program.py", warm=warm) for warm in (False, True))
    assert (warm.returncode, warm.stdout) == (cold.returncode, cold.stdout)
    assert warm.stderr.splitlines()[-1:] == cold.stderr.splitlines()[-1:]
