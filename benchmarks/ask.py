"""Ask, then run the whole job, by turns: how right `photofinish ask` is.

`python -m benchmarks.ask` takes about 35 minutes on two cores; `--only` names some of the jobs.
`--programs FOLDER` has programs of public tutorials instead, with five of our own scripts.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
import time
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.asked import CHARACTERS_STEPS, JOBS
from benchmarks.asked_experiments import EXPERIMENTS, Project
from benchmarks.tutorials import PROGRAMS, missing, prepare
from photofinish.answer.comparison import compare
from photofinish.answer.decision import decide
from photofinish.answer.step_costs import epoch_step
from photofinish.answer.times import job_time
from photofinish.config.devices import Devices
from photofinish.config.scripts import ScriptPlan
from photofinish.machine.fingerprint import fingerprint
from photofinish.results.job import Job, JobPair
from photofinish.results.measured import MEASURED, MEASURED_FOLDER, Measured, read_measured
from photofinish.results.measured_jobs import job_of_script, measured_job
from photofinish.scripts.run_script import Limits, Watched, watch
from photofinish.scripts.script_lines import Length
from photofinish.scripts.script_record import jobs, measured_script
from photofinish.scripts.script_stage import run_script

SCRIPTS = [*JOBS, "own-script"]
WITH_PROGRAMS = ["table", "accumulated", "compiled", "fit_by_trainer", "padded"]
"""Own scripts of kinds that the programs lack."""
AT_MOST = {"table", "own-jobs/table"}
"""Jobs that stop early, so that the answer is an upper bound."""
LONGER = 100
"""Factor on the epochs for a second answer: most jobs here are too short for a GPU."""
_MANY_EPOCHS, _MOST_EPOCHS = 100_000, 1000
_LIMITS, _EXPERIMENT_SECONDS = Limits(60.0, 600.0), 30.0
_HOST, _ = fingerprint(Devices())


@dataclass(frozen=True)
class Row:
    """One job, asked about and run."""

    name: str
    ask_seconds: float
    """Time of the whole command."""
    asked: Job
    ran: Job

    @property
    def ratio(self) -> float:
        return self.asked.whole_seconds / self.ran.whole_seconds

    @property
    def held(self) -> bool:
        """Return True if the run's time lies in the interval of the answer."""
        low, high = job_time(self.asked).interval
        return low <= self.ran.whole_seconds <= high < float("inf")  # else none is printed

    @property
    def step_ratio(self) -> float:
        return _step_seconds(self.asked) / _step_seconds(self.ran)

    @property
    def answers(self) -> list[tuple[str, str]]:
        """Answers for the job and for a longer one, by asking and by the run."""
        both = self.asked, self.ran
        longer = (_of_epochs(job, LONGER * job.epochs) for job in both)
        return [(_answer(asked), _answer(ran)) for asked, ran in (both, longer)]

    def __str__(self) -> str:
        words = ", ".join(
            one if one == other else f"{one} / {other}" for one, other in self.answers
        )
        return (
            f"{self.name:22} {self.ask_seconds:4.0f} {self.asked.whole_seconds:7.1f} "
            f"{self.ran.whole_seconds:7.1f} {'in ' if self.held else 'out'} "
            f"{self.ratio:6.2f} {self.step_ratio:6.2f} "
            f"{_loading(self.asked)} {_loading(self.ran)}  {words}"
        )


def _loading_share(run: Job) -> float:
    """Return the share of an epoch for loading and copying data."""
    parts = ("waiting for data", "copying to the device")
    return sum(epoch_step(run).shares.get(part, 0.0) for part in parts)


def _loading(run: Job) -> str:
    return f"{_loading_share(run):5.0%}" if epoch_step(run).shares else "    ?"


