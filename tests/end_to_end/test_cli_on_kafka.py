"""The command line on Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.end_to_end.programs import ottla

pytestmark = pytest.mark.interop


def test_a_topic_and_a_group_from_beginning_to_end(real_kafka: str) -> None:
    def run(*arguments: str, stdin: str = "") -> str:
        done = ottla(*arguments, bootstrap_servers=real_kafka, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        return done.stdout

    assert run("topic", "create", "cli", "-p", "2", "--config", "retention.ms=100000") == "created topic cli with 2 partitions\n"
    run("produce", "-t", "cli", "-K", ":", "-z", "zstd", stdin="a:1\nb:2\nc:3\n")
    assert sorted(run("consume", "-t", "cli", "-e", "-f", "%k%s\\n").split()) == ["a1", "b2", "c3"]
    assert sorted(run("consume", "-t", "cli", "-g", "cli-group", "-e", "-f", "%k%s\\n").split()) == ["a1", "b2", "c3"]
    run("produce", "-t", "cli", "-K", ":", stdin="a:4\n")

    partitions = json.loads(run("topic", "describe", "cli", "--format", "json"))
    assert sum(row["end"] for row in partitions) == 4
    assert {row["leader"] for row in partitions} == {real_kafka}
    group = json.loads(run("group", "describe", "cli-group", "--format", "json"))
    assert (group["group"], group["state"], group["protocol"], group["members"]) == ("cli-group", "Empty", "consumer", [])
    assert sum(row["lag"] for row in group["partitions"]) == 1
    assert ["cli-group", "Empty", "consumer"] in [line.split() for line in run("group", "list").splitlines()]
    assert run("topic", "delete", "cli", "--execute") == "deleted topic cli\n"
    assert "cli" not in run("topic", "list").split()


def test_a_share_group(real_kafka: str, kafka_tool: Callable[..., str]) -> None:
    def refused(*arguments: str) -> str:
        done = ottla(*arguments, bootstrap_servers=real_kafka)
        assert (done.returncode, done.stdout) == (1, ""), arguments
        return done.stderr

    assert ottla("topic", "create", "shared", bootstrap_servers=real_kafka).returncode == 0
    console = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
    kafka_tool(console, "--bootstrap-server", real_kafka, "--topic", "shared", "--group", "sharing", "--timeout-ms", "5000")
    assert "group 'sharing' is neither a classic group nor a consumer group" in refused("group", "describe", "sharing")
    assert refused("group", "reset-offsets", "sharing", "-o", "end", "-t", "shared") == (
        "error: group sharing is a share group, which has no committed offsets\n"
    )
    assert ottla("group", "delete", "sharing", "--execute", bootstrap_servers=real_kafka).stdout == "deleted group sharing\n"
