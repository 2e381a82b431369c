"""`photofinish plan --try`: each data set and experiment on a few samples, before any run."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import torch
from torch import nn

from photofinish.config.base import Record, read_plan
from photofinish.config.datasets import DatasetPlan
from photofinish.config.experiment import ExperimentPlan, LoaderInput
from photofinish.config.metrics import Metrics, MetricsPlan
from photofinish.config.networks import CustomModel, published_weights
from photofinish.config.scripts import ScriptPlan
from photofinish.custom.opened import unnamed_files_reported
from photofinish.custom.running import forget_imports, user_traceback
from photofinish.data.few_samples import split_few
from photofinish.data.tasks import TASKS
from photofinish.errors import UserError
from photofinish.machine.fingerprint import CpuTarget
from photofinish.nested import call_with, map_nested
from photofinish.profiling.first_step import check_outputs
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.training.batches import Batch
from photofinish.training.losses import Loss
from photofinish.training.output_metrics import custom_scores, joined, rows_that_count
from photofinish.training.step import take_steps
from photofinish.training.torch_device import CPU, autocast, configure_torch
from photofinish.training.world import World
from photofinish.wording import counted, listed

_BATCH = 16
"""Largest batch. Smaller sizes are powers of two, so that no batch has a remainder."""
_PlanT = TypeVar("_PlanT", bound=Record)


def try_out(plans: Path) -> None:
    """Try everything that is planned, on the CPU. Raise UserError with all problems."""
    datasets = _read_all(plans / "datasets", DatasetPlan)
    experiments = _read_all(plans / "on_cpu", ExperimentPlan)
    missing = [name for name, plan in datasets.items() if not _is_here(plan)]
    waiting = [name for name, plan in experiments.items() if plan.dataset in missing]
    untried = list(_untried(missing, waiting, sorted(_read_all(plans / "scripts", ScriptPlan))))
    if len(missing) == len(datasets):
        raise UserError("\n".join(["nothing was tried", *untried]))
    problems, tried_experiments = _Problems(), 0
    knows_classes: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, dataset in datasets.items():
            if name not in missing:
                with problems.of(f"datasets.{name}"), forget_imports():
                    knows_classes[name] = split_few(dataset, folder / name)
        for name, plan in experiments.items():
            if plan.dataset in knows_classes:
                tried_experiments += 1
                host = read_plan(plans / "hosts/cpu.json", CpuTarget)
                run = Run(name, "cpu", _reduced(plan), host, folder / plan.dataset, folder)
                metrics = read_plan(plans / f"metrics/{name}.json", MetricsPlan).metrics
                named = [*plan.custom_code, *datasets[plan.dataset].named_files()]
                trial = _Trial(run, metrics, problems, knows_classes=knows_classes[plan.dataset])
                with forget_imports(), unnamed_files_reported(f"experiments.{name}", named):
                    trial.run()
            elif name not in waiting:
                print(f"experiments.{name} is not tried, as its data set fails")
    tried = f"{counted(len(datasets) - len(missing), 'data set')} and "
    tried += counted(tried_experiments, "experiment")
    print("".join(f"{each}\n" for each in untried), end="")
    if problems.texts:
        texts = "\n\n".join(problems.texts)
        raise UserError(f"{counted(len(problems.texts), 'problem')} in {tried}\n\n{texts}")
    print(f"Tried {tried}: nothing fails")


def _read_all(folder: Path, schema: type[_PlanT]) -> dict[str, _PlanT]:
    """Return the plans in a folder by name."""
    return {file.stem: read_plan(file, schema) for file in sorted(folder.glob("*.json"))}


def _untried(missing: list[str], waiting: list[str], scripts: list[str]) -> Iterator[str]:
    """Yield what can't be tried, with the command that changes that or takes its place."""
    if missing:
        names = [f"datasets.{name}" for name in missing]
        names += [f"experiments.{name}" for name in waiting]
        downloads = " ".join(f"download@{name}" for name in missing)
        yield (
            f"Not tried: {listed(names)}, as the data is not downloaded yet: "
            f"`photofinish run {downloads}`, then try again"
        )
    if scripts:
        names = [f"scripts.{name}" for name in scripts]
        yield f"Not tried: {listed(names)}: `photofinish ask {' '.join(scripts)}` runs them a while"


class _Problems:
    """Collector of the problems so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @contextmanager
    def of(self, key: str) -> Iterator[None]:
        """Run a block, and keep its error as a problem at this key."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # it is listed with all other problems
            text = str(error) if isinstance(error, UserError) else f"\n{user_traceback(error)}"
            self.texts.append(f"{key}: {text.removeprefix(f'{key}: ')}")


