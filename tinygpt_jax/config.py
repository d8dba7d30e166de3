"""What a run is made of: frozen settings, and every check of a value with its message."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tinygpt_jax.errors import UserError

Positions = Literal["learned", "sinusoidal", "rope", "none"]
Norm = Literal["layernorm", "rmsnorm", "none"]
Activation = Literal["gelu", "relu"]
Dtype = Literal["float32", "bfloat16"]
Attention = Literal["auto", "einsum", "fused"]
Optimizer = Literal["adamw", "adam", "sgd", "lion", "muon"]
Schedule = Literal["cosine", "linear", "constant"]


WARMUP_STEPS = 20
"""Of a training that does not say, and is long enough."""
MAX_DISPATCH = 100
"""The most steps one call of the compiled program can run: part of its shape, so no setting changes its numbers."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean X?"` for the known name closest to `name`, or the list of them where none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def _require(ok: bool, name: str, value: object, remedy: str) -> None:
    if not ok:
        raise UserError(f"{name} is {value!r}: {remedy}")


def _choice(name: str, value: object, annotation: Any) -> None:
    choices = annotation.__args__
    _require(value in choices, name, value, f"must be one of {', '.join(choices)}")


def _whole(config: Any, minimum: int, *names: str, below: int = 2**31) -> None:
    for name in names:
        value = getattr(config, name)
        ok = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
        _require(ok, name, value, f"must be a whole number, {minimum} or more")
        _require(value < below, name, value, f"must be below {below}")


def _number(config: Any, low: float, high: float, *names: str, open_high: bool = False) -> None:
    top = f"below {high:g}" if open_high else f"at most {high:g}"
    bounds = f"must be a number, {low:g} or more" + ("" if math.isinf(high) else f" and {top}")
    for name in names:
        value = getattr(config, name)
        ok = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= sys.float_info.max
        _require(ok and (value < high if open_high else value <= high), name, value, bounds)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Names or patterns as a tuple; one string is a sequence of strings as well, but nobody means its characters."""
    value = (value,) if isinstance(value, str | os.PathLike) else value
    if not isinstance(value, (tuple, list)) or not all(isinstance(one, str | os.PathLike) for one in value):
        what = "names of corpora, files or directories" if name == "data" else "patterns for the names of files"
        raise UserError(f"{name} is {value!r}: must be {what}")
    if name != "data" and "" in value:
        raise UserError(f"{name} is {value!r}: an empty pattern fits no name; leave it out, or take '*' for every file")
    return tuple(os.fspath(one) for one in value)


def heads_left(heads: Any, n_layer: int, n_head: int) -> tuple[tuple[int, ...], ...]:
    """`GPTConfig.heads` with lists as tuples; a count, as older pruned runs have, stands for that many first heads."""
    layers: list[Any] = list(heads) if isinstance(heads, tuple | list) else [None]
    layers = [tuple(range(layer)) if type(layer) is int and 0 <= layer <= n_head else layer for layer in layers]
    known = all(isinstance(layer, tuple | list) and all(type(h) is int for h in layer) for layer in layers)
    _require(
        known and len(layers) in (0, n_layer) and all(list(x) == sorted({*range(n_head)} & {*x}) for x in layers),
        "heads", heads,
        f"must be the numbers of the heads left, from 0 to {n_head - 1}, for each of n_layer={n_layer} layers, or none",
    )  # fmt: skip
    return tuple(map(tuple, layers))


@dataclass(frozen=True)  # and so hashable: a static argument of jax.jit
class GPTConfig:
    """The architecture of a model."""

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
    """Numbers of the heads that pruning left in each layer, whose width stays n_embd / n_head; empty: all of them."""
    mlp_ratio: float = 4.0
    """F / C, the hidden width of the MLP over the model width; 0 gives an attention-only model."""
    positions: Positions = "learned"
    """How a token knows where it stands."""
    norm: Norm = "layernorm"
    """The normalisation before attention, before the MLP and before the output head."""
    norm_eps: float = 1e-5
    """Added to the variance inside a norm."""
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
    """Dropped share of the embedding, the attention pattern and each residual write, in training only."""
    vocab_multiple: int = 1
    """Embedding rows are padded up to a multiple of this; a padding row is never predicted."""
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

    def __post_init__(self) -> None:
        _whole(self, 1, "vocab_size", "block_size", "n_layer", "n_head", "n_embd", "vocab_multiple", "unroll_layers")
        _number(self, 0, 1000, "mlp_ratio")
        _number(self, 0, math.inf, "norm_eps")
        _number(self, 0, 1, "dropout", open_high=True)
        for name, kind in (("positions", Positions), ("norm", Norm), ("activation", Activation)):
            _choice(name, getattr(self, name), kind)
        _choice("compute_dtype", self.compute_dtype, Dtype)
        _choice("attention", self.attention, Attention)
        _whole(self, 0, "loss_chunk")
        if self.n_embd % self.n_head:
            divisors = [h for h in range(1, self.n_embd + 1) if self.n_embd % h == 0]
            near = min(divisors, key=lambda h: abs(h - self.n_head))
            raise UserError(
                f"n_head is {self.n_head}, n_embd is {self.n_embd}: n_head must divide n_embd; "
                f"try n_head={near} or n_embd={-(-self.n_embd // self.n_head) * self.n_head}"
            )
        object.__setattr__(self, "heads", heads_left(self.heads, self.n_layer, self.n_head))
        if self.positions == "rope" and self.head_width % 2:
            raise UserError(
                f"n_embd / n_head is {self.head_width}: rope turns pairs, so the head width must be even; "
                "change n_embd or n_head, or set positions to learned"
            )

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


def flops_per_token(cfg: GPTConfig) -> int:
    """Floating-point operations for one trained token: 6 N + 12 L T C, with the heads' width for C in a pruned layer.

    N counts the weights that take part in matrix products: `Wq Wk Wv Wo W1 W2` of each layer, and the output head with
    its padding rows. Each is multiplied and added once per token forward and twice backward (Kaplan et al. 2020,
    section 2.1). Of T keys each query forms T scores and a mean of T values, 2 · 2 T C operations per layer forward and
    twice that backward; the causal half that is masked is computed as well, and so counted. Lookups, norms,
    activations, softmax, loss and optimizer are left out: a few per cent at common sizes.
    """
    width = sum(cfg.heads_per_layer) * cfg.head_width  # L C where nothing is pruned
    N = 4 * cfg.n_embd * width + 2 * cfg.n_layer * cfg.n_embd * cfg.mlp_width + cfg.padded_vocab_size * cfg.n_embd
    return 6 * N + 12 * cfg.block_size * width


EXECUTION_FIELDS = frozenset({"compute_dtype", "unroll_layers", "remat", "attention", "loss_chunk"})
"""Fields of GPTConfig that say how the model is computed, not what it is: they may change on resume."""


def architecture(cfg: GPTConfig) -> dict[str, Any]:
    """The fields of `cfg` that fix the parameter tree and the function computed."""
    return {k: v for k, v in dataclasses.asdict(cfg).items() if k not in EXECUTION_FIELDS}


@dataclass(frozen=True)
class Sources:
    """Text to read: where it lies, and patterns for the names of the files that are meant (see `load_text`)."""

    data: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("data", "include", "exclude"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))

    def __bool__(self) -> bool:
        return bool(self.data)

    @classmethod
    def of(cls, data: Sources | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Sources:
        """The sources themselves, or those of one name or several, without patterns."""
        return data if isinstance(data, Sources) else cls(_texts("data", data))


@dataclass(frozen=True)
class TrainConfig:
    """One training run, from text to weights. Once it runs, the model's `vocab_size` is the tokenizer's."""

    model: GPTConfig = field(default_factory=lambda: GPTConfig(positions="rope"))

    data: tuple[str, ...] = ("pydoc",)
    """Text: `pydoc` (built in), `shakespeare` (fetched once), UTF-8 files, directories, or `-` for standard input."""
    include: tuple[str, ...] = ()
    """Of directories and files, read only those that one of these fits: names or paths with `*`, as in '*.md' docs."""
    exclude: tuple[str, ...] = ()
    """Of directories and files, leave out what one of these fits."""
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
    """Micro-batches whose gradients are added up for one step."""
    steps_per_dispatch: int = 50
    """The most steps run by one call of the compiled program, up to 100; it changes no result."""

    optimizer: Optimizer = "muon"
    """The update rule, from optax; muon takes the blocks' matrices and leaves the rest to Adam."""
    learning_rate: float = 1e-2
    """The peak rate, reached after the warm-up. The default suits muon; adamw wants about 3e-3, lion 3e-4."""
    min_learning_rate: float = 0.0
    """The rate that the last step comes to."""
    warmup_steps: int | None = None
    """Steps over which the rate rises in a line from 0; left out, 20, or half of the steps where that is fewer."""
    schedule: Schedule = "linear"
    """How the rate falls from the warm-up's end to the last step."""
    weight_decay: float = 0.1
    """Decoupled decay of weight matrices and embeddings (adamw, lion) or of the blocks' matrices alone (muon)."""
    beta1: float = 0.9
    """Decay of the gradient's mean; the momentum of sgd and muon."""
    beta2: float = 0.99
    """Decay of the squared gradient's mean."""
    grad_clip: float = 1.0
    """Largest global norm of the gradient; 0 turns clipping off."""
    max_skipped: int = 5
    """Training stops after this many steps in a row with a non-finite loss or gradient."""

    eval_every: int = 200
    """Steps between validations over the whole validation text; the last step is always validated."""
    stop_early: int = 0
    """End after so many validations in a row without a new best, whose weights are kept; 0: at the last step."""
    checkpoint_every: int = 300
    """Steps between saves of the training state; the last step is always saved."""
    keep_checkpoints: int = 3
    """How many of the newest training states are kept; 0 keeps all."""
    sample_every: int = 300
    """Steps between text samples; 0 for none."""
    tensorboard: bool = False
    """Also write TensorBoard event files into the run directory; off, metrics.jsonl alone."""

    def __post_init__(self) -> None:
        for name in ("data", "include", "exclude"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        object.__setattr__(self, "out", os.fspath(self.out))
        _whole(self, 1, "steps", "batch_size", "accumulate", "steps_per_dispatch", "max_skipped")
        _whole(self, 1, "eval_every", "checkpoint_every")
        _whole(self, 0, "sample_every", "keep_checkpoints", "stop_early")
        _whole(self, 0, *["warmup_steps"] * (self.warmup_steps is not None))
        _whole(self, 0, "seed", below=2**32)  # jax.random keeps no more
        _require(
            self.steps_per_dispatch <= MAX_DISPATCH, "steps_per_dispatch", self.steps_per_dispatch,
            f"must be at most {MAX_DISPATCH}",
        )  # fmt: skip
        _number(self, 0, math.inf, "learning_rate", "min_learning_rate", "weight_decay", "grad_clip")
        _number(self, 0, 1, "beta1", "beta2", open_high=True)
        _number(self, 0, 1, "val_fraction", open_high=True)
        _require(self.val_fraction > 0, "val_fraction", self.val_fraction, "must be above 0, so that there is a check")
        _choice("optimizer", self.optimizer, Optimizer)
        _choice("schedule", self.schedule, Schedule)
        _require(bool(self.data), "data", self.data, "name a corpus, a file or a directory")
        if self.steps < self.warmup:
            raise UserError(
                f"steps is {self.steps}, warmup_steps is {self.warmup_steps}: "
                "a run cannot end inside its warm-up; raise steps or lower warmup_steps"
            )
        if self.min_learning_rate > self.learning_rate:
            raise UserError(
                f"min_learning_rate is {self.min_learning_rate:g}, learning_rate is {self.learning_rate:g}: "
                "the rate falls from learning_rate to min_learning_rate; lower the one or raise the other"
            )

    @property
    def sources(self) -> Sources:
        """The text to read."""
        return Sources(self.data, self.include, self.exclude)

    @property
    def warmup(self) -> int:
        """Steps of the warm-up: as asked for, else as many as usual, if there is room for them to fall again."""
        return min(WARMUP_STEPS, self.steps // 2) if self.warmup_steps is None else self.warmup_steps


@dataclass(frozen=True)
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
    stop: tuple[str, ...] = ()
    """Strings that end a text; they are not part of it."""
    seed: int = 0
    """Fixes every random choice."""
    n: int = 1
    """Samples per prompt; the first ones do not depend on how many follow."""
    cache: bool = True
    """Keep keys and values of earlier tokens; off, every step runs the whole window: the same text, slowly."""

    def __post_init__(self) -> None:
        # One string is a sequence of strings as well, but nobody means its characters.
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        given = [name for name in ("top_k", "top_p", "min_p") if getattr(self, name) is not None]
        _whole(self, 1, "max_tokens", "n", *({"top_k"} & set(given)))
        _whole(self, 0, "seed", below=2**63)
        _number(self, 0, 1e6, "temperature", "repetition_penalty")
        _number(self, 0, 1, *({"top_p"} & set(given)))
        _number(self, 0, 1, *({"min_p"} & set(given)), open_high=True)
        _require(self.top_p != 0, "top_p", self.top_p, "must be above 0; for the likeliest token set temperature to 0")
        penalty = self.repetition_penalty
        _require(penalty > 0, "repetition_penalty", penalty, "must be above 0; 1 turns it off")
        for text in self.stop:
            _require(isinstance(text, str) and text != "", "stop", text, "must be text of one character or more")
