"""What each verb of the command can be told: dataclasses from which tyro makes the flags and their help."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from tinygpt_jax.config import GPTConfig, SampleConfig, Sources, TrainConfig

Switch = FlagCreatePairsOff[bool]
"""What can only be turned on. Other booleans are a pair of flags, --x and --no-x, whatever the settings beneath say."""


@dataclass(frozen=True)
class Common:
    """Flags of every verb."""

    json: Switch = False
    """Print one JSON document on standard output; what is meant for a person goes to standard error."""
    debug: Switch = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class Reading(Common):
    """Flags of the verbs that read text with a run."""

    data: tuple[str, ...] = ()
    """Text to read, the whole of it, as for `train`; left out, the run's own validation text."""
    include: tuple[str, ...] = ()
    """Of the directories and files of --data, read only those that one of these fits, as in '*.md' docs."""
    exclude: tuple[str, ...] = ()
    """Of the directories and files of --data, leave out what one of these fits."""

    @property
    def sources(self) -> Sources:
        """The text to read; none for the run's own."""
        return Sources(self.data, self.include, self.exclude)


@dataclass(frozen=True)
class Train(Common):
    """Train a model on text and leave a run directory.

    Examples:
      tinygpt train                                   the built-in corpus, about a minute on two cores
      tinygpt train --data book.txt --steps 3000      your own text
      tinygpt train --data notes/ --exclude drafts --tokenizer bpe --vocab-size 2000
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
    force: Switch = False
    """Replace the run at --out."""
    print_config: Switch = False
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
    without: tuple[str, ...] = ()
    """What to switch off (to zero) while it writes: 0.2 is head 2 of layer 0; or mlp1, heads1, layer1."""
    sampling: Annotated[SampleConfig, arg(name="")] = field(default_factory=SampleConfig)


@dataclass(frozen=True)
class Eval(Reading):
    """Score text with a trained model: nats per token, bits per byte, perplexity.

    Examples:
      tinygpt eval                              the newest run, on its own validation text
      tinygpt eval runs/book --data other.txt   any other text, the whole of it
    """

    run: Positional[str] = ""
    """The run directory; left out, the newest under runs/."""


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
    quick: Switch = False
    """A few seconds of measuring, and less sure figures."""
    batch_size: int = 12
    """B, windows of a train step."""
    model: Annotated[GPTConfig, arg(name="")] = field(
        default_factory=lambda: replace(TrainConfig().model, vocab_size=65)
    )


@dataclass(frozen=True)
class Lab(Reading):
    """Flags of the verbs that open a model."""

    run: Positional[str] = ""
    """The run directory; left out, the newest under runs/."""
    windows: int | None = None
    """Windows of block_size tokens, spread evenly over the text: the examples that errors are taken over. Left out, 64,
    or as many as the text has room for."""
    checkpoints: Switch = False
    """Measure at every checkpoint of the run too (of --keep-checkpoints 0), and draw heads forming."""
    seed: int = 0
    """Of whatever is drawn by chance."""
    out: str = ""
    """Where results go, as JSON, CSV, PNG and SVG; left out, the folder `heads` in the run."""
    figures: bool = True
    """Draw the results; off, save their numbers alone. Drawing needs matplotlib: pip install 'tinygpt_jax[plot]'."""


@dataclass(frozen=True)
class Heads(Lab):
    """Say what each head does: whom it attends to, what it copies, and what it writes to the prediction.

    Examples:
      tinygpt heads                                      the newest run, on its validation text
      tinygpt heads runs/book --prompt "the cat and the cat"
      tinygpt heads runs/book --checkpoints --json       how the heads formed, if it kept its checkpoints

    Attention is read twice: on the text, and on random tokens of which a part comes twice, where induction shows. It
    ends in what each head is, where its scores are clearly above chance.
    """

    prompt: str = ""
    """The text whose attention is drawn; left out, the first of the windows."""


Analysis = Literal[
    "heads", "mlps", "layers", "keep-one", "pairs", "shapley", "shapley-by-layer", "importance", "gates", "pruning"
]


@dataclass(frozen=True)
class Ablate(Lab):
    """Switch parts of a model off and say what it loses, with a standard error for every effect.

    Examples:
      tinygpt ablate                                      every head of the newest run, each alone
      tinygpt ablate runs/book --of pairs shapley-by-layer --fill zero
      tinygpt ablate runs/book --sets 0.2+1.3 mlp1 --metric kl
      tinygpt ablate runs/book --of gates pruning importance
      tinygpt ablate runs/book --sets 0.2+1.3 --save-pruned runs/smaller
    """

    of: tuple[Analysis, ...] = ()
    """What is measured; left out, heads, or the --sets alone."""
    sets: tuple[str, ...] = ()
    """Sets to switch off: components joined by +, where 0.2 is head 2 of layer 0, or mlp1, heads1, layer1."""
    fill: Literal["zero", "mean", "position-mean", "resample", "optimal"] = "mean"
    """What takes the place of what is switched off."""
    metric: Literal["loss", "kl", "log-prob"] = "loss"
    """Mean loss, KL divergence from the intact model, or log-probability of the answer (of --on repeats)."""
    on: Literal["text", "repeats"] = "text"
    """Windows of text, or random tokens of which a part comes twice."""
    positions: tuple[int, ...] = ()
    """The tokens at which it acts, from 0; left out, all."""
    hold_patterns: Switch = False
    """Keep later attention patterns as in the intact model."""
    freeze_norms: Switch = False
    """Keep the norms' scales as in the intact model."""
    bootstrap: int = 0
    """Samples for a 95 % interval of each effect; 0 for none."""
    strengths: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3)
    """For gates: prices of a head, nats per token."""
    save_pruned: str = ""
    """Write the model without the heads of the one set in --sets as a run directory of this name."""
    force: Switch = False
    """Replace the run at --save-pruned."""


