"""Git's commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from photofinish.errors import UserError


def git(
    folder: Path, *arguments: str, timeout_seconds: float | None = None, **variables: str
) -> str:
    """Return git's output, or raise UserError. `variables` are added to the environment."""
    ran = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_seconds,
    )
    if ran.returncode:
        raise UserError(
            f"git {arguments[0]} in {folder.resolve()}: {ran.stderr.strip() or 'failed'}"
        )
    return ran.stdout.strip()


def git_succeeds(*arguments: str) -> bool:
    try:
        git(Path(), *arguments)
    except UserError:
        return False
    return True
