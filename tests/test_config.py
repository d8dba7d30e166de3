"""Settings: each nonsense value gets one line with its name, its value and a remedy; layers win in their order."""

import dataclasses
import json
from pathlib import Path
from typing import get_args, get_type_hints

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinygpt_jax as tg
from tinygpt_jax.checks import check
from tinygpt_jax.config import GPTConfig, SampleConfig, Sources, TrainConfig, architecture
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.presets import PRESETS, override, preset, read_settings
from tinygpt_jax.runs import Model
from tinygpt_jax.text import Tokens


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 0}, "block_size is 0: must be a whole number, 1 or more"),
        ({"n_layer": -1}, "n_layer is -1"),
        ({"n_layer": 2.5}, "n_layer is 2.5"),
        ({"n_layer": True}, "n_layer is True"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"n_head": 3}, "n_head is 3, n_embd is 128: n_head must divide n_embd; try n_head=2 or n_embd=129"),
        ({"dropout": 1.0}, "dropout is 1.0: must be a number, 0 or more and below 1"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"mlp_ratio": -1}, "mlp_ratio is -1"),
        ({"mlp_ratio": 1e308}, "mlp_ratio is 1e+308: must be a number, 0 or more and at most 1000"),
        ({"positions": "learnt"}, "positions is 'learnt': must be one of learned, sinusoidal, rope, none"),
        ({"norm": "batch"}, "norm is 'batch'"),
        ({"activation": "swish"}, "activation is 'swish'"),
        ({"compute_dtype": "float16"}, "compute_dtype is 'float16'"),
        ({"positions": "rope", "n_embd": 12, "n_head": 4}, "rope turns pairs"),
        (
            {"heads": (4, 4, 4)},
            "heads is (4, 4, 4): must be the numbers of the heads left, from 0 to 3",
        ),
        ({"heads": (4, 4, 4, 5)}, "heads is (4, 4, 4, 5)"),
        ({"heads": (4, 4, 4, -1)}, "heads is (4, 4, 4, -1)"),
        ({"heads": (4, 4, 4, True)}, "heads is (4, 4, 4, True)"),
        ({"heads": 4}, "heads is 4"),
        ({"heads": ((0,), (), (3, 1), ())}, "heads is ((0,), (), (3, 1), ())"),
        ({"heads": ((0,), (), (4,), ())}, "heads is ((0,), (), (4,), ())"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(UserError, match=None) as error:
        check(GPTConfig(**settings))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": -5}, "steps is -5: must be a whole number, 1 or more"),
        ({"steps": 15, "warmup_steps": 20}, "steps is 15, warmup_steps is 20: a run cannot end inside its warm-up"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"accumulate": 0}, "accumulate is 0"),
        ({"steps_per_dispatch": 101}, "steps_per_dispatch is 101: must be at most 100"),
        ({"learning_rate": float("inf")}, "learning_rate is inf"),
        ({"learning_rate": -1e-3}, "learning_rate is -0.001"),
        ({"min_learning_rate": 1.0}, "min_learning_rate is 1, learning_rate is 0.01"),
        ({"beta1": 1.0}, "beta1 is 1.0"),
        ({"val_fraction": 0.0}, "val_fraction is 0.0: must be above 0"),
        ({"val_fraction": 1.0}, "val_fraction is 1.0"),
        ({"optimizer": "adam2"}, "optimizer is 'adam2': must be one of adamw, adam, sgd, lion, muon"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**32}, "must be below 4294967296"),
        ({"steps": 2**31}, "steps is 2147483648: must be below 2147483648"),
        ({"learning_rate": 10**400}, "learning_rate is 1000"),
        ({"data": 7}, "data is 7: must be names"),
        ({"data": (7,)}, "data is (7,): must be names"),
        ({"data": ()}, "data is ()"),
        ({"eval_every": 0}, "eval_every is 0"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"warmup_steps": "ten"}, "warmup_steps is 'ten'"),
    ],
)
def test_a_training_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(UserError) as error:
        check(TrainConfig(**settings))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


