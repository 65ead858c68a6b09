"""Learned ranges under data parallelism: two ranks learn what one process learns from the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import lograd

STEPS = 4


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 3, 8, 8, generator=generator), torch.randint(0, 10, (16,), generator=generator)


def trained(model: nn.Module, mine: slice, starts: dict[str, Tensor] | None = None) -> dict[str, dict[str, Tensor]]:
    """Train on a slice of each batch; the first pass only finds where the ranges start."""
    handle = lograd.attach(model, lograd.Plan.uniform("int4wa-clips", keep=()), backend="dense")
    groups = [{"params": model.parameters()}, {"params": handle.parameters(), "lr": 0.3}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    sites = {f"{name}.{site}": one for name, layer in handle.layers.items() for site, one in layer.sites.items()}
    for step in range(STEPS + 1):
        x, labels = (one[mine] for one in batch(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        handle.average_gradients()
        if step:
            optimizer.step()
        elif starts is not None:
            for name, site in sites.items():
                site.memory.copy_(starts[name.removeprefix("module.")])
        handle.step()
        if not step:
            first = {name.removeprefix("module."): site.memory.clone() for name, site in sites.items()}
    found = {name.removeprefix("module."): site.memory.clone() for name, site in sites.items()}
    weights = {name.removeprefix("module."): one.detach().clone() for name, one in model.named_parameters()}
    handle.remove()
    return {"starts": first, "ends": found, "weights": weights}


def alone(rank: int, folder: str) -> None:
    """A layer whose gradient arrives on the first rank only."""
    layer = nn.Linear(8, 8)
    handle = lograd.attach(layer, lograd.Plan.uniform("int4wa-clips", keep=()), backend="dense")
    handle.average_gradients(dist.group.WORLD)
    assert all(one.grad is None for one in handle.parameters())  # no rank has any
    if rank == 0:
        torch.manual_seed(0)
        layer(torch.randn(16, 8)).square().sum().backward()
        torch.save(gradients(handle), f"{folder}/own.pt")
    handle.average_gradients()
    torch.save(gradients(handle), f"{folder}/alone{rank}.pt")


def gradients(handle: lograd.Handle) -> dict[str, float]:
    return {name: float(one.grad) for name, one in handle.named_parameters()}  # type: ignore[arg-type]


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(network())
    found = trained(model, slice(8 * rank, 8 * rank + 8))
    torch.save(found, f"{folder}/{rank}.pt")
    alone(rank, folder)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of two ranks."""
    made = tmp_path_factory.mktemp("ranks")
    mp.spawn(_rank, (str(made),), nprocs=2)
    return made


@pytest.mark.slow  # processes that wait for each other
def test_two_ranks_learn_what_one_process_learns(folder: Path) -> None:
    first, second = (torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2))
    for what in ("starts", "ends", "weights"):
        assert all(torch.equal(one, second[what][name]) for name, one in first[what].items()), what
    whole = trained(network(), slice(None), first["starts"])
    for name, memory in first["ends"].items():
        clip, before = float(memory[0]), float(first["starts"][name][0])
        assert abs(clip - before) > 1e-4 * before, "nothing was learned"
        assert clip == pytest.approx(float(whole["ends"][name][0]), rel=1e-6)
    for name, weight in first["weights"].items():
        assert torch.allclose(weight, whole["weights"][name], atol=1e-5)


@pytest.mark.slow  # processes that wait for each other
def test_a_rank_without_gradients_counts_as_zero(folder: Path) -> None:
    own, first, second = (torch.load(folder / f"{name}.pt", weights_only=True) for name in ("own", "alone0", "alone1"))
    assert first == second == {name: value / 2 for name, value in own.items()}
