"""What every command gives, recorded from a tree and compared with another tree's.

    python -m tests.outputs record DIR [--tree TREE]     # about four minutes
    python -m tests.outputs compare BEFORE AFTER [--numbers]

`record` runs the commands of the README, every kind of `--json` output and the refusals at toy size, with fixed seeds
and names, each a process of its own, and keeps for each: exit code, what it printed, which files it wrote and their
numbers. `compare` prints every difference beyond rounding but for clocks, speeds and versions, and exits with 1 where
there is one; with --numbers, differences of wording alone are left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RELATIVE, ABSOLUTE = 1e-5, 1e-6
QUICK_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
CLOCKS = re.compile(
    r"seconds|_per_second|_ms\b|step_ms|gflops|peak_share|compilation_cached|memory_bytes|\bcalls\b|forwards\b"
    r"|compilation_cache\b|versions\.|hints|loaded"
)
"""Keys whose values differ from run to run on one tree: they must be there, with a value of the same type."""
FINGERPRINT = re.compile(r"\b[0-9a-f]{16}\b")
"""Of weights, which differ in their last bit where a program is compiled differently."""

TOY = "--preset toy --n-layer 2 --n-head 2 --n-embd 16 --block-size 16 --eval-every 4 --steps 8 --sample-every 4"
PYTHON = """
import jax, json, numpy as np, tinygpt_jax as tg
cfg = tg.GPTConfig(vocab_size=65, block_size=16, n_layer=2, n_head=2, n_embd=16)
params = tg.init_params(jax.random.key(0), cfg)
ids = jax.random.randint(jax.random.key(1), (4, 16), 0, 65)
logits = tg.gpt_forward(params, ids, cfg)
result = tg.ablate_heads(params, ids, cfg, fill="mean")
model = tg.load("runs/book")
found = {"tree": sorted(params), "blocks": {k: v.shape for k, v in params["blocks"].items()}, "logits": logits[0, -1],
    "effect": result.effect, "se": result.se, "per_example": result.per_example, "baseline": result.baseline,
    "text": tg.generate(model, "The", max_tokens=20, temperature=0.8, seed=1), "loaded": sorted(model.params)}
