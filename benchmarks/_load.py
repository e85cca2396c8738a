"""A load generator for coordinators: a process that sends prepared bytes over pipelined sockets and counts the responses.

    python benchmarks/_load.py KIND SERVERS GROUP MEMBERS

``KIND``: ``classic`` or ``consumer`` (heartbeats of a stable group), ``commit`` (OffsetCommit of ten partitions, each member for
its own group). It creates the group and prints ``{"ready": ...}`` with the time this took. Then, for each number of seconds on
stdin, it sends requests for so long and prints the number of responses and the time. ``fill`` creates MEMBERS groups with offsets,
``loaded`` waits until the broker serves all of them.

Each connection repeats the same requests, so it must get the same responses again: the first round is decoded and checked, and all
later ones are compared with it byte by byte. This detects every wrong response, and costs a hundredth of the broker's processor
time.
"""

from __future__ import annotations

import json
import selectors
import sys
import time
import uuid
from datetime import timedelta
from typing import Any

from _wire import Api, Lane, received

CONNECTIONS = 4
WINDOW = 100
"""Requests in flight on each connection."""
CHUNK = 25
"""Requests that are written at once."""
PARTITIONS = 10
"""Partitions of the topic for commits. The topic of a consumer group has a partition per member, up to 200."""

Request = tuple[Api, dict[str, Any]]


