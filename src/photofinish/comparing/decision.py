"""Decisions for each experiment: an own GPU, a rented GPU, and what to do now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.comparing.own_gpu import Answer, OwnGpu, decide_own
from photofinish.comparing.pairs import AnyComparison
from photofinish.comparing.remedies import Remedy
from photofinish.comparing.rented_gpu import RentedGpu, decide_rented
from photofinish.machine.load import load_warnings
from photofinish.results.records import DeviceLabel

About = Literal["the GPU here", "renting", "a GPU of yours"]


@dataclass(frozen=True)
class Action:
    """Action that is recommended now."""

    kind: Literal[
        "use the GPU", "rent", "change a setting", "measure again", "train longer", "try a GPU",
        "stay here",
    ]  # fmt: skip
    accelerator: str | None = None
    """Accelerator to rent, by its name for `photofinish rent`."""
    runs: int | None = None
    """Smallest number of runs for which renting is worth it."""
    remedy: Remedy | None = None
    devices: tuple[DeviceLabel, ...] = ()
    """Devices whose times should be measured again."""


@dataclass(frozen=True)
class Decision:
    own: OwnGpu
    rented: RentedGpu | None
    """None if the settings name no accelerators."""
    action: Action
    is_here: bool = False
    """True if a GPU in this machine trained the experiment."""

    @property
    def about(self) -> About:
        """Subject of the answer: the GPU in this machine, or else renting a GPU."""
        if self.is_here:
            return "the GPU here"
        return "renting" if self.rented else "a GPU of yours"

    @property
    def answer(self) -> Answer:
        return self.rented.answer if self.rented and not self.is_here else self.own.answer

    @property
    def saved_seconds(self) -> float:
        """Time that the answer's GPU saves, or 0 if it is not worth it."""
        if self.rented and not self.is_here:
            return self.rented.saved_seconds / self.rented.jobs if self.rented.is_yes else 0.0
        if self.own.gpu_seconds is None or not self.own.is_yes:
            return 0.0
        return self.own.cpu_seconds - self.own.gpu_seconds


def decide_all(pairs: Sequence[AnyComparison]) -> list[Decision]:
    """Decide for each experiment. Experiments with equal data set and network are one sweep."""
    sweeps: dict[tuple[str, ...], list[AnyComparison]] = defaultdict(list)
    for pair in pairs:
        sweeps[pair.cpu.sweep].append(pair)
    rented = {key: decide_rented(sweep) for key, sweep in sweeps.items()}
    return [_decision(pair, rented[pair.cpu.sweep]) for pair in pairs]


def decide(pair: AnyComparison) -> Decision:
    """Decide for a single experiment, without its sweep."""
    (decision,) = decide_all([pair])
    return decision


def _decision(pair: AnyComparison, rented: RentedGpu | None) -> Decision:
    own, is_here = decide_own(pair), pair.compared is not None
    return Decision(own, rented, _action(pair, own, rented, is_here), is_here)


def _action(pair: AnyComparison, own: OwnGpu, rented: RentedGpu | None, is_here: bool) -> Action:
    """Return the first action that fits: measure again, use a GPU, change a setting, stay here."""
    answer = rented.answer if rented and not is_here else own.answer
    accelerator = rented.option.accelerator.name if rented and rented.option else None
    busy = tuple(run.device for run in pair.trained if load_warnings(run.timings.load))
    if busy and answer == "Can't tell":
        return Action("measure again", devices=busy)
    if is_here and own.is_yes:
        return Action("use the GPU")
    if rented and rented.is_yes and not is_here:
        return Action("rent", accelerator)
    if remedy := _remedy(pair, own):
        return Action("change a setting", remedy=remedy)
    if answer == "Can't tell":
        return Action("train longer") if is_here else Action("try a GPU", accelerator)
    if own.is_yes and not rented:
        return Action("try a GPU")
    return Action("stay here", accelerator, rented.runs if rented else None)


def _remedy(pair: AnyComparison, own: OwnGpu) -> Remedy | None:
    """Return a change of settings that does not change the model, or None."""
    if own.reason == "short job":
        return None
    for found in pair.diagnoses["gpu" if own.of_gpu else "cpu"]:
        for remedy in (found.remedy, found.second):
            if remedy and not remedy.changes_model:
                return remedy
    return None
