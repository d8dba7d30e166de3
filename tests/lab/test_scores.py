import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.text import Text

from tests.lab.planted import planted
from tests.lab.small import SMALL, random_params
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.registry import draw, lines
from tinygpt_jax.forward_pass import forward
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.metrics import as_examples
from tinygpt_jax.lab.read.scores import CHANCED, READ, eigenvalue_score, head_scores, ov_products
from tinygpt_jax.model import norm
from tinygpt_jax.params import init_params
from tinygpt_jax.statistics import ratio_and_se
from tinygpt_jax.text import IGNORE, Examples, repeated_sequences

VARIANTS = {
    "layernorm": GPTConfig(**SMALL),
    "rope": GPTConfig(**SMALL, positions="rope", norm="rmsnorm", tied=False, attn_bias=True),
}


@pytest.fixture(scope="module")
def known():
    params, cfg, facts = planted(3)
    examples = repeated_sequences(0, 0, 32, cfg.block_size, cfg.vocab_size)
    return head_scores(params, examples, cfg), facts, examples


@pytest.mark.parametrize(
    ("score", "part"), [("previous_token", "previous"), ("induction", "induction"), ("ov_eigenvalue", "induction")]
)
def test_planted_heads_and_no_others_are_found(known, score, part):
    scores, facts, _ = known
    values = getattr(scores, score)
    head = getattr(facts, part)
    assert values[head] > 0.9
    others = np.delete(values.ravel(), np.ravel_multi_index(head, values.shape))
    assert np.nanmax(others) < 0.3


def test_what_planted_heads_do_besides(known):
    scores, facts, examples = known
    previous, induction = facts.previous, facts.induction
    assert scores.entropy[previous] < 1e-3
    assert scores.offset_share[previous] == pytest.approx(1, abs=1e-4)
    assert scores.position_share[previous] == pytest.approx(1, abs=1e-4)
    assert scores.position_share[induction] < 0.5
    # It writes 20 on the logit of what it attends to and nothing else: that is 15/16 of 20 above the mean.
    assert scores.copying[induction] == pytest.approx(20 * 15 / 16, rel=1e-3)
    assert abs(scores.copying[previous]) < 1e-3
    assert np.isnan(scores.ov_eigenvalue[previous])
    assert scores.definition.examples == 32
    n = (examples.targets >= 0).sum()  # of each, the token and what followed it have come before
    assert scores.definition.positions == f"{n} counted queries ({n} with a duplicate token, {n} with an induction key)"


def test_a_head_that_does_the_opposite_of_copying():
    params, cfg, facts = planted(3)
    Wo = np.array(params["blocks"]["Wo"])
    Wo[facts.induction[0], : cfg.head_width] *= -1
    ids = repeated_sequences(0, 0, 32, cfg.block_size, cfg.vocab_size).ids
    scores = head_scores({**params, "blocks": {**params["blocks"], "Wo": Wo}}, ids, cfg)
    assert scores.copying[facts.induction] < -10
    assert scores.ov_eigenvalue[facts.induction] == pytest.approx(-1, abs=1e-3)


def test_uniform_attention():
    cfg = VARIANTS["layernorm"]
    params = random_params(cfg)
    params["blocks"]["Wq"] = jnp.zeros_like(params["blocks"]["Wq"])
    ids = np.random.default_rng(0).integers(0, 7, (16, 10), np.int32)
    scores = head_scores(params, ids, cfg)
    seen = np.arange(2, 10)  # tokens in sight of queries 1 .. 8; the last has no target
    assert scores.entropy == pytest.approx(np.log(seen).mean(), abs=1e-5)
    assert scores.first_token == pytest.approx((1 / seen).mean(), abs=1e-5)
    assert scores.previous_token == pytest.approx((1 / seen).mean(), abs=1e-5)
    assert scores.position_share == pytest.approx(1, abs=1e-5)
    for name in CHANCED:
        assert 0 < getattr(scores, f"{name}_chance") < 1
        np.testing.assert_allclose(getattr(scores, name), getattr(scores, f"{name}_chance"), atol=1e-5, err_msg=name)
    assert (scores.offset_share < 0.5).all()
    for name in ("entropy", "first_token", "previous_token"):
        assert getattr(scores, name + "_se") == pytest.approx(0, abs=1e-6)


# The same scores again, one weight at a time


