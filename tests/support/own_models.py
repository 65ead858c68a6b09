"""A module of a user's, as text: tests write it into a folder and train from there."""

MINE = '''
import random

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

INPUTS = torch.randn(48, 8, generator=torch.Generator().manual_seed(1))
LABELS = INPUTS[:, :3].argmax(1)


class Disturbed(Dataset):
    """Examples with noise from all three global generators."""

    def __len__(self):
        return len(INPUTS)

    def __getitem__(self, place):
        noise = 0.1 * torch.randn(8) + 0.1 * np.random.randn() + 0.1 * random.gauss(0, 1)
        return INPUTS[place] + noise.float(), LABELS[place]


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def loader(**options):
    return DataLoader(Disturbed(), batch_size=8, shuffle=True, **options)


def accuracy(model):
    assert not model.training and not torch.is_grad_enabled()
    torch.rand(3), np.random.rand(), random.random()
    return (model(INPUTS).argmax(1) == LABELS).float().mean()


def make():
    return {"model": network(), "batches": loader(), "loss": cross_entropy, "metric": accuracy}


def three():
    return network(), loader(), cross_entropy


def four():
    model = network()
    return model, loader(), cross_entropy, torch.optim.Adam(model.parameters(), lr=0.01)


def five():
    return network(), loader(), cross_entropy, lambda parameters: torch.optim.SGD(parameters, lr=0.02), accuracy
'''
