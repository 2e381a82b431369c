"""Programs of public tutorials for `python -m benchmarks.ask --programs FOLDER`.

FOLDER/NAME/ has the original of each. Its SHA-256 is checked, and only the changes below are made.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image


@dataclass(frozen=True)
class Program:
    """Training program of a public repository."""

    repository: str
    path: str
    commit: str
    sha256: str
    arguments: str
    """Arguments with which it takes about a minute on two cores."""
    make_data: Callable[[Path], object]
    """Function that makes up what the program reads, in its folder."""
    changes: tuple[tuple[str, str], ...] = ()
    """Texts, each with its replacement, without which it fails in today's PyTorch."""

    @property
    def file(self) -> str:
        return Path(self.path).name


def missing(name: str, programs: Path | None) -> bool:
    """Return True if the original of a program is not in the folder of the programs."""
    return programs is None or not (programs / name / PROGRAMS[name].file).is_file()


def prepare(name: str, programs: Path, folder: Path) -> list[str]:
    """Write a program and its data to an empty folder. Return the command that runs it there."""
    program = PROGRAMS[name]
    original = (programs / name / program.file).read_bytes()
    if hashlib.sha256(original).hexdigest() != program.sha256:
        raise SystemExit(
            f"{programs / name / program.file} is not {program.path} of commit {program.commit} "
            f"of github.com/{program.repository}"
        )
    text = original.decode()
    for old, new in program.changes:
        if text.count(old) != 1:
            raise SystemExit(f"{name}: {old!r} is {text.count(old)} times in {program.path}")
        text = text.replace(old, new)
    (folder / program.file).write_text(text, encoding="utf-8")
    program.make_data(folder)
    return [sys.executable, program.file, *program.arguments.split()]


# -- data ----------------------------------------------------------------------------------------


def _mnist(folder: Path) -> None:
    """Write random digits in MNIST's files, and the folder for the pictures of `vae`."""
    (folder / "results").mkdir()
    raw = folder.parent / "data/MNIST/raw"
    raw.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        for what, shape, most in (("images-idx3", (28, 28), 256), ("labels-idx1", (), 10)):
            sizes = np.array([0x800 + 1 + len(shape), count, *shape], ">i4")
            values = draw.integers(0, most, (count, *shape), np.uint8)
            (raw / f"{part}-{what}-ubyte").write_bytes(sizes.tobytes() + values.tobytes())


def _photos(folder: Path) -> None:
    """Write JPEG files of ten classes."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 288), ("val", 64)):
        for number in range(count):
            file = folder / f"photos/{part}/{number % 10}/{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(draw.integers(0, 256, (25, 32, 3), np.uint8))
            coarse.resize((500, 400)).save(file)


def _waves(folder: Path) -> None:
    """Write sine waves, fewer and shorter than the tutorial's."""
    draw, steps = np.random.default_rng(2), np.arange(100)
    starts = draw.integers(-80, 80, (40, 1))
    torch.save(np.sin((steps + starts) / 20), folder / "traindata.pt")


def _nothing(_folder: Path) -> None:
    """Leave the folder as it is."""


_EXAMPLES = "pytorch/examples"
PROGRAMS = {
    "imagenet": Program(
        _EXAMPLES,
        "imagenet/main.py",
        "493da9304e56ff5160f78d01a54992db35df2a98",
        "60d2a78a7194c7e2d9cc8c543dd9f656031f726fc2cdcd45e9e711b59a9ec357",
        "photos --batch-size 16 --workers 2 --epochs 3",
        _photos,
    ),
    "mnist": Program(
        _EXAMPLES,
        "mnist/main.py",
        "f15fac72e01158bcb704dded7c7e511f7a712a5f",
        "98f76e6ec090da2c4084a03cf87f08446a9366f9be6a9d2460ef3027e0e25667",
        "--epochs 3",
        _mnist,
    ),
    "vae": Program(
        _EXAMPLES,
        "vae/main.py",
        "cd01f93000a6679e768700dd29e417a1e5fd10e5",
        "8ff804246558b153a4134c83940e50967ffbbd02f44a43fc120004d0d2a3ec85",
        "--epochs 5",
        _mnist,
    ),
    "dcgan": Program(
        _EXAMPLES,
        "dcgan/main.py",
        "13caa078cd69d74ffb447a9eda09f0a81b809480",
        "20c6f336cf9eb41d86db0aa8a5d3948b0f48b43b0c259368e3a5fac44bbf2fbb",
        "--dataset fake --ngf 16 --ndf 16 --niter 12",
        _nothing,
    ),
    "time-sequence": Program(
        _EXAMPLES,
        "time_sequence_prediction/train.py",
        "e27e2585a5b6a557e3512c3f5bd742ff4850f364",
        "3a5d6603cecf7bbf76f96a515dc6c9377849adeefe783edaf6f661bd02e80330",
        "--steps 16",
        _waves,
        (("torch.load('traindata.pt')", "torch.load('traindata.pt', weights_only=False)"),),
    ),
    "seq2seq": Program(
        "graykode/nlp-tutorial",
        "4-1.Seq2Seq/Seq2Seq.py",
        "93dde2555b2bcaeda16ff0480a25f53dd64d083e",
        "c7ec50d144ce3515f2d8e27d021b51e7fe6b235cb75bdd52baaf49f7728aa9f2",
        "",
        _nothing,
    ),
}
