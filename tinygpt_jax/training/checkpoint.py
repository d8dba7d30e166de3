"""Training states on disk, through orbax: whole or absent, never half."""

from pathlib import Path
from typing import Any, Self

import jax

from tinygpt_jax.config import TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import make_folder
from tinygpt_jax.runs import CHECKPOINTS
from tinygpt_jax.training.step import TrainState, init_state


class Checkpoints:
    """The training states of one run by step; a context manager."""

    def __init__(self, run: Path, keep: int = 0) -> None:
        """`keep` is how many of the newest states stay; 0 keeps all."""
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self._path = make_folder(run / CHECKPOINTS).absolute()
        options = ocp.CheckpointManagerOptions(max_to_keep=keep or None, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(self._path, options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    def steps(self) -> list[int]:
        """The steps at which a state was saved, in order."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, facts: dict[str, Any]) -> None:
        """Saves the state under its step, with JSON facts; does nothing where that step is already saved."""
        args, step = self._ocp.args, int(state.step)
        if step not in self._manager.all_steps():
            items = args.Composite(state=args.StandardSave(state), facts=args.JsonSave(facts))
            self._manager.save(step, args=items, force=True)

    def restore(self, cfg: TrainConfig, step: int | None = None) -> tuple[TrainState, dict[str, Any]]:
        """The newest state, or that of `step`, and its facts; raises UserError where there is none or it is damaged."""
        saved = self.steps()
        if not saved or (step is not None and step not in saved):
            which = "training state" if step is None else f"training state of step {step} (has {saved})"
            raise UserError(f"{self._path} has no {which}: start the run again with --force")
        step = saved[-1] if step is None else step
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), jax.eval_shape(lambda: init_state(cfg))
        )
        args = self._ocp.args
        items = args.Composite(state=args.StandardRestore(shapes), facts=args.JsonRestore())
        try:
            restored = self._manager.restore(step, args=items)
        except Exception as error:  # orbax raises many kinds for a damaged file
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(
                f"{self._path / str(step)} cannot be read ({reason}): delete that folder to resume from an earlier one"
            ) from error
        return restored.state, restored.facts
