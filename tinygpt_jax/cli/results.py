"""How `heads` and `ablate` print their results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tinygpt_jax.cli.codes import DONE
from tinygpt_jax.cli.common import print_json, tell
from tinygpt_jax.markup import say_to

if TYPE_CHECKING:
    from tinygpt_jax.lab.result import Result
    from tinygpt_jax.study.findings import Finding


def shown(as_json: bool) -> Callable[[Finding], None]:
    """A function that prints where a result is saved and, unless all go into one JSON document, the result."""
    from tinygpt_jax.figures.registry import lines

    def show(finding: Finding) -> None:
        tell(f"  saved {', '.join(map(str, finding.files))}")
        if not as_json:
            say_to(sys.stdout, "\n".join(lines(finding.name, finding.result)))

    return show


def print_results(results: Mapping[str, Result], as_json: bool) -> int:
    """Prints what each head is, where the results say it; or one JSON document, with the first result's keys on top."""
    from tinygpt_jax.lab.roles import conclusions, rule

    concluded = conclusions(results)
    if as_json:
        documents = {name: result.to_json() for name, result in results.items()}
        ending: dict[str, Any] = {"conclusions": concluded} if concluded else {}
        print_json({**next(iter(documents.values()), {}), "results": documents, **ending})
    elif concluded:
        heads = [f"  {head}: {said}" for head, said in concluded.items()]
        say_to(sys.stdout, "\n".join(["what each head is", f"  {rule()}", *heads]))
    return DONE
