"""Writes a few good inputs for fuzz/decode_packet.cpp, which it changes into bad ones: python fuzz/seeds.py FOLDER."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import torch

import lograd
from lograd import ops
from lograd.wire.header import DTYPES, FIXED, PRUNED, read_header


def seeds() -> dict[str, bytes]:
    """Inputs by name: type, number of elements, alpha and cut bits in eight bytes, then the table and the blocks."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, dtype, count, threshold in (
        ("small", torch.float32, 60, 1.0),
        ("block", torch.float32, 4096, 50.0),
        ("blocks", torch.float32, 9000, 200.0),
        ("halves", torch.float16, 300, 8.0),
        ("brains", torch.bfloat16, 5000, 90.0),
        ("few", torch.float32, 4096, 1e5),
        ("dense", torch.float32, 40, 0.0),
    ):
        x = torch.randn(count, generator=generator) * torch.exp(3 * torch.randn(count, generator=generator))
        pruned = ops.stochastic_prune(x.to(dtype), threshold)
        for option in ({}, {"entropy": True}, {"values": "float8"}):
            packet = lograd.encode(pruned, **option).numpy()
            header = read_header(packet, 2**32)
            if header.method != PRUNED:
                continue
            number = DTYPES.index(header.dtype) | (128 if option.get("entropy") else 0)
            head = struct.pack("<BHIB", number, count, header.alpha, header.parameter)
            found[f"{name}{len(found)}"] = head + packet[FIXED.size + 9 :].tobytes()
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in seeds().items():
        (folder / name).write_bytes(content)
