"""A run as a training stage was asked for it, and the results of runs that are kept beside it. No torch here.

A finished training's result is kept until DVC has it: DVC deletes a stage's outs before it runs it, and knows of a
result only once it has read and stored all of it. A stage that was killed in between hands over what is kept. It lies
under the run's key, and below that under what dvc.lock says of the stage: that is another thing as soon as DVC has the
result, so that `dvc repro --force` trains again. An experiment that was only renamed takes over the result of its old
name in the same way.

What was learned from the experiment's own seed is kept besides, for another number of `seeds`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from photofinish.data import MANIFEST
from photofinish.data.packed import PackedSplit
from photofinish.errors import MistakeError, UserError
from photofinish.files import (
    finished_folder,
    is_whole,
    removed_folder,
    sha256_of_bytes,
    sha256_of_file,
    state_folder,
    to_json,
)
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.machine.memory import Room, SplitSize, bytes_needed, refuse_too_large, room_now
from photofinish.params.base import read_plan
from photofinish.params.devices import batch_problem, sharing_key
from photofinish.params.experiment import Experiment, ExperimentPlan, MetricsPlan
from photofinish.params.networks import FetchedWeights, checked_file, fetched_weights
from photofinish.processes import own_rank
from photofinish.results import records
from photofinish.source_code import our_code, refuse_changed_code

_PARTS = (records.LEARNED, records.TIMED)


@dataclass(frozen=True)
class Run:
    """One experiment on one device, from its plan on."""

    name: str
    device: records.DeviceLabel
    experiment: Experiment
    host: CpuHost | GpuHost
    data: Path
    out: Path
    weights: Path | None = None
    """the folder that `download-weights` left for the experiment"""
    processes: int = 1
    """that train together, over all nodes"""
    metrics: Path | None = None
    """the plan of its metrics, which are tried before the training and are no part of it"""

    @property
    def title(self) -> str:
        """For whoever waits for it."""
        return f"which trains {self.name} on the {self.device}"

    @property
    def own_code(self) -> dict[str, str]:
        """The sha256 of each of the user's own files that it runs, and the versions of packages they name."""
        return self.experiment.own_code if isinstance(self.experiment, ExperimentPlan) else {}

    def check(self) -> None:
        """Refuse what only the machine and the split tell, and needs no torch."""
        refuse_changed_code(self.own_code)
        # Every device needs at least one image of a batch; `plan` can't tell where all GPUs are asked for.
        gpus = len(self.host.accelerators) if isinstance(self.host, GpuHost) else 0
        count, key = max(self.processes, gpus), sharing_key(self.device)
        batch_size = self.experiment.batch_size
        if problem := batch_problem(batch_size, count, key):
            raise MistakeError(f"experiments.{self.name}.batch_size is {batch_size}, and {problem} in params.yaml")
        split, augmentation = self._split_size(), self.experiment.augmentation
        if split.dtype != "uint8" and (augmentation.flip or augmentation.crop_padding):
            raise MistakeError(
                f"experiments.{self.name}.augmentation is for images in params.yaml; the items of "
                f"datasets.{self.experiment.dataset} are {split.dtype} of shape {split.shape}: leave it out"
            )
        # One of several processes counts for itself: the others may have loaded theirs already.
        processes = 1 if own_rank() else self.host.processes
        refuse_too_large(self.name, self.experiment, split, room_now(self.host, processes))

    def try_metrics(self) -> None:
        """Refuse a faulty one before the training, not after it. In a process of its own: a metric is no part of the
        training, so nothing that its file does may reach the network."""
        if self.metrics is None or not read_plan(self.metrics, MetricsPlan).metrics:
            return
        command = [sys.executable, "-m", "photofinish.runs.evaluation", str(self.metrics), str(self.data)]
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        if tried.returncode:
            raise UserError(tried.stderr.strip().removeprefix("error: "))

    def refuse_too_large(self, rooms: list[Room]) -> None:
        """Refuse images that are to lie there and don't fit."""
        refuse_too_large(self.name, self.experiment, self._split_size(), rooms)

    def resident_fits(self, rooms: list[Room]) -> bool:
        """Whether `input: resident` would be let through now, with what is left of these besides."""
        every, split = (*room_now(self.host, 1), *rooms), self._split_size()
        return all(bytes_needed(self.experiment, split, room) <= room.available_bytes for room in every)

    def _split_size(self) -> SplitSize:
        manifest = PackedSplit(self.data).manifest
        return SplitSize(manifest.shape, manifest.counts["train"], manifest.counts["validation"], manifest.dtype)

    def data_sha256(self) -> str:
        """Of the split's manifest, which holds the sha256 of each data file."""
        return sha256_of_file(self.data / MANIFEST)

    def fetched_weights(self) -> FetchedWeights | None:
        """The published weights that the network starts from."""
        return fetched_weights(self.experiment.model, self.weights)

    def weights_file(self) -> Path | None:
        """Theirs, checked against its sha256."""
        fetched = self.fetched_weights()
        return checked_file(fetched, self.weights) if fetched and self.weights else None

    def key(self) -> str:
        """Of this run and no other one: two experiments may be the same but for their names."""
        return sha256_of_bytes(f"{self.name} {self.identity()}".encode())

    def identity(self) -> str:
        """Of everything that determines the run, bit for bit: settings, machine, data and code, whatever its name."""
        fetched = self.fetched_weights()
        experiment = self.experiment.model_dump(exclude={"own_code"})
        facts = [self.device, experiment, self.own_code, self.host.model_dump(), self.processes]
        sha256 = [self.data_sha256(), fetched.sha256 if fetched else None, code_sha256()]
        return sha256_of_bytes(to_json([*facts, *sha256]).encode())


