"""Mutation testing: one small change at a time to the code that numbers come from, and the tests of its room must fail.

    python -m tests.mutants [--only FILE] [--sample N] [--seed S] [--minutes M]
    python -m tests.mutants --list [--only FILE]

Prints every mutant that survives with its place and the change; exit 1 where one does that `EXPLAINED` does not know.
`mutmut` (3.8) was tried first: it leaves every decorated function as it is, and so all that is compiled by `jax.jit`,
and forks from a process that has computed, which JAX's threads do not survive. `tests/trees.py` forks before that.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.trees import FAILED, PASSED, ROOT, TOO_LONG, copy_tree, run_tests

COVERED = {
    "model.py": ("test_reference.py", "test_model.py"),
    "forward_pass.py": ("test_model.py", "test_reference.py", "test_kernels.py"),
    "statistics.py": ("test_statistics.py",),
    "lab/engine.py": ("lab/test_extent.py", "lab/test_ablate.py"),
    "sampling/decode.py": ("sampling/test_sampling.py",),
    "sampling/filters.py": ("sampling/test_sampling.py",),
    "sampling/generate.py": ("sampling/test_sampling.py",),
    "sampling/reader.py": ("sampling/test_sampling.py",),
    "training/checkpoint.py": ("training/test_loop.py",),
}
"""File of the package -> the tests that are to notice a change of it."""

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


class Mutant(NamedTuple):
    where: str
    """file of the package"""
    line: int
    start: int
    end: int
    """what is replaced, in bytes of the file"""
    new: str

    def of(self, text: str) -> str:
        data = text.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()

    def change(self, text: str) -> tuple[str, str]:
        """The statement's line before and after, or all lines that the change spans."""
        data = text.encode()
        first, last = data.rfind(b"\n", 0, self.start) + 1, data.find(b"\n", self.end)
        old = data[first:last].decode()
        after = data[first : self.start].decode() + self.new + data[self.end : last].decode()
        return " ".join(old.split()), " ".join(after.split())


