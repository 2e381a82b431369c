"""Seconds of each measurement, made in one place."""

from __future__ import annotations

from dataclasses import dataclass

_LONG_JOB_SECONDS = 600.0
_LONG_SECONDS, _SHORT_SECONDS = 15.0, 5.0
"""Longest measurement of a job of over ten minutes, which can spare it, and of a shorter one.

By hand, as are the shares below. In five seconds, steps of 0.3 s are too few for a cause.
"""
_LEAST_SECONDS = 1.5
"""Shortest measurement: a job of one epoch says enough about the same job with more."""


@dataclass(frozen=True)
class Budget:
    """Seconds of each measurement. All may take 3 s more, on an accelerator for each change."""

    whole_seconds: float
    parts_seconds: float
    """Parts of the training, with validation."""
    turns_seconds: float
    """A block of turns on one batch."""
    other_step_seconds: float
    """Longest step of another batch in that block."""
    apart_seconds: float
    """Steps that are taken apart."""
    loader_seconds: float
    """All measurements of a loader, of which the following are parts."""
    alone_seconds: float
    """Loading in this process."""
    workers_seconds: float
    """Time after which no further number of workers is tried."""
    stored_seconds: float
    """Reading samples to store."""

    @classmethod
    def of(
        cls,
        job_seconds: float,
        most_seconds: float | None = None,
        *,
        in_one_block: bool = True,
    ) -> Budget:
        """Return the seconds for a job: a fifth of its time, from 1.5 s to `most_seconds`.

        `in_one_block` is True if all changes of a step take turns in one block, as on a CPU.
        """
        if most_seconds is None:
            is_long = job_seconds > _LONG_JOB_SECONDS
            most_seconds = _LONG_SECONDS if is_long else _SHORT_SECONDS
        whole = min(most_seconds, max(_LEAST_SECONDS, 0.2 * job_seconds))
        loader = min(10.0, max(0.5, 0.3 * whole))
        return cls(
            whole_seconds=whole,
            parts_seconds=0.35 * whole,
            turns_seconds=min(6.0, 0.25 * whole) if in_one_block else min(2.5, 0.1 * whole),
            other_step_seconds=min(1.0, 0.15 * whole),
            apart_seconds=min(1.5, 0.1 * whole),
            loader_seconds=loader,
            alone_seconds=0.25 * loader,
            workers_seconds=0.375 * loader,
            stored_seconds=0.1 * loader,
        )
