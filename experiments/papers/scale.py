"""Pipelines past this machine: when do smaller messages make a training step of a large transformer faster?

    ./dev reproduce scale

Bits per element are measured on packets of drawn gradients and activations.  Everything else is arithmetic and a
simulation of the schedule: seconds of compute from multiply-adds, seconds of a message from its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast, final

import torch

from lograd import theory
from lograd.errors import InvalidValue
from lograd.formats import IntFormat
from lograd.laws import LogNormal
from lograd.ops import pack_codes
from lograd.report import Chart, Line
from lograd.theory.pipelines import SCHEDULES, Link, Pipeline, Schedule, step_seconds
from lograd.wire import encode, prune_and_encode

from .cells import Cell, CellFolder, Found, Measured
from .experiment import Experiment
from .result import Result


class Network(NamedTuple):
    """A transformer of GPT's form."""

    layers: int
    width: int

    @property
    def weights(self) -> int:
        """Weights of its blocks: 12 times the square of the width in each."""
        return 12 * self.layers * self.width**2


NETWORKS = {
    "1B": Network(24, 2048), "7B": Network(32, 4096), "13B": Network(40, 5120), "30B": Network(48, 7168),
    "100B": Network(80, 10240),
}  # fmt: skip
STAGES = (8, 16, 32, 64)
RATES = {
    "100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "10 Gbit/s": 1e10, "100 Gbit/s": 1e11, "400 Gbit/s": 4e11,
}  # fmt: skip
PLAIN, BACKWARD, BOTH = "bfloat16", "pruned backward", "pruned backward, 8 bits forward"
DRAWN = ("13B", 16)
"""The network and the number of stages of the chart."""


class Message(NamedTuple):
    """Bits per element of activations and of gradients."""

    forward: float
    backward: float


