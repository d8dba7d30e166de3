"""What a run is made of: frozen settings, plain data. `checks.check` says whether they make sense."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

Positions = Literal["learned", "sinusoidal", "rope", "none"]
Norm = Literal["layernorm", "rmsnorm", "none"]
Activation = Literal["gelu", "relu"]
Dtype = Literal["float32", "bfloat16"]
Attention = Literal["auto", "einsum", "fused"]
Optimizer = Literal["adamw", "adam", "sgd", "lion", "muon"]
Schedule = Literal["cosine", "linear", "constant"]

WARMUP_STEPS = 20
"""The default warm-up of a run that is long enough."""
MAX_DISPATCH = 100
"""The most steps one call of the compiled program can run: part of its shape, so no setting changes its numbers."""
LOGITS_AT_ONCE = 2**26
"""Logits that exist at once where many are needed: 256 MiB of float32."""


@dataclass(frozen=True)
class Architecture:
    """What a model is: the fields that fix its parameters and the function it computes."""

    vocab_size: int = 1024
    """V: token ids are 0 .. V-1. In training, how many tokens `--tokenizer bpe` aims for; others bring their own."""
    block_size: int = 64
    """The context length: the most positions a model sees at once."""
    n_layer: int = 4
    """L, the number of blocks."""
    n_head: int = 4
    """H, attention heads per block; must divide n_embd."""
    n_embd: int = 128
    """C, the width of the residual stream."""
    heads: tuple[tuple[int, ...], ...] = ()
    """The heads that pruning left in each layer, by number; empty for all. Their width stays n_embd / n_head."""
    mlp_ratio: float = 4.0
    """F / C, the hidden width of the MLP over the model width; 0 gives an attention-only model."""
    positions: Positions = "learned"
    """How positions are encoded."""
    norm: Norm = "layernorm"
    """The normalisation before attention, before the MLP and before the output head."""
    norm_eps: float = 1e-5
    """Added to the variance inside a norm; 1e-12 or more."""
    residual: bool = True
    """Each sub-layer adds to its input; off, it replaces it."""
    activation: Activation = "gelu"
    """The MLP's nonlinearity; gelu is the tanh form."""
    attn_bias: bool = False
    """Biases bq bk bv bo on the attention projections, as GPT-2 has them; off, none."""
    smeared_keys: bool = False
    """Each head mixes a key with the one before it, in a learned proportion, so that one layer can do induction; off,
    keys stay as they are."""
    tied: bool = True
    """The output head is the token embedding; off, it is a matrix of its own."""
    dropout: float = 0.0
    """Dropout rate of the embedding, the attention pattern and each residual write, in training only."""
    vocab_multiple: int = 1
    """Embedding rows are padded up to a multiple of this; a padding row is never predicted."""

    @property
    def head_width(self) -> int:
        """K = C / H."""
        return self.n_embd // self.n_head

    @property
    def heads_per_layer(self) -> tuple[int, ...]:
        """L numbers: n_head, or how many pruning left of it."""
        return tuple(map(len, self.heads)) or (self.n_head,) * self.n_layer

    @property
    def head_counts(self) -> str:
        """`heads_per_layer` for a person: one number where nothing is pruned."""
        return ", ".join(map(str, self.heads_per_layer if self.heads else (self.n_head,)))

    @property
    def mlp_width(self) -> int:
        """F; 0 where the model has no MLP."""
        return round(self.mlp_ratio * self.n_embd)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token embedding: V rounded up to `vocab_multiple`."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple


@dataclass(frozen=True)
class Execution:
    """How a model is computed; these may change when a run is resumed."""

    compute_dtype: Dtype = "float32"
    """Dtype of activations and products; parameters, norms' statistics, softmax and loss stay float32."""
    unroll_layers: int = 12
    """How many blocks the layer scan unrolls: models no deeper than this run without a loop, which is faster.
    Decoding never loops over layers."""
    remat: bool = False
    """Compute each block anew in the backward pass, in a loop over layers, instead of keeping its activations: less
    memory, about a third more work; off, keep them."""
    attention: Attention = "auto"
    """In training without dropout and in validation: `einsum` is the readable one, `fused` JAX's own kernel (cuDNN's
    on a GPU in bfloat16), `auto` is fused where that is cuDNN's. Everywhere else it is the readable one."""
    loss_chunk: int = 0
    """Tokens whose logits exist at once in training; 0: as many as fit into 256 MiB."""


@dataclass(frozen=True)  # and so hashable: a static argument of jax.jit
class GPTConfig(Execution, Architecture):
    """A model: its architecture, and how it is computed."""


def architecture(cfg: GPTConfig) -> dict[str, Any]:
    """The fields of `cfg` that fix the parameter tree and the function computed."""
    return {f.name: getattr(cfg, f.name) for f in fields(Architecture)}


