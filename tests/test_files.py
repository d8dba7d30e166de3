"""Writing: whole or not at all, through links, into pipes and devices; and nothing in the package writes otherwise."""

import ast
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tinygpt_jax as tg
from tinygpt_jax.config import TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import open_to_append, remove, write_atomically

PACKAGE = Path(tg.__file__).parent


def append(path, data):
    with open_to_append(path) as file:
        file.write(data.decode())


WRITERS = {"whole": write_atomically, "append": append}
writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


def complaint(write, path):
    with pytest.raises(UserError) as caught:
        write(path, b"new")
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def null_device(folder):
    """A null device of the test's own, or a link to the system's; never the system's itself."""
    path = folder / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        with path.open("wb"):  # where folders like this one may hold no devices
            pass
    except OSError:
        path.unlink(missing_ok=True)
        path.symlink_to(os.devnull)
    return path


@writers
def test_a_file_is_made_and_nothing_else_stays(tmp_path, write):
    write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 1


def test_folders_on_the_way_are_made_and_parts_are_joined(tmp_path):
    write_atomically(tmp_path / "b" / "c" / "a", b"one", memoryview(b"two"))
    assert (tmp_path / "b" / "c" / "a").read_bytes() == b"onetwo"


@writers
@pytest.mark.parametrize("chain", [1, 3])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path, write, chain, there):
    (tmp_path / "far").mkdir()
    target = tmp_path / "far" / "target"
    if there:
        target.write_bytes(b"")
    links = [tmp_path / f"link{i}" for i in range(chain)]
    for link, to in zip(links, ["far/target", "link0", "link1"], strict=False):
        link.symlink_to(to)
    write(links[-1], b"new")
    assert all(link.is_symlink() for link in links)
    assert target.read_bytes() == b"new"
    assert list((tmp_path / "far").iterdir()) == [target]


@writers
def test_a_link_into_a_folder_that_is_not_there_makes_it(tmp_path, write):
    (tmp_path / "link").symlink_to("no/where/yet")
    write(tmp_path / "link", b"new")
    assert (tmp_path / "no" / "where" / "yet").read_bytes() == b"new"
    (tmp_path / "folder").symlink_to("folder-to-be")
    write(tmp_path / "folder" / "a", b"new")
    assert (tmp_path / "folder-to-be" / "a").read_bytes() == b"new"


@writers
def test_links_in_a_circle_are_refused(tmp_path, write):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "symbolic links" in complaint(write, tmp_path / "a")
    assert (tmp_path / "a").is_symlink()
    assert (tmp_path / "b").is_symlink()


@writers
def test_a_device_stays_one(tmp_path, write):
    device = null_device(tmp_path)
    link = tmp_path / "link"
    link.symlink_to("null")
    for path in (device, link):
        write(path, b"new")
        assert stat.S_ISCHR(path.stat().st_mode)
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, device]


@writers
def test_a_pipe_is_written_into_and_stays_one(tmp_path, write):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("pipe")
    data = b"x" * 300_000  # more than a pipe holds
    for path in (pipe, link):
        read: list[bytes] = []
        reader_end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reader_end, True)
        with open(reader_end, "rb") as file:
            reader = threading.Thread(target=lambda file=file, read=read: read.append(file.read()))
            write_done = threading.Thread(target=write, args=(path, data))
            write_done.start()
            write_done.join(0.2)  # it has begun, so that the reader does not find an empty pipe
            reader.start()
            write_done.join(30)
            reader.join(30)
        assert read == [data]
        assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(tmp_path.iterdir()) == [link, pipe]


