import numpy as np
import pytest

from tests.lab.planted import planted
from tinygpt_jax.forward_pass import forward
from tinygpt_jax.params import check_params
from tinygpt_jax.text import repeated_sequences
from tinygpt_jax.training.loss import token_losses


def mean_loss(params, cfg, examples):
    losses = token_losses(forward(params, examples.ids, cfg).logits, examples.targets)
    return float(losses.sum()) / (examples.targets >= 0).sum()


@pytest.mark.parametrize("n_head", [2, 3, 4])
def test_it_predicts_what_repeats_and_nothing_else(n_head):
    params, cfg, facts = planted(n_head)
    check_params(params, cfg)
    assert len({facts.previous, facts.induction, *facts.inert}) == 2 * n_head
    sizes = (0, 0, 64, cfg.block_size, cfg.vocab_size)
    assert mean_loss(params, cfg, repeated_sequences(*sizes)) < 1e-3
    assert mean_loss(params, cfg, repeated_sequences(*sizes, corrupted=True)) > 2


@pytest.mark.parametrize("part", ["previous", "induction"])
def test_it_needs_both_heads(part):
    params, cfg, facts = planted(2)
    layer, head = getattr(facts, part)
    K = cfg.head_width
    Wo = np.array(params["blocks"]["Wo"])
    Wo[layer, head * K : (head + 1) * K] = 0
    broken = {**params, "blocks": {**params["blocks"], "Wo": Wo}}
    assert mean_loss(broken, cfg, repeated_sequences(0, 0, 64, cfg.block_size, cfg.vocab_size)) > 1