print(json.dumps(found, default=lambda a: np.asarray(a).tolist()))
"""
TEXT = "The quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n"


class Command(NamedTuple):
    """One command: its name in the record, its words, and what it is given on standard input."""

    name: str
    words: str
    stdin: str = ""
    clock: bool = False
    """all of its text is clocks and speeds"""


ABLATIONS = ["heads", "mlps", "layers", "keep-one", "pairs", "shapley", "shapley-by-layer", "importance", "pruning"]
FILLS = ["zero", "position-mean", "resample", "optimal"]
PRESETS = ["nano-cpu", "nano-gpu", "speedrun", "classic-bpe", "toy"]
VERBS = ["train", "sample", "eval", "heads", "ablate", "patch", "plot", "report", "bench", "doctor"]
LAB = "--windows 8 --no-figures --json"
REFUSED = {
    "no-verb": "fly", "nothing": "", "no-flag": "train --nope", "no-value": "ablate runs/book --of nothing",
    "no-run": "eval runs/none", "no-runs-file": "sample book.txt", "no-text": "train --data none.txt",
    "bad-size": "train --data book.txt --n-embd 30 --n-head 4", "bad-preset": "train --preset huge",
    "bad-file": "train --config book.txt", "taken": f"train --data book.txt {TOY} --out runs/book",
    "resume-and-out": "train --resume runs/book --out runs/other", "other-text": "eval runs/book --data other.txt",
    "resume-other-text": "train --resume runs/book --data a.txt", "temperature": "sample runs/book --temperature -1",
    "both-prompts": "sample runs/book --prompt a --prompt-file b", "no-head": "ablate runs/book --sets 7.0",
    "two-on-stdout": "report runs/book --out /dev/stdout --json", "strange-prompt": "sample runs/book --prompt ☃",
    "not-a-result": "plot book.txt", "bench-none": "bench runs/none",
}  # fmt: skip
COMMANDS = [
    Command("train", f"train --data book.txt {TOY} --keep-checkpoints 0 --json"),
    Command("train-bpe", f"train --data notes/ --exclude drafts {TOY} --tokenizer bpe --vocab-size 280 --json"),
    Command("train-larger", f"train --data a.txt b.txt {TOY} --n-layer 3 --dropout 0.1 --out runs/larger"),
    Command("train-piped", f"train --data - {TOY} --optimizer adamw --positions learned --out runs/piped", TEXT * 30),
    Command("resume", "train --resume runs/larger --steps 12 --json"),
    Command("resume-stretched", "train --resume runs/piped --data - --steps 9", TEXT * 30),
    Command("config-file", "train --config runs/book/run.json --steps 5 --print-config"),
    Command("config", "train --print-config"),
    *(Command(f"config-{name}", f"train --preset {name} --print-config") for name in PRESETS),
    *(Command(f"help-{verb}", f"{verb} --help") for verb in VERBS),
    Command("python", ""),
    Command("sample", 'sample runs/book --prompt "The " --seed 1 --max-tokens 40'),
    Command("sample-json", "sample runs/book --n 3 --json --max-tokens 30 --top-k 5 --min-p 0.01"),
    Command("sample-settings", 'sample runs/notes --prompt "It was" --temperature 0.7 --top-p 0.95 --max-tokens 30'),
    Command("sample-without", "sample runs/book --without 0.1 mlp1 --no-cache --max-tokens 40 --json"),
    Command("sample-stdin", "sample runs/book --prompt-file - --n 2 --max-tokens 8", "The quick"),
    Command("eval", "eval runs/book"),
    Command("eval-json", "eval runs/book --data a.txt --json"),
    Command("heads", 'heads runs/book --windows 8 --prompt "the cat and the cat" --out heads'),
    Command("heads-over-training", f"heads runs/book --checkpoints {LAB} --out over"),
    Command("ablate", "ablate runs/book"),
    Command("ablate-all", f"ablate runs/book --of {' '.join(ABLATIONS)} --fill mean {LAB} --bootstrap 20"),
    Command("ablate-gates", f"ablate runs/book --of gates --strengths 0.1 {LAB}"),
    *(Command(f"ablate-{fill}", f"ablate runs/book --fill {fill} {LAB}") for fill in FILLS),
    Command("ablate-sets", f"ablate runs/book --sets 0.1+1.0 mlp1 heads0 layer1 --metric kl {LAB}"),
    Command("ablate-held", f"ablate runs/book --hold-patterns --freeze-norms --positions 3 5 --seed 2 {LAB}"),
    Command("ablate-repeats", f"ablate runs/book --on repeats --metric log-prob {LAB}"),
    Command("ablate-over-training", f"ablate runs/book --checkpoints {LAB} --out over"),
    Command("prune", f"ablate runs/book --sets 0.1+1.0 --save-pruned runs/smaller {LAB}"),
    Command("eval-pruned", "eval runs/smaller --json"),
    Command("sample-pruned", "sample runs/smaller --prompt The --max-tokens 20 --json"),
    Command("plot", 'plot runs/book --windows 8 --prompt "the dog" --theme dark --json'),
    Command("plot-saved", "plot runs/book/heads/heads-mean-loss.json runs/book/plots/norm.json --out figures"),
    Command("report", "report runs/book"),
    Command("report-out", "report runs/book --no-measure --out book.html --json"),
    Command("bench", "bench runs/book --quick --json", clock=True),
    Command("doctor", "doctor --json", clock=True),
    *(Command(f"refused-{name}", words) for name, words in REFUSED.items()),
]  # fmt: skip


def make_texts(here: Path) -> None:
    """Small texts for the commands: a book, two files, a folder with drafts, and one in other characters."""
    (here / "notes" / "drafts").mkdir(parents=True)
    numbered = [f"line {n}: {TEXT}" for n in range(60)]
    for name, text in {
        "book.txt": "".join(numbered), "a.txt": "".join(numbered[:30]), "b.txt": "".join(numbered[30:]),
        "notes/one.md": "".join(numbered[5:40]), "notes/drafts/two.md": "no " * 99, "other.txt": "ÄÖÜ" * 50,
    }.items():  # fmt: skip
        (here / name).write_text(text)
    (here / "runs").mkdir()


def record(folder: Path, tree: Path) -> None:
    """Runs every command on `tree` and writes one JSON file for each to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        here = Path(place).resolve()
        make_texts(here)
        env = {
            **os.environ, "PYTHONPATH": str(tree), "TINYGPT_CACHE": str(here / ".cache"), "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": QUICK_COMPILE, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONWARNINGS": "default",
        }  # fmt: skip
        for number, command in enumerate(COMMANDS):
            found = run(command, here, env)
            print(f"{number + 1}/{len(COMMANDS)} {command.name}: exit {found['exit']}", file=sys.stderr, flush=True)
            text = json.dumps(found, indent=1).replace(str(here), "HERE").replace(str(tree), "TREE")
            (folder / f"{command.name}.json").write_text(text + "\n")


def run(command: Command, here: Path, env: dict[str, str]) -> dict[str, Any]:
    """One command's exit code, output, and the files that it wrote."""
    before = stamps(here)
    words = re.findall(r'"[^"]*"|\S+', command.words)
    how = ["-c", PYTHON] if command.name == "python" else ["-m", "tinygpt_jax", *(w.strip('"') for w in words)]
    done = subprocess.run(
        [sys.executable, *how], cwd=here, env=env, input=command.stdin, capture_output=True, text=True, timeout=600
    )
    after = stamps(here)
    new = sorted(name for name in after if after[name] != before.get(name))
    return {
        "command": command.words,
        "exit": done.returncode,
        "stdout": flags(done.stdout) if "--help" in words else document(done.stdout),
        "stderr": [] if command.clock else [line for line in done.stderr.splitlines() if not re.search(r" s\b", line)],
        "gone": sorted(set(before) - set(after)),
        "files": {name: contents(here / name) for name in new},
    }


