"""An operator's changes of a group in ZooKeeper, while members come, commit and go, and connections are lost, at random.

Whatever happens: nothing is written while the group has a member; no offset is replaced that the operator has not seen; a call that
has ended with an error can be repeated, and then does all of it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from unittest import mock

from hypothesis import given, settings, strategies as st

from ottla.client.admin.zookeeper import writing
from ottla.errors import GroupIdNotFoundError, IllegalStateError, NonEmptyGroupError, UnknownTopicOrPartitionError
from ottla.types import TopicPartition
from ottla.zookeeper import multis, paths
from ottla.zookeeper.calls import Call
from ottla.zookeeper.operations import Multi, Operation
from tests.example_counts import examples
from tests.simulation.old_groups import OldGroups

PARTITIONS = 5
WANTED = {TopicPartition("t", number): 100 + number for number in range(PARTITIONS)}
ALL_WANTED = {tp.partition: b"%d" % offset for tp, offset in WANTED.items()}
CALLS = ("alter", "alter expected", "delete", "delete topic")
NOT_FOUND = (GroupIdNotFoundError, UnknownTopicOrPartitionError)

acts = st.lists(st.sampled_from(["join", "leave", "commit", "delete offset", "visit"]), max_size=3)
"""What others do before an operation of the call."""
losses = st.sampled_from([None] * 8 + ["before", "after"])
"""Whether the connection is lost then."""


def change(name: str, seen: dict[TopicPartition, int | None]) -> Call[None]:
    def progress(done: int, of: int) -> None:
        assert done > 0

    if name.startswith("alter"):
        return writing.alter_group_offsets("g", WANTED, seen if name == "alter expected" else None, progress)
    return writing.delete_group("g", progress) if name == "delete" else writing.delete_group_topic("g", "t", progress)


class Others:
    """Members and other clients, whose acts are drawn. Keeps what each multi of the call has replaced."""

    def __init__(self, groups: OldGroups, data: st.DataObject) -> None:
        self.groups, self.data = groups, data
        self.joined, self.left, self.was_lost = 0, data.draw(st.integers(0, 6)), False
        self.replaced: dict[TopicPartition, set[bytes]] = {tp: set() for tp in WANTED}
        self._before: tuple[Multi, dict[int, bytes]] | None = None

    def __call__(self, operation: Operation[Any]) -> str | None:
        self.note_replaced()
        lost: str | None = None
        if self.left and self.data.draw(st.integers(0, 4)) == 4:
            self.left -= 1
            for act in self.data.draw(acts):
                self._act(act)
            lost = self.data.draw(losses)
            self.was_lost |= lost is not None
        if isinstance(operation, Multi):
            self._before = operation, self.groups.offsets("g", "t")
        return lost

    def note_replaced(self) -> None:
        """Take what the last multi has replaced, if it was executed."""
        if self._before is not None and self.groups.writes and self.groups.writes[-1] is self._before[0]:
            multi, offsets = self._before
            written = {operation.path for operation in multi.operations}
            for tp in WANTED:
                if paths.offset("g", *tp) in written:
                    self.replaced[tp].add(offsets.get(tp.partition, b"none"))
        self._before = None

    def _act(self, act: str) -> None:
        groups = self.groups
        if act == "join":
            self.joined += 1
            groups.join("g", f"m{self.joined}")
        elif act == "leave" and groups.sessions:
            groups.leave(*next(iter(groups.sessions)))
        elif act == "commit" and groups.sessions:
            groups.commit("g", "t", {self.data.draw(st.integers(0, PARTITIONS - 1)): self.data.draw(st.integers(200, 299))})
        elif act == "visit":
            for step in ("join", "commit", "leave") if not groups.sessions else ():
                self._act(step)
        elif act == "delete offset":
            for number in list(groups.offsets("g", "t"))[:1]:
                groups.remove(paths.offset("g", "t", number))


@settings(max_examples=examples(400))
@given(
    st.sampled_from(CALLS),
    st.dictionaries(st.integers(0, PARTITIONS - 1), st.integers(0, 99)),
    st.booleans(),
    st.integers(1, 2 * PARTITIONS),
    st.data(),
)
def test_a_change_among_others(name: str, before: dict[int, int], has_ids: bool, size: int, data: st.DataObject) -> None:
    groups = OldGroups()
    groups.commit("g", "t", before)
    if has_ids:
        groups.put("/consumers/g/ids")
    seen: dict[TopicPartition, int | None] = {TopicPartition("t", number): offset for number, offset in before.items()}
    others, ended = Others(groups, data), None
    with mock.patch.object(multis, "MULTI_OPERATIONS", size):
        try:
            groups.run(change(name, seen), others)
        except (NonEmptyGroupError, IllegalStateError, *NOT_FOUND) as error:
            ended = error
        others.note_replaced()
        assert groups.members_at_writes == set()
        if name == "alter expected":
            for tp, values in others.replaced.items():
                assert values <= {b"none" if seen.get(tp) is None else b"%d" % seen[tp], ALL_WANTED[tp.partition]}
        if ended is None and not others.was_lost and size > PARTITIONS:
            check_done(name, groups)
        while groups.sessions:
            groups.leave(*next(iter(groups.sessions)))
        repeat(name, groups)


def repeat(name: str, groups: OldGroups) -> None:
    """The same call without others succeeds, or finds nothing to delete."""
    with suppress(*(NOT_FOUND if name.startswith("delete") else [])):
        groups.run(change("alter" if name.startswith("alter") else name, {}))
    check_done(name, groups)


def check_done(name: str, groups: OldGroups) -> None:
    if name == "delete":
        assert not groups.exists("/consumers/g")
    else:
        assert groups.offsets("g", "t") == (ALL_WANTED if name.startswith("alter") else {})
