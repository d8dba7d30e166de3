"""How much memory is asked for: said before the work, in one line, never where it would fit."""

import dataclasses
import resource

import jax
import numpy as np
import pytest

import tinygpt_jax as tg
from tinygpt_jax import measure, memory
from tinygpt_jax.config import MAX_DISPATCH, GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.measure import check_memory, host_memory, program_memory, total_memory
from tinygpt_jax.memory import FACTOR, check_training, decode_bytes, forward_bytes, param_bytes, train_bytes
from tinygpt_jax.params import param_shapes
from tinygpt_jax.sampling.decode import prefill
from tinygpt_jax.text import Tokens
from tinygpt_jax.training.compilation import Compilation
from tinygpt_jax.training.feed import make_feed
from tinygpt_jax.training.loss import window_losses
from tinygpt_jax.training.step import init_state, make_dispatch

MODEL = GPTConfig(vocab_size=65, positions="rope", n_layer=2)
SHAPE = jax.ShapeDtypeStruct
STEPS = {
    "small": TrainConfig(model=MODEL, batch_size=1, optimizer="sgd"),
    "adam": TrainConfig(model=MODEL, batch_size=2, optimizer="adamw"),
    "usual": TrainConfig(model=MODEL, batch_size=64, optimizer="sgd"),
    "accumulated": TrainConfig(model=MODEL, batch_size=64, accumulate=2),
    "long": TrainConfig(model=dataclasses.replace(MODEL, block_size=512, n_head=8), batch_size=4),
    "remat": TrainConfig(model=dataclasses.replace(MODEL, remat=True, n_layer=6), batch_size=64),
    "words": TrainConfig(model=dataclasses.replace(MODEL, vocab_size=20000), batch_size=12, optimizer="lion"),
    "no mlp": TrainConfig(model=dataclasses.replace(MODEL, mlp_ratio=0.0, attention="fused"), batch_size=32),
}


def planned(function, *shapes, **jit):
    return program_memory(jax.jit(function, **jit).lower(*shapes).compile())


QUICK = ("usual", "words")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(x, marks=pytest.mark.slow) for x in STEPS if x not in QUICK)])
def test_the_estimate_of_a_train_step_is_a_lower_bound_and_near(name):
    cfg = STEPS[name]
    starts = SHAPE((MAX_DISPATCH, cfg.accumulate, cfg.batch_size), np.int32)
    state = jax.eval_shape(lambda: init_state(cfg))
    found = planned(make_dispatch(cfg), state, SHAPE((1000,), np.int32), starts, SHAPE((), np.int32), donate_argnums=0)
    assert found / FACTOR < train_bytes(cfg) < found


@pytest.mark.parametrize("B", [1, 16])
@pytest.mark.parametrize("changes", [{}, {"block_size": 512, "n_head": 8}, {"vocab_size": 20000}, {"mlp_ratio": 0.0}])
def test_the_estimates_of_a_forward_pass_and_of_a_cache_are_lower_bounds_and_near(B, changes):
    cfg = dataclasses.replace(MODEL, **changes)
    params, ids = param_shapes(cfg), SHAPE((B, cfg.block_size), np.int32)
    found = planned(window_losses, params, ids, ids, cfg, static_argnums=3)
    assert found / FACTOR < forward_bytes(cfg, B, cfg.block_size) < found
    filled = prefill.lower(params, SHAPE((B, 8), np.int32), SHAPE((B,), np.int32), {}, cfg).compile()
    assert program_memory(filled) / FACTOR < decode_bytes(cfg, B) < program_memory(filled)


