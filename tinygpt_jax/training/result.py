"""The result of a run, and the closing lines about it."""

import math
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from tinygpt_jax.markup import facts_fragment
from tinygpt_jax.training.display import duration, losses
from tinygpt_jax.training.evaluate import ERROR, JSON_KEYS, Evaluation

INCLUDED = "validation and saving included"


class TrainResult(NamedTuple):
    """How a run ended."""

    run: Path
    best: Evaluation | None
    """of the weights in model.safetensors; None where it was interrupted before the first validation"""
    best_step: int
    steps: int
    parameters: int
    seconds: float
    """in steps, validation, samples and saving, earlier parts of a resumed run included; without compilation"""
    compile_seconds: float
    """to trace and compile the train step, or to load it from the compilation cache"""
    compilation_cached: bool
    """it was loaded"""
    trained_tokens: int
    """steps times tokens a step, earlier parts of a resumed run included"""
    skipped: int
    """steps not applied because of a non-finite loss or gradient"""
    interrupted: bool
    stopped_early: int = 0
    """validations in a row without a new best, for which it ended before its last step; 0 where it did not"""

    @property
    def tokens_per_second(self) -> float:
        """`trained_tokens` over `seconds`."""
        return self.trained_tokens / max(self.seconds, 1e-9)

    def to_json(self) -> dict[str, Any]:
        """The document that `tinygpt train --json` prints."""
        scores = self.best.to_json() if self.best else dict.fromkeys(JSON_KEYS)
        others = {name: value for name, value in self._asdict().items() if name != "best"}
        return {**scores, **others, "run": str(self.run), "tokens_per_second": self.tokens_per_second}

    def facts(self) -> dict[str, str]:
        """Name -> value and unit, to be read; the losses are those of the best weights."""
        how = "loaded" if self.compilation_cached else "compiled"
        facts = {
            "run": str(self.run),
            "steps": f"{self.steps:,}{', interrupted' * self.interrupted}{', ended early' * bool(self.stopped_early)}",
            **({"best at step": f"{self.best_step:,}", **self.best.facts()} if self.best else {}),
            "parameters": f"{self.parameters:,}",
            "time": f"{_precise(self.seconds)}, {INCLUDED}; and {self.compile_seconds:.1f} s until the step was {how}",
            "speed": f"{self.tokens_per_second:,.0f} tokens/s over that time",
        }
        return facts | ({"skipped": f"{self.skipped} steps, loss or gradient not finite"} if self.skipped else {})

    def _repr_html_(self) -> str:
        return facts_fragment("TrainResult", self.facts())


def closing_lines(result: TrainResult) -> list[str]:
    """How it went, and which commands come next."""
    run, best = shlex.quote(str(result.run)), result.best
    if result.interrupted:
        return [f"interrupted at step {result.steps:,}, all saved; go on with: tinygpt train --resume {run}"]
    compiling = "to load the compiled step" if result.compilation_cached else "of compilation"
    lines = [
        f"trained {result.steps:,} steps ({result.trained_tokens:,} tokens) in {_precise(result.seconds)}, {INCLUDED}: "
        f"{result.tokens_per_second:,.0f} tokens/s; and {result.compile_seconds:.1f} s {compiling}"
    ]
    if best:
        lines.append(f"best validation: {losses(best)}, at step {result.best_step:,}; kept in {run}")
        lines += [f"± is {ERROR}"] * math.isfinite(best.loss_se)
    if result.skipped:
        lines.append(f"{result.skipped} steps were skipped: their loss or gradient was not finite")
    if result.stopped_early:
        lines.append(f"ended early: {result.stopped_early} validations in a row brought no new best")
    more = f"train --resume {run} {'--stop-early 0' if result.stopped_early else '--steps N'}"
    verbs = (*(f"{verb} {run}" for verb in ("sample", "eval", "heads", "ablate", "plot")), more)
    return [*lines, "next:", *(f"  tinygpt {verb}" for verb in verbs)]


def _precise(seconds: float) -> str:
    """A duration to three digits, so that times the speed beside it it gives the tokens."""
    return f"{seconds:.3g} s" if seconds < 99.95 else duration(seconds)
