"""Models as chains of links, and the parts of a chain for the stages of a pipeline.

A part holds the modules of its links as the whole model does, so that whoever trains the part trains the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, final

from torch import Tensor, nn

from lograd import InvalidValue
from lograd.errors import plural

WAYS = (
    "a pipeline takes an nn.Sequential, a model with a method `chain` as in experiments.models, or one of charlm, "
    "resnet8, resnet20, resnet18 and vgg"
)


class Link(NamedTuple):
    """A piece of a model that is a chain: each link takes the tensor that the one before it returns."""

    function: Callable[[Any], Any]
    modules: tuple[nn.Module, ...]
    """The modules that the function uses; no other link has any of them."""


@final
class Part(nn.Module):
    """Some links of a model in turn, with its own modules and parameters."""

    def __init__(self, links: Sequence[Link]) -> None:
        super().__init__()
        self.used = nn.ModuleList(module for link in links for module in link.modules)
        self._functions = [link.function for link in links]

    def forward(self, x: Tensor) -> Any:
        """Return what the last link returns."""
        for function in self._functions:
            x = function(x)
        return x


def chain_of(model: nn.Module) -> list[Link]:
    """Return the links of a model: those of its method `chain`, or the children of an nn.Sequential.

    Any other model is refused in one sentence.
    """
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return [link for child in model for link in _links(child)]
    chain = getattr(model, "chain", None)
    if not callable(chain):
        raise InvalidValue(f"{type(model).__name__} cannot be cut into stages; {WAYS}.")
    found: list[Link] = chain()
    return found


def _links(child: nn.Module) -> list[Link]:
    """Return the links of a child of an nn.Sequential; one that is such a chain itself is cut too."""
    return chain_of(child) if type(child) is nn.Sequential else [Link(child, (child,))]


def cut(model: nn.Module, count: int) -> list[Part]:
    """Return a model in so many parts, which have its modules.

    The largest number of weights in one part is as small as it can be, where a weight is a parameter of two or more
    dimensions that learns.  Each part begins with a link that has one, so that what follows a layer stays with it.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    >>> [len(part.used) for part in cut(model, 3)]
    [2, 1, 1]
    """
    links = chain_of(model)
    weights = [_weights(link) for link in links]
    ends = _ends(weights, count)
    if ends is None:
        most = sum(weight > 0 for weight in weights)
        raise InvalidValue(
            f"{type(model).__name__} cannot be cut into {count} stages: each needs a link with weights that learn, and "
            f"its chain has {plural(most, 'such link')}."
        )
    parts = [Part(links[start:end]) for start, end in zip((0, *ends), ends, strict=False)]
    _check_apart(model, parts)
    return parts


def names_of(model: nn.Module, part: Part) -> list[str]:
    """Return the names in the model's state_dict that belong to a part of it."""
    inside = {id(module) for module in part.modules()}
    known = {name for name, module in model.named_modules(remove_duplicate=False) if id(module) in inside}
    return [name for name in model.state_dict() if name.rpartition(".")[0] in known]


def _weights(link: Link) -> int:
    parameters = {one for module in link.modules for one in module.parameters()}
    return sum(one.dim() > 1 and one.requires_grad for one in parameters)


def _ends(weights: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Return the ends of so many parts whose largest sum is as small as it can be; None if a part would have none.

    Whatever follows an end has a weight: a part that begins with an in-place ReLU would change what it was sent.
    """
    sums = [0, *accumulate(weights)]
    allowed = [end for end in range(1, len(sums)) if end == len(weights) or weights[end]]
    found: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    """By the number of links so far: the smallest largest sum, and the ends of the parts that have it."""
    for _ in range(count):
        found = {
            end: min(ways)
            for end in allowed
            if (
                ways := [
                    (max(largest, sums[end] - sums[start]), (*ends, end))
                    for start, (largest, ends) in found.items()
                    if sums[start] < sums[end]
                ]
            )
        }
    return found[len(weights)][1] if len(weights) in found else None


def _check_apart(model: nn.Module, parts: Sequence[Part]) -> None:
    """Refuse tensors that two parts share, or that no part has: no stage would keep them right."""
    owners: dict[int, int] = {}
    for index, part in enumerate(parts):
        for name, tensor in (*part.named_parameters(), *part.named_buffers()):
            if owners.setdefault(id(tensor), index) != index:
                shared = name.partition(".")[2].partition(".")[2]
                raise InvalidValue(
                    f"{type(model).__name__} cannot be cut into {len(parts)} stages: stages {owners[id(tensor)]} and "
                    f"{index} would share a tensor ({shared}), and each stage trains its own."
                )
    known = {name for part in parts for name in names_of(model, part)}
    if missing := [name for name in model.state_dict() if name not in known]:
        raise InvalidValue(
            f"{type(model).__name__} cannot be cut into stages: {missing[0]} belongs to no link of its chain."
        )
