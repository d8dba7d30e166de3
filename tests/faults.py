"""Faults that the suite must catch: each is planted in a copy of the tree, and the test that is named must then fail.

    python -m tests.faults [--only WORD] [--jobs N]      # says which are caught; exit 1 where one is not
    python -m tests.faults --list

Before anything is planted the tests that are named must pass. Whoever rewrites a line that a fault replaces moves the
fault to where the same mistake can now be made; `tests/test_house.py` holds that every one has its place.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.trees import FAILED, PASSED, ROOT, copy_tree, run_tests


class Fault(NamedTuple):
    """One mistake: in `where`, a file or a folder of the package, `old` stands once and becomes `new`."""

    name: str
    where: str
    old: str
    new: str
    test: str
    """the test that must fail, as file::name below tests/"""


MODEL = [
    Fault(
        "the mask hides a token from itself", "model.py",
        "visible = pos_S[:, None, None, :] <= pos[:, None, :, None]",
        "visible = pos_S[:, None, None, :] < pos[:, None, :, None]",
        "test_reference.py::test_logits_and_loss_equal_the_float64_oracle",
    ),
    Fault(
        "the mask shows the next token", "model.py",
        "visible = pos_S[:, None, None, :] <= pos[:, None, :, None]",
        "visible = pos_S[:, None, None, :] <= pos[:, None, :, None] + 1",
        "test_model.py::test_later_ids_leave_earlier_logits_bit_identical",
    ),
    Fault(
        "scores without 1/sqrt(K)", "model.py", "q / math.sqrt(q.shape[-1])", "q",
        "test_reference.py::test_logits_and_loss_equal_the_float64_oracle",
    ),
    Fault(
        "rotary positions turn one half only", "model.py", "a * cos - b * sin", "a",
        "test_reference.py::test_logits_and_loss_equal_the_float64_oracle",
    ),
    Fault(
        "GELU with a square for a cube", "model.py", "0.044715 * x * x * x", "0.044715 * x * x",
        "test_reference.py::test_logits_and_loss_equal_the_float64_oracle",
    ),
    Fault(
        "z is edited after Wo", "model.py",
        'z = at("z", attend(q, k, v, pos, at, bias.get("smear")))\n'
        '    return linear(merge_heads(z), Wo, bias.get("bo"))',
        'z = attend(q, k, v, pos, at, bias.get("smear"))\n    y = split_heads(linear(merge_heads(z), Wo), K)\n'
        '    return merge_heads(at("z", y)) + bias.get("bo", 0)',
        "lab/test_ablate.py::test_a_zero_gate_deletes_the_heads_rows_of_Wo",
    ),
    Fault(
        "an edit's constant is forgotten", "forward_pass.py", "x + add.astype(x.dtype)", "x",
        "test_model.py::test_an_edit_is_the_references",
    ),
    Fault(
        "dropout without a key, as in evaluation", "forward_pass.py",
        "key = key if cfg.dropout > 0 else None",
        "key = (jax.random.key(0) if key is None else key) if cfg.dropout > 0 else None",
        "test_model.py::test_without_a_key_nothing_is_dropped",
    ),
    Fault(
        "empty slots of the cache can be seen", "forward_pass.py", "FAR, jnp.int32", "0, jnp.int32",
        "test_model.py::test_cached_decoding_equals_the_full_forward",
    ),
    Fault(
        "projections into the stream are not scaled by depth", "params.py",
        "INIT_STD / math.sqrt(2 * cfg.n_layer)", "INIT_STD",
        "test_params.py::test_fresh_weights_have_gpt2s_spread",
    ),
    Fault(
        "weight decay is decided by the number of axes", "params.py",
        "lambda spec: spec.decay", "lambda spec: len(spec.axes) > 1",
        "test_params.py::test_every_view_of_the_tree_is_the_same_tree",
    ),
]  # fmt: skip
TEXT = [
    Fault(
        "targets are the inputs", "text/batches.py",
        "return both[:, :-1], both[:, 1:]", "return both[:, :-1], both[:, :-1]",
        "text/test_batches.py::test_targets_are_inputs_one_later",
    ),
    Fault(
        "steps share random numbers", "text/batches.py", "counter=int(step) << 128", "counter=int(step)",
        "text/test_batches.py::test_steps_and_seeds_share_nothing",
    ),
    Fault(
        "the last window is never drawn", "text/batches.py",
        "np.uint64(n_tokens - block_size)", "np.uint64(n_tokens - block_size - 1)",
        "text/test_batches.py::test_starts_are_uniform_and_reach_both_ends",
    ),
    Fault(
        "sub-words without a token for every byte", "text/bpe.py",
        "initial_alphabet=sorted(byte_of_char())", "initial_alphabet=[]",
        "text/test_tokenizer.py::test_bpe_knows_every_byte_and_has_no_special_tokens",
    ),
    Fault(
        "an unfinished character is dropped at the end", "text/tokenizer.py",
        'self._bytes.decode(b"", final=True)', '""',
        "text/test_tokenizer.py::test_stream_holds_an_unfinished_character_back",
    ),
]  # fmt: skip
TRAINING = [
    Fault(
        "the learning rate lags by a step", "training/optimizer.py", "/ (cfg.warmup + 1)", "* 0",
        "training/test_optimizer.py::test_schedule_rises_to_the_peak_and_falls_to_the_low",
    ),
    Fault(
        "the learning rate ends a step late", "training/optimizer.py",
        "max(1, cfg.steps - cfg.warmup)", "max(1, cfg.steps - cfg.warmup + 1)",
        "training/test_optimizer.py::test_schedule_rises_to_the_peak_and_falls_to_the_low",
    ),
    Fault(
        "Muon takes the embedding too", "training/optimizer.py",
        'embedding = spec.axes[0] in ("vocab", "position")', "embedding = False",
        "training/test_optimizer.py::test_muon_takes_the_matrices_of_the_blocks_alone",
    ),
    Fault(
        "ignored targets count in the size of a gradient", "training/step.py",
        "jax.tree.map(lambda g: g / count, grads)", "jax.tree.map(lambda g: g / targets[0].size / len(targets), grads)",
        "training/test_step.py::test_accumulation_equals_one_batch_whatever_the_token_counts",
    ),
    Fault(
        "a step that is not finite is applied", "training/step.py",
        "jnp.isfinite(loss) & jnp.isfinite(grad_norm)", "jnp.isfinite(loss) | jnp.array(True)",
        "training/test_step.py::test_a_step_that_is_not_finite_changes_nothing_but_the_counters",
    ),
    Fault(
        "every step has the same dropout masks", "training/step.py",
        "jax.random.fold_in(dropout_key, state.step)", "dropout_key",
        "training/test_step.py::test_dropout_masks_change_with_the_step_and_the_micro_batch",
    ),
    Fault(
        "ignored targets count", "training/loss.py", "jnp.where(targets >= 0, ", "jnp.where(targets >= -1, ",
        "training/test_evaluate.py::test_every_token_is_scored_once_however_the_windows_are_batched",
    ),
    Fault(
        "resuming drops the optimizer's state", "training/checkpoint.py",
        "return restored.state, restored.facts",
        "return restored.state._replace(opt_state=init_state(cfg).opt_state), restored.facts",
        "training/test_loop.py::test_ten_steps_equal_four_three_three_bit_for_bit",
    ),
    Fault(
        "bits per byte are nats", "training/evaluate.py", "/ math.log(2)", "/ 1",
        "training/test_evaluate.py::test_units_follow_from_the_text",
    ),
    Fault(
        "the last window counts as a whole one", "training/evaluate.py",
        "counts[-1] = len(tokens.ids) - 1 - T * (n_windows - 1)", "counts[-1] = T",
        "training/test_evaluate.py::test_every_token_is_scored_once_however_the_windows_are_batched",
    ),
    Fault(
        "validation windows are taken as independent", "training/evaluate.py", "ordered=True", "ordered=False",
        "training/test_evaluate.py::test_the_standard_error_knows_that_neighbours_are_alike",
    ),
]  # fmt: skip
SAMPLING = [
    Fault(
        "top-p keeps one too few", "sampling/filters.py",
        "jnp.minimum(left_out, V - 1)", "jnp.minimum(left_out + 1, V - 1)",
        "sampling/test_sampling.py::test_filters_on_four_tokens",
    ),
    Fault(
        "top-k keeps one too few", "sampling/filters.py",
        "V - jnp.minimum(top_k, V)]", "jnp.minimum(V - jnp.minimum(top_k, V) + 1, V - 1)]",
        "sampling/test_sampling.py::test_filters_on_four_tokens",
    ),
    Fault(
        "the repetition penalty favours what is unlikely", "sampling/filters.py",
        "logits / penalty, logits * penalty", "logits / penalty, logits / penalty",
        "sampling/test_sampling.py::test_all_filters_equal_the_plain_oracle",
    ),
    Fault(
        "the cache is a position behind", "sampling/decode.py",
        "cfg, pos=last, cache=state.cache", "cfg, pos=jnp.maximum(last - 1, 0), cache=state.cache",
        "sampling/test_sampling.py::test_decoding_equals_the_plain_oracle_with_and_without_the_cache",
    ),
    Fault(
        "log-probabilities are those after the temperature", "sampling/decode.py",
        "jax.nn.log_softmax(logits)", "jax.nn.log_softmax(logits / jnp.maximum(request.filters.temperature, 0.01))",
        "sampling/test_sampling.py::test_decoding_equals_the_plain_oracle_with_and_without_the_cache",
    ),
    Fault(
        "a row's draws depend on its place in the batch", "sampling/generate.py",
        "np.tile(np.arange(config.n, dtype=np.int32), len(ids))", "np.arange(config.n * len(ids), dtype=np.int32)",
        "sampling/test_sampling.py::test_a_row_depends_on_nothing_else_in_its_batch",
    ),
]  # fmt: skip
NUMBERS = [
    Fault(
        "the error of windows in order as if they were independent", "statistics.py",
        "parts = components(values, ordered)\n    if not", "parts = components(values, False)\n    if not",
        "test_statistics.py::test_the_error_of_windows_in_order_covers",
    ),
    Fault(
        "the error of few examples divides by n", "statistics.py",
        "apart / math.sqrt(n - 1)", "apart / math.sqrt(n)",
        "test_statistics.py::test_the_error_of_independent_examples_is_the_usual_one",
    ),
    Fault(
        "rankings of noise pass", "statistics.py", "if not chance <= FALSE_PASS", "if chance > 1",
        "test_statistics.py::test_a_ranking_is_refused_where_chance_would_do",
    ),
    Fault(
        "differences are not paired", "lab/remove/ablate.py",
        "per_example = values - baseline", "per_example = values - np.roll(baseline, 1)",
        "lab/test_ablate.py::test_effects_errors_and_baseline",
    ),
    Fault(
        "interactions keep one of the two effects", "lab/remove/ablate.py",
        "effects - single[first] - single[second]", "effects - single[first]",
        "lab/test_ablate.py::test_pairs",
    ),
    Fault(
        "a run of a set starts past the first layer that it touches", "lab/engine.py",
        "np.where(touched.any(-1), touched.argmax(-1),",
        "np.where(touched.any(-1), np.minimum(touched.argmax(-1) + 1, touched.shape[-1] - 1),",
        "lab/test_ablate.py::test_any_masks_and_gates_are_separate_forward_passes",
    ),
    Fault(
        "means are over a head's width too", "lab/fills.py", "a.mean(-2, keepdims=True)",
        "a.mean((-2, -1), keepdims=True) + 0 * a[..., :1, :]",
        "lab/test_ablate.py::test_fills_are_what_they_say",
    ),
    Fault(
        "a mean of the others holds the example itself", "lab/fills.py",
        "1 / (len(ids) - 1)", "1e-9 / (len(ids) - 1)",
        "lab/test_ablate.py::test_fills_are_what_they_say",
    ),
    Fault(
        "Shapley weights of a coalition that lacks the player", "lab/remove/shapley.py",
        "np.minimum(size, n - 1)", "np.maximum(size - 1, 0)",
        "lab/test_shapley.py::test_values_are_the_mean_over_all_orders",
    ),
    Fault(
        "induction looks at the earlier token, not at what followed", "lab/read/scores.py",
        "((0, 0), (0, 0), (1, 0)))[:, :, :-1]", "((0, 0), (0, 0), (0, 0)))",
        "lab/test_scores.py::test_planted_heads_and_no_others_are_found",
    ),
    Fault(
        "the previous token is the one before it", "lab/read/scores.py",
        "t[None, :] == t[:, None] - 1", "t[None, :] == t[:, None] - 2",
        "lab/test_scores.py::test_planted_heads_and_no_others_are_found",
    ),
    Fault(
        "a patch is measured against the wrong run", "lab/patch/patching.py",
        "found.patched - found.base", "found.patched - found.other",
        "lab/test_patching.py::test_patching_everything_gives_the_other_run",
    ),
    Fault(
        "a patch at one head is one at all", "lab/patch/patching.py",
        "is_one(place.head, cfg.n_head)[:, None, None]", "True",
        "lab/test_patching.py::test_patches_are_the_forwards_edits",
    ),
]  # fmt: skip
EDGE = [
    Fault(
        "a link may lead out of a run", "reading.py", "if os.path.commonpath((there, root)) != root:", "if False:",
        "test_strangers.py::test_a_link_out_of_the_run_is_refused_and_what_it_leads_to_left_alone",
    ),
    Fault(
        "a file is read however large it is", "reading.py", "while size <= most and (", "while (",
        "test_strangers.py::test_a_file_that_is_too_large_is_refused_unread",
    ),
    Fault(
        "weights may be infinite", "runs.py", "int(np.isfinite(array).sum())", "int((array == array).sum())",
        "test_strangers.py::test_weights_that_are_not_finite_are_said_to_be",
    ),
    Fault(
        "the gradient takes no memory", "memory.py", "8 * model.n_embd + 2 * model.mlp_width + pattern", "model.n_embd",
        "test_memory.py::test_the_estimate_of_a_train_step_is_a_lower_bound_and_near",
    ),
    Fault(
        "more memory is asked for than is needed", "memory.py", "block = 8 * model.n_embd", "block = 80 * model.n_embd",
        "test_memory.py::test_the_estimate_of_a_train_step_is_a_lower_bound_and_near",
    ),
    Fault(
        "a file is written in place", "files.py",
        "os.replace(partial, target)", 'target.write_bytes(b"".join(map(bytes, parts)))',
        "test_files.py::test_a_reader_sees_all_of_the_old_or_all_of_the_new",
    ),
    Fault(
        "a part of a file stays behind", "files.py", "partial.unlink(missing_ok=True)", "pass",
        "test_files.py::test_a_writing_that_fails_leaves_what_was_there_and_nothing_else",
    ),
    Fault(
        "a replaced file loses its permissions", "files.py", "_hand_over(file.fileno(), before)", "pass",
        "test_files.py::test_a_replaced_file_keeps_its_permissions",
    ),
    Fault(
        "the newest run is the oldest", "runs.py", "return max(runs, key=", "return min(runs, key=",
        "test_runs.py::test_the_newest_run_is_the_one_written_last",
    ),
    Fault(
        "controls of a terminal pass as they are", "markup.py",
        'f"U+{ord(character):04X}" if', "character if",
        "test_markup.py::test_white_space_and_controls_are_visible",
    ),
    Fault(
        "a fault of the user exits with 0", "cli/__init__.py",
        'say_to(sys.stderr, f"tinygpt {verb}".rstrip() + f": {reason}")\n        return FAILED',
        'say_to(sys.stderr, f"tinygpt {verb}".rstrip() + f": {reason}")\n        return DONE',
        "cli/test_cli.py::test_bad_input_is_one_line_and_leaves_nothing",
    ),
    Fault(
        "wrong usage exits with 1", "cli/__init__.py", "        return USAGE\n", "        return FAILED\n",
        "cli/test_cli.py::test_wrong_usage_exits_2",
    ),
    Fault(
        "an interrupted run exits with 0", "cli/train.py",
        "SIGNALLED + stopped() if result.interrupted else DONE", "DONE",
        "cli/test_cli.py::test_a_training_that_is_interrupted_exits_130_with_its_run_saved",
    ),
    Fault(
        "an error has more digits than it bears out", "digits.py", "{number(error, places)}", "{error}",
        "lab/test_results.py::test_a_number_with_its_error",
    ),
]  # fmt: skip
FAULTS = [*MODEL, *TEXT, *TRAINING, *SAMPLING, *NUMBERS, *EDGE]


def places(fault: Fault, tree: Path) -> list[Path]:
    """The files that hold the fault's text, one as often as it stands in it."""
    where = tree / "tinygpt_jax" / fault.where
    files = sorted(where.rglob("*.py")) if where.is_dir() else [where] * where.is_file()
    return [file for file in files for _ in range(file.read_text(encoding="utf-8").count(fault.old))]


