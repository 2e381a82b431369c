"""Run a command with a recorder of its training, for a while or to its end."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from photofinish.config.kinds import KINDS
from photofinish.config.scripts import PLACEHOLDER
from photofinish.errors import UserError
from photofinish.inside import hooks
from photofinish.inside.hooks import FOLDER, LOCK, MAPS_CUDA, SEEDED
from photofinish.inside.lengths import lengths_in_command
from photofinish.machine.load import LoadMonitor, LoadWindow, nvidia_gpu_state, nvidia_gpu_works
from photofinish.scripts.output import Output, ProgressLine
from photofinish.scripts.script_figures import Figures
from photofinish.scripts.script_lines import Length, Process, WatchedScript
from photofinish.stage.process import kill_tree
from photofinish.wording import counted, listed, seconds

_PACKAGE = "_photofinish"
"""Name of the recorder in a script's process, whose Python may lack photofinish."""
_SITECUSTOMIZE = f"from {_PACKAGE}.hooks import begin\nbegin(__file__)\n"
_POLL_SECONDS, _STDIN = 1.0, Path("/dev/stdin")
_ENOUGH_SECONDS = 15.0
"""Time of training to watch. Of recorded trainings, 60 s hold no more of the other runs' times."""
UNSEEN_SECONDS = 30.0
"""Time after the import of another library from which on torch is not expected.

A first step may take longer, as with many accumulated gradients. So the script goes on after it.
"""
_BESIDE_TORCH = {"sklearn"}
"""Libraries that scripts import long before torch."""
_NO_STEP = (
    "no optimizer step so far. If the script is training already, its steps can't be seen; "
    "`for batch in photofinish.steps(loader)` times them"
)
_AGAIN = "{} needs a GPU, and none is here. Running the script again, with cuda mapped to the CPU"
_FOR_EACH = "The command starts {} processes. Running it again, with a GPU for each"
_clock = time.perf_counter


@dataclass(frozen=True)
class Limits:
    training_seconds: float
    """Maximum time after the first step."""
    patience_seconds: float
    """Maximum time until the first step."""
    seeds: bool = True
    """True to seed a script that runs on two devices."""
    shows_output: bool = False


@dataclass(frozen=True)
class Watched:
    """Command that ran, for a while or to its end."""

    command: str
    process: Process | None
    """Process that trained, or that imported torch."""
    figures: Figures | None
    began_at: float
    """Reading of the performance counter, which all processes share."""
    ended_at: float
    began_at_unix_seconds: float
    load: tuple[LoadWindow, ...]
    status: int | None = 0
    """Exit status, or None if the command was ended here."""
    ended: str | None = None
    """Reason why it failed or was stopped."""
    output: str = ""
    """Last lines of the output, unless it was shown."""
    cuda_at: str = ""
    """Line that asked for a GPU without checking, if cuda meant the CPU in this run."""

    @property
    def least_step_seconds(self) -> float | None:
        """Time that a step takes at least, if too few ended in the time to measure one."""
        process = self.process
        if self.status is not None or process is None or process.unseen:
            return None
        began_at = process.first_step_at or process.seen_at
        return (self.ended_at - began_at) / max(1, process.taken_steps) if began_at else None


class NoStepsError(UserError):
    """A command ran, and no step of it could be timed."""

    def __init__(self, text: str, watched: Watched) -> None:
        super().__init__(text)
        self.watched = watched


Until = Callable[["subprocess.Popen[bytes]", WatchedScript, LoadMonitor], int | None]
"""Waits until a command has ended or enough is known. Returns its exit status or None."""


