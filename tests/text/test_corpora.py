import hashlib
import io
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from tinygpt_jax.checks import check
from tinygpt_jax.config import Sources, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.text import cache_dir, corpora, load_text, plain, read_text, text_fingerprint


def put(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def complaint(*sources: str) -> str:
    with pytest.raises(UserError) as caught:
        load_text(sources)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_are_joined_in_order(tmp_path):
    one, two = put(tmp_path / "1", b"one\n"), put(tmp_path / "2", b"two\r\n")
    assert load_text([two, one, two]) == "two\r\none\ntwo\r\n"
    assert load_text(one) == load_text([Path(one)]) == "one\n"


ENDS = {b"one": "\n", b"one ": "\n", b"one\n": "", b"one\r": "", b"one\r\n": ""}


@pytest.mark.parametrize(("first", "between"), ENDS.items())
def test_two_texts_side_by_side_keep_a_boundary(tmp_path, monkeypatch, first, between):
    """The last word of a text never runs into the first of the next, wherever the two come from."""
    one, two = put(tmp_path / "top" / "1", first), put(tmp_path / "top" / "2", b"two")
    put(tmp_path / "top" / "1a", b"")  # a text of nothing is none
    want = first.decode() + between + "two"
    assert load_text([one, two]) == load_text([str(tmp_path / "top")]) == want
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(first)))
    assert load_text(["-", two]) == want
    assert load_text([two]) == "two", "a text alone stays as it is"


def test_line_ends_stay_and_marks_go(tmp_path):
    mark = b"\xef\xbb\xbf"
    one = put(tmp_path / "1", mark + b"a\r\nb\rc\n" + mark)
    assert load_text([one, one]) == "a\r\nb\rc\n\ufeff\na\r\nb\rc\n\ufeff"


def test_directory_is_walked_in_path_order_without_what_is_hidden(tmp_path):
    kept = ("b.txt", "a/z.md", "a.txt", "a/deep/x")
    for name in (
        *kept,
        ".hidden",
        ".git/config",
        "a/.git/config",
        ".svn/x",
        "a/CVS/Root",
        "_darcs/hashed",
        ".venv/lib/x",
    ):
        put(tmp_path / "top" / name, name.encode() + b"\n")
    (tmp_path / "top" / "broken").symlink_to(tmp_path / "nowhere")
    assert load_text([str(tmp_path / "top")]).split() == ["a.txt", "a/deep/x", "a/z.md", "b.txt"]
    assert load_text([str(tmp_path / "top" / ".hidden")]) == ".hidden\n", "what is named by itself is read"
    assert load_text([str(tmp_path / "top" / ".git")]) == ".git/config\n"


def test_what_is_no_text_is_skipped_in_a_directory_and_counted_in_one_line(tmp_path, capsys):
    put(tmp_path / "a", b"")
    put(tmp_path / "b", b"text")
    assert load_text([str(tmp_path)]) == "text"
    assert capsys.readouterr().err == ""
    binary = {
        "__pycache__/b.cpython-311.pyc": b"\xa7\r\r\n\0",
        "c.png": b"\x89PNG\r\n",
        "d.bin": b"x" * 200_000 + b"\0",
    }
    binary |= {"latin.txt": b"caf\xe9", "utf16.txt": "text".encode("utf-16")}
    for name, data in binary.items():
        put(tmp_path / name, data)
    told: list[str] = []
    put(tmp_path / "sub" / "more", b"more")
    assert load_text([str(tmp_path), str(tmp_path / "sub")], tell=told.append) == "text\nmore\nmore"
    first = ", ".join(str(tmp_path / name) for name in ("__pycache__/b.cpython-311.pyc", "c.png", "d.bin"))
    assert told[0] == f"skipped 5 files that are no text: {first}, …"
    load_text([str(tmp_path)])
    assert capsys.readouterr() == ("", told[0] + "\n")
    load_text([str(tmp_path)], tell=None)
    assert capsys.readouterr() == ("", "")
    (tmp_path / "c.png").rename(tmp_path / "c\n.png")
    load_text([str(tmp_path)], tell=told.append)
    assert "\n" not in told[-1]


