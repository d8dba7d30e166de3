"""`tinygpt train`"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import arg

from tinygpt_jax.checks import check
from tinygpt_jax.cli.codes import DONE, SIGNALLED
from tinygpt_jax.cli.common import Common, Preset, print_json, tell
from tinygpt_jax.cli.settings import layered, parse_given, show_help
from tinygpt_jax.config import TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.study.options import Switch


@dataclass(frozen=True)
class Flags(Common):
    """Train a model on text and leave a run directory.

    Examples:
      tinygpt train                                   the built-in corpus, about a minute on two cores
      tinygpt train --data book.txt --steps 3000      your own text
      tinygpt train --data notes/ --exclude drafts --tokenizer bpe --vocab-size 2000
      tinygpt train --preset nano-cpu                 the nanoGPT recipe for a CPU
      tinygpt train --resume runs/book --steps 5000   continue where it stopped

    Settings come from the defaults, --preset, --config and the other flags; where they differ, the later one wins.
    """

    config: Annotated[TrainConfig, arg(name="")] = field(default_factory=TrainConfig)
    preset: Preset = ""
    config_file: Annotated[str, arg(name="config")] = ""
    """A TOML or JSON file of settings; the run.json of a run repeats it."""
    resume: str = ""
    """A run directory to continue, exactly as if it had never stopped."""
    force: Switch = False
    """Replace the run at --out."""
    print_config: Switch = False
    """Print the resulting settings as JSON, which --config reads, and exit."""


def run(args: Sequence[str]) -> int:
    """Trains, and prints the result."""
    given = parse_given("train", Flags, args)
    settings = given.pop("config")
    flags = Flags(**given)
    config = layered(settings, run=flags.resume, preset_name=flags.preset, file=flags.config_file)
    show_help("train", Flags(config=config), args)
    config = check(config)
    if flags.print_config:
        print(json.dumps(dataclasses.asdict(config), indent=2))
        return DONE
    if flags.resume and (flags.force or config.out):
        raise UserError("--resume goes on with a run where it is: leave out --force and --out")
    from tinygpt_jax.runtime import stop_on_signals

    with stop_on_signals() as stopped:
        from tinygpt_jax.training.loop import train
        from tinygpt_jax.training.result import closing_lines

        result = train(config, resume=flags.resume, force=flags.force, stopped=stopped)
    for line in closing_lines(result):
        tell(line)
    if flags.json:
        print_json(result.to_json())
    return SIGNALLED + stopped() if result.interrupted else DONE
