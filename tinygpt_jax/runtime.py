"""How this process runs: its allocator. Called at the edge, before JAX allocates; nothing here changes a result."""

from __future__ import annotations

import ctypes
import platform


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
