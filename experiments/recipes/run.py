"""Trains the built-in recipes one after the other and, where a peer is at hand, the same recipe there, in the same run.

python -m experiments.recipes.run --shakespeare FILE [--peer DIR --peer-python PYTHON] [--quick]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.shared.common import main

HERE = Path(__file__).parent
QUICK = ["--steps", "20", "--warmup-steps", "2", "--eval-every", "10", "--sample-every", "0", "--n-layer", "1"]
PEER_FLAGS = {
    "device": "cpu", "compile": False, "eval_iters": 20, "log_interval": 100, "block_size": 64, "batch_size": 12,
    "n_layer": 4, "n_head": 4, "n_embd": 128, "max_iters": 2000, "lr_decay_iters": 2000, "dropout": 0.0,
}  # fmt: skip
"""The published command for a CPU."""


def recipes(shakespeare: str) -> dict[str, list[str]]:
    """Name -> arguments of `tinygpt train`."""
    on_shakespeare = {
        "nano-cpu": ["--preset", "nano-cpu", "--data", shakespeare],
        "classic-bpe": ["--preset", "classic-bpe", "--data", shakespeare, "--eval-every", "100"],
    }
    return {"default": [], **(on_shakespeare if shakespeare else {})}


def train(name: str, args: list[str], work: Path) -> dict[str, Any]:
    """One recipe in a process of its own: what it printed, its wall time, and its curve."""
    out = work / name
    command = [sys.executable, "-m", "tinygpt_jax", "train", *args, "--out", str(out), "--json"]
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    wall = time.perf_counter() - began
    result = json.loads(done.stdout) | {"command": f"tinygpt train {' '.join(args)}".strip(), "wall_seconds": wall}
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    result["first_loss"] = next(line["loss"] for line in lines if "loss" in line)
    result["vocab_size"] = json.loads((out / "run.json").read_text())["config"]["model"]["vocab_size"]
    result["train_curve"] = [
        [line["step"], line["loss"]] for line in lines if "loss" in line and line["step"] % 50 == 0
    ]
    result["curve"] = [
        [line["step"], line["val_loss"], line["val_loss_per_char"]] for line in lines if "val_loss" in line
    ]
    del result["run"]
    return result


def train_peer(folder: Path, python: str, shakespeare: str, quick: bool, work: Path) -> dict[str, Any]:
    """nanoGPT's published CPU command, in a checkout of it, with its estimates of the validation loss."""
    data = folder / "data" / "shakespeare_char"
    (data / "input.txt").write_bytes(Path(shakespeare).read_bytes())
    subprocess.run([python, "prepare.py"], cwd=data, check=True, stdout=subprocess.DEVNULL)
    settings = PEER_FLAGS | ({"max_iters": 20, "eval_interval": 10} if quick else {}) | {"out_dir": work / "peer"}
    flags = ["config/train_shakespeare_char.py", *(f"--{name}={value}" for name, value in settings.items())]
    began = time.perf_counter()
    done = subprocess.run([python, "train.py", *flags], cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    wall = time.perf_counter() - began
    curve = [
        [int(s), float(v)] for s, v in re.findall(r"step (\d+): train loss [\d.]+, val loss ([\d.]+)", done.stdout)
    ]
    return {"command": f"python train.py {' '.join(flags[:-1])}", "wall_seconds": wall, "curve": curve}


def figure(results: dict[str, Any], file: Path) -> None:
    """Validation loss per character against steps; every recipe in one unit."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    styles = zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7"), ("o", "s", "^", "D"), strict=True)
    for (name, result), (colour, marker) in zip(results["recipes"].items(), styles, strict=False):
        steps, losses = [point[0] for point in result["curve"]], [point[-1] for point in result["curve"]]
        text = "pydoc" if name == "default" else "tiny Shakespeare"
        axes.plot(steps, losses, color=colour, marker=marker, markersize=4, label=f"{name}, {text}")
    axes.set(xlabel="optimizer steps", ylabel="validation loss (nats per character)")
    axes.set_title("Ours follows nanoGPT; sub-words are ahead of characters at the same model size", fontsize=11)
    axes.legend()
    axes.grid(alpha=0.3)
    fig.savefig(file, dpi=150)


def measure(
    quick: bool, shakespeare: Path | None, peer: Path | None, peer_python: Path | None
) -> dict[str, dict[str, Any]]:
    """Every recipe that there is a text for, in turn."""
    text, found = str(shakespeare.resolve()) if shakespeare else "", {}
    with tempfile.TemporaryDirectory() as work:
        for name, args in recipes(text).items():
            found[name] = train(name, [*args, *QUICK] if quick else args, Path(work))
            if name == "nano-cpu" and peer:  # next to each other, as the machine's speed drifts
                python = str(peer_python or sys.executable)
                found["nanoGPT, PyTorch"] = train_peer(peer, python, text, quick, Path(work))
    for one in found.values():
        one["command"] = one["command"].replace(text or "\0", "tinyshakespeare.txt")
    return {"recipes": found}


def report(results: dict[str, Any], out: Path) -> None:
    figure(results, out / "curves.png")


FILES = {
    "shakespeare": "tinyshakespeare.txt; without it the default recipe alone is trained",
    "peer": "a nanoGPT checkout",
    "peer-python": "a Python that has torch",
}

if __name__ == "__main__":
    main(__doc__ or "", HERE, measure, report, FILES)
