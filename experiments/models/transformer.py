"""Small transformers with every projection a Linear layer: a character model and a sentence classifier."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layer(nn.Module):
    """Attention and a two-layer perceptron, each beside a shortcut and behind a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        """`visible` says which positions may be looked at; None means those before."""
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class CharTransformer(nn.Module):
    """Logits of the next token at each position: (batch, length) of token numbers in, (batch, length, tokens) out."""

    def __init__(self, tokens: int, width: int = 128, depth: int = 4, heads: int = 4, context: int = 128) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at each position."""
        x = self._embedded(tokens)
        for layer in self.layers:
            x = layer(x, None)
        return self._logits(x)

    def _embedded(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return result

    def _logits(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.norm(x))
        return result


class SentenceClassifier(nn.Module):
    """BERT's encoder at a small size, trained from scratch: token numbers in, 0 is padding; logits of classes out."""

    def __init__(
        self, tokens: int, classes: int = 2, width: int = 256, depth: int = 4, heads: int = 4, context: int = 64
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width, padding_idx=0), nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the classes, from the mean over all positions that are not padding."""
        present = tokens != 0
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        visible = present[:, None, None, :]
        for layer in self.layers:
            x = layer(x, visible)
        weights = present.to(x.dtype)[:, :, None]
        mean = (self.norm(x) * weights).sum(1) / torch.clamp(weights.sum(1), min=1)
        result: Tensor = self.head(mean)
        return result
