"""What a central group has gone through, from ZooKeeper's log and from what its members have said.

Owns the checks that hold whatever happens. Must not know which events a test causes. The checks: each write is one of the broker
that is elected at that moment, and no two elections have the same epoch; no offset goes back; each committed offset is one that the
owner of its partition has asked for, and each accepted commit, or a later one, is one of an owner; a member handles nothing of a
partition that another member was assigned since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.end_to_end.central_consumers import Process
from tests.end_to_end.zookeeper_log import CLOSE_SESSION, DELETE, Change, changes


class Commit(NamedTuple):
    """An executed commit, and who owned the partition then."""

    partition: int
    offset: int
    owner: str


class History:
    """See the module. ``folder`` is the data directory of a ZooKeeper server."""

    def __init__(self, folder: Path, chroot: str, group: str, topic: str) -> None:
        self.commits: list[Commit] = []
        self.epochs: list[int] = []
        self._root, self._topic = f"{chroot}/consumers", topic
        self._chroot, self._group = chroot, group
        self._elected: int | None = None
        self._election: tuple[int, int] | None = None
        """The session that has won the last election, and its epoch."""
        self._owners: dict[str, str] = {}
        self._offsets: dict[str, int] = {}
        for change in changes(folder / "data" / "version-2"):
            self._follow(change)

    def _follow(self, change: Change) -> None:
        if change.type == CLOSE_SESSION:
            self._elected = None if change.session == self._elected else self._elected
        elif change.path == f"{self._root}/coordinator":
            self._elected = None if change.type == DELETE else change.session
        elif change.path == f"{self._chroot}/coordinator_epoch":
            epoch = int(change.data)
            # A new node is written several times in the one multi, to begin with another version than an earlier node.
            if (change.session, epoch) != self._election:
                assert not self.epochs or epoch > self.epochs[-1], change
                self.epochs.append(epoch)
                self._election = change.session, epoch
        elif change.path.startswith(f"{self._root}/{self._group}/"):
            assert change.session == self._elected, f"not the elected broker: {change}"
            assert not change.ephemeral, change
            self._follow_group(change)

    def _follow_group(self, change: Change) -> None:
        below = change.path.removeprefix(f"{self._root}/{self._group}/")
        _, is_owner, owned = below.partition(f"owners/{self._topic}/")
        _, is_offset, committed = below.partition(f"offsets/{self._topic}/")
        if is_owner and change.type == DELETE:
            self._owners.pop(owned, None)
        elif is_owner:
            self._owners[owned] = change.data.decode().rpartition("-")[0]
        elif is_offset:
            assert change.type != DELETE, change
            offset = int(change.data)
            assert offset >= self._offsets.get(committed, 0), f"{change} after {self._offsets[committed]}"
            assert committed in self._owners, f"a commit without an owner: {change}"
            self._offsets[committed] = offset
            self.commits.append(Commit(int(committed), offset, self._owners[committed]))


def check(folder: Path, chroot: str, group: str, members: Iterable[Process]) -> History:
    """Compare ZooKeeper's log with what the members have said. ``group`` is also the topic; for ``folder``, see ``History``."""
    by_name = {f"{group}_{member.consumer_id}": member for member in members}
    # Read before ZooKeeper's log, and what they have asked for after it: they go on meanwhile.
    accepted = {name: member.commits() for name, member in by_name.items()}
    history = History(folder, chroot, group, group)
    executed = {*history.commits}
    asked = {name: member.commits("commits") for name, member in by_name.items()}
    for commit in executed:
        assert (commit.partition, commit.offset) in asked[commit.owner], f"the owner has not asked for {commit}"
    for name, commits in accepted.items():
        for partition, offset in commits:
            # A commit that is to be retried is not sent any more once a later one of the same member has succeeded.
            last = max((one.offset for one in executed if (one.partition, one.owner) == (partition, name)), default=-1)
            assert offset <= last, f"{name} did not own {partition} when it committed {offset}"
    check_sharing(by_name)
    return history


def check_sharing(members: Mapping[str, Process]) -> None:
    """A member handles nothing of a partition that another one was assigned since."""
    events = sorted(
        (item["at"], number, name, item)
        for name, member in members.items()
        for number, item in enumerate(member.said())
        if {"assigned", "value"} & item.keys()
    )
    holders: dict[int, tuple[str, float]] = {}
    for at, _, name, item in events:
        for partition in item.get("assigned", ()):
            holders[partition] = name, at
        if "value" in item:
            holder = holders[item["partition"]]
            assert holder[0] == name, f"{name} handled {item}, which {holder[0]} was assigned {at - holder[1]:.3f} s before"
