"""The loss of a model on a whole text, in fixed windows, with its standard error."""

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tinygpt_jax.arguments import checked
from tinygpt_jax.checks import check
from tinygpt_jax.config import LOGITS_AT_ONCE, GPTConfig, Sources
from tinygpt_jax.digits import number, with_error
from tinygpt_jax.errors import UserError
from tinygpt_jax.ids import as_array, check_ids
from tinygpt_jax.markup import facts_fragment
from tinygpt_jax.measure import check_memory
from tinygpt_jax.memory import forward_bytes
from tinygpt_jax.params import Params, check_finite, of_model
from tinygpt_jax.runs import load, named, read_config, read_record, run_line
from tinygpt_jax.runtime import use_compilation_cache
from tinygpt_jax.statistics import ratio_and_se
from tinygpt_jax.text import Tokenizer, Tokens, check_length, eval_windows, load_text
from tinygpt_jax.training.feed import make_dataset
from tinygpt_jax.training.loss import window_losses

# A CPU is fastest while a call's activations fit its caches; an accelerator wants many tokens at once.
TOKENS_PER_CALL = {"cpu": 2**11}
TOKENS_PER_CALL_ELSEWHERE = 2**15
TOLD_SECONDS = 10.0
"""How often a long evaluation says how far it is."""


class Evaluation(NamedTuple):
    """How well a model predicts a text."""

    loss: float
    """nats per token"""
    loss_se: float
    """standard error of `loss` over windows in the order of the text (long-run: `statistics.standard_error`)"""
    loss_per_char: float
    """nats per character"""
    bits_per_byte: float
    """bits per byte of UTF-8: the same for any tokenizer"""
    tokens: int
    """predicted tokens: all of the text but its first"""

    @property
    def perplexity(self) -> float:
        """exp(loss)"""
        return math.exp(min(self.loss, 700.0))

    @property
    def perplexity_se(self) -> float:
        """Standard error of the perplexity, to first order."""
        return self.perplexity * self.loss_se

    def to_json(self) -> dict[str, Any]:
        """All of it under the names of the contract, and why there is no error where there is none."""
        no_error = {} if math.isfinite(self.loss_se) else {"loss_se_missing": NO_ERROR}
        return {**self._asdict(), **{name: getattr(self, name) for name in DERIVED}, **no_error}

    def facts(self) -> dict[str, str]:
        """All of it for a person, by name."""
        return {
            "loss": f"{with_error(self.loss, self.loss_se)} nats per token",
            "per character": f"{number(self.loss_per_char, 4)} nats",
            "per byte": f"{number(self.bits_per_byte, 4)} bits",
            "perplexity": f"{with_error(self.perplexity, self.perplexity_se, 3)} per token",
            "tokens": f"{self.tokens:,}",
            **({"±": ERROR} if math.isfinite(self.loss_se) else {"error": NO_ERROR}),
        }

    def _repr_html_(self) -> str:
        return facts_fragment("Evaluation", self.facts())


ERROR = "one standard error over windows in the order of the text (long-run)"
"""What is said to follow a ± here; `statistics.standard_error` has its source."""
NO_ERROR = "not known of a single window"
DERIVED = ("perplexity", "perplexity_se")
JSON_KEYS = (*Evaluation._fields, *DERIVED)

_window_losses = jax.jit(window_losses, static_argnums=3)


@checked
def evaluate(
    run: str | os.PathLike[str] = "",
    data: str | Sequence[str] = (),
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
) -> Evaluation:
    """Scores a run's best weights: nats per token, bits per byte, perplexity, with standard errors.

        tg.evaluate("runs/book", "other.txt").bits_per_byte

    `evaluate_tokens` scores any parameters on any tokens.

    Args:
        run: a run directory; default: the newest under runs/
        data: text to score, all of it, with `include` and `exclude` as for training; default: the run's own
            validation text
        tell: called with a line that says which run and which text

    Raises:
        UserError: the run or the text cannot be read, the run's own text has changed, or the loss is not finite.
    """
    use_compilation_cache()
    run = named(run)
    model = load(run)
    tokens = text_to_score(run, model.tokenizer, check(Sources(data, include, exclude)), tell)  # type: ignore[arg-type]
    result = evaluate_tokens(model.params, model.cfg, tokens, say_seldom(tokens, tell) if tell else None)
    if not math.isfinite(result.loss):
        check_finite(model.params, f"the weights of {run}")
        raise UserError(f"the loss is {result.loss}: the weights of {run} are damaged, or its training diverged")
    return result


def text_to_score(
    run: str | os.PathLike[str],
    tokenizer: Tokenizer,
    data: Sources | Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
) -> Tokens:
    """The whole of `data`, or without it a run's own validation text; `tell` gets a line that says which. Raises
    UserError as `evaluate`."""
    sources = check(Sources.of(data))
    if sources:
        text = load_text(sources)
        tokens = Tokens(tokenizer.encode(text), len(text), len(text.encode()))
        what = f"the text {', '.join(sources.data)}"
    elif sources.include or sources.exclude:
        raise UserError("include and exclude say which files of --data are read: name it, or leave them out")
    else:
        tokens = _validation_text(run, tokenizer)
        what = f"its validation text of {', '.join(read_config(run).data)}"
    if tell:
        tell(run_line(run, f"{what}: {len(tokens.ids):,} tokens"))
    return tokens


