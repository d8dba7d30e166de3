"""The kinds of results, and how one that was saved is read back. A new kind is one more line in `KINDS`."""

import os
import reprlib
import textwrap
from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from tinygpt_jax.arguments import checked
from tinygpt_jax.errors import UserError
from tinygpt_jax.lab.patch.attribution import Attribution
from tinygpt_jax.lab.patch.patching import Patching
from tinygpt_jax.lab.patch.paths import Paths
from tinygpt_jax.lab.read.block import HeadSplit, NormRows, PositionTables, ResidualWrites
from tinygpt_jax.lab.read.lens import AttentionMaps, LogitAttribution, LogitLens
from tinygpt_jax.lab.read.mlp import ActivationCurves, MlpWidths
from tinygpt_jax.lab.read.scores import HeadScores
from tinygpt_jax.lab.read.tokens import EmbeddingMap, NextTokens
from tinygpt_jax.lab.read.training import OverTraining, TrainingCurves
from tinygpt_jax.lab.remove.ablate import Ablation, Pairs
from tinygpt_jax.lab.remove.curve import PruningCurve
from tinygpt_jax.lab.remove.gates import LearnedGates
from tinygpt_jax.lab.remove.importance import Importance
from tinygpt_jax.lab.remove.shapley import Shapley
from tinygpt_jax.lab.result import Definition, Result
from tinygpt_jax.reading import parse_json, read_part

KINDS: dict[str, type[Result]] = {
    kind.__name__: kind
    for kind in (
        Ablation, ActivationCurves, AttentionMaps, Attribution, EmbeddingMap, HeadScores, HeadSplit, Importance,
        LearnedGates, LogitAttribution, LogitLens, MlpWidths, NextTokens, NormRows, OverTraining, Pairs, Patching,
        Paths, PositionTables, PruningCurve, ResidualWrites, Shapley, TrainingCurves,
    )
}  # fmt: skip
"""The `kind` that stands in a saved result's JSON -> its class."""
SAVERS = "heads, ablate or plot"
MOST_RESULT = 2**25
"""Bytes of its file."""
BRIEF = 300
"""Characters of a complaint about a file."""

Made = TypeVar("Made")


@checked
def read_result(path: str | os.PathLike[str]) -> Any:
    """The result that `save` wrote as JSON; raises UserError where the file is missing, damaged or of no known kind."""
    try:
        document = parse_json(read_part(path, MOST_RESULT))
        kind = KINDS[document.pop("kind")]
        _check_version(document["definition"], path)
        result = _made(kind, {**document, "definition": _made(Definition, document["definition"])})
        _check_arrays(result)
        result.changes()  # whose names must fit
        return result
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): name a JSON file that {SAVERS} saved") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        said = textwrap.shorten(repr(error), BRIEF, placeholder=" …")
        raise UserError(f"{path} is no whole result ({said}): name one that {SAVERS} saved") from error


def _check_version(definition: Any, path: str | os.PathLike[str]) -> None:
    """Raises UserError for what an earlier version saved: its errors took windows of a text as independent."""
    if isinstance(definition, dict) and "metric" in definition and "ordered" not in definition:
        raise UserError(f"{path} was saved by an earlier version, whose errors were too small: measure it again")


def _made(kind: type[Made], document: Mapping[str, Any]) -> Made:
    """A dataclass of what JSON holds; raises TypeError, ValueError, KeyError or OverflowError where a field does not
    fit its annotation, is missing or unknown."""
    hints = get_type_hints(kind)
    return kind(**{name: _as_hinted(value, hints[name], name) for name, value in document.items()})


def _as_hinted(value: Any, hint: Any, name: str) -> Any:
    inner = get_args(hint)
    if get_origin(hint) in (Union, UnionType):  # with None
        return None if value is None else _as_hinted(value, inner[0], name)
    if hint is np.ndarray:
        return _array(value, name)
    if hint is float and (value is None or type(value) is int):
        return np.nan if value is None else float(value)
    if get_origin(hint) is tuple and isinstance(value, list):
        hints = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(_as_hinted(one, each, name) for one, each in zip(value, hints, strict=True))
    if type(value) is not hint:
        raise TypeError(f"{name} has {reprlib.repr(value)}")
    if hint is str:
        value.encode()  # half of a surrogate pair could be neither drawn nor saved
    return value


def _array(value: Any, name: str) -> np.ndarray:
    array = np.array(value)
    array = array.astype(np.float64) if array.dtype == object else array
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} has {reprlib.repr(value)}")
    return array


def _check_arrays(result: Result) -> None:
    """Raises ValueError where a standard error is below 0, or arrays do not have their axes, or these not one size and
    as many labels."""
    sizes: dict[str, int] = {}
    for name in result.AXES:
        if (array := getattr(result, name)) is None:
            continue
        if name.split("_")[-1] == "se" and (array < 0).any():
            raise ValueError(f"{name} has an error below 0")
        axes = result.axes(name)
        if len(axes) != np.ndim(array):
            raise ValueError(f"{name} has shape {np.shape(array)} for axes {', '.join(axes)}")
        for axis, size in zip(axes, np.shape(array), strict=True):
            if sizes.setdefault(axis, size) != size or len(list(result.labels(axis, size))) != size:
                raise ValueError(f"{name} has {size} places along {axis}, other parts {sizes[axis]} or other labels")