def stamps(here: Path) -> dict[str, tuple[int, int]]:
    """Every file below, with what changes when it is written; of a training state only that it is there."""
    found = {}
    for path in here.rglob("*"):
        name = path.relative_to(here).as_posix()
        inside = re.search(r"/checkpoints/[^/]+(/|$)", name)
        if name.startswith(".cache") or (path.is_dir() and not inside) or (inside and inside[1]):
            continue
        found[name] = (0, 0) if inside else (path.stat().st_mtime_ns, path.stat().st_size)
    return found


def flags(text: str) -> list[str]:
    """The flags that a help text shows."""
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)))


def document(text: str) -> Any:
    """JSON where it is JSON, else its lines."""
    try:
        return json.loads(text)
    except ValueError:
        return text.splitlines()


def contents(path: Path) -> Any:
    """What a file holds, as far as it can be compared: numbers and words, or for a picture or page that it is there."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".csv":
        return [[number(cell) for cell in row] for row in csv.reader(path.read_text().splitlines())]
    if path.suffix == ".safetensors":
        return tensors(path.read_bytes())
    if path.suffix == ".txt":
        return path.read_text().splitlines()
    return "empty" if path.is_file() and not path.stat().st_size else "there"


def tensors(raw: bytes) -> dict[str, Any]:
    """Of each array of a safetensors file its shape, mean and root mean square."""
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    found = {}
    for name, at in header.items():
        if name == "__metadata__":
            found[name] = at
            continue
        x = np.frombuffer(data[slice(*at["data_offsets"])], np.float32).astype(np.float64)
        found[name] = [at["dtype"], at["shape"], float(x.mean()), float(np.sqrt((x**2).mean()))]
    return found


def number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


class Difference(NamedTuple):
    where: str
    what: str
    wording: bool = False


def differences(old: Any, new: Any, where: str) -> Iterator[Difference]:
    """Where two recorded values differ beyond rounding."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from (Difference(f"{where}.{key}", "is missing") for key in old.keys() - new.keys())
        yield from (Difference(f"{where}.{key}", "is new") for key in new.keys() - old.keys())
        for key in old.keys() & new.keys():
            yield from differences(old[key], new[key], f"{where}.{key}")
    elif is_number(old) and is_number(new):
        if not CLOCKS.search(where) and not close(old, new):
            yield Difference(where, f"{old!r} was, {new!r} is")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{where}[{index}]")
    elif isinstance(old, str) and isinstance(new, str):
        if not CLOCKS.search(where) and FINGERPRINT.sub("#", old) != FINGERPRINT.sub("#", new):
            yield Difference(where, f"{old!r} was, {new!r} is", wording=" " in old + new)
    elif type(old) is not type(new) or (old != new and not CLOCKS.search(where)):
        wording = all(isinstance(one, list) and one and isinstance(one[0], str) for one in (old, new))
        yield Difference(where, f"{str(old)[:300]} was, {str(new)[:300]} is", wording)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def close(a: float, b: float) -> bool:
    return a == b or (a != a and b != b) or abs(a - b) <= RELATIVE * max(abs(a), abs(b)) + ABSOLUTE


def compare(before: Path, after: Path) -> list[Difference]:
    """Every difference between two recordings. Messages are compared as words, but a refusal stays one line."""
    found: list[Difference] = []
    names = [{path.stem for path in folder.glob("*.json")} for folder in (before, after)]
    found += [Difference(name, "was recorded once only") for name in sorted(names[0] ^ names[1])]
    for name in sorted(names[0] & names[1]):
        old, new = (json.loads((folder / f"{name}.json").read_text()) for folder in (before, after))
        if old["exit"] == new["exit"] == 1 and len(old["stderr"]) != len(new["stderr"]):
            found.append(Difference(f"{name}.stderr", f"{len(new['stderr'])} lines, not {len(old['stderr'])}"))
        if old["exit"] == new["exit"] == 0:  # what was told on the way is for a person, and depends on the clock
            del old["stderr"], new["stderr"]
        found += differences(old, new, name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    one = actions.add_parser("record")
    one.add_argument("folder", type=Path)
    one.add_argument("--tree", type=Path, default=ROOT)
    two = actions.add_parser("compare")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    two.add_argument("--numbers", action="store_true")
    given = parser.parse_args()
    if given.action == "record":
        record(given.folder, given.tree.resolve())
        return 0
    found = [one for one in compare(given.before, given.after) if not (given.numbers and one.wording)]
    for where, what, wording in found:
        print(f"{'words ' if wording else ''}{where}: {what}")
    print(f"{len(found)} differences, {sum(one.wording for one in found)} of them of words alone")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
