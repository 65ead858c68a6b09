"""When neural gradients are near-lognormal: the law of |g| over architectures, at the beginning and after some steps.

    .venv/bin/python experiments/laws.py --data ../shared/data/cifar100_20k.npz

Builds sixteen small networks with and without normalisation, looks at their gradients before training and after a
hundred steps, and measures how far |g| of each layer is from a fitted lognormal and a fitted half-normal law.  Then it
asks 85 % zeros of each layer with the threshold of each law, solved from one step and applied to the next one.  Without
--data the images are the digits inside the package, enlarged.  Writes experiments/results/laws.json and laws.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice, pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from learning import RESULTS
from timing import markdown
from torch import Tensor, nn

import lograd
from lograd import data as embedded
from lograd.laws import Empirical, HalfNormal, Law, LogNormal
from lograd.laws.binned import try_binned
from lograd.models import CharTransformer, CifarResNet, Vgg
from lograd.profiles import LayerProfile
from lograd.theory import sparsity, threshold

TARGET = 0.85
LAWS: dict[str, type[Law]] = {"lognormal": LogNormal, "normal": HalfNormal}
OBSERVED = 4
"""Steps that a profile looks at."""
CONTEXT = 64
OPERATORS: list[Any] = []
"""Kept alive: torch forgets operators whose library is gone."""

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


# ----------------------------------------------------------------------------------------------------------------- data


def images(path: Path | None, batch: int) -> Iterator[Batch]:
    """Shuffled images of 3x32x32 with their labels, without end."""
    if path is None:
        digits = embedded.digits()
        pixels = F.interpolate(digits.train_images, size=32, mode="bilinear").expand(-1, 3, -1, -1).sub(0.3).div(0.37)
        labels = digits.train_labels
    else:
        with np.load(path, allow_pickle=False) as file:
            pixels = torch.from_numpy(file["train_images"]).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.27)
            labels = torch.from_numpy(file["train_labels"]).long()
    generator = torch.Generator().manual_seed(0)
    while True:
        chosen = torch.randint(len(labels), (batch,), generator=generator)
        yield pixels[chosen].contiguous(), labels[chosen]


def noisy(batches: Iterator[Batch]) -> Iterator[Batch]:
    """For a U-Net: an image with noise, and the image."""
    generator = torch.Generator().manual_seed(1)
    for pixels, _ in batches:
        yield pixels + 0.5 * torch.randn(pixels.shape, generator=generator), pixels


def text(batch: int) -> tuple[Iterator[Batch], int]:
    """Windows of a play with the next character at each place, and how many characters there are."""
    play = embedded.shakespeare()
    numbers = {character: number for number, character in enumerate(sorted(set(play)))}
    tokens = torch.tensor([numbers[character] for character in play])

    def windows() -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(0)
        while True:
            starts = torch.randint(len(tokens) - CONTEXT - 1, (batch, 1), generator=generator)
            window = tokens[starts + torch.arange(CONTEXT + 1)]
            yield window[:, :-1].contiguous(), window[:, 1:].contiguous()

    return windows(), len(numbers)


# --------------------------------------------------------------------------------------------------------------- models


class UNet(nn.Module):
    """Three resolutions with skips; ReLU, and BatchNorm or nothing."""

    def __init__(self, width: int = 16, norm: bool = False) -> None:
        super().__init__()

        def stage(inputs: int, outputs: int) -> nn.Sequential:
            parts: list[nn.Module] = []
            for number in range(2):
                parts.append(nn.Conv2d(inputs if not number else outputs, outputs, 3, padding=1))
                parts += [nn.BatchNorm2d(outputs)] if norm else []
                parts.append(nn.ReLU())
            return nn.Sequential(*parts)

        self.down = nn.ModuleList([stage(3, width), stage(width, 2 * width), stage(2 * width, 4 * width)])
        self.rise = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.up = nn.ModuleList([stage(4 * width, 2 * width), stage(2 * width, width)])
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        y = self.down[2](F.max_pool2d(second, 2))
        for rise, up, skip in zip(self.rise, self.up, (second, first), strict=True):
            y = up(torch.cat([rise(y), skip], 1))
        result: Tensor = self.out(y)
        return result


class Recurrent(nn.Module):
    """An LSTM between an embedding and two linear layers."""

    def __init__(self, tokens: int, width: int = 96) -> None:
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.hidden, self.head = nn.Linear(width, 2 * width), nn.Linear(2 * width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(torch.relu(self.hidden(self.lstm(self.token(tokens))[0])))
        return result


def perceptron(act: type[nn.Module], norm: bool) -> nn.Module:
    parts: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in ((3072, 256), (256, 256), (256, 256), (256, 256)):
        parts += [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if norm else []), act()]
    return nn.Sequential(*parts, nn.Linear(256, 100))


def without_norm(model: nn.Module) -> nn.Module:
    """The same network with each BatchNorm taken out, its convolutions with He's weights so that it still trains."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Identity())
            elif isinstance(child, nn.Conv2d):
                nn.init.kaiming_normal_(child.weight, nonlinearity="relu")
    return model


