"""The model against the GPT-2 that others run: Hugging Face's, with random weights, logits, loss and gradient."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.model import gelu, gpt_forward, layer_norm, multi_head_attention, split_heads
from tinygpt_jax.params import check_params, flatten
from tinygpt_jax.training.loss import token_losses

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]  # the peers' warnings are not ours

CFG = GPTConfig(vocab_size=31, block_size=16, n_layer=2, n_head=4, n_embd=32, attn_bias=True)
NAMES = {
    "ln1g": "ln_1.weight",
    "ln1b": "ln_1.bias",
    "Wo": "attn.c_proj.weight",
    "bo": "attn.c_proj.bias",
    "ln2g": "ln_2.weight",
    "ln2b": "ln_2.bias",
    "W1": "mlp.c_fc.weight",
    "b1": "mlp.c_fc.bias",
    "W2": "mlp.c_proj.weight",
    "b2": "mlp.c_proj.bias",
}
"""Our block leaf -> theirs; both keep a matrix as (in, out)."""


def to_tree(theirs: dict[str, np.ndarray]):
    """GPT-2's tensors, or their gradients, in our tree: layers stacked, the joint qkv projection cut in three."""

    def stack(name: str) -> np.ndarray:
        return np.stack([theirs[f"transformer.h.{layer}.{name}"] for layer in range(CFG.n_layer)])

    blocks = {ours: stack(name) for ours, name in NAMES.items()}
    for kind, name in (("W", "attn.c_attn.weight"), ("b", "attn.c_attn.bias")):
        blocks |= {kind + letter: part for letter, part in zip("qkv", np.split(stack(name), 3, axis=-1), strict=True)}
    tree = {
        "tok_emb": theirs["transformer.wte.weight"],
        "pos_emb": theirs["transformer.wpe.weight"],
        "blocks": blocks,
        "lnfg": theirs["transformer.ln_f.weight"],
        "lnfb": theirs["transformer.ln_f.bias"],
    }
    return jax.tree.map(jnp.asarray, tree)


@pytest.fixture
def gpt2():
    """Hugging Face's GPT-2 in CFG's shape, every tensor moved off its starting value."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"vocab_size": 31, "n_positions": 16, "n_layer": 2, "n_head": 4, "n_embd": 32}
    config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return theirs


def test_gpt2_gives_the_same_logits_loss_and_gradient(gpt2):
    torch = pytest.importorskip("torch")
    ids = np.random.default_rng(0).integers(0, 31, (3, 16))
    output = gpt2(torch.tensor(ids), labels=torch.tensor(ids))
    output.loss.backward()
    params = to_tree({name: tensor.detach().numpy() for name, tensor in gpt2.named_parameters()})
    check_params(params, CFG)

    def loss(params):
        logits = gpt_forward(params, ids, CFG)
        return token_losses(logits[:, :-1], ids[:, 1:]).mean(), logits

    (ours, logits), grads = jax.value_and_grad(loss, has_aux=True)(params)
    np.testing.assert_allclose(logits, output.logits.detach().numpy(), atol=1e-4)
    np.testing.assert_allclose(ours, output.loss.item(), atol=1e-5)
    theirs = dict(flatten(to_tree({name: tensor.grad.numpy() for name, tensor in gpt2.named_parameters()})))
    for name, grad in flatten(grads):
        np.testing.assert_allclose(grad, theirs[name], atol=1e-5, err_msg=name)
    wrong = gpt_forward(params, ids, dataclasses.replace(CFG, n_head=2))
    assert np.abs(wrong - logits).max() > 1e-2


def test_the_smaller_pieces_are_torchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, g, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 8), (8,), (8,)))
    eye = jnp.eye(8)
    F, t = torch.nn.functional, torch.tensor
    np.testing.assert_allclose(gelu(jnp.asarray(x)), F.gelu(t(x), approximate="tanh"), atol=1e-6)
    np.testing.assert_allclose(layer_norm(jnp.asarray(x), g, b), F.layer_norm(t(x), (8,), t(g), t(b)), atol=1e-6)
    heads = t(np.array(split_heads(jnp.asarray(x), 4)))
    attended = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).reshape(2, 6, 8)
    np.testing.assert_allclose(multi_head_attention(jnp.asarray(x), eye, eye, eye, eye, 2), attended, atol=1e-6)
