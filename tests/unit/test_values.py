"""Every value that users get can be copied and pickled without a change."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from ottla import (
    Admin,
    Broker,
    Consumer,
    Health,
    OAuthToken,
    OffsetAndMetadata,
    Producer,
    Rebalance,
    Record,
    Records,
    TopicPartition,
)
from ottla.assignors import Cluster, MemberAssignment, MemberSubscription
from ottla.client.health.verdicts import PartitionHealth, WaitsFor
from ottla.types import FrozenMapping

TP = TopicPartition("orders", 0)
PART = PartitionHealth(5, 7, 2, WaitsFor.FETCH, "a problem", 1, 0.5, None, 0.0)
HEALTH = Health(True, True, False, ("it is slow",), "billing", partitions=FrozenMapping({TP: PART}))
REBALANCE = Rebalance(
    began=1.5,
    duration=0.5,
    reason="the member joins the group",
    completed=True,
    protocol="consumer",
    member_id="m",
    epoch=2,
    assigned=(TP,),
    revoked=(),
    lost=(),
    unfetched=FrozenMapping({TP: 0.25}),
    in_listeners=0.0,
)
VALUES: list[Any] = [
    TP,
    OffsetAndMetadata(5, "m", 1),
    OAuthToken("secret"),
    Record("orders", 0, 7, b"k", b"v"),
    HEALTH,
    REBALANCE,
    Cluster({"orders": 3}),
    MemberSubscription(("orders",), owned=(TP,)),
    MemberAssignment((TP,), b"x"),
    FrozenMapping({"a": [1]}),
]
WAYS: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
NAMES = ["copy", "deepcopy", "pickle"]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_values_can_be_copied_and_pickled(value: Any, way: Callable[[Any], Any]) -> None:
    twin = way(value)
    assert (type(twin), twin) == (type(value), value)


def transactions(broker: Broker, admin: Admin) -> list[Any]:
    """What describes an open transaction."""
    producer = Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="billing")
    with producer, producer.transaction() as transaction:
        producer.send("orders", "value")
        prepared = transaction.prepare()
    described = [admin.list_transactions(), admin.describe_transactions(["billing"]), admin.describe_producers([TP])]
    assert all(described)
    return [prepared, *described]


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_results_of_a_consumer_and_an_admin_can_be_copied_and_pickled(way: Callable[[Any], Any]) -> None:
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics({"orders": 1})
        with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="billing", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            while not consumer.assignment():
                consumer.poll(1)
            consumer.commit({TP: 0})
            results = [
                consumer.health(),
                consumer.rebalances,
                consumer.metrics(),
                consumer.group_metadata(),
                consumer.committed(),
                consumer.list_topics(),
                consumer.offsets_for_times({TP: 0}),
                admin.list_topics(),
                admin.describe_cluster(),
                admin.describe_log_dirs(),
                admin.describe_configs("topic", "orders"),
                admin.list_groups(),
                admin.describe_groups(["billing"]),
                admin.group_offsets("billing"),
                admin.list_offsets({TP: "latest"}),
                *transactions(broker, admin),
            ]
            assert consumer.rebalances
            assert TP in consumer.health().partitions
    for value in results:
        assert way(value) == value


def test_pickling_records_raises_with_the_alternative() -> None:
    with pytest.raises(TypeError, match=r"Records cannot be pickled: pickle list\(records\), or records.to_arrow\(\)"):
        pickle.dumps(Records.empty())


def test_health_and_rebalances_can_become_json() -> None:
    assert json.loads(json.dumps(HEALTH.as_dict()))["partitions"]["orders-0"]["waits_for"] == "fetch"
    plain = json.loads(json.dumps(REBALANCE.as_dict()))
    assert (plain["assigned"], plain["unfetched"], plain["epoch"]) == (["orders-0"], {"orders-0": 0.25}, 2)
    assert plain.keys() == {field.name for field in dataclasses.fields(Rebalance)}


def test_asdict_of_a_dataclass_with_values() -> None:
    assert dataclasses.asdict(HEALTH)["partitions"][TP] == PART
    assert dataclasses.asdict(REBALANCE)["unfetched"] == {TP: 0.25}


def test_a_frozen_mapping_cannot_be_changed() -> None:
    items = {TP: 1}
    frozen = FrozenMapping(items)
    items[TP] = 2
    assert frozen == {TP: 1}
    assert hash(frozen) == hash(FrozenMapping({TP: 1}))
    assert repr(frozen) == repr({TP: 1})
    with pytest.raises(TypeError):
        frozen[TP] = 2  # type: ignore[index]
