"""The models that race, and how many operations a training step of one of them is. Nothing imported here
needs JAX: workers of both kinds read this."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.params import flops_per_token


@dataclass(frozen=True)
class Shape:
    """A GPT and the batch it is trained on."""

    n_layer: int
    n_embd: int
    n_head: int
    block_size: int
    batch_size: int
    vocab_size: int = 65

    @property
    def model(self) -> dict[str, int]:
        """Without the batch: the names are those of our GPTConfig and of nanoGPT's."""
        return {name: value for name, value in asdict(self).items() if name != "batch_size"}

    @property
    def tokens(self) -> int:
        """B · T, tokens in a step."""
        return self.batch_size * self.block_size

    def with_(self, **changes: Any) -> Shape:
        return replace(self, **changes)


NANO = Shape(n_layer=4, n_embd=128, n_head=4, block_size=64, batch_size=12)
"""nanoGPT's recipe for a CPU."""
SIX = Shape(n_layer=6, n_embd=384, n_head=6, block_size=256, batch_size=16)
"""nanoGPT's recipe for a GPU, with a quarter of its batch."""
GPT2 = Shape(n_layer=12, n_embd=768, n_head=12, block_size=1024, batch_size=32, vocab_size=50257)
WINDOWS = NANO.with_(batch_size=64)
"""The default model's shape and 64 windows, to switch its heads off on."""
GPT2_WINDOWS = GPT2.with_(block_size=128, batch_size=2)
TOY = Shape(n_layer=2, n_embd=16, n_head=2, block_size=16, batch_size=2)


def train_operations(shape: Shape) -> int:
    """Floating-point operations of one training step, those of the whole T × T square of attention included."""
    return shape.tokens * flops_per_token(GPTConfig(**shape.model))
