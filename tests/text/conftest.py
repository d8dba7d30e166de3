"""What several tests of text share."""

from pathlib import Path

import pytest

SHAKESPEARE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "tinyshakespeare.txt"


@pytest.fixture(scope="session")
def shakespeare() -> bytes:
    if not SHAKESPEARE.is_file():
        pytest.skip("tinyshakespeare.txt is not beside this checkout, in shared/data")
    return SHAKESPEARE.read_bytes()


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of each test's own, empty and there: some of these tests look at what is in it."""
    path = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TINYGPT_CACHE", str(path))
    return path
