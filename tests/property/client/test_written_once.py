"""Whatever is lost, late, refused or moved: the log of a partition has each acknowledged record once, in order.

The sender, its sequence numbers, the accumulator and the metadata are the real ones. The brokers are a model: it has the rules of
producer id, epoch and sequence number, and a network of connections that deliver requests in order, or die. A request of a dead
connection may still be processed, but not after the broker has answered a later request that it lacks an earlier batch: no protocol
without acknowledged fences can tell such a request from a new one.
"""

from __future__ import annotations

import uuid
from collections import deque
from typing import Any, NamedTuple

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla import Delivery
from ottla.client.effects import AnySend, ToNode
from ottla.client.produce.sender import NOT_WRITTEN, REACTIONS, ProduceReaction
from ottla.client.produce.sequences import ProducerIdAndEpoch
from ottla.errors import BrokerError, DisconnectedError, OttlaError, OttlaTimeoutError
from ottla.protocol import ErrorCode
from ottla.protocol.messages import produce_response
from ottla.records import iter_records
from ottla.records.header import read_header
from ottla.types import TopicPartition
from tests.example_counts import examples
from tests.unit.client.managers import T0, T1, T2
from tests.unit.client.producing import Writes, error, is_done, result

PARTITIONS = (T0, T1)
REMEMBERED = 5
LAST_EPOCH = 2**15 - 1
AGAIN = (ProduceReaction.RETRY, ProduceReaction.NEW_LEADER)
UNCLEAR = sorted(code for code, reaction in REACTIONS.items() if reaction in AGAIN and code not in NOT_WRITTEN)
CLEAR = sorted(code for code in NOT_WRITTEN if REACTIONS.get(code) in AGAIN)
FATAL = [ErrorCode.invalid_record, ErrorCode.topic_authorization_failed, ErrorCode.invalid_timestamp]
tps = st.sampled_from(PARTITIONS)
nodes = st.sampled_from([1, 2])
seldom = st.integers(0, 7).map(lambda number: number == 7)
"""For what ends most other things: without it the batches would seldom be in interesting states."""
injected = st.one_of(
    st.just((0, True)),
    st.just((0, True)),
    st.just((0, True)),
    st.tuples(st.sampled_from(UNCLEAR), st.booleans()),
    st.tuples(st.sampled_from([*CLEAR, *FATAL]), st.just(False)),
)


class Appended(NamedTuple):
    """A batch in a log."""

    producer_id: int
    epoch: int
    sequence: int
    values: list[int]

    @property
    def last(self) -> int:
        return self.sequence + len(self.values) - 1


class Log:
    """One partition, from the creation of its topic to its deletion."""

    def __init__(self, is_old: bool) -> None:
        self.batches: list[Appended] = []
        self.committed = 0
        """The number of batches that all replicas have."""
        self.forgotten = 0
        """The number of batches of whose producers nothing is known any more."""
        self.is_old = is_old

    def values(self) -> list[int]:
        return [value for batch in self.batches for value in batch.values]

    def offset(self, place: int) -> int:
        return sum(len(batch.values) for batch in self.batches[:place])

    def append(self, batch: Appended) -> tuple[int, int]:
        """The code and the offset."""
        known = [(at, one) for at, one in enumerate(self.batches) if at >= self.forgotten and one.producer_id == batch.producer_id]
        epoch = known[-1][1].epoch if known else -1
        same = [(at, one) for at, one in known if one.epoch == epoch][-REMEMBERED:]
        for at, one in same:
            if one[:3] == batch[:3] and one.last == batch.last:
                self.committed = max(self.committed, at + 1)
                return 0, self.offset(at)
        if batch.epoch < epoch:
            return ErrorCode.invalid_producer_epoch, -1
        if not known and batch.sequence and self.is_old:
            return ErrorCode.unknown_producer_id, -1
        if known and batch.epoch > epoch and batch.sequence:
            return ErrorCode.out_of_order_sequence_number, -1
        if known and batch.epoch == epoch and batch.sequence != same[-1][1].last + 1:
            if self.is_old and batch.last <= same[-1][1].last:
                return ErrorCode.duplicate_sequence_number, -1
            return ErrorCode.out_of_order_sequence_number, -1
        self.batches.append(batch)
        return 0, self.offset(len(self.batches) - 1)


