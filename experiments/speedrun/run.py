"""How soon a model of 4 layers, 128 wide, predicts tiny Shakespeare at 1.88 nats per character, and what bought it.

python -m experiments.speedrun.run --shakespeare FILE [--peer DIR --peer-python PYTHON] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from experiments.recipes.run import train_peer
from experiments.shared.machine import machine

HERE = Path(__file__).parent
TARGET = 1.88
SEEDS = (1337, 1, 2)


class Record(NamedTuple):
    """One recipe: what changed against the one before, and all flags of `tinygpt train` beside `--preset nano-cpu`."""

    change: str
    steps: int
    flags: tuple[str, ...]


LINE = ("--schedule", "linear", "--min-learning-rate", "0")
ADAMW = ("--learning-rate", "4e-3", "--warmup-steps", "50", *LINE)
MUON = ("--optimizer", "muon", "--learning-rate", "1.5e-2", "--warmup-steps", "10", *LINE)
ROPE = ("--positions", "rope")
RECORDS = (
    Record("AdamW at four times the rate, a line to zero, rotary positions", 800, (*ADAMW, *ROPE)),
    Record("Muon for the blocks' matrices, learned positions", 280, MUON),
    Record("both: Muon and rotary positions", 280, (*MUON, *ROPE)),
    Record("the same, longer: the preset speedrun", 340, (*MUON, *ROPE)),
)
"""In the order in which they were found."""


def run(record: Record, seed: int, shakespeare: str, quick: bool, work: Path) -> dict[str, Any]:
    """One training in a process and with a cache of its own: its loss on the whole validation text, and its time from
    process start to exit, s, compilation, validation and saving included."""
    steps = 20 if quick else record.steps
    flags = (*record.flags, "--steps", str(steps), "--eval-every", str(steps), "--seed", str(seed))
    flags = (*flags, "--warmup-steps", "2", "--n-layer", "1") if quick else flags
    out = work / "run"
    command = [sys.executable, "-m", "tinygpt_jax", "train", "--preset", "nano-cpu", "--data", shakespeare, *flags]
    command += ["--force"] if out.exists() else []
    with tempfile.TemporaryDirectory(dir=work) as cache:
        environment = {**os.environ, "TINYGPT_CACHE": cache}
        began = time.perf_counter()
        done = subprocess.run(
            [*command, "--out", str(out), "--json"], check=True, text=True, env=environment, stdout=subprocess.PIPE
        )
        wall = time.perf_counter() - began
    result = json.loads(done.stdout)
    kept = ("loss_per_char", "loss_se", "compile_seconds", "tokens_per_second")
    return {"seed": seed, "wall_seconds": wall, **{name: result[name] for name in kept}}


def summary(record: Record, runs: list[dict[str, Any]], peer_seconds: float | None = None) -> dict[str, Any]:
    """Medians over seeds, and the time that the peer took in the same run; a record stands only where every seed
    arrived."""
    losses, walls = ([run[name] for run in runs] for name in ("loss_per_char", "wall_seconds"))
    return {
        "change": record.change,
        "flags": " ".join(("--preset nano-cpu", *record.flags, "--steps", str(record.steps))),
        "steps": record.steps,
        "loss_median": statistics.median(losses),
        "loss_range": [min(losses), max(losses)],
        "wall_median": statistics.median(walls),
        "wall_range": [min(walls), max(walls)],
        "peer_seconds": peer_seconds,
        "reached": max(losses) <= TARGET,
        "runs": runs,
    }


def table(results: dict[str, Any]) -> str:
    """Markdown, one line a record."""
    peer = results.get("peer")
    lines = [
        "| recipe | steps | validation loss, nats/char (range over seeds) | wall, s (range) | of the peer's time |",
        "|---|---|---|---|---|",
    ]
    if peer:
        lines.append(
            f"| nanoGPT's own recipe, PyTorch eager | {peer['steps']:,} | {peer['loss']:.3f} (its estimate) "
            f"| {peer['wall_seconds']:.0f} | 1 |"
        )
    for one in results["records"]:
        low, high = one["loss_range"]
        fast, slow = one["wall_range"]
        share = f"{one['wall_median'] / one['peer_seconds']:.2f}" if one["peer_seconds"] else ""
        short = "" if one["reached"] else ", not reached"
        lines.append(
            f"| {one['change']} | {one['steps']:,} | {one['loss_median']:.3f} ({low:.3f} to {high:.3f}){short} "
            f"| {one['wall_median']:.1f} ({fast:.1f} to {slow:.1f}) | {share} |"
        )
    return "\n".join(lines) + "\n"


def figure(results: dict[str, Any], file: Path) -> None:
    """Seconds from process start to the target, recipe by recipe."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    bars = [
        (
            one["change"] + ("" if one["reached"] else "\n(not reached)"),
            one["wall_median"],
            one["wall_range"],
            "#0072B2",
        )
        for one in results["records"]
    ]
    if peer := results.get("peer"):
        bars.insert(0, ("nanoGPT, PyTorch eager", peer["wall_seconds"], [peer["wall_seconds"]] * 2, "#D55E00"))
    names, walls, ranges, colours = zip(*bars, strict=True)
    fig, axes = plt.subplots(figsize=(10, 0.6 * len(bars) + 1.4), layout="constrained")
    spread = [[w - low for w, (low, _) in zip(walls, ranges, strict=True)],
              [high - w for w, (_, high) in zip(walls, ranges, strict=True)]]  # fmt: skip
    drawn = axes.barh(names, walls, xerr=spread, color=colours, error_kw={"capsize": 3})
    axes.bar_label(drawn, fmt="%.0f s", padding=14)
    axes.invert_yaxis()
    axes.set(xlabel="seconds from start to exit (median, range of seeds)", xlim=(0, max(walls) * 1.2))
    fig.suptitle(f"Time to {TARGET} nats per character on tiny Shakespeare, compilation included", fontsize=11)
    axes.grid(axis="x", alpha=0.3)
    fig.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shakespeare", type=Path, help="tinyshakespeare.txt")
    parser.add_argument("--peer", type=Path, help="a nanoGPT checkout, whose own recipe is timed in the same run")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--last", type=int, default=len(RECORDS), help="run the last N records; the others stay")
    parser.add_argument("--quick", action="store_true", help="toy size, to see that it runs")
    parser.add_argument("--out", type=Path, default=HERE, help="where results.json, table.md and records.png go")
    parser.add_argument("--redraw", action="store_true", help="draw table and figure from the results at hand")
    options = parser.parse_args()
    if not options.redraw:
        if options.shakespeare is None:
            parser.error("name the text with --shakespeare")
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "results.json").write_text(json.dumps(measure(options), indent=1) + "\n")
    results = json.loads((options.out / "results.json").read_text())
    (options.out / "table.md").write_text(table(results))
    figure(results, options.out / "records.png")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every record with every seed, the seeds in turn, and the peer in the middle of it."""
    shakespeare = str(options.shakespeare.resolve())
    seeds = SEEDS[:1] if options.quick else SEEDS
    kept = len(RECORDS) - options.last
    records = RECORDS[kept:]
    runs: dict[Record, list[dict[str, Any]]] = {record: [] for record in records}
    peer = None
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for seed in seeds:
            for record in records:
                runs[record].append(run(record, seed, shakespeare, options.quick, work))
                print(f"{record.change}: {runs[record][-1]}", file=sys.stderr)
            if options.peer and peer is None:
                done = train_peer(options.peer, options.peer_python, shakespeare, options.quick, work)
                peer = {"steps": done["curve"][-1][0], "loss": done["curve"][-1][1], **done}
    earlier = json.loads((options.out / "results.json").read_text())["records"][:kept] if kept else []
    return {
        "target": TARGET,
        "machine": machine(),
        "peer": peer,
        "records": [*earlier, *(summary(record, runs[record], peer and peer["wall_seconds"]) for record in records)],
    }


if __name__ == "__main__":
    main()
