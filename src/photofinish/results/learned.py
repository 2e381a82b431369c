"""Trained networks as safetensors files, checked against the sha256 in the record."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import nn

from photofinish.custom.imports import check_code_unchanged
from photofinish.errors import UserError
from photofinish.files import is_as_recorded
from photofinish.models.registry import build_model
from photofinish.results import records
from photofinish.results.trained import SeedRun


def weights_of(network: nn.Module) -> bytes:
    """Serialize a network's state as safetensors; equal states give equal bytes."""
    state = {
        name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()
    }
    uses = Counter(tensor.untyped_storage().data_ptr() for tensor in state.values())
    for name, tensor in state.items():
        if uses[tensor.untyped_storage().data_ptr()] > 1:  # safetensors refuses shared memory
            state[name] = tensor.clone()
    return bytes(to_safetensors(state))


def load_network(
    folder: Path, record: records.TrainingRecord, seed_run: SeedRun | None = None
) -> nn.Module:
    """Load the trained network, or a further seed's network, to the CPU."""
    check_code_unchanged(record.custom_code)
    path, sha256 = folder / records.WEIGHTS, record.weights_sha256
    if seed_run:
        path, sha256 = seed_weights(folder, seed_run.seed), seed_run.weights_sha256
    if not is_as_recorded(path, sha256):
        raise UserError(f"{path} is damaged or missing: run `dvc repro --force`")
    classes, seed = len(record.class_names), record.experiment.seed
    network = build_model(
        record.experiment.model, record.image_shape, classes, seed, dtype=record.dtype
    )
    network.load_state_dict(from_safetensors(path.read_bytes()))
    return network


def seed_weights(folder: Path, seed: int) -> Path:
    return folder / records.SEEDS / f"{seed}.safetensors"