class Request:
    """A request on its way. ``is_awaited``: the client has not given it up."""

    def __init__(self, send: AnySend) -> None:
        self.send = send
        self.is_awaited = True
        self.response: Any = None
        self.batches: dict[TopicPartition, Appended] = {}
        for topic in send.message.topic_data:
            self.topic_id = topic.topic_id
            for part in topic.partition_data:
                data = bytes(part.records)
                header = read_header(data)
                values = [int(record.value) for record in iter_records(data)]
                self.batches[TopicPartition(topic.name, part.index)] = Appended(
                    header.producer_id, header.producer_epoch, header.base_sequence, values
                )


class Producing(RuleBasedStateMachine):
    """One producer, two brokers, two partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.written: list[tuple[TopicPartition, int, Delivery]] = []
        self.deliveries: list[tuple[TopicPartition, int, Delivery]] = []

    @initialize(
        in_flight=st.sampled_from([1, 5]),
        is_old=st.booleans(),
        has_ids=st.booleans(),
        epoch=st.sampled_from([0, LAST_EPOCH - 1]),
        retries=st.sampled_from([2, 2**31 - 1]),
    )
    def begin(self, in_flight: int, is_old: bool, has_ids: bool, epoch: int, retries: int) -> None:
        self.is_old, self.has_ids = is_old, has_ids
        self.producer = Writes(max_in_flight_requests_per_connection=in_flight, producer_id=None, retries=retries)
        assert self.producer.sequences is not None
        self.sequences = self.producer.sequences
        self.sequences.assigned(ProducerIdAndEpoch(1, epoch))
        self.logs = {tp: Log(is_old) for tp in PARTITIONS}
        self.former: list[tuple[TopicPartition, Log]] = []
        self.leaders = {T0: 1, T1: 2, T2: 1}
        self.limits = dict.fromkeys(PARTITIONS, 100)
        self.epoch, self.topic_id = 3, 1
        self.connections: dict[int, deque[Request]] = {1: deque(), 2: deque()}
        self.late: dict[int, deque[Request]] = {1: deque(), 2: deque()}
        self.tell()
        for tp in PARTITIONS:
            self.write(tp, 1, True)
        self.settle()

    # -- the producer -----------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        for send in self.producer.poll():
            assert isinstance(send.target, ToNode)
            self.connections[send.target.node_id].append(Request(send))

    @rule(tp=tps, count=st.integers(1, 5), poll=st.booleans())
    def write(self, tp: TopicPartition, count: int, poll: bool) -> None:
        for _ in range(count):
            self.count += 1
            (delivery,) = self.producer.write(str(self.count), to=tp)
            self.deliveries.append((tp, self.count, delivery))
        if poll:
            self.poll()

    @rule(tp=tps, counts=st.lists(st.integers(1, 4), min_size=2, max_size=5))
    def burst(self, tp: TopicPartition, counts: list[int]) -> None:
        for count in counts:
            self.write(tp, count, True)

    @rule(milliseconds=st.sampled_from([100, 1_200]))
    def wait(self, milliseconds: int) -> None:
        self.producer.mono += milliseconds
        self.poll()

    @rule(happens=seldom, milliseconds=st.sampled_from([60_000, 118_800]))
    def wait_long(self, happens: bool, milliseconds: int) -> None:
        if happens:
            self.wait(milliseconds)

    @rule(happens=seldom)
    def abort(self, happens: bool) -> None:
        if happens:
            self.producer.manager.abort_all(OttlaError("the application gives up"), self.producer.now)
            self.poll()

    @precondition(lambda self: self.sequences.current is None)
    @rule()
    def assign(self) -> None:
        """Another id. Requests with the former one would not be refused, so there are none any more."""
        for node in (1, 2):
            self.cut(node, False)
        self.sequences.assigned(ProducerIdAndEpoch(self.count + 2, 0))
        self.poll()

    # -- the cluster ------------------------------------------------------------------------------------------------------

    @rule()
    def tell(self) -> None:
        """The producer gets metadata."""
        topic_id = uuid.UUID(int=self.topic_id) if self.has_ids else None
        self.producer.cluster.tell(leaders=self.leaders, epoch=self.epoch, topic_id=topic_id)
        self.poll()

    @rule(tp=tps, loses=st.booleans())
    def move(self, tp: TopicPartition, loses: bool) -> None:
        """Another leader, which may lack what has not been acknowledged."""
        self.epoch += 1
        self.leaders[tp] = 3 - self.leaders[tp]
        if loses:
            del self.logs[tp].batches[self.logs[tp].committed :]

    def is_quiet(self) -> bool:
        return not any((*self.connections.values(), *self.late.values()))

    @precondition(lambda self: self.has_ids or self.is_quiet())
    @rule(happens=seldom)
    def recreate(self, happens: bool) -> None:
        """The topic is deleted and recreated. Without topic ids, requests for the former one must not reach the new one."""
        if not happens:
            return
        self.former += self.logs.items()
        self.logs = {tp: Log(self.is_old) for tp in PARTITIONS}
        self.topic_id += 1
        # Without ids a client cannot tell it from metadata of a broker that is behind.
        self.epoch = 3 if self.has_ids else self.epoch + 1

    @precondition(lambda self: self.is_quiet() and not self.producer.accumulator.incomplete and self.sequences.current)
    @rule(tp=tps)
    def forget(self, tp: TopicPartition) -> None:
        """The producer has been silent for ``producer.id.expiration.ms``."""
        self.logs[tp].forgotten = len(self.logs[tp].batches)
        self.tell()
        self.write(tp, 1, True)
        self.settle()

    @rule(tp=tps, limit=st.integers(1, 6))
    def limit(self, tp: TopicPartition, limit: int) -> None:
        """``max.message.bytes``, in records."""
        self.limits[tp] = limit

    # -- the network ------------------------------------------------------------------------------------------------------

    @rule(node=nodes, late=st.booleans(), outcomes=st.tuples(injected, injected), names_leader=st.booleans())
    def process(self, node: int, late: bool, outcomes: Any, names_leader: bool) -> None:
        """A broker handles the next request of a connection, or of one that is dead."""
        if late and self.late[node]:
            self.handle(node, self.late[node].popleft(), outcomes, names_leader)
            return
        request = next((request for request in self.connections[node] if request.response is None), None)
        if request is not None:
            request.response = self.handle(node, request, outcomes, names_leader)

    def handle(self, node: int, request: Request, outcomes: Any = ((0, True),) * 2, names_leader: bool = True) -> Any:
        parts = []
        for (tp, batch), (code, is_written) in zip(request.batches.items(), outcomes, strict=False):
            code, offset = self.written_as(node, request, tp, batch, code, is_written)
            if code == ErrorCode.out_of_order_sequence_number:
                self.drop_late(tp)
            leader = (self.leaders[tp], self.epoch) if names_leader and code == ErrorCode.not_leader_or_follower else (-1, -1)
            parts.append(
                produce_response.PartitionProduceResponse(
                    index=tp.partition,
                    error_code=ErrorCode(code),
                    base_offset=-1 if code else offset,
                    record_errors=(),
                    current_leader=produce_response.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
                )
            )
        topic = produce_response.TopicProduceResponse(name="t", topic_id=request.topic_id, partition_responses=tuple(parts))
        return produce_response.ProduceResponse(responses=(topic,))

    def written_as(
        self, node: int, request: Request, tp: TopicPartition, batch: Appended, code: int, is_written: bool
    ) -> tuple[int, int]:
        log = self.logs[tp]
        if self.has_ids and request.topic_id != uuid.UUID(int=self.topic_id):
            return ErrorCode.unknown_topic_id, -1
        if self.leaders[tp] != node:
            return ErrorCode.not_leader_or_follower, -1
        if code and not is_written:
            return code, -1
        if len(batch.values) > self.limits[tp]:
            return ErrorCode.message_too_large, -1
        refusal, offset = log.append(batch)
        if refusal:
            return refusal, -1
        if not code:
            log.committed = max(log.committed, next(at + 1 for at, _ in enumerate(log.batches) if log.offset(at) == offset))
        return code, offset

    def drop_late(self, tp: TopicPartition) -> None:
        for requests in (*self.late.values(), *self.connections.values()):
            for request in requests:
                if not request.is_awaited:
                    request.batches.pop(tp, None)

    @rule(node=nodes, outcomes=st.lists(st.tuples(injected, injected), min_size=1, max_size=5))
    def flow(self, node: int, outcomes: list[Any]) -> None:
        """Some requests are handled, and their responses arrive."""
        for outcome in outcomes:
            self.process(node, False, outcome, True)
            self.deliver(node)

    @rule(node=nodes)
    def deliver(self, node: int) -> None:
        """The oldest response arrives."""
        requests = self.connections[node]
        if requests and requests[0].response is not None:
            request = requests.popleft()
            if request.is_awaited:
                self.producer.answer(request.send, request.response)
            self.poll()

    @rule(node=nodes)
    def time_out(self, node: int) -> None:
        """The producer gives up the oldest request, which remains on its way."""
        request = next((request for request in self.connections[node] if request.is_awaited), None)
        if request is not None:
            request.is_awaited = False
            self.producer.fail(request.send, OttlaTimeoutError("no response"))
            self.poll()

    @rule(node=nodes, remain=st.booleans())
    def cut(self, node: int, remain: bool) -> None:
        """The connection dies. The broker may have more requests in its buffers."""
        requests, self.connections[node] = self.connections[node], deque()
        self.late[node] = deque(one for one in (*self.late[node], *requests) if one.response is None) if remain else deque()
        for request in requests:
            if request.is_awaited:
                request.is_awaited = False
                self.producer.fail(request.send, DisconnectedError("the connection broke"))
        self.poll()

    # -- what holds -------------------------------------------------------------------------------------------------------

    @invariant()
    def each_record_is_written_once_and_in_order(self) -> None:
        if not hasattr(self, "logs"):
            return
        for tp, log in (*self.logs.items(), *self.former):
            values = log.values()
            assert values == sorted(set(values)), f"{tp} has {log.batches}"

    @invariant()
    def what_has_an_outcome_has_it_rightly(self) -> None:
        pending = []
        for tp, value, delivery in self.deliveries:
            if not is_done(delivery):
                pending.append((tp, value, delivery))
                continue
            logs = [log for at, log in (*self.logs.items(), *self.former) if at == tp]
            batch, _ = delivery.batch.part_of(delivery.index)
            if batch.error is None:
                offset = result(delivery).offset
                assert any(value in log.values() and offset in (-1, log.values().index(value)) for log in logs), (
                    f"{value} is missing"
                )
                self.written.append((tp, value, delivery))
            elif is_refused(error(delivery)):
                assert not any(value in log.values() for log in logs), f"{value} was refused, and is in the log"
        self.deliveries = pending

    @invariant()
    def what_was_acknowledged_remains(self) -> None:
        for tp, value, _ in self.written:
            assert any(value in log.values() for at, log in (*self.logs.items(), *self.former) if at == tp), f"{value} was lost"

    def settle(self) -> None:
        """All is well for a while."""
        for _ in range(50):
            if self.sequences.current is None:
                self.assign()
            for node in (1, 2):
                while self.connections[node]:
                    self.process(node, False, ((0, True),) * 2, True)
                    self.deliver(node)
            if not self.producer.accumulator.incomplete:
                return
            self.tell()
            self.wait(1_200)
        raise AssertionError(f"{list(self.producer.accumulator.incomplete)} have no outcome")

    def teardown(self) -> None:
        if not hasattr(self, "logs"):
            return
        self.settle()
        self.what_has_an_outcome_has_it_rightly()
        last = [(tp, self.producer.write(str(self.count + number), to=tp)[0]) for number, tp in enumerate(PARTITIONS, 1)]
        self.poll()
        self.settle()
        for tp, delivery in last:
            assert result(delivery).topic == tp.topic
        self.each_record_is_written_once_and_in_order()
        assert not self.deliveries
        assert len(set(self.producer.settled)) == len(self.producer.settled)
        assert self.producer.accumulator.used == 0


def is_refused(problem: OttlaError) -> bool:
    """Whether the error says that the record was not written."""
    is_clear = isinstance(problem, BrokerError) and problem.code in NOT_WRITTEN
    return is_clear and "may have " not in str(problem)


TestProducing = Producing.TestCase
TestProducing.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
