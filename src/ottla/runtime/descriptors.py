"""The file descriptors of the process: how many it may have, and whether they are running out.

Owns the limit of the process, which a broker raises. Must not know what descriptors are used for. Invariant: the limit is never
lowered.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from contextlib import suppress

WANTED = 1 << 16
"""The limit is raised to this at most: a hard limit may be a billion, and some programs that the process may start close every
descriptor up to the limit, one by one."""

_MOST_ON_MACOS = 10_240
"""``OPEN_MAX``: macOS accepts no higher soft limit, even if the hard limit is infinite."""

_RESERVE = 32
_SHARE_IN_RESERVE = 8

OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def raise_limit() -> None:
    """Raise the soft limit to the hard limit: it is 256 on macOS and 1,024 on most Linux systems, and each client needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    most = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    for wanted in (most, min(most, _MOST_ON_MACOS)):
        if wanted > soft:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return


def limit() -> int:
    """How many descriptors the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def first_of_reserve() -> int:
    """The lowest descriptor of the reserve.

    A new descriptor has the lowest free number, so one of the reserve means that all below are in use. The reserve is for files
    that are open for a moment: folders, small files, modules, and log files of which no other stays open.
    """
    most = limit()
    return most - min(_RESERVE, most // _SHARE_IN_RESERVE)


def is_reserve_reached(fd: int) -> bool:
    """Whether a new descriptor would be one of the reserve, or could not be opened; ``fd`` is an open one."""
    try:
        lowest_free = os.dup(fd)
    except OSError:
        return True
    os.close(lowest_free)
    return lowest_free >= first_of_reserve()
