import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lab.planted import planted
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.edits import Edit
from tinygpt_jax.errors import UserError
from tinygpt_jax.forward_pass import forward
from tinygpt_jax.lab.kinds import read_result
from tinygpt_jax.lab.patch.attribution import attribution_patch
from tinygpt_jax.lab.patch.patching import HEAD_SITES, SITES, patch
from tinygpt_jax.lab.patch.paths import path_patch
from tinygpt_jax.params import init_params
from tinygpt_jax.statistics import standard_error
from tinygpt_jax.text import Examples, repeated_sequences
from tinygpt_jax.training.loss import token_losses

CFG = GPTConfig(
    vocab_size=13,
    block_size=6,
    n_layer=3,
    n_head=2,
    n_embd=16,
    norm="layernorm",
    mlp_ratio=2,
    attn_bias=True,
    tied=False,
)
L, H, T = CFG.n_layer, CFG.n_head, CFG.block_size
SMALL = {"tokens_at_once": 36}
"""So that examples and places come in several chunks."""


@pytest.fixture(scope="module")
def params():
    """Large weights, and tokens 11 and 12 nearly the same."""
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: x + rng.normal(0, 0.4, x.shape).astype(np.float32), init_params(jax.random.key(0), CFG)
    )
    return {**params, "tok_emb": params["tok_emb"].at[12].set(params["tok_emb"][11] + 0.01 * params["tok_emb"][3])}


@pytest.fixture(scope="module")
def clean():
    ids = np.random.default_rng(0).integers(0, 11, (5, T)).astype(np.int32)
    ids[:, 2] = 11
    return Examples(ids, np.roll(ids, -1, 1).astype(np.int32))


@pytest.fixture(scope="module")
def corrupted(clean):
    return np.random.default_rng(1).integers(0, 11, clean.ids.shape)


def losses(logits, examples):
    return np.asarray(token_losses(logits, examples.targets).mean(-1), np.float64)


@functools.partial(jax.jit, static_argnums=2)
def edited(params, ids, cfg, edits):
    return forward(params, ids, cfg, edits=edits, taps=tuple(edits))


def run(params, ids, site=None, keep=1, add=0, cfg=CFG):
    """A forward pass, edited at one site: one program for all of them."""
    shapes = {name: (cfg.n_layer, len(ids), *shape) for name, shape in shapes_of(cfg, ids.shape[1]).items()}
    edits = {name: Edit(np.ones(shape, np.float32), np.zeros(shape, np.float32)) for name, shape in shapes.items()}
    if site:
        edits[site] = Edit(*(np.broadcast_to(a, shapes[site]).astype(np.float32) for a in (keep, add)))
    return edited(params, np.asarray(ids, np.int32), cfg, edits)


def shapes_of(cfg, T):
    stream = {
        site: (T, cfg.n_embd) for site in SITES if site not in HEAD_SITES and (cfg.mlp_width or site != "mlp_out")
    }
    heads = dict.fromkeys("qkvz", (cfg.n_head, T, cfg.head_width))
    return {**stream, **heads, "pattern": (cfg.n_head, T, T)}


def patched_by_edits(params, clean, corrupted, site, direction="denoise", layer=slice(None), head=None, position=None):
    """The effect on each example, by the forward's own edits: x * keep + add."""
    base, other = (corrupted, clean.ids) if direction == "denoise" else (clean.ids, corrupted)
    theirs = np.asarray(run(params, other).taps[site])
    mask = np.zeros(theirs.shape, np.float32)
    layer, head, position = (slice(None) if i is None else i for i in (layer, head, position))
    mask[(layer, slice(None), head, position) if site in HEAD_SITES else (layer, slice(None), position)] = 1
    patched = run(params, base, site, 1 - mask, mask * theirs).logits
    return losses(patched, clean) - losses(run(params, base).logits, clean)


