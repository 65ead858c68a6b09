"""A module of a user's, as text: tests write it into a folder and call commands from there."""

MINE = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

INPUTS = torch.randn(48, 8, generator=torch.Generator().manual_seed(1))
LABELS = INPUTS[:, :3].argmax(1)


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def loader():
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=8, shuffle=True)


def make():
    return {"model": network(), "batches": loader(), "loss": cross_entropy, "optimizer": None}


def three():
    return network(), loader(), cross_entropy


def five():
    return network(), loader(), cross_entropy, torch.optim.SGD, None
"""
