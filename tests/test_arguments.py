"""Whatever a function of the package's face is given: a result, or one line that names the argument.

The walk takes the functions that measure, save and draw, every argument of them, and values of every wrong type: none
may end in an error of Python or JAX from deep within.
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import jax
import numpy as np
import pytest

import tinygpt_jax as tg
from tests.figures.made import results
from tests.lab.small import SMALL, random_params
from tinygpt_jax.arguments import checked, fit
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.intervention import Choices
from tinygpt_jax.text import Tokens, char_tokenizer

CFG = tg.GPTConfig(**SMALL)
PARAMS = random_params(CFG)
IDS = np.random.default_rng(0).integers(0, CFG.vocab_size, (4, CFG.block_size), np.int32)
HEADS = [(0, 0), (0, 1), (1, 0), (1, 1)]
MODEL = tg.Model(PARAMS, CFG, char_tokenizer("abcdefg"))
RIGHT = {
    "params": PARAMS, "cfg": CFG, "data": IDS, "ids": IDS[0], "examples": IDS, "clean": IDS, "corrupted": IDS[::-1],
    "model": MODEL, "keep": np.ones((2, 2), bool), "components": ["0.1"], "order": HEADS, "strengths": [0.1],
    "run": "no-such-run", "source": "no-such-run", "path": "no-such-file.json",
    "measure": print, "result": results(1)["layers"], "tokens": Tokens(IDS.ravel(), 40, 40),
}  # fmt: skip
"""What is right for an argument that has no default."""
WRONG = {
    "None": None, "5": 5, "-1": -1, "2.5": 2.5, "nan": float("nan"), "'x'": "x", "b''": b"x", "object": object(),
    "[None]": [None], "[2.5]": [2.5], "{}": {}, "True": True, "[[1], [1, 2]]": [[1], [1, 2]], "1e30": 10**30,
    "10^9999": 10**9999, "array": np.array(["x"]),
}  # fmt: skip
SENSELESS = {"0": 0, "inf": float("inf"), "''": "", "[]": [], "[-1]": [-1], "[1e30]": [10**30], "[nan]": [float("nan")]}
MEASURE = (
    "ablate_sets", "ablate_heads", "ablate_pairs", "switched_off", "head_importance", "shapley", "shapley_by_layer",
    "patch", "attribution_patch", "path_patch", "learn_gates", "prune", "save_pruned", "pruning_curve", "head_scores",
    "logit_lens", "logit_attribution", "attention_maps", "over_training", "run_windows", "read_result",
    "position_tables", "norm_rows", "head_split", "activation_curves", "mlp_widths", "residual_writes", "next_tokens",
    "embedding_map", "training_curves", "draw", "report_page", "evaluate", "evaluate_tokens", "bench",
)  # fmt: skip
VERBS = ("heads", "ablate", "patch_run", "plot", "report")


def arguments(function):
    """Every argument with its type, those of `**choices` too."""
    hints = get_type_hints(inspect.unwrap(function), include_extras=True) if function.__name__ in MEASURE else {}
    for name, one in inspect.signature(function).parameters.items():
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            yield from get_type_hints(Choices, include_extras=True).items()
        else:
            yield name, hints.get(name, one.annotation)


def fits(value, hint):
    try:
        fit("x", value, hint)
    except UserError:
        return False
    return True


def outcome(function, name, value):
    """What the function says of a wrong value of one argument, all others right."""
    needed = [n for n, p in inspect.signature(function).parameters.items() if p.default is p.empty and n in RIGHT]
    try:
        function(**{**{n: RIGHT[n] for n in needed}, name: value})
    except (UserError, TypeError, ValueError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("verb", [*MEASURE, *VERBS])
def test_a_value_of_the_wrong_type_is_refused_in_a_line_that_names_the_argument(verb):
    function, tried = getattr(tg, verb), 0
    for name, hint in arguments(function):
        for said, value in WRONG.items():
            if fits(value, hint):
                continue
            refused = outcome(function, name, value)
            tried += 1
            assert refused is not None, f"{verb}({name}={said}) is taken"
            assert name in refused, f"{verb}({name}={said}): {refused}"
            assert "\n" not in refused
            assert len(refused) < 500
    assert tried > 5


@pytest.mark.slow
@pytest.mark.parametrize("verb", [name for name in MEASURE if name != "bench"])  # which would measure each time
def test_a_senseless_value_of_the_right_type_is_measured_or_refused_in_a_line(verb):
    function = getattr(tg, verb)
    for name, hint in arguments(function):
        for said, value in {**WRONG, **SENSELESS}.items():
            if fits(value, hint) and hint is not bool and not callable(value):
                refused = outcome(function, name, value) or ""
                assert "\n" not in refused, f"{verb}({name}={said})"


@pytest.mark.parametrize(
    ("value", "hint", "fitted"),
    [
        (np.int64(3), int, 3),
        (np.float32(0.5), float, 0.5),
        (np.bool_(True), bool, True),
        (np.int8(2), float | None, 2),
        (np.array(3), int, 3),
        (np.array([0, 2]), Sequence[int] | None, (0, 2)),
        ([np.int64(1)], Sequence[int], [1]),
        (range(2), Sequence[int], (0, 1)),
        ("0.1", Sequence[str], ("0.1",)),
        ("", Sequence[str], ()),
        (Path("a/b"), str, "a/b"),
        (Path("a"), tuple[str, ...], ("a",)),
        ((0, 1), str | tuple[int, int], (0, 1)),
        (1, float, 1),
    ],
)
def test_what_means_the_same_is_taken_as_it(value, hint, fitted):
    found = fit("x", value, hint)
    assert found == fitted
    assert type(found) is type(fitted)


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        (True, int, "x is True: must be a whole number"),
        ("3", int | None, "x is '3': must be a whole number or None"),
        (2.0, Sequence[int], "must be a list (each a whole number)"),
        ([1, "a"], Sequence[int], "x is [1, 'a']: must be a list (each a whole number)"),
        ((0, 1, 2), tuple[int, int], "must be (a whole number, a whole number)"),
        (np.ones((2, 2)), bool, "x is an array of shape (2, 2): must be True or False"),
        (3, Callable[[str], None], "must be a function"),
        (3, Literal["a", "b"], "must be one of a, b"),
        ("a\nb" * 999, np.ndarray, "must be an array"),
        (None, Annotated[int, "a seed"], "x is None: must be a seed"),
        (3, tg.GPTConfig, "must be a GPTConfig"),
    ],
)
def test_what_does_not_fit_is_shown_with_what_would(value, hint, words):
    with pytest.raises(UserError) as refused:
        fit("x", value, hint)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_numbers_of_numpy_are_settings_like_any_other():
    sizes = {name: np.int64(value) for name, value in SMALL.items() if name != "mlp_ratio"}
    cfg = tg.GPTConfig(**sizes, mlp_ratio=np.float32(1))
    assert tg.count_params(cfg) == tg.count_params(CFG)
    assert tg.mlp_widths(PARAMS, cfg).definition == tg.mlp_widths(PARAMS, CFG).definition
    jax.block_until_ready(tg.gpt_forward(PARAMS, IDS, cfg))


def test_a_decorated_function_is_called_as_before():
    @checked
    def scaled(x: int, *, by: float = 2.0) -> float:
        return x * by

    assert scaled(np.int64(3)) == 6.0
    assert scaled(3, by=1) == 3
    with pytest.raises(UserError, match="by is 'a': must be a number"):
        scaled(3, by="a")
    with pytest.raises(TypeError, match="unexpected keyword argument 'to'"):
        scaled(3, to=1)


def test_parameters_that_are_none_of_the_models_are_named():
    for wrong in ({}, {"tok_emb": 3}, random_params(tg.GPTConfig(**{**SMALL, "n_embd": 8}))):
        with pytest.raises(UserError, match="parameters: "):
            tg.head_scores(wrong, IDS, CFG)
