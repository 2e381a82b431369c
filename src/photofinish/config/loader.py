"""Load params.yaml, and report all its problems at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from photofinish.config.base import NAME_PATTERN, CallsCode, is_name, spelled_out
from photofinish.config.compare import Comparing
from photofinish.config.datasets import CustomDataset, Dataset
from photofinish.config.devices import Devices
from photofinish.config.experiment import BLOCKS, Experiment, custom_code_of
from photofinish.config.losses_and_metrics import MONITORED, EarlyStopping
from photofinish.config.problems import (
    NO_MAPPING,
    REQUIRED,
    UNKNOWN_KEY,
    ConfigProblem,
    KeyPath,
    problems_in,
)
from photofinish.config.pytorch_names import CONSTANT
from photofinish.config.scripts import Script
from photofinish.errors import ConfigError
from photofinish.wording import counted, printable, unknown_name

_SECTIONS = ("defaults", "devices", "datasets", "experiments", "scripts", "compare")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
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
    inherited: dict[KeyPath, KeyPath] = field(default_factory=dict)
    """For each inherited argument of an experiment's code, its key in `defaults`."""
    scripts: dict[str, Script] = field(default_factory=dict)


def read_params(path: Path, *checks: Callable[[Params], Iterable[ConfigProblem]]) -> Params:
    """Read and check the whole file. Raise one ConfigError that lists all problems in it."""
    document, root = _parse_yaml(path)
    loader = _Loader(document)
    params = loader.load()
    for check in checks:
        loader.report(*check(params))
    problems = [*loader.problems.values()]
    if any(problem.problem.startswith((UNKNOWN_KEY, NO_MAPPING)) for problem in problems):
        # A missing key is usually the misspelt key, which is reported already.
        problems = [problem for problem in problems if not problem.problem.startswith(REQUIRED)]
    if problems:
        problems.sort(key=lambda problem: _line_of(root, problem.path))
        lines = [problem.describe(f"{path}:{_line_of(root, problem.path)}") for problem in problems]
        count = counted(len(problems), "mistake")
        raise ConfigError(f"{path} has {count}; nothing was started\n" + "\n".join(lines))
    return params


def read_names(path: Path) -> list[str]:
    """Return the names of experiments and scripts, without a check of the rest."""
    document, _ = _parse_yaml(path)
    if not isinstance(document, dict):
        return []
    sections = [document.get(key) for key in ("experiments", "scripts")]
    return [name for section in sections if isinstance(section, dict) for name in section]


def _parse_yaml(path: Path) -> tuple[Any, Node | None]:
    """Return the value of a YAML file as JSON has it, read as DVC reads it, and its nodes."""
    try:
        data = path.read_bytes()
        constructor, _ = YAML(typ="safe").get_constructor_parser(data.decode("utf-8"))
        root = constructor.composer.get_single_node()
        if root is None:
            return None, None
        if problems := sorted(_wrong_keys(root, set())):
            lines = [f"{path}:{line}  {problem}" for line, problem in problems]
            raise ConfigError("\n".join(lines))
        document = constructor.construct_document(root)
        return json.loads(json.dumps(document, default=str)), root
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}  this is not UTF-8: save the file as UTF-8") from None
    except (ValueError, ReaderError) as error:  # an alias names itself, or a character is a null
        raise ConfigError(f"{path} can't be read: {error}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = printable(" ".join(filter(None, (error.context, error.problem))))
        hint = "; put text with a colon in quotes" if "':'" in problem else ""
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}  this is not valid YAML: {problem}{hint}") from None


