"""How much memory a model takes at the least, said before the work: a pure function of its settings and the batch.

Each estimate counts arrays that must exist at the same time: a lower bound, so that nothing is refused that would fit.
What XLA plans in float32 is up to `FACTOR` times as much (`compiled.memory_analysis()`; a test compares them), and once
a train step is compiled that figure itself is held to the memory there is.
"""

from dataclasses import replace

from tinygpt_jax.config import LOGITS_AT_ONCE, MAX_DISPATCH, GPTConfig, TrainConfig
from tinygpt_jax.measure import check_memory, total_memory
from tinygpt_jax.params import count_params

FACTOR = 4
"""An estimate is at least this part of what XLA plans."""
WIDTH = {"float32": 4, "bfloat16": 2}
"""Bytes of a number."""
MOMENTS = {"adam": 2, "adamw": 2}
"""Numbers that an optimizer keeps for each parameter; 1 for the others."""
SMALLER_BATCH = "lower batch_size, and raise accumulate for as many tokens in a step"


def param_bytes(cfg: GPTConfig) -> int:
    """Parameters, float32."""
    return 4 * count_params(cfg)


def forward_bytes(cfg: GPTConfig, batch: int, length: int) -> int:
    """One forward pass over (batch, length) tokens: the parameters and the widest of its arrays."""
    widest = max(cfg.n_embd, cfg.mlp_width, cfg.n_head * length)  # the MLP's hidden layer or the attention pattern
    return param_bytes(cfg) + batch * length * max(WIDTH[cfg.compute_dtype] * widest, 4 * cfg.vocab_size)


def decode_bytes(cfg: GPTConfig, rows: int, cached: bool = True) -> int:
    """Writing `rows` texts at once: the parameters, for each row its window and its cache of keys and values, and the
    table of sinusoids where there is one."""
    kept = 2 * sum(cfg.heads_per_layer) * cfg.head_width * WIDTH[cfg.compute_dtype] if cached else 0
    table = 4 * cfg.block_size * cfg.n_embd if cfg.positions == "sinusoidal" else 0
    return param_bytes(cfg) + table + rows * cfg.block_size * (4 + kept)


def train_bytes(cfg: TrainConfig) -> int:
    """A train step: parameters, optimizer state and gradient; what the backward pass needs of a micro-batch; its
    logits; and where the windows of a dispatch begin."""
    model, tokens = cfg.model, cfg.batch_size * cfg.model.block_size
    kernel = model.attention == "fused" or (model.attention == "auto" and model.compute_dtype == "bfloat16")
    pattern = 0 if kernel and not model.dropout else model.n_head * model.block_size
    block = 8 * model.n_embd + 2 * model.mlp_width + pattern
    kept = block + model.n_layer * model.n_embd if model.remat else model.n_layer * block
    chunk = min(tokens, model.loss_chunk or max(1, LOGITS_AT_ONCE // model.padded_vocab_size))
    starts = 8 * MAX_DISPATCH * cfg.accumulate * cfg.batch_size
    state = param_bytes(model) * (2 + MOMENTS.get(cfg.optimizer, 1))
    return state + tokens * kept * WIDTH[model.compute_dtype] + 4 * chunk * model.padded_vocab_size + starts


def check_training(cfg: TrainConfig, models: int = 1) -> None:
    """Raises UserError where training so many models at once takes more memory than there is."""
    there = total_memory()
    if models * train_bytes(replace(cfg, batch_size=1, accumulate=1)) > there:
        remedy = "lower n_layer, n_embd, block_size or vocab_size" + ", or train fewer models at once" * (models > 1)
    elif models * train_bytes(replace(cfg, accumulate=1)) > there:
        remedy = SMALLER_BATCH
    else:
        remedy = "lower accumulate"
    model = cfg.model
    said = (
        f"training {count_params(model):,} parameters with batch_size {cfg.batch_size}, accumulate {cfg.accumulate} "
        f"and block_size {model.block_size}"
    )
    check_memory(models * train_bytes(cfg), said, remedy, there)
