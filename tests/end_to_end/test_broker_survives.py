"""A broker in a separate process that is killed, whose disk is full, and that is fed garbage: nothing acknowledged is lost."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import confluent_kafka
import pytest

from ottla import Broker
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import metadata_request, offset_commit_request, offset_fetch_request, produce_request
from ottla.records import NewRecord, encode_batch
from tests.end_to_end.broker_process import PATIENCE, Writer, broker_process, everything, stored
from tests.interop.other_clients import MEMBER, closing_all, create_topic, poll_until
from tests.malformed_frames import bad_frames
from tests.raw_client import RawClient

pytestmark = pytest.mark.slow


def test_what_was_acknowledged_survives_kill_9_over_and_over(tmp_path: Path) -> None:
    """An idempotent producer goes on over three kills: nothing that was acknowledged is lost, nothing is there twice."""
    with broker_process(tmp_path) as (process, servers):
        port = int(servers.rsplit(":", 1)[1])
        create_topic(servers, "kept", 2, segment_bytes="1048576")
        writer = Writer(servers, "kept", enable_idempotence=True, reconnect_backoff_max_ms=200)
        with writer:
            writer.go_on(500)
            os.kill(process.pid, signal.SIGKILL)
            for _ in range(2):
                with broker_process(tmp_path, port) as (another, _):
                    writer.go_on(500)
                    os.kill(another.pid, signal.SIGKILL)
            with broker_process(tmp_path, port) as (_, servers):
                writer.go_on(500)
                writer.stop()
                found = everything(servers, "kept")
    assert not writer.failed
    assert len(writer.acknowledged) > 1000
    held = stored(found)
    assert len(held) == len(found), "an idempotent producer's records are there once"
    assert {number: held.get(number) for number in writer.acknowledged} == writer.acknowledged


def test_groups_survive_kill_9(tmp_path: Path) -> None:
    with broker_process(tmp_path) as (process, servers):
        port = int(servers.rsplit(":", 1)[1])
        create_topic(servers, "read", 2)
        with Writer(servers, "read") as writer:
            writer.go_on(100)
        member = MEMBER["confluent"](servers, "read", "readers")
        with closing_all(member):
            poll_until([member], lambda: member.assignment() == {0, 1})
            while not member.poll(0.5):
                pass
            member.commit()
            positions = _committed(servers)
            os.kill(process.pid, signal.SIGKILL)
            with broker_process(tmp_path, port) as (_, servers):
                assert _committed(servers) == positions
                assert max(positions) > 0


def _committed(servers: str) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "readers"})
    try:
        asked = [confluent_kafka.TopicPartition("read", partition) for partition in (0, 1)]
        return [one.offset for one in consumer.committed(asked, 60)]
    finally:
        consumer.close()


def test_a_full_disk_is_told_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with broker_process(tmp_path, file_size=1 << 20) as (process, servers):
        create_topic(servers, "full", 2)
        create_topic(servers, "small", 2)
        with Writer(servers, "full", message_timeout_ms=2000, batch_num_messages=100, enable_idempotence=False) as writer:
            end = time.monotonic() + PATIENCE
            while not writer.failed and time.monotonic() < end:
                time.sleep(0.1)
        # librdkafka tries again until its time is up, since a broker may get over such an error.
        assert writer.failed
        with RawClient(servers) as client:
            data = produce_request.PartitionProduceData(
                index=0, records=encode_batch([NewRecord(None, bytes(300_000), timestamp=1)] * 3)
            )
            topic = produce_request.TopicProduceData(name="full", partition_data=(data,))
            message = produce_request.ProduceRequest(acks=-1, timeout=timedelta(0), topic_data=(topic,))
            result = client.ask(Api.PRODUCE, message, 12).responses[0].partition_responses[0]
            assert result.error_code.name == "kafka_storage_error"
            assert "File too large" in result.error_message
        with Writer(servers, "small") as other:
            other.go_on()
        assert not other.failed, "a log that can be written to is"
        found = stored(everything(servers, "full"))
        assert {number: found.get(number) for number in writer.acknowledged} == writer.acknowledged
        process.kill()
    with Broker(tmp_path) as broker:
        found = stored(everything(broker.bootstrap_servers, "full"))
        assert {number: found.get(number) for number in writer.acknowledged} == writer.acknowledged


def _commit(client: RawClient, number: int) -> set[int]:
    """Commit the same offset for forty partitions, as one who is no member; the error codes of the answer."""
    partitions = tuple(
        offset_commit_request.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=number, committed_metadata="m" * 100
        )
        for partition in range(40)
    )
    topic = offset_commit_request.OffsetCommitRequestTopic(name="counted", partitions=partitions)
    message = offset_commit_request.OffsetCommitRequest(group_id="counting", member_id="", topics=(topic,))
    return {one.error_code for topic in client.ask(Api.OFFSET_COMMIT, message, 9).topics for one in topic.partitions}


def _offsets(client: RawClient) -> set[int]:
    wanted = offset_fetch_request.OffsetFetchRequestGroup(group_id="counting", topics=None)
    while True:
        (group,) = client.ask(Api.OFFSET_FETCH, offset_fetch_request.OffsetFetchRequest(groups=(wanted,)), 9).groups
        if group.error_code is not ErrorCode.coordinator_load_in_progress:
            break
        time.sleep(0.05)  # the broker has only just started
    assert not group.error_code
    return {one.committed_offset for topic in group.topics for one in topic.partitions}


def test_a_full_disk_fails_commits_and_offsets_stay_what_the_log_says(tmp_path: Path) -> None:
    with broker_process(tmp_path, file_size=1 << 20) as (process, servers):
        create_topic(servers, "counted", 40)
        with RawClient(servers) as client:
            number = next(number for number in range(1000) if _commit(client, number) != {0})
            assert number > 50, "the disk was not full at once"
            assert _offsets(client) == {number - 1}
            assert _commit(client, number) != {0}
            assert _offsets(client) == {number - 1}, "reads are served on"
        process.kill()
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        assert _offsets(client) == {number - 1}
        assert _commit(client, number) == {0}
        assert _offsets(client) == {number}


def _resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout) * 1024


def test_ten_thousand_bad_frames_and_two_hundred_half_ones(tmp_path: Path) -> None:
    with broker_process(tmp_path) as (process, servers):
        address = servers.rsplit(":", 1)
        create_topic(servers, "t", 2)
        with Writer(servers, "t") as writer:
            writer.go_on(100)
        before = _resident(process.pid)
        halves = []
        for number in range(200):
            sock = socket.create_connection((address[0], int(address[1])))
            sock.sendall(struct.pack(">i", 90 << 20) + bytes(number * 100))
            halves.append(sock)
        for frame in bad_frames(10_000, seed=7):
            with socket.create_connection((address[0], int(address[1]))) as sock:
                sock.sendall(frame)
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(10)
                try:
                    while sock.recv(65536):
                        pass
                except ConnectionError:
                    pass
        grown = _resident(process.pid) - before
        assert grown < 50 << 20, f"grown by {grown >> 20} MB"
        with RawClient(servers) as client:
            message = metadata_request.MetadataRequest(topics=None, include_topic_authorized_operations=False)
            assert {topic.name for topic in client.ask(Api.METADATA, message).topics} >= {"t"}
        with Writer(servers, "t") as writer:
            writer.go_on()
        for sock in halves:
            sock.close()
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        errors = (tmp_path.parent / f"{tmp_path.name}.errors").read_text()
    assert "Traceback" not in errors
    lines = errors.count("closing the connection from 127.0.0.1: ")
    left_out = [int(count) for count in re.findall(r"(?:were|closed) (\d+) more", errors)]
    assert 0 < lines < 50, "one line a minute"
    assert lines + sum(left_out) > 5_000, "and all of them are counted"


def test_a_broker_nobody_closed_still_ends_well(tmp_path: Path) -> None:
    program = f"import sys; from ottla import Broker; b = Broker({str(tmp_path)!r}); sys.exit(0)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
