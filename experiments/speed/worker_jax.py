"""Ours, as users run it: `python -m experiments.speed.worker_jax '{"role": "train", …}'`, and a turn for each line.

What a worker warms up is what `tinygpt` warms up: the allocator first, then one program compiled for many steps a call.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from experiments.speed.protocol import Answer, Turn, memory, serve
from experiments.speed.shapes import Shape

TOKENS = 2**20
"""Tokens to draw batches from, as many as tiny Shakespeare has, in uint16."""


def start_jax() -> None:
    """The allocator, the compilation cache and the backend, in the order of the `tinygpt` command."""
    from tinygpt_jax.runtime import keep_freed_pages, use_compilation_cache

    keep_freed_pages()
    use_compilation_cache()
    import jax

    jax.devices()


def train(settings: dict[str, Any]) -> Turn:
    """Training: a turn is `steps` steps in calls of the compiled program, batches drawn and fed as in a run."""
    start_jax()
    import jax
    import numpy as np

    from tinygpt_jax.config import GPTConfig, TrainConfig
    from tinygpt_jax.training.compilation import Compilation
    from tinygpt_jax.training.feed import make_feed
    from tinygpt_jax.training.step import init_state

    shape = Shape(**settings["shape"])
    model = GPTConfig(**shape.model, compute_dtype=settings.get("dtype", "float32"), **settings.get("model", {}))
    cfg = TrainConfig(model=model, batch_size=shape.batch_size, optimizer="adamw", learning_rate=1e-3)
    ids = np.random.default_rng(0).integers(0, shape.vocab_size, TOKENS).astype(np.uint16)
    feed, taken = make_feed(cfg, ids), 0
    compilation = Compilation(cfg, feed)
    state = init_state(cfg)  # while the compiler works, as in a run
    dispatch = compilation.program.result().dispatch

    def turn(steps: int = settings["steps"]) -> Answer:
        nonlocal state, taken
        began, end = time.perf_counter(), taken + steps
        while taken < end:
            n = min(cfg.steps_per_dispatch, end - taken)
            state, metrics = dispatch(state, *feed(taken, n), np.int32(n))
            taken = int(state.step)  # waits for the device, as the training loop does after every call
        loss = float(metrics.loss[n - 1])
        seconds = time.perf_counter() - began
        if not np.isfinite(loss):
            raise RuntimeError(f"the loss is {loss}")
        return {"seconds": seconds, "steps": steps, "tokens": steps * shape.tokens, "loss": loss}

    turn(settings.get("warm", 2))
    jax.block_until_ready(state)
    return turn


def train_memory(settings: dict[str, Any]) -> Turn:
    """The most memory that compiling and training took, above what there was once JAX and the package were up."""

    def turn() -> Answer:
        start_jax()
        import tinygpt_jax.training.loop  # noqa: F401

        base = memory("VmRSS")
        train(settings)()
        return {"bytes": memory("VmHWM") - base}

    return turn


def random_model(settings: dict[str, Any]) -> Any:
    """A model with weights as they are before training, and a tokenizer of as many characters as it has tokens."""
    start_jax()
    import jax

    from tinygpt_jax.config import GPTConfig
    from tinygpt_jax.params import init_params
    from tinygpt_jax.runs import Model
    from tinygpt_jax.text import char_tokenizer

    shape = Shape(**settings["shape"])
    cfg = GPTConfig(**shape.model, compute_dtype=settings.get("dtype", "float32"), **settings.get("model", {}))
    params = init_params(jax.random.key(0), cfg)
    return Model(params, cfg, char_tokenizer("".join(map(chr, range(32, 32 + shape.vocab_size)))))


def decode(settings: dict[str, Any]) -> Turn:
    """Sampling: a turn is `calls` calls of `sample`, each of `tokens` new tokens in `batch` rows, from one token.

    A step is a token of every row.
    """
    model = random_model(settings)
    from tinygpt_jax.sampling import sample

    rows, tokens, calls = settings["batch"], settings["tokens"], settings["calls"]
    seed = 0

    def turn() -> Answer:
        nonlocal seed
        began = time.perf_counter()
        for _ in range(calls):
            seed += 1
            texts = sample(model, "A", max_tokens=tokens, temperature=0.8, seed=seed, n=rows)
            if [len(text.tokens) for text in texts] != [tokens] * rows:
                raise RuntimeError("a sample is too short")
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "steps": calls * tokens, "tokens": calls * tokens * rows}

    turn()
    return turn


def decode_position(settings: dict[str, Any]) -> Turn:
    """Sampling at one place of a long context: the time of a chunk of a stream that is centred on `position`."""
    model = random_model(settings)
    from tinygpt_jax.sampling import stream
    from tinygpt_jax.sampling.generate import STREAM_CHUNK

    # The prompt and the first chunk, which wait for the prompt to be read, come before the chunk that is timed.
    prompt = "A" * max(1, settings["position"] - STREAM_CHUNK - STREAM_CHUNK // 2)

    def chunk(seed: int) -> float:
        pieces = stream(model, prompt, max_tokens=2 * STREAM_CHUNK, temperature=0.8, seed=seed)
        next(pieces)
        began = time.perf_counter()
        next(pieces)
        return time.perf_counter() - began

    def turn() -> Answer:
        seconds = statistics.median(chunk(seed) for seed in range(settings["calls"]))
        return {"seconds": seconds, "steps": STREAM_CHUNK, "tokens": STREAM_CHUNK}

    chunk(0)
    return turn


def sweep(settings: dict[str, Any]) -> Turn:
    """Every head zeroed in turn on the same windows, or one plain forward pass; a step is a forward pass's worth."""
    model = random_model(settings)
    import jax
    import numpy as np

    from tinygpt_jax.forward_pass import forward
    from tinygpt_jax.lab.components import make_sets
    from tinygpt_jax.lab.measure import make_lab, measure
    from tinygpt_jax.lab.metrics import mean_loss

    params, cfg, shape = model.params, model.cfg, Shape(**settings["shape"])
    ids = np.random.default_rng(0).integers(0, cfg.vocab_size, (shape.batch_size, cfg.block_size), np.int32)
    lab, gates = make_lab(params, ids, cfg, fill="zero"), make_sets("heads", cfg).gates
    plain = jax.jit(lambda params, examples: mean_loss(forward(params, examples.ids, cfg).logits, examples))
    steps = 1 if settings.get("plain") else len(gates.heads)

    def turn() -> Answer:
        began = time.perf_counter()
        losses = plain(params, lab.examples) if settings.get("plain") else measure(lab, gates)[0]
        if not np.isfinite(losses).all():
            raise RuntimeError("a loss is not finite")
        return {"seconds": time.perf_counter() - began, "steps": steps, "tokens": steps * shape.tokens}

    turn()
    return turn


