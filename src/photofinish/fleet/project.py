"""The project as a head sees it: what is still to be trained and where, and how everything comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from photofinish.errors import MistakeError, UserError
from photofinish.files import project_root, read_summed, state_folder
from photofinish.fleet.jobs import PLAN, Job, clone_at, environment_of
from photofinish.machine.fingerprint import CpuHost, GpuHost, Machine, name_problem, read_machines
from photofinish.params.base import read_plan
from photofinish.params.networks import RECORD, InitialWeights
from photofinish.params.reader import Params, read_params
from photofinish.params.yaml_reader import YamlDocument
from photofinish.results import records
from photofinish.results.records import DeviceLabel
from photofinish.results.references import record_all

NOTE_MISSING = "PHOTOFINISH_NOTE_MISSING"
"""names the file into which a training stage writes itself instead of training"""
HERE = "this machine"
_PARAMS, _MACHINES, _RESULTS = Path("params.yaml"), Path("machines"), Path("results")
_UNKNOWN_SECONDS = 1e9
"""of what was never trained: it may be long, so it comes first"""


@dataclass(frozen=True)
class Task:
    """A training that no machine has done yet."""

    job: Job
    where: str
    """the name of its machine, or HERE"""
    machine: Machine
    host: CpuHost | GpuHost
    expected_seconds: float
    """by earlier trainings of the experiment on whatever device"""

    @property
    def nodes(self) -> int:
        """How many machines share it."""
        return self.host.nodes


@dataclass(frozen=True)
class Project:
    """A clone of the project, trained on the machines that its params.yaml names."""

    folder: Path
    further: str | None = None
    """the machine whose results are brought back as records"""

    @classmethod
    def on(cls, machine: str, commit: str) -> Project:
        """The same experiments, in a clone of their own, on one further machine."""
        if problem := name_problem(machine, _MACHINES):
            raise MistakeError(f"ON={machine}: {problem}")
        folder = state_folder() / "further" / machine
        clone_at(Path(), folder, commit)
        params = YamlDocument(_PARAMS).value
        devices = params.get("devices") or {}
        params["devices"] = {name: {**(devices.get(name) or {}), "machine": machine} for name in ("cpu", "gpu")}
        (folder / _PARAMS).write_text(json.dumps(params, indent=2, default=str), encoding="utf-8")  # which is YAML too
        return cls(folder, machine)

    def missing(self, commit: str) -> list[Task]:
        """What neither this clone nor the remote has a result of; what they have comes into place.

        The data are made or restored here, and pushed for the workers.
        """
        expected = {name: _earlier_seconds(name) for name in self._params.experiments}
        self._dvc("repro", "--pull", "split", "download-weights")
        self._dvc("push", "--run-cache", "split", "download-weights")
        tasks = [self._task(name, device, commit, expected[name]) for name, device in self._without_result()]
        # Where the accelerator isn't there, that is all there is to record: no worker is needed for it.
        return [task for task in tasks if not (isinstance(task.host, GpuHost) and task.host.missing)]

    def _without_result(self) -> list[tuple[str, DeviceLabel]]:
        """DVC tells no other way whether its run-cache has a result than by putting it into place, or training."""
        note = (self.folder / ".photofinish" / "missing").resolve()
        note.parent.mkdir(exist_ok=True)
        note.write_text("", encoding="utf-8")
        command = ("repro", "--pull", "--single-item", "--keep-going", "train-cpu", "train-gpu")
        ran = self._run(*command, capture=True, **{NOTE_MISSING: str(note)})
        noted = {tuple(line.split()) for line in note.read_text(encoding="utf-8").splitlines()}
        if ran.returncode and not noted:
            raise UserError(f"dvc {' '.join(command)} in {self.folder.resolve()} failed:\n{ran.stdout}{ran.stderr}")
        runs = product(self._params.experiments, records.DEVICE_LABELS)
        return [(name, device) for name, device in runs if (device, name) in noted]

    def _task(self, name: str, device: DeviceLabel, commit: str, expected_seconds: float) -> Task:
        plan = self.folder / PLAN
        host_file = plan / "hosts" / f"{device}.json"
        files = [plan / "code" / "train.json", host_file, *sorted(plan.glob(f"*/{name}.json"))]
        dataset = self._params.experiments[name].dataset
        data = {stage: self._lock["stages"][stage] for stage in (f"split@{dataset}", "download-weights")}
        named = getattr(self._params.devices, device).machine
        job = Job(
            title=f"{name} on {device}" + (f" of {named}" if named else ""),
            experiment=name,
            device=device,
            dataset=dataset,
            commit=commit,
            plan={file.relative_to(plan).as_posix(): read_summed(file).decode() for file in files},
            # As JSON, which is YAML to DVC: what is text stays in quotes, also a checksum that looks like a number.
            lock=json.dumps({**self._lock, "stages": data}),
            weights=self._record_of_no_weights(name),
            tracked_in=os.environ.get("MLFLOW_EXPERIMENT_NAME") or Path.cwd().name,
        )
        host = read_plan(host_file, CpuHost) if device == "cpu" else read_plan(host_file, GpuHost)
        return Task(job, named or HERE, self._machines[named or HERE], host, expected_seconds)

    def _record_of_no_weights(self, name: str) -> str | None:
        record = (self.folder / "data/weights" / name / RECORD).read_text(encoding="utf-8")
        return None if InitialWeights.model_validate_json(record).published else record

    def bring_back(self) -> None:
        """Every result into its place, and the report, or the records of a further machine."""
        if self.further is None:
            self._dvc("repro", "--pull")
        else:
            self._dvc("repro", "--pull", "evaluate")
            experiments, results = self.folder / PLAN / "experiments", self.folder / _RESULTS
            record_all(experiments, results, Path("reference"), self.further, from_elsewhere=True)

    @cached_property
    def _params(self) -> Params:
        return read_params(self.folder / _PARAMS)

    @cached_property
    def _machines(self) -> dict[str, Machine]:
        return {HERE: Machine.here(), **read_machines(self._params.devices, self.folder / _MACHINES)}

    @cached_property
    def _lock(self) -> dict[str, Any]:
        lock: dict[str, Any] = yaml.load((self.folder / "dvc.lock").read_bytes(), yaml.CSafeLoader)
        return lock

    def _dvc(self, *arguments: str) -> None:
        if self._run(*arguments).returncode:
            raise UserError(f"dvc {' '.join(arguments)} failed in {self.folder.resolve()}, as told above")

    def _run(self, *arguments: str, capture: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **variables}
        if self.further:  # the user's images and mirrors lie where the project has them
            environment = {**environment_of(self.folder), "DVC_ROOT": str(project_root()), **variables}
        command = [sys.executable, "-m", "dvc", *arguments]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=capture, text=True, check=False)


def _earlier_seconds(name: str) -> float:
    """How long it took, on the slowest device that has a result here."""
    files = _RESULTS.glob(f"{name}/*/{records.TIMED}/{records.TIMINGS}")
    found = [json.loads(file.read_bytes()).get("total_seconds", 0.0) for file in files]
    return max(found, default=0.0) or _UNKNOWN_SECONDS