PARAMS = tg.init_params(jax.random.key(0), GPTConfig(vocab_size=7, n_layer=1))
UNEVEN = GPTConfig(vocab_size=7, n_layer=1, n_head=3)
UNEVEN_RUN = TrainConfig(model=UNEVEN)
UNEVEN_MODEL = Model(PARAMS, UNEVEN, tg.char_tokenizer("abcdefg"))
IDS = np.zeros((2, 5), np.int32)


@pytest.mark.parametrize(
    "use",
    [
        lambda: tg.init_params(jax.random.key(0), UNEVEN),
        lambda: tg.count_params(UNEVEN),
        lambda: tg.gpt_forward(PARAMS, IDS, UNEVEN),
        lambda: tg.hidden_states(PARAMS, IDS, UNEVEN),
        lambda: tg.evaluate_tokens(PARAMS, UNEVEN, Tokens(IDS[0], 5, 5)),
        lambda: tg.ablate_heads(PARAMS, IDS, UNEVEN),
        lambda: tg.sample(UNEVEN_MODEL, "a"),
        lambda: tg.train(UNEVEN_RUN),
        lambda: tg.train_many(UNEVEN_RUN, IDS[0], [0]),
        lambda: tg.bench(UNEVEN_RUN),
        lambda: tg.whole(PARAMS, UNEVEN),
        lambda: tg.prune(UNEVEN_MODEL, np.ones((1, 4), bool)),
        lambda: tg.switched_off(["0.0"], UNEVEN),
        lambda: tg.ablate_pairs(PARAMS, IDS, UNEVEN),
        lambda: tg.path_patch(PARAMS, IDS, IDS, UNEVEN),
        lambda: tg.pruning_curve(PARAMS, IDS, UNEVEN, [(0, 0), (0, 1), (0, 2), (0, 3)]),
        lambda: tg.position_tables(PARAMS, UNEVEN),
        lambda: tg.norm_rows(PARAMS, IDS[0], UNEVEN),
        lambda: tg.mlp_widths(PARAMS, UNEVEN),
        lambda: tg.embedding_map(PARAMS, UNEVEN),
    ],
    ids=[
        *("init", "count", "forward", "hidden", "evaluate", "ablate", "sample", "train", "many", "bench"),
        *("whole", "prune", "switched_off", "pairs", "paths", "curve", "positions", "norm", "widths", "embedding"),
    ],
)
def test_settings_are_checked_by_whatever_uses_them_first(use):
    with pytest.raises(UserError, match="n_head is 3, n_embd is 128: n_head must divide n_embd"):
        use()


@pytest.mark.parametrize("settings", [None, {"n_layer": 1}, TrainConfig(model={"n_layer": 1})])
def test_what_is_no_settings_is_refused(settings):
    with pytest.raises(UserError, match=r"settings are .*: must be a GPTConfig, TrainConfig, SampleConfig, Sources"):
        check(settings)


def test_a_model_whose_heads_are_lists_writes():
    model = tg.prune(UNEVEN_MODEL._replace(cfg=dataclasses.replace(UNEVEN, n_head=4)), np.array([[True] * 3 + [False]]))
    as_list = model._replace(cfg=dataclasses.replace(model.cfg, heads=[[0, 1, 2]]))
    assert tg.generate(as_list, "a", max_tokens=3) == tg.generate(model, "a", max_tokens=3)


def test_execution_is_no_part_of_the_architecture():
    known = {f.name for f in dataclasses.fields(GPTConfig)}
    execution = {"compute_dtype", "unroll_layers", "remat", "attention", "loss_chunk"}
    assert architecture(GPTConfig()).keys() == known - execution
    assert architecture(GPTConfig(remat=True)) == architecture(GPTConfig()) != architecture(GPTConfig(n_layer=3))


def test_one_source_of_text_may_stand_alone():
    for data in ("book.txt", Path("book.txt"), ("book.txt",), [Path("book.txt")]):
        assert check(TrainConfig(data=data)).data == ("book.txt",)


