"""A small convolutional network on scikit-learn's digits, in a plain PyTorch loop."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import photofinish

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cpu")
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--metrics", type=Path, default=Path("out/digits-script.json"))
args = parser.parse_args()

torch.manual_seed(0)
device = torch.device(args.device)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
data = TensorDataset(images, torch.tensor(digits.target))
train, test = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
network = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(64 * 16, 10),
).to(device)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
loader = DataLoader(train, batch_size=64, shuffle=True)

for epoch in range(1, args.epochs + 1):
    network.train()
    for inputs, targets in photofinish.steps(loader):  # the one line
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        inputs, targets = next(iter(DataLoader(test, batch_size=len(test))))
        predicted = network(inputs.to(device)).argmax(1).cpu()
    accuracy = (predicted == targets).float().mean().item()
    print(f"epoch {epoch}: {accuracy:.2%} of the test digits", flush=True)

args.metrics.parent.mkdir(parents=True, exist_ok=True)
args.metrics.write_text(json.dumps({"test_accuracy": accuracy}), encoding="utf-8")
