"""Linear layers in 8 and 6 bits against other ways to train on a CPU: `./dev bench against`.

Forward and backward of one layer, float32 in and out, take turns in one process: FP32, bf16 autocast, torchao's int8
mixed-precision training, SDNQ with OpenVINO's int8 products, and lograd.  A way that is not installed, or that computes
in float32 after all, is named with that reason and has no number.  `--isa avx2` holds all libraries to AVX2, OpenVINO
excepted, which has no such switch.  The rivals come with `.venv/bin/pip install --no-deps torchao sdnq openvino`.
Writes benchmarks/results/against-ISA.json and .md.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import typer
from torch import Tensor, nn

import lograd
from lograd import native
from lograd.text import markdown

from .timing import conditions, progress, restart, turns, versions, write

SHAPES = ((2048, 768, 3072), (2048, 3072, 768), (1536, 384, 1536), (512, 512, 512))
"""Rows, inputs and outputs of each layer."""
ALMOST = 1e-5
"""A relative error below which products cannot have had 8 bits."""


def torchao(layer: nn.Linear) -> nn.Module:
    """Return the layer of torchao's int8 mixed-precision training, whose weights stay float32."""
    from torchao.prototype.quantized_training import Int8MixedPrecisionTrainingConfig
    from torchao.quantization import quantize_

    # Its tensor subclass, the default, computes in float32 here; the module does not.
    model = nn.Sequential(layer)
    quantize_(model, Int8MixedPrecisionTrainingConfig(module_swap=True))
    return model[0]


def compiled_torchao(layer: nn.Linear) -> nn.Module:
    """Return torchao's layer under torch.compile, which fuses its rounding."""
    found: nn.Module = torch.compile(torchao(layer))  # type: ignore[assignment]
    return found


def sdnq(layer: nn.Linear, static: bool = False) -> nn.Module:
    """Return SDNQ's layer with int8 products by OpenVINO; static weights are stored as codes."""
    from sdnq import kernel_wrappers
    from sdnq.training import sdnq_training_post_load_quant

    if not kernel_wrappers.use_openvino_mm:
        raise ImportError("SDNQ does not find OpenVINO")
    model = sdnq_training_post_load_quant(
        nn.Sequential(layer), weights_dtype="int8", quantized_matmul_dtype="int8", group_size=-1, use_grad_ckpt=False,
        use_quantized_matmul=True, use_static_quantization=static,
    )  # fmt: skip
    found: nn.Module = model[0]
    return found


def ours(layer: nn.Linear, bits: int) -> nn.Module:
    """Return lograd's layer."""
    found = lograd.nn.Linear(layer.in_features, layer.out_features, recipe=f"int{bits}-full")
    found.load_state_dict(layer.state_dict())
    return found


WAYS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "FP32": lambda layer: layer,
    "bf16 autocast": lambda layer: layer,
    "torchao int8": torchao,
    "torchao int8, compiled": compiled_torchao,
    "SDNQ int8, OpenVINO": sdnq,
    "SDNQ int8 weights, OpenVINO": lambda layer: sdnq(layer, static=True),
    "lograd int8-full": lambda layer: ours(layer, 8),
    "lograd int6-full": lambda layer: ours(layer, 6),
}


class Way:
    """A layer made one way, with its input and the gradient of its output."""

    def __init__(self, name: str, layer: nn.Linear, x: Tensor, g: Tensor) -> None:
        self.bfloat16 = name.startswith("bf16")
        self.layer = WAYS[name](copy.deepcopy(layer))
        self.x, self.g = x.clone().requires_grad_(), g

    def __call__(self) -> tuple[Tensor, ...]:
        """Return Y, dX and dW, in float32."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            y = self.layer(self.x).float()
        dx, dw, *_ = torch.autograd.grad(y, [self.x, *self.layer.parameters()], self.g)
        return y.detach(), dx, dw.float()


def measure(shape: tuple[int, int, int], repeats: int) -> dict[str, Any]:
    """Return milliseconds and relative errors of each way, and the reasons of those that have none."""
    rows, inputs, outputs = shape
    torch.manual_seed(0)
    layer, x, g = nn.Linear(inputs, outputs), torch.randn(rows, inputs), torch.randn(rows, outputs)
    exact = Way("FP32", layer, x, g)()
    calls: dict[str, Way] = {}
    errors: dict[str, list[float]] = {}
    reasons: dict[str, str] = {}
    for name in WAYS:
        try:
            call = Way(name, layer, x, g)
            found = call()
        except Exception as error:
            reasons[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            continue
        errors[name] = [round(float((a - b).norm() / b.norm()), 5) for a, b in zip(found, exact, strict=True)]
        if name != "FP32" and max(errors[name]) < ALMOST:
            reasons[name] = "it computes in float32 with this version of PyTorch"
            continue
        calls[name] = call
    times = {name: median(each) for name, each in turns(calls, repeats).items()}
    name = f"Linear {rows} x {inputs} -> {outputs}"
    return {"case": name, "threads": torch.get_num_threads(), "ms": times, "errors": errors, "does not run": reasons}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the Markdown table: milliseconds of FP32, and how many times faster the others are."""
    others = [name for name in WAYS if name != "FP32"]
    lines = []
    for row in rows:
        dense, times = row["ms"]["FP32"], row["ms"]
        cells = {name: f"{dense / times[name]:.2f}" if name in times else "–" for name in others}
        lines.append({"layer": row["case"], "threads": row["threads"], "FP32, ms": f"{dense:.1f}"} | cells)
    return markdown(lines, list(lines[0]))


def accuracy(rows: list[dict[str, Any]]) -> str:
    """Return one sentence on the relative errors of the first layer."""
    each = (f"{name} {', '.join(f'{one:.4f}' for one in found)}" for name, found in rows[0]["errors"].items())
    return f"Relative errors of Y, dX and dW in the first layer, on normal numbers: {'; '.join(each)}."


def reasons(rows: list[dict[str, Any]]) -> str:
    """Return one sentence on what has no number."""
    found = {name: why for row in rows for name, why in row["does not run"].items()}
    return " ".join(f"No number for {name}: {why}." for name, why in found.items())


def main(
    threads: list[int] = typer.Option([1, 2], help="Numbers of threads, one after the other."),
    repeats: int = typer.Option(9, min=2, help="Turns."),
    isa: str = typer.Option("", help='"avx2" holds the libraries to AVX2.'),
    only: str = typer.Option("", help="Layers with this in their name; nothing is written."),
) -> None:
    """Compare linear layers of lograd with those of others."""
    restart(isa, "benchmarks.against")
    warnings.simplefilter("ignore")  # the rivals warn of what they do not find
    shapes = [shape for shape in SHAPES if only in "{} x {} -> {}".format(*shape)]
    rows = []
    for count, shape in progress([(count, shape) for count in threads for shape in shapes]):
        torch.set_num_threads(count)
        rows.append(measure(shape, repeats))
        print(rows[-1], file=sys.stderr)
    used, here, what = native.status().isa, conditions(), versions("torch", "torchao", "sdnq", "openvino")
    introduction = (
        f"Forward and backward of one linear layer, times faster than FP32 by medians of {repeats} turns "
        f"(`./dev bench against{' --isa avx2' if isa else ''}`)."
    )
    text = "\n\n".join(part for part in (table(rows), accuracy(rows), reasons(rows)) if part)
    print(text)
    if not only:
        command = f"./dev bench against{' --isa avx2' * bool(isa)}"
        found = {"command": command, "versions": what, "machine": here, "isa": used, "rows": rows}
        write(f"against-{used}", found, introduction, text)


if __name__ == "__main__":
    typer.run(main)
