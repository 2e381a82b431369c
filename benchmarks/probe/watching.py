"""Scripts on a GPU, watched as `ask` watches them, beside what they do alone."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.probe.findings import ROOT, Findings, here
from benchmarks.probe.gpu_scripts import WATCHED
from photofinish.answer.comparison import same_script
from photofinish.scripts.run_script import Limits, NoStepsError, Watched, watch

_SCRIPT = ROOT / "benchmarks" / "probe" / "gpu_scripts.py"
_IS_FULL = {"hidden_loading", "accumulate", "slow_steps", "long_hidden"}
"""Scripts whose device computes whenever it has a batch, so that it idles only for the loader."""


def _command(name: str, kind: str, *options: str) -> list[str]:
    return [sys.executable, str(_SCRIPT), name, "--device", kind, *options]


def _alone(name: str, seconds: float) -> dict[str, float]:
    command = _command(name, here(make_current=False).type, "--alone", str(seconds))
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def run_watched(findings: Findings, _out: Path) -> None:
    """Compare a step, its loading and its share of the job with what the script takes alone."""
    kind = here(make_current=False).type
    for name in WATCHED:
        if name == "gpt2" and importlib.util.find_spec("transformers") is None:
            findings.skip(name, "transformers is not installed here")
            continue
        with findings.failures_kept(name):
            truth = _alone(name, 3)
            figures: Any = watch(_command(name, kind), kind=kind, limits=Limits(5, 60)).figures
            job_seconds = sum(part.seconds for part in figures.parts)
            job_seconds /= sum(part.steps for part in figures.parts)
            job_seconds += figures.validation_step_seconds
            both = ("step", figures.step_seconds, 0.03), ("job", job_seconds, 0.05)
            for what, seconds, within in both:
                alone = truth[f"{what}_seconds"]
                note = f"watched {seconds * 1e3:.4g} ms, alone {alone * 1e3:.4g} ms"
                _keep(findings, name, what, abs(seconds / alone - 1) <= within, note)
            if name in _IS_FULL and "busy_share" in truth:
                idle, loading = 1 - truth["busy_share"], figures.waiting_share
                note = f"watched {loading}, the device idles {idle:.3f} of the time"
                is_right = loading is not None and abs(loading - idle) <= 0.05
                _keep(findings, name, "loading", is_right, note)
            elif name in _IS_FULL:
                findings.skip(name, "there is no CUDA device here", variant="loading")


def _keep(findings: Findings, name: str, what: str, is_right: bool, note: str) -> None:
    findings.add(name, "pass" if is_right else "OTHER", variant=what, note=note)


def run_same(findings: Findings, _out: Path) -> None:
    """Compare first steps on the GPU and on the CPU. Without a GPU they are equal bit for bit."""
    kind = here(make_current=False).type
    for name in ("cnn", "transformer", "mlp", "faulty"):
        with findings.failures_kept(name):
            runs: list[Any] = []
            for place in (kind, "cpu"):
                script = "same_cnn" if name == "faulty" and runs else f"same_{name}"
                command, limits = _command(script, place), Limits(3, 60)
                runs.append(watch(command, kind=place, limits=limits, is_seeded=True).process)
            precisions = [run.precision for run in runs]
            found = same_script(runs[1].first_steps, runs[0].first_steps, precisions)
            wanted = "other step" if name == "faulty" else "same step"
            is_right = found.kind == wanted or (kind, found.kind) == ("cpu", "identical")
            note = f"{found.kind} {found.layer}, {' and '.join(precisions)}".replace(" ,", ",")
            _keep(findings, name, wanted, is_right, note)


def run_broken(findings: Findings, _out: Path) -> None:
    """Run scripts that once broke, all at the same time: only what a user is told counts."""
    kind = here(make_current=False).type
    ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]

    def little_memory() -> None:
        name = "compiled GPT at its own peak + 3 %"
        if kind != "cuda":
            return findings.skip(name, "there is no CUDA device here")
        total_bytes = torch.cuda.get_device_properties(0).total_memory
        share = 1.03 * _alone("language_model", 1)["reserved_bytes"] / total_bytes
        options = "--memory", str(share)
        alone = subprocess.run([*_command("language_model", kind, "--alone", "1", *options)])
        ran, told = _told(_command("language_model", kind, *options), kind, Limits(5, 40))
        is_right = bool(ran and ran.status is None)
        return _keep(findings, name, "watched", is_right, f"{told}, alone {alone.returncode}")

    def whole_step() -> None:
        ran, told = _told(_command("compiled_step", kind), kind, Limits(50, 50))
        _keep(findings, "compiled whole step", "to its end", bool(ran and ran.status == 0), told)

    def evaluation() -> None:
        for place in dict.fromkeys((kind, "cpu")):
            ran, told = _told(_command("evaluates_first", place), place, Limits(3, 40))
            process: Any = ran and ran.process
            seconds = process.first_step_at - process.seen_at
            is_right = 8 < seconds < 12 if place == "cpu" else 1 < seconds < 5
            note = f"{seconds:.1f} s from the first module to the first step, {told}"
            _keep(findings, "evaluation before training", place, is_right, note)

    def told_only(name: str, command: list[str]) -> None:
        findings.add(name, _told(command, kind, Limits(5, 40))[1])

    checks: dict[str, Callable[[], None]] = {
        "little memory": little_memory,
        "whole step": whole_step,
        "evaluation": evaluation,
        "cuda:1": partial(told_only, "cuda:1", _command("read_loss", "cuda:1")),
        "torchrun": partial(told_only, "torchrun", ranks + _command("two_ranks", kind)[1:]),
    }

    def check(name: str) -> None:
        with findings.failures_kept(name):
            checks[name]()

    with ThreadPoolExecutor(len(checks)) as threads:
        list(threads.map(check, checks))


def _told(command: list[str], kind: str, limits: Limits) -> tuple[Watched | None, str]:
    """Watch a command. Return the run, if steps were timed, and what a user is told."""
    try:
        ran = watch(command, kind=kind, limits=limits)
    except NoStepsError as error:
        return None, f"{error}"[-600:]
    return ran, f"status {ran.status}, {ran.figures.steps if ran.figures else 0} steps"


def run_shared(findings: Findings, _out: Path) -> None:
    """Watch a script beside other programs on its GPU: one that computes must be seen."""
    if here(make_current=False).type != "cuda":
        findings.skip("read_loss beside another program", "there is no CUDA device here")
        return
    for name in ("idles", "multiplies"):
        command = _command(name, "cuda")
        with findings.failures_kept(name), subprocess.Popen(command) as other:
            time.sleep(3)  # it starts
            before = torch.cuda.utilization()
            ran = watch(_command("read_loss", "cuda"), kind="cuda", limits=Limits(3, 20))
            after, others = torch.cuda.utilization(), max(each.gpu_others for each in ran.load)
            other.kill()
            step_ms = ran.figures.step_seconds * 1e3 if ran.figures else 0.0
            note = f"others: {others}, {before} and {after} % used, a step {step_ms:.4g} ms"
            _keep(findings, "read_loss", f"another {name}", others == (name == "multiplies"), note)
