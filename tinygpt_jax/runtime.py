"""How this process runs: its allocator, its caches, its signals. Called at the edge; nothing here changes a result."""

import contextlib
import ctypes
import os
import platform
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COMPILED = "compiled"
CACHE_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.2,  # a run compiles dozens of programs, most in less
    "jax_compilation_cache_max_size": 2**30,  # bytes; the entries not used for longest make room
}


def keep_freed_pages() -> bool:
    """Asks glibc to keep freed memory instead of handing it back to the kernel; returns whether it could be asked.

    A step's temporary buffers are freed after every dispatch, and fetching their pages anew cost about a third of a
    small model's step. Effective only for what is allocated afterwards.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
    return bool(libc.mallopt(m_mmap_max, 0) and libc.mallopt(m_trim_threshold, 2**31 - 1))


def cache_dir() -> Path | None:
    """Where downloads, token files and compiled programs are kept; None for a user without a home to keep them in.

    `$TINYGPT_CACHE`, else `$XDG_CACHE_HOME/tinygpt_jax`, else `~/.cache/tinygpt_jax`. It may be deleted at any time.
    """
    try:
        if own := os.environ.get("TINYGPT_CACHE"):
            return Path(own).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tinygpt_jax"
    except RuntimeError:  # as for the user of a container that neither $HOME nor the list of users knows
        return None


def use_compilation_cache() -> Path | None:
    """Has JAX keep compiled programs in `cache_dir() / "compiled"`, up to 1 GiB, for later processes; returns where.

    A `jax_compilation_cache_dir` of the user's own stays, and `JAX_ENABLE_COMPILATION_CACHE=false` turns all of it off.
    None where there is no cache: turned off, or in a place that cannot be written. A cache never stops work: an entry
    that cannot be read is compiled again.
    """
    import jax

    config: Any = jax.config  # its options are made at run time, where no type checker looks
    if not config.jax_enable_compilation_cache:
        return None
    if not config.jax_compilation_cache_dir:
        directory = cache_dir()
        if not directory or not _mend(path := directory / COMPILED):
            return None
        config.update("jax_compilation_cache_dir", str(path))
        for name, value in CACHE_SETTINGS.items():
            if name.upper() not in os.environ:
                config.update(name, value)
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache", UserWarning)
    return Path(config.jax_compilation_cache_dir)


def _mend(path: Path) -> bool:
    """Whether a cache can be kept there; takes out what a writer that was killed left behind.

    JAX (0.10, 0.12) writes an entry under a lock, the time of its last use after it. An entry without a time was cut
    short: it would never be replaced, and in 0.10 no other would be written again.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.environ.get("JAX_COMPILATION_CACHE_MAX_SIZE") == "-1":  # then whole entries have no times either
            return True
        import filelock  # which JAX needs to keep the cache from growing for ever, and two writers apart

        with filelock.FileLock(path / ".lockfile", timeout=10):
            times = {file.name.removesuffix("-atime") for file in path.glob("*-atime")}
            for entry in path.glob("*-cache"):
                if entry.name.removesuffix("-cache") not in times:
                    entry.unlink()
    except (ImportError, OSError, NotImplementedError):  # filelock's timeout is an OSError too
        return False
    return True


@contextlib.contextmanager
def cache_hits() -> Iterator[list[str]]:
    """A list that gets one item for each program this thread loads from the compilation cache instead of compiling."""
    from jax import monitoring

    hits: list[str] = []
    thread = threading.get_ident()

    def listen(event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/cache_hits" and threading.get_ident() == thread:
            hits.append(event)

    monitoring.register_event_listener(listen)
    try:
        yield hits
    finally:
        monitoring.unregister_event_listener(listen)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """A function that says whether a SIGINT or SIGTERM came; a second SIGINT interrupts at once.

    Outside the main thread, where Python handles no signals, it always says no.
    """
    asked: list[int] = []

    def listen(number: int, frame: object) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, listen) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
