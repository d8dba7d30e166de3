"""What is done to a run, and whether it survives: each function strikes some times, and says what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.survival.process import MOMENTS, Command, Ended, run
from tinygpt_jax.runs import CHECKPOINTS, METRICS, SAMPLES, WEIGHTS
from tinygpt_jax.runtime import SIGNALS

STEPS, SAVE_EVERY = 600, 60
SETTINGS = [
    "--n-layer", "1", "--n-embd", "16", "--n-head", "2", "--block-size", "16", "--batch-size", "4",
    "--steps", str(STEPS), "--warmup-steps", "10", "--eval-every", "50", "--sample-every", "150",
    "--checkpoint-every", str(SAVE_EVERY), "--steps-per-dispatch", "10",
]  # fmt: skip
TEXT = "".join(f"{i} men went to mow, went to mow a meadow; {i * 7919 % 1000} went home.\n" for i in range(1500))


class Outcome(NamedTuple):
    """What came of one trial."""

    kind: str
    survived: bool
    what: str
    """in words"""


class Strike(NamedTuple):
    """Signals sent one after the other once a command has begun a part of its work."""

    moment: str
    numbers: tuple[int, ...]

    @property
    def kind(self) -> str:
        if self.numbers[0] == signal.SIGKILL:
            return f"SIGKILL, {self.moment}"
        return f"{signal.Signals(self.numbers[0]).name}{', twice' * (len(self.numbers) > 1)}"


class Place:
    """A scratch folder with a text and the run that nothing was done to."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.random = root, random.Random(seed)
        (root / "text.txt").write_text(TEXT)
        self.log, self._made = root / "log", 0
        self.whole = root / "whole"
        ended = run(self.new(self.whole), self.log)
        assert ended.code == 0, ended.said
        run(["plot", str(self.whole), "--out", str(root / "figures")], self.log)  # compiles what the figures need

    def new(self, out: Path) -> list[str]:
        return ["train", "--data", str(self.root / "text.txt"), *SETTINGS, "--out", str(out)]

    def fresh(self) -> Path:
        """The name of another run."""
        self._made += 1
        return self.root / f"run{self._made}"

    def copy(self) -> Path:
        """A copy of the whole run."""
        return Path(shutil.copytree(self.whole, self.fresh()))

    def differs(self, out: Path) -> str:
        """In what a run that ended differs from the whole one; "" where in nothing."""
        if (out / WEIGHTS).read_bytes() != (self.whole / WEIGHTS).read_bytes():
            return "other weights"
        if newest(out) != STEPS or _arrays(out) != _arrays(self.whole):
            return "another last state"
        if _log(out) != _log(self.whole):
            return "another log"
        same = (out / SAMPLES).read_bytes() == (self.whole / SAMPLES).read_bytes()
        return "" if same else "other samples"


def newest(out: Path) -> int:
    """The step of the newest saved state; -1 where there is none."""
    folder = out / CHECKPOINTS
    names = os.listdir(folder) if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def resume(out: Path) -> list[str]:
    return ["train", "--resume", str(out)]


def resumed_at(said: str) -> int:
    """The step at which a run says it went on; -1 where it did not."""
    found = re.search(r"^resuming .* at step ([\d,]+)", said, re.MULTILINE)
    return int(found[1].replace(",", "")) if found else -1


