"""Learned ranges under data parallelism: gradients are averaged over ranks, and ranges start alike.

DistributedDataParallel averages the gradients of a model's parameters; those of a handle are not among them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..engine.layer import LayerEngine
from ..engine.site import Site
from ..treatments.learned import SIGNED

Group = dist.ProcessGroup


def average_over_ranks(model: nn.Module, layers: Iterable[LayerEngine], group: Group | None) -> None:
    """Average the gradients of learned ranges over a group, and let the ranges start where the widest of them does.

    Args:
        model: its process group is taken where no group is given and it is wrapped in DistributedDataParallel.
        layers: in the same order on each rank.
        group: None for that of the model, else for all ranks.
    """
    if not dist.is_available() or not dist.is_initialized():
        return
    if group is None and isinstance(model, DistributedDataParallel):
        group = model.process_group
    sites = [site for layer in layers for site in layer.sites.values() if site.learned is not None]
    if not sites or dist.get_world_size(group) == 1:
        return
    _share_starts(sites, group)
    summed = torch.stack([_gradient(site) for site in sites])
    dist.all_reduce(summed, group=group)
    for site, (gradient, ranks) in zip(sites, summed, strict=True):
        if bool(ranks) and site.learned is not None:
            site.learned.grad = (gradient / dist.get_world_size(group)).reshape(1)


def _gradient(site: Site) -> Tensor:
    """Return the gradient of a site's parameter and a 1; zeros where this rank has none, so that messages fit."""
    assert site.learned is not None
    gradient = site.learned.grad
    return site.learned.new_zeros(2) if gradient is None else torch.cat([gradient, torch.ones_like(gradient)]).detach()


def _share_starts(sites: list[Site], group: Group | None) -> None:
    """Set the start of each range to the largest that a rank found, signed where one was; once alike, it stays."""
    starts = torch.stack([site.memory[SIGNED : SIGNED + 2] for site in sites])  # what learns comes first in a sentence
    dist.all_reduce(starts, op=dist.ReduceOp.MAX, group=group)
    for site, start in zip(sites, starts, strict=True):
        site.memory[SIGNED : SIGNED + 2] = start
        site.follow()