def lost(faults: Sequence[Fault], tree: Path = ROOT) -> list[str]:
    """The faults that cannot be planted, since their text does not stand exactly once in its place."""
    return [f"{fault.name}: {fault.where} has {fault.old!r} {n} times" for fault in faults
            if (n := len(places(fault, tree))) != 1]  # fmt: skip


def plant(fault: Fault, tree: Path) -> None:
    """Puts the fault into a tree."""
    (file,) = places(fault, tree)
    file.write_text(file.read_text(encoding="utf-8").replace(fault.old, fault.new), encoding="utf-8")


def try_fault(fault: Fault) -> str:
    """What became of it: `caught`, `NOT caught`, or why that cannot be said."""
    if lost([fault]):
        return "LOST: its text does not stand once in its place"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve()
        copy_tree(tree)
        plant(fault, tree)
        code = run_tests(tree, [fault.test]).code
    return {FAILED: "caught", PASSED: "NOT caught"}.get(code, f"NOT RUN: pytest ended with {code}")


def sound(faults: Sequence[Fault]) -> str:
    """Nothing where all tests that are named pass as the tree is, else what pytest said."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve()
        copy_tree(tree)
        done = run_tests(tree, sorted({fault.test for fault in faults}))
    return f"{done.failed}: pytest ended with {done.code}\n{done.said}" if done.code != PASSED else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose name, place or test has this in it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--list", action="store_true", help="name them and stop")
    given = parser.parse_args()
    chosen = [one for one in FAULTS if given.only in f"{one.name} {one.where} {one.test}"]
    if given.list:
        print("\n".join(f"{one.where:24} {one.name}" for one in chosen))
        return 0
    if failure := sound(chosen):
        print(f"{failure}\nnot all of these tests pass before anything is planted")
        return 1
    with ThreadPoolExecutor(given.jobs) as pool:
        found = []
        for fault, outcome in zip(chosen, pool.map(try_fault, chosen), strict=True):
            print(f"{outcome:10}  {fault.where}: {fault.name}", flush=True)
            found.append(outcome == "caught")
    print(f"{sum(found)} of {len(found)} faults are caught")
    return 0 if all(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
