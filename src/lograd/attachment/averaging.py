"""A handle under data parallelism: gradients of learned ranges are averaged over ranks, and statistics may be summed.

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
from .refresh import OperandStatistics

Group = dist.ProcessGroup


def average_over_ranks(model: nn.Module, layers: Iterable[LayerEngine], group: Group | None) -> None:
    """Average the gradients of learned ranges over a group, and let the ranges start where the widest of them does.

    Args:
        model: its process group is taken where no group is given and it is wrapped in DistributedDataParallel.
        layers: in the same order on each rank.
        group: None for that of the model, else for all ranks.
    """
    sites = [site for layer in layers for site in layer.sites.values() if site.learned is not None]
    if not sites or _is_alone(group := _group(model, group)):
        return
    _share_starts(sites, group)
    summed = torch.stack([_gradient(site) for site in sites])
    dist.all_reduce(summed, group=group)
    for site, (gradient, ranks) in zip(sites, summed, strict=True):
        if bool(ranks) and site.learned is not None:
            site.learned.grad = (gradient / dist.get_world_size(group)).reshape(1)


def sum_over_ranks(model: nn.Module, statistics: Iterable[OperandStatistics], group: Group | None) -> None:
    """Replace the histograms that this step has taken by those of all ranks together.

    Args:
        model, group: as for `average_over_ranks`.
        statistics: in the same order on each rank.
    """
    taken = [one.operand.histogram for one in statistics if one.collecting]
    if not taken or _is_alone(group := _group(model, group)):
        return
    summed = torch.stack(taken)
    dist.all_reduce(summed, group=group)
    for histogram, total in zip(taken, summed, strict=True):
        histogram.copy_(total)


def _group(model: nn.Module, group: Group | None) -> Group | None:
    """Return the group that was given, or that of the model; None for all ranks."""
    return model.process_group if group is None and isinstance(model, DistributedDataParallel) else group


def _is_alone(group: Group | None) -> bool:
    return not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1


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
