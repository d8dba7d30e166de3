"""A GPT in PyTorch in the manner of nanoGPT, with exactly our parameters: the peer, in lines of its own.

Learned positions, pre-norm LayerNorm with bias, one matrix for q, k and v, fused attention, GELU in its tanh form, a
tied head; biases in the MLP and none in attention, as our default model has them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.speed.shapes import Shape


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)), on (B, T, C)."""

    def __init__(self, C: int, H: int) -> None:
        super().__init__()
        self.H = H
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.out = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.H, C // self.H).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(C, 2))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(z.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """ids and targets (B, T) -> (logits (B, T, V), mean loss in nats): the call of nanoGPT's class."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(shape.vocab_size, shape.n_embd), nn.Embedding(shape.block_size, shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape.n_embd, shape.n_head) for _ in range(shape.n_layer))
        self.norm = nn.LayerNorm(shape.n_embd)
        for weight in (p for p in self.parameters() if p.dim() == 2):
            nn.init.normal_(weight, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tok.weight)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