class Enough(BaseException):
    """Ends a command from within; no handler of it takes this for an error."""


def start(settings: dict[str, Any]) -> Turn:
    """`tinygpt train` itself, up to the moment at which it tells its display of the first step."""

    def turn() -> Answer:
        from tinygpt_jax import cli

        answer: Answer = {}

        def first_step(display: Any, status: Any) -> None:
            answer["done_at"] = time.monotonic()
            raise Enough

        import tinygpt_jax.training.display

        tinygpt_jax.training.display.Display.update = first_step  # type: ignore[method-assign]
        try:
            cli.main(["train", *settings["arguments"], "--out", settings["work"]])
        except Enough:
            return answer
        raise RuntimeError("the command ended before its first step")

    return turn


def recompile(settings: dict[str, Any]) -> Turn:
    """A whole run: how many programs it compiles after its second step, and their names."""

    def turn() -> Answer:
        import jax

        import tinygpt_jax as tg
        from tinygpt_jax.training.display import Display, Status

        step, names = 0, []

        def heard(event: str, duration: float, **facts: Any) -> None:
            if event == "/jax/core/compile/backend_compile_duration" and step >= 2:
                names.append(str(facts.get("fun_name", "unnamed")))

        class Watching(Display):
            def update(self, status: Status) -> None:
                nonlocal step
                step = status.step

        jax.monitoring.register_event_duration_secs_listener(heard)
        model = tg.GPTConfig(**Shape(**settings["shape"]).model)
        cfg = tg.TrainConfig(model=model, data=(settings["text"],), out=settings["work"], **settings["train"])
        tg.train(cfg, display=Watching(sys.stderr))
        return {"count": len(names), "names": names, "steps_taken": step}

    return turn


ROLES = {
    "train": train,
    "memory": train_memory,
    "decode": decode,
    "decode-position": decode_position,
    "sweep": sweep,
    "start": start,
    "recompile": recompile,
}

if __name__ == "__main__":
    serve(ROLES)
