"""What is counted over a run: the best validation, time and tokens. Saved with every checkpoint."""

import math
from typing import Any, NamedTuple, Self

from tinygpt_jax.config import TrainConfig
from tinygpt_jax.training.evaluate import Evaluation


class Progress(NamedTuple):
    """What is known of a run besides its training state."""

    best: Evaluation | None = None
    """of the weights kept, on the whole validation text"""
    best_step: int = 0
    seconds: float = 0.0
    """in steps, validation, samples and saving, earlier parts of a resumed run included; without compilation"""
    trained_tokens: int = 0
    """earlier parts of a resumed run included"""
    last_loss: float | None = None
    """of the last validation; None where it was not finite"""
    rises: int = 0
    """validations in a row whose loss was above that of the one before"""
    stale: int = 0
    """validations in a row without a new best"""

    def validated(self, result: Evaluation, step: int) -> Self:
        """The progress after one more validation; `best is result` where it is the best so far."""
        finite = math.isfinite(result.loss)
        risen = finite and self.last_loss is not None and result.loss > self.last_loss
        better = finite and (self.best is None or result.loss < self.best.loss)
        again = self.best is not None and step <= self.best_step  # resumed from before the best: not yet back there
        kept: dict[str, Any] = {"stale": self.stale if again else self.stale + 1}
        if better:
            kept = {"best": result, "best_step": step, "stale": 0}
        last_loss = result.loss if finite else None
        return self._replace(last_loss=last_loss, rises=self.rises + 1 if risen else 0, **kept)

    def done(self, cfg: TrainConfig, step: int) -> bool:
        """Whether no step is left to take: `step` is the last, or `stop_early` ends the run."""
        return step == cfg.steps or 0 < cfg.stop_early <= self.stale

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "best": self.best and self.best._asdict()}

    @classmethod
    def from_json(cls, facts: dict[str, Any], step: int, per_step: int) -> Self:
        """What `to_json` gave after so many steps of so many tokens, which earlier versions did not save; ValueError or
        TypeError where it is something else."""
        if not isinstance(facts, dict) or "best" not in facts:
            raise ValueError("it does not say which validation was the best")
        best = None if facts["best"] is None else Evaluation(**facts["best"])
        known = {"trained_tokens": step * per_step, **{n: facts[n] for n in cls._fields if n in facts}, "best": best}
        for name, value in [*known.items(), *(best._asdict().items() if best else ())]:
            other = isinstance(value, Evaluation) or (value is None and name in ("best", "last_loss"))
            if not other and (type(value) not in (int, float) or abs(value) >= 2**63):
                raise ValueError(f"{name} is {str(value)[:20]!r}")
        return cls(**known)
