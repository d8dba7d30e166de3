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

from tinygpt_jax.errors import UserError
from tinygpt_jax.text import cache_dir, corpora, load_text, text_fingerprint


def put(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def complaint(*sources: str) -> str:
    with pytest.raises(UserError) as caught:
        load_text(sources)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_are_joined_in_order_with_nothing_between(tmp_path):
    one, two = put(tmp_path / "1", b"one"), put(tmp_path / "2", b"two")
    assert load_text([two, one, two]) == "twoonetwo"
    assert load_text(one) == load_text([Path(one)]) == "one"


def test_line_ends_stay_and_marks_go(tmp_path):
    mark = b"\xef\xbb\xbf"
    one = put(tmp_path / "1", mark + b"a\r\nb\rc\n" + mark)
    assert load_text([one, one]) == "a\r\nb\rc\n\ufeff" * 2


def test_directory_is_walked_in_path_order_without_what_is_hidden(tmp_path):
    for name in ("b.txt", "a/z.md", "a.txt", "a/deep/x", ".hidden", ".git/config", "a/.git/config"):
        put(tmp_path / "top" / name, name.encode() + b"\n")
    (tmp_path / "top" / "broken").symlink_to(tmp_path / "nowhere")
    assert load_text([str(tmp_path / "top")]).split() == ["a.txt", "a/deep/x", "a/z.md", "b.txt"]


def test_directory_with_an_empty_file_is_fine_and_with_a_binary_one_is_not(tmp_path):
    put(tmp_path / "a", b"")
    put(tmp_path / "b", b"text")
    assert load_text([str(tmp_path)]) == "text"
    put(tmp_path / "c", b"\x89PNG\0")
    assert "c looks binary: NUL at byte 4" in complaint(str(tmp_path))


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
    assert "no file or directory" in complaint(name)


def test_unreadable_file(tmp_path, monkeypatch):
    def deny(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", deny)
    assert "secret (Permission denied); check" in complaint(put(tmp_path / "secret", b"x"))


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
    code = "import sys, tinygpt_jax.text; assert not {'jax', 'tokenizers', 'urllib.request'} & set(sys.modules)"
    # An empty package stands in for the face, whose imports are not this room's.
    stub = "import sys, types; m = types.ModuleType('tinygpt_jax'); m.__path__ = [%r]; sys.modules['tinygpt_jax'] = m; "
    package = Path(corpora.__file__).parents[1]
    subprocess.run([sys.executable, "-c", stub % str(package) + code], check=True)
