"""Who may write into a run directory, and what becomes of what was there; paths in all the ways people give them."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

import tinygpt_jax as tg
from tinygpt_jax import runs
from tinygpt_jax.checks import check
from tinygpt_jax.cli.settings import layered
from tinygpt_jax.config import Sources, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import free_bytes, partial_name, user_path
from tinygpt_jax.runs import PARTS, RECORD, read_record, write_record
from tinygpt_jax.training import claims, job
from tinygpt_jax.training.claims import LOCK, check_out, check_room, claim, claim_next, locked


def make_run(path, *parts):
    write_record(path, TrainConfig(), {})
    for part in parts:
        (path / part).mkdir()
        (path / part / "inside").touch()
    return path


def names(path):
    return sorted(one.name for one in path.iterdir())


def refused(what, match):
    with pytest.raises(UserError, match=match) as error:
        what()
    assert "\n" not in str(error.value)


def enter(context):
    with context:
        pass


def test_parts_are_replaced_all_of_them(tmp_path):
    run = make_run(tmp_path / "run", *PARTS[:-1])
    (run / "notes").touch()
    with claim(run, force=True):
        assert names(run) == ["notes"]


@pytest.mark.parametrize("part", PARTS)
def test_where_one_part_cannot_be_removed_none_is(tmp_path, monkeypatch, part):
    run = make_run(tmp_path / "run", *PARTS[:-1])
    before, real = names(run), os.rename

    def rename(old, new):
        if Path(old) == run / part:
            raise OSError(errno.EBUSY, "Device or resource busy", str(old))
        real(old, new)

    monkeypatch.setattr(os, "rename", rename)
    refused(
        lambda: enter(claim(run, force=True)), rf"cannot replace run .*/{part}: Device or resource busy\): all of it"
    )
    assert names(run) == before
    assert all((run / name / "inside").exists() for name in PARTS[:-1])


def test_a_folder_deep_inside_that_cannot_be_emptied_is_seen_before(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", *PARTS[:-1])
    deep = run / "plots" / "a" / "b"
    deep.mkdir(parents=True)
    before = names(run)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != deep)
    refused(lambda: enter(claim(run, force=True)), f"{deep}: Permission denied")
    assert names(run) == before


@pytest.mark.parametrize("left", [[], [partial_name()], [LOCK], [LOCK, partial_name()]])
def test_what_a_kill_leaves_before_there_is_a_run_can_be_claimed(tmp_path, left):
    run = tmp_path / "run"
    run.mkdir()
    for name in left:
        (run / name).touch()
    with claim(run):
        assert set(names(run)) <= {LOCK}


def test_what_older_versions_leave_before_there_is_a_run_can_be_forced(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tokenizer.json").touch()
    refused(lambda: check_out(tmp_path / "run", False), "left of a run that was killed as it began: .* --force")
    enter(claim(tmp_path / "run", force=True))
    (tmp_path / "mine").mkdir()
    for name in ("tokenizer.json", "plots"):
        (tmp_path / "mine" / name).touch()
    refused(lambda: check_out(tmp_path / "mine", True), "holds something that is not a run")


@pytest.mark.parametrize("target", ["/nonexistent-{}", "{}/file", "{}/loop"])
def test_where_runs_leads_nowhere_a_run_is_refused_or_made(tmp_path, monkeypatch, target):
    """Through a link that leads nowhere, to a file or to itself; it used to be looked for without end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "runs").symlink_to(target.format(tmp_path) if "-" not in target else "made/of/nothing")
    if "-" in target:
        with claim_next(Path("runs/a")) as run:
            assert run.is_dir()
    else:
        refused(lambda: enter(claim_next(Path("runs/a"))), "cannot make runs")


def test_a_name_that_is_taken_by_anything_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "runs" / "a-3").mkdir(parents=True)
    (tmp_path / "runs" / "a").touch()
    (tmp_path / "runs" / "a-2").symlink_to("nowhere")
    text = tmp_path / "a.txt"
    text.write_text("abc " * 200)
    monkeypatch.chdir(tmp_path)
    assert job.new_job(TrainConfig(data=(str(text),))).run == Path("runs/a")
    with claim_next(Path("runs/a")) as run, claim_next(Path("runs/a")) as other:
        assert (run.name, other.name) == ("a-4", "a-5")


def test_of_two_at_once_one_wins_and_the_other_is_told(tmp_path):
    run = make_run(tmp_path / "run")
    with claim(run, force=True):
        refused(lambda: enter(claim(run, force=True)), "is being trained by another process")
        refused(lambda: enter(locked(run)), "is being trained by another process")
    assert names(run) == []


def test_one_that_comes_when_the_other_has_begun_is_told_too(tmp_path, monkeypatch):
    """Both found the place free: the first has taken it, and is done, before the second gets the lock."""
    run = tmp_path / "run"
    monkeypatch.setattr(claims, "make_folder", lambda path: make_run(path, "plots"))
    refused(lambda: enter(claim(run)), "exists: continue it with train --resume")
    assert names(run) == ["plots", RECORD]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EBADF, errno.EOPNOTSUPP, errno.EIO, errno.ENOLCK])
