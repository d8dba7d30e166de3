"""The train step as a compiled program, compiled in the background while the rest of a run is prepared."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np

from tinygpt_jax.config import TrainConfig
from tinygpt_jax.measure import check_memory, program_memory
from tinygpt_jax.memory import SMALLER_BATCH
from tinygpt_jax.runtime import cache_hits
from tinygpt_jax.training.feed import Feed
from tinygpt_jax.training.step import StepMetrics, TrainState, init_state, make_dispatch

STOP_SECONDS = 0.1
"""How often a wait for the compiler checks whether to stop."""

Dispatch = Callable[[TrainState, jax.Array, Any, Any], tuple[TrainState, StepMetrics]]

first_state = jax.jit(init_state, static_argnums=0)
"""`init_state` compiled as one program instead of some thirty."""


class Program(NamedTuple):
    """What the compiler made."""

    dispatch: Dispatch
    """runs many steps a call; the state it is given is donated"""
    seconds: float
    """spent on tracing, lowering and compiling or loading it"""
    loaded: bool
    """it came from the compilation cache"""

    def describe(self) -> str:
        """One line for the display."""
        if self.loaded:
            return f"loaded the compiled train step in {self.seconds:.1f} s (compilation cache)"
        return f"compiled the train step in {self.seconds:.1f} s"


class Compilation:
    """A train step that is being compiled, for what `feed` gives.

    `program` is a future: its result waits for the compiler, and raises what that raised; or UserError where the
    program plans with more memory than there is.

    Tracing happens here and now, so that the caller's JAX settings hold and its mistakes are raised; only the compiler,
    which lets other threads run, has a thread of its own.
    """

    def __init__(self, cfg: TrainConfig, feed: Feed) -> None:
        began = time.perf_counter()
        self.feed = feed
        step = jax.jit(make_dispatch(cfg), donate_argnums=0)
        lowered = step.lower(jax.eval_shape(lambda: init_state(cfg)), *feed(0, 0), np.int32(0))
        traced = time.perf_counter() - began
        thread = ThreadPoolExecutor(1, "compile")
        self.program = thread.submit(_compile, lowered, traced)
        thread.shutdown(wait=False)

    def wait(self, stopped: Callable[[], int]) -> Program | None:
        """The program once it is there, or None once `stopped` says so; raises what the compiler raised."""
        while not wait([self.program], STOP_SECONDS).done:
            if stopped():
                return None
        return self.program.result()


def _compile(lowered: Any, traced: float) -> Program:
    began = time.perf_counter()
    with cache_hits() as hits:
        dispatch = lowered.compile()
    check_memory(program_memory(dispatch) or 0, "the compiled train step", SMALLER_BATCH)
    return Program(dispatch, traced + time.perf_counter() - began, bool(hits))
