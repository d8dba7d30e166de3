"""`tinygpt bench`"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from tinygpt_jax.cli.codes import DONE
from tinygpt_jax.cli.common import Common, Preset, print_json, tell
from tinygpt_jax.cli.settings import layered, parse_given, show_help
from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.study.options import Switch

DEFAULT = TrainConfig(model=replace(TrainConfig().model, vocab_size=65))


@dataclass(frozen=True)
class Flags(Common):
    """Measure this machine's speed with a model: training, decoding, and switching off every head in turn.

    Examples:
      tinygpt bench                              the default model with 65 tokens, about half a minute
      tinygpt bench --quick --n-layer 6 --n-head 6 --n-embd 384
      tinygpt bench --preset nano-gpu --compute-dtype bfloat16
      tinygpt bench runs/book --json             the model, batch and optimizer of a run

    Weights and tokens are random: no text is read, and no run is written. Settings come from the defaults, the run,
    --preset and the other flags; where they differ, the later one wins.
    """

    run: Positional[str] = ""
    """A run directory whose settings to use."""
    preset: Preset = ""
    quick: Switch = False
    """Measure for a few seconds only; the figures are less certain."""
    batch_size: int = DEFAULT.batch_size
    """B, windows per train step."""
    model: Annotated[GPTConfig, arg(name="")] = field(default_factory=lambda: DEFAULT.model)


def run(args: Sequence[str]) -> int:
    """Measures, and prints the result."""
    given = parse_given("bench", Flags, args)
    settings: dict[str, Any] = {name: given.pop(name) for name in ("batch_size", "model") if name in given}
    flags = Flags(**given)
    if flags.run and not Path(flags.run).is_dir():
        raise UserError(f"run {flags.run} does not exist: name a run directory, or none")
    config = layered(settings, base=DEFAULT, run=flags.run, preset_name=flags.preset)
    show_help("bench", Flags(batch_size=config.batch_size, model=config.model), args)
    from tinygpt_jax.benchmark import bench

    result = bench(config, quick=flags.quick, tell=tell)
    if flags.json:
        print_json(result.to_json())
    else:
        print("\n".join(result.lines()))
    return DONE
