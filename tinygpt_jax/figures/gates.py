"""Learned gates: what the model loses, against how many heads each price of a head leaves open."""

import numpy as np

from tinygpt_jax.digits import with_error, with_gaps
from tinygpt_jax.figures.lines import BESIDE, MARKERS
from tinygpt_jax.figures.style import WIDTH, Figure, new_figure, say, zero_line
from tinygpt_jax.figures.text import aligned
from tinygpt_jax.figures.words import caption, safe, with_unit
from tinygpt_jax.lab.components import head_name
from tinygpt_jax.lab.remove.gates import LearnedGates


def figure(result: LearnedGates, theme: str = "light") -> Figure:
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


def lines(result: LearnedGates) -> list[str]:
    L, H = result.kept.shape[2:]
    body = []
    for i, j in np.ndindex(result.kept.shape[:2]):
        closed = [head_name(*place) for place in np.argwhere(~result.kept[i, j])]
        rise = with_error(result.rise[i, j], float(result.rise_se[i, j]), signed=True)
        kept = f"{result.kept[i, j].sum()} of {L * H}"
        body.append([f"{result.strengths[i]:g}", str(result.seeds[j]), kept, rise, ", ".join(closed) or "-"])
    title = "  price: nats per token for each open head"
    return [title, *aligned(["price", "seed", "heads kept", "rise of the loss", "closed"], body)]
