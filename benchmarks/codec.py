"""Packets against memcpy and against compressors of bytes: `./dev bench codec`.

Lognormal gradients after stochastic pruning, sigma of ln|x| 3 unless it is given.  Ours and the peers take turns on the
same tensor, on one thread; what is reported are bits per element beside the Shannon limit, and ratios of medians to a
copy of the tensor.  A second table has bits for narrow and wide laws.  Peers are zstd, lz4 and blosc2 with bitshuffle
(`pip install zstandard lz4 blosc2`); those that are not installed are left out.  Writes
benchmarks/results/codec.json and codec.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from scipy.stats import norm
from torch import Tensor

import lograd
from lograd import laws, ops, theory, wire
from lograd.text import markdown

from .ops import parse_sizes, size_name, three_digits
from .timing import conditions, medians, progress, versions, write

WHAT = "packets of pruned lognormal gradients: bits per element, and times as multiples of memcpy, on one thread"
SPARSITIES = (0.8, 0.85, 0.9, 0.95)
SIGMAS = (2.5, 3.5, 4.5, 5.5)
"""Sigmas of ln|x| that neural gradients have; for bits alone, on `BITS_ELEMENTS` elements."""
BITS_ELEMENTS = 2**22
PAPER = {0.8: 4, 0.9: 2}
"""Bits per element of [chmiel2021] at these sparsities."""


class Peer(NamedTuple):
    """A compressor of bytes."""

    encode: Callable[[bytes], bytes]
    decode: Callable[[bytes], bytes]


def peers() -> dict[str, Peer]:
    """The compressors that are installed."""
    found: dict[str, Peer] = {}
    zstd, lz4, blosc2 = (_module(name) for name in ("zstandard", "lz4.frame", "blosc2"))
    if zstd is not None:
        found["zstd-1"] = Peer(zstd.ZstdCompressor(level=1).compress, zstd.ZstdDecompressor().decompress)
    if lz4 is not None:
        found["lz4"] = Peer(lz4.compress, lz4.decompress)
    if blosc2 is not None:
        blosc2.set_nthreads(1)
        for codec_name in ("LZ4", "ZSTD"):
            found[f"blosc2 bitshuffle {codec_name.lower()}"] = _blosc(blosc2, getattr(blosc2.Codec, codec_name))
    return found


def _blosc(blosc2: Any, kind: Any) -> Peer:
    return Peer(
        lambda data: blosc2.compress2(
            np.frombuffer(data, np.float32), codec=kind, clevel=1, filters=[blosc2.Filter.BITSHUFFLE], typesize=4,
            nthreads=1,
        ),
        blosc2.decompress2,
    )  # fmt: skip


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:  # that one, or one that it needs
        return None


def limit(sigma: float, sparsity: float, threshold: float) -> float:
    """The fewest bits per element of independent lognormal elements after stochastic pruning.

    The entropy of zero, +-threshold, or one of 32 parts of an octave, and 18 bits for the rest of a mantissa.
    """
    octaves = math.floor(math.log2(threshold)) + np.arange(150)
    edges = np.maximum(np.ldexp(1 + np.arange(32) / 32, octaves[:, None]).ravel(), threshold)
    kept = -np.diff(norm.sf(np.log(edges) / sigma))
    p = np.concatenate([[sparsity], [(1 - sparsity - kept.sum()) / 2] * 2, kept / 2, kept / 2])
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum() + 18 * kept.sum())


def gradient(size: int, sigma: float) -> Tensor:
    """Lognormal magnitudes with random signs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, generator=generator).mul_(sigma).exp_()
    return x.mul_(torch.randn(size, generator=generator).sign_())