def test_patches_are_the_forwards_edits(params, clean, corrupted):
    found = patch(params, clean, corrupted, CFG, "pattern", ("layer", "head", "position"), **SMALL)
    assert found.effect.shape == (L, H, T)
    want = patched_by_edits(params, clean, corrupted, "pattern", layer=1, head=1, position=3)
    np.testing.assert_allclose(found.per_example[1, 1, 3], want, atol=1e-5)
    twin = patched_by_edits(params, clean, corrupted, "pattern", layer=2, head=1, position=3)
    assert np.abs(twin - want).max() > 1e-4
    np.testing.assert_allclose(found.se, standard_error(found.per_example, found.definition.ordered))


def test_all_sites_in_one_program(params, clean, corrupted):
    found = attribution_patch(params, clean, corrupted, CFG, **SMALL)
    assert found.sites == SITES
    assert found.effect.shape == found.estimate_se.shape == (10, L, T)
    for site, effect in zip(found.sites, found.effect, strict=True):
        for layer, position in ((0, 1), (2, 4)):
            want = patched_by_edits(params, clean, corrupted, site, layer=layer, position=position).mean()
            assert effect[layer, position] == pytest.approx(want, abs=1e-5), site
    assert np.abs(found.estimate - found.effect).max() > 0.01  # far apart, first order is not enough


def test_what_is_not_told_apart_is_patched_together(params, clean, corrupted):
    found = patch(params, clean, corrupted, CFG, "z", "head", "noise", positions=(1, 4), **SMALL)
    assert found.effect.shape == (H,)
    want = patched_by_edits(params, clean, corrupted, "z", "noise", head=1, position=[1, 4])
    np.testing.assert_allclose(found.per_example[1], want, atol=1e-5)
    said = "each head's output z replaced by corrupted activation, one head at a time at positions 1, 4"
    assert found.definition.line() == said


def test_positions_may_be_chosen(params, clean, corrupted, tmp_path):
    by = ("position", "layer", "head")
    few = patch(params, clean, corrupted, CFG, "pattern", by, positions=(3, 1), **SMALL)
    whole = patch(params, clean, corrupted, CFG, "pattern", by, **SMALL)
    np.testing.assert_allclose(few.effect, whole.effect[..., [1, 3]], atol=1e-6)
    path, _ = few.save(tmp_path / "patching")
    rows = read_result(path).rows()
    assert [row["position"] for row in rows[:2]] == [1, 3]
    assert list(rows[0])[:3] == ["layer", "head", "position"]


def test_a_run_patched_into_itself_does_not_change(params, clean):
    found = patch(params, clean, clean, CFG, "pattern", ("layer", "head", "position"), **SMALL)
    assert np.abs(found.per_example).max() < 1e-6
    assert np.isnan(found.normalised).all()  # there is no way to go
    assert np.abs(attribution_patch(params, clean, clean, CFG, compare=False, **SMALL).estimate).max() < 1e-6
    assert np.nanmax(np.abs(path_patch(params, clean, clean, CFG, **SMALL).effect)) < 1e-6


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_patching_everything_gives_the_other_run(params, clean, corrupted, direction):
    found = patch(params, clean, corrupted, CFG, "resid_pre", "layer", direction, metric="kl", **SMALL)
    np.testing.assert_allclose(found.per_example[0], found.donor - found.baseline, atol=1e-5)
    assert found.normalised[0] == pytest.approx(1, abs=1e-5)
    assert found.normalised_se[0] < 1e-5
    ends = (found.donor, found.baseline)[:: 1 if direction == "denoise" else -1]
    logs = [jax.nn.log_softmax(run(params, ids).logits) for ids in (clean.ids, corrupted)]
    want = (jnp.exp(logs[0]) * (logs[0] - logs[1])).sum(-1).mean(-1)
    np.testing.assert_allclose(ends[0], 0, atol=1e-6)  # the divergence is from the clean run
    np.testing.assert_allclose(ends[1], want, atol=1e-5)
    assert want.min() > 0.1


def heard_through_the_stream(params, base, sender, receiver, z, site, position=None):
    """What reaches the receiver's layer where the sender's write alone is added to the residual stream there."""
    (ls, hs), K = sender, CFG.head_width
    told = (z["other"] - z["base"])[ls, :, hs] @ params["blocks"]["Wo"][ls, hs * K : (hs + 1) * K]
    nudge = np.zeros((L, *told.shape), np.float32)
    where = slice(None) if position is None else position
    nudge[receiver[0], :, where] = told[:, where]
    return np.asarray(run(params, base, "resid_pre", add=nudge).taps[site])


