"""Appendix A.10 of the lognormal paper: bits of an element of a pruned gradient, by a code of four symbols.

    ./dev reproduce encoding --data cifar100_20k.npz

The symbols are zero, plus and minus the threshold, and any other value, which follows as it is.  First the code is
computed for lognormal gradients, then it is made for the gradients of a trained ResNet-8, beside the packets of
`lograd.wire`, which keep every bit of the values.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
from torch import Tensor

from lograd.laws import LogNormal
from lograd.ops import log_histogram, stochastic_prune
from lograd.plots import lines
from lograd.theory import sparsity, threshold
from lograd.wire import prune_and_encode

from .cells import Cell, CellFolder, Found, Measured
from .experiment import Experiment
from .looking import begun_resnet, gradients_of
from .result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TARGETS = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95)
SIGMAS = (2.0, 3.0)
PAYLOADS = (32, 16, 8)
"""Bits of a value that is none of the other symbols."""
PAPER = {0.8: 4.0, 0.9: 2.0}


@final
@dataclass(frozen=True)
class Encoding(Experiment):
    """Bits per element, by theory and on real gradients.

    Args:
        data: an .npz with images; without one, the digits inside the package, enlarged.
        steps: dense training steps before the gradients are taken.
        width: channels of the first layer.
        batch: images of a step.
    """

    words: ClassVar[str] = "bits per element of pruned gradients over sparsity: the code of the paper, and packets"
    keeps_figures: ClassVar[bool] = True
    claim: ClassVar[str] = "The paper claims 4 bits an element at 80 % zeros and 2 bits at 90 %."
    verdict: ClassVar[str] = (
        "The claim holds for a lognormal law of sigma 2 with 32-bit values; a wider law takes more. Gradients of the "
        "ResNet-8 take fewer bits than claimed, and packets fewer than the paper's code."
    )
    presets: ClassVar = {"smoke": {"steps": 1, "width": 4, "batch": 8}, "cpu": {}}
    core_hours: ClassVar = 0.02

    steps: int = 300
    width: int = 16
    batch: int = 128

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        yield Measured("lognormal", {"sigmas": SIGMAS, "payloads": PAYLOADS}, _by_theory)
        given = {"data": self.data and self.data.name, "steps": self.steps, "width": self.width, "batch": self.batch}
        yield Measured("gradients", given, self._on_gradients, threads=1)

    def _on_gradients(self) -> Found:
        """Return bits per element of all layers together, by target."""
        model, session, batches = begun_resnet(self.data, self.width, self.batch, self.steps)
        for _ in range(self.steps):
            session.step()
        tensors = list(gradients_of(model, next(batches)).neural.values())
        count = sum(g.numel() for g in tensors)
        rows = []
        for target in TARGETS:
            found = [_measured(g, target) for g in tensors]
            rows.append({name: sum(one[name] for one in found) / count for name in found[0]} | {"asked": target})
        return {"rows": rows, "elements": count}

    def draw(self, folder: CellFolder) -> list[Result]:
        theory, real = folder.found("lognormal"), folder.found("gradients")
        rows: list[list[object]] = []
        for place, target in enumerate(TARGETS):
            drawn = [] if theory is None else [theory[f"{sigma:g}"][str(payload)][place]
                                               for sigma in SIGMAS for payload in PAYLOADS]  # fmt: skip
            row = {} if real is None else real["rows"][place]
            numbers = [*drawn, *(row.get(name) for name in ("four symbols", "packet", "packet, bfloat16"))]
            rows.append(
                [f"{target:.0%}", PAPER.get(target), *(None if one is None else f"{one:.2f}" for one in numbers)]
            )
        names = [f"sigma {sigma:g}, {payload}-bit values" for sigma in SIGMAS for payload in PAYLOADS if theory]
        columns = [
            "zeros",
            "paper",
            *names,
            "ResNet-8, 32-bit values",
            "ResNet-8, packets",
            "ResNet-8, packets, bfloat16",
        ]
        claim = (
            f"{self.claim} Bits per element: the four-symbol code for lognormal gradients of a sigma (natural log), "
            f"and for all gradients of one step of a ResNet-8 of {self.width} channels after {self.steps} steps on "
            f"{self.source}, beside the packets of lograd.wire with the values as they are and in bfloat16. "
            f"`{self.command('steps', 'width', 'batch')}` makes this table."
        )
        return [Result("encoding", "Bits of a pruned gradient", claim, columns, rows, [_figure(theory, real)])]


def _by_theory() -> Found:
    found: Found = {}
    for sigma in SIGMAS:
        law = LogNormal(0.0, sigma)
        shares = []
        for target in TARGETS:
            a = float(threshold(law, target))
            zeros, below = float(sparsity(law, a)), float(law.cdf(a))
            shares.append((zeros, (below - zeros) / 2, (below - zeros) / 2, 1 - below))
        found[f"{sigma:g}"] = {str(payload): [four_symbol_bits(one, payload) for one in shares] for payload in PAYLOADS}
    return found


def _measured(g: Tensor, target: float) -> dict[str, float]:
    """Return the bits of a whole tensor in each form, and its zeros."""
    a = float(threshold(log_histogram(g).law(), target))
    pruned = stochastic_prune(g, a)
    count = g.numel()
    zeros = int((pruned == 0).sum()) / count
    plus, minus = (int((pruned == side).sum()) / count for side in (torch.tensor(a), torch.tensor(-a)))
    bits = four_symbol_bits((zeros, plus, minus, max(1 - zeros - plus - minus, 0.0)), 32)
    packets = {"packet": prune_and_encode(g, a), "packet, bfloat16": prune_and_encode(g, a, values="bfloat16")}
    return {"four symbols": count * bits + 32, "zeros": count * zeros} | {
        name: 8.0 * packet.numel() for name, packet in packets.items()
    }


def four_symbol_bits(shares: Sequence[float], payload: int) -> float:
    """Return the mean bits of an element by Huffman's code; the last symbol is followed by a value.

    >>> four_symbol_bits((0.8, 0.1, 0.05, 0.05), 32)
    2.9
    """
    lengths = huffman_lengths(shares)
    return sum(share * length for share, length in zip(shares, lengths, strict=True)) + shares[-1] * payload


def huffman_lengths(shares: Sequence[float]) -> list[int]:
    """Return the length of each symbol's word in a code of least mean length [huffman1952].

    >>> huffman_lengths((0.8, 0.1, 0.05, 0.05))
    [1, 2, 3, 3]

    @article{huffman1952,
      title   = {A Method for the Construction of Minimum-Redundancy Codes},
      author  = {Huffman, David A.},
      journal = {Proceedings of the IRE},
      year    = {1952}
    }
    """
    lengths = [0] * len(shares)
    heap = [(share, place, [place]) for place, share in enumerate(shares)]
    heapq.heapify(heap)
    while len(heap) > 1:
        (first, _, some), (second, place, others) = heapq.heappop(heap), heapq.heappop(heap)
        for symbol in some + others:
            lengths[symbol] += 1
        heapq.heappush(heap, (first + second, place, some + others))
    return lengths


def _figure(theory: Found | None, real: Found | None) -> Figure:
    series: dict[str, Any] = {"paper": (list(PAPER), list(PAPER.values()))}
    if theory is not None:
        series |= {f"lognormal, sigma {sigma:g}": (TARGETS, theory[f"{sigma:g}"]["32"]) for sigma in SIGMAS}
    if real is not None:
        for name in ("four symbols", "packet"):
            series[f"ResNet-8, {name}"] = (TARGETS, [row[name] for row in real["rows"]])
    title, style = (
        "Bits over sparsity, 32-bit values",
        {"paper": "o", "ResNet-8, four symbols": ":", "ResNet-8, packet": ":"},
    )
    return lines(series, title, "share of zeros", "bits per element", style=style)
