"""The `tinygpt` command: thin verbs over functions that can be called from Python."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro
from tyro.conf import OmitArgPrefixes

from tinygpt_jax import __version__
from tinygpt_jax.cli.options import Ablate, Bench, Doctor, Eval, Heads, Plot, Report, Sample, Train
from tinygpt_jax.config import GPTConfig, TrainConfig, nearest
from tinygpt_jax.errors import UserError
from tinygpt_jax.markup import say_to
from tinygpt_jax.presets import checked, override, preset, read_settings

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
Options = TypeVar("Options")


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
        from tinygpt_jax.training.loop import train
        from tinygpt_jax.training.result import closing_lines

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
    from tinygpt_jax.runs import load, newest_run, taken
    from tinygpt_jax.runtime import use_compilation_cache
    from tinygpt_jax.sampling import sample, stream
    from tinygpt_jax.text import read_text

    use_compilation_cache()
    prompt = read_text(options.prompt_file) if options.prompt_file else options.prompt
    run = options.run or newest_run()
    model = load(run)
    settings = dataclasses.asdict(options.sampling)
    if options.without:
        from tinygpt_jax.lab.components import switched_off

        settings["edits"] = switched_off(options.without, model.cfg)
    _tell(taken(run, f"a prompt of {len(model.tokenizer.encode(prompt)):,} tokens" if prompt else "no prompt"))
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
    from tinygpt_jax.runtime import use_compilation_cache
    from tinygpt_jax.training.job import evaluate_run

    use_compilation_cache()
    result = evaluate_run(options.run or newest_run(), options.sources, _tell)
    if options.json:
        _print_json(result.to_json())
        return DONE
    for name, fact in result.facts().items():
        say_to(sys.stdout, f"{name:14} {fact}")
    return DONE


def heads_verb(args: Sequence[str]) -> int:
    """Reads heads; see `Heads`."""
    options = _parse("heads", Heads, args)
    from tinygpt_jax.study.heads import examine_heads

    return _examined(examine_heads(options, _tell), options.json)


def ablate_verb(args: Sequence[str]) -> int:
    """Ablates; see `Ablate`."""
    options = _parse("ablate", Ablate, args)
    from tinygpt_jax.study.heads import examine_ablations

    return _examined(examine_ablations(options, _tell), options.json)


def _examined(findings: Iterable[Any], as_json: bool) -> int:
    """Says each finding as it comes and what they come to, or prints one document of all of them; the first one's keys
    also stand on top."""
    from tinygpt_jax.figures.registry import lines
    from tinygpt_jax.lab.roles import conclusions, rule

    results: dict[str, Any] = {}
    for finding in findings:
        _tell(f"  saved {', '.join(map(str, finding.files))}")
        results[finding.name] = finding.result
        if not as_json:
            say_to(sys.stdout, "\n".join(lines(finding.name, finding.result)))
    concluded = conclusions(results)
    if as_json:
        documents = {name: result.to_json() for name, result in results.items()}
        ending = {"conclusions": concluded} if concluded else {}
        _print_json({**next(iter(documents.values()), {}), "results": documents, **ending})
    elif concluded:
        heads = [f"  {head}: {said}" for head, said in concluded.items()]
        say_to(sys.stdout, "\n".join(["what each head is", f"  {rule()}", *heads]))
    return DONE


def plot_verb(args: Sequence[str]) -> int:
    """Draws; see `Plot`."""
    options = _parse("plot", Plot, args)
    from tinygpt_jax.runs import newest_run

    files: list[str] = []
    what = options.what or (str(newest_run()),)
    for name, out in zip(what, _places(what, options.out), strict=True):
        for file in _drawn(dataclasses.replace(options, out=out), name):
            files.append(str(file))
            if file.suffix == ".png" and not options.json:
                print(file, flush=True)
    _tell("beside each PNG is the SVG; the numbers are beside what is drawn of a run, as CSV and JSON")
    if options.json:
        _print_json({"files": files})
    return DONE


def _places(what: Sequence[str], out: str) -> list[str]:
    """Where the figures of each run and of each saved result go: a folder, a stem; nothing where they stay beside it.

    Results of one name are told apart by their folders; raises UserError where these have one name too.
    """
    if not out or (len(what) == 1 and Path(what[0]).is_dir()):
        return [out] * len(what)
    paths = [Path(name).resolve() for name in what]
    stems = [path.name if path.is_dir() else path.stem for path in paths]
    names = [
        f"{path.parent.name}-{stem}" if stems.count(stem) > 1 else stem for path, stem in zip(paths, stems, strict=True)
    ]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two of what is to be drawn would be {Path(out) / twice[0]}: give each of them its own --out")
    return [str(Path(out) / name) for name in names]


def _drawn(options: Plot, name: str) -> Iterable[Path]:
    """The files that come of a run, or of one saved result."""
    if Path(name).is_dir():
        from tinygpt_jax.runs import taken
        from tinygpt_jax.study.plot import illustrate

        for number, finding in enumerate(illustrate(options, Path(name), _tell)):
            if number == 0:  # what is refused is one line
                _tell(taken(name))
            yield from finding.files
        return
    if not Path(name).exists():
        raise UserError(f"{name} does not exist: name a run directory, or a JSON file that heads, ablate or plot saved")
    from tinygpt_jax.figures.registry import draw_file

    yield from draw_file(name, options.out or None, theme=options.theme)


def report_verb(args: Sequence[str]) -> int:
    """Reports; see `Report`."""
    options = _parse("report", Report, args)
    from tinygpt_jax.files import own_descriptor, write_atomically
    from tinygpt_jax.reporting.report import report_page
    from tinygpt_jax.runs import newest_run, read_record, taken

    on_stdout = bool(options.out) and own_descriptor(options.out) == 1
    if on_stdout and options.json:
        raise UserError(f"out is {options.out!r} and --json is given: both go to standard output; leave one out")
    run = Path(options.run or newest_run())
    read_record(run)  # complains before anything is measured
    _tell(taken(run))
    if options.measure:
        from tinygpt_jax.study.plot import complete

        complete(run, _tell)
    file = Path(options.out or run / "report.html")
    page = report_page(run).encode()
    sys.stdout.flush()
    write_atomically(file, page)
    if on_stdout:
        _tell("the page is on standard output")
    elif options.json:
        _print_json({"file": file})
    else:
        print(file)
    return DONE


def bench_verb(args: Sequence[str]) -> int:
    """Measures; see `Bench`."""
    run = _positional(args, Bench, GPTConfig)
    if run and not Path(run).is_dir():
        raise UserError(f"run {run} does not exist: name a run directory, or none")
    config = _layered(args, TrainConfig(model=Bench().model), run)
    options = _parse("bench", Bench, args, default=Bench(batch_size=config.batch_size, model=config.model))
    from tinygpt_jax.benchmark import bench

    config = checked(dataclasses.replace(config, batch_size=options.batch_size, model=options.model))
    result = bench(config, quick=options.quick, progress=_tell)
    if options.json:
        _print_json(result.to_json())
    else:
        print("\n".join(result.lines()))
    return DONE


def doctor_verb(args: Sequence[str]) -> int:
    """Examines; see `Doctor`."""
    options = _parse("doctor", Doctor, args)
    from tinygpt_jax.diagnosis import examine

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
    "heads": heads_verb,
    "ablate": ablate_verb,
    "plot": plot_verb,
    "report": report_verb,
    "bench": bench_verb,
    "doctor": doctor_verb,
}

USAGE_TEXT = """\
usage: tinygpt VERB [OPTIONS]

  train    train a model on text and leave a run directory
  sample   write text with a trained model
  eval     score text: nats per token, bits per byte, perplexity
  heads    what does each head do? scores, attention, attribution
  ablate   switch heads off: effects with errors, pairs, Shapley values, pruning
  plot     draw a run: training, every piece of the block, tokens, heads
  report   write one page of HTML on a run
  bench    how fast is a model on this machine?
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
    if code != DONE:  # at once: a compilation may still run, waiting for it takes long and taking XLA down can crash
        sys.stdout.flush()
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
        config=(OmitArgPrefixes,),
    )
    return parsed