def main(arguments: list[str]) -> None:
    names = [*SCRIPTS, *EXPERIMENTS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ask", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*names, *PROGRAMS])
    parser.add_argument("--programs", type=Path, help="folder with programs of tutorials")
    parser.add_argument(
        "--seconds", type=float, default=35.0, help="about how long each job takes (35)"
    )
    parser.add_argument(
        "--turns", type=int, default=1, help="how often each job is asked about and run (1)"
    )
    options = parser.parse_args(arguments)
    heading = "job                     ask   asked     ran held ratio   step  loader: both"
    print(f"{heading}  answers, and x{LONGER}")
    rows: list[Row] = []
    for name in options.only or ([*PROGRAMS, *WITH_PROGRAMS] if options.programs else names):
        if name in PROGRAMS and missing(name, options.programs):
            print(f"{name:22} is left out: its original is not in --programs")
            continue
        for _ in range(options.turns):
            with tempfile.TemporaryDirectory() as folder:
                if name in PROGRAMS:
                    rows.append(program(name, options.programs, Path(folder)))
                else:
                    measure = _script if name in SCRIPTS else _experiment
                    rows.append(measure(name, options.seconds, Path(folder)))
            print(rows[-1], flush=True)
        if options.turns > 1:
            print(agreement(rows[-options.turns :]), flush=True)
    if rows:
        print(summary(rows))


def agreement(turns: list[Row]) -> str:
    """Return the ratio of asking to running for one job: its median and range."""
    ratios = [row.ratio for row in turns]
    return (
        f"{turns[0].name}: asked / ran is {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


def summary(rows: list[Row]) -> str:
    """Return what was measured over all jobs. One that stopped early may take less."""
    off = sorted(max(row.ratio, 1 / row.ratio) for row in rows if row.name not in AT_MOST)
    nine_of_ten = off[round(0.9 * (len(off) - 1))] if off else 1.0
    words = [one == other for row in rows for one, other in row.answers]
    of_loading = [
        abs(_loading_share(row.asked) - _loading_share(row.ran))
        for row in rows
        if epoch_step(row.asked).shares and epoch_step(row.ran).shares
    ]
    steps = [abs(row.step_ratio - 1) for row in rows]
    return (
        f"The job's time is within {statistics.median(off or [1.0]):.2f} in the median and within "
        f"{nine_of_ten:.2f} in nine of ten, and in {sum(row.held for row in rows)} of "
        f"{len(rows)} intervals. The answer is the same in {sum(words)} of "
        f"{len(words)}. The loader's share is within {100 * max(of_loading, default=0.0):.0f} "
        f"points, and the step within {statistics.median(steps):.1%} in the median, "
        f"{max(steps):.0%} at most. Asking "
        f"took {statistics.median(row.ask_seconds for row in rows):.0f} s in the median, "
        f"{max(row.ask_seconds for row in rows):.0f} s at most."
    )


def _epochs(asked: Job, epochs: int, seconds: float) -> int:
    """Return how many epochs take about so many seconds, by the answer for so many."""
    epoch_seconds = (asked.whole_seconds - asked.startup_seconds) / epochs
    return min(_MOST_EPOCHS, max(3, round((seconds - asked.startup_seconds) / epoch_seconds)))


# -- experiments ---------------------------------------------------------------------------------


def _experiment(name: str, seconds: float, folder: Path) -> Row:
    """Ask about an experiment, and train as many of its epochs as take about so many seconds."""
    project = Project(folder, name)
    began_seconds = time.perf_counter()
    asked = project.ask(_EXPERIMENT_SECONDS)
    ask_seconds = time.perf_counter() - began_seconds
    epochs = _epochs(asked, round(asked.epochs), seconds)
    project.plan(epochs)
    ran = project.run()
    return Row(name, ask_seconds, _of_epochs(asked, epochs), ran)


def _of_epochs(job: Job, epochs: float) -> Job:
    """Return the job as it would be for so many epochs, at least those that were timed."""
    factor, timed_epochs = epochs / job.epochs, job.epochs - job.untimed_epochs
    return replace(
        job,
        epochs=epochs,
        passes_seconds=factor * job.passes_seconds,
        untimed_epochs=max(0.0, epochs - timed_epochs),
        timed=job.timed._replace(of=factor * job.timed.of),
    )


# -- scripts -------------------------------------------------------------------------------------


def _script(name: str, seconds: float, folder: Path) -> Row:
    """Ask about a script, and run as many of its epochs as take about so many seconds."""
    command = [sys.executable, "-m", "benchmarks.asked", name, "--epochs"]
    if name not in JOBS:
        metrics = str(folder / "metrics.json")
        command = [sys.executable, "examples/own-script/train.py", "--metrics", metrics, "--epochs"]
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "asked")  # both compile again
    began_seconds = time.perf_counter()
    watched = watch([*command, str(_MANY_EPOCHS)], kind="cpu", limits=_LIMITS)
    ask_seconds = time.perf_counter() - began_seconds
    epochs = _epochs(_asked(name, watched, 10), 10, seconds)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "ran")
    ran = _run_whole(name, [*command, str(epochs)], folder)
    return Row(name, ask_seconds, _asked(name, watched, epochs), ran)