def slow_scores(params, ids, cfg, counted):
    """Each score (L, H), from the definitions, in loops over queries and keys."""
    out = forward(params, ids, cfg, taps=("pattern", "v", "resid_post"))
    P, v = (np.asarray(out.taps[name], np.float64) for name in ("pattern", "v"))
    L, B, H, T, _ = P.shape
    totals = {name: np.zeros((2, L, H)) for name in READ} | {f"{name}_chance": np.zeros(2) for name in CHANCED}
    weights = []
    for b in range(B):
        for t in range(1, T):
            if not counted[b, t]:
                continue
            same = [s for s in range(t) if ids[b, s] == ids[b, t]]
            keys = {"previous_token": [t - 1], "first_token": [0], "duplicate_token": same}
            keys["induction"] = [s + 1 for s in same if s + 1 < t]
            for name, where in keys.items():
                if where:
                    totals[name] += P[:, b, :, t, where].sum(0), np.ones((L, H))
                    totals[f"{name}_chance"] += len(where) / (t + 1), 1
            row = P[:, b, :, t, : t + 1]
            totals["entropy"] += -(row * np.log(row)).sum(-1), np.ones((L, H))
            totals["copying"] += slow_copying(params, ids[b], cfg, row, v[:, b], out, b, t), np.ones((L, H))
            weights += [(t, s, row[:, :, s]) for s in range(t + 1)]
    scores = {name: total[0] / total[1] for name, total in totals.items() if total[1].any()}
    scores["offset_share"] = explained(weights, lambda t, s: t - s, unbiased=False)
    scores["position_share"] = explained(weights, lambda t, s: (t, s), unbiased=True)
    return scores


def slow_copying(params, ids, cfg, row, v, out, b, t):
    """Difference of logits with and without what each head wrote, the final norm's scale held as it was."""
    x = np.asarray(out.taps["resid_post"][-1][b, t], np.float64)
    centred = x - x.mean() if cfg.norm == "layernorm" else x
    scale = 1 / np.sqrt((centred**2).mean() + cfg.norm_eps)
    U = np.asarray(params["tok_emb" if cfg.tied else "head"], np.float64)
    raised = np.zeros(row.shape[:2])
    for layer, head in np.ndindex(raised.shape):
        Wo = np.asarray(params["blocks"]["Wo"][layer], np.float64).reshape(cfg.n_head, cfg.head_width, -1)[head]
        for s in range(t + 1):
            write = v[layer, head, s] @ Wo
            write = write - write.mean() if cfg.norm == "layernorm" else write
            logits = U @ (scale * write * np.asarray(params["lnfg"], np.float64))
            raised[layer, head] += row[layer, head, s] * (logits[ids[s]] - logits.mean())
    return raised


def explained(weights, group, unbiased):
    """1 minus variance within groups over variance about the mean, of (t, s, (L, H)) weights."""
    everything = np.array([w for _, _, w in weights])
    total = ((everything - everything.mean(0)) ** 2).sum(0)
    within = 0
    for key in {group(t, s) for t, s, _ in weights}:
        part = np.array([w for t, s, w in weights if group(t, s) == key])
        within = within + ((part - part.mean(0)) ** 2).sum(0) * (len(part) / (len(part) - 1) if unbiased else 1)
    return 1 - within / total


@pytest.fixture(scope="module", params=VARIANTS)
def read(request):
    """A model's scores on sequences where tokens recur, half of the queries counted."""
    cfg = VARIANTS[request.param]
    rng = np.random.default_rng(1)
    ids, counted = rng.integers(0, 7, (16, 10), np.int32), rng.random((16, 10)) < 0.7
    params = random_params(cfg)
    return params, ids, cfg, counted, head_scores(params, Examples(ids, np.where(counted, ids, IGNORE)), cfg)


