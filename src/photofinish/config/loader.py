"""Load params.yaml, merge the defaults into each experiment and report all problems at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from photofinish.config.base import NAME_PATTERN, CallsCode, is_name
from photofinish.config.catalogue import loss_problem, shape_problem
from photofinish.config.compare import Comparing
from photofinish.config.datasets import CustomDataset, Dataset, known_images
from photofinish.config.devices import Devices, check_devices
from photofinish.config.experiment import SHORTHAND_KEYS, Experiment, custom_code_of, spelled_out
from photofinish.config.problems import (
    REQUIRED,
    ConfigProblem,
    KeyPath,
    problems_in,
    unknown_name,
)
from photofinish.custom_code import is_reference
from photofinish.errors import ConfigError

_SECTIONS = ("defaults", "devices", "datasets", "experiments", "compare")
_BUILT_IN = {"seed": 0, "input": "resident", "schedule": "constant", "precision": "fp32"}


@dataclass(frozen=True)
class Params:
    """Contents of params.yaml, with the defaults merged into each experiment."""

    experiments: dict[str, Experiment]
    datasets: dict[str, Dataset]
    devices: Devices
    comparing: Comparing = field(default_factory=Comparing)
    custom_code: dict[KeyPath, CallsCode] = field(default_factory=dict)
    """Custom code, by the keys that name it."""


def read_params(path: Path, *checks: Callable[[Params], Iterable[ConfigProblem]]) -> Params:
    """Read and check the whole file. Raise one ConfigError that lists all problems in it.

    `checks` add the problems that depend on other files of this machine.
    """
    document, root = _parse(path)
    loader = _Loader(document)
    params = loader.load()
    for check in checks:
        loader.report(*check(params))
    problems = [(_line_of(root, problem.path), problem) for problem in loader.problems.values()]
    if problems:
        count = f"{len(problems)} mistake{'s' if len(problems) > 1 else ''}"
        problems.sort(key=lambda line_and_problem: line_and_problem[0])
        lines = [problem.describe(f"{path}:{line}") for line, problem in problems]
        raise ConfigError(f"{path} has {count}; nothing was started\n" + "\n".join(lines))
    return params


def _parse(path: Path) -> tuple[Any, Node | None]:
    """Return the value of a YAML file, read as DVC reads it, and the nodes with its lines."""
    try:
        constructor, _ = YAML(typ="safe").get_constructor_parser(path.read_text(encoding="utf-8"))
        root = constructor.composer.get_single_node()
        return (constructor.construct_document(root) if root else None), root
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.context, error.problem)))
        hint = "; put text with a colon in quotes" if "':'" in problem else ""
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}  this is not valid YAML: {problem}{hint}") from None
    except Exception as error:  # ruamel.yaml passes on Python's own, for 2024-13-45 for example
        raise ConfigError(f"{path} can't be read as YAML: {error}") from error


def _line_of(node: Node | None, path: KeyPath) -> int:
    """Return the line of the key at `path`, or of its deepest parent in the file."""
    line = 1
    for part in path:
        children: dict[Any, tuple[Node, Node]] = {}
        if isinstance(node, MappingNode):  # keys merged by `<<` come first
            children = {key.value: (key, value) for key, value in node.value if key.id == "scalar"}
        elif isinstance(node, SequenceNode):
            children = {index: (item, item) for index, item in enumerate(node.value)}
        if part not in children:
            break
        key, node = children[part]
        line = key.start_mark.line + 1
    return line


class _Loader:
    """Collects problems. The params that it returns are complete only if there are none."""

    def __init__(self, document: Any) -> None:
        self.problems: dict[KeyPath, ConfigProblem] = {}
        self._document = self._with_text_keys(document, ())
        self._custom_code: dict[KeyPath, CallsCode] = {}
        self._faulty_defaults: set[tuple[KeyPath, str]] = set()

    def report(self, *problems: ConfigProblem, below: KeyPath = ()) -> None:
        """Keep the first problem at each place. Paths start at `below`."""
        for problem in problems:
            path = (*below, *problem.path)
            if path[-1:] == ("name",) and self._is_text(path[:-1]):
                path = path[:-1]  # `model: linear` has no key `name`
            self.problems.setdefault(path, replace(problem, path=path))

    def _is_text(self, path: KeyPath) -> bool:
        value = self._document
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return isinstance(value, str)

    def load(self) -> Params:
        document = self._document
        if not isinstance(document, dict):
            problem = f"must be a mapping with the keys {', '.join(_SECTIONS)}"
            self.report(ConfigProblem((), problem, document))
            return Params({}, {}, Devices())
        for key in document.keys() - set(_SECTIONS):
            self.report(ConfigProblem((key,), unknown_name("key", key, _SECTIONS), document[key]))
        self._has_unknown_key = bool(self.problems)  # then a key may only seem to be missing
        devices = self._validated(Devices, ("devices",), document.get("devices") or {})
        comparing = self._validated(Comparing, ("compare",), document.get("compare") or {})
        datasets = {}
        for name, settings in self._entries("datasets"):
            dataset = self._validated(Dataset, ("datasets", name), settings)
            if dataset is not None:
                datasets[name] = dataset
            if isinstance(dataset, CustomDataset):
                self._custom_code["datasets", name] = dataset
        defaults = self._defaults()
        experiments = {}
        for name, settings in self._entries("experiments"):
            if experiment := self._experiment(name, settings, defaults):
                experiments[name] = experiment
        devices = devices or Devices()
        self.report(*check_devices(devices, experiments), *_misfits(datasets, experiments))
        return Params(experiments, datasets, devices, comparing or Comparing(), self._custom_code)

    def _with_text_keys(self, value: Any, path: KeyPath) -> Any:
        """Return the document with keys as text, and report those that are not."""
        if isinstance(value, list):
            return [self._with_text_keys(item, (*path, i)) for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        result = {}
        for key, item in value.items():
            place = (*path, str(key))
            if not isinstance(key, str):
                self.report(ConfigProblem(place, "this key is not text: put it in quotes"))
            result[str(key)] = self._with_text_keys(item, place)
        return result

    def _entries(self, section: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the entries of `datasets` or `experiments` that are mappings with valid names."""
        entries = self._document.get(section)
        if not isinstance(entries, dict) or not entries:
            if section in self._document or not self._has_unknown_key:
                problem = f"{REQUIRED}: a mapping with at least one entry"
                self.report(ConfigProblem((section,), problem))
            return
        for name, settings in entries.items():
            if not is_name(name):
                problem = f"this name must match {NAME_PATTERN}, since it names a folder"
                self.report(ConfigProblem((section, name), problem))
            elif not isinstance(settings, dict):
                self.report(ConfigProblem((section, name), "must be a mapping", settings))
            else:
                yield name, settings

    def _defaults(self) -> dict[str, Any]:
        """Return the defaults. Problems in them are reported here, once for all experiments."""
        place = ("defaults",)
        defaults = self._document.get("defaults") or {}
        if not isinstance(defaults, dict):
            self.report(ConfigProblem(place, "must be a mapping of settings", defaults))
            self._has_unknown_key = True
            return dict(_BUILT_IN)
        if "dataset" in defaults:
            problem = "name the data set in each experiment; dvc.yaml reads it there"
            self.report(ConfigProblem((*place, "dataset"), problem, defaults["dataset"]))
        if defaults.keys() - Experiment.model_fields.keys():
            self._has_unknown_key = True
        merged = _merge(_BUILT_IN, defaults)
        for fault in _validate(Experiment, merged)[1]:
            if fault.problem != REQUIRED or len(fault.path) > 1:  # experiments may have the rest
                self.report(fault, below=place)
                self._faulty_defaults.add((fault.path, fault.problem))
        return merged

    def _experiment(
        self, name: str, settings: dict[str, Any], defaults: dict[str, Any]
    ) -> Experiment | None:
        place = ("experiments", name)
        dataset, datasets = settings.get("dataset"), self._document.get("datasets")
        if isinstance(dataset, str) and isinstance(datasets, dict) and dataset not in datasets:
            problem = unknown_name("data set", dataset, list(datasets))
            self.report(ConfigProblem((*place, "dataset"), problem, dataset))
        experiment: Experiment | None
        experiment, problems = _validate(Experiment, _merge(defaults, settings))
        for fault in problems:
            if not self._is_inherited(fault, settings):
                self.report(fault, below=place)
        for keys, code in (custom_code_of(experiment) if experiment else {}).items():
            start = place if keys[0] in settings else ("defaults",)
            self._custom_code[(*start, *keys)] = code
        return experiment

    def _is_inherited(self, problem: ConfigProblem, settings: dict[str, Any]) -> bool:
        """Return True if an experiment's problem was reported for the defaults."""
        key = str(problem.path[0])
        if self._has_unknown_key and problem.problem == REQUIRED:
            return key not in ("dataset", "model")
        block = spelled_out(settings.get(key))
        if isinstance(block, dict) and "name" in block:
            return False
        return (problem.path, problem.problem) in self._faulty_defaults

    def _validated(self, schema: Any, place: KeyPath, settings: Any) -> Any:
        value, problems = _validate(schema, settings)
        self.report(*problems, below=place)
        return value


