"""Whether settings make sense: asked once, where they come in, so that nothing below has to doubt them."""

import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from tinygpt_jax.arguments import plain
from tinygpt_jax.config import MAX_DISPATCH, GPTConfig, SampleConfig, Sources, TrainConfig
from tinygpt_jax.errors import UserError, shown

MOST = {"block_size": 2**20, "n_layer": 2**10, "n_head": 2**10}
"""What the weights of a small model do not bound: its window and cache, what is traced one by one, what is listed."""
LEAST_EPS = 1e-12
"""Of a row without variance the slope of its norm grows with eps^-1.5: with less it overflows float32, with 0 the row
itself is NaN."""

MOST_NAMES = 10_000
"""Of texts: a stranger's list of the same one again and again would be read again and again."""
Config = TypeVar("Config", bound=GPTConfig | TrainConfig | SampleConfig | Sources)


def check(config: Config) -> Config:
    """The same settings with lists as tuples and paths as strings; a single name stands for a tuple of one.

    Every function of the package's face that takes settings calls this first.

    Raises:
        UserError: a value makes no sense, alone or beside the others; it says which, and what would. Or `config` is no
            settings at all.
    """
    for kind, checked in _CHECKS.items():
        if isinstance(config, kind):
            return checked(_typed(config, kind))
    raise UserError(f"settings are {shown(config)}: must be a {', '.join(kind.__name__ for kind in _CHECKS)}")


def _typed(config: Any, kind: type) -> Any:
    """The settings with numbers of NumPy as Python's and paths as text; raises UserError where a switch is no switch,
    or a name no name. Numbers, choices and lists are seen to one by one."""
    values = {f.name: plain(getattr(config, f.name)) for f in fields(config)}
    for name, hint in _HINTS[kind].items():
        if hint is bool:
            _require(isinstance(values[name], bool), name, values[name], "must be True or False")
        elif hint is str:
            _require(isinstance(values[name], str | os.PathLike), name, values[name], "must be text")
            values[name] = os.fspath(values[name])
            _require(_is_name(values[name]), name, values[name], NO_NAME)
    return replace(config, **values)


def check_model(cfg: GPTConfig) -> GPTConfig:
    """`check` of what must be a model's settings and no others."""
    if not isinstance(cfg, GPTConfig):
        raise UserError(f"cfg is a {type(cfg).__name__}: must be a GPTConfig, the settings of a model")
    return check(cfg)


