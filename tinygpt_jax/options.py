"""What each verb of the command can be told: dataclasses from which tyro makes the flags and their help."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from tyro.conf import Positional, arg

from tinygpt_jax.config import GPTConfig, SampleConfig, TrainConfig


@dataclass(frozen=True)
class Common:
    """Flags of every verb."""

    json: bool = False
    """Print one JSON document on standard output; what is meant for a person goes to standard error."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class Train(Common):
    """Train a model on text and leave a run directory.

    Examples:
      tinygpt train                                   the built-in corpus, about a minute on two cores
      tinygpt train --data book.txt --steps 3000      your own text
      tinygpt train --data notes/ --tokenizer bpe --vocab-size 2000
      tinygpt train --preset nano-cpu                 the nanoGPT recipe for a CPU
      tinygpt train --resume runs/book --steps 5000   go on where it stopped

    Settings come from the defaults, then --preset, then --config, then the flags; the last to speak wins.
    """

    config: Annotated[TrainConfig, arg(name="")] = field(default_factory=TrainConfig)
    preset: str = ""
    """Settings by name: nano-cpu, speedrun, nano-gpu, classic-bpe, toy."""
    config_file: Annotated[str, arg(name="config")] = ""
    """A TOML or JSON file of settings; a run.json repeats that run."""
    resume: str = ""
    """A run directory to go on with, exactly as if it had never stopped."""
    force: bool = False
    """Replace the run at --out."""
    print_config: bool = False
    """Print the settings that all of the above come to, as JSON for --config, and stop."""


@dataclass(frozen=True)
class Sample(Common):
    """Write text with a trained model.

    Examples:
      tinygpt sample                                         the newest run, from nothing
      tinygpt sample runs/book --prompt "It was" --temperature 0.7
      tinygpt sample runs/book --prompt-file - --n 3 --json < prompt.txt
    """

    run: Positional[str] = ""
    """The run directory; left out, the newest under runs/."""
    prompt: str = ""
    """What the text begins with."""
    prompt_file: str = ""
    """Read the prompt from a UTF-8 file, or from standard input where it is `-`."""
    sampling: Annotated[SampleConfig, arg(name="")] = field(default_factory=SampleConfig)


@dataclass(frozen=True)
class Eval(Common):
    """Score text with a trained model: nats per token, bits per byte, perplexity.

    Examples:
      tinygpt eval                              the newest run, on its own validation text
      tinygpt eval runs/book --data other.txt   any other text, the whole of it
    """

    run: Positional[str] = ""
    """The run directory; left out, the newest under runs/."""
    data: tuple[str, ...] = ()
    """Text to score, as for `train`; left out, the last part of what the run was trained on."""


@dataclass(frozen=True)
class Doctor(Common):
    """Say whether this machine is ready: versions, devices, dtypes, a tiny train step, and what is missing.

    Example:
      tinygpt doctor
    """


@dataclass(frozen=True)
class Bench(Common):
    """Measure this machine's speed with a model: training, decoding, and switching off every head in turn.

    Examples:
      tinygpt bench                              the default model with 65 tokens, about half a minute
      tinygpt bench --quick --n-layer 6 --n-head 6 --n-embd 384
      tinygpt bench --preset nano-gpu --compute-dtype bfloat16
      tinygpt bench runs/book --json             the model, batch and optimizer of a run

    Weights and tokens are random: no text is read, and no run is written. Settings come from the defaults, then the
    run, then --preset, then the flags; the last to speak wins.
    """

    run: Positional[str] = ""
    """A run directory whose settings to take."""
    preset: str = ""
    """Settings by name: nano-cpu, speedrun, nano-gpu, classic-bpe, toy."""
    quick: bool = False
    """A few seconds of measuring, and less sure figures."""
    batch_size: int = 12
    """B, windows of a train step."""
    model: Annotated[GPTConfig, arg(name="")] = field(
        default_factory=lambda: replace(TrainConfig().model, vocab_size=65)
    )
