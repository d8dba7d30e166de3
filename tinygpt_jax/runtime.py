"""How this process runs: its allocator, its caches, its signals. Called at the edge; nothing here changes a result."""

import contextlib
import ctypes
import io
import os
import platform
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

COMPILED = "compiled"
CACHE_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.2,  # a run compiles dozens of programs, most in less
    "jax_compilation_cache_max_size": 2**30,  # bytes; the entries not used for longest make room
}

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
SIGNALS = tuple(int(getattr(signal, name)) for name in _ENDING if hasattr(signal, name))
"""Those that ask a process to end: Ctrl-C, a supervisor, a closed terminal, a cluster's warnings."""


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


def missing_backend() -> str | None:
    """What to do about a kind of device that JAX was told to use and this machine lacks; None where that is not so."""
    jax, asked = sys.modules.get("jax"), os.environ.get("JAX_PLATFORMS", "")
    if jax is None or not asked:
        return None
    try:
        jax.devices()
    except Exception:  # jax 0.10 raises an AssertionError without words, others a RuntimeError
        return f"JAX_PLATFORMS is {asked!r}, which JAX finds no device or driver for here: unset it, or install them"
    return None


def random_key(seed: Any) -> Any:
    """`jax.random.key(seed)` of the kind that the package's seeds stand for, whatever JAX_DEFAULT_PRNG_IMPL says."""
    import jax

    return jax.random.key(seed, impl="threefry2x32")


NUMBERS = (
    "jax_threefry_partitionable",
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_random_seed_offset",
)
"""Settings of JAX that can change the numbers a seed gives."""


def numerics() -> dict[str, Any]:
    """What the numbers that a seed gives depend on besides versions and the device: settings of JAX and XLA."""
    import jax

    settings = {name: getattr(jax.config, name) for name in NUMBERS if hasattr(jax.config, name)}
    return {**settings, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}


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


class Messages(io.TextIOBase):
    """A stream for what is said on the way, over one that may be missing, closed, full or of few characters.

    What cannot be written is dropped, and the work goes on: it is more than the words about it. A character that the
    stream's encoding lacks becomes its escape.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        with contextlib.suppress(ValueError):  # closed
            return bool(getattr(self._stream, "isatty", lambda: False)())
        return False

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        self._try(lambda stream: stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding)))
        return len(text)

    def flush(self) -> None:
        self._try(lambda stream: getattr(stream, "flush", lambda: None)())  # a writer may have none

    def _try(self, act: Callable[[TextIO], object]) -> None:
        try:
            if self._stream is not None:
                act(self._stream)
        except (OSError, ValueError):  # its reader is gone, its disk is full, it is closed
            self._stream = None


def keep_standard_streams() -> None:
    """Has a process that was started without standard input, output or error do without.

    Their numbers are taken, so that no file that is opened later is written to as if it were one of them. Input is
    empty, writing to output fails, messages are dropped; so they are from the moment they cannot be written.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest number that is free, which is this one
    sys.stdin = sys.stdin or io.TextIOWrapper(io.FileIO(0), encoding="utf-8")
    sys.stdout = sys.stdout or io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stderr = Messages(sys.stderr)


HURRY_SECONDS = 1.0
"""So long after the first signal a Ctrl-C is one more request, and no echo of the first."""


class _Stop:
    """The signals that came while something could be saved, once it was asked for them."""

    def __init__(self) -> None:
        self.asked, self.signals, self.first = False, list[int](), 0.0

    def __call__(self) -> int:
        self.asked = True
        return self.signals[0] if self.signals else 0

    def take(self, number: int) -> bool:
        """Whether the signal can wait until it is asked for. Others on top of it do too, since terminals, shells and
        service managers send several at once; only Ctrl-C again, a while later, does not."""
        self.first = self.first or time.monotonic()
        again = number == signal.SIGINT and time.monotonic() - self.first > HURRY_SECONDS
        self.signals.append(number)
        return self.asked and not again


_stops: list[_Stop] = []
_watched: list[int] = []
"""The pipe that a watching thread reads, once there is one."""


def end_on_signals() -> None:
    """From now on SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 end this process at once, with status 128 + the signal's
    number, unless `stop_on_signals` has it wait.

    A thread sees to it, so that no import, compiler or tokenizer that has the main thread can delay or lose a signal.
    One that is ignored (SIGHUP under nohup) stays ignored; SIGINT, which shells ignore for what they start in the
    background, does not.
    """
    if not _watched:
        _watched[:] = os.pipe()
        os.set_blocking(_watched[1], False)
        signal.set_wakeup_fd(_watched[1], warn_on_full_buffer=False)
        threading.Thread(target=_watch, args=(_watched[0],), daemon=True).start()
    for number in SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)  # with it, the number is written into the pipe


def _watch(pipe: int) -> None:
    while True:
        for number in os.read(pipe, 64):
            if number in SIGNALS and not (_stops and _stops[-1].take(number)):
                with contextlib.suppress(OSError):
                    shown = b"\x1b[?25h" if os.isatty(2) else b""  # a progress bar hides the cursor
                    os.write(2, shown + b"interrupted\n")
                os._exit(128 + number)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], int]]:
    """A function that gives the number of the first signal that came (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2), 0
    where none did.

    A signal waits for it only from its first call on: before, nothing could be saved, and a signal interrupts at once;
    so does Ctrl-C once more than `HURRY_SECONDS` after it. Outside the main thread, where Python handles no signals, it
    always gives 0.
    """
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def listen(number: int, frame: object) -> None:
        if not stop.take(number):
            raise KeyboardInterrupt

    numbers = [] if _watched else [n for n in SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, listen) for number in numbers}
    _stops.append(stop)
    try:
        yield stop
    finally:
        _stops.remove(stop)
        for number, handler in before.items():
            signal.signal(number, handler)