@cache
def code_sha256() -> str:
    """Of all sources that a training stage runs, and of no others: another word in the report leaves it as it is."""
    return our_code("train").sha256


def write_unavailable(run: Run, reason: str) -> None:
    """Both parts, for whoever reads them; there is nothing to time."""
    record = records.Unavailable(device=run.device, experiment=run.experiment, reason=reason)
    records.write_record(run.out / records.LEARNED / records.RECORD, record)
    records.write_record(run.out / records.TIMED / records.TIMINGS, records.Untimed())


def keep(key: str, result: Path) -> None:
    """Keep what a stage of DVC's is about to end with, in place of earlier results of the key."""
    if "DVC_STAGE" in os.environ:
        shutil.rmtree(finished_folder() / key, ignore_errors=True)
        try:
            shutil.copytree(result, _place(key))
        except OSError:  # no room for a second one, say: the result itself is there
            shutil.rmtree(finished_folder() / key, ignore_errors=True)


def hand_over(run: Run) -> str | None:
    """Put the run's result into place if it was finished before DVC had it, or if params.yaml only has another name for
    it now: which of the two, in words. None where there is none, or none that is whole."""
    if "DVC_STAGE" not in os.environ:
        return None
    key, old_name = run.key(), _take_over(run)
    kept = _place(key)
    if not all(is_whole(kept / part) for part in _PARTS):
        return None  # cut off, where there are checkpoints still; or damaged
    shutil.copytree(kept, run.out, dirs_exist_ok=True)
    shutil.rmtree(state_folder() / "checkpoints" / key, ignore_errors=True)  # it may have been killed before they went
    return f"the same training as {old_name}'s" if old_name else "was trained to its end before dvc was stopped"


def _take_over(run: Run) -> str | None:
    """Keep what the same training left under a name that params.yaml has no more; that name.

    Only for a stage that DVC has no result of: where it has one, it is asked to train again.
    """
    if _entry_in_lock():
        return None
    identity = run.identity()
    for result in removed_folder().glob(f"*/{run.device}"):
        timings = result / records.TIMED / records.TIMINGS
        # Not parsed: there may be hundreds, and a sha256 is nowhere by chance.
        is_same = timings.is_file() and identity in timings.read_text(encoding="utf-8", errors="replace")
        if is_same and all(is_whole(result / part) for part in _PARTS):
            place = _place(run.key())
            shutil.rmtree(place.parent, ignore_errors=True)
            place.parent.mkdir(parents=True)
            result.rename(place)
            return result.parent.name
    return None


def _place(key: str) -> Path:
    return finished_folder() / key / sha256_of_bytes(_entry_in_lock().encode())


def _entry_in_lock() -> str:
    """What dvc.lock says of the stage; nothing where it was never run."""
    lock, stage = Path("dvc.lock"), os.environ["DVC_STAGE"].rpartition(":")[2]
    text = lock.read_text(encoding="utf-8") if lock.is_file() else ""
    # Not parsed: that takes seconds where there are hundreds of stages.
    entry = re.search(rf"^  {re.escape(stage)}:$(\n   .*)*", text, re.MULTILINE)
    return entry[0] if entry else ""


def first_trainings() -> Path:
    """Where the last training of each experiment on each device is kept, for another number of `seeds`."""
    return state_folder() / "first"


def keep_first_training(run: Run, timings: records.Timings) -> None:
    """What was just learned from the experiment's own seed, and the times it took, in place of what was before."""
    kept = _kept(run)
    shutil.rmtree(kept.parent, ignore_errors=True)
    with suppress(OSError):  # no links there, or no room: it is trained anew, then
        shutil.copytree(run.out / records.LEARNED, kept / records.LEARNED, copy_function=os.link)
        records.write_record(kept / records.TIMED / records.TIMINGS, timings)


def take_first_training(run: Run) -> records.Timings | None:
    """Put in place what the same experiment, with another number of `seeds`, learned from its own, if that is there;
    the times that it took then, to be written when all else is there. With the same number, it is to train again."""
    kept, learned, seeds = _kept(run), run.out / records.LEARNED, run.experiment.seeds
    try:
        timings = records.read_record(kept / records.TIMED / records.TIMINGS, records.Timings)
        record = records.read_record(kept / records.LEARNED / records.RECORD, records.Training)
        if record.experiment.seeds == seeds or not is_whole(kept / records.LEARNED):
            return None
    except UserError:
        return None
    shutil.rmtree(learned, ignore_errors=True)
    shutil.copytree(kept / records.LEARNED, learned)
    experiment = record.experiment.model_copy(update={"seeds": seeds})
    records.write_record(learned / records.RECORD, record.model_copy(update={"experiment": experiment}))
    print(
        f"{run.name} on {run.device}: from seed {experiment.seed} it was trained before, with seeds: "
        f"{record.experiment.seeds}; that is taken, with the times it took then"
    )
    return timings.model_copy(update={"identity": run.identity()})


def note_as_taken(run: Run) -> None:
    """Once all is there: who wants the same number of `seeds` again, asks for a training."""
    record = records.read_record(run.out / records.LEARNED / records.RECORD, records.Training)
    records.write_record(_kept(run) / records.LEARNED / records.RECORD, record)


def _kept(run: Run) -> Path:
    """Where that is which is the same with any number of seeds."""
    alone = replace(run, experiment=run.experiment.model_copy(update={"seeds": 1}))
    return first_trainings() / f"{run.name}-{run.device}" / alone.key()
