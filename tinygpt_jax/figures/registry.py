"""Every kind of result, its figure and its words: the one way from a result to either. A new kind is one line here."""

import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tinygpt_jax.arguments import checked
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures import curves, effects, mlp, tables, tokens, training
from tinygpt_jax.figures.style import Figure, save_figure
from tinygpt_jax.figures.words import intact, table_lines
from tinygpt_jax.lab import kinds
from tinygpt_jax.lab.result import Result
from tinygpt_jax.reading import check_links


class Look(NamedTuple):
    """How a kind of result is shown."""

    figure: Callable[[Any, str], Figure]
    """figure(result, theme)"""
    lines: Callable[[Any], list[str]] = table_lines
    """what is said below its definition on a terminal"""


LOOKS: dict[type[Result], Look] = {
    kinds.Ablation: Look(effects.ablation_figure),
    kinds.ActivationCurves: Look(mlp.activation_figure, mlp.activation_lines),
    kinds.AttentionMaps: Look(tokens.attention_figure, tokens.attention_lines),
    kinds.Attribution: Look(effects.attribution_figure),
    kinds.EmbeddingMap: Look(tokens.embedding_figure),
    kinds.HeadScores: Look(effects.scores_figure),
    kinds.HeadSplit: Look(tables.head_split_figure),
    kinds.Importance: Look(effects.importance_figure, effects.importance_lines),
    kinds.LearnedGates: Look(curves.gates_figure, curves.gates_lines),
    kinds.LogitAttribution: Look(effects.logit_attribution_figure),
    kinds.LogitLens: Look(curves.lens_figure),
    kinds.MlpWidths: Look(mlp.mlp_widths_figure, mlp.mlp_widths_lines),
    kinds.NextTokens: Look(tokens.next_tokens_figure),
    kinds.NormRows: Look(tables.norm_rows_figure),
    kinds.OverTraining: Look(training.over_training_figure),
    kinds.Pairs: Look(effects.pairs_figure, effects.pairs_lines),
    kinds.Patching: Look(effects.first_array_figure),
    kinds.Paths: Look(effects.paths_figure),
    kinds.PositionTables: Look(tables.positions_figure),
    kinds.PruningCurve: Look(curves.pruning_figure, curves.pruning_lines),
    kinds.ResidualWrites: Look(curves.residual_figure),
    kinds.Shapley: Look(effects.shapley_figure, effects.shapley_lines),
    kinds.TrainingCurves: Look(training.training_curves_figure),
}
OTHER = Look(effects.first_array_figure)


@checked
def draw(result: Result, *, theme: str = "light") -> Figure:
    """The figure of a result, by its kind; of a kind without one of its own, a map or bars of its first array.

    Raises:
        UserError: matplotlib is missing, there is no such theme, the result has nothing to draw, or its parts do not
            fit each other.
    """
    try:
        return LOOKS.get(type(result), OTHER).figure(result, theme)
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:  # whatever fits a file's types may be in it
        said = textwrap.shorten(repr(error), kinds.BRIEF, placeholder=" …")
        kind = type(result).__name__
        raise UserError(f"this {kind} cannot be drawn, its parts do not fit each other: {said}") from error


def draw_file(
    path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, theme: str = "light"
) -> tuple[Path, Path]:
    """Draws the result saved in a JSON file to OUT.png and OUT.svg, whose paths it returns; default: beside the file.

    Raises:
        UserError: the file holds no result, what is beside it is a link that leads elsewhere, or as for `draw` and
            `save_figure`.
    """
    result, beside = kinds.read_result(path), Path(path).with_suffix("")
    if out is None:
        check_links(beside.parent, [f"{beside.name}.png", f"{beside.name}.svg"])
    return save_figure(draw(result, theme=theme), beside if out is None else out)


def lines(name: str, result: Result) -> list[str]:
    """A result in words: its definition, the intact model's metric, its table, and what follows from it."""
    d = result.definition
    head = [f"{name}: {d.line()}", f"  {d.measured()}", *(f"  {line}" for line in intact(result))]
    said = LOOKS.get(type(result), OTHER).lines(result)
    return [*head, *said, *(f"  {line}" for line in result.closing())]
