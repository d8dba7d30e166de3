"""`tinygpt doctor`"""

from collections.abc import Sequence
from dataclasses import dataclass

from tinygpt_jax.cli.codes import DONE, FAILED
from tinygpt_jax.cli.common import Common, parse, print_json


@dataclass(frozen=True)
class Flags(Common):
    """Check that this machine is ready: versions, devices, dtypes, a tiny train step, and what is missing.

    Example:
      tinygpt doctor
    """


def run(args: Sequence[str]) -> int:
    """Checks this machine, and prints the findings."""
    flags = parse("doctor", Flags, args)
    from tinygpt_jax.diagnosis import doctor

    findings = doctor()
    if flags.json:
        print_json(findings.to_json())
    else:
        print("\n".join(findings.lines()))
    return DONE if findings.healthy else FAILED