def run_recorded(
    command: Sequence[str] | str,
    kind: str,
    until: Until,
    variables: Mapping[str, str],
    *,
    gpus: Sequence[int] = (0,),
    shows_output: bool = True,
    takes_input: bool = True,
) -> Watched:
    """Run a command, or text for a shell, with a recorder. End what is left of it.

    `kind` is torch's name of the device to compute on. For the CPU, GPUs are hidden. If the script
    fails as it asks for one, run it again with cuda meaning the CPU.
    """
    place = os.lseek(0, 0, os.SEEK_CUR) if takes_input and _STDIN.is_file() else None
    with recording(kind, gpus) as (folder, own_variables):
        gpu = own_variables["CUDA_VISIBLE_DEVICES"].partition(",")[0] if kind == "cuda" else ""
        was_used = bool(gpu) and nvidia_gpu_works(gpu)
        script = WatchedScript(folder)
        load = LoadMonitor(nvidia_gpu_state(gpu), own_processes_share_cores=True)
        began_at, began_at_unix_seconds = _clock(), time.time()
        with _running(
            command,
            {**os.environ, **variables, **own_variables},
            shows_output=shows_output,
            takes_input=takes_input,
        ) as process:
            printed = Output(process.stdout)
            status = until(process, script, load)
            ended_at = _clock()
            load.sample()
        script.read()
    output = printed.last_lines()
    trained = script.process
    windows = tuple(load.windows)
    if gpu:
        update = {"gpu_others": int(was_used or nvidia_gpu_works(gpu))}
        windows = tuple(window.model_copy(update=update) for window in windows)
    cuda_at = variables.get(MAPS_CUDA, "")
    asked = trained.failure if trained and not trained.taken_steps else None
    if kind == "cpu" and not cuda_at and asked and not asked.is_own_check:
        print(_AGAIN.format(asked.at), file=sys.stderr)
        if place is not None:
            os.lseek(0, place, os.SEEK_SET)
        mapped = {**variables, MAPS_CUDA: asked.at}
        return run_recorded(
            command, kind, until, mapped, shows_output=shows_output, takes_input=takes_input
        )
    text = command if isinstance(command, str) else shlex.join(command)
    if trained:
        trained.on_command_line += [Length(*found) for found in lengths_in_command([text])]
    why = None
    if status:
        why = f"exit status {status}" if status > 0 else signal.Signals(-status).name
    return Watched(
        text,
        trained,
        trained.figures() if trained else None,
        began_at,
        ended_at,
        began_at_unix_seconds,
        windows,
        status,
        why,
        output,
        cuda_at,
    )


def watch(
    command: Sequence[str],
    *,
    kind: str,
    limits: Limits,
    takes_input: bool = False,
    is_seeded: bool = False,
    gpus: int = 1,
) -> Watched:
    """Run the command until a step's time is known or time is over, then end it.

    The command sees one GPU, or if a launcher starts several processes, as many.
    Raise NoStepsError if no step could be timed.
    """
    most_ranks = gpus if kind == "cuda" else sys.maxsize
    command = [argument.replace(PLACEHOLDER, kind) for argument in command]

    def until(*running: Any) -> int | None:
        with ProgressLine(kind, shows_output=limits.shows_output) as progress:
            return _follow(progress, limits, most_ranks, *running)

    watched = run_recorded(
        command,
        kind,
        until,
        dict.fromkeys((SEEDED, "PYTHONHASHSEED") if is_seeded else (), "0"),
        gpus=range(gpus),
        shows_output=limits.shows_output,
        takes_input=takes_input,
    )
    trained, status = watched.process, watched.status
    if trained and trained.ranks > most_ranks:
        print(_FOR_EACH.format(trained.ranks), file=sys.stderr)
        return watch(command, kind=kind, limits=limits, is_seeded=is_seeded, gpus=trained.ranks)
    if trained is None or watched.figures is None or trained.unseen:
        text = _no_steps(trained or Process(), kind, watched)
        if status:
            text = f"{watched.output}\n{text}"
        raise NoStepsError(text, watched)
    return watched


def _device_variables(kind: str, gpus: Sequence[int]) -> dict[str, str]:
    """Return variables that hide all GPUs for the CPU, else all but the ones at these places."""
    if kind == "cpu":
        return {name: none for each in KINDS.values() for name, none in each.hidden_by.items()}
    if kind != "cuda":
        return {}
    variables = {"CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")}
    for name in KINDS[kind].hidden_by:
        chosen = list(filter(None, os.environ.get(name, "").split(",")))
        places = gpus[: len(chosen)] if chosen else gpus
        named = [chosen[place] if chosen else str(place) for place in places]
        variables |= {name: ",".join(named)} if chosen or name == "CUDA_VISIBLE_DEVICES" else {}
    return variables


