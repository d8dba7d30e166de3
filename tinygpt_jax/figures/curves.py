"""The logit lens, the residual stream, learned gates and the pruning curve, as curves."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinygpt_jax.digits import decimals, number, with_error, with_gaps
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.lines import BESIDE, MARKERS, draw_line, log_axis
from tinygpt_jax.figures.style import SMALL, WIDTH, Figure, new_figure, say, zero_line
from tinygpt_jax.figures.words import aligned, caption, safe, short, table_lines, the_metric, with_unit
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.read.block import ResidualWrites
from tinygpt_jax.lab.read.lens import LogitLens
from tinygpt_jax.lab.remove.curve import PruningCurve
from tinygpt_jax.lab.remove.gates import LearnedGates

NAMED_STAGES = 14
"""The most stages that are named."""
NAMED_HEADS = 24
"""The most heads of an order that are named along the axis."""
STREAM_KINDS = {"stream": "o", "attention": "s", "MLP": "D"}
"""What has a size in the residual stream, and its marker."""
LOG_FROM = 30
"""How far apart the largest and the smallest are where a logarithmic scale tells more."""
NAMED_SITES = 40
"""The most places that are named."""


def lens_figure(result: LogitLens, theme: str = "light") -> Figure:
    d, size = result.definition, len(result.value)
    stages = [safe(str(stage)) for stage in result.labels("stage", size)]
    with new_figure(WIDTH, 3.3, theme) as (figure, colors):
        ax = figure.add_subplot()
        draw_line(ax, np.arange(size), result.value, result.se, colors.lines[0], safe(d.metric), MARKERS[0])
        every = max(1, -(-size // NAMED_STAGES))
        ax.set_xticks(range(0, size, every), stages[::every], rotation=30 if size > 7 else 0)
        ax.set_ylabel(safe(with_unit(d.metric, d.unit)))
        metric = the_metric(d)
        shown = f"Logit lens: {metric} of the residual stream after each layer, read by the final norm and unembedding."
        said = f"{metric[:1].upper()}{metric[1:]} if the model ended at each stage"
        say(figure, said, caption(d, f"{shown} Band: ± 1 standard error."))
    return figure


def gates_figure(result: LearnedGates, theme: str = "light") -> Figure:
    d = result.definition
    kept = np.asarray(result.kept).sum((-2, -1))
    heads = int(np.prod(np.shape(result.kept)[-2:]))
    with new_figure(WIDTH, 3.4, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i, strength in enumerate(np.asarray(result.strengths).tolist()):
            ax.errorbar(
                kept[i], with_gaps(result.rise[i]), yerr=with_gaps(result.rise_se[i]), fmt=MARKERS[i % len(MARKERS)],
                markersize=4, elinewidth=0.9, color=colors.lines[i % len(colors.lines)], label=f"{strength:g}",
            )  # fmt: skip
        zero_line(ax, colors, "y")
        ax.set_xlim(heads + 0.5, kept.min() - 0.5)
        ax.locator_params(axis="x", integer=True)
        ax.set_xlabel(f"heads kept, of {heads}")
        ax.set_ylabel(safe(with_unit("rise of the loss", d.unit)))
        ax.legend(title=f"price of a head\n({safe(d.unit)})", **BESIDE)
        seeds = f"{len(result.seeds)} seed{'s' * (len(result.seeds) != 1)}"
        shown = "Each point: the heads kept at one price, and the rise of the loss with these alone above "
        said = f"Loss against heads kept by learned gates, for {len(result.strengths)} prices of a head and {seeds}"
        say(figure, said, caption(d, f"{shown}the intact model's; ± 1 standard error."))
    return figure


def gates_lines(result: LearnedGates) -> list[str]:
    L, H = result.kept.shape[2:]
    body = []
    for i, j in np.ndindex(result.kept.shape[:2]):
        closed = [head_name(*place) for place in np.argwhere(~result.kept[i, j])]
        rise = with_error(result.rise[i, j], float(result.rise_se[i, j]), signed=True)
        kept = f"{result.kept[i, j].sum()} of {L * H}"
        body.append([f"{result.strengths[i]:g}", str(result.seeds[j]), kept, rise, ", ".join(closed) or "-"])
    title = "  price: nats per token for each open head"
    return [title, *aligned(["price", "seed", "heads kept", "rise of the loss", "closed"], body)]


def pruning_figure(result: PruningCurve, theme: str = "light") -> Figure:
    """Beside random orders and the tolerance."""
    d, n = result.definition, len(result.rise) - 1
    removed = np.arange(n + 1)
    share = f"{100 * result.tolerance:g} %"
    with new_figure(WIDTH, 3.9, theme) as (figure, colors):
        ax = figure.add_subplot()
        random_rises = result.random_losses - result.random_losses[:, :1]
        ax.plot(removed, np.transpose(random_rises), color=colors.muted, linewidth=0.5, alpha=0.5)
        draw_line(ax, removed, result.random_rise, result.random_rise_se, colors.lines[1], "random orders, mean", "s")
        draw_line(ax, removed, result.rise, result.rise_se, colors.lines[0], "this order", "o")
        limit = result.tolerance * abs(result.loss[0])
        ax.axhline(limit, color=colors.ink, linestyle="--", linewidth=0.8, label=f"{share} above the intact model")
        ax.axvline(result.free, color=colors.lines[0], linestyle=":", linewidth=0.9)
        if n <= NAMED_HEADS:
            ax.set_xticks(removed, ["0", *(f"{i}\n{head_name(*map(int, h))}" for i, h in enumerate(result.order, 1))])
            ax.set_xlabel("heads removed, and the last of them")
        else:
            ax.set_xlabel("heads removed")
        ax.set_ylabel(safe(with_unit(f"rise of the {d.metric}", d.unit)))
        ax.legend()
        free = with_error(result.free, result.free_se, 1)
        random = with_error(result.random_free, result.random_free_se, 1)
        shown = "The loss above the intact model's as heads are removed one by one. Bands: ± 1 standard error; grey: "
        said = f"{free} of {n} heads can go before the loss is {share} up (in random order {random})"
        say(figure, said, caption(d, f"{shown}each random order."))
    return figure


def pruning_lines(result: PruningCurve) -> list[str]:
    share, n = f"{100 * result.tolerance:g} %", len(result.order)
    return [
        *table_lines(result),
        "  the error of random orders is over orders and examples together",
        f"  before the loss is {share} up, {result.free} ± {result.free_se:.1f} of {n} heads can go in this order, "
        f"{result.random_free:.1f} ± {result.random_free_se:.1f} in a random one",
    ]


def residual_figure(result: ResidualWrites, theme: str = "light") -> Figure:
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
    if not len(names) == len(kinds) == len(sizes) or not set(kinds) <= set(STREAM_KINDS):
        raise UserError(
            f"kinds are {list(kinds)!r}: must be {', '.join(STREAM_KINDS)}, one for each of {len(names)} names"
        )
    with new_figure(WIDTH, 3.6, theme) as (figure, colors):
        ax = figure.add_subplot()
        for i, (kind, marker) in enumerate(STREAM_KINDS.items()):
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
        every = max(1, -(-len(names) // NAMED_SITES))
        ax.set_xticks(range(0, len(names), every), [short(n, 22) for n in names[::every]], rotation=90, size=SMALL)
        ax.tick_params(axis="x", length=0)
        ax.set_ylabel("root mean square")
        ax.legend(**BESIDE)
        say(figure, _residual_headline(kinds, sizes, errors), caption)
    return figure


def _residual_headline(kinds: Sequence[str], sizes: NDArray, errors: NDArray) -> str:
    stream = [i for i, kind in enumerate(kinds) if kind == "stream" and np.isfinite(sizes[i])]
    if len(stream) < 2:
        return f"Size of {len(sizes)} writes into the residual stream"
    first, last = (_briefly(sizes[i], errors[i]) for i in (stream[0], stream[-1]))
    return f"The residual stream goes from a root mean square of {first} to {last}"


def _briefly(value: float, error: float) -> str:
    """Three digits of the value, and the error where it is large enough to be seen in them."""
    places = decimals(value)
    return with_error(value, error, places) if np.isfinite(error) and round(error, places) else number(value, places)
