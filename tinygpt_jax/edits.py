"""Interventions are data: `x * keep + add` at named sites of the forward pass. Which sites there are, and what fits."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tinygpt_jax.config import GPTConfig
from tinygpt_jax.errors import UserError, nearest

SITES = (
    "q", "k", "v", "pattern", "z", "attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post",
    "ln1_scale", "ln2_scale",
)  # fmt: skip
"""Where the forward can be edited and tapped. Per layer: q k v z (B, H, T, K), pattern (B, H, T, S), the norms' scales
(B, T, 1) float32, others (B, T, C). `z` is a head's output before `Wo`; attn_out and mlp_out are what is written into
the residual stream; a scale is what a norm multiplies by, 1 / deviation."""

PER_HEAD = ("q", "k", "v", "pattern", "z")
"""The sites with a head axis."""


class Edit(NamedTuple):
    """An intervention at one site, `x * keep + add`: arrays of as many axes as the site has, L first, each of the
    others of its size or 1."""

    keep: jax.Array | None = None
    add: jax.Array | None = None


def check_sites(names: Iterable[str], cfg: GPTConfig) -> tuple[str, ...]:
    """The names; raises UserError for a site that this model does not have."""
    names = tuple(names)
    for name in names:
        if name not in SITES:
            raise UserError(f"site {name!r} is unknown{nearest(str(name), SITES)}")
        if name in ("mlp_out", "ln2_scale") and not cfg.mlp_width:
            raise UserError(f"site {name!r} is not there: mlp_ratio is 0, so the model has no MLP; name another site")
        if name.endswith("_scale") and cfg.norm == "none":
            raise UserError(f"site {name!r} is not there: norm is 'none'; name another site")
        if cfg.heads and name in PER_HEAD:
            left = ", ".join(map(str, cfg.heads_per_layer))
            raise UserError(
                f"site {name!r} differs from layer to layer: heads pruned to {left}; "
                "name a site of the residual stream, or take whole(params, cfg) of the pruned model"
            )
    return names


def as_edits(edits: Mapping[str, Edit] | None, cfg: GPTConfig) -> dict[str, Edit]:
    """The edits as a dict; raises UserError for one that is no `Edit` of arrays of numbers at a site of this model."""
    if edits is not None and not isinstance(edits, Mapping):
        raise UserError(f"edits are {_brief(edits)}: must be a dict of site and Edit, such as {{'z': Edit(keep=mask)}}")
    edits = dict(edits or {})
    check_sites(edits, cfg)
    for site, edit in edits.items():
        if not isinstance(edit, Edit):
            raise UserError(
                f"edits[{site!r}] is {_brief(edit)}: must be an Edit(keep=array, add=array), "
                f"which makes x * keep + add of the site's value x"
            )
        for part, array in edit._asdict().items():
            dtype = getattr(array, "dtype", None)
            kinds = (np.floating, np.integer, np.bool_)
            real = dtype is not None and any(jnp.issubdtype(dtype, kind) for kind in kinds)
            if array is not None and not real:
                raise UserError(f"edits[{site!r}].{part} is {_brief(array)}: must be an array of real numbers, or None")
    return edits


def _brief(value: object) -> str:
    """What was given in place of something else, in a few words."""
    dtype = getattr(value, "dtype", None)
    return f"a {type(value).__name__}" if dtype is None else f"an array of {dtype}"


def check_edits(
    edits: Mapping[str, Edit] | None, cfg: GPTConfig, B: int, T: int, S: int | None = None
) -> dict[str, Edit]:
    """`as_edits`; also raises UserError for an array that does not fit its site of B rows, T queries, S (T) keys."""
    edits = as_edits(edits, cfg)
    shapes: dict[str, tuple[int, ...]] = {
        "pattern": (B, cfg.n_head, T, S or T),
        **dict.fromkeys("qkvz", (B, cfg.n_head, T, cfg.head_width)),
    }
    shapes |= {"ln1_scale": (B, T, 1), "ln2_scale": (B, T, 1)}
    for name, edit in edits.items():
        site = (cfg.n_layer, *shapes.get(name, (B, T, cfg.n_embd)))
        for part, array in edit._asdict().items():
            shape = np.shape(array)
            # Fewer axes would do for NumPy, which then takes a mask (L, H) for one over the K places of a head.
            fits = len(shape) == len(site) and shape[0] == site[0]
            fits = fits and all(n in (1, m) for n, m in zip(shape[1:], site[1:], strict=True))
            if array is not None and not fits:
                wanted = f"must be {cfg.n_layer} layers of what broadcasts to {site[1:]}, with as many axes"
                raise UserError(f"edits[{name!r}].{part} has shape {shape}: {wanted}")
    return edits