@pytest.mark.parametrize("name", ["c.png", "latin.txt"])
def test_what_is_no_text_is_refused_where_it_is_named(tmp_path, name):
    put(tmp_path / "c.png", b"\x89PNG\0")
    put(tmp_path / "latin.txt", b"caf\xe9")
    assert ("NUL at byte 4" if name == "c.png" else "offset 3") in complaint(str(tmp_path / name))


TREE = ("a.md", "b.txt", "docs/a.md", "docs/api/c.md", "docs/api/d.txt", "drafts/a.md")


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        ((), (), TREE),
        (("*.md",), (), ("a.md", "docs/a.md", "docs/api/c.md", "drafts/a.md")),
        (("*.md", "*.txt"), ("drafts",), ("a.md", "b.txt", "docs/a.md", "docs/api/c.md", "docs/api/d.txt")),
        ((), ("docs/", "dr*"), ("a.md", "b.txt")),
        ((), ("docs/api",), ("a.md", "b.txt", "docs/a.md", "drafts/a.md")),
        ((), ("top/docs/api",), ("a.md", "b.txt", "docs/a.md", "drafts/a.md")),
        (("docs/api",), (), ("docs/api/c.md", "docs/api/d.txt")),
        (("./docs/*.md",), (), ("docs/a.md", "docs/api/c.md")),
        (("**/*.txt",), (), ("b.txt", "docs/api/d.txt")),
        (("[ab].*",), ("docs/a.md",), ("a.md", "b.txt", "drafts/a.md")),
        (("*.MD",), ("*",), ()),
        (("*.rst",), (), ()),
    ],
)
def test_patterns_say_which_files_of_a_directory_are_read(tmp_path, monkeypatch, include, exclude, left):
    for name in TREE:
        put(tmp_path / "top" / name, name.encode() + b"\n")
    monkeypatch.chdir(tmp_path)
    sources = Sources(("top",), include, exclude)
    if left:
        assert load_text(sources).split() == list(left)
        return
    with pytest.raises(UserError, match="'top' holds no text: .* left out by --include and --exclude"):
        load_text(sources)