class Pump:
    """One connection that repeats its requests."""

    def __init__(self, servers: str, requests: list[Request]) -> None:
        self._lane = Lane(servers)
        self.sock = self._lane.sock
        frames = [api.request(number, **fields) for number, (api, fields) in enumerate(requests)]
        answers = self._round(frames, [api for api, _ in requests])
        assert answers == self._round(frames, [api for api, _ in requests]), "the same requests got other answers"
        self._count = len(frames)
        self._chunks = [b"".join(frames[at : at + CHUNK]) for at in range(0, len(frames), CHUNK)]
        self._sizes = [sum(map(len, answers[at : at + CHUNK])) for at in range(0, len(frames), CHUNK)]
        self._expected = b"".join(answers)
        self._long = self._expected * (2 + (1 << 18) // len(self._expected))
        self._window = max(1, WINDOW * len(self._expected) // len(frames))
        self._next = self._owed = self._position = self._received = 0

    def fill(self) -> None:
        """Send requests until ``WINDOW`` of them are in flight."""
        while self._owed < self._window:
            self.sock.sendall(self._chunks[self._next])
            self._owed += self._sizes[self._next]
            self._next = (self._next + 1) % len(self._chunks)

    def drain(self) -> None:
        """Receive and compare response bytes."""
        data = received(self.sock)
        if self._long[self._position : self._position + len(data)] != data:
            raise AssertionError("a response differs from that of the first round")
        self._position = (self._position + len(data)) % len(self._expected)
        self._owed -= len(data)
        self._received += len(data)

    def finish(self) -> float:
        """Wait for all outstanding responses. Return the number of responses since the last call."""
        while self._owed:
            self.drain()
        answered, self._received = self._received / len(self._expected) * self._count, 0
        return answered

    def _round(self, frames: list[bytes], apis: list[Api]) -> list[bytes]:
        answers = []
        for at in range(0, len(frames), CHUNK):
            self.sock.sendall(b"".join(frames[at : at + CHUNK]))
            answers += [self._lane.frame() for _ in frames[at : at + CHUNK]]
        for api, answer in zip(apis, answers, strict=True):
            check(api.response(answer))
        return [len(answer).to_bytes(4, "big") + answer for answer in answers]


def check(response: Any) -> Any:
    """Return the response. Raises ``AssertionError`` if it has an error code."""
    errors = [response.error_code] if hasattr(response, "error_code") else []
    errors += [partition.error_code for topic in getattr(response, "topics", ()) for partition in topic.partitions]
    assert errors, response
    assert not any(errors), response
    return response


def run(pumps: list[Pump], seconds: float) -> tuple[float, float]:
    """Send for ``seconds``. Return the number of responses and the elapsed seconds."""
    with selectors.DefaultSelector() as selector:
        for pump in pumps:
            selector.register(pump.sock, selectors.EVENT_READ, pump)
        begin = time.perf_counter()
        for pump in pumps:
            pump.fill()
        while time.perf_counter() - begin < seconds:
            for key, _ in selector.select(1):
                key.data.drain()
                key.data.fill()
        answered = sum(pump.finish() for pump in pumps)
        return answered, time.perf_counter() - begin


def create_topic(lane: Lane, partitions: int) -> str:
    """Create a topic with so many partitions, wait until the broker has it, and return its name."""
    create, metadata, name = Api("create_topics", 7), Api("metadata", 12), topic_of(partitions)
    topic = create.requests.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
    lane.ask(create, topics=(topic,), timeout=timedelta(seconds=30))
    asked = metadata.requests.MetadataRequestTopic(topic_id=None, name=name)
    while True:
        (found,) = lane.ask(metadata, topics=(asked,), include_topic_authorized_operations=False).topics
        if not found.error_code:
            assert len(found.partitions) == partitions, found
            return name
        time.sleep(0.1)


def topic_of(partitions: int) -> str:
    """Return the name of the topic with so many partitions."""
    return f"load-{partitions}"


def ready(lane: Lane, group: str) -> None:
    """Wait until the coordinator of the group serves requests."""
    find, fetch = Api("find_coordinator", 4), Api("offset_fetch", 8)
    wanted = fetch.requests.OffsetFetchRequestGroup(group_id=group, topics=None)
    while True:
        (found,) = lane.ask(find, key_type=0, coordinator_keys=(group,)).coordinators
        if not found.error_code:
            (answer,) = lane.ask(fetch, groups=(wanted,), require_stable=False).groups
            if not answer.error_code:
                return
        time.sleep(0.1)


def classic_members(servers: str, group: str, count: int) -> list[Request]:
    """Form a classic group and return its heartbeats. Each member joins over its own connection, as its JoinGroup request blocks
    it."""
    join, sync, heartbeat = Api("join_group", 9), Api("sync_group", 5), Api("heartbeat", 4)
    protocol = join.requests.JoinGroupRequestProtocol(name="range", metadata=b"\0\1\0\0\0\1\0\4load\0\0\0\0")
    fields = {
        "group_id": group,
        "session_timeout": timedelta(minutes=5),
        "rebalance_timeout": timedelta(minutes=5),
        "protocol_type": "consumer",
        "protocols": (protocol,),
    }
    lanes = [Lane(servers) for _ in range(count)]
    ids = []
    for lane in lanes:
        ids.append(lane.ask(join, member_id="", **fields).member_id)
        if lane is lanes[0]:  # the first member forms the group alone; the others' JoinGroup requests wait until it rejoins
            check(lane.ask(join, member_id=ids[0], **fields))
    for lane, member_id in [*zip(lanes, ids, strict=True)][1:]:
        lane.sock.sendall(join.request(1, member_id=member_id, **fields))
    time.sleep(0.5)
    lanes[0].sock.sendall(join.request(1, member_id=ids[0], **fields))
    joined = [check(join.response(lane.frame())) for lane in lanes]
    generation = joined[0].generation_id
    assert all(one.generation_id == generation for one in joined)
    common = {"group_id": group, "generation_id": generation, "protocol_type": "consumer", "protocol_name": "range"}
    given = tuple(
        sync.requests.SyncGroupRequestAssignment(member_id=member_id, assignment=b"\0\1\0\0\0\0\0\0\0\0") for member_id in ids
    )
    for lane, one in zip(lanes, joined, strict=True):
        assignments = given if one.leader == one.member_id else ()
        lane.sock.sendall(sync.request(1, member_id=one.member_id, assignments=assignments, **common))
    for lane in lanes:
        check(sync.response(lane.frame()))
        lane.sock.close()
    return [(heartbeat, {"group_id": group, "generation_id": generation, "member_id": member_id}) for member_id in ids]


def consumer_members(servers: str, group: str, count: int, topic: str) -> tuple[list[Request], float]:
    """Form a consumer group (KIP-848). Return its heartbeats, and the seconds that the first ones took."""
    api, lane = Api("consumer_group_heartbeat", 1), Lane(servers)
    owned: dict[str, tuple[Any, ...]] = {str(uuid.uuid4()): () for _ in range(count)}
    epochs: dict[str, int] = {}

    def store(member_id: str, answer: Any) -> bool:
        """Store the response. Return whether it changed the member's epoch or assignment."""
        check(answer)
        news = answer.assignment is not None or answer.member_epoch != epochs.get(member_id)
        epochs[member_id] = answer.member_epoch
        if answer.assignment is not None:
            owned[member_id] = tuple(
                api.requests.TopicPartitions(topic_id=one.topic_id, partitions=one.partitions)
                for one in answer.assignment.topic_partitions
            )
        return news

    def round_of(members: list[str]) -> bool:
        """Send a heartbeat of each member. Return whether any response changed an epoch or assignment."""
        for one in members:
            fields = {"member_epoch": epochs[one], "topic_partitions": owned[one]}
            lane.sock.sendall(api.request(1, group_id=group, member_id=one, **fields))
        news = [store(one, api.response(lane.frame())) for one in members]
        return any(news)

    if count >= 1000:  # without an interval, the broker would compute an assignment of all members for each join
        set_interval(lane, group, "consumer.assignment.interval.ms", 1000)
    first = {
        "member_epoch": 0,
        "rebalance_timeout": timedelta(minutes=1),
        "subscribed_topic_names": (topic,),
        "topic_partitions": (),
    }
    begin = time.perf_counter()
    for one in owned:
        store(one, lane.ask(api, group_id=group, member_id=one, **first))
    seconds = time.perf_counter() - begin
    quiet, members = 0, list(owned)
    while quiet < 3:  # Kafka's interval between two assignments is a second
        news = [round_of(members[at : at + CHUNK]) for at in range(0, count, CHUNK)]
        quiet = 0 if any(news) or len(set(epochs.values())) > 1 else quiet + 1
        time.sleep(0.6)
    beats = [(api, {"group_id": group, "member_id": one, "member_epoch": epochs[one], "topic_partitions": None}) for one in owned]
    return beats, seconds


def set_interval(lane: Lane, group: str, name: str, milliseconds: int) -> None:
    """Set an interval in the configuration of a group."""
    api = Api("incremental_alter_configs", 1)
    config = api.requests.AlterableConfig(name=name, config_operation=0, value=str(milliseconds))
    resource = api.requests.AlterConfigsResource(resource_type=32, resource_name=group, configs=(config,))
    (answer,) = lane.ask(api, resources=(resource,), validate_only=False).responses
    assert not answer.error_code, answer


def commits(group: str, count: int) -> list[Request]:
    """Return OffsetCommit requests for ten partitions, for ``count`` groups without members."""
    api = Api("offset_commit", 9)
    partitions = tuple(
        api.requests.OffsetCommitRequestPartition(partition_index=number, committed_offset=1000 + number, committed_metadata="")
        for number in range(PARTITIONS)
    )
    topics = (api.requests.OffsetCommitRequestTopic(name=topic_of(PARTITIONS), partitions=partitions),)
    common = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    return [(api, {"group_id": f"{group}-{number}", **common}) for number in range(count)]


def fill(servers: str, group: str, count: int) -> None:
    """Commit ten offsets for each of ``count`` groups."""
    lane = Lane(servers)
    create_topic(lane, PARTITIONS)
    ready(lane, group)
    ((api, fields),) = commits(group, 1)
    check(lane.ask(api, **{**fields, "group_id": numbered(group, 0)}))
    template = api.request(1, **{**fields, "group_id": numbered(group, 0)})
    lane.sock.sendall(template)
    expected = lane.frame()
    for at in range(0, count, WINDOW):
        numbers = range(at, min(at + WINDOW, count))
        lane.sock.sendall(
            b"".join([template.replace(numbered(group, 0).encode(), numbered(group, number).encode()) for number in numbers])
        )
        for _ in numbers:
            assert lane.frame() == expected, "a commit was refused"


def loaded(servers: str, group: str, count: int) -> None:
    """Wait until the broker returns the offsets of a thousand of the groups, and of the last one."""
    lane, fetch = Lane(servers), Api("offset_fetch", 8)
    for number in {*range(0, count, max(1, count // 1000)), count - 1}:
        wanted = fetch.requests.OffsetFetchRequestGroup(group_id=numbered(group, number), topics=None)
        while True:
            (answer,) = lane.ask(fetch, groups=(wanted,), require_stable=False).groups
            if not answer.error_code:
                break
            time.sleep(0.05)
        assert sum(len(topic.partitions) for topic in answer.topics) == PARTITIONS, answer


def numbered(group: str, number: int) -> str:
    """Return the name of a group; all names have the same length."""
    return f"{group}-{number:08}"


def main(kind: str, servers: str, group: str, members: int) -> None:
    """Create the group, then run a round for each line on stdin."""
    if kind in ("fill", "loaded"):
        {"fill": fill, "loaded": loaded}[kind](servers, group, members)
        return
    lane = Lane(servers)
    topic = create_topic(lane, max(PARTITIONS, min(members, 200)) if kind == "consumer" else PARTITIONS)
    ready(lane, group)
    begin = time.perf_counter()
    joined = 0.0
    if kind == "consumer":
        requests, joined = consumer_members(servers, group, members, topic)
    else:
        requests = classic_members(servers, group, members) if kind == "classic" else commits(group, members)
    pumps = [Pump(servers, requests[number::CONNECTIONS]) for number in range(min(CONNECTIONS, len(requests)))]
    print(json.dumps({"ready": time.perf_counter() - begin, "joined": joined}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(pumps, float(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
