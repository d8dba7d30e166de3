"""From the turns of a race to numbers: medians of paired values, their spread, and whether a bar is met."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.speed.contest import Round
from experiments.speed.protocol import Answer

QUANTITIES: dict[str, tuple[str, Callable[[Answer], float]]] = {
    "ms_per_step": ("ms/step", lambda a: 1000 * a["seconds"] / a["steps"]),
    "tokens_per_second": ("tokens/s", lambda a: a["tokens"] / a["seconds"]),
    "seconds": ("s", lambda a: a["seconds"]),
    "mebibytes": ("MiB", lambda a: a["bytes"] / 2**20),
    "count": ("compilations", lambda a: a["count"]),
}
"""Name -> unit, and how a turn's answer gives it; an answer that lacks what it takes has no such quantity."""


@dataclass(frozen=True)
class Measure:
    """A number that every round gives anew, such as a ratio of two turns of that round, and the bar it has to pass."""

    name: str
    of: Callable[[Round], float]
    needs: tuple[str, ...]
    """The contestants it is made of."""
    unit: str = "x"
    at_least: float | None = None
    at_most: float | None = None
    aim: float | None = None
    """Further in the direction of the bar; not a bar."""

    def meets(self, value: float, low: float | None, high: float | None) -> bool | None:
        """Whether a value lies within the limits; None where there are none."""
        if low is None and high is None:
            return None
        return (low is None or value >= low) and (high is None or value <= high)

    def bar(self) -> str:
        """The bar in words; empty where there is none."""
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:g} to {self.at_most:g}"
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"


def quantity(name: str, answer: Answer) -> float:
    """One of QUANTITIES, of one turn."""
    return float(QUANTITIES[name][1](answer))


def ratio(name: str, over: str, under: str, of: str, **bars: Any) -> Measure:
    """The paired ratio of a quantity: `over`'s turn by `under`'s turn of the same round."""
    return Measure(name, lambda r: quantity(of, r[over]) / quantity(of, r[under]), (over, under), **bars)


def value(name: str, who: str, of: str, **bars: Any) -> Measure:
    """A quantity of one contestant by itself."""
    return Measure(name, lambda r: quantity(of, r[who]), (who,), QUANTITIES[of][0], **bars)


def slope(name: str, by_size: Mapping[float, str], **bars: Any) -> Measure:
    """The least-squares slope of log(time per step) against log(size), over contestants of several sizes."""
    xs = [math.log(size) for size in by_size]

    def of(r: Round) -> float:
        ys = [math.log(quantity("ms_per_step", r[who])) for who in by_size.values()]
        return statistics.linear_regression(xs, ys).slope

    return Measure(name, of, tuple(by_size.values()), "slope", **bars)


def growth(name: str, small: str, large: str, operations: float, **bars: Any) -> Measure:
    """How many times longer the larger one's step is, over how many times more `operations` it has."""
    times = ratio(name, large, small, "ms_per_step")
    return Measure(name, lambda r: times.of(r) / operations, times.needs, **bars)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, and the quartiles that bound the middle half."""
    if len(values) < 2:
        return {"median": values[0], "q1": values[0], "q3": values[0]}
    q1, _, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": statistics.median(values), "q1": q1, "q3": q3}


def summarise(measures: Sequence[Measure], rounds: Sequence[Round], failed: Mapping[str, str]) -> dict[str, Any]:
    """Every contestant's quantities and every measure, each as median and quartiles over the rounds.

    A measure is taken within each round first and only then summed up, so that what slows a whole round down cancels.
    """
    names = list(dict.fromkeys(name for r in rounds for name in r))
    contestants = {name: _quantities([r[name] for r in rounds]) for name in names}
    return {
        "rounds": len(rounds),
        "contestants": {**contestants, **{name: {"failed": reason} for name, reason in failed.items()}},
        "measures": [_measured(m, rounds, failed) for m in measures],
    }


def _quantities(answers: Sequence[Answer]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (_, of) in QUANTITIES.items():
        try:
            found[name] = spread([float(of(a)) for a in answers])
        except KeyError:
            continue
    if "ms_per_step" in found:
        del found["seconds"]  # the length of a turn says nothing
    if "names" in answers[-1]:
        found["names"] = answers[-1]["names"]
    return found


def _measured(m: Measure, rounds: Sequence[Round], failed: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": m.name, "unit": m.unit, "bar": m.bar(), "at_least": m.at_least}
    facts |= {"at_most": m.at_most, "aim": m.aim}
    if missing := [name for name in m.needs if name in failed]:
        return {**facts, "not_measured": f"{missing[0]}: {failed[missing[0]]}"}
    values = [m.of(r) for r in rounds]
    middle = spread(values)
    upward = m.at_least is not None
    aims = (m.aim, None) if upward else (None, m.aim)
    return {
        **facts,
        **middle,
        "values": values,
        "met": m.meets(middle["median"], m.at_least, m.at_most),
        "aim_met": m.meets(middle["median"], *aims),
    }
