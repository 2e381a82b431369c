"""How busy the machine was while a network trained: the raw figures, and when they make a timing doubtful."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pydantic import BaseModel, ConfigDict

MOST_SHARE_OF_OTHERS = 0.10
"""of the cores"""
MOST_SHARE_WAITED = 0.10
"""of the time that threads wanted a core"""
MOST_PAGES_A_SECOND = 50
DOUBTFUL_SHARE = 0.10
"""of the time watched: what happens in less of it, medians pass over"""
_TICKS_SECONDS = 0.05
"""The system counts the time of processes in hundredths of a second; a few of them are no evidence."""


class LoadWindow(BaseModel):
    """From one reading to the next; both lie between epochs."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    repeat: int
    """from 1"""
    last_epoch: int
    wall_seconds: float
    cores: int
    """that this process may use"""
    own_cpu_seconds: float
    """of the training and all processes it started"""
    others_cpu_seconds: float
    """of everything else, on the same cores"""
    waited_for_core_seconds: float | None
    """how long this process's threads were ready to run and had no core; only Linux tells"""
    major_page_faults: int
    """pages that had to be read from a disk"""
    swapped_pages: int | None
    """of the whole machine, in and out; only Linux tells"""
    gpu_clock_mhz: int | None = None
    gpu_slowdowns: tuple[str, ...] = ()
    """why the GPU held its clock down: heat or its power supply"""


def doubts(windows: Iterable[LoadWindow]) -> list[str]:
    """Why times measured meanwhile are to be taken with care, in words; nothing where the machine was quiet."""
    seen = list(windows)
    found = []
    for is_so, tell in _CHECKS:
        doubtful = [window for window in seen if is_so(window)]
        share = _seconds(doubtful) / (_seconds(seen) or 1.0)
        if doubtful and share >= DOUBTFUL_SHARE:
            found.append(f"{tell(doubtful)} in {share:.0%} of the time")
    return found


def _others_were_busy(window: LoadWindow) -> bool:
    return window.others_cpu_seconds > MOST_SHARE_OF_OTHERS * window.cores * window.wall_seconds + _TICKS_SECONDS


def _waited(window: LoadWindow) -> bool:
    waited = window.waited_for_core_seconds or 0.0
    return waited > MOST_SHARE_WAITED * (waited + window.own_cpu_seconds) + _TICKS_SECONDS


def _paged(window: LoadWindow) -> bool:
    """Where the system tells, by what was swapped: a split read from its file faults too, as it should."""
    pages = window.major_page_faults if window.swapped_pages is None else window.swapped_pages
    return pages > MOST_PAGES_A_SECOND * max(window.wall_seconds, 1.0)


def _tell_others(windows: list[LoadWindow]) -> str:
    core_seconds = sum(window.cores * window.wall_seconds for window in windows)
    share = sum(window.others_cpu_seconds for window in windows) / core_seconds
    return f"other programs used {share:.0%} of the cores"


def _tell_waited(windows: list[LoadWindow]) -> str:
    waited = sum(window.waited_for_core_seconds or 0.0 for window in windows)
    share = waited / (waited + sum(window.own_cpu_seconds for window in windows))
    return f"its threads waited for a core for {share:.0%} of the time they wanted one,"


def _tell_slowed(windows: list[LoadWindow]) -> str:
    reasons = dict.fromkeys(reason for window in windows for reason in window.gpu_slowdowns)
    return f"the GPU held its clock down ({', '.join(reasons)})"


def _seconds(windows: list[LoadWindow]) -> float:
    return sum(window.wall_seconds for window in windows)


_CHECKS: tuple[tuple[Callable[[LoadWindow], bool], Callable[[list[LoadWindow]], str]], ...] = (
    (_others_were_busy, _tell_others),
    (_waited, _tell_waited),
    (_paged, lambda _windows: "memory was read back from a disk"),
    (lambda window: bool(window.gpu_slowdowns), _tell_slowed),
)
