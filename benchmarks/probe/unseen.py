"""Steps of networks from which no constant of an estimate was fitted."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import data
from benchmarks.probe.findings import Findings, here
from benchmarks.probe.trainers import ADAM, SGD, how, step_seconds, trainer
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer

FILE = "unseen.csv"


def _network(name: str, side: int, images: int, precision: str, **more: Any) -> dict[str, Any]:
    return {
        "model": {"name": name},
        "side": side,
        "batch_size": images,
        "precision": precision,
    } | more


UNSEEN: dict[str, dict[str, Any]] = {
    "convnext_tiny": _network("convnext_tiny", 112, 64, "tf32", optimizer=ADAM | {"name": "adamw"}),
    "vit_b_16": _network("vit_b_16", 224, 32, "bf16", optimizer=ADAM | {"name": "adamw"}),
    "efficientnet_b0": _network("efficientnet_b0", 112, 64, "fp32"),
    "densenet121": _network("densenet121", 64, 64, "tf32"),
    "regnet_y_400mf": _network("regnet_y_400mf", 112, 64, "bf16"),
    "mlp of 8192": {
        "model": {"name": "mlp", "hidden": (2048, 2048), "init": "default"}, "side": 28,
        "batch_size": 8192, "precision": "tf32",
    },
    "small cnn": {
        "model": {
            "name": "cnn", "channels": (32, 64, 128), "hidden": (256,), "kernel_size": 3,
            "padding": 1, "init": "default",
        },
        "side": 32, "batch_size": 512, "precision": "bf16",
    },
}  # fmt: skip


def run(findings: Findings, out: Path, _data: Path | None) -> None:
    """Time steps, captured and launched by the host, and write what `add_counts` reads."""
    device = here()
    with (out / FILE).open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["job", "steps", "precision", "step_seconds"])
        for job, settings in UNSEEN.items():
            for graphs in ("on", "off") if device.type == "cuda" else ("off",):
                with findings.failures_kept(job, f"cuda_graphs: {graphs}"):
                    built = _trainer(job, device, graphs)
                    built.prepare()
                    seconds = step_seconds(built)
                    rows.writerow([job, built.steps.kind, settings["precision"], seconds])
                    file.flush()
                    findings.add(
                        job, seconds * 1e3, "ms", variant=built.steps.kind, note=how(built)
                    )
                    del built
                    if device.type == "cuda":
                        torch.cuda.empty_cache()


def _trainer(job: str, device: torch.device, graphs: str = "off") -> Trainer:
    settings: dict[str, Any] = {"optimizer": SGD, "epochs": 1} | UNSEEN[job]
    side, is_gray = settings.pop("side"), settings["model"]["name"] == "mlp"
    if device == CPU:
        settings["batch_size"], settings["precision"] = 2, "fp32"
    images = data.noise((1 if is_gray else 3, side, side), 2 * settings["batch_size"], 2)
    return trainer(images, device, cuda_graphs=graphs, **settings)


def add_counts(folder: Path) -> None:
    """Write the steps in `folder` with their counts: `python -m benchmarks.probe.unseen FOLDER`."""
    from benchmarks.published import COUNTS, FOLDER
    from photofinish.answer.estimates import with_batch
    from photofinish.measure.operations import count_operations

    with (
        (folder / FILE).open(encoding="utf-8", newline="") as timed,
        (FOLDER / FILE).open("w", encoding="utf-8", newline="") as file,
    ):
        rows = list(csv.DictReader(timed))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["job", "steps", "precision", *COUNTS, "step_seconds"])
        counts = {
            job: with_batch(count_operations(_trainer(job, CPU)), UNSEEN[job]["batch_size"])
            for job in {row["job"]: row for row in rows}
        }
        for row in rows:
            numbers = [getattr(counts[row["job"]], name) for name in COUNTS]
            how = [row["job"], row["steps"], row["precision"]]
            writer.writerow([*how, *numbers, f"{float(row['step_seconds']):.4g}"])


if __name__ == "__main__":
    add_counts(Path(sys.argv[1]))
