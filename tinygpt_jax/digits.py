"""Numbers as text, with as many digits as their errors warrant and a plus sign where they are a difference."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGE, FAR = 1e9, 1e100
"""From LARGE on a number is written with its power of ten; from FAR on it is too large for an axis."""


def with_gaps(values: ArrayLike) -> NDArray[np.float64]:
    """NaN, which is drawn as a gap, for whatever is not finite or too far from 0 for an axis."""
    values = np.asarray(values, np.float64)
    return np.where(np.abs(values) < FAR, values, np.nan)


def decimals(values: ArrayLike, errors: ArrayLike | None = None) -> int:
    """Digits after the point that serve a whole figure: two of the median error, but at most five of the largest value;
    three of it where there are no errors."""
    value, error = np.abs(with_gaps(values)), np.abs(with_gaps([] if errors is None else errors))
    value, error = value[value > 0], error[error > 0]
    most = 2 - math.floor(math.log10(value.max())) if value.size else 0
    if error.size:
        most = min(1 - math.floor(math.log10(np.median(error))), most + 2) if value.size else most
    return min(max(most, 0), 6)


def number(value: float, places: int, signed: bool = False) -> str:
    """`0.12`, `+0.12` where signed, `−0.12`, from a thousand million `1.2e+09`; 0 has no sign, and what is not finite
    is `-`."""
    if not np.isfinite(value):
        return "-"
    if abs(value) >= LARGE:
        return f"{value:{'+' if signed else ''}.3g}".replace("-", "−")
    return f"{round(value, places) or 0.0:{'+' if signed and round(value, places) else ''}.{places}f}".replace("-", "−")


def with_error(value: Any, error: float | None = None, places: int = 4, signed: bool = False) -> str:
    """`0.1234 ± 0.0300`, or the number alone where its error is not known; what is not a float stands as it is."""
    said = number(float(value), places, signed) if isinstance(value, (float, np.floating)) else str(value)
    if error is None or not np.isfinite(error) or said == "-":
        return said
    return f"{said} ± {number(error, places)}"
