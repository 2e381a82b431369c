"""Clones of this project at a commit: what a worker trains in, and where a head plans for further machines."""

from __future__ import annotations

import os
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from photofinish.errors import UserError

_OF_NO_TRAINING = ("dvc.lock", "metrics", "plots", "reference")


def git(folder: Path, *arguments: str) -> str:
    """What it prints; its own words where it fails."""
    ran = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise UserError(f"git {arguments[0]} in {folder.resolve()}: {ran.stderr.strip() or 'failed'}")
    return ran.stdout.strip()


def committed(folder: Path) -> str:
    """The commit that the project is at. Changes beside it would train nowhere else, so they are refused."""
    changed = git(folder, "status", "--porcelain", "--", ".", *(f":!{path}" for path in _OF_NO_TRAINING))
    if changed:
        raise UserError(
            f"these aren't committed, so no other machine has them: commit them (and push), then run again\n{changed}"
        )
    return git(folder, "rev-parse", "HEAD")


def clone_at(source: Path, folder: Path, commit: str) -> None:
    """Bring `folder`, a clone of the project in `source` with its DVC remotes and cache, to a commit."""
    source = source.resolve()
    if not (folder / ".git").is_dir():
        git(source, "clone", "--quiet", "--no-checkout", str(source), str(folder.resolve()))
    if not _has(folder, commit):
        _fetch(source, folder, commit)
    if not (folder / "dvc.yaml").is_file() or git(folder, "rev-parse", "HEAD") != commit:
        git(folder, "checkout", "--quiet", "--force", "--detach", commit)
    _share_dvc(source / ".dvc", folder / ".dvc")


def environment_of(clone: Path) -> dict[str, str]:
    """For programs in a clone: the Python that runs this, with the clone's own code."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("DVC_")}
    for name, folder in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", (clone / "src").resolve())):
        own[name] = os.pathsep.join(filter(None, [str(folder), own.get(name)]))
    return own


def _has(folder: Path, commit: str) -> bool:
    asked = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    return not subprocess.run(asked, cwd=folder, capture_output=True, check=False).returncode


def _fetch(source: Path, folder: Path, commit: str) -> None:
    """From the project's own clone, or from where that was cloned from."""
    origins = [str(source)]
    if "origin" in git(source, "remote").split():
        origins.append(git(source, "remote", "get-url", "origin"))
    for origin in origins:
        git(
            source,
            "-C",
            str(folder.resolve()),
            "fetch",
            "--quiet",
            origin,
            "+HEAD:refs/fleet/HEAD",
            "+refs/heads/*:refs/fleet/*",
        )
        if _has(folder, commit):
            return
    raise UserError(f"the commit {commit[:12]} is not in {origins[-1]}: `git push` it there, then `make spread` again")


def _share_dvc(own: Path, clones: Path) -> None:
    """Remotes and cache as the project has them, its local settings included; relative paths made absolute."""
    settings = ConfigParser(interpolation=None)
    settings.read([own / "config", own / "config.local"], encoding="utf-8")
    if not settings.has_section("cache"):
        settings.add_section("cache")
    if "dir" not in settings["cache"]:
        settings["cache"]["dir"] = "cache"
    for section in settings.sections():
        for key in {"url", "dir"} & set(settings[section]):
            place = settings[section][key]
            if "://" not in place and not place.startswith("~"):
                settings[section][key] = str((own / place).resolve())
    with (clones / "config.local").open("w", encoding="utf-8") as file:
        settings.write(file)