def heard_through_mlps(params, base, sender, receiver, z, site, position=None):
    """The same where every head below the receiver is held but the sender, and all else is computed (Wang et al. 2022,
    appendix)."""
    held = z["base"].copy()
    where = slice(None) if position is None else position
    held[sender[0], :, sender[1], where] = z["other"][sender[0], :, sender[1], where]
    keep = np.ones(held.shape, np.float32)
    keep[: receiver[0]] = 0
    return np.asarray(run(params, base, "z", keep, (1 - keep) * held).taps[site])


HEARD = {"frozen": heard_through_the_stream, "recomputed": heard_through_mlps}


@pytest.mark.parametrize("mlps", HEARD)
def test_paths_are_those_of_hand_made_edits(params, clean, corrupted, mlps):
    found = path_patch(params, clean, corrupted, CFG, mlps=mlps, **SMALL)
    z = {name: np.asarray(run(params, ids).taps["z"]) for name, ids in (("base", corrupted), ("other", clean.ids))}
    base = losses(run(params, corrupted).logits, clean)

    def effect(sender, receiver, site, position=None, heard=HEARD[mlps]):
        heard = heard(params, corrupted, sender, receiver, z, site, position)
        mask = np.zeros(heard.shape, np.float32)
        mask[receiver[0], :, receiver[1]] = 1
        return (losses(run(params, corrupted, site, 1 - mask, mask * heard).logits, clean) - base).mean()

    for i, site in enumerate("qkv"):
        for sender, receiver in (((0, 1), (2, 0)), ((0, 0), (1, 1))):
            places = [layer * H + head for layer, head in (sender, receiver)]
            assert found.effect[i, *places] == pytest.approx(effect(sender, receiver, site), abs=1e-5)
            assert np.isnan(found.effect[i, *places[::-1]])
    assert len(found.rows()) == 3 * 3 * H * H
    # The last of these paths again, told at position 2 alone.
    there = path_patch(params, clean, corrupted, CFG, mlps=mlps, positions=(2,), **SMALL).effect[2, *places]
    assert there == pytest.approx(effect(sender, receiver, "v", 2), abs=1e-5)
    assert abs(there - found.effect[2, *places]) > 1e-4  # the twins
    (other,) = set(HEARD.values()) - {HEARD[mlps]}
    assert abs(effect(sender, receiver, "v", heard=other) - found.effect[2, *places]) > 1e-4


def test_a_path_says_what_the_mlps_between_do(params, clean, corrupted):
    asked = (params, clean, corrupted, CFG, "v")
    for mlps in HEARD:
        assert path_patch(*asked, mlps=mlps, **SMALL).definition.flags == (f"MLPs between {mlps}",)
    assert path_patch(*asked, **SMALL).definition.flags == ("MLPs between recomputed",)
    with pytest.raises(UserError, match="mlps 'froze' is unknown; did you mean 'frozen'"):
        path_patch(*asked, mlps="froze")


def test_without_mlps_there_is_one_way(circuit):
    *given, _ = circuit
    frozen, recomputed = (path_patch(*given, mlps=mlps).effect for mlps in ("frozen", "recomputed"))
    np.testing.assert_allclose(frozen, recomputed, atol=1e-5)


def test_first_order_is_exact_for_a_small_step(params, clean):
    """Tokens 11 and 12 are so alike that the model between them is a straight line."""
    nudged = np.where(clean.ids == 11, 12, clean.ids)
    for options in ({}, {"sites": "pattern", "by": ("layer", "head", "position")}):
        found = attribution_patch(params, clean, nudged, CFG, **options, **SMALL)
        for site, estimate, effect in zip(found.sites, found.estimate, found.effect, strict=True):
            size = np.abs(effect).max()
            assert size > 1e-4, site
            np.testing.assert_allclose(estimate, effect, atol=0.06 * size, err_msg=site)
        assert (found.correlation > 0.9).all()
        assert (found.correlation_se < 0.1).all()
    twin = attribution_patch(params, clean, nudged, CFG, compare=False, direction="noise", **options, **SMALL)
    assert np.abs(twin.estimate - found.effect).max() > np.abs(found.effect).max()  # of the other sign