@final
@dataclass(frozen=True)
class Scale(Experiment):
    """Steps of pipelines, plain and with packets.

    Args:
        schedule: gpipe or 1f1b.
        microbatches: of a step.
        tokens: of a microbatch.
        tflops: what a device reaches, in 1e12 multiplications and additions a second.
        bandwidth: of a device's memory in GB/s: encoding and decoding are taken to read and write a tensor `copies`
            times.
        copies: see bandwidth.
        latency: of a link, in seconds.
        sparsity: of the gradients that are sent.
        sigma: of ln|g|, of the gradients whose packets are measured.
    """

    words: ClassVar[str] = "when packets make pipelines of large transformers faster: measured bits, simulated steps"
    core_hours: ClassVar = 0.01
    presets: ClassVar = {"smoke": {"microbatches": 4}, "cpu": {}}

    schedule: str = "1f1b"
    microbatches: int = 64
    tokens: int = 2048
    tflops: float = 100.0
    bandwidth: float = 1500.0
    copies: float = 3.0
    latency: float = 5e-5
    sparsity: float = 0.9
    sigma: float = 3.0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise InvalidValue(f"schedule must be gpipe or 1f1b; got {self.schedule!r}.")

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        yield Measured("bits", {"sparsity": self.sparsity, "sigma": self.sigma}, self._bits)

    def _bits(self) -> Found:
        """Bits per element of packets: a pruned lognormal gradient with bfloat16 values, and normal activations."""
        count = 2**20
        gradient = torch.exp(self.sigma * torch.randn(count)).mul_(torch.randn(count).sign())
        threshold = float(theory.threshold(LogNormal(0.0, self.sigma), self.sparsity))
        packets = {
            "gradient": prune_and_encode(gradient, threshold, values="bfloat16"),
            "activation": encode(pack_codes(torch.randn(count), IntFormat(8))),
        }
        return {name: 8 * packet.numel() / count for name, packet in packets.items()}

    # -- arithmetic --

    def seconds(self, network: Network, stages: int, rate: float, message: Message, packed: bool) -> float:
        """Seconds of a step.

        Args:
            rate: of each direction of a link, in bits a second.
            packed: True if messages are encoded and decoded, which takes time as well.
        """
        operations = 2 * network.weights * self.tokens / stages
        elements = self.tokens * network.width
        coding = self.copies * 2 * elements / (1e9 * self.bandwidth) if packed else 0.0
        forward, backward = (Link(bits * elements / rate, self.latency, coding, coding) for bits in message)
        compute = operations / (1e12 * self.tflops)
        pipeline = Pipeline(stages, self.microbatches, compute, 2 * compute)
        return step_seconds(cast("Schedule", self.schedule), pipeline, forward, backward)

    def _messages(self, bits: Found) -> dict[str, Message]:
        return {
            PLAIN: Message(16.0, 16.0),
            BACKWARD: Message(16.0, bits["gradient"]),
            BOTH: Message(bits["activation"], bits["gradient"]),
        }

    def draw(self, folder: CellFolder) -> list[Result]:
        bits = folder.found("bits")
        if bits is None:
            return []
        messages = self._messages(bits)
        rows = [row for network in NETWORKS for stages in STAGES for row in self._rows(network, stages, messages)]
        columns = ["network", "stages", "MB an edge and step, bfloat16", "with packets", "sent", *RATES]
        claim = (
            f"Simulated steps of {self.microbatches} microbatches of {self.tokens} tokens, schedule {self.schedule}, "
            f"devices that reach {self.tflops:g} TFLOP/s: how many times faster than with plain bfloat16 messages, by "
            f"the rate of the links. Bits per element are measured: {bits['gradient']:.2f} of a gradient with "
            f"{self.sparsity:.0%} zeros and bfloat16 values, {bits['activation']:.2f} of activations in 8-bit codes. "
            f"Encoding and decoding take {self.copies:g} copies of the tensor each, at {self.bandwidth:g} GB/s. "
            f"`{self.command(*(name for name in self.options() if name not in ('data', 'only')))}` makes this table."
        )
        return [
            Result(
                "scale", "Pipelines of large transformers", claim, columns, rows, [self._chart(messages)],
                [self._where(messages)],
            )
        ]  # fmt: skip

    def _rows(self, name: str, stages: int, messages: dict[str, Message]) -> Iterator[list[object]]:
        network = NETWORKS[name]
        for way in (BACKWARD, BOTH):
            sizes = [self._megabytes(network, messages[one]) for one in (PLAIN, way)]
            gains = [self._gain(network, stages, rate, messages, way) for rate in RATES.values()]
            yield [name, stages, *(f"{size:,.0f}" for size in sizes), way, *(f"{gain:.2f}" for gain in gains)]

    def _gain(self, network: Network, stages: int, rate: float, messages: dict[str, Message], way: str) -> float:
        """Return how many times faster a step is than with plain messages."""
        plain, packed = self.seconds(network, stages, rate, messages[PLAIN], False), messages[way]
        return plain / self.seconds(network, stages, rate, packed, True)

    def _megabytes(self, network: Network, message: Message) -> float:
        """Bytes that cross an edge in a step, both directions, in 1e6."""
        return self.microbatches * self.tokens * network.width * sum(message) / 8e6

    def _where(self, messages: dict[str, Message]) -> str:
        """A sentence on the rates at which packets win and at which they do not."""
        gains: dict[str, list[float]] = {
            word: [
                self._gain(network, stages, rate, messages, BOTH) for network in NETWORKS.values() for stages in STAGES
            ]
            for word, rate in RATES.items()
        }
        parts = [f"{min(found):.2f} to {max(found):.2f} at {word}" for word, found in gains.items()]
        return f"Packets in both directions make the step so many times faster: {', '.join(parts)}."

    def _chart(self, messages: dict[str, Message]) -> Chart:
        name, stages = DRAWN
        network = NETWORKS[name]
        free = self.seconds(network, stages, float("inf"), messages[PLAIN], False)
        places = [10 ** (8 + place / 8) for place in range(30)]
        lines = [
            Line(
                [rate / 1e9 for rate in places],
                [self.seconds(network, stages, rate, message, way != PLAIN) / free for rate in places],
                way,
                color,
            )
            for color, (way, message) in zip((7, 0, 2), messages.items(), strict=True)
        ]
        return Chart(
            f"{name} over {stages} stages", "Gbit/s of each direction of a link", "step, times that without a wire",
            lines, x_scale="log10", y_scale="log10",
        )  # fmt: skip
