"""The `tinygpt` command: thin verbs over functions that can be called from Python."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg

from tinygpt_jax import __version__
from tinygpt_jax.config import SampleConfig, TrainConfig, nearest
from tinygpt_jax.errors import UserError
from tinygpt_jax.settings import checked, override, preset, read_settings

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
Options = TypeVar("Options")


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
    """Settings by name: nano-cpu, nano-gpu, classic-bpe, toy."""
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


def train_verb(args: Sequence[str]) -> int:
    """Trains; see `Train`."""
    options = _parse("train", Train, args, default=Train(config=_layered(args)))
    config = checked(options.config)
    if options.print_config:
        print(json.dumps(dataclasses.asdict(config), indent=2))
        return DONE
    if options.resume and (options.force or config.out):
        raise UserError("--resume goes on with a run where it is: leave out --force and --out")
    from tinygpt_jax.runtime import stop_on_signals

    with stop_on_signals() as stopped:  # before the heavy imports, inside which an interrupt would be lost
        from tinygpt_jax.training.display import closing_lines
        from tinygpt_jax.training.loop import train

        result = train(config, resume=options.resume, force=options.force, stopped=stopped)
    for line in closing_lines(result):
        print(line, file=sys.stderr)
    if options.json:
        _print_json(result.to_json())
    return INTERRUPTED if result.interrupted else DONE


def sample_verb(args: Sequence[str]) -> int:
    """Samples; see `Sample`."""
    options = _parse("sample", Sample, args)
    if options.prompt and options.prompt_file:
        raise UserError("prompt and prompt_file are both given: choose one")
    from tinygpt_jax.sampling import sample, stream
    from tinygpt_jax.text import read_text

    prompt = read_text(options.prompt_file) if options.prompt_file else options.prompt
    model = _load(options.run)
    settings = dataclasses.asdict(options.sampling)
    if options.json:
        samples = sample(model, prompt, **settings)
        _print_json([{"text": s.text, "tokens": s.tokens, "logprobs": s.logprobs} for s in samples])
    elif options.sampling.n == 1:
        pieces = stream(model, prompt, **settings)  # complains before anything is written
        sys.stdout.write(prompt)
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
    else:
        for number, s in enumerate(sample(model, prompt, **settings), 1):
            print(f"--- sample {number} ---\n{prompt}{s.text}")
    return DONE


def eval_verb(args: Sequence[str]) -> int:
    """Scores; see `Eval`."""
    options = _parse("eval", Eval, args)
    from tinygpt_jax.runs import newest_run
    from tinygpt_jax.training.job import evaluate_run

    result = evaluate_run(options.run or newest_run(), options.data)
    if options.json:
        _print_json(result.to_json())
        return DONE
    print(f"loss           {result.loss:.4f} ± {result.loss_se:.4f} nats per token")
    print(f"               {result.loss_per_char:.4f} nats per character")
    print(f"               {result.bits_per_byte:.4f} bits per byte")
    print(f"perplexity     {result.perplexity:.3f} ± {result.perplexity_se:.3f} per token")
    print(f"tokens         {result.tokens:,}")
    return DONE


def doctor_verb(args: Sequence[str]) -> int:
    """Examines; see `Doctor`."""
    options = _parse("doctor", Doctor, args)
    from tinygpt_jax.doctor import examine

    findings = examine()
    if options.json:
        _print_json(findings.to_json())
    else:
        print("\n".join(findings.lines()))
    return DONE if findings.healthy else FAILED


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train_verb,
    "sample": sample_verb,
    "eval": eval_verb,
    "doctor": doctor_verb,
}

USAGE_TEXT = """\
usage: tinygpt VERB [OPTIONS]

  train    train a model on text and leave a run directory
  sample   write text with a trained model
  eval     score text: nats per token, bits per byte, perplexity
  doctor   is this machine ready?

`tinygpt VERB --help` shows a verb's options and examples. Begin with: tinygpt train && tinygpt sample"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code: 0 done, 1 failed for a reason given in one line, 2 wrong usage, 130
    interrupted with everything saved."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] in (["--help"], ["-h"], ["help"]):
        print(USAGE_TEXT)
        return DONE
    if args[:1] == ["--version"]:
        print(f"tinygpt {__version__}")
        return DONE
    if not args or args[0] not in VERBS:
        print(f"tinygpt: no verb {args[0]!r}{nearest(args[0], VERBS)}" if args else USAGE_TEXT, file=sys.stderr)
        return USAGE
    from tinygpt_jax.runtime import keep_freed_pages

    keep_freed_pages()
    try:
        code = VERBS[args[0]](args[1:])
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (UserError, OSError) as error:
        if "--debug" in args:
            raise
        print(f"tinygpt {args[0]}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def entry() -> None:
    """The `tinygpt` command: `main` as a process of its own, which writes UTF-8 whatever the locale says."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    code = main()
    if code == INTERRUPTED:  # at once: taking XLA down in the middle of its work can crash
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def _parse(verb: str, options: type[Options], args: Sequence[str], default: Options | None = None) -> Options:
    parsed: Any = tyro.cli(
        options,
        prog=f"tinygpt {verb}",
        description=inspect.getdoc(options),
        args=args,
        default=default,
        config=(OmitArgPrefixes, FlagCreatePairsOff),
    )
    return parsed


def _layered(args: Sequence[str]) -> TrainConfig:
    """The settings beneath the flags, unchecked: defaults or those of the run resumed, then preset, then file."""
    import argparse

    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("preset", "config", "resume"):
        early.add_argument(f"--{name}")
    given = early.parse_known_args(list(args))[0]
    config = TrainConfig()
    if given.resume:
        from tinygpt_jax.runs import read_config

        config = read_config(given.resume)
    if given.preset:
        config = override(config, preset(given.preset), f"preset {given.preset}")
    if given.config:
        config = override(config, read_settings(given.config), given.config)
    return config


def _load(run: str) -> Any:
    from tinygpt_jax.runs import load, newest_run

    return load(run or newest_run())


def _print_json(document: Any) -> None:
    """One document on standard output; paths as text, and what is not finite as null, which JSON lacks."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        return str(value) if isinstance(value, Path) else value

    print(json.dumps(plain(document), allow_nan=False, ensure_ascii=False))
