"""The models that race, and how many operations a training step of one of them is. No imports beyond the standard
library: workers of both kinds read this."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


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

    @property
    def matrix_parameters(self) -> int:
        """Entries of the matrices that multiply every token: 12 L C² in the blocks, V C in the tied head."""
        return 12 * self.n_layer * self.n_embd**2 + self.vocab_size * self.n_embd

    @property
    def parameters(self) -> int:
        """Matrices, learned positions, norms and the MLP's biases: our default model."""
        vectors = self.n_layer * 9 * self.n_embd + 2 * self.n_embd
        return self.matrix_parameters + self.block_size * self.n_embd + vectors

    def with_(self, **changes: Any) -> Shape:
        return replace(self, **changes)


NANO = Shape(n_layer=4, n_embd=128, n_head=4, block_size=64, batch_size=12)
"""nanoGPT's recipe for a CPU."""
SIX = Shape(n_layer=6, n_embd=384, n_head=6, block_size=256, batch_size=16)
"""nanoGPT's recipe for a GPU, with a quarter of its batch."""
GPT2 = Shape(n_layer=12, n_embd=768, n_head=12, block_size=1024, batch_size=32, vocab_size=50257)
TOY = Shape(n_layer=2, n_embd=16, n_head=2, block_size=16, batch_size=2)


def train_operations(shape: Shape) -> int:
    """Floating-point operations of one training step (a multiplication and an addition are two).

    6 N per token for the matrices (2 forward, 4 backward; N of `matrix_parameters`), and 12 L C T per token for the
    two products of attention (4 T C a layer forward, twice that backward). The whole T × T square is counted, causal
    or not, as is the custom; norms, softmax, the activation and the optimizer are not.
    """
    attention = 12 * shape.n_layer * shape.n_embd * shape.block_size
    return shape.tokens * (6 * shape.matrix_parameters + attention)
