"""Search for the commit that made a training slower, by bisection with the gate."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from photofinish.config.loader import read_params
from photofinish.errors import UserError
from photofinish.git import git
from photofinish.regressions.change import Change
from photofinish.regressions.gate import (
    PARAMS,
    common_commit,
    comparable,
    compare,
    described,
    exported,
    working_tree,
)
from photofinish.regressions.sides import Checkout, TimedTraining
from photofinish.wording import ratio


def find(good: str, allowed: float) -> None:
    """For each slower training, print the commit since `good` that made it slower.

    Raise UserError if a training is slower.
    """
    work, slower = working_tree(), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        base = exported(work, common_commit(good), folder / "base")
        head = exported(work, git(Path(), "rev-parse", "HEAD"), folder / "head")
        for training in comparable(base, head, work):
            change = compare(training, base, head, work, allowed)
            print(f"{training} since {base.title}: {described(change)}", flush=True)
            if change and change.is_too_slow:
                found = _Bisection(training, base, work, allowed, folder).run()
                print(f"{training}: {found}", flush=True)
                slower.append(str(training))
    if slower:
        raise UserError(
            f"more than {ratio(allowed)} times as long as at {base.title}: {', '.join(slower)}"
        )


@dataclass(frozen=True)
class _Bisection:
    """Search for the first commit at which a training is slower than at the base."""

    training: TimedTraining
    base: Checkout
    work: Checkout
    allowed: float
    folder: Path
    """Folder for the files of commits."""

    def run(self) -> str:
        """Return a line about the first slow commit. HEAD is slow, and the base is not."""
        slow, fast, skipped = git(Path(), "rev-parse", "HEAD"), [self.base.title], set[str]()
        while left := [commit for commit in _between(slow, fast) if commit != slow]:
            untested = [commit for commit in left if commit not in skipped]
            if not untested:
                names = ", ".join(commit[:10] for commit in (*left, slow))
                return f"slower from one of these on, of which only the last is clear: {names}"
            commit = untested[0]
            try:
                change = self._change(self.base, commit)
            except UserError as error:
                print(f"  {commit[:10]}: skipped: {error}", flush=True)
                skipped.add(commit)
                continue
            print(f"  {commit[:10]}: {described(change)}", flush=True)
            if change and change.is_too_slow:
                slow = commit
            elif change and not change.is_clear:
                skipped.add(commit)
            else:
                fast.append(commit)
        return self._confirmed(slow)

    def _confirmed(self, commit: str) -> str:
        """Compare the first slow commit with its parent, and describe both."""
        title = f"{commit[:10]} ({git(Path(), 'log', '-1', '--format=%s', commit)})"
        change = self._change(self._checkout(git(Path(), "rev-parse", f"{commit}^")), commit)
        if change and change.is_too_slow:
            return f"slower from {title} on: {described(change)}"
        return (
            f"{title} is the first that is slower than {self.base.title}, but not than the commit "
            f"before it: {described(change)}"
        )

    def _change(self, before: Checkout, commit: str) -> Change | None:
        """Compare a commit with another. Raise UserError if it can't train."""
        after = self._checkout(commit)
        if self.training.name not in read_params(after.folder / PARAMS).experiments:
            raise UserError(f"it has no experiment {self.training.name}")
        return compare(self.training, before, after, self.work, self.allowed)

    def _checkout(self, commit: str) -> Checkout:
        return exported(self.work, commit, self.folder / commit)


def _between(slow: str, fast: list[str]) -> list[str]:
    """Return the commits that may be the first slow commit. Begin with the best to test."""
    lines = git(Path(), "rev-list", "--bisect-all", slow, "--not", *fast).splitlines()
    return [line.split()[0] for line in lines]