def with_activation(model: nn.Module, act: type[nn.Module]) -> nn.Module:
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, act())
    return model


def package(name: str) -> Any:
    """torchvision, timm or transformers; the last two import the first."""
    try:
        import_module("torchvision")
    except RuntimeError:  # its compiled operators may not fit torch's build; no model here needs them
        library: Any = torch.library.Library
        OPERATORS.append(library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            OPERATORS[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return import_module(name)


def torchvision_model(name: str, **options: Any) -> nn.Module:
    model: nn.Module = getattr(package("torchvision").models, name)(num_classes=100, **options)
    return model


def grouped_resnet() -> nn.Module:
    return torchvision_model("resnet18", norm_layer=partial(nn.GroupNorm, 8))


def character_model(tokens: int) -> nn.Module:
    return CharTransformer(tokens, 96, 3, 4, CONTEXT)


def timm_model(name: str, **options: Any) -> nn.Module:
    model: nn.Module = package("timm").create_model(name, num_classes=100, **options)
    return model


class Bert(nn.Module):
    """BERT's encoder from transformers at a small size, with a head on every position."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        transformers = package("transformers")
        config = transformers.BertConfig(
            vocab_size=tokens, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=384,
            max_position_embeddings=CONTEXT,
        )  # fmt: skip
        self.bert = transformers.BertForTokenClassification(config)
        self.bert.classifier = nn.Linear(96, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.bert(tokens).logits
        return result


# ------------------------------------------------------------------------------------------------------------ the cases


@dataclass(frozen=True)
class Case:
    """One architecture with what matters for the law of its gradients."""

    name: str
    norm: str
    activation: str
    kind: str
    """Its data: "image", "denoise" or "text"."""
    build: Callable[..., nn.Module]
    optimizer: str = "sgd"


VIT = {"img_size": 32, "patch_size": 4, "depth": 4, "embed_dim": 96}
CASES = (
    Case("MLP", "none", "ReLU", "image", partial(perceptron, nn.ReLU, False)),
    Case("MLP", "BatchNorm", "ReLU", "image", partial(perceptron, nn.ReLU, True)),
    Case("VGG-16, 16 channels", "none", "ReLU", "image", lambda: without_norm(Vgg(100, 16))),
    Case("VGG-16, 16 channels", "BatchNorm", "ReLU", "image", lambda: Vgg(100, 16)),
    Case("VGG-16, 16 channels", "BatchNorm", "GELU", "image", lambda: with_activation(Vgg(100, 16), nn.GELU)),
    Case("ResNet-20", "BatchNorm", "ReLU", "image", lambda: CifarResNet(20, 100, 16)),
    Case("ResNet-18, torchvision", "BatchNorm", "ReLU", "image", partial(torchvision_model, "resnet18")),
    Case("ResNet-18, torchvision", "GroupNorm", "ReLU", "image", grouped_resnet),
    Case("MobileNetV3 small", "BatchNorm", "Hardswish", "image", partial(torchvision_model, "mobilenet_v3_small")),
    Case("U-Net", "none", "ReLU", "denoise", partial(UNet, norm=False), "adam"),
    Case("U-Net", "BatchNorm", "ReLU", "denoise", partial(UNet, norm=True), "adam"),
    Case("ConvNeXt atto, timm", "LayerNorm", "GELU", "image", partial(timm_model, "convnext_atto"), "adam"),
    Case("ViT, timm", "LayerNorm", "GELU", "image", partial(timm_model, "vit_tiny_patch16_224", **VIT), "adam"),
    Case("BERT, transformers", "LayerNorm", "GELU", "text", Bert, "adam"),
    Case("character transformer", "LayerNorm", "GELU", "text", character_model, "adam"),
    Case("linear layers behind an LSTM", "none", "ReLU", "text", Recurrent, "adam"),
)  # fmt: skip


def prepared(case: Case, data: Path | None, batch: int) -> tuple[nn.Module, Iterator[Batch], Loss]:
    torch.manual_seed(0)
    if case.kind == "text":
        windows, tokens = text(batch)
        return (
            case.build(tokens),
            windows,
            lambda logits, target: F.cross_entropy(logits.flatten(0, 1), target.flatten()),
        )
    if case.kind == "denoise":
        return case.build(), noisy(images(data, batch)), F.mse_loss
    return case.build(), images(data, batch), F.cross_entropy


def train(model: nn.Module, batches: Iterator[Batch], loss_fn: Loss, optimizer: str, steps: int) -> float:
    """The mean loss of the last tenth of the steps."""
    parameters = model.parameters()
    chosen: torch.optim.Optimizer = (
        torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=5e-4)
        if optimizer == "sgd"
        else torch.optim.AdamW(parameters, lr=1e-3)
    )
    losses = []
    for inputs, targets in islice(batches, steps):
        chosen.zero_grad()
        loss: Any = loss_fn(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        chosen.step()
        losses.append(float(loss.detach()))
    return float(np.mean(losses[-max(steps // 10, 1) :]))


# --------------------------------------------------------------------------------------------------------- measurements


def look(model: nn.Module, batches: Iterator[Batch], loss_fn: Loss) -> list[dict[str, Any]]:
    profile = lograd.profile(model, batches, loss_fn, steps=OBSERVED, weight_gradients=False)
    return [found for layer in profile.layers.values() if (found := measured(layer)) is not None]


def measured(layer: LayerProfile) -> dict[str, Any] | None:
    """Distances of one layer, and the zeros that each law's threshold gives one step later; None without a law."""
    laws = [record.law for record in layer.records if record.law is not None]
    if len(laws) < 2:
        return None
    misses = {name: max(miss(one, other, name) for one, other in pairwise(laws)) for name in ("empirical", *LAWS)}
    return {
        "layer": layer.name,
        "kind": layer.kind,
        "elements": layer.elements,
        "zeros": layer.zero_share,
        "sigma": layer.sigma,
        "ks": {name: layer.ks(family) for name, family in LAWS.items()},
        "nearest": layer.nearest_law,
        "miss": misses,
    }


def miss(now: Empirical, later: Empirical, name: str) -> float:
    """How far the zeros of the later gradient are from TARGET if the threshold is solved from the earlier one."""
    law: Law | None = now if name == "empirical" else try_binned(LAWS[name], now).law
    return float("nan") if law is None else abs(float(sparsity(later, threshold(law, TARGET))) - TARGET)


def summary(case: Case, when: str, layers: list[dict[str, Any]]) -> dict[str, Any]:
    def middle(values: list[float]) -> float:
        return float(np.nanmedian(values))

    return {
        "network": case.name,
        "normalisation": case.norm,
        "activation": case.activation,
        "when": when,
        "layers": len(layers),
        "nearer to lognormal": sum(layer["ks"]["lognormal"] < layer["ks"]["normal"] for layer in layers),
        "sigma": middle([layer["sigma"] for layer in layers]),
        **{f"KS {name}": middle([layer["ks"][name] for layer in layers]) for name in LAWS},
        **{
            f"miss {name}": [middle(misses), float(np.nanmax(misses))]
            for name in ("empirical", *LAWS)
            for misses in ([layer["miss"][name] for layer in layers],)
        },
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        {
            "network": row["network"],
            "normalisation": row["normalisation"],
            "activation": row["activation"],
            "when": row["when"],
            "sigma": f"{row['sigma']:.2f}",
            "KS lognormal": f"{row['KS lognormal']:.3f}",
            "KS normal": f"{row['KS normal']:.3f}",
            "nearer to lognormal": f"{row['nearer to lognormal']} of {row['layers']}",
            **{
                f"miss, {name}": " / ".join(f"{100 * value:.1f}" for value in row[f"miss {name}"])
                for name in ("empirical", *LAWS)
            },
        }
        for row in rows
    ]
    return markdown(lines, list(lines[0]))


def in_lines(head: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """JSON with a line for each row, its numbers to five digits: measurements have no more."""
    short = [json.loads(json.dumps(row), parse_float=lambda text: float(f"{float(text):.5g}")) for row in rows]
    lines = ",\n".join(map(json.dumps, short))
    return f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}\n'


def main(
    data: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="cifar100_20k.npz, or alike.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps between the two looks.")] = 100,
    batch: Annotated[int, typer.Option(min=2, help="Examples of a step.")] = 32,
    only: Annotated[str, typer.Option(help="Networks whose name holds this text.")] = "",
) -> None:
    """How far gradients are from lognormal and normal, by architecture, before and after some training."""
    rows: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    source = "the digits inside the package" if data is None else data.name
    what = (
        f"The law of |g| in the layers of small networks, batch {batch}; images are {source}, text is the play in the "
        "package. Sigma (natural log; a normal law has 1.11) and the KS distances to a fitted lognormal and a fitted "
        f"half-normal law are medians over the layers. Miss: {TARGET:.0%} zeros asked of each layer with the threshold "
        "that a law gives from one step, counted on the gradient of the next step; the median and the largest "
        "difference in points over the layers. "
        f"`experiments/laws.py{'' if data is None else ' --data FILE'}` makes this table."
    )
    for case in (one for one in CASES if only in one.name):
        began = time.perf_counter()
        model, batches, loss_fn = prepared(case, data, batch)
        looks = {"at the beginning": look(model, batches, loss_fn)}
        loss = train(model, batches, loss_fn, case.optimizer, steps)
        looks[f"after {steps} steps"] = look(model, batches, loss_fn)
        for when, layers in looks.items():
            rows.append(summary(case, when, layers))
            found.append({**rows[-1], "loss": loss if when.startswith("after") else None, "by layer": layers})
        print(
            f"{case.name}, {case.norm}, {case.activation}: {time.perf_counter() - began:.0f} s, loss {loss:.3f}",
            flush=True,
        )
        if only:
            continue
        RESULTS.mkdir(exist_ok=True)  # after each network: a run that is stopped has shown something
        versions = {"lograd": lograd.__version__, "torch": torch.__version__}
        (RESULTS / "laws.json").write_text(in_lines({"what": what, "versions": versions}, found))
        (RESULTS / "laws.md").write_text(f"{what}\n\n{table(rows)}\n")
    print(table(rows))


if __name__ == "__main__":
    typer.run(main)
