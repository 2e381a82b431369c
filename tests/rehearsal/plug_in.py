"""Build of the simulated accelerator as a plug-in of PyTorch.

Every Python that has its folder on its path finds it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import torch

_SOURCES = Path(__file__).parent
_METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: rehearsal-device\nVersion: 1.0\n",
    "entry_points.txt": "[torch.backends]\nrehearsal = rehearsal_device:register\n",
}
_IN_A_WARM_PYTHON = """
import sys
if "torch" in sys.modules:
    import rehearsal_device
    rehearsal_device.register()
"""
"""Module sitecustomize, for a Python that had imported torch before (warm_python.py)."""


def compiler() -> str | None:
    wanted = os.environ.get("CXX", "c++")
    return shutil.which(wanted) or shutil.which("g++")


def build(folder: Path, compiler: str) -> None:
    """Into an empty folder; ten seconds or so."""
    distribution = folder / "rehearsal_device-1.0.dist-info"
    distribution.mkdir(parents=True)
    for name, text in _METADATA.items():
        (distribution / name).write_text(text, encoding="utf-8")
    shutil.copy2(_SOURCES / "rehearsal_device.py", folder)
    (folder / "sitecustomize.py").write_text(_IN_A_WARM_PYTHON, encoding="utf-8")
    installed = Path(torch.__file__).parent
    command = [
        compiler,
        "-std=c++20",
        "-O0",
        "-w",
        "-shared",
        "-fPIC",
        f"-I{installed / 'include'}",
    ]
    command += [str(_SOURCES / "device.cpp"), f"-L{installed / 'lib'}", "-lc10", "-ltorch_cpu"]
    command += ["-o", str(folder / "device.so")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
