"""How fast is a model on this machine? Training, decoding and the ablation of every head, beside the machine's peak.

Weights and tokens are random, since no speed depends on them. Figures drift by tens of per cent from minute to minute
on a shared machine: to compare two programs, measure them in turns (`experiments/speed`).
"""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from tinygpt_jax.arguments import checked
from tinygpt_jax.checks import check
from tinygpt_jax.config import MAX_DISPATCH, GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import forward
from tinygpt_jax.lab.components import make_sets
from tinygpt_jax.lab.measure import make_lab, measure
from tinygpt_jax.lab.metrics import mean_loss
from tinygpt_jax.markup import facts_fragment
from tinygpt_jax.measure import devices, matmul_gflops, matmul_size, program_memory, threads, timed
from tinygpt_jax.memory import check_training
from tinygpt_jax.params import Params, count_params, flops_per_token, whole
from tinygpt_jax.runs import Model
from tinygpt_jax.runtime import keep_freed_pages, use_compilation_cache
from tinygpt_jax.sampling import sample
from tinygpt_jax.text import char_tokenizer
from tinygpt_jax.training.compilation import Compilation, first_state
from tinygpt_jax.training.feed import make_feed

DECODE_BATCHES = (1, 32)
MOST_TOKENS = 2**20  # each gets a character
TOKENS = 2**16  # random ones, to train on


class Pace(NamedTuple):
    """How much to measure."""

    dispatch_seconds: float
    """a timed call of the train step takes about this long"""
    seconds: float
    """for each of the measurements, about"""
    tries: int
    """the most times one is repeated"""
    new_tokens: int
    """written by each row of a decoding"""
    sweep_tokens: int
    """in the windows of the sweep over heads"""


FULL, QUICK = Pace(0.5, 2.0, 9, 128, 2048), Pace(0.1, 0.3, 3, 32, 512)


class TrainSpeed(NamedTuple):
    """Train steps as a run takes them, many in one call of the compiled program."""

    compile_seconds: float
    compilation_cached: bool
    """the program was loaded from the compilation cache instead"""
    step_ms: float
    """median over `calls` timed calls, milliseconds"""
    step_ms_low: float
    step_ms_high: float
    """the fastest and the slowest of these calls, milliseconds per step"""
    calls: int
    tokens_per_step: int
    tokens_per_second: float
    gflops: float
    """tokens_per_second times `flops_per_token`, GFLOP/s"""
    peak_share: float
    """`gflops` over the speed of a matrix product on the same machine, 0 to 1"""
    memory_bytes: int | None
    """that the compiled step holds while it runs: state, tokens and temporaries; None where that is unknown"""


class SweepSpeed(NamedTuple):
    """Every head switched off in turn, in one compiled call, beside one plain forward pass on the same windows."""

    heads: int
    windows: int
    seconds: float
    forward_seconds: float
    forwards: float
    """`seconds` over `forward_seconds`: `heads` would be no gain over one forward pass for each head"""


class BenchResult(NamedTuple):
    """What was measured, and on what."""

    model: GPTConfig
    parameters: int
    device: str
    threads: int
    """processors this process may use"""
    matmul_gflops: float
    """speed of a square matrix product in the model's compute dtype, GFLOP/s"""
    matmul_size: int
    """rows and columns of that product"""
    flops_per_token: int
    """operations for one trained token, as `flops_per_token` counts them"""
    train: TrainSpeed
    decode_tokens_per_second: dict[int, float]
    """batch size -> new tokens per second of all rows together, prompt included, compilation not"""
    sweep: SweepSpeed
    seconds: float
    """the whole of it, compilation included"""

    def to_json(self) -> dict[str, Any]:
        """The document that `tinygpt bench --json` prints; field names give the units."""
        parts = {"train": self.train._asdict(), "sweep": self.sweep._asdict()}
        decode = {str(batch): speed for batch, speed in self.decode_tokens_per_second.items()}
        document = {**self._asdict(), **parts, "model": dataclasses.asdict(self.model)}
        return {**document, "decode_tokens_per_second": decode}

    def facts(self) -> dict[str, str]:
        """For a person, by name."""
        cfg, train, sweep = self.model, self.train, self.sweep
        product = f"{self.matmul_size} x {self.matmul_size} {cfg.compute_dtype} product"
        found = "loaded from the compilation cache" if train.compilation_cached else "compiled"
        decode = (f"{speed:,.0f} tokens/s at batch {b}" for b, speed in self.decode_tokens_per_second.items())
        memory = "unknown" if train.memory_bytes is None else f"{train.memory_bytes / 2**20:,.1f} MiB"
        return {
            "model": f"{self.parameters:,} parameters, {cfg.n_layer} layers of {cfg.n_embd}, {cfg.head_counts} heads, "
            f"context {cfg.block_size}, {cfg.vocab_size:,} tokens, {cfg.compute_dtype}",
            "device": f"{self.device}, processors: {self.threads}",
            "train step": f"{found} in {train.compile_seconds:.1f} s",
            "training": f"{train.tokens_per_second:,.0f} tokens/s; {train.step_ms:.1f} ms per step of "
            f"{train.tokens_per_step:,} tokens ({train.step_ms_low:.1f} to {train.step_ms_high:.1f} ms in "
            f"{train.calls} calls)",
            "arithmetic": f"{train.gflops:,.1f} GFLOP/s, {train.peak_share:.0%} of a {product} "
            f"({self.matmul_gflops:,.0f} GFLOP/s)",
            "memory": f"{memory} for a train step: parameters, optimizer, tokens and temporaries",
            "decoding": ", ".join(decode),
            "all heads": f"{1000 * sweep.seconds:,.1f} ms to switch off each of {sweep.heads} in turn on "
            f"{sweep.windows} windows: {sweep.forwards:.1f} forward passes of {1000 * sweep.forward_seconds:,.1f} ms",
        }

    def lines(self) -> list[str]:
        """For a terminal."""
        return [f"{name:11} {fact}" for name, fact in self.facts().items()]

    def _repr_html_(self) -> str:
        return facts_fragment("BenchResult", self.facts())


