import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.heads.planted import planted
from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.heads.attribution import attribution_patch
from tinygpt_jax.heads.patching import HEAD_SITES, SITES, patch
from tinygpt_jax.heads.paths import path_patch
from tinygpt_jax.heads.results import read_result
from tinygpt_jax.hooks import Edit
from tinygpt_jax.model import forward
from tinygpt_jax.params import init_params
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
SMALL = {"tokens_at_once": 48}
"""So that examples and places come in several chunks."""


@pytest.fixture(scope="module")
def params():
    """Large weights, and tokens 11 and 12 nearly the same."""
    keys = iter(jax.random.split(jax.random.key(1), 40))
    params = jax.tree.map(
        lambda x: jnp.where(x == 1, x, 20 * x) + 0.1 * jax.random.normal(next(keys), x.shape),
        init_params(jax.random.key(0), CFG),
    )
    return {**params, "tok_emb": params["tok_emb"].at[12].set(params["tok_emb"][11] + 0.02 * params["tok_emb"][3])}


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


def run(params, ids, **options):
    return forward(params, jnp.asarray(ids, jnp.int32), CFG, **options)


def patched_by_edits(params, clean, corrupted, site, direction="denoise", layer=slice(None), head=None, position=None):
    """The effect on each example, by the forward's own edits: x * keep + add."""
    base, other = (corrupted, clean.ids) if direction == "denoise" else (clean.ids, corrupted)
    theirs = run(params, other, taps=(site,)).taps[site]
    mask = np.zeros(theirs.shape, np.float32)
    position = slice(None) if position is None else position
    if site in HEAD_SITES:
        mask[layer, :, slice(None) if head is None else head, position] = 1
    else:
        mask[layer, :, position] = 1
    edited = run(params, base, edits={site: Edit(keep=1 - mask, add=mask * theirs)}).logits
    return losses(edited, clean) - losses(run(params, base).logits, clean)


@pytest.mark.parametrize("site", ["k", "pattern", "mlp_out", "resid_mid"])
def test_patches_are_the_forwards_edits(params, clean, corrupted, site):
    by = ("layer", "head", "position") if site in HEAD_SITES else ("layer", "position")
    found = patch(params, clean, corrupted, CFG, site, by, **SMALL)
    assert found.effect.shape == (L, H, T)[: 1 + len(by) - 1] if len(by) == 3 else (L, T)
    place = dict(zip(by, (1, 1, 3) if len(by) == 3 else (1, 3), strict=True))
    want = patched_by_edits(params, clean, corrupted, site, **place)
    np.testing.assert_allclose(found.per_example[tuple(place.values())], want, atol=1e-5)
    twin = patched_by_edits(params, clean, corrupted, site, **{**place, "layer": 2})
    assert np.abs(twin - want).max() > 1e-4
    np.testing.assert_allclose(found.se, found.per_example.std(-1, ddof=1) / 5**0.5)


def test_what_is_not_told_apart_is_patched_together(params, clean, corrupted):
    found = patch(params, clean, corrupted, CFG, "z", "head", "noise", positions=(1, 4), **SMALL)
    assert found.effect.shape == (H,)
    want = patched_by_edits(params, clean, corrupted, "z", "noise", head=1, position=[1, 4])
    np.testing.assert_allclose(found.per_example[1], want, atol=1e-5)
    assert found.definition.line() == "noise head (each alone) at z by corrupted activation at positions 1, 4"


def test_positions_may_be_chosen(params, clean, corrupted, tmp_path):
    few = patch(params, clean, corrupted, CFG, "mlp_out", positions=(1, 3), **SMALL)
    whole = patch(params, clean, corrupted, CFG, "mlp_out", **SMALL)
    np.testing.assert_allclose(few.effect, whole.effect[:, [1, 3]], atol=1e-6)
    path, _ = few.save(tmp_path / "patching")
    assert [row["position"] for row in read_result(path).rows()[:2]] == [1, 3]


