"""Channels of central groups between real brokers and consumers: garbage, in both directions, and frames of earlier epochs.

Neither ends a broker or a member, and the group goes on as before. A member logs each connection that garbage costs once, and the
loss of its channel once; a broker logs the first one of an address, and later how many more there were.
"""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ottla import Broker, Producer
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.codec import RequestHeader, encode_answer, encode_request
from ottla.protocol.messages import ping_request, ping_response, start_request, start_response, stop_request, stop_response
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.end_to_end.broker_cluster import SETTINGS, BrokerCluster, nodes_of, until, until_each
from tests.end_to_end.central_consumers import Member
from tests.end_to_end.central_history import History
from tests.end_to_end.channel_proxy import ChannelProxy, Link, channel_proxy
from tests.end_to_end.programs import free_port
from tests.malformed_frames import bad_frames
from tests.simulation.files import content

pytestmark = pytest.mark.long

BROKERS = 2
PARTITIONS = 4
ROUNDS = 8
GROUP = "g"


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(settings={"tickTime": 500}) as server:
        yield server


class Scene:
    """Two brokers behind a proxy each, and two members of a group, ``a`` and ``b``, that read records meanwhile."""

    def __init__(self, cluster: BrokerCluster, proxies: list[ChannelProxy], stack: ExitStack) -> None:
        self.cluster, self._proxies = cluster, proxies
        cluster.create_topic("t", PARTITIONS)
        addresses = [proxy.address for proxy in proxies]
        self.members = [Member(addresses, "t", consumer_id=name, session_timeout=6) for name in "ab"]
        for member in self.members:
            stack.callback(member.close)
        self._produced = 0
        self.go_on()

    def go_on(self) -> None:
        """Wait until the group shares the partitions, and reads what is written now."""
        until(lambda: len(self.channels()) == 2 and [len(member.owned) for member in self.members] == [2, 2])
        with Producer(bootstrap_servers=self.cluster.brokers[0].bootstrap_servers) as producer:
            for number in range(20):
                producer.send("t", b"", partition=number % PARTITIONS)
        self._produced += 20
        until(lambda: len({record for member in self.members for record in member.handled}) == self._produced)

    def channels(self) -> list[Link]:
        return [link for proxy in self._proxies for link in proxy.channels()]

    def any_channel(self, chance: random.Random) -> Link:
        """One of the channels, when each member has one again."""
        until(lambda: len(self.channels()) == len(self.members))
        return chance.choice(self.channels())

    def calls(self) -> list[list[tuple[str, list[int]]]]:
        return [list(member.calls) for member in self.members]

    def check(self, server: ZooKeeperServer) -> None:
        """No member has had an error, and ZooKeeper's log has no commit of another than the owner, and none that goes back."""
        assert [error for member in self.members for error in member.errors] == []
        until(lambda: self.commits(server) == {f"{GROUP}_a", f"{GROUP}_b"})

    def commits(self, server: ZooKeeperServer) -> set[str]:
        """Those who have committed."""
        return {commit.owner for commit in History(server.data_dir / "node-1", self.cluster.chroot, GROUP, "t").commits}


@pytest.fixture
def scene(server: ZooKeeperServer, tmp_path: Path) -> Iterator[Scene]:
    cluster = BrokerCluster(server.connect_string, tmp_path)
    with ExitStack() as stack:
        stack.callback(cluster.close)
        proxies = []
        for number in range(BROKERS):
            port = free_port()
            proxies.append(stack.enter_context(channel_proxy("127.0.0.1", port)))
            settings = {**SETTINGS, "advertised.listeners": f"PLAINTEXT://{proxies[-1].address}"}
            cluster.brokers.append(Broker(tmp_path / str(number), port, zookeeper=cluster.connect, settings=settings))
        until_each(cluster.brokers, lambda broker: len(nodes_of(broker)) == BROKERS)
        yield Scene(cluster, proxies, stack)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def pushed(api: Api, message: object, correlation_id: int = 9999) -> bytes:
    return b"".join(map(content, encode_request(RequestHeader(api, 0, correlation_id, ""), message)))


def answer(api: Api, message: object, correlation_id: int = 9999) -> bytes:
    return b"".join(map(content, encode_answer(RequestHeader(api, 0, correlation_id, "raw"), message)))


