"""The event loop on real sockets: order, limits, bad input, and that nothing ends it."""

from __future__ import annotations

import errno
import gc
import logging
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ottla import Broker
from ottla.broker import slices
from ottla.broker.core import BrokerCore
from ottla.broker.effects import SetTimer
from ottla.errors import ConfigError, IllegalStateError, OttlaError, StorageError
from ottla.faults import Faults
from ottla.protocol import ErrorCode
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader, encode_request
from ottla.protocol.messages import (
    api_versions_request,
    delete_topics_request,
    produce_request,
)
from ottla.records import iter_headers
from ottla.runtime import broker_node, clock, server, server_connection
from ottla.runtime.server import Server
from ottla.simulation.requests import creating
from ottla.types import Now
from tests.raw_client import RawClient
from tests.simulation.files import content
from tests.unit.runtime.requests import METADATA, batch, create, fetch_message, produce

VERSIONS = api_versions_request.ApiVersionsRequest(client_software_name="raw", client_software_version="1")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


# Order


def test_answers_leave_in_the_order_of_their_requests_though_one_is_parked(broker: Broker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        create(client, "t")
        begin = time.monotonic()
        sent = [
            client.send(Api.FETCH, fetch_message("t", wait=300), 12),
            client.send(Api.API_VERSIONS, VERSIONS),
            client.send(Api.METADATA, METADATA),
        ]
        ids = [client.receive(*one)[0] for one in sent]
        assert ids == [2, 3, 4]
        assert time.monotonic() - begin >= 0.3


def test_a_parked_fetch_does_not_hold_up_other_connections(broker: Broker) -> None:
    with RawClient(broker.bootstrap_servers) as waiting, RawClient(broker.bootstrap_servers) as other:
        create(other, "t")
        sent = waiting.send(Api.FETCH, fetch_message("t", wait=100_000), 12)
        begin = time.monotonic()
        assert other.ask(Api.METADATA, METADATA).topics[0].name == "t"
        produce(other, "t", batch())
        assert len(waiting.receive(*sent)[1].responses[0].partitions[0].records) > 100
        assert time.monotonic() - begin < 50


def test_many_requests_in_one_go_are_all_answered(broker: Broker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        sent = [client.send(Api.METADATA, METADATA) for _ in range(3 * server_connection.MAX_IN_FLIGHT)]
        assert [client.receive(*one)[0] for one in sent] == list(range(1, len(sent) + 1))


def test_what_follows_a_request_that_is_served_in_slices_is_handled_after_it(broker: Broker) -> None:
    names = [f"t{number}" for number in range(3 * slices.SIZE)]
    states = tuple(delete_topics_request.DeleteTopicState(name=name, topic_id=None) for name in names)
    deleting = delete_topics_request.DeleteTopicsRequest(topics=states, timeout=timedelta(seconds=30))
    with RawClient(broker.bootstrap_servers) as client:
        sent = [
            client.send(Api.CREATE_TOPICS, creating(*names)),
            client.send(Api.METADATA, METADATA),
            client.send(Api.DELETE_TOPICS, deleting),
            client.send(Api.CREATE_TOPICS, creating(*names[::-1])),
            client.send(Api.METADATA, METADATA),
        ]
        created, described, deleted, again, last = (client.receive(*one)[1] for one in sent)
    assert [row.error_code for row in created.topics] == [ErrorCode.none] * len(names)
    assert sorted(row.name for row in described.topics) == sorted(names)
    assert [row.error_code for row in deleted.responses] == [ErrorCode.none] * len(names)
    assert [row.error_code for row in again.topics] == [ErrorCode.none] * len(names)
    assert sorted(row.name for row in last.topics) == sorted(names)


def test_a_fault_that_keeps_the_answer_of_a_request_in_slices_does_not_keep_the_next_requests(broker: Broker) -> None:
    """``lose_reply`` and ``delay`` concern the answer: what comes behind it is carried out, as behind any other request."""
    names = [f"t{number}" for number in range(2 * slices.SIZE)]
    with RawClient(broker.bootstrap_servers) as watching:
        for fault in (broker.faults.lose_reply("CreateTopics"), broker.faults.delay("CreateTopics", 1_000.0)):
            with RawClient(broker.bootstrap_servers) as client:
                client.send(Api.CREATE_TOPICS, creating(*names))
                client.send(Api.CREATE_TOPICS, creating("last"))
                while "last" not in {row.name for row in watching.ask(Api.METADATA, METADATA).topics}:
                    pass
                assert fault.struck == 1
            broker.faults.clear()
            states = tuple(delete_topics_request.DeleteTopicState(name=name, topic_id=None) for name in (*names, "last"))
            watching.ask(Api.DELETE_TOPICS, delete_topics_request.DeleteTopicsRequest(topics=states, timeout=timedelta(seconds=30)))


def test_a_connection_that_sends_many_requests_at_once_gives_others_their_turn(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_TURN_MS", 0)  # one request a turn
    handle, served, both_have_sent = BrokerCore.handle, list[int](), threading.Event()

    def note(core: BrokerCore, header: RequestHeader, message: Any, ticket: int, connection: int, *rest: Any) -> Any:
        assert both_have_sent.wait(10)
        served.append(connection)
        return handle(core, header, message, ticket, connection, *rest)

    with RawClient(broker.bootstrap_servers) as greedy, RawClient(broker.bootstrap_servers) as other:
        for client in (greedy, other):
            client.ask(Api.METADATA, METADATA)
        monkeypatch.setattr(BrokerCore, "handle", note)
        sent = [greedy.send(Api.METADATA, METADATA) for _ in range(100)]
        asked = other.send(Api.METADATA, METADATA)
        both_have_sent.set()
        other.receive(*asked)
        for one in sent:
            greedy.receive(*one)
    (_, requests), (of_other, _) = Counter(served).most_common()
    assert requests == 100
    assert served.index(of_other) < 5
    assert len(served) == 101


# Large answers


def test_a_large_answer_comes_from_the_file_as_it_is(broker: Broker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        create(client, "t", max_message_bytes="4000000")
        batches = [batch(3_000_000), *(batch(1000, 10) for _ in range(300))]
        for one in batches:
            assert produce(client, "t", one).error_code is ErrorCode.none
        records = client.ask(Api.FETCH, fetch_message("t"), 12).responses[0].partitions[0].records
        assert len(records) == sum(map(len, batches))
        for (position, header), one in zip(iter_headers(records), batches, strict=True):
            assert records[position + 16 : position + header.size] == one[16:]


def test_a_client_that_does_not_read_is_not_read_from(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "MAX_OUTGOING", 4 << 20)
    with RawClient(broker.bootstrap_servers) as greedy, RawClient(broker.bootstrap_servers) as other:
        create(other, "t", max_message_bytes="2000000")
        for _ in range(8):
            produce(other, "t", batch(1_000_000))
        # A long client id fills the socket's buffers with few requests.
        header = RequestHeader(Api.FETCH, 12, 1, "x" * 30_000)
        frame = b"".join(map(content, encode_request(header, fetch_message("t"))))
        greedy.sock.settimeout(1.0)
        with pytest.raises(TimeoutError):
            greedy.sock.sendall(frame * 1000)
        assert other.ask(Api.METADATA, METADATA).error_code is ErrorCode.none
        for _ in range(3):
            assert len(greedy.receive(Api.FETCH, 12)[1].responses[0].partitions[0].records) > 8_000_000


# Bad input


def test_an_unknown_version_of_api_versions_is_answered_in_version_zero(broker: Broker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.send_frame(struct.pack(">hhih", 18, 99, 7, -1) + b"whatever")
        assert client.receive_frame() == struct.pack(">ihi", 7, 35, 1) + struct.pack(">hhh", 18, 0, 4)
        assert client.ask(Api.API_VERSIONS, VERSIONS).error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">i", -5), "negative length -5"),
        (struct.pack(">i", 200 << 20), "the limit is 104857600"),
        (b"GET / HTTP/1.1\r\n\r\n", "the limit is 104857600"),
        (struct.pack(">i", 3) + b"abc", "shorter than its header"),
        (struct.pack(">ihhih", 10, 999, 0, 1, -1), "API key 999 is unknown"),
        (struct.pack(">ihhih", 10, 3, 77, 1, -1), "METADATA version 77 is not supported"),
        (struct.pack(">ihhih", 10, 0, 2, 1, -1), "PRODUCE version 2 is not supported"),
        (struct.pack(">ihhih", 10, 3, 1, 1, -1), "MetadataRequest is truncated at byte 10"),
        (struct.pack(">ihhih", 20, 3, 1, 1, -1) + b"\x7f" * 10, "an array announces 2139062143 items"),
    ],
)
def test_a_bad_frame_closes_its_connection_with_one_line_that_says_why(
    broker: Broker, caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    with RawClient(broker.bootstrap_servers) as bad, caplog.at_level(logging.INFO, "ottla.broker"):
        bad.sock.sendall(data)
        assert bad.is_closed()
    (line,) = caplog.messages
    assert line.startswith("closing the connection from 127.0.0.1: ")
    assert reason in line
    assert "is it a Kafka port" not in line, "that is the text of the client"
    with RawClient(broker.bootstrap_servers) as good:
        assert good.ask(Api.METADATA, METADATA).error_code is ErrorCode.none


def test_a_client_that_repeats_its_mistake_gets_a_line_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed, real = [0], clock.now

    def moved() -> Now:
        mono, wall = real()
        return Now(mono + passed[0], wall + passed[0])

    monkeypatch.setattr(clock, "now", moved)
    with Broker() as broker, caplog.at_level(logging.INFO, "ottla.broker"):

        def send_bad_frames(count: int, address: str = "127.0.0.1") -> None:
            for _ in range(count):
                with RawClient(broker.bootstrap_servers, source=address) as client:
                    client.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    assert client.is_closed()

        send_bad_frames(5)
        assert len(caplog.messages) == 1
        send_bad_frames(2, "127.0.0.2")
        assert [message[:40] for message in caplog.messages[1:]] == ["closing the connection from 127.0.0.2: a"]
        passed[0] += server.INTERVAL_MS
        send_bad_frames(3)
        assert caplog.messages[2].startswith("closing the connection from 127.0.0.1: ")
        assert caplog.messages[2].endswith(" (as were 4 more from there since the last such line)")
        assert len(caplog.messages) == 3
        passed[0] += 2 * server.INTERVAL_MS
        with RawClient(broker.bootstrap_servers) as good:  # so that the loop has a turn
            assert good.ask(Api.METADATA, METADATA).error_code is ErrorCode.none
            assert good.ask(Api.METADATA, METADATA).error_code is ErrorCode.none
        assert sorted(caplog.messages[3:]) == [
            "closed 1 more connections from 127.0.0.2 because of invalid input",
            "closed 2 more connections from 127.0.0.1 because of invalid input",
        ]
        send_bad_frames(2)
    assert caplog.messages[6:] == ["closed 1 more connections from 127.0.0.1 because of invalid input"], "at its end"


def test_half_a_frame_is_not_waited_for_forever(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STALLED_FRAME_MS", 100)
    with RawClient(broker.bootstrap_servers) as client:
        client.sock.sendall(struct.pack(">i", 1000) + b"half")
        assert client.is_closed()
    assert "a frame has begun and no more of it arrived" in caplog.text


def test_an_idle_connection_is_closed_and_a_waiting_one_is_not() -> None:
    with (
        Broker(settings={"connections.max.idle.ms": 1_000}) as broker,
        RawClient(broker.bootstrap_servers) as idle,
        RawClient(broker.bootstrap_servers) as waiting,
    ):
        create(waiting, "t")
        sent = waiting.send(Api.FETCH, fetch_message("t", wait=3_000), 12)
        assert idle.is_closed()
        assert waiting.receive(*sent)[1].error_code is ErrorCode.none


def test_the_end_of_a_connection_with_too_much_in_flight_is_noticed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from it, so the end of its stream is not either."""
    gone = threading.Event()
    disconnect = BrokerCore.on_disconnect

    def on_disconnect(core: BrokerCore, connection: int, now: Now) -> Any:
        gone.set()
        return disconnect(core, connection, now)

    monkeypatch.setattr(BrokerCore, "on_disconnect", on_disconnect)
    with RawClient(broker.bootstrap_servers) as watching:
        create(watching, "t")
        with RawClient(broker.bootstrap_servers) as client:
            for _ in range(server_connection.MAX_IN_FLIGHT):
                client.send(Api.FETCH, fetch_message("t", wait=600_000), 12)
            while len(_in_flight(broker)) < server_connection.MAX_IN_FLIGHT:
                watching.ask(Api.METADATA, METADATA)
        assert gone.wait(10)


def test_requests_that_arrived_before_the_end_of_their_connection_are_handled() -> None:
    """As by Kafka: a producer with acks=0 sends its last records and closes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = server_connection.Connection(1, ours, "host", 1 << 20, 0)
        size = 100_000  # the second read, of the rest, fills its buffer: there may be more to read
        theirs.sendall(struct.pack(">i", size) + b"x" * size)
        theirs.close()
        assert connection.receive(0), "the end comes with the same call"
        frame = connection.next_frame()
        assert frame is not None
        assert len(frame) == size
        assert not connection.receive(0)


def test_what_waits_behind_a_request_in_slices_is_handled_though_its_client_sends_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_SWEEP_MS", 0)  # each turn looks for the ends of connections
    data = produce_request.PartitionProduceData(index=0, records=batch())
    message = produce_request.ProduceRequest(
        acks=0, timeout=timedelta(0), topic_data=(produce_request.TopicProduceData(name="t0", partition_data=(data,)),)
    )
    with Broker() as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.send(Api.CREATE_TOPICS, creating(*(f"t{number}" for number in range(20 * slices.SIZE))))
            client.send(Api.PRODUCE, message, 12)
            client.sock.shutdown(socket.SHUT_WR)
            assert len(client.receive(Api.CREATE_TOPICS, SPOKEN[Api.CREATE_TOPICS].maximum)[1].topics) == 20 * slices.SIZE
            assert client.is_closed()
        with RawClient(broker.bootstrap_servers) as client:
            assert client.ask(Api.FETCH, fetch_message("t0"), 12).responses[0].partitions[0].records


def _in_flight(broker: Broker) -> dict[int, Any]:
    node = broker._node
    assert node is not None
    return node._server._tickets


def test_a_failure_inside_the_broker_closes_one_connection_and_is_logged(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RawClient(broker.bootstrap_servers) as unlucky, RawClient(broker.bootstrap_servers) as lucky:
        with monkeypatch.context() as patch:
            patch.setattr(server, "decode_request", lambda frame: 1 / 0)
            unlucky.send(Api.METADATA, METADATA)
            assert unlucky.is_closed()
        assert lucky.ask(Api.METADATA, METADATA).error_code is ErrorCode.none
    assert "the broker failed to serve it" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_an_effect_that_cannot_be_carried_out_does_not_take_the_others_with_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(faults: Faults, number: int) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Faults, "on_strike", broken)
    with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        broker.faults.delay("Metadata", 0.01)
        assert client.ask(Api.METADATA, METADATA).brokers
        assert client.ask(Api.METADATA, METADATA).brokers
    assert "the broker failed to carry out FaultStruck" in caplog.text


def test_clients_have_their_turn_between_what_many_jobs_bring(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a start with many groups, when all that was read of their log is there at the same time."""
    all_done, asked, answered = (threading.Event() for _ in range(3))
    waits = iter([asked, *[None] * 8, answered])
    in_time: list[bool] = []

    def on_job(core: BrokerCore, tag: object, outcome: object, now: object) -> list[Any]:
        event = next(waits, None)
        if event is not None:
            in_time.append(event.wait(60.0))
        return []

    monkeypatch.setattr(server, "_TURN_MS", 0)
    monkeypatch.setattr(BrokerCore, "on_job", on_job)
    with RawClient(broker.bootstrap_servers) as client:
        node = broker._node
        assert node is not None
        for _ in range(10):
            node._server.run_in_background(lambda: None)
        node._server.run_in_background(all_done.set)
        all_done.wait()
        sent = client.send(Api.METADATA, METADATA)
        asked.set()
        client.receive(*sent)
        answered.set()
        while len(in_time) < 2:
            client.ask(Api.METADATA, METADATA)
    assert in_time == [True, True]


def test_clients_have_their_turn_between_many_timers_that_are_due(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the files of thousands of logs are to be removed at the same time."""
    asked, answered = threading.Event(), threading.Event()
    waits = iter([asked, *[None] * 8, answered])
    in_time: list[bool] = []

    def on_timer(core: BrokerCore, key: object, now: object) -> list[Any]:
        event = next(waits, None)
        if event is not None:
            in_time.append(event.wait(60.0))
        return []

    monkeypatch.setattr(server, "_TURN_MS", 0)
    monkeypatch.setattr(BrokerCore, "on_timer", on_timer)
    with RawClient(broker.bootstrap_servers) as client:
        node = broker._node
        assert node is not None
        many = [SetTimer(("test", number), 0) for number in range(10)]
        node._server._in_loop(lambda: node._server.perform(many) or 0)
        sent = client.send(Api.METADATA, METADATA)
        asked.set()
        client.receive(*sent)
        answered.set()
        while len(in_time) < 2:
            client.ask(Api.METADATA, METADATA)
    assert in_time == [True, True]


def test_a_loop_that_fails_says_so_to_its_user(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    with RawClient(broker.bootstrap_servers) as client:
        monkeypatch.setattr(Server, "_run_timers", lambda self: 1 / 0)
        client.send(Api.METADATA, METADATA)
        while not client.is_closed():
            pass
    with pytest.raises(OttlaError, match="the broker has failed: ZeroDivisionError"):
        _ = broker.bootstrap_servers
    assert "has failed and serves no more" in caplog.text
    broker.close()


# Starting and stopping


def test_a_port_that_is_taken_is_named(broker: Broker) -> None:
    port = int(broker.bootstrap_servers.rsplit(":", 1)[1])
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use .use another port"):
        Broker(port=port)


def test_an_address_that_is_not_ours_is_named() -> None:
    for host in ("192.0.2.1", "127.0.0.1:9092", f"{'a' * 70}.example"):
        with pytest.raises(ConfigError, match=rf"cannot listen on {host}:0: .*host is a name or an address of this machine"):
            Broker(host=host)


def test_a_directory_is_used_by_one_broker_at_a_time(tmp_path: Path) -> None:
    with Broker(tmp_path), pytest.raises(StorageError, match="in use by another broker"):
        Broker(tmp_path)
    Broker(tmp_path).close()


def test_a_directory_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Not a directory"):
        Broker(tmp_path / "file" / "data")


def test_a_directory_belongs_to_one_node(tmp_path: Path) -> None:
    Broker(tmp_path, settings={"node.id": 4}).close()
    with pytest.raises(StorageError, match=r"belongs to node\.id 4"):
        Broker(tmp_path)


def test_an_unknown_setting_is_refused_before_anything_happens(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions"):
        Broker(tmp_path / "data", settings={"num.partition": 3})
    assert not (tmp_path / "data").exists()


def test_a_broker_that_listens_everywhere_needs_an_advertised_name() -> None:
    with pytest.raises(ConfigError, match=r"advertised\.listeners"):
        Broker(host="0.0.0.0")
    with Broker(host="0.0.0.0", settings={"advertised.listeners": "PLAINTEXT://localhost:0"}) as broker:
        assert broker.bootstrap_servers.startswith("localhost:")
        with RawClient(broker.bootstrap_servers) as client:
            assert client.ask(Api.METADATA, METADATA).brokers[0].host == "localhost"


def test_a_temporary_folder_goes_with_its_broker() -> None:
    broker = Broker()
    folder = broker.data_dir
    assert folder.is_dir()
    broker.close()
    broker.close()
    assert not folder.exists()
    with pytest.raises(IllegalStateError):
        _ = broker.bootstrap_servers


def test_closing_leaves_nothing_open() -> None:
    folder = next(path for path in ("/proc/self/fd", "/dev/fd") if Path(path).exists())
    gc.collect()
    before = len(os.listdir(folder))
    gc.disable()
    for _ in range(3):
        with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
            create(client, "t")
            produce(client, "t", batch())
    gc.enable()
    assert len(os.listdir(folder)) <= before


def test_a_good_end_leaves_the_marker_and_the_next_start_takes_it(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        create(client, "t")
        produce(client, "t", batch(count=3))
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 3\n"
    meta = dict(line.split("=") for line in (tmp_path / "meta.properties").read_text().splitlines())
    assert (meta["version"], meta["node.id"], len(meta["cluster.id"])) == ("1", "1", 22)
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        assert client.ask(Api.METADATA, METADATA).cluster_id == meta["cluster.id"]
        assert client.ask(Api.FETCH, fetch_message("t"), 12).responses[0].partitions[0].high_watermark == 3


def test_an_end_that_takes_long_says_how_far_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_node, "_LOG_EVERY_MS", 0)
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        create(client, "t")
        produce(client, "t", batch())
    assert "the broker is shutting down: " in caplog.text


def test_a_forked_child_does_the_parent_no_harm(broker: Broker) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            broker.close()
            with RawClient(broker.bootstrap_servers) as client:
                status = 0 if client.ask(Api.METADATA, METADATA).error_code == 0 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with RawClient(broker.bootstrap_servers) as client:
        assert client.ask(Api.METADATA, METADATA).error_code is ErrorCode.none
    assert broker.data_dir.is_dir()


def test_a_forked_child_does_not_keep_the_port_or_the_directory(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    port = int(broker.bootstrap_servers.rsplit(":", 1)[1])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        broker.close()
        Broker(tmp_path, port=port).close()
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)


def test_a_child_that_has_not_come_to_run_does_not_keep_them_either(tmp_path: Path) -> None:
    """``subprocess`` forks without the hooks that close a child's copies, and so is any child until the machine lets it run."""
    broker = Broker(tmp_path)
    port = int(broker.bootstrap_servers.rsplit(":", 1)[1])
    node = broker._node
    assert node is not None
    copies = (node._server._listener.fileno(), node._data._lock.fileno())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=copies) as child:
        broker.close()
        with Broker(tmp_path, port=port) as again, RawClient(again.bootstrap_servers) as client:
            assert client.ask(Api.METADATA, METADATA).error_code is ErrorCode.none
        child.communicate(b"\n")


def test_more_connections_than_descriptors_are_survived(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(errno.EMFILE, "Too many open files")] * 2)
    real = socket.socket.accept

    def accept(self: socket.socket) -> Any:
        for failure in failures:
            raise failure
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    with RawClient(broker.bootstrap_servers) as client:
        assert client.ask(Api.METADATA, METADATA).error_code is ErrorCode.none
    assert [record.getMessage() for record in caplog.records if record.name == "ottla.broker"] == [
        "0 connections are open, and new ones have to wait until some are closed: Too many open files"
    ]


def test_an_unreadable_sector_costs_a_connection_once_and_is_then_named(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header of the first answer was on its way. Without an end to that, a consumer would be disconnected for ever."""
    with RawClient(broker.bootstrap_servers) as client:
        create(client, "t")
        assert produce(client, "t", batch(40_000)).error_code is ErrorCode.none
    real = os.pread

    def sendfile(*args: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def pread(fd: int, size: int, position: int) -> bytes:
        if size > 10_000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, size, position)

    monkeypatch.setattr(os, "sendfile", sendfile)
    monkeypatch.setattr(os, "pread", pread)
    with RawClient(broker.bootstrap_servers) as client, pytest.raises(ConnectionError):
        client.ask(Api.FETCH, fetch_message("t"), 12)
    with RawClient(broker.bootstrap_servers) as client:
        partition = client.ask(Api.FETCH, fetch_message("t"), 12).responses[0].partitions[0]
    assert partition.error_code is ErrorCode.kafka_storage_error
    assert "a part of a log file cannot be read" in caplog.text
    assert "t-0 could not be read: [Errno 5] Input/output error" in caplog.text


def test_a_connection_that_cannot_be_watched_is_closed_and_the_next_is_served(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(errno.ENOSPC, "No space left on device")])
    real = selectors.DefaultSelector.register

    def register(self: Any, file: socket.socket, *args: Any) -> Any:
        # On a busy machine the broker begins only now to watch its listening socket.
        if file.family is not socket.AF_UNIX and not file.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            for failure in failures:
                raise failure
        return real(self, file, *args)

    monkeypatch.setattr(selectors.DefaultSelector, "register", register)
    with RawClient(broker.bootstrap_servers) as unlucky:
        assert unlucky.is_closed()
    with RawClient(broker.bootstrap_servers) as client:
        assert client.ask(Api.METADATA, METADATA).error_code is ErrorCode.none
    assert "the event loop cannot watch it: No space left on device" in caplog.text
