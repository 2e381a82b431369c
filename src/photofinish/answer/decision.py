"""Decisions for each experiment: an own GPU, a rented GPU, and what to do now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from photofinish.answer.candidates import About, Answer, Basis, Reason, Worth
from photofinish.answer.comparison import Comparison
from photofinish.answer.fair_cpu import slow_kernels
from photofinish.answer.own_gpu import decide_own
from photofinish.answer.remedies import Remedy
from photofinish.answer.rented_gpu import decide_rented
from photofinish.results.records import DeviceLabel


@dataclass(frozen=True)
class Action:
    """Action that is recommended now."""

    kind: Literal[
        "use the GPU", "rent", "change a setting", "measure again", "measure longer",
        "train longer", "try a GPU", "stay here", "compare in fp32",
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
    own: Worth
    rented: Worth | None
    """None if the settings name no accelerators."""
    action: Action
    is_here: bool = False
    """True if a GPU in this machine trained the experiment."""

    @property
    def shown(self) -> Worth:
        """Answer that is shown first, about the GPU in this machine or else about renting a GPU."""
        return self.rented if self.rented and not self.is_here else self.own

    @property
    def about(self) -> About:
        """Subject of the answer."""
        return self.shown.about

    @property
    def answer(self) -> Answer:
        return self.shown.answer

    @property
    def basis(self) -> Basis:
        """Evidence of the answer."""
        return self.shown.basis

    @property
    def reason(self) -> Reason | None:
        """Reason of the answer."""
        return self.shown.reason

    @property
    def here_seconds(self) -> float:
        """Time of the job here, of which the answer's GPU may save a part."""
        return self.shown.here_seconds / self.shown.jobs

    @property
    def saved_seconds(self) -> float:
        """Time that the answer's GPU saves, or 0 if it is not worth it."""
        shown = self.shown
        return shown.saved_seconds / shown.jobs if shown.is_yes and shown.gpu else 0.0


def decide_all(pairs: Sequence[Comparison]) -> list[Decision]:
    """Decide for each experiment. Experiments with equal data set and network are one sweep."""
    sweeps: dict[tuple[str, ...], list[Comparison]] = defaultdict(list)
    for pair in pairs:
        sweeps[pair.cpu.sweep].append(pair)
    rented = {key: decide_rented(sweep) for key, sweep in sweeps.items()}
    return [_decision(pair, rented[pair.cpu.sweep]) for pair in pairs]


def decide(pair: Comparison) -> Decision:
    """Decide for a single experiment, without its sweep."""
    (decision,) = decide_all([pair])
    return decision


def _decision(pair: Comparison, rented: Worth | None) -> Decision:
    own, is_here = decide_own(pair), pair.compared is not None
    if slow_kernels(pair.cpu.timings):  # a fair CPU computes in fp32
        own = replace(own, answer="Can't tell") if own.is_yes else own
        rented = replace(rented, answer="Can't tell") if rented and rented.is_yes else rented
    return Decision(own, rented, _action(pair, own, rented, is_here), is_here)


def _action(pair: Comparison, own: Worth, rented: Worth | None, is_here: bool) -> Action:
    """Return the first action that fits: measure again, use a GPU, change a setting, stay here."""
    answer = rented.answer if rented and not is_here else own.answer
    accelerator = rented.option.accelerator.name if rented and rented.option else None
    busy = tuple(run.device for run in pair.trained if run.timings.busy)
    if busy and answer == "Can't tell":
        return Action("measure again", devices=busy)
    if answer == "Can't tell" and slow_kernels(pair.cpu.timings):
        return Action("compare in fp32")
    if is_here and own.is_yes:
        return Action("use the GPU")
    if rented and rented.is_yes and not is_here:
        return Action("rent", accelerator)
    if remedy := _remedy(pair, own):
        return Action("change a setting", remedy=remedy)
    if answer == "Can't tell":
        if pair.cpu.timings.untimed_epochs and (is_here or (rented and rented.depends_on_here)):
            return Action("measure longer")
        return Action("train longer") if is_here else Action("try a GPU", accelerator)
    if own.is_yes and not rented:
        return Action("try a GPU")
    return Action("stay here", accelerator, rented.runs if rented else None)


def _remedy(pair: Comparison, own: Worth) -> Remedy | None:
    """Return a change of settings that does not change the model, or None."""
    if own.reason == "short job":
        return None
    for found in pair.diagnoses["gpu" if own.of_gpu else "cpu"]:
        for remedy in (found.remedy, found.second):
            if remedy and not remedy.changes_model:
                return remedy
    return None
