"""samples.txt: every sample comes back, whatever it holds, and those after a kill are dropped."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tinygpt_jax.errors import UserError
from tinygpt_jax.training.metrics import MetricsLog
from tinygpt_jax.training.samples import drop_samples, read_samples, write_sample

HEADING = "--- step 7 ---"
pieces = st.sampled_from([HEADING, f">{HEADING}", "\n", "\r\n", ">", " ", "a", "---", "\u2028", "é"])
texts = st.lists(pieces, max_size=8).map("".join)


@given(samples=st.lists(st.tuples(st.integers(0, 10**17), texts), min_size=1, max_size=5))
@example(samples=[(1, f"{HEADING}\n>{HEADING}\n>>{HEADING}"), (2, ""), (3, "\n")])
def test_every_sample_comes_back(tmp_path_factory, samples):
    run = tmp_path_factory.mktemp("run")
    for step, text in samples:
        write_sample(run, step, text)
    assert read_samples((run / "samples.txt").read_bytes().decode()) == samples


def test_samples_of_older_versions_are_read():
    assert read_samples("--- step 10 ---\nearly\n--- step 20 ---\nlate\n") == [(10, "early"), (20, "late")]


@pytest.mark.parametrize("torn", ["", "--- step 40 ---\nhal", "--- st"])
def test_a_resumed_run_has_each_step_once(tmp_path, torn):
    for step in (10, 20, 30):
        write_sample(tmp_path, step, f"at {step}\n{HEADING}")
    whole = (tmp_path / "samples.txt").read_text()
    with (tmp_path / "samples.txt").open("a") as file:
        file.write(torn)
    drop_samples(tmp_path, 20)
    for step in (30,):
        write_sample(tmp_path, step, f"at {step}\n{HEADING}")
    assert (tmp_path / "samples.txt").read_text() == whole


def test_nothing_is_written_where_nothing_is_to_be_dropped(tmp_path):
    drop_samples(tmp_path, 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif("not __import__('os').path.exists('/dev/full')")
@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.txt"])
def test_a_full_disk_is_one_line(tmp_path, name):
    (tmp_path / name).symlink_to("/dev/full")

    def write():
        with MetricsLog(tmp_path, 0, False) as log:
            write_sample(tmp_path, 1, "text")
            log.write(1, {"loss": 1.0})
            log.flush()

    with pytest.raises(UserError, match=rf"cannot write .*{name} \(No space left on device\)"):
        write()
