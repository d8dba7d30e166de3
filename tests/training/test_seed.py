"""What a seed promises: the same run bit for bit, whatever only says when things happen, or where."""

import json
import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.training.test_loop import Recorder, config, final_state, folder, log_of, whole  # noqa: F401
from tinygpt_jax.runs import read_config
from tinygpt_jax.training.loop import train

ENOUGH = 300
"""Seconds after which a process hangs."""


def steps_of(run):
    """What metrics.jsonl says of the steps, without validations."""
    return [line for line in log_of(run) if "loss" in line]


def test_when_a_run_is_saved_validated_sampled_or_dispatched_changes_no_number(whole, folder):  # noqa: F811
    changed = {"eval_every": 10, "checkpoint_every": 1, "sample_every": 7, "steps_per_dispatch": 10}
    changed |= {"keep_checkpoints": 2, "max_skipped": 9, "stop_early": 50}
    run = train(config(folder, "otherwise", **changed), display=Recorder()).run
    assert steps_of(run) == steps_of(whole.run)
    ours, theirs = (final_state(one, read_config(one)) for one in (run, whole.run))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_a_record_says_on_what_its_numbers_were_made(whole):  # noqa: F811
    record = json.loads((whole.run / "run.json").read_text())
    assert {"python", "numpy", "jax", "jaxlib", "optax"} <= {*record["versions"]}
    assert {"device", "machine"} <= {*record}


COMMAND = ("train", "--preset", "toy", "--steps", "30", "--eval-every", "30", "--seed", "5")
HARMLESS = {
    "another hash seed": ({"PYTHONHASHSEED": "7"}, ()),
    "programs compiled anew": ({"JAX_ENABLE_COMPILATION_CACHE": "false"}, ()),
    "a cache in another place": ({"TINYGPT_CACHE": "elsewhere"}, ()),
    "several devices": ({"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, ()),
    "JSON": ({}, ("--json",)),
    "one core": ({}, ()),
}


def trained(place, name, environment, flags):
    """The log and the weights of a run in a process of its own, as a user's is."""
    out = place / name.replace(" ", "-")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    command = [sys.executable, "-m", "tinygpt_jax", *COMMAND, *flags, "--data", str(place / "text.txt")]
    if name == "one core" and shutil.which("taskset"):
        command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
    environment = {"JAX_PLATFORMS": "cpu", "TINYGPT_CACHE": str(place / "cache"), **environment}
    done = subprocess.run(
        [*command, "--out", str(out)], env=plain | environment, cwd=place, capture_output=True, timeout=ENOUGH
    )
    assert done.returncode == 0, done.stderr
    return steps_of(out), (out / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_what_only_surrounds_a_run_changes_no_number_and_another_seed_all(tmp_path):
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog, and so on.\n" * 300)
    usual = trained(tmp_path, "usual", {}, ())
    for name, (environment, flags) in HARMLESS.items():
        assert trained(tmp_path, name, environment, flags) == usual, name
    assert trained(tmp_path, "another seed", {}, ("--seed", "6"))[1] != usual[1]
