"""A tiny GPT in pure, functional JAX: train it, sample it, open it.

import tinygpt_jax as tg
cfg = tg.GPTConfig(vocab_size=65)
params = tg.init_params(jax.random.key(0), cfg)
logits = tg.gpt_forward(params, ids, cfg)
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Loaded when first asked for, so that `tinygpt --help` does not wait for JAX.
_HOME = {
    "GPTConfig": "config",
    "TrainConfig": "config",
    "UserError": "errors",
    "init_params": "params",
    "count_params": "params",
    "pick": "params",
    "gpt_forward": "model",
    "forward": "model",
    "hidden_states": "model",
    "Edit": "hooks",
    "Model": "runs",
    "load": "runs",
    "generate": "sampling",
    "sample": "sampling",
    "stream": "sampling",
    "SampleConfig": "config",
    "train": "training.loop",
    "train_many": "training.many",
    "evaluate": "training.evaluate",
    "bench": "benchmark",
    "Examples": "text",
    "ablate": "heads.ablate",
    "ablate_heads": "heads.ablate",
    "ablate_pairs": "heads.ablate",
    "switched_off": "heads.components",
    "head_importance": "heads.importance",
    "shapley": "heads.shapley",
    "shapley_by_layer": "heads.shapley",
    "patch": "heads.patching",
    "attribution_patch": "heads.attribution",
    "path_patch": "heads.paths",
    "learn_gates": "heads.gates",
    "prune": "heads.prune",
    "save_pruned": "heads.prune",
    "pruning_curve": "heads.curve",
    "head_scores": "heads.scores",
    "logit_lens": "heads.lens",
    "logit_attribution": "heads.lens",
    "attention_maps": "heads.lens",
    "over_training": "heads.overtime",
    "run_windows": "heads.windows",
    "read_result": "results",
    "position_tables": "pieces.block",
    "norm_rows": "pieces.block",
    "head_split": "pieces.block",
    "activation_curves": "pieces.block",
    "mlp_widths": "pieces.block",
    "residual_writes": "pieces.block",
    "next_tokens": "pieces.tokens",
    "embedding_map": "pieces.tokens",
    "training_curves": "pieces.training",
    "draw": "views.draw",
    "report_page": "views.report",
    "load_text": "text",
    "char_tokenizer": "text",
    "bpe_tokenizer": "text",
    "load_tokenizer": "text",
    "prepare": "text",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
