"""`tinygpt bench`: what it counts, what it reports, and in which unit."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import tinygpt_jax as tg
from tests.pages import Page
from tinygpt_jax.cli import main
from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.params import flops_per_token, init_params
from tinygpt_jax.training.loss import loss_sum

TOY = GPTConfig(vocab_size=7, block_size=8, n_layer=2, n_head=2, n_embd=8)
FLAGS = ["--quick", "--n-layer", "2", "--n-head", "2", "--n-embd", "8", "--block-size", "8", "--batch-size", "2"]


def test_operations_by_hand():
    # Two layers of 4 · 8 · 8 in attention and 2 · 8 · 32 in the MLP, a head of 7 · 8; 8 keys seen by each query.
    assert flops_per_token(TOY) == 6 * (2 * (256 + 512) + 56) + 12 * 2 * 8 * 8
    assert flops_per_token(GPTConfig(vocab_size=7, vocab_multiple=8, block_size=8, n_layer=2, n_head=2, n_embd=8)) == (
        flops_per_token(TOY) + 6 * 8
    )
    # A head has four matrices of 8 · 4, and is 4 wide.
    one_gone = flops_per_token(dataclasses.replace(TOY, heads=((0, 1), (0,))))
    assert flops_per_token(TOY) - one_gone == 6 * 4 * 8 * 4 + 12 * 8 * 4


@pytest.mark.parametrize(
    "changes", [{}, {"n_layer": 3, "block_size": 128}, {"mlp_ratio": 0.0}, {"tied": False}], ids=str
)
def test_operations_are_those_that_xla_counts(changes):
    """XLA also counts norms, softmax, activations and the loss: a few per cent more."""
    cfg = GPTConfig(**{"vocab_size": 300, "block_size": 64, "n_layer": 2, "n_head": 2, "n_embd": 256, **changes})
    params = jax.eval_shape(lambda: init_params(jax.random.key(0), cfg))
    ids = jax.ShapeDtypeStruct((2, cfg.block_size), np.int32)
    gradient = jax.jit(jax.grad(lambda params, ids, targets: loss_sum(params, ids, targets, cfg)))
    counted = gradient.lower(params, ids, ids).cost_analysis()["flops"] / (2 * cfg.block_size)
    assert 0.9 < flops_per_token(cfg) / counted <= 1.0


@pytest.fixture(scope="module")
def result():
    said = []
    return tg.bench(TrainConfig(model=TOY, batch_size=2, accumulate=3), quick=True, tell=said.append), said


def test_a_result_adds_up(result):
    result, said = result
    train, sweep = result.train, result.sweep
    assert train.tokens_per_step == 3 * 2 * 8
    assert train.tokens_per_second == pytest.approx(1000 * train.tokens_per_step / train.step_ms)
    assert train.step_ms_low <= train.step_ms <= train.step_ms_high
    assert train.gflops == pytest.approx(train.tokens_per_second * result.flops_per_token / 1e9)
    assert train.peak_share == pytest.approx(train.gflops / result.matmul_gflops)
    assert 0 < train.peak_share < 1
    assert train.memory_bytes > 4 * 3 * result.parameters  # parameters and two moments, or one and more temporaries
    assert train.compile_seconds > 0
    assert not train.compilation_cached
    assert set(result.decode_tokens_per_second) == {1, 32}
    assert all(speed > 0 for speed in result.decode_tokens_per_second.values())
    assert (sweep.heads, sweep.windows) == (4, 64)
    assert sweep.forwards == pytest.approx(sweep.seconds / sweep.forward_seconds)
    assert any("every head" in line for line in said)


def test_every_number_carries_its_unit(result):
    text = "\n".join(result[0].lines())
    assert dict(Page(result[0]._repr_html_()).tables[0]) == result[0].facts()
    for part in ("parameters", "layers of 8", "compiled in ", " tokens/s;", " ms per step of 48 tokens", " GFLOP/s"):
        assert part in text
    for part in ("% of a 1024 x 1024", " MiB", "tokens/s at batch 1, ", "tokens/s at batch 32", " ms to switch off"):
        assert part in text


@pytest.mark.slow
def test_the_command_prints_one_document(capsys):
    assert main(["bench", *FLAGS, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["model"]["n_layer"] == 2
    assert document["train"]["step_ms"] > 0
    assert set(document["decode_tokens_per_second"]) == {"1", "32"}
    assert "compiling the train step" in err


def test_the_command_takes_a_run_a_preset_and_flags_in_this_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr("tinygpt_jax.benchmark.bench", lambda cfg, **_: asked.append(cfg) or 1 / 0)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 40)
    small = ["--n-layer", "3", "--n-embd", "12", "--n-head", "3", "--block-size", "9", "--batch-size", "5"]
    assert main(["train", "--data", "text.txt", *small, "--steps", "1", "--warmup-steps", "0", "--out", "run"]) == 0
    (tmp_path / "toy").mkdir()  # the value of a flag is not the name of a run
    for words in (["run"], ["--batch-size", "4", "run"], ["--preset", "toy", "run"], ["--preset", "classic-bpe"], []):
        with pytest.raises(ZeroDivisionError):
            main(["bench", *words])
    assert asked[-1].model == dataclasses.replace(TrainConfig().model, vocab_size=65)  # what `train` trains
    shapes = [(cfg.model.n_layer, cfg.model.n_embd, cfg.model.vocab_size, cfg.batch_size) for cfg in asked]
    vocabulary = len(set("the quick brown fox jumps over the lazy dog "))
    assert shapes == [
        (3, 12, vocabulary, 5), (3, 12, vocabulary, 4), (2, 32, vocabulary, 5), (4, 128, 3000, 16), (4, 128, 65, 12),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["runs/none"], "run runs/none does not exist"),
        (["--preset", "nano"], "preset 'nano' is unknown"),
        (["--n-head", "5"], "n_head is 5"),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--vocab-size", str(2**20 + 1)], "vocab_size is 1048577"),
    ],
)
def test_bad_input_is_one_line(words, part, capsys):
    assert main(["bench", *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert part in err


def test_a_training_that_diverges_is_not_timed():
    cfg = TrainConfig(model=dataclasses.replace(TOY, norm="none"), optimizer="sgd", learning_rate=1e30, grad_clip=0.0)
    with pytest.raises(UserError, match="not finite"):
        tg.bench(cfg, quick=True)


@pytest.mark.slow
def test_a_pruned_model_is_measured_as_any_other():
    pruned = dataclasses.replace(TOY, heads=((1,), ()))
    found = tg.bench(TrainConfig(model=pruned, batch_size=2), quick=True)
    assert found.parameters == tg.count_params(pruned) < tg.count_params(TOY)
    assert found.flops_per_token < flops_per_token(TOY)
    assert found.sweep.heads == 4
    assert found.facts()["model"].startswith(f"{found.parameters:,} parameters, 2 layers of 8, 1, 0 heads")