def test_parameters_take_what_they_take():
    assert param_bytes(MODEL) == sum(leaf.size * 4 for leaf in jax.tree.leaves(param_shapes(MODEL)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 30_000_000}, "batch_size 30000000, .* memory or more, and there are 8.0 GiB: lower batch_size"),
        ({"accumulate": 2**31 - 1}, "accumulate 2147483647 .*: lower accumulate"),
        ({"model": dataclasses.replace(MODEL, n_embd=2**31 - 8)}, "lower n_layer, n_embd, block_size or vocab_size"),
        ({"model": dataclasses.replace(MODEL, n_layer=2**10, n_embd=2**12)}, "lower n_layer, n_embd"),
        ({"model": dataclasses.replace(MODEL, block_size=2**20)}, "block_size 1048576 .*: lower n_layer, n_embd"),
        ({"model": dataclasses.replace(MODEL, vocab_size=2**20, n_embd=2**14)}, "lower n_layer, n_embd, block_size or"),
    ],
)
def test_what_cannot_fit_is_refused_before_anything_is_made(settings, message, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "total_memory", lambda: 2.0**33)
    cfg = TrainConfig(**{"model": MODEL, **settings})
    for use in (check_training, tg.bench, lambda cfg: tg.train_many(cfg, np.zeros(9, np.int32), [0])):
        with pytest.raises(UserError, match=message) as error:
            use(cfg)
        assert "\n" not in str(error.value)
    check_training(TrainConfig(model=MODEL))


def test_training_and_scoring_ask_for_memory_first(monkeypatch, tmp_path):
    (tmp_path / "a.txt").write_text("abcd" * 100)
    monkeypatch.setattr(memory, "total_memory", lambda: 2.0**20)
    monkeypatch.setattr(measure, "total_memory", lambda: 2.0**20)
    small = GPTConfig(vocab_size=4, block_size=8, n_layer=1, n_head=1, n_embd=512)
    with pytest.raises(UserError, match=r"training 3,\d+,\d+ parameters .* takes .* MiB of memory or more"):
        tg.train(TrainConfig(model=small, data=(str(tmp_path / "a.txt"),), out=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="scoring 12 windows of 8 tokens takes .* MiB of memory or more"):
        tg.evaluate_tokens(tg.init_params(jax.random.key(0), small), small, Tokens(np.zeros(97, np.int32), 97, 97))


def test_what_the_compiler_plans_is_held_to_the_memory_too(monkeypatch):
    cfg = TrainConfig(model=dataclasses.replace(MODEL, n_layer=1, n_embd=16), batch_size=2, optimizer="sgd")
    between = 1.5 * train_bytes(cfg)
    monkeypatch.setattr(measure, "total_memory", lambda: between)
    with pytest.raises(UserError, match="the compiled train step takes .* lower batch_size, and raise accumulate"):
        Compilation(cfg, make_feed(cfg, np.zeros(1000, np.int32))).program.result()


def test_the_memory_of_the_machine_is_the_least_of_what_limits_it(monkeypatch, tmp_path):
    files = {"/proc/meminfo": "MemTotal: 9 kB\nSwapTotal: 2 kB", "/proc/self/cgroup": "3:cpu:/x\n4:memory:/a/b\n0::/c"}
    monkeypatch.setattr(measure, "_lines", lambda file: files.get(str(file), "").splitlines())
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    machine = host_memory()
    assert 2**28 < machine < 2**50
    files["/sys/fs/cgroup/memory.max"] = "max"
    files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = str(2**63 - 4096)
    assert host_memory() == machine
    for file in ("memory.max", "c/memory.max", "memory/memory.limit_in_bytes", "memory/a/b/memory.limit_in_bytes"):
        with monkeypatch.context() as patch:
            patch.setitem(files, f"/sys/fs/cgroup/{file}", "4096")
            assert host_memory() == 4096 + 2048, file
    monkeypatch.setattr(resource, "getrlimit", lambda which: (5000, 5000))
    assert host_memory() == 5000
    assert total_memory() == 5000


def test_as_much_as_there_is_may_be_asked_for():
    check_memory(total_memory(), "it", "less")
    check_memory(10**30, "it", "less", np.inf)
    with pytest.raises(UserError, match=r"^it takes 5.0 MiB of memory or more, and there are 4.0 MiB: less$"):
        check_memory(5 * 2**20, "it", "less", 4 * 2**20)