def _positional(args: Sequence[str], *options: type[Any]) -> str:
    """The first word that is neither a flag nor the value of one, before it is known what the flags' defaults are."""
    switches = {f.name for one in options for f in dataclasses.fields(one) if f.type in ("bool", "Switch")}
    words = iter(args)
    for word in words:
        if not word.startswith("-"):
            return word
        name = word.lstrip("-").removeprefix("no-").replace("-", "_")
        if "=" not in word and name not in switches:
            next(words, None)  # its value
    return ""


def _layered(args: Sequence[str], config: TrainConfig | None = None, run: str = "") -> TrainConfig:
    """The settings beneath the flags, unchecked: `config` or those of the run, then preset, then file."""
    import argparse

    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("preset", "config", "resume", "steps"):
        early.add_argument(f"--{name}")
    given = early.parse_known_args(list(args))[0]
    config = config or TrainConfig()
    if run := given.resume or run:
        from tinygpt_jax.runs import read_config

        config = read_config(run)
    if given.preset:
        config = override(config, preset(given.preset), f"preset {given.preset}")
    settings = read_settings(given.config) if given.config else {}
    config = override(config, settings, given.config or "")
    steps = int(given.steps) if (given.steps or "").isdecimal() else config.steps
    if given.preset and "warmup_steps" not in settings and steps < config.warmup:  # more than was asked to be taken
        config = override(config, {"warmup_steps": None}, f"preset {given.preset}")
    return config


def _tell(line: str) -> None:
    """To a person, at once."""
    print(line, file=sys.stderr, flush=True)


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