def _validation_text(run: str | os.PathLike[str], tokenizer: Tokenizer) -> Tokens:
    cfg, record = read_config(run), read_record(run)
    if "-" in cfg.data:
        raise UserError(f"{run} was trained on standard input, which is gone: name the text with --data")
    dataset = make_dataset(cfg, load_text(cfg.sources), tokenizer)
    if dataset.fingerprint != record.get("text_sha256"):
        raise UserError(f"the text {cfg.data} is not what {run} was trained on: name what to score with --data")
    return dataset.val


def say_seldom(tokens: Tokens, tell: Callable[[str], None]) -> Callable[[int], None]:
    """A function for `evaluate_tokens` to call, which tells how far it is every TOLD_SECONDS."""
    told = time.monotonic()

    def scored(count: int) -> None:
        nonlocal told
        if time.monotonic() - told >= TOLD_SECONDS:
            told = time.monotonic()
            tell(f"scored {count:,} of {len(tokens.ids) - 1:,} tokens")

    return scored


@of_model
def evaluate_tokens(
    params: Params, cfg: GPTConfig, tokens: Tokens, scored: Callable[[int], None] | None = None
) -> Evaluation:
    """Scores a text of at least two tokens; every token but the first is predicted once.

    The windows are `block_size` long, side by side, and the model sees nothing before a window's start; the last one is
    padded. A text that the tokenizer cut into N tokens gives nats per character by N over its number of characters.
    `scored` is called on the way with the number of tokens that were; what it raises ends the evaluation.

    Raises:
        UserError: `cfg` makes no sense, there are fewer than two tokens, or one is outside the vocabulary.
    """
    if not isinstance(tokens, Tokens) or as_array(tokens.ids, "the text to score").ndim != 1:
        raise UserError("the text to score is no Tokens: must be Tokens(ids (N,), characters, bytes)")
    check_length(tokens, 1, "the text to score")
    check_ids(tokens.ids, cfg.vocab_size, "the text to score")
    T, B = cfg.block_size, windows_per_call(cfg, tokens)
    check_memory(forward_bytes(cfg, B, T), f"scoring {B} windows of {T} tokens", "use a model of a smaller block_size")
    n_windows = _count_windows(cfg, tokens)
    sums: list[Any] = []
    for first in range(0, n_windows, B):
        part = tokens.ids[first * T : (first + B) * T + 1]
        ids, targets = (_pad_rows(a, B, fill) for a, fill in zip(eval_windows(part, T), (0, -1), strict=True))
        sums.append(_window_losses(params, ids, targets, cfg))
        if first:  # one call ahead of the device at most, so that it can be said how far it is
            sums[-2] = np.asarray(sums[-2], np.float64)
            if scored:
                scored(first * T)
    sums[-1] = np.asarray(sums[-1], np.float64)
    totals = np.concatenate(sums)[:n_windows]
    counts = np.full(n_windows, T, np.float64)
    counts[-1] = len(tokens.ids) - 1 - T * (n_windows - 1)
    loss, loss_se = map(float, ratio_and_se(totals, counts, ordered=True))
    return Evaluation(
        loss=loss,
        loss_se=loss_se,
        loss_per_char=loss / tokens.chars_per_token,
        bits_per_byte=loss / tokens.bytes_per_token / math.log(2),
        tokens=int(counts.sum()),
    )


def windows_per_call(cfg: GPTConfig, tokens: Tokens) -> int:
    """How many windows of a text `evaluate_tokens` scores at once."""
    tokens_per_call = TOKENS_PER_CALL.get(jax.default_backend(), TOKENS_PER_CALL_ELSEWHERE)
    fitting = min(tokens_per_call // cfg.block_size, LOGITS_AT_ONCE // (cfg.block_size * cfg.vocab_size))
    return min(_count_windows(cfg, tokens), max(1, fitting))


def prepare_evaluation(params: Params, cfg: GPTConfig, tokens: Tokens) -> None:
    """Compiles what `evaluate_tokens` will run for this text, by scoring the windows of its first call."""
    first = tokens.ids[: windows_per_call(cfg, tokens) * cfg.block_size + 1]
    evaluate_tokens(params, cfg, tokens._replace(ids=first))


def _count_windows(cfg: GPTConfig, tokens: Tokens) -> int:
    return -(-(len(tokens.ids) - 1) // cfg.block_size)


def _pad_rows(array: np.ndarray, rows: int, fill: int) -> np.ndarray:
    return np.pad(array, ((0, rows - len(array)), (0, 0)), constant_values=fill)
