"""Findings of the probe. Each is printed and written at once, so that it outlives its part."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.machine import describe
from photofinish.training.torch_device import CPU, accelerator, device_name

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    part: str
    what: str
    variant: str
    value: float | str | None
    """None if it could not be checked."""
    unit: str
    note: str

    def __str__(self) -> str:
        shown = f"{self.value:.4g}" if isinstance(self.value, float) else self.value
        value = "NOT CHECKED" if self.value is None else f"{shown} {self.unit}".strip()
        variant, note = (
            f" ({self.variant})" if self.variant else "",
            f"  [{self.note}]" if self.note else "",
        )
        return f"{self.part}: {self.what}{variant}: {value}{note}"


class Findings:
    """Findings of one part."""

    def __init__(self, part: str, file: Path) -> None:
        self._part, self._file = part, file

    def add(
        self, what: str, value: float | str, unit: str = "", *, variant: str = "", note: str = ""
    ) -> None:
        """Keep a figure or an outcome."""
        self._keep(Finding(self._part, what, variant, value, unit, note))

    def skip(self, what: str, why: str, *, variant: str = "") -> None:
        """Keep that something could not be checked here, which is no failure."""
        self._keep(Finding(self._part, what, variant, None, "", why))

    @contextmanager
    def failures_kept(self, what: str, variant: str = "") -> Iterator[None]:
        """Keep an exception as a finding, so that the next variant is tried too."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            first_line = str(error).strip().partition("\n")[0]
            self.add(what, "FAILED", variant=variant, note=f"{type(error).__name__}: {first_line}")

    def _keep(self, finding: Finding) -> None:
        print(finding, flush=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(finding)) + "\n")


def here(*, make_current: bool = True) -> torch.device:
    """Return the accelerator, or the CPU where there is none."""
    return (
        accelerator("auto", make_current=make_current) if torch.accelerator.is_available() else CPU
    )


def provenance() -> dict[str, str]:
    """Return all that the figures depend on."""
    device = here(make_current=False)  # a part may want the GPU to itself
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "devices": str(torch.accelerator.device_count()),
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda or torch.version.hip),
        "cuDNN": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "commit": _said("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
        "sources_sha256": _sources_sha256(),
        "system": platform.platform(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["compute capability"] = f"{properties.major}.{properties.minor}"
        facts["memory"] = f"{properties.total_memory / 2**30:.1f} GiB"
    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("CUDA_", "PYTORCH_", "NVIDIA_"))
    }
    return {**describe(torch.get_num_threads()), **facts, **variables}


def _said(*command: str) -> str:
    """Return the first line that a program prints."""
    try:
        ran = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return ran.stdout.split("\n")[0].strip()


def _sources_sha256() -> str:
    """Return a hash of the sources, since a copied tree may have no commit."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def read(files: Iterable[Path]) -> list[Finding]:
    """Read findings. The last line of a part that was killed may be cut."""
    findings = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                findings.append(Finding(**json.loads(line)))
            except json.JSONDecodeError:
                continue
    return findings


def write(out: Path, facts: dict[str, str], findings: list[Finding]) -> None:
    """Write all findings and their provenance to probe.json."""
    whole = {"provenance": facts, "findings": [asdict(finding) for finding in findings]}
    (out / "probe.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
