"""FP6 gradients together with weights and activations of 4 bits, as the lognormal paper combines them.

./dev reproduce int4wa --data cifar100_20k.npz
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from .comparison import BASE, Way, WaysToTrain


@final
@dataclass(frozen=True)
class Int4wa(WaysToTrain):
    """Gradients of 6 bits, forward passes of 4 bits, and both."""

    words: ClassVar[str] = "accuracy with FP6 gradients and weights and activations of 4 bits, alone and together"
    title: ClassVar[str] = "FP6 gradients with INT4 weights and activations"
    claim: ClassVar[str] = (
        "The paper claims minor degradation when FP6 gradients meet INT4 weights and activations, which cost 0.3 "
        "points. How it chooses the ranges of these is not printed."
    )
    verdict: ClassVar[str] = (
        "It holds on a character transformer: FP6 gradients cost nothing beyond the spread over seeds, alone and "
        "beside INT4 weights and activations, which cost 0.05 bits per character with ranges by channel. In so short a "
        "run learned steps cost a little more, and learned clips, one range for a tensor, twice as much."
    )
    presets: ClassVar = {
        "smoke": {"network": "digits", "seeds": 1, "only": "fp32,both"},
        "cpu": {"network": "charlm"},
    }

    def ways(self) -> dict[str, Way]:
        return {
            BASE: Way("float32"),
            "gradients": Way("gradients FP6", "fp6"),
            "forward": Way("weights and activations INT4, ranges by channel", "int4wa"),
            "both": Way("INT4, ranges by channel, and FP6", "int4wa+fp6", lost=-0.3),
            "clips": Way("INT4, learned clips, and FP6", "int4wa-clips+fp6"),
            "lsq": Way("INT4, learned steps, and FP6", "int4wa-lsq+fp6"),
        }