def _validate(schema: Any, settings: Any) -> tuple[Any, list[ConfigProblem]]:
    """Return the validated settings, or None and the problems in them."""
    try:
        # From JSON, since strict models accept lists as tuples only there.
        return _adapter(schema).validate_json(json.dumps(settings, default=str)), []
    except ValidationError as error:
        return None, list(problems_in(error, schema))


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def _misfits(
    datasets: dict[str, Dataset], experiments: dict[str, Experiment]
) -> Iterator[ConfigProblem]:
    """Yield networks and losses that do not fit their data set, as far as params.yaml shows."""
    for name, experiment in experiments.items():
        dataset = datasets.get(experiment.dataset)
        if dataset is None:
            continue
        images, network = known_images(dataset), experiment.model
        if problem := shape_problem(network, images.channels, images.sides):
            yield ConfigProblem(("experiments", name, "model"), problem, network.name)
        loss = experiment.loss.name if experiment.loss else None
        if not is_reference(dataset.source) and (problem := loss_problem(loss, "classes")):
            yield ConfigProblem(("experiments", name, "loss"), problem, loss)


def _merge(defaults: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Merge settings into the defaults, and blocks key by key unless they name another kind."""
    merged = {**defaults, **settings}
    for key in SHORTHAND_KEYS & merged.keys():
        block, default = spelled_out(merged[key]), spelled_out(defaults.get(key))
        if isinstance(block, dict) and isinstance(default, dict):
            is_same_kind = block.get("name", default.get("name")) == default.get("name")
            block = {**default, **block} if is_same_kind else block
        merged[key] = block
    return merged
