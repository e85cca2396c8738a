"""Reading a ZooKeeper group: what is asked first, and which topics a pattern finds."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ottla.client.groups.zookeeper.registry import GroupReader, GroupView
from ottla.config import ConsumerConfig
from ottla.errors import OttlaError
from ottla.simulation.zookeeper import ZooKeeperModel
from ottla.types import Now
from ottla.zookeeper.nodes import WHITE_LIST, MemberRegistration
from ottla.zookeeper.operations import Create, Delete, GetChildren, Sync
from ottla.zookeeper.session import AnyAsk

NOW = Now(0, 0)
EVERYTHING = MemberRegistration({".*": 1}, WHITE_LIST, 0)


class Reading:
    """A reader of group ``g``, and the views that it has read."""

    def __init__(self, exclude_internal_topics: bool = True) -> None:
        config = ConsumerConfig.parse(zookeeper_connect="zk:2181", group_id="g", exclude_internal_topics=exclude_internal_topics)
        self.views: list[GroupView] = []
        self.reader = GroupReader(config, "g_a", self._on_read, self._on_error, self._on_error, reads_all_topics=False)

    def _on_read(self, view: GroupView, now: Now) -> None:
        self.views.append(view)

    def _on_error(self, error: OttlaError, now: Now) -> None:
        raise error

    def answer(self, model: ZooKeeperModel, session_id: int) -> None:
        """Answer until nothing is asked any more."""
        while asks := self.reader.asks.take():
            for ask in asks:
                answer_one(ask, model, session_id)


def answer_one(ask: AnyAsk, model: ZooKeeperModel, session_id: int) -> None:
    executed = model.execute(session_id, ask.operation, NOW)
    if executed.error is not None:
        ask.on_failure(executed.error, NOW)
    else:
        ask.on_result(executed.result, NOW)


def test_the_server_catches_up_before_anything_is_read() -> None:
    """Otherwise a server that lags behind could answer with a list from before the change that caused the reading."""
    reading = Reading()
    reading.reader.begin(EVERYTHING)
    first, second, *_ = (ask.operation for ask in reading.reader.asks.take())
    assert (first, second) == (Sync("/consumers/g/ids"), GetChildren("/consumers/g/ids", watch=True))


@pytest.mark.parametrize(
    ("exclude", "expected"), [(True, {"orders"}), (False, {"orders", "__consumer_offsets"})], ids=["excluded", "included"]
)
def test_a_pattern_finds_internal_topics_unless_they_are_excluded(exclude: bool, expected: Iterable[str]) -> None:
    model = ZooKeeperModel()
    session_id = model.open(6_000, NOW)
    for path in ("/brokers", "/brokers/topics", "/consumers", "/consumers/g", "/consumers/g/ids", "/consumers/g/ids/g_a"):
        model.execute(session_id, Create(path), NOW)
    for topic in ("orders", "__consumer_offsets"):
        model.execute(session_id, Create(f"/brokers/topics/{topic}", b'{"partitions":{"0":[1]}}'), NOW)
    reading = Reading(exclude)
    reading.reader.begin(EVERYTHING)
    reading.answer(model, session_id)
    (view,) = reading.views
    assert view.topics == expected


def test_a_persistent_node_counts_as_a_member_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    model = ZooKeeperModel()
    session_id = model.open(6_000, NOW)
    for path in ("/brokers", "/brokers/topics", "/consumers", "/consumers/g", "/consumers/g/ids", "/consumers/g/ids/g_a"):
        model.execute(session_id, Create(path), NOW)
    model.execute(session_id, Create("/brokers/topics/t", b'{"partitions":{"0":[1]}}'), NOW)
    member, persistent = b'{"subscription":{"t":1},"pattern":"static"}', "/consumers/g/ids/g_p"
    model.execute(session_id, Create("/consumers/g/ids/g_b", member, ephemeral=True), NOW)
    reading = Reading()

    def read() -> list[str]:
        """Read the group; return its members and the new lines of the log."""
        caplog.clear()
        reading.reader.begin(MemberRegistration({"t": 1}))
        reading.answer(model, session_id)
        return [*sorted(reading.views[-1].members), *(record.getMessage() for record in caplog.records)]

    what = f"the node {persistent} of ZooKeeper is persistent"
    why = f"{what}: no process stands behind it, so nothing reads its partitions; delete it"
    assert read() == ["g_a", "g_b"]
    model.execute(session_id, Create(persistent, member), NOW)
    assert read() == ["g_a", "g_b", "g_p", why]
    assert read() == ["g_a", "g_b", "g_p"]
    model.execute(session_id, Delete(persistent), NOW)
    assert read() == ["g_a", "g_b"]
    model.execute(session_id, Create(persistent, member), NOW)
    assert read() == ["g_a", "g_b", "g_p", why]