def measure(x: Tensor, sigma: float, sparsity: float, repeats: int) -> dict[str, Any]:
    """Bits and times of our packets and of the peers' at one sparsity."""
    threshold = float(theory.threshold(laws.LogNormal(0.0, sigma), sparsity))
    out = torch.empty_like(x).fill_(1.0)
    pruned = ops.stochastic_prune(x, threshold)
    packets = {
        "lograd": wire.prune_and_encode(x, threshold),
        "lograd, entropy": wire.prune_and_encode(x, threshold, entropy=True),
        "lograd, bfloat16 values": wire.prune_and_encode(x, threshold, values="bfloat16"),
        "lograd, float8 values": wire.prune_and_encode(x, threshold, values="float8"),
    }
    size = {name: packet.numel() for name, packet in packets.items()}
    # Arguments are bound now: a lambda would look them up when it runs.
    calls: dict[str, Callable[[], object]] = {
        "memcpy": lambda: out.copy_(x),
        "prune": lambda: ops.stochastic_prune(x, threshold),
        "lograd: prune + encode": lambda: wire.prune_and_encode(x, threshold),
        "lograd: encode": lambda: lograd.encode(pruned, alpha=threshold),
        "lograd: decode": lambda: lograd.decode(packets["lograd"]),
        "lograd, entropy: prune + encode": lambda: wire.prune_and_encode(x, threshold, entropy=True),
        "lograd, entropy: decode": lambda: lograd.decode(packets["lograd, entropy"]),
    }
    content = pruned.numpy().tobytes()
    for name, peer in peers().items():
        compressed = peer.encode(content)
        size[name] = len(compressed)
        calls[f"{name}: encode"] = lambda peer=peer: peer.encode(content)  # type: ignore[misc]
        calls[f"{name}: decode"] = lambda peer=peer, compressed=compressed: peer.decode(compressed)  # type: ignore[misc]
    times = medians(calls, repeats)
    copy = times.pop("memcpy")
    return {
        "sigma": sigma,
        "sparsity": sparsity,
        "elements": x.numel(),
        "threads": torch.get_num_threads(),
        "zeros": int((pruned == 0).sum()),
        "limit": round(limit(sigma, sparsity, threshold), 4),
        "paper": PAPER.get(sparsity),
        "bits": {name: round(8 * bytes_ / x.numel(), 4) for name, bytes_ in size.items()},
        "ms": {"memcpy": round(copy, 4)} | {name: round(ms, 4) for name, ms in times.items()},
        "over memcpy": {name: three_digits(ms / copy) for name, ms in times.items()},
    }


def bits_by_law() -> list[dict[str, Any]]:
    """Bits per element of exact packets over the Shannon limit, for each sigma and sparsity."""
    rows = []
    for sigma in SIGMAS:
        x = gradient(BITS_ELEMENTS, sigma)
        for sparsity in SPARSITIES:
            threshold = float(theory.threshold(laws.LogNormal(0.0, sigma), sparsity))
            least = limit(sigma, sparsity, threshold)
            plain, entropy = (
                8 * wire.prune_and_encode(x, threshold, entropy=entropy).numel() / x.numel()
                for entropy in (False, True)
            )
            rows.append(
                {
                    "sigma": sigma, "sparsity": sparsity, "limit": round(least, 4), "bits": round(plain, 4),
                    "over limit": round(plain / least, 4), "entropy": round(entropy, 4),
                    "entropy over limit": round(entropy / least, 4),
                }
            )  # fmt: skip
    return rows


def bits_table(rows: list[dict[str, Any]]) -> str:
    """Bits per element and their ratios to the limit, a row for each sigma and sparsity."""
    cells = [
        {
            "sigma": f"{row['sigma']:g}", "zeros": f"{row['sparsity']:.0%}", "limit, bits": f"{row['limit']:.3f}",
            "lograd": f"{row['bits']:.3f} ({row['over limit']:.3f} x)",
            "lograd, entropy": f"{row['entropy']:.3f} ({row['entropy over limit']:.3f} x)",
        }
        for row in rows
    ]  # fmt: skip
    return markdown(cells, list(cells[0]))


def table(rows: list[dict[str, Any]]) -> str:
    """Bits per element, then times over memcpy, a column for each sparsity."""
    lines: list[dict[str, Any]] = []
    columns = [f"{row['sparsity']:.0%}, {size_name(row['elements'])}" for row in rows]
    for unit, values in (
        ("bits", [{"Shannon limit": row["limit"], "the paper": row["paper"]} | row["bits"] for row in rows]),
        ("x memcpy", [row["over memcpy"] for row in rows]),
    ):
        for name in values[0]:
            cells = {
                column: "" if one[name] is None else f"{one[name]:.3g}"
                for column, one in zip(columns, values, strict=True)
            }
            lines.append({"case": name, "unit": unit, **cells})
    return markdown(lines, ["case", "unit", *columns])


def main(
    sizes: Annotated[str, typer.Option(help="elements, such as 1M,16M")] = "16M",
    sigma: Annotated[float, typer.Option(help="sigma of ln|x|")] = 3.0,
    repeats: Annotated[int, typer.Option(help="turns of each case")] = 9,
    save: Annotated[bool, typer.Option(help="write benchmarks/results/codec.json and codec.md")] = True,
) -> None:
    """Measure packets and compressors of bytes on pruned gradients."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        jobs = [(size, sparsity) for size in parse_sizes(sizes) for sparsity in SPARSITIES]
        rows = [measure(gradient(size, sigma), sigma, sparsity, repeats) for size, sparsity in progress(jobs)]
    finally:
        torch.set_num_threads(before)
    by_law = bits_by_law()
    text = (
        f"{table(rows)}\n\nBits per element by sigma of ln|x|, and as multiples of the limit:\n\n{bits_table(by_law)}"
    )
    print(text)
    if save:
        result = {
            "what": WHAT,
            "versions": versions("torch", "zstandard", "lz4", "blosc2"),
            "machine": conditions(),
            "rows": rows,
            "bits by law": by_law,
        }
        write("codec", result, WHAT + ".", text)


if __name__ == "__main__":
    typer.run(main)
