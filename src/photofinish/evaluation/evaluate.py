"""Evaluation of each device's network on the test samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from photofinish.config.metrics import Metrics
from photofinish.data.packed import Array, PackedSplit
from photofinish.evaluation.judges import score
from photofinish.files import to_csv, write_text_atomically
from photofinish.results.learned import load_network
from photofinish.results.records import (
    EVALUATION,
    PREDICTIONS,
    Evaluation,
    Unavailable,
    read_seeds,
    read_training,
    write_record,
)
from photofinish.results.trained import DeviceEvaluation, DeviceLabel, NetworkScores, SeedScores


@dataclass(frozen=True)
class Judged:
    """Scores of an experiment's networks, and their predictions."""

    evaluation: Evaluation
    actual: Array
    """Targets of the test samples."""
    predicted: dict[DeviceLabel, Array]


def evaluate(
    name: str, learned: dict[DeviceLabel, Path], split: PackedSplit, metrics: Metrics = ()
) -> Judged:
    """Score each trained device's network."""
    devices: dict[DeviceLabel, DeviceEvaluation] = {}
    predicted: dict[DeviceLabel, Array] = {}
    actual: Array = np.empty(0)
    for device, folder in learned.items():
        record = read_training(folder)
        if isinstance(record, Unavailable):
            continue
        network = load_network(folder, record)
        scores, actual, predicted[device] = score(network, record, split, metrics)
        seeds = []
        for run in read_seeds(folder, record.experiment):
            of_seed = score(load_network(folder, record, run), record, split, metrics).scores
            shared = of_seed.model_dump(include=set(NetworkScores.model_fields))
            shared |= {"seed": run.seed, "weights_sha256": run.weights_sha256}
            seeds.append(SeedScores.model_validate(shared))
        facts = {"weights_sha256": record.weights_sha256, "seeds": tuple(seeds)}
        devices[device] = scores.model_copy(update=facts)
    devices = _with_one_main_score(devices)
    class_names = split.manifest.class_names
    evaluation = Evaluation(experiment=name, class_names=class_names, devices=devices)
    return Judged(evaluation, actual, predicted)


def _with_one_main_score(
    devices: dict[DeviceLabel, DeviceEvaluation],
) -> dict[DeviceLabel, DeviceEvaluation]:
    """Return the scores with a main one that all networks have."""
    networks = [network for scores in devices.values() for network in (scores, *scores.seeds)]
    mains = [*dict.fromkeys(network.main for network in networks), "test_loss"]
    main = next(main for main in mains if all(main in network.values for network in networks))
    update = {"main": main}
    changed = {}
    for device, scores in devices.items():
        seeds = tuple(seed.model_copy(update=update) for seed in scores.seeds)
        changed[device] = scores.model_copy(update=update | {"seeds": seeds})
    return changed


def write_evaluation(judged: Judged, folder: Path) -> None:
    """Write the scores, and a CSV with each target and its predictions."""
    write_record(folder / EVALUATION, judged.evaluation)
    actual = judged.actual
    if not all(map(len, judged.predicted.values())):
        actual = np.empty(0)  # a custom step predicts nothing
    columns = [array.ravel().tolist() for array in (actual, *judged.predicted.values())]
    text = to_csv(["actual", *judged.predicted], zip(*columns, strict=True))
    write_text_atomically(folder / PREDICTIONS, text)
