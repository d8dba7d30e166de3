"""The sections of gpu.py, each run in a process of its own; every `tell` is one JSON line with all that is known."""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.speed.shapes import GPT2, TOY, Shape, train_operations

Tell = Callable[..., None]
"""tell(name=value, …): adds to what the section has found."""
TARGET = 1.47
"""nats per character: the validation loss that nanoGPT gives for its recipe on one GPU."""


def seconds_of(call: Callable[[], Any], times: int = 3) -> float:
    """The median time of a call after one that is not timed; its result is waited for."""
    import jax

    from tinygpt_jax.measure import timed

    jax.block_until_ready(call())
    return statistics.median(timed(call, times))


def peak_bytes() -> int | None:
    """The most device memory this process has used, where the device counts it."""
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use")


def machine(given: dict[str, Any], tell: Tell) -> None:
    """The device and the versions."""
    import jax
    import jaxlib

    device = jax.devices()[0]
    tell(device=device.device_kind, backend=jax.default_backend(), devices=jax.device_count())
    tell(python=platform.python_version(), jax=jax.__version__, jaxlib=jaxlib.__version__)
    tell(device_bytes=(device.memory_stats() or {}).get("bytes_limit"))


def peak(given: dict[str, Any], tell: Tell) -> None:
    """Matrix products of large squares: TFLOP/s, the best of some sizes, in chains so that no launch is timed."""
    import jax
    import jax.numpy as jnp

    chain = 16
    kinds = {
        "bfloat16": ("bfloat16", "default"), "float32_default": ("float32", "default"),
        "float32_highest": ("float32", "highest"),
    }  # fmt: skip

    @jax.jit
    def products(x: jax.Array, W: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, chain, lambda _, x: x @ W, x)

    for name, (dtype, precision) in kinds.items():
        found = {}
        for n in (128, 256) if given["toy"] else (4096, 8192, 16384):
            keys = jax.random.split(jax.random.key(0))
            x, W = (jax.random.normal(key, (n, n), jnp.float32) / n**0.5 for key in keys)
            x, W = x.astype(dtype), W.astype(dtype)
            with jax.default_matmul_precision(precision):
                found[n] = 2 * n**3 * chain / seconds_of(lambda x=x, W=W: products(x, W)) / 1e12
            tell(**{f"{name}_tflops": max(found.values()), f"{name}_by_size": found})


def gpt2_shape(given: dict[str, Any], **changes: Any) -> Shape:
    return (TOY if given["toy"] else GPT2).with_(**changes)


GPT2_MODEL = {"attn_bias": True, "vocab_multiple": 128, "attention": "auto"}
"""What makes the shape GPT-2's, and how it is computed."""


def speed(given: dict[str, Any], shape: Shape, step_seconds: float) -> dict[str, Any]:
    """Tokens and operations per second, the latter counted as in shapes.py, and their share of the measured peak."""
    tflops = train_operations(shape) / step_seconds / 1e12
    best = given["known"].get("peak", {}).get("bfloat16_tflops")
    return {
        "tokens_per_second": shape.tokens / step_seconds,
        "ms_per_step": 1000 * step_seconds,
        "model_tflops": tflops,
        "share_of_peak": tflops / best if best else None,
        "operations": "B T (6 (12 L C² + V C) + 12 L C T)",
    }


def batches(given: dict[str, Any]) -> list[int]:
    """Batches to try, the largest first, from one that should fit: a window of 1,024 takes some 0.8 GB."""
    import jax

    if given["toy"]:
        return [2]
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 16e9)
    return [n for n in (64, 32, 16, 8, 4) if n == 4 or n * 0.8e9 <= limit]


def train(given: dict[str, Any], tell: Tell) -> None:
    """GPT-2 124M in bfloat16: the largest batch that fits, then the same with activations computed anew (`remat`)."""
    began, found = time.monotonic(), False
    for batch in batches(given):
        try:
            tell(**train_once(given, batch, remat=False))
            found = True
        except Exception as error:  # XLA raises one class for everything
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            tell(too_large=batch)
        if found:
            break
    if not found:
        raise RuntimeError("no batch fits")
    if time.monotonic() - began < given["seconds"] / 3:
        again = train_once(given, batch, remat=True)
        tell(remat_ms_per_step=again["ms_per_step"])
    else:
        tell(remat_ms_per_step=None, remat_reason="no time was left")


def train_once(given: dict[str, Any], batch: int, remat: bool) -> dict[str, Any]:
    """One batch size, compiled and timed; `peak_bytes` is that of the whole process so far."""
    from experiments.speed.worker_jax import train as training
    from tinygpt_jax.config import GPTConfig
    from tinygpt_jax.params import count_params

    steps, shape = 2 if given["toy"] else 10, gpt2_shape(given, batch_size=batch)
    settings = {"shape": asdict(shape), "dtype": "bfloat16", "steps": steps, "model": {**GPT2_MODEL, "remat": remat}}
    began = time.perf_counter()
    turn = training(settings)
    compiled = time.perf_counter() - began
    seconds = statistics.median(turn()["seconds"] / steps for _ in range(3))
    facts = {
        "batch_size": batch,
        "parameters": count_params(GPTConfig(**shape.model)),
        "compile_and_warm_seconds": compiled,
    }
    return {**facts, **speed(given, shape, seconds), "peak_bytes": peak_bytes()}