def _is_here(plan: DatasetPlan) -> bool:
    """Return False for a data set that was not downloaded yet."""
    return not plan.dataset.is_downloaded or Path("data/raw", plan.name).is_dir()


def _reduced(plan: ExperimentPlan) -> ExperimentPlan:
    """Return a plan with small batches, without loading processes and published weights."""
    size = min(_BATCH, 1 << (plan.batch_size.bit_length() - 1))
    changes: dict[str, Any] = {"batch_size": size, "validation_batch_size": size}
    if isinstance(plan.input, LoaderInput):
        alone = {"workers": 0, "prefetch_factor": None, "persistent_workers": False}
        changes["input"] = plan.input.model_copy(update=alone)
    if published_weights(plan.model):
        key = "pretrained" if isinstance(plan.model, CustomModel) else "weights"
        changes["model"] = plan.model.model_copy(update={key: None})
    return plan.model_copy(update=changes)


class _Trial:
    """Trial of an experiment: each part that can be tried alone, then two steps."""

    def __init__(
        self, run: Run, metrics: Metrics, problems: _Problems, *, knows_classes: bool
    ) -> None:
        self._run, self._metrics, self._knows_classes = run, metrics, knows_classes
        self._problems, self._earlier = problems, len(problems.texts)
        self._key = f"experiments.{run.name}"

    def run(self) -> None:
        """Try the inputs, the network, the code that gets its outputs, and the training."""
        experiment = self._run.experiment
        threads = self._run.host.threads or 1
        configure_torch(CPU, experiment.precision, threads, deterministic=experiment.deterministic)
        setup = network = trainer = None
        with self._part():
            self._run.check()
            setup = Setup(self._run, CPU, World(CPU))
        if setup is None:
            return
        with self._part(".input"):
            next(iter(setup.training.train_batches(0)))
        with self._part(".model"):
            network = setup.new_network()
        if network is None:
            return
        if not (experiment.step or experiment.validation_step):
            self._try_outputs(setup, network)
        self._try_pickling(network)
        with self._part():
            trainer = setup.new_trainer(network)
        if trainer and len(self._problems.texts) == self._earlier:
            with self._part():
                setup.check_custom_code(network, knows_classes=self._knows_classes)
                steps = take_steps(trainer.steps, trainer.state, trainer.train_batches(0))
                print(f"{self._key}: {counted(len(list(steps)), 'step')}")

    def _part(self, key: str = "") -> AbstractContextManager[None]:
        return self._problems.of(f"{self._key}{key}")

    def _try_outputs(self, setup: Setup, network: nn.Module) -> None:
        """Try the network on the validation samples, then the loss and metrics on its outputs."""
        experiment, manifest = self._run.experiment, setup.split.manifest
        assert setup.validation is not None  # split_few makes one
        task, batches = TASKS[manifest.task], list(setup.validation.eval_batches())
        outputs: list[Any] = []
        with self._part(".model"), torch.inference_mode(), autocast(CPU, experiment.precision):
            width = len(manifest.class_names) if self._knows_classes else None
            for inputs, targets in batches:
                outputs.append(call_with(network.eval(), inputs))
                if task.losses:
                    check_outputs(type(network).__name__, outputs[-1], targets, width)
            network.train()
            self._try_judges(setup, outputs, batches)

    def _try_pickling(self, network: nn.Module) -> None:
        """Print a note about a custom network of which MLflow keeps only code and state."""
        if not isinstance(self._run.experiment.model, CustomModel):
            return
        try:
            torch.save(network, io.BytesIO(), pickle_module=cloudpickle)
        except Exception as error:  # noqa: BLE001  # pickling calls custom code
            why = str(error).partition("\n")[0]
            print(f"note: {self._key}.model: MLflow will keep its code and state_dict only: {why}")

    def _try_judges(self, setup: Setup, outputs: list[Any], batches: list[Batch]) -> None:
        """Try the loss and each metric on a network's outputs."""
        experiment, manifest = self._run.experiment, setup.split.manifest
        task = TASKS[manifest.task]
        outputs = [map_nested(torch.Tensor.float, one) for one in outputs]
        with self._part(".loss"), torch.inference_mode():
            criterion = Loss.of(experiment, manifest.task, CPU)
            task = criterion.task
            criterion.mean(outputs[0], batches[0][1])
        for number, metric in enumerate(self._metrics):
            with self._part(f".metrics.{number}"), torch.inference_mode():
                pairs = zip(outputs, batches, strict=True)
                rows = [rows_that_count(task, one, targets) for one, (_, targets) in pairs]
                judged, actual = (joined(parts) for parts in zip(*rows, strict=True))
                custom_scores((metric,), task, judged, actual, manifest.class_names)