def test_heads_left_by_pruning_are_read_from_json():
    pruned = TrainConfig(model=GPTConfig(heads=((0, 1, 2, 3), (), (2,), (0, 3))))
    read = check(override(TrainConfig(), json.loads(json.dumps(dataclasses.asdict(pruned))), "run.json"))
    assert read == pruned
    assert hash(read.model) == hash(pruned.model)
    assert (read.model.heads_per_layer, GPTConfig().heads_per_layer) == ((4, 0, 1, 2), (4, 4, 4, 4))
    assert (read.model.head_counts, GPTConfig().head_counts) == ("4, 0, 1, 2", "4")
    assert check(GPTConfig(heads=[4, 0, 1, 2])).heads == ((0, 1, 2, 3), (), (0,), (0, 1))  # as older runs have it


def test_the_defaults_are_the_small_gpt():
    cfg = GPTConfig()
    assert (cfg.n_layer, cfg.n_embd, cfg.n_head, cfg.positions, cfg.tied) == (4, 128, 4, "learned", True)
    assert (cfg.activation, cfg.norm, cfg.norm_eps, cfg.attn_bias, cfg.dropout) == ("gelu", "layernorm", 1e-5, False, 0)


@given(st.integers(1, 200), st.integers(1, 200))
def test_padding_rounds_up_to_the_multiple(vocab_size, multiple):
    padded = GPTConfig(vocab_size=vocab_size, vocab_multiple=multiple).padded_vocab_size
    assert padded % multiple == 0
    assert vocab_size <= padded < vocab_size + multiple


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_training(name):
    assert isinstance(check(override(TrainConfig(), preset(name), name)), TrainConfig)


def test_the_nano_cpu_preset_is_the_published_recipe():
    cfg = check(override(TrainConfig(), preset("nano-cpu"), "nano-cpu"))
    model = cfg.model
    assert (model.n_layer, model.n_head, model.n_embd, model.block_size) == (4, 4, 128, 64)
    assert (cfg.batch_size, cfg.steps, cfg.learning_rate, cfg.min_learning_rate) == (12, 2000, 1e-3, 1e-4)
    assert (cfg.warmup_steps, cfg.beta2, cfg.weight_decay, cfg.grad_clip) == (100, 0.99, 0.1, 1.0)
    assert (cfg.optimizer, cfg.schedule, cfg.beta1, model.positions, model.dropout) == (
        "adamw", "cosine", 0.9, "learned", 0.0
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stpes": 3}, "setting 'stpes' is unknown; did you mean 'steps'?"),
        ({"model": {"n_layers": 3}}, "here, model: setting 'n_layers' is unknown; did you mean 'n_layer'?"),
        ({"n_layer": 3}, "setting 'n_layer' is unknown; it belongs into the table [model]"),
        ({"steps": "many"}, "here: steps is 'many': must be of type int"),
        ({"steps": 1.5}, "steps is 1.5: must be of type int"),
        ({"model": 3}, "model is 3: must be a table"),
        ({"model": {"tied": 1}}, "tied is 1: must be of type bool"),
        ({"data": 7}, "data is 7"),
        ({"learning_rate": 10**400}, "learning_rate is 1000"),
        ([], "here: settings are []: must be a table"),
    ],
)
def test_unknown_names_and_wrong_types_are_refused(settings, message):
    with pytest.raises(UserError) as error:
        check(override(TrainConfig(), settings, "here"))
    assert message in str(error.value)


def test_layers_are_checked_only_together():
    """A warm-up that is too long may come from one layer and the shorter one from the next."""
    cfg = override(TrainConfig(), {"steps": 15, "warmup_steps": 20}, "file")
    assert check(override(cfg, {"warmup_steps": 5}, "flags")).steps == 15
    assert check(override(cfg, {"warmup_steps": None}, "flags")).warmup == 7
    with pytest.raises(UserError, match="warm-up"):
        check(cfg)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 1), (5, 2), (39, 19), (40, 20), (600, 20)])
