"""The limit of file descriptors that a broker raises, and the reserve that it keeps."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import ExitStack

import pytest

from ottla.runtime import descriptors

UNLIMITED = resource.RLIM_INFINITY
PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from ottla import Broker
with Broker() as broker:
    print(resource.getrlimit(resource.RLIMIT_NOFILE), broker._node._data._open._limit)
"""


@pytest.mark.parametrize(("soft", "hard", "files"), [(256, 1000, 250), (256, 256, 64)])
def test_a_broker_raises_the_limit_and_opens_as_many_files_as_fit(soft: int, hard: int, files: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.strip() == f"({hard}, {hard}) {files}"


@pytest.mark.parametrize(
    ("now", "accepted", "raised"),
    [
        ((1024, 4096), 1 << 40, 4096),
        ((1024, 1 << 30), 1 << 40, descriptors.WANTED),
        ((256, UNLIMITED), 10_240, 10_240),  # macOS
        ((256, 65_536), 300, None),  # a system that accepts none of both
        ((1 << 20, 1 << 20), 1 << 40, None),
        ((UNLIMITED, UNLIMITED), 1 << 40, None),
    ],
)
def test_the_limit_is_raised_as_far_as_the_system_allows_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, now: tuple[int, int], accepted: int, raised: int | None
) -> None:
    done = []

    def setrlimit(which: int, limits: tuple[int, int]) -> None:
        if limits[0] > accepted:
            raise ValueError("current limit exceeds maximum limit")
        done.append(limits)

    monkeypatch.setattr(resource, "getrlimit", lambda which: now)
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    descriptors.raise_limit()
    assert done == ([] if raised is None else [(raised, now[1])])


def test_without_a_limit_the_reserve_is_never_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (UNLIMITED, UNLIMITED))
    assert descriptors.first_of_reserve() > 1 << 31


def test_the_reserve_is_reached_when_no_lower_descriptor_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as opened:
        reader, writer = os.pipe()
        for fd in (reader, writer):
            opened.callback(os.close, fd)
        monkeypatch.setattr(descriptors, "first_of_reserve", lambda: writer + 20)
        assert not descriptors.is_reserve_reached(reader)
        while (fd := os.dup(reader)) < writer + 20:
            opened.callback(os.close, fd)
        os.close(fd)
        assert descriptors.is_reserve_reached(reader)
