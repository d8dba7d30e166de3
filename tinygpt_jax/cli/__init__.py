"""The `tinygpt` command: one file a verb, each a thin layer over a function that can be called from Python."""

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from tinygpt_jax import __version__
from tinygpt_jax.cli.common import DONE, FAILED, INTERRUPTED, USAGE
from tinygpt_jax.errors import UserError, nearest

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
        code: int = import_module(f"{__name__}.{args[0]}").run(args[1:])
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