def _wrong_keys(node: Node, visited: set[int]) -> Iterator[tuple[int, str]]:
    """Yield the keys that JSON would change, with their lines."""
    if isinstance(node, ScalarNode) or id(node) in visited:  # an alias
        return
    visited.add(id(node))
    values = node.value
    if isinstance(node, MappingNode):
        values = [value for _, value in node.value]
        for key, _ in node.value:
            if key.tag not in (_TEXT, _MERGE):
                kind = str(key.tag).rpartition(":")[2]  # of tag:yaml.org,2002:int
                yield key.start_mark.line + 1, f"a key must be text, not {kind}: put it in quotes"
    for value in values:
        yield from _wrong_keys(value, visited)


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
    """Collector of all problems in a file. Its params are complete only without problems."""

    def __init__(self, document: Any) -> None:
        self.problems: dict[KeyPath, ConfigProblem] = {}
        self._document = document
        self._custom_code: dict[KeyPath, CallsCode] = {}
        self._inherited: dict[KeyPath, KeyPath] = {}

    def report(self, *problems: ConfigProblem, below: KeyPath = ()) -> None:
        """Keep the first problem at each place. Paths start at `below`."""
        for problem in problems:
            path = (*below, *problem.path)
            self.problems.setdefault(path, replace(problem, path=path))

    def load(self) -> Params:
        document = self._document
        if not isinstance(document, dict):
            problem = f"{NO_MAPPING} with the keys {', '.join(_SECTIONS)}"
            self.report(ConfigProblem((), problem, document))
            return Params({}, {}, Devices())
        for key in sorted(document.keys() - set(_SECTIONS)):
            self.report(ConfigProblem((key,), unknown_name("key", key, _SECTIONS), document[key]))
        devices = self._validated(Devices, "devices")
        comparing = self._validated(Comparing, "compare")
        datasets = {}
        for name, settings in self._entries("datasets"):
            dataset, problems = _validate(Dataset, settings)
            self.report(*problems, below=("datasets", name))
            if dataset is not None:
                datasets[name] = dataset
            if isinstance(dataset, CustomDataset):
                self._custom_code["datasets", name] = dataset
        defaults = document.get("defaults") or {}
        if not isinstance(defaults, dict):
            self.report(ConfigProblem(("defaults",), f"{NO_MAPPING} of settings", defaults))
            defaults = {}
        experiments = {}
        for name, settings in self._entries("experiments"):
            if experiment := self._experiment(name, settings, defaults):
                experiments[name] = experiment
        self.report(*_conflicts(devices, experiments, datasets))
        scripts = {}
        for name, settings in self._entries("scripts"):
            script, problems = _validate(Script, settings)
            self.report(*problems, below=("scripts", name))
            if name in experiments:
                problem = f"an experiment has this name and writes results/{name}: rename one"
                self.report(ConfigProblem(("scripts", name), problem))
            if script is not None:
                scripts[name] = script
        return Params(
            experiments, datasets, devices, comparing, self._custom_code, self._inherited, scripts
        )

    def _entries(self, section: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the entries of a section that are mappings with valid names."""
        entries = self._document.get(section)
        if section not in self._document:
            is_needed = section == "datasets" and "experiments" in self._document
            if section == "scripts" or ("scripts" in self._document and not is_needed):
                return  # scripts alone need no data set
        if not isinstance(entries, dict) or not entries:
            problem = f"{REQUIRED}: a mapping with at least one entry"
            self.report(ConfigProblem((section,), problem))
            return
        for name, settings in entries.items():
            if not is_name(name):
                problem = f"this name becomes a folder's, so it must match {NAME_PATTERN}"
                self.report(ConfigProblem((section, name), problem))
            elif not isinstance(settings, dict):
                self.report(ConfigProblem((section, name), NO_MAPPING, settings))
            else:
                yield name, settings

    def _experiment(
        self, name: str, settings: dict[str, Any], defaults: dict[str, Any]
    ) -> Experiment | None:
        def section(path: KeyPath) -> KeyPath:
            """Return the section that a setting was written in, `defaults` or the experiment."""
            key, *rest = map(str, path)
            block = spelled_out(settings.get(key))
            default = spelled_out(defaults.get(key))
            is_merged = bool(rest) and _is_merged(key, block, default)
            is_own = key in settings and (not is_merged or rest[0] in block)
            return ("experiments", name) if is_own or key not in defaults else ("defaults",)

        dataset, datasets = settings.get("dataset"), self._document.get("datasets")
        if isinstance(dataset, str) and isinstance(datasets, dict) and dataset not in datasets:
            problem = unknown_name("data set", dataset, list(datasets))
            self.report(ConfigProblem(("experiments", name, "dataset"), problem, dataset))
        experiment: Experiment | None
        merged = _merge(_merge(_BUILT_IN, defaults), settings)
        experiment, problems = _validate(Experiment, merged)
        for fault in problems:
            self.report(fault, below=section(fault.path))
        for keys, code in (custom_code_of(experiment) if experiment else {}).items():
            own = (*section(keys), *keys)
            self._custom_code[own] = code
            for argument in code.arguments:
                path = (*keys, argument)
                self._inherited[*own, argument] = (*section(path), *path)
        return experiment

    def _validated(self, schema: Any, name: str) -> Any:
        """Return a section's settings, or the defaults if it has problems."""
        value, problems = _validate(schema, self._document.get(name) or {})
        self.report(*problems, below=(name,))
        return value or schema()


def _conflicts(
    devices: Devices, experiments: Mapping[str, Experiment], datasets: Mapping[str, Dataset]
) -> Iterator[ConfigProblem]:
    for name, experiment in experiments.items():
        if devices.gpu.strategy == "data_parallel" and experiment.precision == "bf16":
            problem = "torch's data_parallel computes bf16 in fp16: use strategy ddp, or fp16"
            yield ConfigProblem(("experiments", name, "precision"), problem, "bf16")
        rule = experiment.early_stopping
        if rule and rule.monitor not in MONITORED and not experiment.monitored_metric():
            names = [*MONITORED, *(metric.label for metric in experiment.metrics)]
            path = ("experiments", name, "early_stopping", "monitor")
            problem = unknown_name("metric", rule.monitor, names)
            yield ConfigProblem(path, f"{problem}, or one below metrics", rule.monitor)
        dataset = datasets.get(experiment.dataset)
        if dataset is None or dataset.validation != 0:
            continue
        follows = {
            "early_stopping": rule is not None,
            "schedule": experiment.schedule.follows_validation,
        }
        for key in (key for key, is_set in follows.items() if is_set):
            problem = (
                f"this follows the validation part, but datasets.{experiment.dataset} has none "
                f"(validation: 0): remove this key, or change that one"
            )
            yield ConfigProblem(("experiments", name, key), problem)


def _validate(schema: Any, settings: Any) -> tuple[Any, list[ConfigProblem]]:
    try:
        # From JSON, because strict models convert lists to tuples only then.
        return _adapter(schema).validate_json(json.dumps(settings)), []
    except ValidationError as error:
        return None, list(problems_in(error, schema))


def _merge(defaults: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Merge settings into the defaults. Blocks of an equal kind are merged key by key."""
    merged = {**defaults, **settings}
    for key in BLOCKS.keys() & merged.keys():
        block, default = spelled_out(merged[key]), spelled_out(defaults.get(key))
        merged[key] = {**default, **block} if _is_merged(key, block, default) else block
    return merged


def _is_merged(key: str, block: Any, default: Any) -> bool:
    """Return True if a block and its default are mappings of one kind.

    An empty block replaces one that has no name: `augmentation: {}` is none.
    """
    if not isinstance(block, dict) or not isinstance(default, dict):
        return False
    if not block:
        return "name" in default
    return _kind(key, {**default, **block}) == _kind(key, default)


def _kind(key: str, block: dict[str, Any]) -> object:
    """Return what a block's settings are for: a class, or the value that early stopping follows."""
    if key == "early_stopping":
        return block.get("monitor", EarlyStopping.model_fields["monitor"].default)
    name, namespace = block.get("name"), BLOCKS.get(key)
    if namespace and name != CONSTANT:
        with suppress(ValueError):  # reported later, with the allowed names
            return namespace.reference(str(name))
    return name