@checked
def bench(
    cfg: TrainConfig | None = None, *, quick: bool = False, tell: Callable[[str], None] = lambda line: None
) -> BenchResult:
    """Measures the speed of a model on this machine, for about twenty seconds; needs no text and no run.

        tg.bench(tg.TrainConfig(model=tg.GPTConfig(vocab_size=65, n_layer=6))).train.tokens_per_second

    Args:
        cfg: model, batch and optimizer; default: the default model with 65 tokens
        quick: a few seconds only; the figures are less certain
        tell: takes a line for each measurement as it begins

    Raises:
        UserError: the model has too many tokens or takes more memory than there is, or its training diverges.
    """
    began = time.perf_counter()
    cfg = check(cfg or TrainConfig(model=dataclasses.replace(TrainConfig().model, vocab_size=65)))
    if cfg.model.vocab_size > MOST_TOKENS:
        raise UserError(f"vocab_size is {cfg.model.vocab_size}: a benchmark can have {MOST_TOKENS} tokens at most")
    check_training(cfg)
    pace = QUICK if quick else FULL
    keep_freed_pages()
    use_compilation_cache()
    tell(f"multiplying matrices in {cfg.model.compute_dtype}")
    product = matmul_gflops(cfg.model.compute_dtype)
    train, params = _train(cfg, pace, product, tell)
    decode = {}
    for batch in DECODE_BATCHES:
        tell(f"decoding at batch {batch}")
        decode[batch] = _decode(params, cfg.model, batch, pace)
    tell("switching off every head in turn")
    sweep = _sweep(*whole(params, cfg.model), pace)
    return BenchResult(
        model=cfg.model,
        parameters=count_params(cfg.model),
        device=devices()[0],
        threads=threads(),
        matmul_gflops=product,
        matmul_size=matmul_size(),
        flops_per_token=flops_per_token(cfg.model),
        train=train,
        decode_tokens_per_second=decode,
        sweep=sweep,
        seconds=time.perf_counter() - began,
    )


def _train(cfg: TrainConfig, pace: Pace, product: float, tell: Callable[[str], None]) -> tuple[TrainSpeed, Params]:
    """The speed of training as the trainer does it, and the parameters it leaves for the other measurements."""
    V, N = cfg.model.vocab_size, max(TOKENS, 2 * cfg.model.block_size)
    feed = make_feed(cfg, np.random.default_rng(0).integers(0, V, N, np.int32))
    tell("compiling the train step")
    program = Compilation(cfg, feed).program.result()
    state = first_state(cfg)

    def steps(n: int) -> jax.Array:
        nonlocal state
        state, metrics = program.dispatch(state, *feed(0, n), np.int32(n))
        return metrics.loss

    jax.block_until_ready(steps(1))
    n = max(1, min(MAX_DISPATCH, int(pace.dispatch_seconds / timed(lambda: steps(1), 1)[0])))
    tell(f"training, steps in a call: {n}")
    ms = [1000 * seconds / n for seconds in timed(lambda: steps(n), pace.tries, pace.seconds)]
    if int(state.skipped):
        raise UserError("the loss or its gradient is not finite with these settings: lower the learning_rate")
    tokens = cfg.tokens_per_step
    speed = 1000 * tokens / statistics.median(ms)
    return TrainSpeed(
        compile_seconds=program.seconds,
        compilation_cached=program.loaded,
        step_ms=statistics.median(ms),
        step_ms_low=min(ms),
        step_ms_high=max(ms),
        calls=len(ms),
        tokens_per_step=tokens,
        tokens_per_second=speed,
        gflops=speed * flops_per_token(cfg.model) / 1e9,
        peak_share=speed * flops_per_token(cfg.model) / 1e9 / product,
        memory_bytes=program_memory(program.dispatch),
    ), state.params


def _decode(params: Params, cfg: GPTConfig, batch: int, pace: Pace) -> float:
    """New tokens per second of `sample`, all rows together."""
    characters = "".join(map(chr, range(0x10000, 0x10000 + cfg.vocab_size)))  # as many as tokens, and no surrogates
    model = Model(params, cfg, char_tokenizer(characters))

    def write() -> None:
        sample(model, characters[0], n=batch, max_tokens=pace.new_tokens)

    write()  # compiles
    return batch * pace.new_tokens / statistics.median(timed(write, pace.tries, pace.seconds))


def _sweep(params: Params, cfg: GPTConfig, pace: Pace) -> SweepSpeed:
    """Losses with each head's output zeroed before `Wo`, as `ablate_heads` measures them."""
    B = max(2, pace.sweep_tokens // cfg.block_size)
    ids = np.random.default_rng(0).integers(0, cfg.vocab_size, (B, cfg.block_size), np.int32)
    lab, gates = make_lab(params, ids, cfg, fill="zero"), make_sets("heads", cfg).gates
    plain = jax.jit(lambda params, examples: mean_loss(forward(params, examples.ids, cfg).logits, examples))

    def median(work: Callable[[], Any]) -> float:
        jax.block_until_ready(work())  # compiles
        return statistics.median(timed(work, pace.tries, pace.seconds))

    seconds, forward_seconds = median(lambda: measure(lab, gates)), median(lambda: plain(params, lab.examples))
    return SweepSpeed(len(gates.heads), B, seconds, forward_seconds, seconds / forward_seconds)