@dataclass(frozen=True)
class Plot(Reading):
    """Draw a run, every piece of it: PNG, SVG and the numbers as CSV and JSON. Or draw saved results anew.

    Examples:
      tinygpt plot                              the newest run: training, block, tokens, heads
      tinygpt plot runs/book --prompt "It was" --theme dark
      tinygpt plot runs/book --lab              with everything that `ablate` can measure, about five minutes
      tinygpt plot runs/book/*/*.json --out figures

    Figures of a run's training, block and tokens go to its folder `plots`, those of its heads to `heads`. What `heads`
    and `ablate` have saved is drawn as it is; what they would leave by default and is missing is measured.
    """

    what: Positional[tuple[str, ...]] = ()
    """Run directories, or JSON files that were saved; left out, the newest run under runs/."""
    prompt: str = ""
    """The text whose last 24 tokens are drawn, with norms, attention and next tokens; left out, one of the windows."""
    windows: int | None = None
    """Windows of block_size tokens, spread evenly over the text: the examples that errors are taken over. Left out, 64,
    or as many as the text has room for."""
    lab: Switch = False
    """Also measure what `ablate` can measure and has not: pairs, Shapley values, gradients, gates, pruning."""
    out: str = ""
    """A folder for all, with `plots` and `heads` in it for a run; left out, the run itself, or beside each result."""
    theme: Literal["light", "dark"] = "light"
    """For paper or for a dark page."""


@dataclass(frozen=True)
class Report(Common):
    """Write one page of HTML on a run: how good it became, curves, samples, tokens, heads, and how to make it again.

    Examples:
      tinygpt report                                        the newest run, to report.html in it
      tinygpt report runs/book --out book.html
      tinygpt report runs/book --no-measure                 from what is saved alone, half a minute

    The page stands by itself: it loads nothing, runs nothing, and can be sent as one file.
    """

    run: Positional[str] = ""
    """The run directory; left out, the newest under runs/."""
    out: str = ""
    """The file to write; left out, report.html in the run."""
    measure: bool = True
    """Measure first what the run does not hold yet; off, the page says what is missing."""
