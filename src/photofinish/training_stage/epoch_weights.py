"""The weights after every epoch, kept beside the checkpoints until the training is complete."""

from __future__ import annotations

from pathlib import Path

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes, sha256_of_file, write_bytes_atomically


class EpochWeights:
    """A file an epoch; the sha256 of each goes into the checkpoints, and in the end into the record."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.sha256: list[str] = []
        """of each epoch's file, the first epoch's first"""

    def save(self, weights: bytes) -> None:
        """Those of the next epoch; to be called before that epoch's checkpoint is written."""
        path = self._folder / file_name(len(self.sha256) + 1)
        try:
            write_bytes_atomically(path, weights)
        except OSError as error:
            raise UserError(
                f"{path} can't be written: {error.strerror}. Make room, then `dvc repro` goes on from the last "
                f"checkpoint; or set save_weights to last in params.yaml"
            ) from error
        self.sha256.append(sha256_of_bytes(weights))

    def resume(self, sha256: list[str]) -> Path | None:
        """Go on after these epochs; or, where one's file is damaged or gone, name it and change nothing."""
        for path, expected in self._files(sha256):
            if not path.is_file() or sha256_of_file(path) != expected:
                return path
        self.sha256 = list(sha256)
        return None

    def copy_to(self, folder: Path) -> None:
        for path, expected in self._files(self.sha256):
            weights = path.read_bytes()
            if sha256_of_bytes(weights) != expected:
                raise UserError(f"{path} was damaged during the training: run `dvc repro`, which trains anew")
            write_bytes_atomically(folder / path.name, weights)

    def _files(self, sha256: list[str]) -> list[tuple[Path, str]]:
        return [(self._folder / file_name(epoch), expected) for epoch, expected in enumerate(sha256, start=1)]


def file_name(epoch: int) -> str:
    return f"epoch-{epoch:04d}.safetensors"
