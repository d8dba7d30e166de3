"""Ablation against TransformerLens on identical weights."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.lab.read.scores import head_scores
from tinygpt_jax.lab.remove.ablate import ablate_heads
from tinygpt_jax.model import gpt_forward
from tinygpt_jax.params import check_params

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]  # the peer's warnings are not ours

CFG = GPTConfig(vocab_size=31, block_size=16, n_layer=3, n_head=4, n_embd=32, attn_bias=True, tied=False)
IDS = np.random.default_rng(0).integers(0, 31, (6, 16))


@pytest.fixture(scope="module")
def lens():
    """A HookedTransformer in CFG's shape, every tensor moved off its starting value."""
    torch, theirs = pytest.importorskip("torch"), pytest.importorskip("transformer_lens")
    config = theirs.HookedTransformerConfig(
        n_layers=3, n_heads=4, d_model=32, d_head=8, n_ctx=16, d_vocab=31, d_mlp=128, act_fn="gelu_new",
        normalization_type="LN", seed=0,
    )  # fmt: skip
    model = theirs.HookedTransformer(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) if "b_U" not in name else 0 * parameter)
    return model


def to_tree(lens):
    """Its weights in our tree; it keeps heads on an axis of their own."""
    theirs = {name: tensor.detach().numpy() for name, tensor in lens.named_parameters()}

    def stack(name: str) -> np.ndarray:
        return np.stack([theirs[f"blocks.{layer}.{name}"] for layer in range(CFG.n_layer)])

    L, C = CFG.n_layer, CFG.n_embd
    blocks = {"ln1g": stack("ln1.w"), "ln1b": stack("ln1.b"), "ln2g": stack("ln2.w"), "ln2b": stack("ln2.b")}
    for letter in "qkv":
        blocks["W" + letter] = stack(f"attn.W_{letter.upper()}").transpose(0, 2, 1, 3).reshape(L, C, C)
        blocks["b" + letter] = stack(f"attn.b_{letter.upper()}").reshape(L, C)
    blocks |= {"Wo": stack("attn.W_O").reshape(L, C, C), "bo": stack("attn.b_O")}
    blocks |= {"W1": stack("mlp.W_in"), "b1": stack("mlp.b_in"), "W2": stack("mlp.W_out"), "b2": stack("mlp.b_out")}
    tree = {"tok_emb": theirs["embed.W_E"], "pos_emb": theirs["pos_embed.W_pos"], "head": theirs["unembed.W_U"].T}
    tree |= {"lnfg": theirs["ln_final.w"], "lnfb": theirs["ln_final.b"], "blocks": blocks}
    return {
        name: {k: jnp.asarray(v) for k, v in leaf.items()} if name == "blocks" else jnp.asarray(leaf)
        for name, leaf in tree.items()
    }


def their_effects(lens, fill: str) -> np.ndarray:
    """(L, H, B): a hooked forward pass for every head, less the plain one."""
    torch = pytest.importorskip("torch")
    ids = torch.tensor(IDS)

    def losses(hooks):
        return lens.run_with_hooks(ids, return_type="loss", loss_per_token=True, fwd_hooks=hooks).mean(-1)

    _, cache = lens.run_with_cache(ids)
    effects = np.empty((CFG.n_layer, CFG.n_head, len(IDS)))
    for layer, head in np.ndindex(CFG.n_layer, CFG.n_head):
        site = f"blocks.{layer}.attn.hook_z"
        value = cache[site][:, :, head].mean((0, 1)) if fill == "mean" else 0.0

        def replace(z, hook, head=head, value=value):
            z[:, :, head] = value
            return z

        with torch.no_grad():
            effects[layer, head] = (losses([(site, replace)]) - losses([])).numpy()
    return effects


@pytest.mark.parametrize("fill", ["zero", "mean"])
def test_effects_are_transformer_lenss(lens, fill):
    params = to_tree(lens)
    check_params(params, CFG)
    torch = pytest.importorskip("torch")
    np.testing.assert_allclose(gpt_forward(params, IDS, CFG), lens(torch.tensor(IDS)).detach().numpy(), atol=1e-4)
    theirs = their_effects(lens, fill)
    ours = ablate_heads(params, IDS, CFG, fill=fill)
    np.testing.assert_allclose(ours.per_example, theirs, atol=1e-4)
    np.testing.assert_allclose(ours.effect, theirs.mean(-1), atol=1e-4)
    other = ablate_heads(params, IDS, CFG, fill={"zero": "mean", "mean": "zero"}[fill])
    assert np.abs(other.per_example - theirs).max() > 1e-2
    wrong = ablate_heads(params, IDS, dataclasses.replace(CFG, n_head=2), fill=fill)
    assert np.abs(wrong.effect - theirs.mean(-1)[:, :2]).max() > 1e-3


def test_induction_scores_are_transformer_lenss(lens):
    """On a sequence that is repeated as a whole the score is the mean of one stripe of the pattern."""
    torch = pytest.importorskip("torch")
    half = np.random.default_rng(1).permuted(np.tile(np.arange(31), (6, 1)), axis=1)[:, :8]
    ids = np.concatenate([half, half], axis=1)
    _, cache = lens.run_with_cache(torch.tensor(ids))
    stripes = [cache["pattern", layer].diagonal(1 - 8, dim1=-2, dim2=-1)[..., 1:] for layer in range(CFG.n_layer)]
    theirs = np.stack([stripe[..., :-1].mean((0, -1)).detach().numpy() for stripe in stripes])
    ours = head_scores(to_tree(lens), ids, CFG).induction
    assert ours.shape == theirs.shape
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.99