@writers
def test_a_pipe_that_nobody_reads_is_refused_at_once(tmp_path, write):
    os.mkfifo(tmp_path / "pipe")
    assert "nobody reads" in complaint(write, tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@writers
def test_a_folder_and_what_is_below_a_file_are_refused(tmp_path, write):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert "directory" in complaint(write, tmp_path / "folder")
    assert "directory" in complaint(write, tmp_path / "file" / "a")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


@writers
def test_a_place_where_nothing_can_be_made_is_refused(write):
    if not Path("/proc/self").is_dir():
        pytest.skip("no /proc, the one folder where even root cannot make a file")
    complaint(write, Path("/proc/self/tinygpt"))


def test_a_folder_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(Path, "open", deny)
    assert "Permission denied" in complaint(write_atomically, tmp_path / "a")
    monkeypatch.undo()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_replaced_file_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "a"
    path.touch()
    path.chmod(mode)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_reader_sees_all_of_the_old_or_all_of_the_new(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        write_atomically(path, b"new", b" text")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new text"


def test_a_writing_that_fails_leaves_what_was_there_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(TypeError):
        write_atomically(path, b"new", "no bytes")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert path.read_bytes() == b"old"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_root_replaces_stays_its_owners(tmp_path):
    path = tmp_path / "a"
    path.touch()
    os.chown(path, 12345, 23456)
    write_atomically(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


def test_a_new_file_has_the_permissions_that_the_user_has_set(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_removing_takes_links_and_leaves_what_they_lead_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a").touch()
    links = {"file": "far/a", "folder": "far", "nowhere": "missing", "stream": "pipe"}
    (tmp_path / "own").mkdir()
    for name, to in links.items():
        (tmp_path / name).symlink_to(to)
        (tmp_path / "own" / name).symlink_to(f"../{to}")
    for name in (*links, "pipe", "none", "own"):
        remove(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "far", "pipe"]


# What users can name: each writer of the package, on a link, a pipe and a device


def _figure(path):
    from tinygpt_jax.figures.style import new_figure, save_figure

    with new_figure(2, 2, "light") as (figure, _):
        figure.add_subplot().plot([0, 1])
    save_figure(figure, path.with_suffix(""))


def _result(path):
    from tests.figures.made import results

    next(iter(results(2).values())).save(path.with_suffix(""))


def _animation(path):
    from tests.figures.made import results
    from tinygpt_jax.figures.training import animation

    animation(results(1)["over training"], path)


def _weights(path):
    from tinygpt_jax.runs import write_weights

    write_weights(path, {"a": np.zeros(3, np.float32)})


def _record(path):
    from tinygpt_jax.runs import write_record

    write_record(path.parent, TrainConfig(), {})


def _metrics(path):
    from tinygpt_jax.training.metrics import MetricsLog

    with MetricsLog(path.parent, 0, False) as log:
        log.write(1, {"loss": 1.0})


def _tokens(path):
    from tinygpt_jax.text import Tokens, write_tokens

    write_tokens(path, Tokens(np.zeros(3, np.int32), 3, 3), vocab_size=2, fingerprint="00" * 32)


MADE = {
    "a.png": _figure, "a.svg": _figure, "a.gif": _animation, "a.json": _result, "a.csv": _result,
    "model.safetensors": _weights, "run.json": _record, "metrics.jsonl": _metrics, "a.bin": _tokens,
    "tokenizer.json": lambda path: tg.char_tokenizer("ab").save(path),
}  # fmt: skip
made = pytest.mark.parametrize("name", MADE)


@made
def test_every_kind_of_file_is_written_through_a_link(tmp_path, name):
    (tmp_path / "place").mkdir()
    link = tmp_path / "place" / name
    link.symlink_to("../target")
    MADE[name](link)
    assert link.is_symlink()
    assert (tmp_path / "target").stat().st_size > 0


@made
def test_every_kind_of_file_is_written_into_a_device(tmp_path, name):
    null_device(tmp_path).rename(tmp_path / name)
    MADE[name](tmp_path / name)
    assert stat.S_ISCHR((tmp_path / name).stat().st_mode)


@made
def test_every_kind_of_file_is_refused_a_pipe_that_nobody_reads(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match="nobody reads"):
        MADE[name](tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / name).stat().st_mode)


def test_a_report_on_standard_output(tmp_path):
    """`--out /dev/stdout`, a link to a pipe that has no name of its own."""
    code = "import sys; from tinygpt_jax.files import write_atomically; write_atomically('/dev/stdout', b'page')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"page")
    with (tmp_path / "page").open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert (tmp_path / "page").read_bytes() == b"page"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc")
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
@pytest.mark.parametrize("call", ["write_atomically({!r}, b'page')", "open_to_append({!r}).write('page')"])
def test_a_redirected_standard_output_goes_on_where_it_is(tmp_path, name, call):
    (tmp_path / "link").symlink_to("/dev/stdout")
    log = tmp_path / "log"
    log.write_text("before\n")
    code = f"from tinygpt_jax.files import write_atomically, open_to_append; {call.format(name)}"
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, cwd=tmp_path)
        file.write("after\n")
    assert log.read_text() == "before\npageafter\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "log"]


@writers
@pytest.mark.parametrize("length", [229, 230, 255])
def test_a_name_may_be_as_long_as_names_can_be(tmp_path, write, length):
    write(tmp_path / ("n" * length), b"new")
    assert (tmp_path / ("n" * length)).read_bytes() == b"new"


@writers
@pytest.mark.parametrize("name", ["nul\0", "half \ud800"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, write, name):
    with pytest.raises(UserError, match=r"cannot write '.*(nul|half).*' \(no file can have this name\)"):
        write(tmp_path / name, b"new")
    assert not list(tmp_path.iterdir())


# Nothing else in the package writes

MOVES = {"write_text", "write_bytes", "touch", "rename", "unlink", "rmdir", "rmtree", "mkdir", "makedirs", "savefig"}
ALLOWED = {
    ("runtime.py", "mkdir"), ("runtime.py", "unlink"),  # JAX's cache of compiled programs, whose files are JAX's
    ("training/claims.py", "mkdir"),  # the first name that is free, so never a link
    ("figures/style.py", "savefig"),  # into memory
}  # fmt: skip


def writes(file):
    """Names of calls that write, or may."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        owner = getattr(getattr(node.func, "value", None), "id", "")
        reads = owner == "shutil" and name.startswith("get_")
        if name in MOVES or (owner == "os" and name == "replace") or (owner == "shutil" and not reads):
            yield name
        modes = [a.value for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, ast.Constant)]
        if name == "open" and any(isinstance(m, str) and set(m) & set("wax+") and len(m) < 4 for m in modes):
            yield name


def test_every_writer_is_the_one_in_files():
    found = {
        (file.relative_to(PACKAGE).as_posix(), name)
        for file in PACKAGE.rglob("*.py")
        if file.name != "files.py"
        for name in writes(file)
    }
    assert found == ALLOWED


def test_another_writer_would_be_seen(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("Path(a).write_text('')\nopen(a, 'w')\nos.replace(a, b)\npath.open(mode='ab')\nopen(a, 'rb')\n")
    assert list(writes(file)) == ["write_text", "open", "replace", "open"]
