"""Loads params.yaml: merges the defaults into each experiment and reports all mistakes at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from photofinish.config.base import CallsCode, is_name
from photofinish.config.catalogue import loss_problem, shape_problem
from photofinish.config.compare import Comparing
from photofinish.config.datasets import Dataset, OwnDataset, known_images
from photofinish.config.devices import Devices, check_devices
from photofinish.config.experiment import SHORTHAND_KEYS, CustomTransform, Experiment, Metric, OwnLoss, spelled_out
from photofinish.config.mistakes import NAME_RULE, REQUIRED, ConfigProblem, KeyPath, mistakes_of, unknown_name
from photofinish.config.networks import CustomModel
from photofinish.config.yaml_reader import YamlDocument
from photofinish.custom_code import is_reference
from photofinish.errors import ConfigError
from photofinish.wording import all_or_some, did_you_mean, nearest_name

_SECTIONS = ("defaults", "devices", "datasets", "experiments", "compare")
_DATASET: TypeAdapter[Dataset] = TypeAdapter(Dataset)
_NEVER_INHERITED = ("dataset", "model")
_BUILT_IN: dict[str, Any] = {"seed": 0, "input": "resident", "schedule": "constant", "precision": "fp32"}
_SettingsT = TypeVar("_SettingsT")


@dataclass(frozen=True)
class Params:
    """Contents of params.yaml, with the defaults merged into each experiment."""

    experiments: dict[str, Experiment]
    datasets: dict[str, Dataset]
    devices: Devices
    comparing: Comparing = field(default_factory=Comparing)
    custom_code: dict[KeyPath, CallsCode] = field(default_factory=dict)
    """Custom code, by the place that names it."""


def check_known(experiment: str, params: Params, params_file: Path) -> None:
    """Raise ConfigError if no experiment has that name."""
    if experiment not in params.experiments:
        hint = did_you_mean(experiment, params.experiments)
        names = ", ".join(params.experiments)
        raise ConfigError(f"{params_file} has no experiment '{experiment}', only {names}{';' if hint else ''}{hint}")


def read_params(path: Path, *find_mistakes: Callable[[Params], Iterable[ConfigProblem]]) -> Params:
    """Read and check the whole file. Raise one ConfigError that lists every mistake in it.

    `find_mistakes` add those that depend on other files of this machine.
    """
    document = YamlDocument(path)
    reader = _Reader(document)
    params = reader.read()
    for mistake in chain.from_iterable(find(params) for find in find_mistakes):
        reader.note(mistake)
    if reader.mistakes:
        count = f"{len(reader.mistakes)} mistake{'s' if len(reader.mistakes) > 1 else ''}"
        raise ConfigError(f"{path} has {count}; nothing was started\n{document.in_words(reader.mistakes.values())}")
    return params


class _Reader:
    """Collects mistakes. What it returns is complete only if there are none."""

    def __init__(self, file: YamlDocument) -> None:
        self._document = file.value
        self._not_missing: set[str | None] = set()
        """Keys that the defaults lack because of a mistake that is already reported."""
        self._own_code: dict[KeyPath, CallsCode] = {}
        self.mistakes = {mistake.path: mistake for mistake in file.faulty_keys}

    def note(self, mistake: ConfigProblem) -> None:
        """Keep the first mistake at each place."""
        self.mistakes.setdefault(mistake.path, mistake)

    def read(self) -> Params:
        document = self._document
        if not isinstance(document, dict):
            self.note(ConfigProblem((), f"must be a mapping with the keys {', '.join(_SECTIONS)}", document))
            return Params({}, {}, Devices())
        misspelt = set()
        for key, value in document.items():
            if key not in _SECTIONS:
                problem = unknown_name("key", key, _SECTIONS)
                if key == "mirror":
                    problem = "this key is gone: datasets.NAME.root names a folder that has torchvision's files"
                self.note(ConfigProblem((key,), problem, value))
                misspelt.add(nearest_name(key, _SECTIONS))
        if "defaults" in misspelt - document.keys():
            self._not_missing |= Experiment.model_fields.keys() - set(_NEVER_INHERITED)

        devices = self._validated(Devices, document.get("devices") or {}, ("devices",)) or Devices()
        comparing = self._validated(Comparing, document.get("compare") or {}, ("compare",)) or Comparing()
        datasets = {}
        for name, given in self._entries("datasets", misspelt).items():
            if dataset := self._read_dataset(name, given):
                datasets[name] = dataset
        defaults = self._read_defaults(document.get("defaults") or {})
        experiments = {}
        for name, given in self._entries("experiments", misspelt).items():
            if experiment := self._read_experiment(name, given, defaults):
                experiments[name] = experiment
        for mistake in (*check_devices(devices, experiments), *_unfit_networks(datasets, experiments)):
            self.note(mistake)
        return Params(experiments, datasets, devices, comparing, self._own_code)

    def _entries(self, section: str, misspelt: set[str | None]) -> dict[str, Any]:
        """Return the entries of `datasets` or `experiments` whose names can name folders."""
        entries = self._document.get(section)
        if not isinstance(entries, dict) or not entries:
            if section in self._document or section not in misspelt:
                self.note(ConfigProblem((section,), f"{REQUIRED}: a mapping with at least one entry"))
            return {}
        lower_case: dict[str, str] = {}
        for name in entries:
            other = lower_case.setdefault(name.lower(), name)
            if not is_name(name):
                self.note(ConfigProblem((section, name), NAME_RULE))
            elif other != name:  # one folder for both, where the file system ignores case
                self.note(ConfigProblem((section, name), f"differs from '{other}' by upper and lower case only"))
        return {name: given for name, given in entries.items() if is_name(name)}

    def _read_dataset(self, name: str, given: Any) -> Dataset | None:
        where = ("datasets", name)
        if not isinstance(given, dict):
            self.note(ConfigProblem(where, "must be a mapping of settings, at least source", given))
            return None
        arguments = {key: value for key, value in given.items() if key not in OwnDataset.model_fields}
        self._note_code(where, OwnDataset, {"source": given.get("source"), **arguments})
        try:
            return _DATASET.validate_json(_json(given))
        except ValidationError as error:
            for mistake in mistakes_of(error, Dataset, where):
                self.note(mistake)
        return None

    def _read_defaults(self, given: Any) -> dict[str, Any]:
        """Check the defaults by themselves, so that a mistake in them is reported once."""
        if not isinstance(given, dict):
            self.note(ConfigProblem(("defaults",), "must be a mapping of settings", given))
            self._not_missing |= Experiment.model_fields.keys() - set(_NEVER_INHERITED)
            return dict(_BUILT_IN)
        if "dataset" in given:
            problem = "name the data set in each experiment; dvc.yaml reads it there"
            self.note(ConfigProblem(("defaults", "dataset"), problem, given["dataset"]))
        defaults = {**_BUILT_IN, **given}
        try:
            Experiment.model_validate_json(_json(_all_spelled_out(defaults)))
        except ValidationError as error:
            for mistake in mistakes_of(error, Experiment):
                if mistake.problem != REQUIRED or len(mistake.path) > 1:  # the experiments may give what is missing
                    self._note_setting(mistake, ("defaults",), given)
        for key, value in given.items():
            if key not in Experiment.model_fields:
                self._not_missing.add(nearest_name(key, Experiment.model_fields))
            elif key in SHORTHAND_KEYS and not isinstance(value, str | dict):
                self._not_missing.add(key)
        return defaults

    def _read_experiment(self, name: str, given: Any, defaults: dict[str, Any]) -> Experiment | None:
        where = ("experiments", name)
        if not isinstance(given, dict):
            self.note(ConfigProblem(where, "must be a mapping of settings, at least dataset and model", given))
            return None
        dataset, datasets = given.get("dataset"), self._document.get("datasets")
        if isinstance(dataset, str) and isinstance(datasets, dict) and datasets and dataset not in datasets:
            hint = did_you_mean(dataset, datasets)
            problem = f"not listed under datasets ({all_or_some(list(datasets))}){';' if hint else ''}{hint}"
            self.note(ConfigProblem((*where, "dataset"), problem, dataset))
        settings = merged(defaults, given)
        self._note_own_code(where, given, settings)
        try:
            return Experiment.model_validate_json(_json(settings))
        except ValidationError as error:
            for mistake in mistakes_of(error, Experiment):
                if mistake.has_value and not _has(given, mistake.path):
                    self._note_setting(mistake, ("defaults",), defaults)
                elif not self._is_of_defaults(mistake, given, defaults):
                    self._note_setting(mistake, where, given)
        return None

    def _note_own_code(self, where: KeyPath, given: dict[str, Any], settings: dict[str, Any]) -> None:
        """Note the custom code that an experiment names, so that `plan` can check its arguments."""
        reading, metrics = settings.get("input"), settings.get("metrics")
        named: list[tuple[KeyPath, type[CallsCode], Any]] = [
            (("model",), CustomModel, settings.get("model")),
            (("loss",), OwnLoss, settings.get("loss")),
        ]
        if isinstance(reading, dict) and reading.get("name") == "loader":
            named.append((("input", "transform"), CustomTransform, reading.get("transform")))
        for number, metric in enumerate(metrics if isinstance(metrics, list) else ()):
            named.append((("metrics", number), Metric, metric))
        for path, kind, code in named:
            start = where if _has(given, path) else ("defaults",)
            self._note_code((*start, *path), kind, spelled_out(code))

    def _note_code(self, where: KeyPath, kind: type[CallsCode], given: Any) -> None:
        try:
            self._own_code[where] = kind.model_validate_json(_json(given))
        except ValidationError:
            return  # built in; or faulty, which is reported with the other settings

    def _is_of_defaults(self, mistake: ConfigProblem, given: dict[str, Any], defaults: dict[str, Any]) -> bool:
        """Return True if the experiment only inherits a mistake that is already reported."""
        if mistake.problem == REQUIRED and mistake.path[0] in self._not_missing:
            return True
        others = [self.mistakes.get(("defaults", *path)) for path in (mistake.path, mistake.path[:-1])]
        same = any(other is not None and other.problem == mistake.problem for other in others)
        return same and not _names_another_kind(given, defaults, str(mistake.path[0]))

    def _note_setting(self, mistake: ConfigProblem, where: KeyPath, given: dict[str, Any]) -> None:
        path = mistake.path
        if path[1:] == ("name",) and isinstance(given.get(str(path[0])), str):
            path = path[:1]  # `model: linear` has no key `name`
        self.note(ConfigProblem((*where, *path), mistake.problem, mistake.value))

    def _validated(self, schema: type[_SettingsT], given: Any, where: KeyPath) -> _SettingsT | None:
        try:
            return TypeAdapter(schema).validate_json(_json(given))
        except ValidationError as error:
            for mistake in mistakes_of(error, schema, where):
                self.note(mistake)
        return None


def _unfit_networks(datasets: dict[str, Dataset], experiments: dict[str, Experiment]) -> Iterator[ConfigProblem]:
    """Yield networks and losses that do not fit their data set, as far as params.yaml shows."""
    for name, experiment in experiments.items():
        dataset = datasets.get(experiment.dataset)
        if dataset is None:
            continue
        images = known_images(dataset)
        if problem := shape_problem(experiment.model, images.channels, images.sides):
            yield ConfigProblem(("experiments", name, "model"), problem, experiment.model.name)
        loss = experiment.loss.name if experiment.loss else None
        if not is_reference(dataset.source) and (problem := loss_problem(loss, "classes")):
            yield ConfigProblem(("experiments", name, "loss"), problem, loss)


def merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Merge an experiment into the defaults. A block merges key by key unless it names another kind."""
    defaults, given = _all_spelled_out(defaults), _all_spelled_out(given)
    result = {**defaults, **given}
    for key in SHORTHAND_KEYS:
        ours, theirs = given.get(key), defaults.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict) and not _names_another_kind(given, defaults, key):
            result[key] = {**theirs, **ours}
    return result


def _names_another_kind(given: dict[str, Any], defaults: dict[str, Any], key: str) -> bool:
    ours, theirs = _all_spelled_out(given).get(key), _all_spelled_out(defaults).get(key)
    name = theirs.get("name") if isinstance(theirs, dict) else None
    return isinstance(ours, dict) and ours.get("name", name) != name


def _all_spelled_out(settings: dict[str, Any]) -> dict[str, Any]:
    """Expand `model: linear` into `model: {name: linear}`."""
    return {key: spelled_out(value) if key in SHORTHAND_KEYS else value for key, value in settings.items()}


def _has(given: Any, path: KeyPath) -> bool:
    """Return True if the block itself has this key, even if in short or as an item of a list."""
    if not path or (isinstance(given, str) and path == ("name",)):
        return True
    if isinstance(given, dict) and path[0] in given:
        return _has(given[path[0]], path[1:])
    return isinstance(given, list)


def _json(value: Any) -> str:
    """Serialize for validation: strict pydantic models accept lists as tuples only from JSON."""
    return json.dumps(value, default=str)
