"""Small models at random, for tests of what holds for any model."""

import jax

from tinygpt_jax.params import init_params

SMALL = {"vocab_size": 7, "block_size": 10, "n_layer": 2, "n_head": 2, "n_embd": 16, "mlp_ratio": 1.0}


def random_params(cfg, seed=0):
    """Parameters larger than fresh ones, norms and biases among them, so that heads differ."""
    leaves, tree = jax.tree.flatten(init_params(jax.random.key(seed), cfg))
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [x + 0.15 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, noisy)