def torch(given: dict[str, Any], tell: Tell) -> None:
    """The same in PyTorch, compiled, at the same batch."""
    try:
        import torch as library
    except ImportError:
        tell(result=None, reason="torch is not installed")
        return
    if not (given["toy"] or library.cuda.is_available()):
        tell(result=None, reason="torch sees no CUDA device")
        return
    from experiments.speed.worker_torch import train as training

    steps, device = (2, "cpu") if given["toy"] else (10, "cuda")
    shape = gpt2_shape(given, batch_size=given["known"].get("train", {}).get("batch_size", 16))
    tell(torch=library.__version__, batch_size=shape.batch_size)
    # The vocabulary padded to a multiple of 128, as ours is inside.
    padded = shape.with_(vocab_size=-(-shape.vocab_size // 128) * 128)
    settings = {"shape": asdict(padded), "dtype": "bfloat16", "steps": steps, "device": device}
    turn = training({**settings, "compile": not given["toy"]})
    tell(**speed(given, shape, statistics.median(turn()["seconds"] / steps for _ in range(3))))
    tell(peak_bytes=None if given["toy"] else library.cuda.max_memory_allocated())


def decode(given: dict[str, Any], tell: Tell) -> None:
    """Sampling from the 124M with random weights: tokens/s for one row and for 64."""
    from experiments.speed.worker_jax import decode as decoding

    for rows in (1, 4) if given["toy"] else (1, 64):
        settings = {"shape": asdict(gpt2_shape(given)), "dtype": "bfloat16", "model": GPT2_MODEL}
        turn = decoding({**settings, "batch": rows, "tokens": 8 if given["toy"] else 256, "calls": 1})
        answers = [turn() for _ in range(3)]
        tell(**{f"batch_{rows}_tokens_per_second": statistics.median(a["tokens"] / a["seconds"] for a in answers)})
        tell(peak_bytes=peak_bytes())


def ablate(given: dict[str, Any], tell: Tell) -> None:
    """The loss with each head of the 124M switched off in turn, beside a plain forward pass."""
    from experiments.speed.worker_jax import sweep

    for rows, length in ((2, 8),) if given["toy"] else ((2, 128), (8, 1024)):
        shape = gpt2_shape(given).with_(batch_size=rows, block_size=length)
        settings = {"shape": asdict(shape), "dtype": "bfloat16", "model": GPT2_MODEL}
        swept, plain = (sweep({**settings, "plain": alone}) for alone in (False, True))
        heads = swept()["steps"]
        seconds, forward_seconds = (statistics.median(turn()["seconds"] for _ in range(3)) for turn in (swept, plain))
        found = {"heads": heads, "seconds": seconds, "heads_per_second": heads / seconds}
        tell(**{f"{rows}x{length}": {**found, "forward_seconds": forward_seconds}})
    tell(peak_bytes=peak_bytes())


class Watch:
    """A display that tells every validation, and knows whether the target is reached or the time is up."""

    def __init__(self, tell: Tell, target: float, seconds: float) -> None:
        from tinygpt_jax.training.display import Display

        self._shown = Display(sys.stderr)
        self.tell, self.target, self.end = tell, target, time.monotonic() + seconds
        self.began, self.reached = time.monotonic(), False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)

    def validated(self, status: Any, result: Any, best: bool) -> None:
        self.reached = self.reached or result.loss <= self.target
        self.tell(step=status.step, val_loss=result.loss, reached=self.reached, seconds=time.monotonic() - self.began)
        self.tell(tokens_per_second=status.tokens_per_second)
        self._shown.validated(status, result, best)

    def stopped(self) -> bool:
        return self.reached or time.monotonic() > self.end


def recipe(given: dict[str, Any], tell: Tell) -> None:
    """The preset nano-gpu from nothing until its validation loss is at the target; all of it timed."""
    import tinygpt_jax as tg
    from tinygpt_jax.checks import check
    from tinygpt_jax.presets import override, preset

    with tempfile.TemporaryDirectory() as work:
        settings: dict[str, Any] = {**preset("nano-gpu"), "out": str(Path(work, "run")), "sample_every": 0}
        settings |= {"data": (given["data"],), "eval_every": 250, "checkpoint_every": 5000}
        if given["toy"]:
            Path(work, "text.txt").write_text("Now is the winter of our discontent. " * 200)
            toy = {"block_size": 16, "n_layer": 1, "n_head": 2, "n_embd": 16}
            settings |= {"model": toy, "data": (str(Path(work, "text.txt")),), "batch_size": 4, "steps": 20}
            settings |= {"warmup_steps": 2, "eval_every": 10}
        else:
            settings["model"] = {**settings["model"], "compute_dtype": "bfloat16"}
        watch = Watch(tell, TARGET, 0.85 * given["seconds"])
        tell(target=TARGET, reached=False)
        cfg = check(override(tg.TrainConfig(), settings, "gpu.py"))
        result = tg.train(cfg, display=watch, stopped=watch.stopped)
        tell(compile_seconds=result.compile_seconds, steps=result.steps)


SECTIONS = {f.__name__: f for f in (machine, peak, train, torch, decode, ablate, recipe)}


def main() -> None:
    given = json.loads(sys.argv[1])
    found: dict[str, Any] = {}
    stdout = sys.stdout

    def tell(**facts: Any) -> None:
        found.update(facts)
        print(json.dumps(found), file=stdout, flush=True)

    with redirect_stdout(sys.stderr), suppress(BrokenPipeError):
        SECTIONS[given["name"]](given, tell)


if __name__ == "__main__":
    main()