def test_a_run_patched_into_itself_does_not_change(params, clean):
    found = patch(params, clean, clean, CFG, "resid_mid", **SMALL)
    assert np.abs(found.per_example).max() < 1e-6
    assert np.isnan(found.normalised).all()  # there is no way to go
    assert np.abs(attribution_patch(params, clean, clean, CFG, compare=False, **SMALL).estimate).max() < 1e-6
    assert np.nanmax(np.abs(path_patch(params, clean, clean, CFG, **SMALL).effect)) < 1e-6


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_patching_everything_gives_the_other_run(params, clean, corrupted, direction):
    found = patch(params, clean, corrupted, CFG, "resid_pre", "layer", direction, **SMALL)
    np.testing.assert_allclose(found.per_example[0], found.donor - found.baseline, atol=1e-5)
    assert found.normalised[0] == pytest.approx(1, abs=1e-5)
    assert found.normalised_se[0] < 1e-5
    both = losses(run(params, corrupted).logits, clean), losses(run(params, clean.ids).logits, clean)
    np.testing.assert_allclose(found.baseline, both[direction == "noise"], atol=1e-5)
    np.testing.assert_allclose(found.donor, both[direction == "denoise"], atol=1e-5)


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_the_divergence_is_from_the_clean_run(params, clean, corrupted, direction):
    found = patch(params, clean, corrupted, CFG, "resid_pre", "layer", direction, "kl", **SMALL)
    first, second = (found.donor, found.baseline)[:: 1 if direction == "denoise" else -1]
    assert np.abs(first).max() < 1e-6 < 0.1 < second.min()
    assert found.normalised[0] == pytest.approx(1, abs=1e-5)
    found = attribution_patch(params, clean, corrupted, CFG, "z", "layer", direction, "kl", compare=False, **SMALL)
    assert (np.abs(found.estimate).max() > 1e-3) == (direction == "denoise")  # no slope where it is least


def test_paths_are_those_of_hand_made_edits(params, clean, corrupted):
    found = path_patch(params, clean, corrupted, CFG, **SMALL)
    taps = [run(params, ids, taps=("z", "resid_pre")).taps["z"] for ids in (corrupted, clean.ids)]
    base = losses(run(params, corrupted).logits, clean)
    K = CFG.head_width
    for i, site in enumerate("qkv"):
        (ls, hs), (lr, hr) = (0, 1), (2, 0)
        told = (taps[1] - taps[0])[ls, :, hs] @ params["blocks"]["Wo"][ls, hs * K : (hs + 1) * K]
        nudge = np.zeros((L, *told.shape), np.float32)
        nudge[lr] = told
        heard = run(params, corrupted, edits={"resid_pre": Edit(add=nudge)}, taps=(site,)).taps[site]
        mask = np.zeros(heard.shape, np.float32)
        mask[lr, :, hr] = 1
        edited = run(params, corrupted, edits={site: Edit(keep=1 - mask, add=mask * heard)}).logits
        want = (losses(edited, clean) - base).mean()
        assert found.effect[i, ls * H + hs, lr * H + hr] == pytest.approx(want, abs=1e-5)
        assert np.isnan(found.effect[i, lr * H + hr, ls * H + hs])
    assert len(found.rows()) == 3 * 3 * H * H


def test_first_order_is_exact_for_a_small_step(params, clean):
    """Tokens 11 and 12 are so alike that the model between them is a straight line."""
    nudged = np.where(clean.ids == 11, 12, clean.ids)
    for by in (("layer", "position"), ("layer", "head")):
        found = attribution_patch(params, clean, nudged, CFG, by=by, **SMALL)
        assert found.sites == (HEAD_SITES if "head" in by else SITES)
        for site, estimate, effect in zip(found.sites, found.estimate, found.effect, strict=True):
            size = np.abs(effect).max()
            assert size > 1e-4, site
            np.testing.assert_allclose(estimate, effect, atol=0.06 * size, err_msg=site)
        assert (found.correlation > 0.9).all()
    twin = attribution_patch(
        params, clean, nudged, CFG, "z", ("layer", "head"), direction="noise", compare=False, **SMALL
    )
    z = found.sites.index("z")
    assert np.abs(twin.estimate[0] - found.effect[z]).max() > np.abs(found.effect[z]).max()  # of the other sign


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
    theirs = forward(params, corrupted.ids, cfg, taps=("attn_out",)).taps["attn_out"]
    base = losses(forward(params, clean.ids, cfg).logits, clean)
    K, effect = cfg.head_width, np.zeros((2, 2))
    for layer, head in np.ndindex(2, 2):
        mask = np.zeros(theirs.shape, np.float32)
        mask[layer, ..., head * K : (head + 1) * K] = 1
        edited = forward(params, clean.ids, cfg, edits={"attn_out": Edit(keep=1 - mask, add=mask * theirs)}).logits
        effect[layer, head] = (losses(edited, clean) - base).mean()
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
    def refused(message, *more, f=patch, clean=clean, corrupted=corrupted, cfg=CFG, **options):
        with pytest.raises(UserError, match=message) as error:
            f(params, clean, corrupted, cfg, *more, **options)
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
    refused("no direct path", f=path_patch, cfg=lone)
    refused("has no MLP", "mlp_out", cfg=lone)
