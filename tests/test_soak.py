"""Left running for long, nothing grows: memory, open files, threads and compiled programs over 10,000 steps of training
and over 1,000 texts of varied length. `python -m tests.test_soak steps|texts FOLDER` prints the figures."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
STEPS, TEXTS = 10_000, 1_000
COLUMNS = ("at", "MiB", "files", "threads", "compiled")


class Watch:
    """Rows of COLUMNS: what this process holds, each time it is asked."""

    def __init__(self) -> None:
        import jax

        self.compiled, self.rows = 0, []
        jax.monitoring.register_event_duration_secs_listener(self._count)

    def _count(self, event: str, *_: Any, **__: Any) -> None:
        self.compiled += event.endswith("backend_compile_duration")

    def note(self, at: int) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        held = (len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task"))
        self.rows.append((at, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, *held, self.compiled))


def soak(what: str, folder: Path) -> list[tuple[float, ...]]:
    import tinygpt_jax as tg

    text, run, watch = folder / "text.txt", folder / "run", Watch()
    if what == "steps":
        text.write_text("Now is the winter of our discontent made glorious summer by this sun.\n" * 300)
        seen = 0

        def stopped() -> bool:
            nonlocal seen
            seen += 1
            watch.note(seen)
            return False

        model = tg.GPTConfig(block_size=16, n_layer=1, n_head=2, n_embd=16)
        every = {"eval_every": 250, "checkpoint_every": 250, "sample_every": 500}
        cfg = tg.TrainConfig(model=model, data=(str(text),), out=str(run), steps=STEPS, batch_size=4, **every)
        tg.train(cfg, stopped=stopped)
    else:
        model = tg.load(run)
        for i in range(TEXTS):
            tg.generate(model, "Now is the winter"[: 1 + i % 17], max_tokens=1 + 7 * i % 90, seed=i)
            watch.note(i)
    return watch.rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("soak")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["steps", "texts"])
def test_nothing_grows(what, folder):
    """After the first quarter, where every program is compiled. Memory creeps by up to 8 MiB, ever more slowly."""
    command = [sys.executable, "-m", "tests.test_soak", what, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) >= (STEPS / 50 if what == "steps" else TEXTS)
    _, memory, files, threads, compiled = zip(*rows[len(rows) // 4 :], strict=True)
    assert max(memory) - memory[0] < 12
    assert max(files) - files[0] <= 1
    assert max(threads) - threads[0] <= 4
    assert compiled[-1] == compiled[0]


if __name__ == "__main__":
    print(json.dumps(soak(sys.argv[1], Path(sys.argv[2]))))