def test_a_warmup_that_nobody_asked_for_fits_the_steps(steps, warmup):
    cfg = TrainConfig(steps=steps)
    assert cfg.warmup == warmup
    assert dataclasses.replace(cfg, steps=5).warmup == 2
    with pytest.raises(UserError, match=f"steps is {steps}, warmup_steps is {steps + 1}"):
        check(TrainConfig(steps=steps, warmup_steps=steps + 1))


LEAST = {
    TrainConfig: {
        "val_fraction": 1e-9, "seed": 0, "steps": 1, "batch_size": 1, "accumulate": 1, "steps_per_dispatch": 1,
        "learning_rate": 0.0, "min_learning_rate": 0.0, "warmup_steps": 0, "weight_decay": 0.0, "beta1": 0.0,
        "beta2": 0.0, "grad_clip": 0.0, "max_skipped": 1, "eval_every": 1, "checkpoint_every": 1,
        "keep_checkpoints": 0, "sample_every": 0, "stop_early": 0,
    },
    GPTConfig: {
        "vocab_size": 1, "block_size": 1, "n_layer": 1, "n_head": 1, "n_embd": 8, "mlp_ratio": 0.0, "norm_eps": 1e-12,
        "dropout": 0.0, "vocab_multiple": 1, "unroll_layers": 1, "loss_chunk": 0,
    },
    SampleConfig: {
        "max_tokens": 1, "temperature": 0.0, "top_k": 1, "top_p": 1e-9, "min_p": 0.0, "repetition_penalty": 1e-9,
        "seed": 0, "n": 1,
    },
}  # fmt: skip
"""The least of every number; of n_embd the least that the default heads divide into pairs."""


@pytest.mark.parametrize("kind", LEAST)
def test_the_least_of_every_number_goes_with_the_other_defaults(kind):
    """No default is in the way of a small setting, neither alone nor all at once."""
    numbers = {name for name, hint in get_type_hints(kind).items() if {int, float} & {hint, *get_args(hint)}}
    assert set(LEAST[kind]) == numbers
    base = TrainConfig().model if kind is GPTConfig else kind()
    for name, value in LEAST[kind].items():
        assert getattr(check(dataclasses.replace(base, **{name: value})), name) == value
    check(dataclasses.replace(base, **LEAST[kind]))


def test_whole_numbers_and_lists_take_the_type_they_replace():
    cfg = override(TrainConfig(), {"learning_rate": 1, "data": ["a", "b"]}, "here")
    assert isinstance(cfg.learning_rate, float)
    assert cfg.data == ("a", "b")
    assert override(TrainConfig(), {"data": "a"}, "here").data == ("a",)


def test_settings_files(tmp_path):
    toml, js = tmp_path / "a.toml", tmp_path / "a.json"
    toml.write_text("steps = 7\n[model]\nn_layer = 2\n")
    js.write_text(json.dumps({"format": 1, "config": {"steps": 9}}))
    assert read_settings(toml) == {"steps": 7, "model": {"n_layer": 2}}
    assert read_settings(js) == {"steps": 9}
    js.write_text(json.dumps(dataclasses.asdict(TrainConfig())))
    assert check(override(TrainConfig(seed=5), read_settings(js), "file")) == TrainConfig()
    for name, content, message in (
        ("b.toml", "steps = ", "is not TOML"),
        ("b.json", "{", "is not JSON"),
        ("c.json", "[1]", "holds list"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=message):
            read_settings(tmp_path / name)
    with pytest.raises(UserError, match=r"none.toml' cannot be read \(No such file"):
        read_settings(tmp_path / "none.toml")


def test_nearest_names_one_or_lists_all():
    assert nearest("nano-cpi", ["nano-cpu", "toy"]) == "; did you mean 'nano-cpu'?"
    assert nearest("zzz", ["nano-cpu", "toy"]) == "; known: nano-cpu, toy"


def test_a_list_of_texts_has_an_end():
    assert check(Sources(("a.txt",) * 10_000)).data[-1] == "a.txt"
    with pytest.raises(UserError, match="data is .*10,001 names.*must be at most 10,000"):
        check(Sources(("a.txt",) * 10_001))