def test_scores_are_those_of_slow_loops(read):
    params, ids, cfg, counted, scores = read
    slow = slow_scores(params, ids, cfg, counted)
    for name in (*READ, *(f"{name}_chance" for name in CHANCED)):
        np.testing.assert_allclose(getattr(scores, name), slow[name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_which_queries_count_makes_a_difference(read):
    params, ids, cfg, counted, scores = read
    slow = slow_scores(params, ids, cfg, np.ones_like(counted))
    for name in (*READ, *(f"{name}_chance" for name in CHANCED)):
        assert not np.allclose(getattr(scores, name), slow[name], rtol=2e-4, atol=2e-5), name


def test_eigenvalues_are_those_of_the_whole_circuit(read):
    params, _, cfg, _, scores = read
    U = np.asarray(params["tok_emb" if cfg.tied else "head"], np.float64) * np.asarray(params["lnfg"])
    U = U - U.mean(-1, keepdims=True) if cfg.norm == "layernorm" else U
    K = cfg.head_width
    for layer, head in np.ndindex(cfg.n_layer, cfg.n_head):
        p = {name: leaf[layer] for name, leaf in params["blocks"].items()}
        E = np.asarray(norm(params["tok_emb"], p, "ln1", cfg), np.float64)
        columns = slice(head * K, (head + 1) * K)
        whole = E @ np.asarray(p["Wv"])[:, columns] @ np.asarray(p["Wo"])[columns] @ (U - U.mean(0)).T
        assert scores.ov_eigenvalue[layer, head] == pytest.approx(eigenvalue_score(whole), abs=2e-4)


def test_no_matrix_of_vocabulary_by_vocabulary_is_made():
    cfg = GPTConfig(**{**SMALL, "vocab_size": 5003})
    program = jax.jit(ov_products, static_argnames="cfg").lower(init_params(jax.random.key(0), cfg), cfg).as_text()
    assert "5003x16x" in program
    assert "5003x5003" not in program


def test_standard_errors_are_those_of_repeated_draws():
    cfg = VARIANTS["layernorm"]
    params = random_params(cfg)
    sets = [np.random.default_rng(seed).integers(0, 7, (16, 10), np.int32) for seed in range(60)]
    draws = [head_scores(params, as_examples(ids, cfg)._replace(place=None), cfg) for ids in sets]
    for name in READ:
        spread = np.std([getattr(scores, name) for scores in draws], axis=0)
        said = np.mean([getattr(scores, name + "_se") for scores in draws], axis=0)
        assert 0.7 < np.mean(said / spread) < 1.3, name


def test_nothing_to_count_is_no_number():
    cfg = VARIANTS["layernorm"]
    ids = np.tile(np.arange(10, dtype=np.int32) % 7, (16, 1))
    targets = np.where(np.arange(10) < 7, ids, IGNORE)
    scores = head_scores(random_params(cfg), Examples(ids, targets), cfg)
    for name in ("duplicate_token", "induction"):
        assert np.isnan(getattr(scores, name)).all()
        assert np.isnan(getattr(scores, f"{name}_chance"))
    assert "0 with a duplicate token, 0 with an induction key" in scores.definition.positions
    assert np.isfinite(scores.entropy).all()
    assert scores.position_share == pytest.approx(1, abs=1e-5)  # all examples are one and the same


def test_ratios_and_their_errors():
    totals, counts = np.array([[1.0], [2.0], [6.0]]), np.array([[1.0], [1.0], [2.0]])
    mean, se = ratio_and_se(totals, counts)
    assert mean == pytest.approx(9 / 4)
    assert se == pytest.approx(np.sqrt(1.5 * (1.25**2 + 0.25**2 + 1.5**2)) / 4)
    assert np.isnan(ratio_and_se(totals[:1], counts[:1])[1]).all()


def test_scores_are_kept(known, tmp_path):
    scores = known[0]
    again = read_result(scores.save(tmp_path / "scores")[0])
    for name in scores.AXES:
        np.testing.assert_array_equal(getattr(again, name), getattr(scores, name))
    assert len(scores.rows()) == 6
    assert scores.rows()[0].keys() == {"layer", "head", *READ, *(f"{name}_se" for name in READ), "ov_eigenvalue"}


def test_scores_saved_without_chance_are_refused_as_any_file_that_lacks_a_part(known, tmp_path):
    path, _ = known[0].save(tmp_path / "scores")
    document = json.loads(path.read_text())
    del document["induction_chance"]
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match="is no whole result .*induction_chance.*: name one that"):
        read_result(path)


def test_chance_and_the_queries_are_said_beside_the_scores(known, tmp_path):
    scores = known[0]
    queries = scores.definition.positions
    for said in (
        "\n".join(lines("scores", scores)),
        scores.to_html(),
        " ".join(text.get_text() for text in draw(scores).findobj(Text)).replace("\n", " "),
    ):
        assert f"{scores.induction_chance:.2f}" in said
        assert queries in said
        assert "by chance" in said
        assert "TransformerLens averages over all" in said


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros((2, 1), np.int32), r"ids have shape \(2, 1\): give two tokens or more each"),
        (np.full((2, 8), 7, np.int32), r"id 7 at index \(0, 0\) is outside"),
    ],
)
def test_bad_input(ids, message):
    cfg = VARIANTS["layernorm"]
    with pytest.raises(UserError, match=message):
        head_scores(init_params(jax.random.key(0), cfg), ids, cfg)
