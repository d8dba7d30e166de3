"""`tinygpt sample`"""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import arg

from tinygpt_jax.checks import check
from tinygpt_jax.cli.codes import DONE
from tinygpt_jax.cli.common import Common, parse, print_json, tell
from tinygpt_jax.config import SampleConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.markup import say_to
from tinygpt_jax.study.options import Run


@dataclass(frozen=True)
class Flags(Common):
    """Write text with a trained model.

    Examples:
      tinygpt sample                                         the newest run, without a prompt
      tinygpt sample runs/book --prompt "It was" --temperature 0.7
      tinygpt sample runs/book --prompt-file - --n 3 --json < prompt.txt
    """

    run: Run = ""
    prompt: str = ""
    """What the text begins with."""
    prompt_file: str = ""
    """Read the prompt from a UTF-8 file, or from standard input where it is `-`."""
    without: tuple[str, ...] = ()
    """Components to set to zero while sampling: 0.2 is head 2 of layer 0; or mlp1, heads1, layer1."""
    sampling: Annotated[SampleConfig, arg(name="")] = field(default_factory=SampleConfig)


def run(args: Sequence[str]) -> int:
    """Prints one sample as it is written; several, or a JSON document, when they are complete."""
    flags = parse("sample", Flags, args)
    if flags.prompt and flags.prompt_file:
        raise UserError("prompt and prompt_file are both given: choose one")
    sampling = check(flags.sampling)  # before the run is opened
    from tinygpt_jax.lab.components import switched_off
    from tinygpt_jax.runs import load, load_whole, named, run_line
    from tinygpt_jax.runtime import use_compilation_cache
    from tinygpt_jax.sampling import sample, stream
    from tinygpt_jax.text import read_text

    use_compilation_cache()
    prompt = read_text(flags.prompt_file) if flags.prompt_file else flags.prompt
    where = named(flags.run)
    model = load_whole(where) if flags.without else load(where)  # of a pruned model too, by the heads' own numbers
    settings = dataclasses.asdict(sampling)
    settings["edits"] = switched_off(flags.without, model.cfg) if flags.without else None
    tell(run_line(where, f"a prompt of {len(model.tokenizer.encode(prompt)):,} tokens" if prompt else "no prompt"))
    if flags.json:
        samples = sample(model, prompt, **settings)
        print_json([{"text": s.text, "tokens": s.tokens, "logprobs": s.logprobs} for s in samples])
    elif sampling.n == 1:
        pieces = stream(model, prompt, **settings)  # complains before anything is written
        for piece in (prompt, *pieces, "\n"):
            say_to(sys.stdout, piece, end="")
    else:
        for number, s in enumerate(sample(model, prompt, **settings), 1):
            say_to(sys.stdout, f"--- sample {number} ---\n{prompt}{s.text}")
    return DONE
