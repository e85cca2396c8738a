"""``ottla topic``: create, list, describe, alter, delete."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from ottla import Admin, Broker
from tests.end_to_end.programs import OTTLA, environment, ottla, started


@pytest.mark.slow
def test_a_topic_from_its_creation_to_its_end(served: str) -> None:
    def run(*arguments: str) -> str:
        done = ottla("topic", *arguments, bootstrap_servers=served)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        return done.stdout

    assert run("create", "life", "-p", "3", "--config", "retention.ms=1000000") == "created topic life with 3 partitions\n"
    assert ["life", "3"] in [line.split() for line in run("list").splitlines()]
    assert {"topic": "life", "partitions": 3} in json.loads(run("list", "--format", "json"))
    assert ottla("produce", "-t", "life", bootstrap_servers=served, stdin="a\nb\n").returncode == 0

    described = json.loads(run("describe", "life", "--format", "json"))
    assert [list(row) for row in described] == [["partition", "leader", "beginning", "end"]] * 3
    assert [row["partition"] for row in described] == [0, 1, 2]
    assert {row["leader"] for row in described} == {served}
    assert sum(row["end"] - row["beginning"] for row in described) == 2

    altered = run("alter", "life", "-p", "4", "--config", "retention.ms=5000000", "--delete-config", "segment.ms")
    assert altered.splitlines() == [
        "topic life: retention.ms=5000000",
        "topic life: segment.ms has its default again",
        "topic life has 4 partitions",
    ]
    assert ["life", "4"] in [line.split() for line in run("list").splitlines()]
    with Admin(bootstrap_servers=served) as admin:
        assert admin.describe_configs("topic", "life")["retention.ms"].value == "5000000"
    assert run("alter", "life", "--delete-config", "retention.ms") == "topic life: retention.ms has its default again\n"

    assert "--execute" in run("delete", "life")
    assert ["life", "4"] in [line.split() for line in run("list").splitlines()]
    assert run("delete", "life", "--execute") == "deleted topic life\n"
    assert "life" not in [line.split()[0] for line in run("list").splitlines()]


def test_internal_topics_are_not_listed(served: str) -> None:
    topics = json.loads(ottla("topic", "list", "--format", "json", bootstrap_servers=served).stdout)
    assert not [row["topic"] for row in topics if row["topic"].startswith("__")]


def failed(*arguments: str, address: str) -> str:
    ended = ottla("topic", *arguments, bootstrap_servers=address)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: ")
    assert len(ended.stderr.splitlines()) == 1
    return ended.stderr


def test_creating_an_existing_topic_fails(served: str) -> None:
    assert ottla("topic", "create", "twice", bootstrap_servers=served).returncode == 0
    assert "twice" in failed("create", "twice", address=served)


def test_describing_and_deleting_a_missing_topic_fails(served: str) -> None:
    assert "nowhere" in failed("describe", "nowhere", address=served)
    assert "nowhere" in failed("delete", "nowhere", address=served)
    assert "nowhere" in failed("delete", "nowhere", "--execute", address=served)


def test_a_bad_name_and_a_bad_config(served: str) -> None:
    assert "a/b" in failed("create", "a/b", address=served)
    assert "no.such.config" in failed("create", "fine", "--config", "no.such.config=1", address=served)
    assert ottla("topic", "create", "fine", "--config", "retention.ms", bootstrap_servers=served).returncode == 2


@pytest.mark.slow
def test_invalid_alterations_fail(served: str) -> None:
    assert ottla("topic", "create", "fixed", "-p", "2", bootstrap_servers=served).returncode == 0
    assert "nowhere" in failed("alter", "nowhere", "-p", "3", address=served)
    assert "2" in failed("alter", "fixed", "-p", "1", address=served)
    assert "retention.ms" in failed("alter", "fixed", "--config", "retention.ms=soon", address=served)
    assert "INVALID_PARTITIONS" in failed("alter", "fixed", "-p", "2", "--config", "retention.ms=5000000", address=served)
    with Admin(bootstrap_servers=served) as admin:
        assert admin.describe_configs("topic", "fixed")["retention.ms"].value != "5000000"
    for nothing in ((), ("--config", "a=1", "--delete-config", "a"), ("-p", "0"), ("-p", str(2**31))):
        assert ottla("topic", "alter", "fixed", *nothing, bootstrap_servers=served).returncode == 2


def test_steps_before_a_signal_are_printed() -> None:
    with Broker(settings={"num.partitions": 1}) as broker:
        address = broker.bootstrap_servers
        assert ottla("topic", "create", "t", bootstrap_servers=address).returncode == 0
        lost = broker.faults.lose_reply("CreatePartitions", after=1)  # the first one only validates
        with started("topic", "alter", "t", "-p", "2", "--config", "retention.ms=5000000", bootstrap_servers=address) as process:
            lost.wait(timeout=60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == -signal.SIGTERM
            assert process.communicate()[0] == "topic t: retention.ms=5000000\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_output_that_cannot_be_written_keeps_no_change_from_being_made(served: str) -> None:
    assert ottla("topic", "create", "unseen", "-p", "1", bootstrap_servers=served).returncode == 0
    command = [OTTLA, "topic", "alter", "unseen", "-p", "2", "--config", "retention.ms=5000000"]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environment(served))
    assert (ended.returncode, ended.stderr) == (1, "error: cannot write to stdout: No space left on device\n")
    with Admin(bootstrap_servers=served) as admin:
        assert len(admin.describe_topics(["unseen"])["unseen"].partitions) == 2


def test_a_setting_that_does_not_exist_is_not_reset(served: str) -> None:
    assert ottla("topic", "create", "misspelled", bootstrap_servers=served).returncode == 0
    altered = ("alter", "misspelled", "--config", "retention.ms=5000000", "--delete-config")
    error = "error: topic misspelled has no setting retention.msec; did you mean retention.ms?\n"
    assert failed(*altered, "retention.msec", address=served) == error
    assert "did you mean" not in failed(*altered, "zzz", address=served)
    with Admin(bootstrap_servers=served) as admin:
        assert admin.describe_configs("topic", "misspelled")["retention.ms"].value != "5000000"


def test_a_dry_run_fails_as_the_execution_would(served: str) -> None:
    with Admin(bootstrap_servers=served) as admin:
        admin.group_offsets("any")  # creates the topic of the offsets
    for more in ((), ("--execute",)):
        assert "is internal" in failed("delete", "__consumer_offsets", *more, address=served)


def test_no_broker_lists_the_address_and_the_reason() -> None:
    times = ("-X", "default.api.timeout.ms=2000", "-X", "request.timeout.ms=2000")
    ended = ottla("topic", "list", *times, bootstrap_servers="127.0.0.1:1")
    assert (ended.returncode, ended.stdout) == (1, "")
    at_once, at_the_end = ended.stderr.splitlines()  # why it waits, and why it gave up
    assert "127.0.0.1:1:" in at_once
    assert at_the_end.startswith("error: ")
    assert "127.0.0.1:1:" in at_the_end


def test_a_name_that_collides_with_another_is_not_called_malformed(served: str) -> None:
    assert ottla("topic", "create", "a.b", bootstrap_servers=served).returncode == 0
    ended = ottla("topic", "create", "a_b", bootstrap_servers=served)
    assert ended.stderr == "error: topic 'a_b': Topic 'a_b' collides with existing topic: a.b [INVALID_TOPIC_EXCEPTION]\n"