def garbage(chance: random.Random) -> bytes:
    """Bytes that are no frame of a channel, but soon end one: for the rest of half a frame both sides wait until the other is
    silent for too long."""
    damaged = bytearray(pushed(Api.PING, ping_request.PingRequest(group_id="g", member_id="m", coordinator_epoch=1, generation=1)))
    damaged[chance.randrange(4, len(damaged))] ^= 1 << chance.randrange(8)
    return chance.choice(
        [
            framed(chance.randbytes(chance.randrange(200))),
            struct.pack(">i", -1),
            struct.pack(">i", 0x7FFFFFFF) + b"x",  # longer than any frame may be
            framed(struct.pack(">hh", Api.PING, 7)),
            framed(struct.pack(">hhi", Api.START, 0, 1) + chance.randbytes(40)),
            framed(struct.pack(">i", 0)),
            bytes(damaged),
        ]
    )


def lines_with(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return len([record for record in caplog.records if text in record.getMessage()])


def check_logs(caplog: pytest.LogCaptureFixture, most: int) -> None:
    """Each cause is on a bounded number of lines, and none is an error. ``most``: so many channels were lost."""
    ours = [record for record in caplog.records if record.name.startswith("ottla")]
    assert [record for record in ours if record.levelno >= logging.ERROR or record.exc_info] == []
    assert 1 <= lines_with(caplog, "the channel to the coordinator is lost") <= most
    assert len([record for record in ours if record.name == "ottla.client.connections.connections"]) <= most
    for text in ("closing the connection from", "because of invalid input"):
        assert len([record for record in ours if record.name == "ottla.broker" and text in record.getMessage()]) <= BROKERS
    assert len([record for record in ours if record.levelno >= logging.WARNING]) <= 3 * most, "nothing else is repeated"


def test_garbage_from_the_coordinator_costs_a_channel_and_no_more(
    server: ZooKeeperServer, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(1)
    before = scene.calls()
    for _ in range(ROUNDS):
        link = scene.any_channel(chance)
        link.send(link.client, garbage(chance))
        scene.go_on()
    assert scene.calls() == before, "no member has lost its partitions, or had to give them up"
    scene.check(server)
    check_logs(caplog, most=ROUNDS)


def test_garbage_from_a_member_costs_its_channel_and_no_more(
    server: ZooKeeperServer, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(2)
    before = scene.calls()
    half = pushed(Api.PING, ping_request.PingRequest(group_id="g", member_id="m", coordinator_epoch=1, generation=1))[:20]
    whole = [frame for frame in bad_frames(ROUNDS, 3) if len(frame) >= 4 + struct.unpack_from(">i", frame)[0]]
    for frame in (*whole[: ROUNDS // 2], *(garbage(chance) for _ in range(ROUNDS // 2)), half):
        link = scene.any_channel(chance)
        link.send(link.broker, frame)
        scene.go_on()
    assert scene.calls() == before
    scene.check(server)
    check_logs(caplog, most=ROUNDS + 1)


def test_frames_of_an_earlier_epoch_or_generation_are_refused_and_logged_once(
    server: ZooKeeperServer, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    before = scene.calls()
    channels = scene.channels()
    with caplog.at_level(logging.INFO):
        for member_id in (f"{GROUP}_a", f"{GROUP}_b"):
            for epoch, generation in ((0, 99), (1, 0), (-1, -1)):
                whose: dict[str, Any] = {
                    "group_id": GROUP,
                    "member_id": member_id,
                    "coordinator_epoch": epoch,
                    "generation": generation,
                }
                asked = [
                    pushed(Api.PING, ping_request.PingRequest(**whose)),
                    pushed(Api.STOP, stop_request.StopRequest(**whose, reason="")),
                    pushed(Api.START, start_request.StartRequest(**whose)),
                ]
                answered = [
                    answer(Api.PING, ping_response.PingResponse(error_code=ErrorCode.none, **whose)),
                    answer(Api.STOP, stop_response.StopResponse(error_code=ErrorCode.none, **whose)),
                    answer(Api.START, start_response.StartResponse(error_code=ErrorCode.none, **whose)),
                ]
                for link in channels:
                    for frame in asked:
                        link.send(link.client, frame)
                    for frame in answered:
                        link.send(link.broker, frame)
        scene.go_on()
        # Records come over other connections, perhaps before these frames.
        until(lambda: min(lines_with(caplog, "is refused: the member knows epoch"), lines_with(caplog, "for another member")) >= 2)
        scene.go_on()
    assert scene.channels() == channels, "no channel is closed"
    assert scene.calls() == before
    scene.check(server)
    assert lines_with(caplog, "is refused: the member knows epoch") == 2, "once for each member"
    assert lines_with(caplog, "for another member") == 2
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
