"""`tinygpt eval`"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tinygpt_jax.cli.codes import DONE
from tinygpt_jax.cli.common import Common, arguments, parse, print_json
from tinygpt_jax.markup import say_to
from tinygpt_jax.study.options import Reading, Run


@dataclass(frozen=True)
class Flags(Reading, Common):
    """Score text with a trained model: nats per token, bits per byte, perplexity.

    Examples:
      tinygpt eval                              the newest run, on its own validation text
      tinygpt eval runs/book --data other.txt   any other text, all of it
    """

    run: Run = ""


def run(args: Sequence[str]) -> int:
    """Scores, and prints the result."""
    flags = parse("eval", Flags, args)
    from tinygpt_jax.training.evaluate import evaluate

    result = evaluate(**arguments(flags))
    if flags.json:
        print_json(result.to_json())
        return DONE
    for name, fact in result.facts().items():
        say_to(sys.stdout, f"{name:14} {fact}")
    return DONE