def test_a_file_system_without_locks_is_said_and_used(tmp_path, monkeypatch, number):
    run, said = make_run(tmp_path / "run"), []

    def flock(handle, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(run, said.append):
        assert said == [
            f"{run} cannot be locked ({os.strerror(number)}): see to it that no other process trains it meanwhile"
        ]


def test_where_only_files_can_be_locked_a_file_is(tmp_path, monkeypatch):
    """As on NFS, which locks what is open for writing."""
    run, said, real = make_run(tmp_path / "run"), [], fcntl.flock

    def flock(handle, how):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(run, said.append):
        assert said == []
        refused(lambda: enter(locked(run)), "is being trained by another process")
    enter(locked(run))


def test_a_lock_that_cannot_be_opened_is_one_line(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    refused(lambda: enter(locked(tmp_path)), r"cannot write into .* \(Permission denied\): check its permissions")


@pytest.mark.parametrize("part", ["", "checkpoints"])
def test_a_run_that_cannot_be_written_into_is_refused_before_any_work(tmp_path, monkeypatch, part):
    run = make_run(tmp_path / "run", "checkpoints")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != run / part)
    monkeypatch.setattr(job, "load_text", None)
    said = rf"cannot write into {run / part} \(Permission denied\): check its permissions"
    refused(lambda: tg.train(TrainConfig(), resume=run), said)


def test_a_record_that_cannot_be_read_is_one_line(tmp_path, monkeypatch):
    def refuse(path, most):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    run = make_run(tmp_path / "run")
    monkeypatch.setattr(runs, "read_part", refuse)
    refused(lambda: read_record(run), r"run.json cannot be read \(Permission denied\): mend that, or name another")


@pytest.mark.parametrize("out", ["s3://bucket/run", "gs://b", "file:///tmp/x", "HTTP://a/b"])
def test_an_address_is_no_path(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for what in (
        lambda: job.new_job(TrainConfig(out=out)),
        lambda: tg.train(TrainConfig(), resume=out),
        lambda: tg.load(out),
        lambda: read_record(out),
        lambda: tg.evaluate(out),
        lambda: tg.report(out),
        lambda: tg.plot(out),
        lambda: tg.ablate(out),
    ):
        refused(what, f"'{out}' is an address, not a path")
    assert names(tmp_path) == []


def test_the_home_of_a_person_is_found_and_a_missing_one_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/x") == tmp_path / "x"
    assert user_path("a/~") == Path("a/~")
    make_run(tmp_path / "run")
    assert read_record("~/run") == read_record(tmp_path / "run")
    (tmp_path / "text.txt").write_text("abc " * 200)
    made = job.new_job(check(TrainConfig(out="~/new", data=("~/text.txt",))))
    assert made.run == tmp_path / "new"
    made.tokenizer.save(tmp_path / "tokenizer.json")
    again = job.new_job(TrainConfig(data=made.cfg.data, tokenizer="~/tokenizer.json"))
    assert again.tokenizer.fingerprint == made.tokenizer.fingerprint
    assert check(Sources("./pydoc")).data == ("./pydoc",)
    (tmp_path / "my.toml").write_text("steps = 7")
    assert layered({}, file="~/my.toml").steps == 7
    refused(lambda: user_path("~nobody-of-this-name/x"), "no such home directory")


@pytest.mark.parametrize("bad", ["a\0b", "\0"])
def test_a_nul_in_a_path_is_one_line(bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for what in (
        lambda: job.new_job(TrainConfig(out=bad)),
        lambda: tg.load(bad),
        lambda: tg.train(TrainConfig(), resume=bad),
        lambda: job.new_job(TrainConfig(data=(bad,))),
    ):
        refused(what, "NUL|no file or directory")


def test_a_name_that_is_not_utf8_is_refused_before_any_work(tmp_path, monkeypatch):
    name = os.fsdecode(b"caf\xe9")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "load_text", None)
    (tmp_path / f"{name}.txt").write_text("text")
    for cfg in (TrainConfig(out=name), TrainConfig(data=(f"{name}.txt",))):
        refused(lambda cfg=cfg: job.new_job(cfg), "is not UTF-8, as the names of runs must be")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("-", "stdin"), ("pydoc", "pydoc"), ("v1.2", "v1.2"), ("v1.2/", "v1.2"), (".", "here"), ("./book.txt", "book"),
        ("book.tar.gz", "book.tar"), ("pipe", "stdin"), ("/dev/null", "stdin"), ("/", "run"), (".hidden", ".hidden"),
    ],
)  # fmt: skip
def test_a_run_is_called_after_its_text(tmp_path, monkeypatch, source, name):
    here = tmp_path / "here"
    (here / "v1.2").mkdir(parents=True)
    os.mkfifo(here / "pipe")
    monkeypatch.chdir(here)
    assert job._default_name(source) == name


def test_a_run_of_a_process_substitution_has_a_name():
    there, back = os.pipe()
    try:
        assert job._default_name(f"/dev/fd/{there}") == "stdin"
    finally:
        os.close(there)
        os.close(back)


def test_room_is_asked_for_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "free_bytes", lambda path: 10**9)
    assert check_room(tmp_path, 10, 10**9) == ""
    assert "need 2,000.0 MB, and" in check_room(tmp_path, 10, 2 * 10**9)
    refused(lambda: check_room(tmp_path, 10**9 + 1, 2 * 10**9), "1,000.0 MB of room, too little for one save")
    assert free_bytes(tmp_path) > 0


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("what", ["iterdir", "is_dir"])
def test_a_place_that_cannot_be_looked_into_is_one_line(tmp_path, monkeypatch, force, what):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, what, refuse)
    refused(lambda: check_out(tmp_path, force), r"cannot make .* \(Permission denied\)")
