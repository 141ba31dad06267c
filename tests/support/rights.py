"""What root may do is given up for a while, so that permissions hold for tests that run as root."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator


@contextlib.contextmanager
def without_rights_of_root() -> Iterator[None]:
    """While this thread and those that it starts may pass over no permissions (other users may not anyhow)."""
    libc = ctypes.CDLL(None)
    this_thread = (ctypes.c_uint32 * 2)(0x20080522, 0)  # after the version of the sets
    sets = (ctypes.c_uint32 * 6)()  # the first: what it may do now
    assert libc.capget(this_thread, sets) == 0
    may, bits = sets[0], libc.prctl(27)  # PR_GET_SECUREBITS
    libc.prctl(28, bits | 4)  # SECBIT_NO_SETUID_FIXUP: access(2) asks for what root may do now, not what it might
    sets[0] = may & ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(this_thread, sets) == 0
    try:
        yield
    finally:
        sets[0] = may
        assert libc.capset(this_thread, sets) == 0
        libc.prctl(28, bits)
