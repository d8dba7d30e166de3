"""The peers: PyTorch, eager or compiled, and Hugging Face's `generate`; turns as in worker_jax.

`python -m experiments.speed.worker_torch '{"role": "train", …}'`, under a Python that has torch; JAX is not needed.
"""

from __future__ import annotations

import math
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from experiments.speed.protocol import Answer, Turn, memory, serve
from experiments.speed.shapes import Shape

TOKENS = 2**20
LEARNING_RATE, WARMUP, STEPS = 1e-3, 50, 1000


def make_model(shape: Shape, checkout: str | None) -> torch.nn.Module:
    """Our lines, or the GPT class of a nanoGPT checkout, without biases as its configs have it."""
    if checkout is None:
        from experiments.speed.torch_gpt import GPT

        return GPT(shape)
    sys.path.insert(0, str(Path(checkout)))
    from model import GPT as TheirGPT  # type: ignore[import-not-found]
    from model import GPTConfig

    return TheirGPT(GPTConfig(**shape.model, dropout=0.0, bias=False))


def make_optimizer(model: torch.nn.Module, fused: bool) -> torch.optim.Optimizer:
    """AdamW that decays matrices and embeddings alone."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.99), fused=fused or None)


def rate(step: int) -> float:
    """The learning rate of a step: a line up from 0, then half a cosine down to a tenth."""
    if step < WARMUP:
        return LEARNING_RATE * step / WARMUP
    done = min(1.0, (step - WARMUP) / (STEPS - WARMUP))
    return LEARNING_RATE * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def train(settings: dict[str, Any]) -> Turn:
    """Training: a turn is `steps` steps. Settings: shape, dtype, compile, fused, device, checkout."""
    torch.manual_seed(0)
    shape, device = Shape(**settings["shape"]), settings.get("device", "cpu")
    torch.set_float32_matmul_precision("high")  # no effect on a CPU's float32
    model = make_model(shape, settings.get("checkout")).to(device)
    # The fused update is what nanoGPT takes on a GPU alone.
    optimizer = make_optimizer(model, settings.get("fused", device == "cuda"))
    forward = torch.compile(model) if settings.get("compile") else model
    bf16 = settings.get("dtype") == "bfloat16"
    data = torch.randint(shape.vocab_size, (TOKENS,), dtype=torch.int32, device=device)
    offsets, taken = torch.arange(shape.block_size + 1, device=device), 0

    def step() -> torch.Tensor:
        for group in optimizer.param_groups:
            group["lr"] = rate(taken)
        starts = torch.randint(TOKENS - shape.block_size, (shape.batch_size, 1), device=device)
        window = data[starts + offsets].long()
        with torch.autocast(device, torch.bfloat16) if bf16 else nullcontext():
            _, loss = forward(window[:, :-1].contiguous(), window[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def turn(steps: int = settings["steps"]) -> Answer:
        nonlocal taken
        began = time.perf_counter()
        for _ in range(steps):
            loss = step()
            taken += 1
        value = loss.item()  # waits for the device
        seconds = time.perf_counter() - began
        if not math.isfinite(value):
            raise RuntimeError(f"the loss is {value}")
        return {"seconds": seconds, "steps": steps, "tokens": steps * shape.tokens, "loss": value}

    turn(settings.get("warm", 2))
    return turn


def train_memory(settings: dict[str, Any]) -> Turn:
    """The most memory that training took, above what there was after the imports and a first tiny step."""

    def turn() -> Answer:
        # A first step brings up what torch imports late (its compiler, for an optimizer): these count as imports.
        tiny = torch.nn.Linear(8, 8)
        tiny(torch.ones(8, 8)).sum().backward()
        make_optimizer(tiny, fused=False).step()
        base = memory("VmRSS")
        train(settings)()
        return {"bytes": memory("VmHWM") - base}

    return turn


def decode(settings: dict[str, Any]) -> Turn:
    """Hugging Face's GPT-2 of the shape, random weights, sampling with its cache from a one-token prompt."""
    import transformers

    shape = Shape(**settings["shape"])
    rows, tokens, calls = settings["batch"], settings["tokens"], settings["calls"]
    names = {"vocab_size": shape.vocab_size, "n_positions": shape.block_size}
    sizes = {"n_layer": shape.n_layer, "n_head": shape.n_head, "n_embd": shape.n_embd}
    config = transformers.GPT2Config(**names, **sizes, bos_token_id=0, eos_token_id=None, pad_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    prompt = torch.ones((rows, 1), dtype=torch.long)
    options = {"do_sample": True, "temperature": 0.8, "top_k": 0, "use_cache": True, "max_new_tokens": tokens}

    @torch.inference_mode()
    def turn() -> Answer:
        began = time.perf_counter()
        for _ in range(calls):
            ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
            if tuple(ids.shape) != (rows, tokens + 1):
                raise RuntimeError(f"generated {tuple(ids.shape)}")
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "steps": calls * tokens, "tokens": calls * tokens * rows}

    turn()
    return turn


def sweep(settings: dict[str, Any]) -> Turn:
    """TransformerLens, random weights: every head's z zeroed in turn, a forward pass each, losses per example."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    shape = Shape(**settings["shape"])
    config = HookedTransformerConfig(
        n_layers=shape.n_layer, n_heads=shape.n_head, d_model=shape.n_embd, d_head=shape.n_embd // shape.n_head,
        n_ctx=shape.block_size, d_vocab=shape.vocab_size, d_mlp=4 * shape.n_embd, act_fn="gelu_new",
        normalization_type="LN", seed=0,
    )  # fmt: skip
    model = HookedTransformer(config).eval()
    ids = torch.randint(shape.vocab_size, (shape.batch_size, shape.block_size))

    def zero_head(head: int) -> Any:
        def hook(z: torch.Tensor, hook: Any) -> torch.Tensor:
            z[:, :, head] = 0
            return z

        return hook

    @torch.inference_mode()
    def losses(layer: int, head: int) -> torch.Tensor:
        hooks = [(f"blocks.{layer}.attn.hook_z", zero_head(head))]
        return model.run_with_hooks(ids, return_type="loss", loss_per_token=True, fwd_hooks=hooks).mean(-1)

    def turn() -> Answer:
        began = time.perf_counter()
        found = torch.stack([losses(layer, head) for layer in range(shape.n_layer) for head in range(shape.n_head)])
        if not torch.isfinite(found).all():
            raise RuntimeError("a loss is not finite")
        return {"seconds": time.perf_counter() - began, "steps": len(found), "tokens": len(found) * shape.tokens}

    losses(0, 0)
    return turn


ROLES = {"train": train, "memory": train_memory, "decode": decode, "sweep": sweep}

if __name__ == "__main__":
    serve(ROLES)
