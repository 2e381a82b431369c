"""Small jobs for `python -m benchmarks.ask`, each a training loop as people write them.

`python -m benchmarks.asked NAME --epochs N` trains one. Each has what makes a prediction hard.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import photofinish

Step = Callable[[Tensor, Tensor], Any]
CHARACTERS_STEPS = 50
"""Steps of an epoch of `characters`."""


class Photos(Dataset[tuple[Tensor, int]]):
    """JPEG files that are decoded for each epoch, or for the first one only."""

    def __init__(self, count: int, side: int, *, keeps: bool) -> None:
        draw, self._keeps = np.random.default_rng(0), keeps
        self._files = []
        for _ in range(count):
            file = io.BytesIO()
            pixels = draw.integers(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(file, "JPEG")
            self._files.append(file.getvalue())
        self._kept: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index not in self._kept:
            image = Image.open(io.BytesIO(self._files[index])).resize((64, 64))
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
            if not self._keeps:
                return pixels, index % 10
            self._kept[index] = pixels
        return self._kept[index], index % 10


class Endless(IterableDataset[Any]):
    """Texts of random characters, without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            text = torch.randint(64, (65,))
            yield text[:-1], text[1:]


def cnn(width: int, side: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(width * side * side // 8, 10),
    )


def images(count: int, side: int = 32) -> TensorDataset:
    return TensorDataset(torch.randn(count, 3, side, side), torch.randint(10, (count,)))


def step_of(network: nn.Module, rate: float = 0.01) -> Step:
    optimizer = torch.optim.SGD(network.parameters(), rate, momentum=0.9)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return step


def train(network: nn.Module, step: Step, data: Any, validation: Any, epochs: int) -> None:
    """Train in the usual loop, with validation after each epoch."""
    for _ in range(epochs):
        network.train()
        for inputs, targets in photofinish.steps(data):
            step(inputs, targets)
        network.eval()
        with torch.no_grad():
            for inputs, _targets in validation:
                network(inputs)


def plain(epochs: int) -> None:
    """Validation is a quarter of an epoch, and its last batch is smaller."""
    network = cnn(16, 32)
    validation = DataLoader(images(1500), 100)
    train(network, step_of(network), DataLoader(images(1970), 64, shuffle=True), validation, epochs)


def workers(epochs: int) -> None:
    """Two workers start for each epoch, and decode for longer than a step computes."""
    network, photos = cnn(4, 64), Photos(1000, 192, keeps=False)
    loader = DataLoader(photos, 32, shuffle=True, num_workers=2)
    train(network, step_of(network), loader, [], epochs)


def cached(epochs: int) -> None:
    """The first epoch fills a cache, so that later ones are faster."""
    network, photos = cnn(8, 64), Photos(1500, 192, keeps=True)
    train(network, step_of(network), DataLoader(photos, 32, shuffle=True), [], epochs)


def characters(epochs: int) -> None:
    """Steps of a recurrent network, from a stream without a length."""
    embedding, recurrent, head = nn.Embedding(64, 64), nn.LSTM(64, 128, 2), nn.Linear(128, 64)
    network = nn.ModuleList([embedding, recurrent, head])
    optimizer = torch.optim.AdamW(network.parameters())
    batches = iter(DataLoader(Endless(), 32))
    for _ in range(epochs):
        for _ in photofinish.steps(range(CHARACTERS_STEPS)):
            texts, targets = next(batches)
            hidden, _state = recurrent(embedding(texts.T))
            loss = functional.cross_entropy(head(hidden).flatten(0, 1), targets.T.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def gan(epochs: int) -> None:
    """Two optimizers take turns."""
    maker = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 3072))
    judge = nn.Sequential(nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 1))
    makers, judges = (torch.optim.Adam(each.parameters(), 2e-4) for each in (maker, judge))
    loader = DataLoader(images(2048), 64, shuffle=True)
    for _ in range(epochs):
        for real, _targets in photofinish.steps(loader):
            made = maker(torch.randn(len(real), 64))
            judges.zero_grad()
            functional.softplus(judge(made.detach()) - judge(real)).mean().backward()
            judges.step()
            makers.zero_grad()
            functional.softplus(-judge(made)).mean().backward()
            makers.step()


