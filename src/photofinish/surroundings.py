"""What the plan follows from besides params.yaml, and DVC can't see: the machine, the sources, the user's images.

The stage `surroundings` writes it down at every `dvc repro`, so that `plan`, and DVC's rewriting of dvc.lock after it,
take place only where something is new. That has to be quick: nothing here imports pydantic unless it must."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from photofinish.data.local_files import sha256_of_local_files
from photofinish.errors import MistakeError, UserError
from photofinish.files import sha256_of_bytes, sha256_of_file, source_sha256
from photofinish.machine.accelerators import AcceleratorFacts, Accelerators, all_accelerators
from photofinish.machine.cpu import cpu_facts
from photofinish.machine.memory import total_memory_bytes
from photofinish.machine.software import GPU_VARIABLES, software_facts

_MAY_NAME_LOCAL_FILES = re.compile(rb"csv|folder")
"""the sources of such a data set; where neither is named, the schema isn't imported: that takes longer than the rest"""


def surroundings(params: Path, stages: Path, references: Path) -> dict[str, Any]:
    mirror = os.environ.get("PHOTOFINISH_MIRROR")
    return {
        "cpu": asdict(cpu_facts()),
        "accelerators": {
            kind: found if isinstance(found, str) else [asdict(gpu) for gpu in found]
            for kind, found in all_accelerators().items()
        },
        "software": asdict(software_facts(GPU_VARIABLES)),
        "main_memory_bytes": total_memory_bytes(),
        "mirror": mirror and sha256_of_bytes(mirror.encode()),  # its address may hold a password
        "package": source_sha256(),
        "scripts": {script.name: sha256_of_file(script) for script in sorted(stages.glob("*.py"))},
        "references": sorted(path.name for path in references.glob("*/")),
        "local_files": _local_files(params, references),
    }


def _local_files(params: Path, references: Path) -> dict[str, str] | None:
    """None as long as `plan`, which explains all mistakes, has some to tell of."""
    try:
        if not _MAY_NAME_LOCAL_FILES.search(params.read_bytes()):
            return {}
    except OSError:
        return None
    from photofinish.data.local_files import misplaced
    from photofinish.params.reader import read_params

    try:
        return sha256_of_local_files(read_params(params, lambda found: misplaced(found, references)).datasets)
    except MistakeError:
        return None


def accelerators_seen(path: Path) -> Accelerators:
    """As `surroundings` wrote them down: were they looked at again and a driver failed to answer just then, the plan
    would have no GPU, and keep it so as long as the surroundings stay the same."""
    try:
        seen = json.loads(path.read_bytes())["accelerators"]
        return {
            kind: found if isinstance(found, str) else tuple(AcceleratorFacts(**gpu) for gpu in found)
            for kind, found in seen.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} can't be read: run `dvc repro` ({error})") from error
