"""What every measurement of a model leaves: arrays with named axes and the definition of what was done."""

import csv
import dataclasses
import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tinygpt_jax.config import GPTConfig, architecture
from tinygpt_jax.digits import with_error
from tinygpt_jax.files import write_together
from tinygpt_jax.markup import EMPTY, folded, fragment, table, visible
from tinygpt_jax.params import Params, flatten

OVER = "…"
"""Among a field's axes: those that the result's own field `over` names."""
ALONE = "each alone"
SITES = {
    "z": "each head's output z",
    "mlp_out": "each MLP's output",
    "z, mlp_out": "each head's output z and each MLP's output",
}
"""Sites that components are removed at -> what a sentence calls them; others go by their name."""
FILLED = {
    "zero": "set to zero",
    "mean": "replaced by its mean",
    "position-mean": "replaced by its mean at that position",
    "resample": "replaced by that of another example",
    "optimal": "replaced by the constant that costs least",
    "given array": "replaced by a given array",
}
"""Fill -> what is done, in words."""
UNITLESS = ("no unit", "share of 1", "1")
"""Units that need not be said."""
MOST_ROWS = 60
"""Rows of a table that a notebook shows."""


@dataclass(frozen=True)
class Definition:
    """What was done, to what, on what: an effect means nothing without it."""

    granularity: str
    """what is switched as one: `head`, `mlp`, `layer`, …"""
    component: str
    """the site that is edited or read: `z` (a head's output before `Wo`), `mlp_out`, …"""
    value: str
    """what takes its place: `zero`, `mean`, …; `-` where nothing is replaced"""
    positions: str
    """the tokens at which it acts: `all`, or their numbers"""
    direction: str
    """`remove` from the intact model, `keep` alone, `denoise`, `noise`, `read`"""
    set: str
    """what is taken together: `each alone`, `all pairs`, …"""
    metric: str
    unit: str
    examples: int
    seed: int | None
    """of what is drawn by chance; None where nothing is"""
    model: str
    """fingerprint of the weights and the architecture"""
    data: str
    """fingerprint of the tokens and answers"""
    flags: tuple[str, ...] = ()
    """what else differs from a plain forward pass"""
    ordered: bool = False
    """the examples are windows in the order of one text, and errors reckon with how alike neighbours are (the MAC
    estimator of `statistics.standard_error`); else examples are taken as independent"""

    def part(self) -> str:
        """What is switched as one, as a sentence has it: `head`, `MLP`, `layer and position`."""
        return {"mlp": "MLP", "player": "component"}.get(self.granularity, self.granularity.replace("/", " and "))

    def line(self) -> str:
        """What was done, in plain words: `each head's output z replaced by its mean, one head at a time`."""
        by = self.part()
        flags = "".join(f", {flag}" for flag in self.flags)
        if self.direction == "read":
            where = "" if self.positions == "all" else f"; positions: {self.positions}"
            taken = f"{by} by {by}" if self.set == ALONE else self.set
            return f"read from {self.component}, {taken}{where}{flags}"
        where = "" if self.positions == "all" else f" at positions {self.positions}"
        replaced = f"{SITES.get(self.component, self.component)} {FILLED.get(self.value, f'replaced by {self.value}')}"
        if self.direction == "keep":
            return f"{replaced} where it is not kept: {self.set}{where}{flags}"
        if self.set == ALONE:
            return f"{replaced}, one {by} at a time{where}{flags}"
        return f"{replaced}{where}: {'one set at a time, ' * (by == 'set')}{self.set}{flags}"

    def measured(self) -> str:
        """What the numbers are, and what their errors are over."""
        few = {0: "" if self.model == "-" else "; of the weights alone", 1: "; one example, so without an error"}
        kind = "windows in the order of the text (long-run)" if self.ordered else "examples, taken as independent"
        over = few.get(self.examples, f"; ± one standard error over {self.examples} {kind}")
        unit = "" if self.unit in UNITLESS else f", {self.unit}"
        return f"{self.metric}{unit}{over}"


