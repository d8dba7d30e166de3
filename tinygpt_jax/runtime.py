"""How this process runs: its allocator and its signals. Called at the edge; nothing here changes a result."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import signal
import threading
from collections.abc import Callable, Iterator


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


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Turns the first SIGINT or SIGTERM into a flag to be asked; a second SIGINT interrupts at once.

    Outside the main thread, where Python lets nobody listen, the flag stays down.
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