# Which changes there are


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """The node in every way that we break it."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if type(op) in COMPARED:
                yield _with(node, ops=[*node.ops[:i], COMPARED[type(op)](), *node.ops[i + 1 :]])
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        yield _with(node, op=COMPUTED[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1 if isinstance(node.value, int) or not node.value else node.value * 2)
    elif isinstance(node, ast.IfExp):
        yield _with(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Return) and node.value:
        yield _with(node, value=None)
    elif isinstance(node, ast.If):
        yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.Call):
        symmetric = ast.unparse(node.func).rpartition(".")[2] in ("max", "min", "maximum", "minimum")
        if len(node.args) > 1 and not symmetric and not any(isinstance(one, ast.Starred) for one in node.args[:2]):
            yield _with(node, args=[node.args[1], node.args[0], *node.args[2:]])
        if node.args and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp):
            yield node.args[0]


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def computing(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below that say what is computed: not docstrings, types, decorators, messages, imports, and the
    shapes asserted along the way."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Expr) and ast.unparse(node).startswith("chex.assert_"):
        return
    yield node
    left_out = {id(one) for name in ("annotation", "returns", "decorator_list") for one in _listed(node, name)}
    for child in ast.iter_child_nodes(node):
        if id(child) not in left_out:
            yield from computing(child)


def _listed(node: ast.AST, name: str) -> list[ast.AST]:
    value = getattr(node, name, None) or []
    return value if isinstance(value, list) else [value]


def mutants(where: str, text: str) -> Iterator[Mutant]:
    """All of one file."""
    lines = [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for node in computing(ast.parse(text)):
        for new in changed(node):
            if isinstance(node, ast.If):  # its test alone, since its body is text we keep
                node, new = node.test, new.test
            start, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
            code = ast.unparse(ast.fix_missing_locations(new))
            code = code if isinstance(node, ast.stmt) or isinstance(new, ast.Constant | ast.Name) else f"({code})"
            found = Mutant(where, node.lineno, start, end, code)
            if _parses(changed_text := found.of(text)) and changed_text != text:
                yield found


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def sample(chosen: Sequence[Mutant], n: int, seed: int) -> list[Mutant]:
    """`n` of them, or all, drawn evenly; in an order of which every beginning is such a draw too."""
    return random.Random(seed).sample(chosen, min(n, len(chosen)))


# Which survive for a reason


class Explained(NamedTuple):
    """A change that no test can notice, or none needs to: the line before and after, white space aside."""

    where: str
    old: str
    new: str
    why: str


TABLE = "of a table with two axes the last one is axis 1"
EXPLAINED = [
    Explained(
        "statistics.py", 'return np.argsort(-values.mean(-1), kind="stable")',
        'return np.argsort(-values.mean(1), kind="stable")', TABLE,
    ),
    Explained(
        "statistics.py", "check_chance(chance_of_spread(values, ordered), values.shape[-1])",
        "check_chance(chance_of_spread(values, ordered), values.shape[1])", TABLE,
    ),
    Explained(
        "lab/engine.py", "parts = dict(mesh.shape) if mesh is not None else {}",
        "parts = (mesh.shape) if mesh is not None else {}", "only looked up in",
    ),
    Explained(
        "statistics.py", "both = np.stack([np.asarray(a, np.float64), np.asarray(b, np.float64)])",
        "both = np.stack([a, np.asarray(b, np.float64)])", "what is stacked takes the wider type of the two",
    ),
    Explained("lab/engine.py", "CAPACITY = 256", "CAPACITY = 257", "how many at once changes no result"),
    Explained(
        "forward_pass.py", "CUDNN_WIDTHS = range(8, 129, 8)", "CUDNN_WIDTHS = range(8, 130, 8)", "the same numbers",
    ),
    Explained("statistics.py", "MANY = 10**6", "MANY = 11**6", "any number that is large"),
]  # fmt: skip


def why(mutant: Mutant, text: str) -> str:
    """The reason that it may survive, or nothing."""
    change = mutant.change(text)
    return next((one.why for one in EXPLAINED if (one.where, (one.old, one.new)) == (mutant.where, change)), "")


# Trying them


class Trial:
    """A copy of the tree in which mutants are tried one after another; what killed many is run first."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder.resolve()
        copy_tree(self.tree)
        self.kills: Counter[str] = Counter()
        self.seconds: dict[str, dict[str, float]] = {}
        self.versions = 0

    def write(self, where: str, text: str) -> None:
        """Every version has a time of its own, by which Python knows whether what it compiled is old."""
        file = self.tree / "tinygpt_jax" / where
        file.write_text(text, encoding="utf-8")
        self.versions += 1
        os.utime(file, (self.versions, self.versions))

    def baseline(self, where: str) -> None:
        """Raises SystemExit where the tests of a file do not pass as it is."""
        done = run_tests(self.tree, COVERED[where])
        if done.code != PASSED:
            raise SystemExit(f"{where}: before any change {done.failed} fails\n{done.said}")
        self.seconds[where] = dict(done.seconds)

    def survives(self, mutant: Mutant, text: str) -> bool:
        if mutant.where not in self.seconds:
            self.baseline(mutant.where)
        seconds = self.seconds[mutant.where]
        rank = {name: -(0.05 + self.kills[name]) / (0.05 + took) for name, took in seconds.items()}
        self.write(mutant.where, mutant.of(text))
        done = run_tests(self.tree, COVERED[mutant.where], rank, timeout=60 + 5 * sum(seconds.values()))
        self.write(mutant.where, text)
        self.kills[done.failed] += 1
        if done.code not in (PASSED, FAILED, TOO_LONG) and not done.failed:
            raise SystemExit(f"{mutant}: pytest ended with {done.code}\n{done.said}")
        return done.code == PASSED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="files whose name has this in it")
    parser.add_argument("--sample", type=int, default=10**9, help="how many, drawn at random; all if left out")
    parser.add_argument("--seed", type=int, default=0, help="of that draw")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long and say how many were not run")
    parser.add_argument("--list", action="store_true", help="print them and stop")
    parser.add_argument("--verbose", action="store_true", help="print what became of every one")
    given = parser.parse_args()
    texts = {name: (ROOT / "tinygpt_jax" / name).read_text(encoding="utf-8") for name in COVERED if given.only in name}
    made = [mutant for name, text in texts.items() for mutant in mutants(name, text)]
    chosen = sample(made, given.sample, given.seed)
    if given.list:
        for one in chosen:
            print(
                f"{one.where}:{one.line}\n  - {one.change(texts[one.where])[0]}\n  + {one.change(texts[one.where])[1]}"
            )
        print(Counter(one.where for one in chosen))
        return 0
    started, counts = time.monotonic(), Counter(made=len(made), drawn=len(chosen))
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        for one in chosen:
            if time.monotonic() - started > 60 * given.minutes:
                counts["not run"] += 1
                continue
            text = texts[one.where]
            outcome = "killed" if not trial.survives(one, text) else "explained" if why(one, text) else "survived"
            counts[outcome] += 1
            if given.verbose:
                print(f"{time.monotonic() - started:6.0f} s  {outcome}  {one.where}:{one.line}", flush=True)
            if outcome != "killed":
                print(f"{outcome}  {one.where}:{one.line}  {why(one, text)}")
                print("  - {}\n  + {}".format(*one.change(text)), flush=True)
    print(", ".join(f"{name} {n}" for name, n in counts.items()))
    return 1 if counts["survived"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