@dataclass(frozen=True, eq=False)
class Result:
    """Base of the results. A subclass is a frozen dataclass whose arrays are fields annotated `np.ndarray`, and names
    their axes in `AXES`, the first of which are those of its table."""

    definition: Definition

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """array field -> its axes, outermost first: `layer`, `head`, `example`, or `OVER`"""
    DIFFERENCES: ClassVar[tuple[str, ...]] = ()
    """those of its arrays that are differences or effects, whose numbers have a plus sign above 0"""
    PLACES: ClassVar[Mapping[str, str]] = {}
    """axis -> the field with the names of its places; those of other axes are numbered from 0"""

    def axes(self, field: str) -> tuple[str, ...]:
        """The axes of one array field."""
        over: tuple[str, ...] = getattr(self, "over", ())
        return tuple(name for axis in self.AXES[field] for name in (over if axis == OVER else (axis,)))

    def labels(self, axis: str, size: int) -> Iterable[Any]:
        """What the places along an axis are called, in order."""
        names: Iterable[Any] = getattr(self, self.PLACES[axis]) if axis in self.PLACES else range(size)
        return names

    def places(self, axes: Sequence[str], shape: Sequence[int], brief: bool = False) -> list[str]:
        """The name of each place of an array, in order: `head 0.1, position 3`; or in brief `0.1 3`."""
        sides = [(axis, [str(one) for one in self.labels(axis, size)]) for axis, size in zip(axes, shape, strict=True)]
        if ("layer", "head") in itertools.pairwise(axes):
            at = list(axes).index("layer")
            both = [".".join(place) for place in itertools.product(sides[at][1], sides[at + 1][1])]
            sides[at : at + 2] = [("head", both)]
        named = [[label if brief else f"{axis} {label}" for label in labels] for axis, labels in sides]
        return [(" " if brief else ", ").join(place) for place in itertools.product(*named)]

    def has_sign(self, field: str) -> bool:
        """Whether an array's numbers have a plus sign above 0."""
        return field in self.DIFFERENCES

    def title(self) -> str:
        """Its kind in words: `Head scores`."""
        words = re.sub("(?<=[a-z])[A-Z]", lambda found: f" {found[0].lower()}", type(self).__name__)
        return words.replace("Mlp", "MLP")

    def changes(self) -> Any:
        """What of it has an order, as `lab.order.Changes`; None where nothing has."""
        return None

    def closing(self) -> list[str]:
        """Lines below the table: what its numbers come to."""
        return []

    def to_json(self) -> dict[str, Any]:
        """Every field, arrays as nested lists and what is not finite as null; `read_result` reads it back."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["definition"] = dataclasses.asdict(self.definition)
        return {"kind": type(self).__name__, **{name: _plain(value) for name, value in fields.items()}}

    def present(self) -> np.ndarray:
        """Which places of the first array have a row in the table: bool, of its shape."""
        return np.ones(np.shape(getattr(self, next(iter(self.AXES)))), bool)

    def rows(self, most: int | None = None) -> list[dict[str, Any]]:
        """One row for each place of the first array, or the first so many: its labels, and the arrays that have the
        same axes."""
        columns = {name: getattr(self, name) for name in self._columns()}
        first = next(iter(columns))
        axes = self.axes(first)
        labels = [list(self.labels(axis, size)) for axis, size in zip(axes, columns[first].shape, strict=True)]
        return [
            {
                **{axis: labels[i][at] for i, (axis, at) in enumerate(zip(axes, index, strict=True))},
                **{name: array[index].item() for name, array in columns.items()},
            }
            for index in map(tuple, np.argwhere(self.present())[:most].tolist())
        ]

    def cells(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """The table as text, its head and its rows or the first so many, each value with its error."""
        rows, axes = self.rows(most), self.axes(next(iter(self.AXES)))
        heads, names = axes == ("layer", "head"), self._values()
        body = []
        for row in rows:
            errors = {name: row.get(f"{name}_se", row.get("se") if name == names[0] else None) for name in names}
            values = [with_error(row[name], errors[name], signed=self.has_sign(name)) for name in names]
            labels = (visible(str(row[axis])) or EMPTY for axis in axes)
            body.append([("." if heads else " ").join(labels), *values])
        return ["head" if heads else " ".join(axes), *(name.replace("_", " ") for name in names)], body

    def _columns(self) -> list[str]:
        """The arrays that are columns of the table: the first, and those that have its axes."""
        there = [name for name in self.AXES if getattr(self, name) is not None]
        return [name for name in there if self.axes(name) == self.axes(there[0])]

    def _values(self) -> list[str]:
        """The columns of the table, those of errors left out."""
        return [name for name in self._columns() if name.split("_")[-1] not in ("se", "low", "high")]

    def _grid(self) -> tuple[list[str], list[list[str]]] | None:
        """The table as layers by heads; None where it has other axes, or several values for each head."""
        name, *others = self._values()
        if self.axes(name) != ("layer", "head") or others:
            return None
        L, H = getattr(self, name).shape
        values = [value for _, value in self.cells()[1]]
        return (
            [name.replace("_", " "), *(f"head {head}" for head in range(H))],
            [[f"layer {layer}", *values[layer * H : (layer + 1) * H]] for layer in range(L)],
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self, fold: bool = False) -> str:
        """What was measured and its table, layers by heads where it has one value for each head: what a notebook
        shows; folded where the numbers stand elsewhere."""
        d = self.definition
        said = [d.line(), d.measured()]
        grid = self._grid()
        head, body = grid or self.cells(MOST_ROWS)
        left = 0 if grid else int(self.present().sum()) - len(body)
        more = [f"and {left:,} more rows: tg.draw(result) draws them all"] if left else []
        rows = table(head, body)
        return fragment(
            self.title(),
            said,
            folded("The numbers as a table", rows) if fold else rows,
            [*more, *self.closing()],
        )

    def save(self, stem: str | os.PathLike[str]) -> tuple[Path, Path]:
        """Writes STEM.json (all of it) and STEM.csv (the table, below lines that begin with `#`: the definition), both
        or none.

        Raises:
            UserError: a file cannot be written.
        """
        files = self.files(Path(stem))
        write_together({path: (content,) for path, content in files.items()})
        json, csv = files
        return json, csv

    def files(self, stem: Path) -> dict[Path, bytes]:
        """What `save` writes."""
        table = io.StringIO(newline="")
        for name, value in dataclasses.asdict(self.definition).items():
            table.write(f"# {name}: {'; '.join(value) if isinstance(value, tuple) else value}\n")
        rows = self.rows()
        # A row must not be taken for one of the definition's lines.
        sharp = any(str(next(iter(row.values()))).startswith("#") for row in rows)
        writer = csv.DictWriter(
            table, list(rows[0]) if rows else [], quoting=csv.QUOTE_NONNUMERIC if sharp else csv.QUOTE_MINIMAL
        )
        writer.writeheader()
        writer.writerows(rows)
        paths = stem.with_name(stem.name + ".json"), stem.with_name(stem.name + ".csv")
        document = json.dumps(self.to_json(), ensure_ascii=False) + "\n"
        return dict(zip(paths, (document.encode(), table.getvalue().encode()), strict=True))


def model_fingerprint(params: Params, cfg: GPTConfig) -> str:
    """Of the weights' values and names and of the architecture: 16 hexadecimal digits."""
    digest = hashlib.sha256(json.dumps(architecture(cfg), sort_keys=True).encode())
    for name, leaf in flatten(params):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def data_fingerprint(arrays: Iterable[Any]) -> str:
    """Of arrays, None among them allowed: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for array in arrays:
        array = None if array is None else np.asarray(array)
        digest.update(b"-" if array is None else f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