@dataclass(frozen=True)
class Sources:
    """Text to read: where it lies, and patterns for the names of the files that are meant (see `load_text`)."""

    data: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.data)

    @classmethod
    def of(cls, data: Self | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Self:
        """The sources themselves, or those of one name or several, without patterns; yet to be checked."""
        return data if isinstance(data, Sources) else cls(data)  # type: ignore[arg-type]


@dataclass(frozen=True)
class TrainConfig:
    """One run, from text to weights. Once it runs, the model's `vocab_size` is the tokenizer's."""

    model: GPTConfig = field(default_factory=lambda: GPTConfig(positions="rope"))

    data: tuple[str, ...] = ("pydoc",)
    """Text: `pydoc` (built in), `shakespeare` (fetched once), UTF-8 files, directories, or `-` for standard input."""
    include: tuple[str, ...] = ()
    """Of directories and files, read only those that match one of these patterns, as in '*.md' docs."""
    exclude: tuple[str, ...] = ()
    """Of directories and files, skip those that match one of these patterns."""
    tokenizer: str = "char"
    """`char`, `bpe` (byte-level, trained on the text), or the path of a tokenizer.json."""
    val_fraction: float = 0.1
    """The last share of the text, by characters, is kept for validation."""

    out: str = ""
    """The run directory; left empty, the first free one of runs/NAME, runs/NAME-2, …"""
    seed: int = 1337
    """Fixes the initial weights, the data order and the dropout masks."""

    steps: int = 600
    """Optimizer steps in all."""
    batch_size: int = 12
    """B, windows per micro-batch."""
    accumulate: int = 1
    """Micro-batches per step, whose gradients are accumulated."""
    steps_per_dispatch: int = 50
    """The most steps run by one call of the compiled program, up to 100; it changes no result."""

    optimizer: Optimizer = "muon"
    """The update rule, from optax; muon takes the blocks' matrices and leaves the rest to Adam."""
    learning_rate: float = 1e-2
    """The peak learning rate, reached after the warm-up. The default suits muon; adamw wants about 3e-3, lion 3e-4."""
    min_learning_rate: float = 0.0
    """The learning rate at the last step."""
    warmup_steps: int | None = None
    """Steps over which the learning rate rises linearly from 0; left out, 20, or half of the steps if that is fewer."""
    schedule: Schedule = "linear"
    """How the learning rate falls from the end of the warm-up to the last step."""
    weight_decay: float = 0.1
    """Decoupled decay of weight matrices and embeddings (adamw, lion) or of the blocks' matrices alone (muon)."""
    beta1: float = 0.9
    """Decay rate of the running mean of the gradient; the momentum of sgd and muon."""
    beta2: float = 0.99
    """Decay rate of the running mean of the squared gradient."""
    grad_clip: float = 1.0
    """Largest global norm of the gradient; 0 turns clipping off."""
    max_skipped: int = 5
    """Training stops after this many steps in a row with a non-finite loss or gradient."""

    eval_every: int = 200
    """Steps between validations over the whole validation text; the last step is always validated."""
    stop_early: int = 0
    """Stop early after this many validations in a row without a new best; 0 for no early stopping."""
    checkpoint_every: int = 300
    """Steps between saves of the training state; the last step is always saved."""
    keep_checkpoints: int = 3
    """How many of the newest training states are kept; 0 keeps all."""
    sample_every: int = 300
    """Steps between text samples; 0 for none."""
    tensorboard: bool = False
    """Also write TensorBoard event files into the run directory; off, metrics.jsonl alone."""

    @property
    def sources(self) -> Sources:
        """The text to read."""
        return Sources(self.data, self.include, self.exclude)

    @property
    def tokens_per_step(self) -> int:
        """A · B · T"""
        return self.accumulate * self.batch_size * self.model.block_size

    @property
    def warmup(self) -> int:
        """Steps of the warm-up: `warmup_steps`, or its default."""
        return min(WARMUP_STEPS, self.steps // 2) if self.warmup_steps is None else self.warmup_steps


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """How text is generated; `filter_logits` says in which order the filters act."""

    max_tokens: int = 200
    """The most new tokens written for one sample."""
    temperature: float = 0.8
    """Logits are divided by it: below 1 is safer, above 1 wilder; 0 always takes the likeliest token."""
    top_k: int | None = None
    """Only the k likeliest tokens stay, and all that tie with the last of them."""
    top_p: float | None = None
    """Only the likeliest tokens that together reach this probability stay, and all that tie with the last of them."""
    min_p: float | None = None
    """Only tokens at least this share as likely as the likeliest stay."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that were already written or stood in the prompt become less likely (Keskar et al. 2019)."""
    stop: Sequence[str] = ()
    """Strings that end a text; they are not part of it."""
    seed: int = 0
    """Fixes every random choice."""
    n: int = 1
    """Samples per prompt; the first ones do not depend on how many follow."""
    cache: bool = True
    """Keep keys and values of earlier tokens; off, every step runs the whole window: the same text, slowly."""
