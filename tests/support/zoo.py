"""Models that people train, small enough for a test: real architectures with random weights and tiny inputs."""

from __future__ import annotations

import logging
from types import ModuleType

import torch
from torch import nn

BATCH = 4


def torchvision() -> ModuleType:
    try:
        import torchvision
    except RuntimeError:
        # Its compiled operators are missing where its build does not fit torch's; no model here needs them.
        global _operators
        _operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


def _images(name: str, **options: object) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    model = getattr(torchvision().models, name)(num_classes=10, **options)
    if name.startswith("vgg"):  # all but a few of its weights are in two linear layers
        model.classifier = nn.Sequential(nn.Linear(512 * 7 * 7, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 10))
    return model, {"x": torch.randn(BATCH, 3, 32, 32)}


def _timm(name: str, **options: object) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torchvision()
    import timm

    return timm.create_model(name, num_classes=10, **options), {"x": torch.randn(BATCH, 3, 32, 32)}


def _transformers(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torchvision()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    import transformers

    ids = torch.randint(0, 100, (BATCH, 16))
    if name == "bert":
        config = transformers.BertConfig(
            vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
        )
        return transformers.BertForSequenceClassification(config), {"input_ids": ids}
    config = transformers.GPT2Config(
        vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids}


ZOO = {
    "resnet18": lambda: _images("resnet18"),
    "mobilenet_v2": lambda: _images("mobilenet_v2"),
    "densenet121": lambda: _images("densenet121"),
    "vgg16_bn": lambda: _images("vgg16_bn"),
    "squeezenet1_1": lambda: _images("squeezenet1_1"),
    "convnext": lambda: _timm("convnext_atto"),
    "vit": lambda: _timm("vit_tiny_patch16_224", img_size=32, depth=2),
    "bert": lambda: _transformers("bert"),
    "gpt2": lambda: _transformers("gpt2"),
}


def build(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model in training mode and the arguments of its forward."""
    torch.manual_seed(0)
    model, inputs = ZOO[name]()
    return model.train(), inputs


def loss_of(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    output = model(**inputs)
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return logits.float().square().mean()