def _check_model(cfg: GPTConfig) -> GPTConfig:
    _whole(cfg, 1, "vocab_size", "n_embd", "vocab_multiple", "unroll_layers")
    for name, most in MOST.items():
        _whole(cfg, 1, name, below=most + 1)
    _number(cfg, 0, 1000, "mlp_ratio")
    _number(cfg, LEAST_EPS, math.inf, "norm_eps")
    _number(cfg, 0, 1, "dropout", open_high=True)
    _choices(cfg)
    _whole(cfg, 0, "loss_chunk")
    if cfg.n_embd % cfg.n_head:
        small = [h for h in range(1, math.isqrt(cfg.n_embd) + 1) if cfg.n_embd % h == 0]
        near = min(*small, *(cfg.n_embd // h for h in small), key=lambda h: (abs(h - cfg.n_head), h))
        raise UserError(
            f"n_head is {cfg.n_head}, n_embd is {cfg.n_embd}: n_head must divide n_embd; "
            f"try n_head={near} or n_embd={-(-cfg.n_embd // cfg.n_head) * cfg.n_head}"
        )
    cfg = replace(cfg, heads=_heads_left(cfg))
    if cfg.positions == "rope" and cfg.head_width % 2:
        raise UserError(
            f"n_embd / n_head is {cfg.head_width}: rope turns pairs, so the head width must be even; "
            "change n_embd or n_head, or set positions to learned"
        )
    return cfg


def _heads_left(cfg: GPTConfig) -> tuple[tuple[int, ...], ...]:
    """`cfg.heads` with lists as tuples; a count, as older pruned runs have, stands for that many first heads."""
    heads, L, H = cfg.heads, cfg.n_layer, cfg.n_head
    layers: list[Any] = list(heads) if isinstance(heads, tuple | list) else [None]
    fits = len(layers) in (0, L)
    layers = [tuple(range(x)) if fits and type(x) is int and 0 <= x <= H else x for x in layers]
    known = all(isinstance(x, tuple | list) and all(type(h) is int and 0 <= h < H for h in x) for x in layers)
    _require(
        fits and known and all(list(x) == sorted({*x}) for x in layers), "heads", heads,
        f"must be the numbers of the heads left, from 0 to {H - 1}, for each of n_layer={L} layers, or none",
    )  # fmt: skip
    return tuple(map(tuple, layers))


def _check_training(cfg: TrainConfig) -> TrainConfig:
    cfg = replace(cfg, model=check(cfg.model))
    cfg = _check_sources(cfg)
    _whole(cfg, 1, "steps", "batch_size", "accumulate", "steps_per_dispatch", "max_skipped")
    _whole(cfg, 1, "eval_every", "checkpoint_every")
    _whole(cfg, 0, "sample_every", "keep_checkpoints", "stop_early")
    _whole(cfg, 0, *["warmup_steps"] * (cfg.warmup_steps is not None))
    _whole(cfg, 0, "seed", below=2**32)  # jax.random keeps no more
    _require(
        cfg.steps_per_dispatch <= MAX_DISPATCH, "steps_per_dispatch", cfg.steps_per_dispatch,
        f"must be at most {MAX_DISPATCH}",
    )  # fmt: skip
    _number(cfg, 0, math.inf, "learning_rate", "min_learning_rate", "weight_decay", "grad_clip")
    _number(cfg, 0, 1, "beta1", "beta2", "val_fraction", open_high=True)
    _require(cfg.val_fraction > 0, "val_fraction", cfg.val_fraction, "must be above 0, so that there is a check")
    _choices(cfg)
    _require(bool(cfg.data), "data", cfg.data, "name a corpus, a file or a directory")
    if cfg.steps < cfg.warmup:
        raise UserError(
            f"steps is {cfg.steps}, warmup_steps is {cfg.warmup_steps}: "
            "a run cannot end inside its warm-up; raise steps or lower warmup_steps"
        )
    if cfg.min_learning_rate > cfg.learning_rate:
        raise UserError(
            f"min_learning_rate is {cfg.min_learning_rate:g}, learning_rate is {cfg.learning_rate:g}: "
            "the rate falls from learning_rate to min_learning_rate; lower the one or raise the other"
        )
    return cfg


def _check_sampling(cfg: SampleConfig) -> SampleConfig:
    stop = (cfg.stop,) if isinstance(cfg.stop, str) else cfg.stop
    _require(isinstance(stop, Sequence), "stop", stop, "must be text, or a list of texts")
    cfg = replace(cfg, stop=tuple(stop))
    given = {name for name in ("top_k", "top_p", "min_p") if getattr(cfg, name) is not None}
    _whole(cfg, 1, "max_tokens", "n", *({"top_k"} & given))
    _whole(cfg, 0, "seed", below=2**63)
    _number(cfg, 0, 1e6, "temperature", "repetition_penalty")
    _number(cfg, 0, 1, *({"top_p"} & given))
    _number(cfg, 0, 1, *({"min_p"} & given), open_high=True)
    _require(cfg.top_p != 0, "top_p", cfg.top_p, "must be above 0; for the likeliest token set temperature to 0")
    penalty = cfg.repetition_penalty
    _require(penalty > 0, "repetition_penalty", penalty, "must be above 0; 1 turns it off")
    for text in cfg.stop:
        _require(isinstance(text, str) and text != "", "stop", text, "must be text of one character or more")
    return cfg


def _check_sources(cfg: Any) -> Any:
    names = {name: _names(name, getattr(cfg, name)) for name in ("data", "include", "exclude")}
    too_many = f"must be at most {MOST_NAMES:,} names; put the files into a folder and name that"
    _require(len(names["data"]) <= MOST_NAMES, "data", f"{len(names['data']):,} names", too_many)
    return replace(cfg, **{**names, "data": tuple(map(os.path.expanduser, names["data"]))})


_CHECKS: dict[type, Callable[[Any], Any]] = {
    GPTConfig: _check_model,
    TrainConfig: _check_training,
    SampleConfig: _check_sampling,
    Sources: _check_sources,
}


_HINTS = {kind: get_type_hints(kind) for kind in _CHECKS}
_LITERALS = {
    kind: {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
    for kind, hints in _HINTS.items()
}
NO_NAME = "no file can have this name; choose another"


def _require(ok: bool, name: str, value: object, remedy: str) -> None:
    if not ok:
        raise UserError(f"{name} is {shown(value)}: {remedy}")


def _choices(config: Any) -> None:
    """Every field whose type is a Literal has one of its values."""
    for name, choices in _LITERALS[type(config)].items():
        value = getattr(config, name)
        _require(isinstance(value, str) and value in choices, name, value, f"must be one of {', '.join(choices)}")


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


def _names(name: str, value: Any) -> tuple[str, ...]:
    """Names or patterns as a tuple; one string is a sequence of strings as well, but nobody means its characters."""
    value = (value,) if isinstance(value, str | os.PathLike) else value
    named = isinstance(value, (tuple, list)) and all(isinstance(one, str | os.PathLike) for one in value)
    what = "names of corpora, files or directories" if name == "data" else "patterns for the names of files"
    _require(named, name, value, f"must be {what}")
    empty = name != "data" and "" in value
    _require(not empty, name, value, "an empty pattern fits no name; leave it out, or take '*' for every file")
    for one in value:
        _require(_is_name(one), name, one, NO_NAME)
    return tuple(os.fspath(one) for one in value)


def _is_name(value: Any) -> bool:
    """Whether a file can have this name: it has no NUL, and no half of a surrogate pair but those that Python puts in
    the place of bytes that are not UTF-8."""
    try:
        return isinstance(os.fspath(value), str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False
