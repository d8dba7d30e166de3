"""How figures look and how they are written: sizes, colours and text in one place, legible in print and to
colour-blind eyes."""

import functools
import io
import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from rich.cells import cell_len

from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.figures import fonts, require_matplotlib
from tinygpt_jax.figures.words import signs
from tinygpt_jax.files import write_together
from tinygpt_jax.markup import isolated

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
else:
    Axes = AxesImage = Colormap = Figure = Any  # matplotlib is optional, and loaded when something is drawn

WIDTH = 6.3
"""Inches: the text of an A4 page. Figures are drawn at the size of print, and grow past it only where they must."""
DPI, SCREEN_DPI = 200, 120
SMALL, NORMAL, LARGE = 6.5, 7.5, 9.5  # points
SALT = "tinygpt"
"""From which SVG identifiers are made, so that the same figure is the same file."""


class Theme(NamedTuple):
    """Colours by what they are for."""

    ink: str
    paper: str
    muted: str
    """of axes, and of lines that are not the subject"""
    low: str
    high: str
    """ends of the diverging map, below and above 0; its centre is the paper"""
    sequential: tuple[str, ...]
    """from 0, the paper, to 1"""
    lines: tuple[str, ...]
    """Okabe and Ito 2008, `Color Universal Design`, the faintest on this paper last"""


THEMES = {
    "light": Theme(
        ink="#1A1A1A",
        paper="#FFFFFF",
        muted="#8C8C8C",
        low="#004F80",
        high="#A63603",
        sequential=("#FFFFFF", "#9ECAE1", "#3182BD", "#08306B"),
        lines=("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#F0E442"),
    ),
    "dark": Theme(
        ink="#EDEDED",
        paper="#15181C",
        muted="#7D828A",
        low="#56B4E9",
        high="#F28E4B",
        sequential=("#15181C", "#1F4E79", "#56B4E9", "#F2FAFF"),
        lines=("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#FFFFFF", "#CC79A7", "#D55E00", "#0072B2"),
    ),
}


@contextmanager
def new_figure(width: float, height: float, theme: str) -> Iterator[tuple[Figure, Theme]]:
    """An empty figure of so many inches, to be filled while the theme holds; settings of matplotlib's stay as they are.

    Raises:
        UserError: matplotlib is missing, or there is no such theme.
    """
    if theme not in THEMES:
        raise UserError(f"theme {theme!r} is unknown{nearest(theme, THEMES)}")
    colors = THEMES[theme]
    with _settings(colors):
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        figure = _shown()(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06))
        yield figure, colors
        lay_out(figure)


@functools.cache
def _shown() -> type[Figure]:
    """A figure that a notebook shows as a PNG, whatever its backend and settings."""
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def draw(self, renderer: Any) -> None:
            with fonts.quietly():
                super().draw(renderer)

        def _repr_png_(self) -> bytes:
            return encoded(self, "png", SCREEN_DPI)

    return ShownFigure


def lay_out(figure: Figure) -> None:
    """Gives everything its fonts and its place for good, the same at any resolution. Axes make their ticks when first
    measured, which should be while the theme holds."""
    from matplotlib.text import Text

    texts = figure.findobj(Text)
    families = fonts.families("".join(text.get_text() for text in texts))
    for text in texts if len(families) > 1 else ():
        text.set_fontfamily(families)
    if engine := figure.get_layout_engine():
        with fonts.quietly():
            engine.execute(figure)
        figure.set_layout_engine("none")


def say(figure: Figure, headline: str, caption: str) -> None:
    """Writes above a figure what is to be seen in it, and below, each on lines of its own, what is shown and how it was
    made."""
    width = figure.get_figwidth()
    figure.set_label(headline)
    figure.suptitle(_wrapped(headline, width, LARGE, 3), x=0.015, ha="left", size=LARGE, weight="bold")
    if caption:
        small = "\n".join(_wrapped(part, width, SMALL, 4) for part in caption.split("\n"))
        figure.supxlabel(small, x=0.015, ha="left", size=SMALL, color=figure.get_edgecolor())


def colormap(kind: Literal["diverging", "sequential"], theme: Theme) -> Colormap:
    """Diverging for effects: blue below 0, red-brown above, paper at 0; sequential for shares, from 0."""
    from matplotlib.colors import LinearSegmentedColormap

    colors = (theme.low, theme.paper, theme.high) if kind == "diverging" else theme.sequential
    return LinearSegmentedColormap.from_list(kind, colors)


def ink_on(color: ArrayLike) -> str:
    """Black or white, whichever is easier to read on an RGB colour (relative luminance, WCAG 2.2)."""
    channel = np.asarray(color, np.float64)[:3]
    linear = np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)
    return "#000000" if linear @ (0.2126, 0.7152, 0.0722) > 0.18 else "#FFFFFF"


def zero_line(ax: Axes, theme: Theme, direction: str) -> None:
    """Marks where nothing has changed: `x` for a vertical line, `y` for a horizontal one."""
    draw = ax.axvline if direction == "x" else ax.axhline
    draw(0, color=theme.muted, linewidth=0.8, zorder=0)


def save_figure(figure: Figure, stem: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Writes STEM.png and STEM.svg, both whole or none; the same figure gives the same bytes.

    Raises:
        UserError: a file cannot be written.
    """
    files = figure_files(figure, Path(stem))
    write_together({path: (content,) for path, content in files.items()})
    png, svg = files
    return png, svg


def figure_files(figure: Figure, stem: Path) -> dict[Path, bytes]:
    """What `save_figure` writes."""
    return {stem.with_name(f"{stem.name}.{kind}"): encoded(figure, kind, DPI) for kind in ("png", "svg")}


def encoded(figure: Figure, kind: str, dpi: float) -> bytes:
    """A figure on its own paper as a `png` or `svg` file; the same figure gives the same bytes."""
    metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    buffer = io.BytesIO()
    with _settings(None):
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


@contextmanager
def _settings(theme: Theme | None) -> Iterator[None]:
    require_matplotlib()
    import matplotlib.style
    from cycler import cycler

    settings: dict[str, Any] = {"svg.hashsalt": SALT, "svg.fonttype": "path", "hatch.linewidth": 0.4}
    if theme:
        settings |= {
            "font.family": fonts.OWN,
            "font.size": NORMAL,
            "axes.titlesize": NORMAL,
            "axes.labelsize": NORMAL,
            "legend.fontsize": SMALL,
            "legend.frameon": False,
            "figure.facecolor": theme.paper,
            "figure.edgecolor": theme.ink,
            "axes.facecolor": theme.paper,
            "axes.edgecolor": theme.muted,
            "axes.labelcolor": theme.ink,
            "axes.prop_cycle": cycler(color=theme.lines),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.6,
            "text.color": theme.ink,
            "lines.linewidth": 1.4,
            "hatch.color": theme.muted,
        }
        ticks = {
            "labelsize": SMALL,
            "color": theme.muted,
            "labelcolor": theme.ink,
            "major.width": 0.6,
            "major.size": 2.5,
        }
        settings |= {f"{axis}tick.{name}": value for axis in "xy" for name, value in ticks.items()}
    with matplotlib.style.context(["default", settings]):
        yield


def _wrapped(text: str, inches: float, points: float, lines: int) -> str:
    """Safe text, in lines that are sure to fit so many inches."""
    extra = cell_len(text) - len(text)  # of wide letters, all of which may stand in one line
    columns = max(int(inches * 72 / (points * 0.59)) - max(extra, 0), 20)
    whole = "".join(signs(text)).replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    return isolated(textwrap.fill(whole, columns, max_lines=lines, placeholder=" …"))
