"""``ottla group``: list and describe."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tests.end_to_end.programs import ottla, started

GROUP_KEYS = ["group", "state", "protocol", "assignor", "coordinator", "members", "partitions"]
MEMBER_KEYS = ["member_id", "client_id", "host", "instance_id", "partitions"]
PARTITION_KEYS = ["topic", "partition", "committed", "end_offset", "lag", "member_id"]


def described(group: str, address: str) -> dict[str, Any]:
    done = ottla("group", "describe", group, "--format", "json", bootstrap_servers=address)
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_group_at_work_and_at_rest(served: str, topic: Callable[..., str]) -> None:
    name = topic(2, *(f"{number}:{number}" for number in range(8)))
    group = f"group-of-{name}"
    with started("consume", "-t", name, "-g", group, "-X", "client.id=reader", bootstrap_servers=served) as process:
        assert process.stdout is not None
        for _ in range(8):
            process.stdout.readline()
        deadline = time.monotonic() + 10
        while (document := described(group, served))["partitions"][0]["committed"] is None and time.monotonic() < deadline:
            time.sleep(0.2)
        assert list(document) == GROUP_KEYS
        assert {key: document[key] for key in GROUP_KEYS[:5]} == {
            "group": group,
            "state": "Stable",
            "protocol": "classic",
            "assignor": "range",
            "coordinator": served,
        }
        [member] = document["members"]
        assert list(member) == MEMBER_KEYS
        assert (member["client_id"], member["instance_id"]) == ("reader", None)
        assert member["host"].strip("/") == "127.0.0.1"
        assert member["partitions"] == [{"topic": name, "partition": 0}, {"topic": name, "partition": 1}]
        for number, row in enumerate(document["partitions"]):
            assert list(row) == PARTITION_KEYS
            assert (row["topic"], row["partition"], row["member_id"]) == (name, number, member["member_id"])
            assert row["lag"] == row["end_offset"] - row["committed"] == 0
        table = ottla("group", "describe", group, bootstrap_servers=served).stdout
        assert member["member_id"] in table
        assert "Stable" in table
        process.terminate()
        assert process.wait(10) == 0

    assert ottla("produce", "-t", name, bootstrap_servers=served, stdin="more\n").returncode == 0
    document = described(group, served)
    assert (document["state"], document["members"], document["assignor"]) == ("Empty", [], None)
    assert [row["member_id"] for row in document["partitions"]] == [None, None]
    assert sum(row["lag"] for row in document["partitions"]) == 1

    listed = json.loads(ottla("group", "list", "--format", "json", bootstrap_servers=served).stdout)
    assert {"group": group, "state": "Empty", "protocol": "classic"} in listed
    assert group in ottla("group", "list", bootstrap_servers=served).stdout


def test_a_group_that_does_not_exist(served: str) -> None:
    ended = ottla("group", "describe", "nobody", bootstrap_servers=served)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "nobody" in ended.stderr
