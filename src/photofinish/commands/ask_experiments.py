"""`photofinish ask [NAME ...]`: answer for experiments of params.yaml, from samples."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from photofinish.answer.comparison import Comparison, with_settings
from photofinish.answer.decision import decide_all
from photofinish.commands import pipeline
from photofinish.commands.ask import ask_command, print_answers
from photofinish.commands.ask_start import print_start
from photofinish.commands.ask_terms import Terms
from photofinish.commands.sampled_experiments import PLAN, sample_on_both
from photofinish.config.base import read_plan
from photofinish.config.compare import ComparePlan
from photofinish.config.loader import read_params
from photofinish.config.scripts import ScriptPlan
from photofinish.errors import EXIT_FAILED, ConfigError, UserError
from photofinish.reporting.ask_files import AskFiles, JobAnswer, write_job_answers
from photofinish.results.references import read_references
from photofinish.scripts.run_script import Limits
from photofinish.scripts.script_lines import Length
from photofinish.scripts.script_record import WholeJob
from photofinish.scripts.script_stage import in_shell
from photofinish.wording import seconds, unknown_name


def ask_experiments(
    names: Sequence[str], limits: Limits, files: AskFiles, terms: Terms | None = None
) -> None:
    """Print and write the answers for these experiments and scripts, or for all."""
    pipeline.enter()
    params = read_params(pipeline.PARAMS)
    every = [*params.experiments, *params.scripts]
    for name in names:
        if name not in every:
            raise ConfigError(unknown_name("name", name, every))
    experiments = [name for name in params.experiments if name in (names or every)]
    scripts = [name for name in params.scripts if name in (names or every)]
    pipeline.run_quietly(pipeline.stages_before(params, experiments))
    settings = (terms or Terms()).applied_to(read_plan(PLAN / "compare.json", ComparePlan))
    answers = list(_sampled(experiments, limits, settings))
    for answer in answers:
        print_answers([answer])
    has_failed = len(answers) < len(experiments)
    for name in scripts:
        print(f"\n{name}:")
        print_start(limits.training_seconds)
        script = read_plan(PLAN / f"scripts/{name}.json", ScriptPlan)
        length = None
        if script.epochs:
            length = Length("epochs", script.epochs, "`epochs` of params.yaml")
        try:
            found, failed = ask_command(in_shell(script.command), length, limits, settings)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            found, failed = [], True
        answers += found
        has_failed = has_failed or failed
    write_job_answers(files, answers)
    if has_failed:
        sys.exit(EXIT_FAILED)


def _sampled(experiments: Sequence[str], limits: Limits, plan: ComparePlan) -> Iterator[JobAnswer]:
    """Sample the experiments, then decide for all of them: a sweep shares a rented GPU."""
    pairs: list[Comparison] = []
    for number, name in enumerate(experiments, 1):
        print(
            f"{name}: training for up to {seconds(limits.training_seconds)}, and keeping nothing "
            f"({number} of {len(experiments)})",
            file=sys.stderr,
        )
        try:
            pairs.append(sample_on_both(name, limits.training_seconds, plan))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
    pairs = with_settings(pairs, plan, read_references(Path("reference"), plan.references))
    decisions = decide_all(pairs, limits.training_seconds)
    for pair, decision in zip(pairs, decisions, strict=True):
        timings = pair.cpu.timings
        steps = float(timings.steps_per_epoch or 1)
        job = WholeJob(pair.experiment, round(timings.planned_epochs), steps)
        yield JobAnswer(job, pair, decision)