def accumulated(epochs: int) -> None:
    """Gradients of four batches in bfloat16 make one step, and three batches are left over."""
    network = cnn(16, 32)
    optimizer = torch.optim.AdamW(network.parameters())
    loader = DataLoader(images(1504), 32, shuffle=True)
    for _ in range(epochs):
        for number, (inputs, targets) in enumerate(photofinish.steps(loader), 1):
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.cross_entropy(network(inputs), targets)
            (loss / 4).backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()


def table(epochs: int) -> None:
    """Steps of under a millisecond, which stop early: the job is at most so long."""
    network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))
    data = TensorDataset(torch.randn(4000, 16), torch.randint(10, (4000,)))
    step = step_of(network)
    for _ in range(epochs * 3 // 4):
        for inputs, targets in photofinish.steps(DataLoader(data, 32, shuffle=True)):
            step(inputs, targets)


def fitted(epochs: int) -> None:
    """L-BFGS on all samples at once, without a loader."""
    network, (inputs, targets) = cnn(8, 32), images(256).tensors
    optimizer = torch.optim.LBFGS(network.parameters(), lr=0.1, max_iter=8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(inputs), targets)
        loss.backward()
        return loss

    for _ in photofinish.steps(range(epochs)):
        optimizer.step(closure)


def finetuned(epochs: int) -> None:
    """A head on a frozen ResNet-18."""
    network = torchvision.models.resnet18(num_classes=10).requires_grad_(requires_grad=False)
    network.fc.requires_grad_()
    loader = DataLoader(images(400, 64), 32, shuffle=True)
    train(network, step_of(network), loader, DataLoader(images(100, 64), 50), epochs)


def compiled(epochs: int) -> None:
    """Compiled in the first step."""
    network = cnn(16, 32)
    faster: Any = torch.compile(network)
    train(network, step_of(faster), DataLoader(images(2048), 64, shuffle=True), [], epochs)


class Fit:
    """Loop in the form of Lightning's Trainer: an optimizer's step calls all that computes."""

    def __init__(self, max_epochs: int) -> None:
        self._max_epochs = max_epochs

    def fit(self, network: nn.Module, loader: Any, validation: Any) -> None:
        optimizer = torch.optim.Adam(network.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        for _ in range(self._max_epochs):
            network.train()
            for batch in loader:
                optimizer.step(lambda batch=batch: self._closure(network, optimizer, batch))
            scheduler.step()
            network.eval()
            with torch.no_grad():
                for inputs, _targets in validation:
                    network(inputs)

    def _closure(self, network: nn.Module, optimizer: Any, batch: Any) -> float:
        inputs, targets = batch
        loss = functional.cross_entropy(network(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        return loss.item()


def fit_by_trainer(epochs: int) -> None:
    """Steps within a Trainer, as Lightning has them."""
    loader = DataLoader(images(1970), 64, shuffle=True)
    Fit(epochs).fit(cnn(16, 32), loader, DataLoader(images(500), 100))


class Tagger(nn.Module):
    """Small transformer with a class for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, 64), nn.Linear(64, 10)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, words: Tensor) -> Tensor:
        output: Tensor = self.head(self.encoder(self.embedding(words), None, words == 0))
        return output


def padded(epochs: int) -> None:
    """Texts of many lengths, padded to the longest of a batch, as Hugging Face's Trainer does."""
    texts = [torch.randint(1, 1000, (length,)) for length in torch.randint(5, 100, (1000,))]
    network, pad = Tagger(), torch.nn.utils.rnn.pad_sequence
    optimizer = torch.optim.AdamW(network.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 1000))
    loader = DataLoader(texts, 16, shuffle=True, collate_fn=lambda each: pad(each, True))  # type: ignore[arg-type,var-annotated]
    for _ in range(epochs):
        network.train()
        for words in loader:
            loss = functional.cross_entropy(network(words).transpose(1, 2), words % 10)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        network.eval()
        with torch.no_grad():
            network(pad(texts[:100], True))


JOBS = {
    job.__name__: job
    for job in (
        plain, workers, cached, characters, gan, accumulated, table, fitted, finetuned, compiled,
        fit_by_trainer, padded,
    )
}  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=JOBS)
    parser.add_argument("--epochs", type=int, required=True)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    JOBS[arguments.name](arguments.epochs)
