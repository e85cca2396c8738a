"""Pattern subscriptions in a classic group: matching, created and deleted topics, and combinations that are refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from ottla.client.groups.classic.states import State
from ottla.errors import ConfigError, IllegalStateError
from ottla.protocol.apis import Api
from ottla.simulation.application import App, member
from tests.simulation.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    for topic in ("orders-eu", "orders-us", "orders", "other"):
        world.create_topic(topic, 2)
        world.produce(topic, 0, 10)
    return world


def join(world: World, name: str = "a", pattern: str = "orders-.*", **settings: Any) -> App:
    app = world.app(name, group_id="g", group_protocol="classic", **settings)
    app.start(member(app, pattern=pattern))
    return app


def topics(app: App) -> set[str]:
    return {tp.topic for tp in app.calls.owned}


def settle(world: World, app: App, expected: set[str], limit: int = 30_000) -> None:
    def settled() -> bool:
        return topics(app) == expected and app.membership.state is State.STABLE

    world.run_until(settled, limit)


def test_a_pattern_must_match_the_whole_topic_name(world: World) -> None:
    app = join(world)
    settle(world, app, {"orders-eu", "orders-us"})
    world.run_until(lambda: len(app.handled) == 20)
    assert app.calls.snapshot.topics == {"orders-eu", "orders-us"}
    assert app.calls.snapshot.pattern == "orders-.*"
    joins = [message for _, api, message in world.broker.seen if api is Api.JOIN_GROUP]
    assert all(b"orders-eu" in protocol.metadata for message in joins for protocol in message.protocols)
    assert not any(b"other" in protocol.metadata for message in joins for protocol in message.protocols)


def test_a_topic_created_later_is_matched_at_the_next_metadata_refresh(world: World) -> None:
    app = join(world, metadata_max_age_ms=5_000)
    settle(world, app, {"orders-eu", "orders-us"})
    world.create_topic("orders-as", 1)
    world.create_topic("unrelated", 1)
    settle(world, app, {"orders-eu", "orders-us", "orders-as"}, 6_500)


def test_a_join_refreshes_the_metadata_first(world: World) -> None:
    first = join(world, "a")
    settle(world, first, {"orders-eu", "orders-us"})
    world.create_topic("orders-as", 1)
    second = join(world, "b")
    world.run_until(lambda: topics(first) | topics(second) == {"orders-eu", "orders-us", "orders-as"}, 10_000)
    assert first.calls.snapshot.topics == second.calls.snapshot.topics == {"orders-eu", "orders-us", "orders-as"}


def test_a_deleted_topic_is_revoked(world: World) -> None:
    app = join(world, metadata_max_age_ms=5_000)
    settle(world, app, {"orders-eu", "orders-us"})
    world.delete_topic("orders-us")
    settle(world, app, {"orders-eu"}, 10_000)


def test_a_pattern_without_a_match_waits(world: World) -> None:
    app = join(world, pattern="later-.*", metadata_max_age_ms=5_000)
    world.run(10_000)
    assert app.membership.state is State.STABLE
    assert not app.calls.owned
    assert not app.errors
    world.create_topic("later-1", 1)
    settle(world, app, {"later-1"}, 7_000)


@pytest.mark.parametrize(("excluded", "expected"), [(True, set()), (False, {"__consumer_offsets"})])
def test_internal_topics_are_left_out_unless_wanted(world: World, excluded: bool, expected: set[str]) -> None:
    settle(world, join(world, "a", "orders"), {"orders"})
    app = world.app("b", group_id="h", group_protocol="classic", exclude_internal_topics=excluded)
    app.start(member(app, pattern="__.*"))
    world.run_until(lambda: app.membership.state is State.STABLE and topics(app) == expected)


def test_members_with_different_patterns_share_common_topics(world: World) -> None:
    first, second = join(world, "a", "orders-(eu|us)"), join(world, "b", ".*eu|other")

    def shared() -> bool:
        owned = [*first.calls.owned, *second.calls.owned]
        every = {"orders-eu", "orders-us", "other"}
        return len(owned) == len(set(owned)) == 6 and topics(first) | topics(second) == every

    world.run_until(shared)
    assert topics(second) <= {"orders-eu", "other"}


def test_a_new_pattern_replaces_the_old_one(world: World) -> None:
    app = world.app("a", group_id="g", group_protocol="classic")
    world.call(app, app.calls.subscribe((), app.listeners(), app.now, "orders-.*"))
    world.call(app, app.calls.poll(2_000, app.now))
    world.call(app, app.calls.subscribe((), app.listeners(), app.now, "oth.*"))
    for _ in range(20):
        world.call(app, app.calls.poll(200, app.now))
    assert topics(app) == {"other"}


def test_names_and_patterns_do_not_mix_without_unsubscribe(world: World) -> None:
    app = world.app("a", group_id="g", group_protocol="classic")
    world.call(app, app.calls.subscribe((), app.listeners(), app.now, "orders-.*"))
    with pytest.raises(IllegalStateError, match="by a pattern, which does not mix with names"):
        world.call(app, app.calls.subscribe(("other",), app.listeners(), app.now))
    world.call(app, app.calls.unsubscribe(app.now))
    world.call(app, app.calls.subscribe(("other",), app.listeners(), app.now))
    with pytest.raises(IllegalStateError, match="by names, which does not mix with a pattern"):
        world.call(app, app.calls.subscribe((), app.listeners(), app.now, "orders-.*"))
    assert app.calls.snapshot.topics == {"other"}


def test_an_invalid_regular_expression_raises_at_once(world: World) -> None:
    app = world.app("a", group_id="g", group_protocol="classic")
    with pytest.raises(ConfigError, match=r"pattern='orders-\(' is not a regular expression: missing \), .* at position 7"):
        world.call(app, app.calls.subscribe((), app.listeners(), app.now, "orders-("))


def test_each_change_of_matched_topics_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.client.cluster.patterns")
    app = join(world, metadata_max_age_ms=2_000)
    settle(world, app, {"orders-eu", "orders-us"})
    world.run(10_000)
    lines = [record.message for record in caplog.records if "matches" in record.message]
    assert lines == ["group 'g': 'orders-.*' now matches orders-eu, orders-us"]