def test_patterns_hold_for_files_named_by_themselves_too(tmp_path, monkeypatch):
    """So that a shell may spell out *.txt."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "draft.txt"):
        put(tmp_path / "build" / name, name.encode() + b"\n")
    names = tuple(f"build/{name}" for name in ("a.txt", "b.txt", "draft.txt"))
    assert load_text(Sources(names, exclude=("draft*", "build"))) == "a.txt\nb.txt\n"
    with pytest.raises(UserError, match="nothing is left .*build/draft.txt.* exclude"):
        load_text(Sources(names[2:], exclude=("draft.txt",)))


@pytest.mark.parametrize("patterns", [{"include": ("*.txt",)}, {"exclude": ("typo",)}])
def test_a_source_that_is_not_there_is_said_before_patterns_are_asked(tmp_path, monkeypatch, patterns):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "m2" / "a.txt", b"text")
    with pytest.raises(UserError, match="no file or directory 'typo'"):
        load_text(Sources(("m2", "typo"), **patterns))


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        ({}, ["holds no text"]),
        ({"a.png": b"\0", "b.png": b"\xff"}, ["holds no text", "2 are no text", "a.png", "b.png"]),
        ({"a.txt": b" \n", "b.txt": b""}, ["holds no text"]),
        (
            {"a.png": b"\0", "b.md": b"text"},
            ["holds no text", "1 is no text", "1 is left out by --include and --exclude"],
        ),
    ],
)
def test_a_directory_of_which_nothing_is_left_is_one_line(tmp_path, files, parts):
    (tmp_path / "top").mkdir()
    for name, data in files.items():
        put(tmp_path / "top" / name, data)
    told: list[str] = []
    with pytest.raises(UserError) as caught:
        load_text(Sources((str(tmp_path / "top"),), exclude=("*.md",)), tell=told.append)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in [str(tmp_path / "top"), *parts]), message
    assert told == []


def test_patterns_may_empty_one_source_of_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "pages" / "a.md", b"page")
    put(tmp_path / "code" / "a.py", b"code")
    put(tmp_path / "b.py", b"more")
    for data in (("pages", "code"), ("code", "pages", "b.py")):
        assert load_text(Sources(data, include=("*.md",))) == "page"
    assert load_text(Sources(("pydoc", "code"), include=("*.py",))) == load_text(["pydoc", "code"])
    with pytest.raises(UserError, match=r"nothing is left of .*'pages' holds no text.*'code' holds no text"):
        load_text(Sources(("pages", "code", "b.py"), include=("*.rst",)))


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (["runs/killed/tokenizer.json"], "1 is hidden, of version control or of a run"),
        ([".a", ".git/config"], "2 are hidden, of version control or of a run"),
        (["runs/one/run.json", "runs/one/tokenizer.json"], "1 is hidden, of version control or of a run"),
        (["drafts/a", "drafts/b"], "1 is left out by --include and --exclude"),
    ],
)
def test_a_directory_of_nothing_to_read_says_why(tmp_path, names, part):
    for name in names:
        put(tmp_path / name, b"text")
    with pytest.raises(UserError) as caught:
        load_text(Sources((str(tmp_path),), exclude=("drafts",)))
    assert part in str(caught.value)
    assert "white space" not in str(caught.value)


@pytest.mark.parametrize("data", [("pydoc",), ("-", "shakespeare")])
@pytest.mark.parametrize("patterns", [{"include": ("*.md",)}, {"exclude": ("drafts",)}])
def test_patterns_for_what_is_no_file_are_refused(data, patterns):
    with pytest.raises(UserError, match="are for files and folders, data is"):
        load_text(Sources(data, **patterns))


@pytest.mark.parametrize("which", ["include", "exclude"])
@pytest.mark.parametrize("config", [Sources, TrainConfig])
def test_an_empty_pattern_is_refused(which, config):
    with pytest.raises(UserError, match=f"{which} is .*: an empty pattern"):
        check(config(**{which: ("*.md", "")}))


def test_a_run_that_lies_in_the_directory_is_not_read(tmp_path, monkeypatch):
    """A training on the directory at hand leaves its run in it, and is resumed there."""
    put(tmp_path / "a.txt", b"text")
    for name in ("run.json", "tokenizer.json", "samples.txt", "plots/training.svg"):
        put(tmp_path / "runs" / "notes" / name, b"{}")
    # One that was killed before its run.json was written, and one that has just been claimed.
    for name in ("tokenizer.json", "metrics.jsonl", "checkpoints/0/state"):
        put(tmp_path / "runs" / "killed" / name, b"{}")
    (tmp_path / "runs" / "claimed").mkdir()
    put(tmp_path / "own" / "run.json", b"mine\n")
    put(tmp_path / "hub" / "tokenizer.json", b"{}\n")
    put(tmp_path / "hub" / "model card.md", b"# card\n")
    monkeypatch.chdir(tmp_path)
    assert load_text(".") == "text\n# card\n{}\nmine\n"


def test_the_cache_is_not_read_where_it_lies_in_the_directory(tmp_path, monkeypatch):
    put(tmp_path / "a.txt", b"text")
    put(tmp_path / "cache" / "tinyshakespeare.txt", b"First Citizen")
    monkeypatch.setenv("TINYGPT_CACHE", str(tmp_path / "cache"))
    assert load_text(str(tmp_path)) == "text"
    (tmp_path / "by link").symlink_to(tmp_path)
    assert load_text(str(tmp_path / "by link")) == "text"


def test_links_in_a_circle_and_pipes_below_a_directory_keep_nobody_waiting(tmp_path):
    put(tmp_path / "top" / "a", b"text")
    (tmp_path / "top" / "self").symlink_to(tmp_path / "top")
    (tmp_path / "top" / "x").symlink_to("y")
    (tmp_path / "top" / "y").symlink_to("x")
    os.mkfifo(tmp_path / "top" / "pipe")
    told: list[str] = []
    assert load_text(str(tmp_path / "top"), tell=told.append) == "text"
    assert told == [], "what the links lead to is read by its own name"
    assert "no file or directory" in complaint(str(tmp_path / "top" / "x"))


def test_links_to_folders_elsewhere_are_said_not_followed(tmp_path):
    top = tmp_path / "top"
    put(top / "a", b"text")
    put(top / "drafts" / "b", b"more")
    put(tmp_path / "books" / "c", b"book")
    for name in ("books", "drafts/books", "z\nz", ".hidden"):
        (top / name).symlink_to(tmp_path / "books")
    (top / "up").symlink_to(tmp_path)
    told: list[str] = []
    assert load_text(Sources((str(top),), exclude=("up",)), tell=told.append) == "text\nmore"
    links = f"{top}/books, {top}/drafts/books, {str(top) + '/z' + chr(10) + 'z'!r}"
    assert told == [f"did not follow 3 links to folders: {links}; to have the text there read, name the folder as well"]
    assert load_text([str(top), str(top / "books")], tell=told.append) == "text\nmore\nbook"
    (top / "a").unlink()
    (top / "drafts" / "b").unlink()
    assert "1 is left out by --include and --exclude" not in complaint(str(top))
    assert "4 are linked, which is not followed" in complaint(str(top))


def test_a_text_that_is_given_twice_is_said_whatever_its_names(tmp_path, monkeypatch):
    """Its last tenth, which is validated on, would be in the part that is trained on."""
    one, two = put(tmp_path / "one", b"To be\n"), put(tmp_path / "two", b"or not\n")
    (tmp_path / "link").symlink_to(one)
    os.link(one, tmp_path / "hard")
    put(tmp_path / "copy", b"To be\n")
    put(tmp_path / "white", b" \n")
    put(tmp_path / "white too", b" \n")
    monkeypatch.chdir(tmp_path)
    for again in (one, "one", "./one", "link", "hard", "copy", str(tmp_path / "two" / ".." / "one")):
        if not os.path.exists(again):
            continue
        told: list[str] = []
        load_text([one, two, again], tell=told.append)
        (line,) = told
        assert "one text is given more than once" in line
        assert again in line
        assert "may have been trained on" in line
    told.clear()
    load_text(".", tell=told.append)
    assert told == [
        "3 texts are given more than once (hard = copy, link = copy, one = copy): "
        "what is validated on may have been trained on"
    ]
    told.clear()
    load_text([one, two], tell=told.append)
    assert told == []


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/full", "/dev/null"])
@pytest.mark.parametrize("read", [load_text, read_text])
def test_a_device_is_refused_before_anything_is_read(device, read, tmp_path):
    (tmp_path / "by link").symlink_to(device)
    for name in (device, str(tmp_path / "by link")):
        with pytest.raises(UserError, match="is a device, which may never end"):
            read(name)


class Endless(io.RawIOBase):
    """Text without end, which counts how much of it was read."""

    size = 0

    def readable(self):
        return True

    def readinto(self, buffer):
        buffer[:] = b"y" * len(buffer)
        self.size += len(buffer)
        return len(buffer)


def test_what_never_ends_is_read_as_far_as_memory_allows(monkeypatch, tmp_path):
    memory = 100 * plain.PART_BYTES
    monkeypatch.setattr(plain, "host_memory", lambda: memory)
    endless = Endless()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(endless)))
    message = complaint("-")
    assert "standard input, 36 MB so far, takes" in message
    assert "give less text" in message
    assert endless.size <= memory / plain.TIMES + 3 * plain.PART_BYTES
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen(["sh", "-c", f"yes > '{tmp_path}/pipe'"])
    assert "pipe, 36 MB so far, takes" in complaint(str(tmp_path / "pipe"))
    assert writer.wait(20)


def test_a_file_and_files_together_that_memory_cannot_hold_are_refused_before_they_are_read(monkeypatch, tmp_path):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 43)  # sparse
    monkeypatch.setattr(plain, "_read_all", None)
    assert "large, 8,796,093 MB so far, takes" in complaint(str(tmp_path / "large"))
    monkeypatch.undo()
    monkeypatch.setattr(plain, "host_memory", lambda: 10_000)
    names = [put(tmp_path / f"{i}", b"x" * 1000) for i in range(9)]
    assert load_text(names[:2], tell=None)
    assert "text, 0 MB so far, takes" in complaint(*names)


def test_a_pipe_is_read_to_its_end(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen(["sh", "-c", f"printf text > '{tmp_path}/pipe'"])
    assert load_text(str(tmp_path / "pipe")) == "text"
    assert writer.wait(20) == 0
    read, write = os.pipe()
    os.write(write, b"more")
    os.close(write)
    assert load_text(f"/dev/fd/{read}") == "more"
    os.close(read)


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b"caf\xe9 au lait", ["is not UTF-8", "0xe9 at offset 3", "iconv"]),
        (b"\xef\xbb\xbfab\xff", ["offset 5"]),
        (b"cut \xe2\x82", ["offset 4"]),
        (b"surrogate \xed\xa0\x80", ["offset 10"]),
        (b"abc\0def", ["looks binary", "byte 3"]),
        (b"", ["holds no text"]),
        (b" \r\n\t", ["holds no text"]),
    ],
)
def test_bad_bytes_are_refused_with_their_place(tmp_path, data, parts):
    message = complaint(name := put(tmp_path / "some.txt", data))
    assert all(part in message for part in [name, *parts]), message


def test_missing_file_suggests_the_nearest_name(tmp_path, monkeypatch):
    put(tmp_path / "corpus.txt", b"x")
    assert repr(str(tmp_path / "corpus.txt")) in complaint(str(tmp_path / "corpsu.txt"))
    monkeypatch.chdir(tmp_path)
    assert "did you mean 'corpus.txt'?" in complaint("corpus.tx")
    assert "did you mean 'shakespeare'?" in complaint("shakespear")
    assert "pydoc, shakespeare" in complaint("/no/such/place/at/all")
    assert "no text was named" in complaint()


@pytest.mark.parametrize("name", ["To be, or not to be" * 100, "nul\0", ""])
def test_names_no_file_can_have(name):
    assert ("no file can have this name" if "\0" in name else "no file or directory") in complaint(name)


def test_unreadable_file(tmp_path, monkeypatch):
    def deny(path, mode):
        raise PermissionError(13, "Permission denied", str(path))

    name = put(tmp_path / "secret", b"x")
    monkeypatch.setattr(Path, "open", deny)
    assert "secret (Permission denied); check" in complaint(name)


def test_unlistable_directory(tmp_path, monkeypatch):
    def walk(top, onerror):
        onerror(PermissionError(13, "Permission denied", str(top)))

    monkeypatch.setattr(os, "walk", walk)
    assert "cannot list" in complaint(str(tmp_path))


def test_standard_input_is_read_as_bytes(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a\r\n\xc3\xa9")))
    assert load_text(["-"]) == "a\r\n\xe9"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xe9")))
    assert "standard input is not UTF-8" in complaint("-")


def test_pydoc_is_the_reference_and_a_file_of_that_name_is_reached_by_path(tmp_path, monkeypatch):
    text = load_text(["pydoc"])
    assert len(text) > 300_000
    assert 'The "assert" statement' in text
    put(tmp_path / "pydoc", b"mine")
    monkeypatch.chdir(tmp_path)
    assert load_text(["pydoc"]) == text
    assert load_text(["./pydoc"]) == "mine"


def test_fingerprint_is_of_the_bytes():
    assert text_fingerprint("é\r\n") == hashlib.sha256(b"\xc3\xa9\r\n").hexdigest()
    with pytest.raises(UserError, match="lone surrogate"):
        text_fingerprint("\udcff")


def test_cache_dir_goes_by_the_environment(monkeypatch):
    monkeypatch.setenv("TINYGPT_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_dir() == Path("/own")
    monkeypatch.setenv("TINYGPT_CACHE", "")
    assert cache_dir() == Path("/xdg/tinygpt_jax")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path("/home/me/.cache/tinygpt_jax")


@pytest.mark.parametrize("own", ["", "~no-such-user/cache"])
def test_a_user_without_a_home_has_no_cache_and_works(monkeypatch, own):
    """As the user of a container whom neither HOME nor the list of users knows."""
    monkeypatch.setenv("TINYGPT_CACHE", own)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987654)
    assert cache_dir() is None
    assert load_text("pydoc")
    with pytest.raises(UserError, match="TINYGPT_CACHE"):
        load_text("shakespeare")


class Web:
    """A web of one page, which counts its visits."""

    def __init__(self, monkeypatch, page):
        self.page, self.visits = page, 0
        monkeypatch.setattr(urllib.request, "urlopen", self.open)

    def open(self, url, timeout):
        assert url == corpora.SHAKESPEARE_URL
        assert timeout > 0
        self.visits += 1
        if isinstance(self.page, Exception):
            raise self.page
        return io.BytesIO(self.page)


@pytest.mark.parametrize("failure", [urllib.error.URLError("no route"), TimeoutError("timed out")])
def test_shakespeare_offline_says_how_to_go_on(monkeypatch, cache, failure):
    Web(monkeypatch, failure)
    message = complaint("shakespeare")
    assert "cannot fetch shakespeare" in message
    assert "pass a text file" in message
    assert not list(cache.iterdir())


def test_shakespeare_with_a_wrong_checksum_is_refused_and_not_kept(monkeypatch, cache):
    Web(monkeypatch, b"<html>log in first</html>")
    assert "wrong SHA-256" in complaint("shakespeare")
    assert not list(cache.iterdir())


def test_shakespeare_is_fetched_once_and_again_only_if_the_copy_is_damaged(monkeypatch, cache):
    page = b"First Citizen:\n"
    monkeypatch.setattr(corpora, "SHAKESPEARE_SHA256", hashlib.sha256(page).hexdigest())
    web = Web(monkeypatch, page)
    assert load_text(["shakespeare"]) == load_text(["shakespeare"]) == page.decode()
    assert web.visits == 1
    (kept,) = cache.iterdir()
    kept.write_bytes(page[:-1])
    assert load_text(["shakespeare"]) == page.decode()
    assert web.visits == 2


def test_shakespeare_checksum_and_size_are_those_of_the_real_file(monkeypatch, shakespeare):
    assert len(shakespeare) == corpora.SHAKESPEARE_BYTES
    Web(monkeypatch, shakespeare)
    assert load_text(["shakespeare"]) == shakespeare.decode()


def test_the_room_needs_numpy_only():
    code = "import tinygpt_jax.text; print(*sys.modules)"
    # An empty package stands in for the face, whose imports are not this room's.
    stub = "import sys, types; m = types.ModuleType('tinygpt_jax'); m.__path__ = [%r]; sys.modules['tinygpt_jax'] = m; "
    package = Path(corpora.__file__).parents[1]
    command = [sys.executable, "-c", stub % str(package) + code]
    loaded = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert loaded >= {"tinygpt_jax.text", "numpy"}
    assert not loaded & {"jax", "tokenizers", "urllib.request"}
