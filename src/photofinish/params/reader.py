"""params.yaml in, resolved settings out: defaults merged, every mistake reported in one go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from photofinish.errors import MistakeError
from photofinish.own_code import is_reference
from photofinish.params.base import CallsCode, OwnCode, is_name
from photofinish.params.catalogue import loss_problem, shape_problem
from photofinish.params.compare import Comparing
from photofinish.params.datasets import Dataset, OwnDataset, known_images
from photofinish.params.devices import Devices, misfits
from photofinish.params.experiment import SHORTHAND_KEYS, Experiment, Metric, OwnLoss, OwnTransform, spelled_out
from photofinish.params.mistakes import NAME_RULE, REQUIRED, KeyPath, Mistake, mistakes_of, unknown_name
from photofinish.params.networks import OwnModel
from photofinish.params.yaml_reader import YamlDocument
from photofinish.wording import all_or_some, did_you_mean, nearest_name

_SECTIONS = ("defaults", "devices", "datasets", "experiments", "compare")
_DATASET: TypeAdapter[Dataset] = TypeAdapter(Dataset)
_NEVER_INHERITED = ("dataset", "model")
_BUILT_IN: dict[str, Any] = {"seed": 0, "input": "resident", "schedule": "constant", "precision": "fp32"}
_SettingsT = TypeVar("_SettingsT")


@dataclass(frozen=True)
class Params:
    """All of params.yaml, the defaults merged into each experiment."""

    experiments: dict[str, Experiment]
    datasets: dict[str, Dataset]
    devices: Devices
    comparing: Comparing = field(default_factory=Comparing)
    own_code: dict[KeyPath, CallsCode] = field(default_factory=dict)
    """the code that is named, by where that is"""


def refuse_unknown(experiment: str, params: Params, params_file: Path) -> None:
    """Where no experiment has that name."""
    if experiment not in params.experiments:
        hint = did_you_mean(experiment, params.experiments)
        there_are = ", ".join(params.experiments)
        raise MistakeError(
            f"{params_file} has no experiment '{experiment}', only {there_are}{';' if hint else ''}{hint}"
        )


def read_params(path: Path, *find_mistakes: Callable[[Params], Iterable[Mistake]]) -> Params:
    """Read and check the whole file; raise one MistakeError that lists every mistake in it.

    What only a look at the machine's files can tell, `find_mistakes` add.
    """
    document = YamlDocument(path)
    reader = _Reader(document)
    params = reader.read()
    for mistake in chain.from_iterable(find(params) for find in find_mistakes):
        reader.note(mistake)
    if reader.mistakes:
        count = f"{len(reader.mistakes)} mistake{'s' if len(reader.mistakes) > 1 else ''}"
        raise MistakeError(f"{path} has {count}; nothing was started\n{document.in_words(reader.mistakes.values())}")
    return params


class _Reader:
    """Collects mistakes instead of stopping at the first; what it returns counts only if there are none."""

    def __init__(self, file: YamlDocument) -> None:
        self._document = file.value
        self._misspelt: set[str | None] = set()  # sections
        self._excused: set[str | None] = set()  # keys that can't be in the defaults, for a reason already reported
        self._own_code: dict[KeyPath, CallsCode] = {}
        self.mistakes = {mistake.path: mistake for mistake in file.faulty_keys}

    def read(self) -> Params:
        """The settings; `mistakes` then tells whether they count."""
        document = self._document
        if not isinstance(document, dict):
            self.note(Mistake((), f"must be a mapping with the keys {', '.join(_SECTIONS)}", document))
            return Params({}, {}, Devices())
        unknown = [key for key in document if key not in _SECTIONS]
        for key in unknown:
            problem = unknown_name("key", key, _SECTIONS)
            if key == "mirror":
                problem = "this key is gone: let datasets.NAME.root name a folder that has the files of torchvision"
            self.note(Mistake((key,), problem, document[key]))
        self._misspelt = {nearest_name(key, _SECTIONS) for key in unknown} - document.keys()
        filled = {key: section for key, section in document.items() if section is not None}
        given = filled.get("devices", {})
        devices = self._validated(Devices.model_validate_json, Devices, given, ("devices",)) or Devices()
        datasets = {}
        for name, given in self._named_section("datasets").items():
            where = ("datasets", name)
            if not isinstance(given, dict):
                self.note(Mistake(where, "must be a mapping of settings, at least source", given))
                continue
            own = {key: value for key, value in given.items() if key == "source" or key not in OwnDataset.model_fields}
            self._note_code(where, OwnDataset, own)
            if dataset := self._validated(_DATASET.validate_json, Dataset, given, where):
                datasets[name] = dataset
        defaults = self._read_defaults(filled.get("defaults", {}))
        experiments = {}
        for name, given in self._named_section("experiments").items():
            if experiment := self._read_experiment(name, given, defaults):
                experiments[name] = experiment
        for mistake in [*misfits(devices, experiments), *_unfit_networks(datasets, experiments)]:
            self.note(mistake)
        given = filled.get("compare", {})
        comparing = self._validated(Comparing.model_validate_json, Comparing, given, ("compare",)) or Comparing()
        return Params(experiments, datasets, devices, comparing, self._own_code)

    def note(self, mistake: Mistake) -> None:
        """One at each place, the first that is found."""
        self.mistakes.setdefault(mistake.path, mistake)

    def _named_section(self, section: str) -> dict[str, Any]:
        """The mapping of names under `section`; a name becomes a folder, so it must make a good path."""
        if section not in self._document:
            if section not in self._misspelt:
                self.note(Mistake((section,), f"{REQUIRED}, with at least one entry"))
            return {}
        entries = self._document[section]
        if not isinstance(entries, dict) or not entries:
            self.note(Mistake((section,), "must be a mapping with at least one entry", entries))
            return {}
        lower_case: dict[str, str] = {}
        for name in entries:
            if not is_name(name):
                self.note(Mistake((section, name), NAME_RULE))
            elif other := lower_case.get(name.lower()):
                self.note(Mistake((section, name), f"differs from '{other}' by upper and lower case only"))
            lower_case[name.lower()] = name
        return {name: given for name, given in entries.items() if is_name(name)}

    def _read_defaults(self, given: Any) -> dict[str, Any]:
        """Check the defaults on their own, so that a mistake in them is reported once, where it is."""
        if "defaults" in self._misspelt or not isinstance(given, dict):
            self._excused |= Experiment.model_fields.keys() - set(_NEVER_INHERITED)
        if not isinstance(given, dict):
            self.note(Mistake(("defaults",), "must be a mapping of settings", given))
            return dict(_BUILT_IN)
        if "dataset" in given:
            problem = "name the data set in each experiment; dvc.yaml reads it there"
            self.note(Mistake(("defaults", "dataset"), problem, given["dataset"]))
        defaults = {**_BUILT_IN, **given}
        try:
            Experiment.model_validate_json(_json(_all_spelled_out(defaults)))
        except ValidationError as error:
            for mistake in mistakes_of(error, Experiment):
                if mistake.problem != REQUIRED or len(mistake.path) > 1:  # else the experiments may give it
                    self._add(mistake, ("defaults",), given)
        unknown = given.keys() - Experiment.model_fields.keys()
        self._excused |= {nearest_name(key, Experiment.model_fields) for key in unknown}
        self._excused |= {key for key in SHORTHAND_KEYS if not isinstance(given.get(key, ""), str | dict)}
        return defaults

    def _read_experiment(self, name: str, given: Any, defaults: dict[str, Any]) -> Experiment | None:
        where = ("experiments", name)
        if not isinstance(given, dict):
            self.note(Mistake(where, "must be a mapping of settings, at least dataset and model", given))
            return None
        dataset, names = given.get("dataset"), self._document.get("datasets")
        if isinstance(dataset, str | date) and isinstance(names, dict) and names and str(dataset) not in names:
            hint = did_you_mean(dataset, names)
            problem = f"not listed under datasets ({all_or_some(list(names))}){';' if hint else ''}{hint}"
            self.note(Mistake((*where, "dataset"), problem, dataset))
        self._note_own_code(where, given, defaults)
        try:
            return Experiment.model_validate_json(_json(merged(defaults, given)))
        except ValidationError as error:
            for mistake in mistakes_of(error, Experiment):
                if mistake.has_value and not _has(given, mistake.path):
                    self._add(mistake, ("defaults",), defaults)
                elif not self._is_told_of_defaults(mistake, given, defaults):
                    self._add(_with_advice(mistake, defaults), where, given)
        return None

    def _note_own_code(self, where: KeyPath, given: dict[str, Any], defaults: dict[str, Any]) -> None:
        settings = merged(defaults, given)
        metrics, reading = settings.get("metrics"), settings.get("input")
        named: dict[KeyPath, tuple[type[OwnCode], Any]] = {
            ("model",): (OwnModel, settings.get("model")),
            ("loss",): (OwnLoss, settings.get("loss")),
        }
        for number, metric in enumerate(metrics if isinstance(metrics, list) else ()):
            named["metrics", number] = Metric, metric
        if isinstance(reading, dict) and reading.get("name") == "loader":
            named["input", "transform"] = OwnTransform, reading.get("transform")
        for path, (kind, code) in named.items():
            start = where if _has(given, path) else ("defaults",)
            self._note_code((*start, *path), kind, spelled_out(code))

    def _note_code(self, where: KeyPath, kind: type[CallsCode], given: Any) -> None:
        """What names code and is whole, whatever else is wrong with the data set or experiment."""
        with suppress(ValidationError):  # which is told elsewhere
            self._own_code[where] = kind.model_validate_json(_json(given))

    def _is_told_of_defaults(self, mistake: Mistake, given: dict[str, Any], defaults: dict[str, Any]) -> bool:
        """Whether the experiment only lacks, or builds on, what is already reported of the defaults."""
        if mistake.path[0] in self._excused and not mistake.has_value:
            return True
        told = [self.mistakes.get(("defaults", *path)) for path in (mistake.path, mistake.path[:-1])]
        same = any(other is not None and other.problem == mistake.problem for other in told)
        return same and not _names_another_kind(given, defaults, str(mistake.path[0]))

    def _add(self, mistake: Mistake, where: KeyPath, given: dict[str, Any]) -> None:
        """A name written in short (`model: linear`) has no key `name` of its own to point at."""
        path = mistake.path
        if path[1:] == ("name",) and isinstance(given.get(str(path[0])), str):
            path = path[:1]
        self.note(Mistake((*where, *path), mistake.problem, mistake.value))

    def _validated(
        self, validate: Callable[[str], _SettingsT], schema: Any, given: Any, where: KeyPath
    ) -> _SettingsT | None:
        """The settings, or none and every mistake noted."""
        try:
            return validate(_json(given))
        except ValidationError as error:
            for mistake in mistakes_of(error, schema, where):
                self.note(mistake)
        return None


def _unfit_networks(datasets: dict[str, Dataset], experiments: dict[str, Experiment]) -> Iterator[Mistake]:
    """Networks that can't take the images of their data set, where those are known before they are fetched."""
    for name, experiment in experiments.items():
        dataset = datasets.get(experiment.dataset)
        if dataset is None:
            continue
        images = known_images(dataset)
        if problem := shape_problem(experiment.model, images.channels, images.sides):
            yield Mistake(("experiments", name, "model"), problem, experiment.model.name)
        loss = experiment.loss.name if experiment.loss else None
        if not is_reference(dataset.source) and (problem := loss_problem(loss, "classes")):
            yield Mistake(("experiments", name, "loss"), problem, loss)


def merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Defaults under what an experiment gives; a block merges key by key unless it names another kind."""
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


def _with_advice(mistake: Mistake, defaults: dict[str, Any]) -> Mistake:
    """Say where a missing key may go, or why what the defaults have doesn't count."""
    key, advice = mistake.path[0], ""
    if mistake.problem == REQUIRED and len(mistake.path) == 1 and key not in _NEVER_INHERITED:
        advice = ", here or under defaults"
    elif mistake.problem == REQUIRED and _has(_all_spelled_out(defaults), mistake.path):
        advice = f": another {key} than the one under defaults takes nothing from it"
    return replace(mistake, problem=mistake.problem + advice)


def _all_spelled_out(settings: dict[str, Any]) -> dict[str, Any]:
    """`model: linear` is short for `model: {name: linear}`."""
    return {key: spelled_out(value) if key in SHORTHAND_KEYS else value for key, value in settings.items()}


def _has(given: Any, path: KeyPath) -> bool:
    """Whether the user's own block has this key, be it written in short or as an item of a list."""
    if not path or (isinstance(given, str) and path == ("name",)):
        return True
    if isinstance(given, dict) and path[0] in given:
        return _has(given[path[0]], path[1:])
    return isinstance(given, list)


def _json(value: Any) -> str:
    # Validated as JSON, because strict pydantic models take lists and mappings from there only.
    return json.dumps(value, default=str)
