"""How the C library treats what weights and images are received in and freed from again."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_TRIM_BYTES, _MMAP_BYTES = 64 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Keep up to 64 MB of freed memory per arena instead of giving it back at once.

    A message of some MB passes through four buffers on its way in. Fetching their pages from the
    kernel again, for each message, was half of what it cost the process (measured: 5 MB, glibc
    2.36). Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