def _asked(name: str, watched: Watched, epochs: int) -> Job:
    """Return the result by asking, as it is for so many epochs."""
    steps = {"characters": CHARACTERS_STEPS * epochs, "fitted": epochs}.get(name)
    length = Length("epochs", epochs, "--epochs")
    if steps:
        length = Length("max_steps", steps, "--steps")
    (job,) = jobs([watched], length)
    measured = measured_script(name, watched, "cpu", _HOST)
    return measured_job(measured, job.epochs, job.epoch_steps)


def _run_whole(name: str, command: list[str], folder: Path) -> Job:
    """Run the job as a script's stage does, timed by `photofinish.steps`."""
    output = shlex.quote(str(folder / "output.txt"))
    command_line = f"{shlex.join(command)} > {output} 2>&1"
    plan = ScriptPlan(name=name, command=command_line, metrics=None, files={})
    for file, record in (("plan", plan), ("host", _HOST)):
        text = record.model_dump_json()
        (folder / f"{file}.json").write_text(text, encoding="utf-8")
    run_script("cpu", folder / "plan.json", folder / "host.json", folder)
    ran = read_measured(folder / MEASURED_FOLDER / MEASURED)
    assert isinstance(ran, Measured)
    return job_of_script(ran)


# -- programs ------------------------------------------------------------------------------------


def program(name: str, programs: Path, folder: Path) -> Row:
    """Ask about a program as it is, which finds its length, and run it to its end."""
    place = folder / "program"
    place.mkdir()
    command = prepare(name, programs, place)
    with chdir(place):
        began_seconds = time.perf_counter()
        watched = watch(command, kind="cpu", limits=_LIMITS)
        ask_seconds = time.perf_counter() - began_seconds
        if left := processes_in(place):
            raise SystemExit(f"{name}: asking left processes behind: {left}")
        ran = _run_whole(name, command, folder)
    job = next(iter(jobs([watched], None)))
    print(f"{name}: {job.name}")
    measured = measured_script(name, watched, "cpu", _HOST)
    asked = measured_job(measured, job.epochs, job.epoch_steps)
    return Row(name, ask_seconds, asked, ran)


def processes_in(folder: Path) -> list[int]:
    """Return the processes other than this one whose working directory is in a folder."""
    found = psutil.process_iter(["pid", "cwd"])
    places = {each.info["pid"]: each.info["cwd"] for each in found}
    return [pid for pid, cwd in places.items()
            if cwd and Path(cwd).is_relative_to(folder) and pid != os.getpid()]  # fmt: skip


# -- both ----------------------------------------------------------------------------------------


def _step_seconds(run: Job) -> float:
    """Return the median of a step with its batch."""
    return run.median_epoch_seconds / (run.steps_per_epoch or 1)


def _answer(run: Job) -> str:
    return decide(compare(JobPair(run))).answer


if __name__ == "__main__":
    main(sys.argv[1:])
