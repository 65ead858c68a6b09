"""Hashes of what lograd computes: every recipe on tensors, training steps of three models, a plan, a profile, a run.

`python tests/golden/record.py` prints them as JSON; golden.json holds those of the version that was recorded, and
test_golden.py compares.  Sums of float32 differ between versions of torch and between instruction sets, so the hashes
are those of one version, with the kernels for AVX2 that `ENVIRONMENT` asks of every library that chooses.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "DNNL_MAX_CPU_ISA": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
    "LOGRAD_ISA": "avx2",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def digest(*parts) -> str:
    """Hexadecimal digits of tensors, arrays and plain values."""
    found = hashlib.sha256()
    for part in parts:
        if hasattr(part, "detach"):
            tensor = part.detach().cpu()
            found.update(f"{tensor.dtype}{tuple(tensor.shape)}{tensor.stride()}".encode())
            part = tensor.contiguous().reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
        if hasattr(part, "tobytes"):
            found.update(part.tobytes())
        elif isinstance(part, bytes):
            found.update(part)
        else:
            found.update(json.dumps(part, sort_keys=True).encode())
    return found.hexdigest()[:16]


def gradient(*shape: int, dtype=None, channels_last: bool = False):
    """A tensor with 30 octaves, both signs and zeros, made of whole numbers and powers of two."""
    random = np.random.Generator(np.random.Philox(7))
    mantissa = random.integers(2**10, 2**11, shape) / 2**10
    exponent = random.integers(-6, 1, (5, *shape)).sum(0)
    values = random.choice([-1.0, 1.0], shape) * np.ldexp(mantissa, exponent) * (random.random(shape) > 0.2)
    tensor = torch.from_numpy(values).to(dtype or torch.float32)
    return tensor.contiguous(memory_format=torch.channels_last) if channels_last else tensor


def recipe_names() -> list[str]:
    from lograd.treatments.recipes import RECIPES

    further = [
        "prune85+fp6", "fp4-dynamic-rht", "mxfp4-rht", "mxfp4-nearest", "int4-ptq-ht", "int8-nearest",
        "int5-bhq-nearest", "identity/prune85", "mxfp6/int8-psq", "topk80+int4-interval", "fp4-luq-nearest",
        "prune95+int8-psq", "int4-bhq", "fp4-quantile99.9", "dithered2", "mxfp8-e5m2",
    ]  # fmt: skip
    return [*dict.fromkeys([*(one.example for one in RECIPES), *further])]


def recipes() -> dict[str, str]:
    from lograd.treatments import apply, recipe

    found = {}
    tensors = {
        "matrix": gradient(37, 100),
        "bfloat16": gradient(16, 40, dtype=torch.bfloat16),
        "float16": gradient(16, 40, dtype=torch.float16),
        "image": gradient(4, 24, 5, 7),
        "channels last": gradient(4, 24, 5, 7, channels_last=True),
    }
    for name in recipe_names():
        sentences = recipe(name)
        for kind, g in tensors.items():
            parts = [
                apply(sentence, g, seed=11, contracted=contracted)
                for sentence, contracted in (
                    (sentences.input_gradient.gradient, (1,)),
                    (sentences.weight_gradient.gradient, (0, *range(2, g.dim()))),
                )
            ]
            found[f"{name} on {kind}"] = digest(*(one for part in parts for one in (part.result, part.counts)))
    return found


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(inplace=True),
        nn.Conv2d(24, 24, 3, padding=1, groups=2), nn.ReLU(), nn.Conv2d(24, 40, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 7),
    ), gradient(8, 3, 12, 12) * 8  # fmt: skip


def linear():
    return nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 48, bias=False), nn.Tanh(), nn.Linear(48, 7)), (
        gradient(24, 20) * 8
    )


def transformer():
    from experiments.models import CharTransformer

    model = CharTransformer(7, width=32, depth=2, heads=2, context=16)
    return model, torch.from_numpy(np.random.Generator(np.random.Philox(3)).integers(0, 7, (4, 16)))


def steps(model, x, handle, count: int) -> list:
    """The gradients of the last of some training steps."""
    labels = torch.arange(x.shape[0] * (x.shape[1] if x.dim() == 2 and not x.is_floating_point() else 1)) % 7
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).reshape(labels.numel(), 7), labels).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        optimizer.step()
        handle.step()
    return gradients


def trained(make, plan: str, **options) -> str:
    """Four steps: statistics are taken in the first."""
    torch.manual_seed(0)
    model, x = make()
    handle = lograd.attach(model, lograd.Plan.uniform(plan), seed=5, **options)
    gradients = steps(model, x, handle, 4)
    total = handle.counters().total.to_json()
    handle.remove()
    return digest(*model.state_dict().values(), *gradients, total)


STATES = {"prune85+fp6/atp85": "dense", "hfp8": "dense", "int4-interval": "dense", "prune85-cosine": "auto"}
"""Recipes whose states were saved, with the backend that they had."""


def continued() -> dict[str, str]:
    """Two steps after a state that was saved by another handle."""
    found = {}
    for name, backend in STATES.items():
        torch.manual_seed(0)
        model, x = convolutional()
        handle = lograd.attach(model, lograd.Plan.uniform(name), seed=3, backend=backend)
        steps(model, x, handle, 3)
        content = io.BytesIO()
        torch.save(handle.state_dict(), content)
        handle.remove()
        content.seek(0)
        torch.manual_seed(0)
        model, x = convolutional()
        handle = lograd.attach(model, lograd.Plan.uniform(name), seed=0, backend=backend)
        handle.load_state_dict(torch.load(content, weights_only=True))
        gradients = steps(model, x, handle, 2)
        found[f"{name}, continued"] = digest(*gradients, handle.counters().total.to_json())
        handle.remove()
    return found


def training() -> dict[str, str]:
    found = {}
    for name in recipe_names():
        for make in (convolutional, linear, transformer):
            if name == "fp4-dynamic" or "dynamic" not in name:
                found[f"{name}, {make.__name__}"] = trained(make, name, backend="dense", loss_scale=1024.0)
    for name in ("prune85", "prune50", "prune85+fp6", "topk80", "prune85-cosine", "identity/prune85", "prune80/fp6"):
        for make in (convolutional, linear, transformer):
            found[f"{name}, {make.__name__}, sparse"] = trained(make, name, backend="sparse", start=1)
    return found


def layers_of(plan) -> dict[str, object]:
    """What a plan says of each layer, independent of how its file is written."""
    from lograd.treatments import BACKWARD

    return {
        name: [
            *([one.to_json() for one in layer.site(product, "gradient")] for product in BACKWARD),
            layer.elements, layer.masked,
            *(None if one is None else one.to_json() for one in map(layer.prediction, BACKWARD)),
        ]
        for name, layer in plan.layers.items()
    }  # fmt: skip


def profiles(folder: Path) -> dict[str, str]:
    torch.manual_seed(0)
    model, x = convolutional()
    batches = [(x.roll(shift, 0), (torch.arange(8) + shift) % 7) for shift in range(4)]
    profile = lograd.profile(model, batches, nn.functional.cross_entropy, steps=4, noise=2)
    path = profile.save(folder / "profile.npz")
    with np.load(path, allow_pickle=False) as arrays:
        records, counts = arrays["records"], arrays["counts"]
        of_rows = records[:, 1] == 2
        own = np.repeat(of_rows, records[:, 4])
        factors = profile.noise.factors
        noise = np.vstack([factors.own, factors.passed, factors.transfer])
        rest = noise, records[~of_rows], arrays["samples"]
        found = {
            "profile": digest(counts[~own], arrays["masked"][~of_rows], *rest),
            "profile of rows": digest(counts[own], records[of_rows]),
        }
    plans = {
        "bits": {"bits": 6}, "recommended": {"bits": "recommended"}, "sparsity": {"sparsity": 0.85, "everywhere": True},
        "both": {"sparsity": 0.8, "bits": 5, "everywhere": True, "law": "lognormal"},
        "cosine": {"sparsity": 0.85, "everywhere": True, "allocation": "cosine"},
        "uniform": {"sparsity": 0.85, "everywhere": True, "allocation": "uniform", "products": "weight_gradient"},
    }  # fmt: skip
    return found | {f"plan {name}": digest(layers_of(profile.plan(**options))) for name, options in plans.items()}


def record() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return recipes() | training() | continued() | profiles(Path(folder))


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    import numpy as np
    import torch
    from torch import nn

    import lograd

    sys.path.insert(0, str(Path(__file__).parents[2]))  # for experiments.models
    torch.set_num_threads(1)
    json.dump({"torch": torch.__version__, "hashes": record()}, sys.stdout, indent=0)