def _arrays(out: Path) -> dict[str, bytes]:
    """The last state's arrays, in a process of their own: this one must open no device, or it could not fork."""
    code = (
        "import sys, hashlib, jax, numpy as np\nfrom tinygpt_jax.runs import read_config\n"
        "from tinygpt_jax.training.checkpoint import Checkpoints\nfrom pathlib import Path\n"
        "with Checkpoints(Path(sys.argv[1])) as c: state = c.restore(read_config(sys.argv[1]))[0]\n"
        "for path, x in jax.tree_util.tree_leaves_with_path(state):\n"
        "    print(jax.tree_util.keystr(path), hashlib.sha256(np.asarray(x).tobytes()).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())  # type: ignore[misc]


def _log(out: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def strikes(place: Place, wanted: Sequence[Strike]) -> Iterator[Outcome]:
    """Trainings that are struck and resumed until they end, and are then compared with the one that was not."""
    queue = list(wanted)
    while queue:
        out = place.fresh()
        args, struck, failed = place.new(out), list[Outcome](), ""
        while True:
            aim = queue[0] if queue else None
            command = Command(args, place.log)
            hit = aim is not None and _hit(command, aim, place.random)
            ended = command.end()
            if struck and not ended.clean:
                failed = _last(ended)
            if aim is None or not hit or ended.code == 0:  # it ended by itself, or just before it was struck
                failed = failed or (_last(ended) if ended.code else place.differs(out))
                break
            struck.append(_judged(queue.pop(0), ended, out))
            args = resume(out) if newest(out) >= 0 else [*place.new(out), "--force"]
        yield from (one._replace(survived=False, what=failed) if failed else one for one in struck)
        shutil.rmtree(out, ignore_errors=True)


def _hit(command: Command, aim: Strike, chance: random.Random) -> bool:
    if not command.until(aim.moment, 1 if aim.moment == "compiling" else chance.randint(1, 4)):
        return False
    time.sleep(chance.uniform(0, 0.06))
    for number in aim.numbers:
        command.strike(number)
        time.sleep(chance.uniform(0, 0.02))
    return True


def _judged(aim: Strike, ended: Ended, out: Path) -> Outcome:
    """Whether as much is saved as is promised, and the exit status is right."""
    first, saved = aim.numbers[0], max(newest(out), 0)
    code, most = (-first, SAVE_EVERY) if first == signal.SIGKILL else (128 + first, 0)
    lost = max(ended.step - saved, 0)
    right = ended.code == code and ended.clean and lost <= most
    return Outcome(aim.kind, right, f"exit {ended.code}, {lost} steps lost")


def killed_drawing(place: Place, count: int) -> Iterator[Outcome]:
    """`plot`, killed among its figures: the run is as it was, and drawing again works."""
    before = _files(place.whole)
    for _ in range(count):
        out = place.fresh()
        args = ["plot", str(place.whole), "--out", str(out)]
        command = Command(args, place.log)
        _hit(command, Strike("figures", (signal.SIGKILL,)), place.random)
        command.end()
        half = [file.name for file in out.glob("*.png") if not file.read_bytes().endswith(b"IEND\xaeB`\x82")]
        again = run(args, place.log)
        good = not half and again.code == 0 and _files(place.whole) == before
        yield Outcome("SIGKILL, figures", good, "drawn again" if good else f"{half} {again.said[-200:]}")


def damaged(place: Place, count: int) -> Iterator[Outcome]:
    """One byte of the newest state changed, or a file cut: noticed, and the state before it used; or of no effect."""
    for i in range(count):
        kind = "a state with one byte changed" if i % 2 else "a state cut short"
        out = place.copy()
        last = out / CHECKPOINTS / str(newest(out))
        file = place.random.choice(sorted(file for file in last.rglob("*") if file.is_file() and file.stat().st_size))
        data = bytearray(file.read_bytes())
        at = place.random.randrange(len(data))
        if i % 2:
            data[at] ^= 1 << place.random.randrange(8)
        file.write_bytes(data if i % 2 else data[:at])
        ended = run([*resume(out), "--steps", str(STEPS + 10)], place.log)
        step = resumed_at(ended.said)
        what = f"{file.relative_to(last)} at {at}: exit {ended.code}, resumed at {step}"
        if ended.code == 0 and step == STEPS:  # whatever it was, it must have been read as it was written
            whole = place.copy()
            assert run([*resume(whole), "--steps", str(STEPS + 10)], place.log).code == 0
            yield Outcome(kind, _arrays(whole) == _arrays(out), what + ", not noticed")
        else:
            yield Outcome(kind, ended.clean and ended.code == 0 and 0 <= step < STEPS, what)


def at_once(place: Place, count: int) -> Iterator[Outcome]:
    """Two trainings into one directory, and two that resume one run: one wins, the other is told."""
    for i in range(count):
        out = place.copy() if i % 2 else place.fresh()
        args = [*resume(out), "--steps", str(STEPS + 300)] if i % 2 else place.new(out)
        logs = [place.root / f"log{n}" for n in range(2)]
        both = [Command(args, log) for log in logs]
        ended = [one.end() for one in both]
        codes = sorted(one.code for one in ended)
        told = all(one.clean for one in ended)
        kind = "two resume one run" if i % 2 else "two runs into one directory"
        whole = i % 2 or not place.differs(out)
        yield Outcome(kind, bool(codes[0] == 0 and codes[1] in (0, 1) and told and whole), f"exits {codes}")


def full_disk(place: Place, count: int) -> Iterator[Outcome]:
    """A training on a small disk that fills up: one line; with room made, it is resumed as if nothing had been."""
    for _ in range(count):
        size = place.random.randrange(120, 900)
        with _disk(place, f"{size}k") as disk:
            out = disk / "run"
            ended = run(place.new(out), place.log)
            _remount(disk, "size=100m")
            again = run(resume(out) if newest(out) >= 0 else [*place.new(out), "--force"], place.log)
            what = f"{size} KiB: exit {ended.code}, {_last(ended)}; then exit {again.code}"
            if wrong := "" if ended.code == 0 or _told(ended) else f"; said {ended.said[-2000:]!r}":
                what += wrong
            differs = place.differs(out) if again.code == 0 else "not ended"
            yield Outcome("a full disk", not wrong and not differs, what + f"; {differs}" * bool(differs))


def read_only(place: Place, count: int) -> Iterator[Outcome]:
    """A run on a disk that may not be written is resumed: one line, and it is as it was."""
    for _ in range(count):
        with _disk(place, "100m") as disk:
            out = Path(shutil.copytree(place.whole, disk / "run"))
            before = _files(out)
            _remount(disk, "ro")
            ended = run([*resume(out), "--steps", str(STEPS + 10)], place.log)
            yield Outcome("a read-only disk", _told(ended) and _files(out) == before, _last(ended))


@contextlib.contextmanager
def _disk(place: Place, size: str) -> Iterator[Path]:
    """A file system in memory of a size; FileNotFoundError or CalledProcessError where we may not have one."""
    disk = place.root / "disk"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True, capture_output=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def _remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


def _told(ended: Ended) -> bool:
    """Whether it failed with one line that says why."""
    return ended.code == 1 and ended.clean and _last(ended).startswith("tinygpt train: ")


def _last(ended: Ended) -> str:
    return (ended.said.strip().splitlines() or [""])[-1][:200]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def signals(count: int, chance: random.Random) -> list[Strike]:
    """Signals at moments of chance, every other one twice."""
    moments = MOMENTS[:-1]
    return [Strike(chance.choice(moments), (number,) * (1 + i % 2)) for i in range(count) for number in SIGNALS]


def kills(count: int, chance: random.Random) -> list[Strike]:
    """SIGKILLs spread evenly over the parts of a training, in an order of chance."""
    made = [Strike(MOMENTS[i % 5], (signal.SIGKILL,)) for i in range(count)]
    chance.shuffle(made)
    return made
