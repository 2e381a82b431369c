"""Networks of timm, read from its source files: `plan` need not import it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from photofinish.custom.reference import TIMM, file_of_module
from photofinish.wording import did_you_mean

_NETWORK = re.compile(r"^@register_model\ndef (\w+)\(", re.MULTILINE)


def network_problem(name: str) -> str | None:
    """Return why timm has no such network, or None. The part after a dot names weights."""
    network, files = name.partition(".")[0], _files()
    if not files or any(network in names for names in files.values()):
        return None
    if any(f"'{network}'" in file.read_text(encoding="utf-8") for file in files):
        return None  # an old name
    networks = [each for names in files.values() for each in names]
    hint = did_you_mean(network, networks)
    return f"timm has no network {network};{hint} timm.list_models() has all"


@cache
def _files() -> dict[Path, list[str]]:
    """Return the networks that each file of timm defines."""
    package = file_of_module(f"{TIMM}.models")
    if package is None:
        return {}
    files = sorted(package.parent.glob("*.py"))
    return {file: _NETWORK.findall(file.read_text(encoding="utf-8")) for file in files}
