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
    "whole": "params",
    "gpt_forward": "model",
    "forward": "forward_pass",
    "hidden_states": "forward_pass",
    "Edit": "edits",
    "Model": "runs",
    "load": "runs",
    "generate": "sampling",
    "sample": "sampling",
    "stream": "sampling",
    "SampleConfig": "config",
    "train": "training.loop",
    "train_many": "training.many",
    "evaluate": "training.evaluate",
    "evaluate_tokens": "training.evaluate",
    "heads": "study.heads",
    "ablate": "study.ablate",
    "plot": "study.plot",
    "report": "study.report",
    "bench": "benchmark",
    "doctor": "diagnosis",
    "Examples": "text",
    "ablate_sets": "lab.remove.ablate",
    "ablate_heads": "lab.remove.ablate",
    "ablate_pairs": "lab.remove.ablate",
    "switched_off": "lab.components",
    "head_importance": "lab.remove.importance",
    "shapley": "lab.remove.shapley",
    "shapley_by_layer": "lab.remove.shapley",
    "patch_run": "study.patch",
    "patch": "lab.patch.patching",
    "attribution_patch": "lab.patch.attribution",
    "path_patch": "lab.patch.paths",
    "learn_gates": "lab.remove.gates",
    "prune": "lab.remove.prune",
    "save_pruned": "lab.remove.prune",
    "pruning_curve": "lab.remove.curve",
    "head_scores": "lab.read.scores",
    "logit_lens": "lab.read.lens",
    "logit_attribution": "lab.read.lens",
    "attention_maps": "lab.read.lens",
    "over_training": "lab.read.training",
    "run_windows": "lab.windows",
    "read_result": "lab.kinds",
    "position_tables": "lab.read.block",
    "norm_rows": "lab.read.block",
    "head_split": "lab.read.block",
    "activation_curves": "lab.read.mlp",
    "mlp_widths": "lab.read.mlp",
    "residual_writes": "lab.read.block",
    "next_tokens": "lab.read.tokens",
    "embedding_map": "lab.read.tokens",
    "training_curves": "lab.read.training",
    "draw": "figures.registry",
    "report_page": "reporting.report",
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
