"""The `tinygpt` command: one file a verb, each a thin layer over a function that can be called from Python."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TextIO

from tinygpt_jax import __version__
from tinygpt_jax.cli.codes import DONE, FAILED, INTERRUPTED, USAGE
from tinygpt_jax.errors import UserError, nearest
from tinygpt_jax.markup import say_to
from tinygpt_jax.runtime import end_on_signals, keep_freed_pages, keep_standard_streams, missing_backend

VERBS = {
    "train": "train a model on text and leave a run directory",
    "sample": "write text with a trained model",
    "eval": "score text: nats per token, bits per byte, perplexity",
    "heads": "say what each head does: scores, attention, attribution",
    "ablate": "switch heads off: effects with errors, pairs, Shapley values, pruning",
    "patch": "put activations on a clean text into those on a corrupted one: heads, positions, paths",
    "plot": "draw a run: loss curves, every piece of the block, tokens, heads",
    "report": "write one page of HTML on a run",
    "bench": "measure how fast a model is on this machine",
    "doctor": "check that this machine is ready",
}
"""Each verb, summed up in a line. What it does is `run(args)` in the file of its name."""

USAGE_TEXT = f"""\
usage: tinygpt VERB [OPTIONS]

{chr(10).join(f"  {verb:8} {line}" for verb, line in VERBS.items())}

`tinygpt VERB --help` shows a verb's options and examples. Begin with: tinygpt train && tinygpt sample"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code: 0 done, 1 failed for a reason given in one line, 2 wrong usage, 130
    interrupted with everything saved, 128 + its number for another signal."""
    args = list(sys.argv[1:] if argv is None else argv)
    verb = args[0] if args and args[0] in VERBS else ""
    try:
        with _written(sys.stdout):
            return _run(verb, args)
    except BrokenPipeError:  # whoever read the output has seen enough
        return FAILED
    except (UserError, OSError) as error:
        if "--debug" in args:
            raise
        nameless = isinstance(error, OSError) and error.filename is None
        reason = f"cannot write standard output or a file ({error})" if nameless else str(error)
        say_to(sys.stderr, f"tinygpt {verb}".rstrip() + f": {reason}")
        return FAILED
    except Exception:
        if "--debug" in args or (lacking := missing_backend()) is None:
            raise
        say_to(sys.stderr, f"tinygpt {verb}: {lacking}")
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(verb: str, args: list[str]) -> int:
    if args[:1] in (["--help"], ["-h"], ["help"]):
        print(USAGE_TEXT)
        return DONE
    if args[:1] == ["--version"]:
        print(f"tinygpt {__version__}")
        return DONE
    if not verb:
        wrong = f"tinygpt: no verb {args[0]!r}{nearest(args[0], VERBS)}" if args else USAGE_TEXT
        print(wrong, file=sys.stderr)
        return USAGE
    keep_freed_pages()
    code: int = import_module(f"{__name__}.{verb}").run(args[1:])
    return code


@contextlib.contextmanager
def _written(stream: TextIO) -> Iterator[None]:
    """Sees that what was printed has arrived, whether the work ends or exits; BrokenPipeError or UserError if not."""
    left: BaseException | None = None
    try:
        yield
    except BrokenPipeError:
        raise
    except (SystemExit, OSError) as after:  # the help, wrong usage; or what was printed before was not written either
        left = after
    try:
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"cannot write standard output ({error.strerror}): send it elsewhere") from error
    if left:
        raise left


def entry() -> None:
    """The `tinygpt` command: `main` as a process of its own, which writes UTF-8 whatever the locale says."""
    keep_standard_streams()
    end_on_signals()  # before what takes long to import
    try:
        code = main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else DONE if left.code is None else FAILED
    if code != DONE:  # at once: a compilation may still run, waiting for it takes long and taking XLA down can crash
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
