"""``ottla group``: list, describe, reset, delete."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

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
        deadline = time.monotonic() + 60
        while (document := described(group, served))["partitions"][0]["committed"] is None and time.monotonic() < deadline:
            time.sleep(0.2)
        assert list(document) == GROUP_KEYS
        assert {key: document[key] for key in GROUP_KEYS[:5]} == {
            "group": group,
            "state": "Stable",
            "protocol": "consumer",
            "assignor": "uniform",
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
    assert (document["state"], document["members"], document["assignor"]) == ("Empty", [], "uniform")
    assert [row["member_id"] for row in document["partitions"]] == [None, None]
    assert sum(row["lag"] for row in document["partitions"]) == 1

    listed = json.loads(ottla("group", "list", "--format", "json", bootstrap_servers=served).stdout)
    assert {"group": group, "state": "Empty", "protocol": "consumer"} in listed
    assert group in ottla("group", "list", bootstrap_servers=served).stdout


@pytest.mark.slow
def test_a_group_is_sent_elsewhere_and_goes(served: str, topic: Callable[..., str]) -> None:
    name = topic(1, *(f"{number}:{number}" for number in range(8)))
    group = f"group-of-{name}"

    def run(*arguments: str) -> str:
        done = ottla("group", *arguments, bootstrap_servers=served)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def reset(*arguments: str) -> list[tuple[int | None, int]]:
        """Return the committed and the new offset of each partition."""
        rows = json.loads(run("reset-offsets", group, "--format", "json", *arguments))
        return [(row["committed"], row["new_offset"]) for row in rows if row["topic"] == name and row["partition"] == 0]

    assert reset("-t", name, "-o", "3") == [(None, 3)]
    assert reset("-t", name, "-o", "3", "--execute") == [(None, 3)]
    assert reset("-o", "end") == [(3, 8)]
    assert reset("-o", "99") == [(3, 8)]
    assert reset("-o", "beginning") == [(3, 0)]
    assert reset("-o", "s@0") == [(3, 0)]
    assert reset("-o", "s@99999999999999", "--execute") == [(3, 8)]
    assert [row["committed"] for row in described(group, served)["partitions"]] == [8]
    with started("consume", "-t", name, "-g", group, bootstrap_servers=served):
        deadline = time.monotonic() + 60
        while described(group, served)["state"] != "Stable" and time.monotonic() < deadline:
            time.sleep(0.2)
        for arguments in (
            ("reset-offsets", group, "-o", "0"),
            ("reset-offsets", group, "-o", "0", "--execute"),
            ("delete", group),
            ("delete", group, "--execute"),
        ):
            ended = ottla("group", *arguments, bootstrap_servers=served)
            assert (ended.returncode, ended.stdout) == (1, "")
            assert "is Stable: its members must leave first" in ended.stderr


def test_a_group_is_deleted_with_execute(served: str, topic: Callable[..., str]) -> None:
    name = topic(1, "a:b")
    group = f"group-of-{name}"
    assert ottla("consume", "-t", name, "-g", group, "-e", bootstrap_servers=served).returncode == 0
    asked = ottla("group", "delete", group, bootstrap_servers=served).stdout
    assert asked == f"would delete group {group} with 1 committed offset; add --execute to do it\n"
    assert ottla("group", "delete", group, "--execute", bootstrap_servers=served).stdout == f"deleted group {group}\n"
    ended = ottla("group", "delete", group, "--execute", bootstrap_servers=served)
    assert ended.returncode == 1
    assert group in ended.stderr
    assert ottla("group", "reset-offsets", group, "-o", "soon", bootstrap_servers=served).returncode == 2
    assert "has no committed offsets" in ottla("group", "reset-offsets", group, "-o", "end", bootstrap_servers=served).stderr


def test_a_group_that_does_not_exist(served: str) -> None:
    ended = ottla("group", "describe", "nobody", bootstrap_servers=served)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "nobody" in ended.stderr
