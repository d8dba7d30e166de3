"""What each head is: exactly the heads that were planted, and none of a model that knows nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lab.planted import planted
from tests.lab.small import random_params
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.read.scores import head_scores
from tinygpt_jax.lab.roles import NONE, Role, conclusions, head_roles, rule
from tinygpt_jax.lab.windows import repeats
from tinygpt_jax.params import init_params


def both(params, cfg, n=32):
    ids = np.random.default_rng(0).integers(0, cfg.vocab_size, (n, cfg.block_size), np.int32)
    return head_scores(params, ids, cfg), head_scores(params, repeats(cfg, n), cfg)


def named(roles):
    return {head: [role.name for role in found] for head, found in roles.items() if found}


@pytest.fixture(scope="module", params=[2, 4])
def circuit(request):
    params, cfg, facts = planted(request.param)
    return params, cfg, facts, both(params, cfg)


def test_planted_heads_have_their_roles_and_no_others_have_any(circuit):
    _, _, facts, scores = circuit
    previous, induction = (f"{layer}.{head}" for layer, head in (facts.previous, facts.induction))
    found = head_roles(*scores)
    assert named(found) == {previous: ["previous_token"], induction: ["induction"]}
    assert len(found) == 2 + len(facts.inert)
    said = conclusions({"scores-text": scores[0], "scores-repeats": scores[1]})
    assert said[induction].startswith("induction, 1.00 ± 0.00 against 0.")
    assert said[previous].startswith("previous token, 1.00 ± 0.00 against 0.")
    assert [text for text in said.values() if text != NONE] == [said[previous], said[induction]]


def test_a_head_that_was_turned_is_found_in_its_new_role(circuit):
    """Heads that look for their own token, and for position 0, planted in place of the first one."""
    params, cfg, facts, _ = circuit
    V, T, (layer, head), K = cfg.vocab_size, cfg.block_size, facts.previous, cfg.head_width
    columns = slice(head * K, (head + 1) * K)
    for name in ("duplicate_token", "first_token"):
        Wq, Wk = (np.array(params["blocks"][which]) for which in ("Wq", "Wk"))
        Wq[layer, :, columns] = Wk[layer, :, columns] = 0
        if name == "duplicate_token":  # and not itself: a later key is a little worse
            Wq[layer, :V, columns] = 400 * np.eye(V, K)
            Wk[layer, :V, columns] = np.eye(V, K)
            Wk[layer, V : V + T, columns] = -np.arange(T)[:, None] * 0.1
        else:
            Wq[layer, V : V + T, columns.start] = 400
            Wk[layer, V, columns.start] = 1
        changed = {**params, "blocks": {**params["blocks"], "Wq": jnp.asarray(Wq), "Wk": jnp.asarray(Wk)}}
        assert named(head_roles(*both(changed, cfg)))[f"{layer}.{head}"] == [name]


@pytest.mark.parametrize("make", [lambda cfg: init_params(jax.random.key(0), cfg), random_params])
def test_a_model_that_knows_nothing_has_no_roles(make):
    cfg = GPTConfig(vocab_size=32, block_size=24, n_layer=3, n_head=4, n_embd=32)
    for positions in ("learned", "rope"):
        one = dataclasses.replace(cfg, positions=positions)
        scores = both(make(one), one, 16)
        assert set(conclusions({"scores-text": scores[0], "scores-repeats": scores[1]}).values()) == {NONE}


def test_both_size_and_noise_decide(circuit):
    *_, facts, (text, again) = circuit

    def roles(**changes):
        return head_roles(text, dataclasses.replace(again, **changes))[f"{facts.induction[0]}.{facts.induction[1]}"]

    chance = float(again.induction_chance)
    half, same = np.full_like(again.induction, chance + 0.5 * (1 - chance) + 1e-6), np.zeros_like(again.induction)
    assert roles(induction=half, induction_se=same + 1e-3)
    assert not roles(induction=half - 2e-6, induction_se=same)  # just below half of the way
    assert not roles(induction=half, induction_se=same + (1 - chance) / 6)  # three standard errors: not of so many
    assert not roles(induction=half * np.nan)
    assert not roles(induction=half, induction_se=same * np.nan)  # one example has no error
    assert not roles(induction=half * 0)  # far from chance, on the other side


def test_what_is_said(circuit):
    _, cfg, _, (text, again) = circuit
    assert str(Role("induction", 0.9412, 0.0131, 0.1199)) == "induction, 0.94 ± 0.01 against 0.12 by chance"
    assert str(Role("first_token", 0.9412, 0.0031, 0.1199)) == "first token, 0.941 ± 0.003 against 0.120 by chance"
    assert "50% of the way from chance to 1" in rule()
    assert "previous token and first token on text, duplicate token and induction on repeats" in rule()
    assert conclusions({"scores-text": text}) == {}
    assert conclusions({"scores-text": text, "scores-repeats": "is damaged"}) == {}
    other = dataclasses.replace(again, definition=dataclasses.replace(again.definition, model="0" * 16))
    with pytest.raises(UserError, match="the scores are of different models, .* and 0000000000000000: measure both"):
        head_roles(text, other)
