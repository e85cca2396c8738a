"""A request that cannot be created, for want of a descriptor to import its message or of memory, is created later.

Whatever raises inside a manager's ``poll``, its state must match the requests that it sent: otherwise it waits for a response
that cannot arrive, silently and for ever.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla import client
from ottla.protocol import messages
from tests.scenarios.groups import ALL, filled, join, settle

CLIENT = os.path.dirname(client.__file__)
COMMON = ("metadata", "find_coordinator", "offset_fetch", "list_offsets", "fetch", "offset_commit")
OF_PROTOCOL = {
    "classic": (*COMMON, "join_group", "sync_group", "heartbeat", "leave_group"),
    "consumer": (*COMMON, "consumer_group_heartbeat"),
    "auto": ("describe_groups",),
}
RECORDS = 4 * 100


class Failing:
    """A request class whose ``first`` instance cannot be created."""

    def __init__(self, real: Any, first: int) -> None:
        self._real = real
        self.first = first
        self.count = 0

    def __call__(self, **fields: Any) -> Any:
        if sys._getframe(1).f_code.co_filename.startswith(CLIENT):
            self.count += 1
            if self.count == self.first:
                raise OSError(errno.EMFILE, "Too many open files")
        return self._real(**fields)


def class_of(api: str) -> tuple[Any, str]:
    module = getattr(messages, f"{api}_request")
    return module, "".join(part.title() for part in api.split("_")) + "Request"


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize(("protocol", "api"), [(protocol, api) for protocol, apis in OF_PROTOCOL.items() for api in apis])
def test_a_request_that_cannot_be_built_is_built_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, api: str, first: int
) -> None:
    world = filled(tmp_path)
    world.protocol = protocol
    module, name = class_of(api)
    failing = Failing(getattr(module, name), first)
    monkeypatch.setattr(module, name, failing)
    app = join(world, "a", auto_offset_reset="earliest", auto_commit_interval_ms=1_000)
    world.run_until(lambda: len(app.handled) >= RECORDS, 30_000)
    for partition in range(4):
        world.produce("t", partition, 10)
    world.run_until(lambda: len(app.handled) >= RECORDS + 40, 30_000)
    world.run_until(lambda: world.committed("g", "t", 4) == dict.fromkeys(range(4), 110), 10_000)
    assert sorted(app.calls.owned) == ALL
    app.stop = True
    world.run_until(lambda: not app.running, 20_000)
    assert failing.count >= 1


@pytest.mark.parametrize(("protocol", "api"), [("classic", "leave_group"), ("consumer", "consumer_group_heartbeat")])
def test_a_member_whose_leave_request_cannot_be_built_leaves_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, api: str
) -> None:
    world = filled(tmp_path)
    world.protocol = protocol
    module, name = class_of(api)
    failing = Failing(getattr(module, name), 0)
    monkeypatch.setattr(module, name, failing)
    app, other = join(world, "a"), join(world, "b")
    settle(world, app, other)
    app.stop, failing.first = True, failing.count + 1
    began = world.now.mono
    world.run_until(lambda: not app.running, 20_000)
    settle(world, other)
    assert world.now.mono - began < 5_000, "a session is 6 s, and nothing waits for its end"