@contextmanager
def recording(kind: str, gpus: Sequence[int] = (0,)) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a folder with a recorder, and variables by which a command writes its lines there.

    They hide the GPUs that the run does not use. On the CPU, these are all.
    """
    with tempfile.TemporaryDirectory(prefix="photofinish-") as name:
        folder = Path(name)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(hooks.__file__).parent, folder / _PACKAGE, ignore=ignored)
        (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")
        paths = [name, *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {FOLDER: name, "PYTHONPATH": os.pathsep.join(paths)}
        with FileLock(folder / LOCK):  # until this process ends, however it does
            yield folder, variables | _device_variables(kind, gpus)
            (folder / LOCK).unlink()


@contextmanager
def _running(
    command: Sequence[str] | str,
    environment: dict[str, str],
    *,
    shows_output: bool,
    takes_input: bool,
) -> Iterator[subprocess.Popen[bytes]]:
    is_answered = shows_output or not (sys.stdin and sys.stdin.isatty())
    try:
        process = subprocess.Popen(
            command,
            shell=isinstance(command, str),
            env=environment,
            # A question that is hidden would wait for ever.
            stdin=None if takes_input and is_answered else subprocess.DEVNULL,
            stdout=None if shows_output else subprocess.PIPE,
            stderr=None if shows_output else subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        program = {".py": "python", ".sh": "bash"}.get(Path(command[0]).suffix)
        hint = f". Write {program} {command[0]}" if program else ""
        raise UserError(f"can't run {command[0]}: {error.strerror}{hint}") from error
    try:
        yield process
    finally:
        kill_tree(process.pid)
        process.wait()


def _follow(
    progress: ProgressLine,
    limits: Limits,
    most_ranks: int,
    process: subprocess.Popen[bytes],
    sample: WatchedScript,
    load: LoadMonitor,
) -> int | None:
    """Wait until the command has ended or enough is known. Return the exit status or None."""
    began_at, said = _clock(), ""
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            sample.read()
        now, trained = _clock(), sample.process or Process()
        if (trained.unseen and not trained.may_be_named) or trained.ranks > most_ranks:
            break
        first_step_at = trained.first_step_at
        if first_step_at is None:
            left_seconds = limits.patience_seconds - (now - began_at)
            awaited = "the first optimizer step"
            awaited = awaited if trained.has_torch else "the script to import torch"
            progress.show(f"waiting for {awaited}", left_seconds)
            others = [name for name, at in trained.others.items() if now - at > UNSEEN_SECONDS]
            others = [] if trained.has_torch else others
            if left_seconds < 0 or set(others) - _BESIDE_TORCH or trained.steps_by_itself(now):
                break
            warning = f"the script has imported {listed(others)}, but not torch" if others else ""
            if trained.has_torch and now - (trained.seen_at or began_at) > UNSEEN_SECONDS:
                warning = _NO_STEP
            if warning not in ("", said):
                progress.say(warning)
                said = warning
            load.begin()
            continue
        load.sample()  # programs that come and go are busy for seconds, not on average
        figures, passed_seconds = trained.figures(), now - first_step_at
        left_seconds = limits.training_seconds - passed_seconds
        steps = counted(figures.steps if figures else 1, "step")
        progress.show(f"{steps} in {seconds(passed_seconds)}", left_seconds)
        # The end of an epoch shows validation, and whether later epochs are as slow.
        awaited_seconds = trained.seconds_until_second_epoch(figures) if figures else 0.0
        is_known = figures is not None and figures.is_known_well
        is_known = is_known and not 0 < awaited_seconds < left_seconds
        if left_seconds < 0 or (is_known and passed_seconds > _ENOUGH_SECONDS):
            break
    return None


def _no_steps(process: Process, kind: str, watched: Watched) -> str:
    if process.unseen:
        return f"the command {process.unseen}, whose steps can't be seen"
    found = process.failure
    if found and "invalid device ordinal" in found.text:
        return (
            f"{found.at} uses a GPU that `ask` doesn't show: `{found.line}`. "
            f"It shows one, as cuda:0, and CUDA_VISIBLE_DEVICES=1 chooses another"
        )
    if found and kind == "cpu":
        mend = "Remove that check, or let the command choose the CPU"
        if not found.is_own_check:
            mend = f"Nothing on the CPU stands in for it ({found.text})"
        return f"{found.at} needs a GPU: `{found.line}`. {mend}."
    status, how = watched.status, f"ended with exit status {watched.status}"
    if status is None:
        how = f"was stopped after {seconds(watched.ended_at - watched.began_at)}"
    option = "--patience"
    others = process.others
    if not process.has_torch:
        what = (
            "never imported torch. Use the Python that has torch, as in "
            "`photofinish ask .venv/bin/python train.py` (without -I or -E)"
        )
        if others:
            what = f"imported {listed([*others])} but not torch, and only torch can be watched"
            option = ""
        elif status and watched.output and "No module named 'torch'" not in watched.output:
            return f"the command {how}, before an import of torch was seen."
    elif process.steps:
        what = f"took only {counted(process.taken_steps, 'step')}, too few to time one"
        option = "--seconds"
    else:
        batches, forward_passes = process.seen
        what = (
            f"took no optimizer step. It loaded {batches:,} batches with a DataLoader and ran "
            f"{counted(forward_passes, 'module')}"
        )
        if others:
            what += f". It imported {listed([*others])}, whose training can't be watched"
    more = f" Raise {option} to wait longer." if status is None and option else ""
    if status and kind == "cuda" and process.ranks > 1:
        more = f" It started {process.ranks} processes. With fewer GPUs: --nproc-per-node 1."
    return f"the command {how}. It {what}.{more}"
