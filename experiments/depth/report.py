"""What was found about deep stacks, as tables and two figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.shared.common import claims_table, mean_and_se, save_png, spread
from tinygpt_jax.figures.style import SMALL, WIDTH, new_figure, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from tinygpt_jax.figures.style import Theme

MARKERS = "osD^v"
OFF_SCALE = 0.3
"""Losses so many nats above the unigrams are told, not drawn."""
TITLES = {
    "package": "the package's initial weights, N(0, 0.02)",
    "unit variance": "classical ones, N(0, 1 / fan-in)",
}


def report(results: dict[str, Any], out: Path) -> None:
    (out / "table.md").write_text(table(results), encoding="utf-8")
    save_png(depth_figure(results), out / "depth")
    save_png(identity_figure(results), out / "identity")


def table(results: dict[str, Any]) -> str:
    """Markdown: the claims; range, logits and gradient by stack; what each trained stack comes to; relative changes."""
    lines = [claims_table(results["claims"]), *table_of_stacks(results), "", *table_of_trainings(results), ""]
    identity = results["identity"]
    rows = {f"{factor:g} x": change for factor, change in zip(identity["factors"], identity["initial"], strict=True)}
    rows["1 x, trained"] = identity["trained"]
    layers = range(len(identity["trained"][0]))
    lines += ["| weights | mean change of a block | " + " | ".join(f"layer {i}" for i in layers) + " |"]
    lines += ["|---|---|" + "---|" * len(layers)]
    for name, change in rows.items():
        values = np.array(change, float)
        cells = " | ".join(f"{x:.3g}" for x in values.mean(0))
        lines.append(f"| {name} | {spread(values.mean(1).tolist(), 3)} | {cells} |")
    return "\n".join(lines) + "\n"


def table_of_stacks(results: dict[str, Any]) -> list[str]:
    depth = len(next(iter(results["streams"]["package"].values()))["rms"][0])
    lines = [
        f"| initial weights | stack | rms after {depth} layers / embedding's | rms of logits there | "
        f"share that differs between tokens | first gradient at {results['depths'][-1]} layers / at one |",
        "|---|---|---|---|---|---|",
    ]
    for init, stacks in results["streams"].items():
        for name, found in stacks.items():
            last = [wide(np.array(found[key], float)[:, -1]) for key in ("rms", "logits", "apart")]
            gradient = np.array(results["gradients"][init][name], float)
            with np.errstate(all="ignore"):
                last.append(wide(gradient[-1] / gradient[0]))
            lines.append(f"| {init} | {name} | {' | '.join(last)} |")
    return lines


def wide(values: NDArray) -> str:
    """The median of the seeds and the range of values that may differ by powers of ten."""
    if not np.isfinite(values).all():
        return "not finite"
    return f"{np.median(values):.2g} ({values.min():.2g} to {values.max():.2g})"


def table_of_trainings(results: dict[str, Any]) -> list[str]:
    lines = ["| initial weights | stack | layers | validation loss, nats/character | came apart | not below unigrams |"]
    lines += ["|---|---|---|---|---|---|"]
    for init, stacks in results["trainings"].items():
        for name, depths in stacks.items():
            for depth, outcomes in depths.items():
                loss = np.array([one["loss"] for one in outcomes], float)
                shown = spread(loss.tolist(), 3) if np.isfinite(loss).all() else "not finite"
                bad = sum(one["skipped"] > 0 for one in outcomes)
                worse = int((~(loss < results["unigram"])).sum())
                lines.append(f"| {init} | {name} | {depth} | {shown} | {bad} of {len(loss)} | {worse} of {len(loss)} |")
    return lines


def depth_figure(results: dict[str, Any], theme: str = "light") -> Figure:
    """Stream, gradient and loss after training against depth, a column for each kind of initial weights."""
    unigram, stacks = results["unigram"], list(results["streams"]["package"])
    with new_figure(WIDTH, 7.2, theme) as (figure, colors):
        axes = figure.subplots(3, 2, sharey="row")
        for (top, middle, bottom), init in zip(axes.T, TITLES, strict=True):
            top.set_title(TITLES[init], loc="left")
            draw_streams(top, results["streams"][init], colors)
            draw_gradients(middle, results["depths"], results["gradients"][init], colors)
            draw_trainings(bottom, results["trainings"][init], unigram, stacks, colors)
        for ax, label in zip(
            axes[:, 0],
            ("rms of the stream\nover the embedding's", "gradient at the first layer\n(nats/token)",
             "validation loss after training\n(nats/character)"),
            strict=True,
        ):  # fmt: skip
            ax.set_ylabel(label)
        axes[0, 1].legend(loc="lower left")
        axes[2, 0].set_ylim(top=unigram + 1.4 * OFF_SCALE)  # the row shares it, and now has all of its values
        seeds = len(results["streams"]["package"]["LayerNorm"]["rms"])
        say(
            figure,
            "Classical weights run away without a norm; small ones starve the first layer without residuals",
            f"Means over {seeds} seeds ± 1 standard error; of stream and gradient, means of their logarithms. Width "
            "32. A line ends where the value is 0 or not finite in float32; losses off the scale stand at its top.",
        )
    return figure


def log_mean_and_se(values: Any) -> tuple[NDArray, NDArray, NDArray]:
    """Of values (N, seeds): the mean of their logarithms, and one standard error below and above, as values; NaN where
    one of them has no logarithm."""
    with np.errstate(all="ignore"):
        logs = np.log(np.array(values, float))
        logs = np.where(np.isfinite(logs).all(1, keepdims=True), logs, np.nan)
        mean, se = np.transpose([mean_and_se(row) for row in logs])
        return np.exp(mean), np.exp(mean - se), np.exp(mean + se)


def draw_streams(ax: Axes, streams: dict[str, Any], theme: Theme) -> None:
    for i, (name, found) in enumerate(streams.items()):
        mean, low, high = log_mean_and_se(np.transpose(np.array(found["rms"], float)))
        layers = np.arange(1, len(mean) + 1)
        doubled = [2**k - 1 for k in range(len(mean).bit_length())]
        ax.plot(layers, mean, color=theme.lines[i], marker=MARKERS[i], markevery=doubled, markersize=3, label=name)
        ax.fill_between(layers, low, high, color=theme.lines[i], alpha=0.22, linewidth=0)
    logarithmic(ax)
    ax.set_xlabel("after layer (of the deepest stack)")


def draw_gradients(ax: Axes, depths: list[int], gradients: dict[str, Any], theme: Theme) -> None:
    for i, values in enumerate(gradients.values()):
        mean, low, high = log_mean_and_se(values)
        style = {"color": theme.lines[i], "marker": MARKERS[i], "markersize": 3, "capsize": 2}
        ax.errorbar(depths, mean, (mean - low, high - mean), **style)
    logarithmic(ax)
    ax.set_xlabel("layers of the stack")


def logarithmic(ax: Axes) -> None:
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_yscale("log")


def draw_trainings(ax: Axes, trainings: dict[str, Any], unigram: float, stacks: list[str], theme: Theme) -> None:
    """Losses by depth; what is far above the unigrams, or not finite, stands at the upper edge with its number."""
    top = unigram + OFF_SCALE
    beside = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "size": SMALL}
    for name, depths in trainings.items():
        i = stacks.index(name)
        layers = np.array([int(depth) for depth in depths])
        losses = np.array([[one["loss"] for one in outcomes] for outcomes in depths.values()], float)
        mean, se = np.transpose([mean_and_se(row) for row in losses])
        out = ~(mean <= top)
        style = {"color": theme.lines[i], "marker": MARKERS[i], "markersize": 3, "capsize": 2}
        ax.errorbar(layers, np.where(out, top, mean), np.where(out, 0, se), **style)
        for x, value in zip(layers[out], mean[out], strict=True):
            told = f"{value:.0f}" if np.isfinite(value) else "not finite"
            ax.annotate(told, (x, top), (0, 4), textcoords="offset points", ha="center", size=SMALL)
    ax.axhline(unigram, color=theme.muted, linestyle=":", linewidth=0.9)
    ax.annotate("unigrams", (0, unigram), (2, 2), **beside)
    ax.set_xscale("log", base=2)
    ax.set_xticks(layers, [str(n) for n in layers], minor=False)
    ax.minorticks_off()
    ax.set_xlabel("layers of the trained stack")


def identity_figure(results: dict[str, Any], theme: str = "light") -> Figure:
    """A block's relative change against the factor on its initial weights, and after training."""
    identity = results["identity"]
    initial, trained = np.array(identity["initial"], float), np.array(identity["trained"], float)
    with new_figure(WIDTH, 3.2, theme) as (figure, colors):
        ax = figure.add_subplot()
        factors = identity["factors"]
        mean, low, high = log_mean_and_se(initial.mean(2))
        ax.plot(factors, initial.mean(1), color=colors.muted, linewidth=0.6, alpha=0.7)
        ax.errorbar(
            factors, mean, (mean - low, high - mean), color=colors.lines[0], marker="o", markersize=3.5, capsize=2,
            label="before training, mean of layers (grey: each layer)",
        )  # fmt: skip
        after, se = mean_and_se(trained.mean(1).tolist())
        ax.errorbar(1, after, se, color=colors.lines[1], marker="D", markersize=5, capsize=3, linestyle="",
                    label="after training, mean of layers (bars: each)")  # fmt: skip
        ax.plot(np.ones(trained.shape[1]), trained.mean(0), "_", color=colors.lines[1], alpha=0.7)
        ax.axhline(results["nearly"], color=colors.muted, linestyle=":", linewidth=0.9)
        ax.annotate("nearly the identity below", (1, results["nearly"]), (-2, 3), ha="right", size=SMALL,
                    xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
        logarithmic(ax)
        ax.set_xticks(factors, [f"{factor:g}" for factor in factors])
        ax.set_xlabel("factor on the blocks' initial matrices")
        ax.set_ylabel("|block(x) - x| / |x|")
        ax.legend(loc="lower right")
        before = initial[factors.index(1.0)].mean()
        say(
            figure,
            f"At the package's initial weights a block changes its input by {before:.2f} of it; once trained the first "
            f"does so by {trained[:, 0].mean():.1f}, the last by {trained[:, -1].mean():.2f}",
            f"{trained.shape[1]} blocks of width 32 with LayerNorm, means over tokens, {len(trained)} seeds ± 1 "
            "standard error.",
        )
    return figure