# The planted circuit


@pytest.fixture(scope="module")
def circuit():
    params, cfg, facts = planted(2, block_size=8, vocab_size=8)
    clean, corrupted = (repeated_sequences(0, 0, 16, 8, 8, corrupted=flag) for flag in (False, True))
    return params, clean, corrupted, cfg, facts


def found_heads(effect, share=0.1):
    return {tuple(map(int, place)) for place in np.argwhere(np.abs(effect) > share * np.abs(effect).max())}


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_patching_finds_the_planted_heads(circuit, direction):
    *given, facts = circuit
    found = patch(*given, "z", ("layer", "head"), direction)
    assert found_heads(found.effect) == {facts.previous, facts.induction}
    assert abs(found.normalised[facts.induction] - 1) < 0.05


def test_patching_after_Wo_would_not_find_them(circuit):
    """The twin: the columns that a head's z would have, taken of attn_out, which is after Wo."""
    params, clean, corrupted, cfg, facts = circuit
    theirs = np.asarray(run(params, corrupted.ids, cfg=cfg).taps["attn_out"])
    base = losses(run(params, clean.ids, cfg=cfg).logits, clean)
    K, effect = cfg.head_width, np.zeros((2, 2))
    for layer, head in np.ndindex(2, 2):
        mask = np.zeros(theirs.shape, np.float32)
        mask[layer, ..., head * K : (head + 1) * K] = 1
        patched = run(params, clean.ids, "attn_out", 1 - mask, mask * theirs, cfg)
        effect[layer, head] = (losses(patched.logits, clean) - base).mean()
    assert found_heads(effect) != {facts.previous, facts.induction}


def test_the_only_path_is_from_the_previous_token_head_to_the_induction_heads_keys(circuit):
    *given, facts = circuit
    found = path_patch(*given, direction="noise")
    whole = np.nan_to_num(np.abs(found.effect))
    strongest = np.unravel_index(whole.argmax(), whole.shape)
    place = (
        found.inputs.index("k"),
        facts.previous[0] * 2 + facts.previous[1],
        facts.induction[0] * 2 + facts.induction[1],
    )
    assert tuple(map(int, strongest)) == place
    others = whole.copy()
    others[place] = 0
    assert others.max() < 0.01 * whole[place]
    assert found.normalised[place] > 0.5


def test_what_cannot_be_asked(params, clean, corrupted):
    def refused(message, *more, f=patch, clean=clean, corrupted=corrupted, cfg=CFG, model=params, **options):
        with pytest.raises(UserError, match=message) as error:
            f(model, clean, corrupted, cfg, *more, **options)
        assert "\n" not in str(error.value)

    refused(r"clean ids have shape \(5, 6\), corrupted ones \(4, 6\)", corrupted=corrupted[:4])
    refused("site 'residpre' cannot be patched; did you mean 'resid_pre'", "residpre")
    refused("site 'ln1_scale' cannot be patched", "ln1_scale")
    refused("two or more", clean=Examples(clean.ids[:1], clean.targets[:1]), corrupted=corrupted[:1])
    refused("by 'head': site 'attn_out' has no heads", "attn_out", by="head")
    refused("by 'heads' is unknown; did you mean 'head'", "z", by="heads")
    refused("by is empty", "z", by=())
    refused("direction 'forwards' is unknown", direction="forwards")
    refused("position 9 is past the end", positions=(9,))
    refused("by 'layer'", f=attribution_patch, by="position")
    refused("inputs are", "kx", f=path_patch)
    lone = GPTConfig(vocab_size=13, block_size=6, n_layer=1, n_head=2, n_embd=16, mlp_ratio=0)
    bare = init_params(jax.random.key(0), lone)
    refused("no direct path", f=path_patch, cfg=lone, model=bare)
    refused("has no MLP", "mlp_out", cfg=lone, model=bare)
