"""The size of the residual stream, and of what is written into it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import decimals, number, with_error, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.lines import BESIDE, log_axis
from tinygpt_jax.figures.style import SMALL, WIDTH, Figure, new_figure, say
from tinygpt_jax.figures.words import caption, short
from tinygpt_jax.lab.read.residual import ResidualWrites

KINDS = {"stream": "o", "attention": "s", "MLP": "D"}
"""What has a size in the residual stream, and its marker."""
LOG_FROM = 30
"""How far apart the largest and the smallest are where a logarithmic scale tells more."""
NAMED = 40
"""The most places that are named."""


def figure(result: ResidualWrites, theme: str = "light") -> Figure:
    shown = "Each point is the size of the residual stream, or of what attention or an MLP writes into it."
    shown += " Whiskers: ± 1 standard error." * bool(np.isfinite(result.se).any())
    said = caption(result.definition, shown)
    return draw_residual(result.names, result.kinds, result.rms, result.se, caption=said, theme=theme)


def draw_residual(
    names: Sequence[str],
    kinds: Sequence[str],
    rms: ArrayLike,
    se: ArrayLike | None = None,
    *,
    caption: str = "",
    theme: str = "light",
) -> Figure:
    """The size (root mean square) of the residual stream and of what is written into it, N of them in their order.

    Args:
        kinds: of each: `stream`, `attention` or `MLP`
        rms: (N,), and `se` its standard errors

    Raises:
        UserError: a kind is unknown, or there is not one kind and size for each name.
    """
    sizes = with_gaps(rms)
    errors = np.full(len(names), np.nan) if se is None else with_gaps(se)
    if not len(names) == len(kinds) == len(sizes) or not set(kinds) <= set(KINDS):
        raise UserError(f"kinds are {list(kinds)!r}: must be {', '.join(KINDS)}, one for each of {len(names)} names")
    with new_figure(WIDTH, 3.6, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i, (kind, marker) in enumerate(KINDS.items()):
            at = np.flatnonzero([one == kind for one in kinds])
            if at.size:
                ax.errorbar(
                    at, sizes[at], yerr=errors[at], color=colors.lines[i], marker=marker, markersize=4, linewidth=0.8,
                    elinewidth=0.9, label=kind,
                )  # fmt: skip
        positive = sizes[sizes > 0]
        if positive.size and positive.max() > LOG_FROM * positive.min():
            log_axis(ax)
        else:
            ax.set_ylim(bottom=0)
        every = max(1, -(-len(names) // NAMED))
        ax.set_xticks(range(0, len(names), every), [short(n, 22) for n in names[::every]], rotation=90, size=SMALL)
        ax.tick_params(axis="x", length=0)
        ax.set_ylabel("root mean square")
        ax.legend(**BESIDE)
        say(figure, _headline(kinds, sizes, errors), caption)
    return figure


def _headline(kinds: Sequence[str], sizes: NDArray, errors: NDArray) -> str:
    stream = [i for i, kind in enumerate(kinds) if kind == "stream" and np.isfinite(sizes[i])]
    if len(stream) < 2:
        return f"Size of {len(sizes)} writes into the residual stream"
    first, last = (_briefly(sizes[i], errors[i]) for i in (stream[0], stream[-1]))
    return f"The residual stream goes from a root mean square of {first} to {last}"


def _briefly(value: float, error: float) -> str:
    """Three digits of the value, and the error where it is large enough to be seen in them."""
    places = decimals(value)
    return with_error(value, error, places) if np.isfinite(error) and round(error, places) else number(value, places)
