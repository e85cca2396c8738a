"""The calls of an Admin about transactions under a virtual clock: what is repeated, what is raised, and what the error says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ottla import Prepared
from ottla.client.admin.calls import Call
from ottla.client.admin.manager import AdminManager, BeginCall, CallEnded
from ottla.client.admin.results import ProducerState, TransactionDescription, TransactionListing
from ottla.client.admin.transactions import (
    TransactionFilters,
    abort_transaction,
    describe_producers,
    describe_transactions,
    end_transactions,
    fence_producers,
    list_transactions,
)
from ottla.config import AdminConfig
from ottla.errors import (
    ConnectionFailedError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTxnStateError,
    OttlaError,
    OttlaTimeoutError,
    TransactionalIdAuthorizationFailedError,
    TransactionalIdNotFoundError,
    TransactionOutcomeUnknownError,
    UnsupportedApiError,
    error_class,
)
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import SPOKEN, Api, VersionRange, VersionRule
from ottla.protocol.messages import (
    describe_producers_response,
    describe_transactions_response,
    end_txn_response,
    find_coordinator_response,
    init_producer_id_response,
    list_transactions_response,
    metadata_response,
    write_txn_markers_response,
)
from ottla.types import Node, TopicPartition
from tests.simulation.network import ClientOnNetwork, NoAnswer

CODES = sorted(int(code) for code in ErrorCode if code)
FORGOTTEN = {ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced}
A, B, C = (Prepared(name, number, 7, 2) for number, name in enumerate("abc"))
OLD = Prepared("old", 5, 3, 1)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NODES = {number: Node(number, f"10.0.0.{number}", 9092) for number in (1, 2)}
ADDRESS = "10.0.0.{}:9092"


class Cluster:
    """Two brokers that answer from tables. Partition ``n`` of topic ``t`` has leader ``n + 1``."""

    def __init__(self) -> None:
        self.coordinators: dict[str, int] = {}
        """Transactional id -> its coordinator, if not broker 2."""
        self.errors: dict[tuple[Api, str], list[ErrorCode]] = {}
        """An API and what it is about -> a code for each request; the last one stays."""
        self.lost: list[tuple[Api, str]] = []
        """Requests that are executed and not answered, each once."""
        self.asked: list[tuple[int, Api, Any]] = []
        self.rules: dict[Api, frozenset[VersionRule]] = {}
        self.unknown_states: tuple[str, ...] = ()

    def of(self, api: Api) -> list[Any]:
        """The requests of an API."""
        return [message for _, asked, message in self.asked if asked is api]

    def behind(self, node: int) -> Callable[[Any, Any], Any]:
        def answer(header: Any, message: Any) -> Any:
            self.asked.append((node, header.api, message))
            self.rules[header.api] = header.version_rules
            return getattr(self, header.api.name.lower())(node, message)

        return answer

    def code(self, api: Api, about: str) -> ErrorCode:
        if (api, about) in self.lost:
            self.lost.remove((api, about))
            raise NoAnswer
        codes = self.errors.get((api, about), [ErrorCode.none])
        return codes.pop(0) if len(codes) > 1 else codes[0]

    def metadata(self, node: int, message: Any) -> Any:
        m = metadata_response
        partitions = tuple(
            m.MetadataResponsePartition(error_code=ErrorCode.none, partition_index=index, leader_id=index + 1, leader_epoch=3)
            for index in range(2)
        )
        topic = m.MetadataResponseTopic(
            error_code=ErrorCode.none, name="t", topic_id=None, is_internal=False, partitions=partitions
        )
        return m.MetadataResponse(
            throttle_time=NO_THROTTLE,
            brokers=tuple(m.MetadataResponseBroker(node_id=n, host=host, port=port) for n, host, port, _ in NODES.values()),
            cluster_id="cluster",
            controller_id=1,
            topics=(topic,) if message.topics is None or message.topics else (),
            error_code=ErrorCode.none,
        )

    def find_coordinator(self, node: int, message: Any) -> Any:
        assert message.key_type == 1
        m = find_coordinator_response
        found = []
        for key in message.coordinator_keys:
            place = NODES[self.coordinators.get(key, 2)]
            code = self.code(Api.FIND_COORDINATOR, key)
            found.append(
                m.Coordinator(key=key, node_id=place.node_id, host=place.host, port=place.port, error_code=code, error_message=None)
            )
        return m.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=tuple(found))

    def end_txn(self, node: int, message: Any) -> Any:
        code = self.code(Api.END_TXN, message.transactional_id)
        return end_txn_response.EndTxnResponse(throttle_time=NO_THROTTLE, error_code=code, producer_id=99, producer_epoch=0)

    def init_producer_id(self, node: int, message: Any) -> Any:
        code = self.code(Api.INIT_PRODUCER_ID, message.transactional_id)
        m = init_producer_id_response
        return m.InitProducerIdResponse(throttle_time=NO_THROTTLE, error_code=code, producer_id=1, producer_epoch=1)

    def describe_transactions(self, node: int, message: Any) -> Any:
        m = describe_transactions_response
        states = tuple(
            m.TransactionState(
                error_code=self.code(Api.DESCRIBE_TRANSACTIONS, key),
                transactional_id=key,
                transaction_state="Empty" if key == "b" else "Ongoing",
                transaction_timeout=timedelta(seconds=60),
                transaction_start_time_ms=-1 if key == "b" else 1_000,
                producer_id=5,
                producer_epoch=6,
                topics=() if key == "b" else (m.TopicData(topic="t", partitions=(1, 0)),),
            )
            for key in message.transactional_ids
        )
        return m.DescribeTransactionsResponse(throttle_time=NO_THROTTLE, transaction_states=states)

    def list_transactions(self, node: int, message: Any) -> Any:
        m = list_transactions_response
        state = m.TransactionState(transactional_id=f"of-{3 - node}", producer_id=node, transaction_state="Ongoing")
        return m.ListTransactionsResponse(
            throttle_time=NO_THROTTLE,
            error_code=self.code(Api.LIST_TRANSACTIONS, str(node)),
            unknown_state_filters=self.unknown_states,
            transaction_states=(state,),
        )

    def describe_producers(self, node: int, message: Any) -> Any:
        m = describe_producers_response
        topics = []
        for topic in message.topics:
            assert all(number + 1 == node for number in topic.partition_indexes), "not the leader"
            parts = tuple(
                m.PartitionResponse(
                    partition_index=number,
                    error_code=self.code(Api.DESCRIBE_PRODUCERS, str(number)),
                    active_producers=(
                        m.ProducerState(
                            producer_id=1,
                            producer_epoch=2,
                            last_sequence=3,
                            last_timestamp=4,
                            coordinator_epoch=-1 + 6 * number,
                            current_txn_start_offset=-1 + 8 * number,
                        ),
                    ),
                )
                for number in topic.partition_indexes
            )
            topics.append(m.TopicResponse(name=topic.name, partitions=parts))
        return m.DescribeProducersResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))

    def write_txn_markers(self, node: int, message: Any) -> Any:
        m = write_txn_markers_response
        (marker,) = message.markers
        ((name, (number,)),) = [(topic.name, topic.partition_indexes) for topic in marker.topics]
        code = self.code(Api.WRITE_TXN_MARKERS, str(number))
        part = m.WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
        topic = m.WritableTxnMarkerTopicResult(name=name, partitions=(part,))
        return m.WriteTxnMarkersResponse(markers=(m.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=(topic,)),))


class Operator(ClientOnNetwork):
    """An operator's calls on a cluster of two brokers, which offer ``versions`` in place of what Ottla speaks."""

    def __init__(self, versions: dict[Api, VersionRange] | None = None) -> None:
        config = AdminConfig.parse(bootstrap_servers=ADDRESS.format(1), request_timeout=5)
        super().__init__(config)
        manager = AdminManager(config, self.core.random, self.core.notify, self.core.learn_node)
        self.core.add_manager(manager)
        self.core.register(BeginCall, manager.begin)
        self.cluster = Cluster()
        for node in NODES:
            self.network.peer(ADDRESS.format(node), answer=self.cluster.behind(node), versions={**SPOKEN, **(versions or {})})

    def begin(self, call: Call[Any], timeout: int) -> None:
        self.core.handle_command(BeginCall(1, "the call", call, self.network.mono + timeout, timeout), self.network.now)

    def run(self, call: Call[Any], timeout: int = 20_000) -> Any:
        """Run a call; return its result or raise its error."""
        self.begin(call, timeout)
        deadline = self.network.mono + timeout
        while True:
            wake_at = self.network.settle()
            for ended in self.core.take_notifications():
                if isinstance(ended, CallEnded):
                    if ended.error is not None:
                        raise ended.error
                    return ended.value
            assert wake_at is not None
            assert wake_at <= deadline, "no outcome was reported by the deadline"
            self.network.clock.move_to(wake_at)

    def error(self, call: Call[Any], timeout: int = 20_000) -> OttlaError:
        with pytest.raises(OttlaError) as raised:
            self.run(call, timeout)
        return raised.value


@pytest.fixture
def world() -> Operator:
    return Operator()


# -- the end of prepared transactions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_many_end_with_one_look_up_and_one_request_each(world: Operator, commit: bool) -> None:
    world.cluster.coordinators = {"b": 1}
    world.run(end_transactions([A, B, C], commit))
    (lookup,) = world.cluster.of(Api.FIND_COORDINATOR)
    assert lookup.coordinator_keys == ("a", "b", "c")
    sent = [(node, message.transactional_id) for node, api, message in world.cluster.asked if api is Api.END_TXN]
    assert sorted(sent) == [(1, "b"), (2, "a"), (2, "c")]
    assert {message.committed for message in world.cluster.of(Api.END_TXN)} == {commit}


def test_brokers_that_look_up_one_id_at_a_time_are_asked_for_each() -> None:
    world = Operator({Api.FIND_COORDINATOR: VersionRange(0, 3)})
    world.run(end_transactions([A, B, C], True))
    assert [message.coordinator_keys for message in world.cluster.of(Api.FIND_COORDINATOR)] == [("a",), ("b",), ("c",)]
    assert len(world.cluster.of(Api.END_TXN)) == 3


@pytest.mark.parametrize(("one", "is_v2"), [(A, True), (OLD, False)])
def test_each_attempt_repeats_the_id_the_epoch_and_the_version(world: Operator, one: Prepared, is_v2: bool) -> None:
    who = one.transactional_id
    world.cluster.lost = [(Api.END_TXN, who)]
    world.cluster.errors[Api.END_TXN, who] = [ErrorCode.concurrent_transactions, ErrorCode.none]
    world.run(end_transactions([one], True))
    requests = world.cluster.of(Api.END_TXN)
    assert len(requests) == 3
    assert {(it.producer_id, it.producer_epoch, it.committed) for it in requests} == {(one.producer_id, one.producer_epoch, True)}
    assert (VersionRule.TRANSACTION_V2 in world.cluster.rules[Api.END_TXN]) == is_v2


def test_a_version_that_the_cluster_lacks_is_an_error() -> None:
    world = Operator({Api.END_TXN: VersionRange(0, 4)})
    error = world.error(end_transactions([A], True))
    assert isinstance(error, UnsupportedApiError)
    assert "transactional id 'a'" in str(error)
    assert not world.cluster.of(Api.END_TXN)
    world.run(end_transactions([OLD], True))


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_ends_as_what_it_is(world: Operator, code: int) -> None:
    world.cluster.errors[Api.END_TXN, "a"] = [ErrorCode(code)]
    error = world.error(end_transactions([A], commit=True), timeout=3_000)
    kind = error_class(code)
    if code in FORGOTTEN:
        assert type(error) is TransactionOutcomeUnknownError
        assert type(error.cause) is kind
        assert "marker" in str(error)
        assert kind.name in str(error)
    elif kind.retriable:
        assert type(error) is OttlaTimeoutError
        assert kind.name in str(error)
        assert len(world.cluster.of(Api.END_TXN)) > 3
        is_certain = code == ErrorCode.coordinator_load_in_progress
        assert ("so that it may be" in str(error)) is not is_certain
    else:
        assert type(error) is kind
        assert len(world.cluster.of(Api.END_TXN)) == 1
    assert "transactional id 'a'" in str(error)


def test_the_opposite_outcome_is_named(world: Operator) -> None:
    world.cluster.errors[Api.END_TXN, "a"] = [ErrorCode.invalid_txn_state]
    assert "cannot be committed: it was aborted" in str(world.error(end_transactions([A], True)))
    assert "cannot be aborted: it was committed" in str(world.error(end_transactions([A], False)))


def test_all_are_tried_and_the_error_names_those_that_failed(world: Operator) -> None:
    world.cluster.errors = {
        (Api.FIND_COORDINATOR, "a"): [ErrorCode.transactional_id_authorization_failed],
        (Api.END_TXN, "b"): [ErrorCode.producer_fenced],
        (Api.END_TXN, "c"): [ErrorCode.concurrent_transactions, ErrorCode.concurrent_transactions, ErrorCode.none],
    }
    error = world.error(end_transactions([A, B, C, OLD], True))
    assert type(error) is TransactionOutcomeUnknownError
    assert "'a'" in str(error)
    assert "'b'" in str(error)
    assert "'c'" not in str(error)
    assert "'old'" not in str(error)
    asked = [message.transactional_id for message in world.cluster.of(Api.END_TXN)]
    assert [asked.count(who) for who in ("a", "b", "c", "old")] == [0, 1, 3, 1]


def test_an_opposite_outcome_goes_before_a_refusal(world: Operator) -> None:
    world.cluster.errors = {
        (Api.END_TXN, "a"): [ErrorCode.transactional_id_authorization_failed],
        (Api.END_TXN, "b"): [ErrorCode.invalid_txn_state],
    }
    error = world.error(end_transactions([A, B], True))
    assert type(error) is InvalidTxnStateError
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in str(error)


def test_no_transaction_waits_for_the_response_to_another(world: Operator) -> None:
    world.cluster.lost = [(Api.END_TXN, "a")]
    world.begin(end_transactions([A, B, C], True), 20_000)
    world.network.advance(1)
    assert [message.transactional_id for message in world.cluster.of(Api.END_TXN)] == ["a", "b", "c"]


def test_a_coordinator_that_moved_is_found_again(world: Operator) -> None:
    world.cluster.errors[Api.END_TXN, "a"] = [ErrorCode.not_coordinator, ErrorCode.none]
    world.begin(end_transactions([A], True), 20_000)
    world.network.advance(1)
    world.cluster.coordinators["a"] = 1
    world.network.advance(1_000)
    assert [node for node, api, _ in world.cluster.asked if api is Api.END_TXN] == [2, 1]


def test_a_time_out_says_which_transactions_may_have_ended(world: Operator) -> None:
    world.cluster.coordinators = {"b": 1, "c": 1}
    world.cluster.lost = [(Api.END_TXN, "a")] * 9
    world.cluster.errors = {
        (Api.END_TXN, "b"): [ErrorCode.coordinator_load_in_progress],
        (Api.END_TXN, "c"): [ErrorCode.invalid_txn_state],
    }
    error = world.error(end_transactions([A, B, C], True))
    assert type(error) is OttlaTimeoutError
    unsure, sure = str(error).split("so that it may be committed")
    assert "'c'" in unsure.partition("'b'")[0], "the one that was refused is named first"
    assert "'a'" in unsure.partition("'b'")[2]
    assert "repeated" in sure


def test_without_a_broker_the_error_lists_the_addresses(world: Operator) -> None:
    world.network.peers.clear()
    error = world.error(end_transactions([A, B], True))
    assert isinstance(error, ConnectionFailedError)
    assert list(error.attempts) == ["10.0.0.1:9092"]


def test_a_coordinator_that_is_gone_is_an_error_of_each_of_its_transactions(world: Operator) -> None:
    world.network.peers[next(place for place in world.network.peers if place.ip == "10.0.0.2")].mode = "refuse"
    world.cluster.coordinators["b"] = 1
    error = world.error(end_transactions([A, B], True))
    assert "'a'" in str(error)
    assert "'b'" not in str(error)
    assert "may be committed" not in str(error)


def test_a_response_that_leaves_an_id_out_is_an_error(world: Operator) -> None:
    def without(node: int, message: Any) -> Any:
        return find_coordinator_response.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=())

    world.cluster.find_coordinator = without  # type: ignore[method-assign]
    assert "does not name transactional id 'a'" in str(world.error(end_transactions([A], True)))


# -- descriptions -----------------------------------------------------------------------------------------------------------


def test_transactions_are_described_by_their_coordinators(world: Operator) -> None:
    world.cluster.coordinators = {"b": 1}
    assert world.run(describe_transactions(["a", "b", "a"])) == {
        "a": TransactionDescription("a", NODES[2], "Ongoing", 5, 6, 60_000, 1_000, (T0, T1)),
        "b": TransactionDescription("b", NODES[1], "Empty", 5, 6, 60_000, None, ()),
    }


def test_an_unknown_transactional_id_is_an_error(world: Operator) -> None:
    world.cluster.errors[Api.DESCRIBE_TRANSACTIONS, "b"] = [ErrorCode.transactional_id_not_found]
    error = world.error(describe_transactions(["a", "b"]))
    assert type(error) is TransactionalIdNotFoundError
    assert "'b'" in str(error)


def test_descriptions_wait_for_a_coordinator_that_loads(world: Operator) -> None:
    world.cluster.errors[Api.FIND_COORDINATOR, "a"] = [ErrorCode.coordinator_not_available, ErrorCode.none]
    world.cluster.errors[Api.DESCRIBE_TRANSACTIONS, "a"] = [ErrorCode.coordinator_load_in_progress, ErrorCode.none]
    assert list(world.run(describe_transactions(["a"]))) == ["a"]


def test_all_brokers_list_their_transactions(world: Operator) -> None:
    assert world.run(list_transactions(TransactionFilters())) == (
        TransactionListing("of-1", 2, "Ongoing"),
        TransactionListing("of-2", 1, "Ongoing"),
    )
    request = world.cluster.of(Api.LIST_TRANSACTIONS)[0]
    assert (request.state_filters, request.producer_id_filters) == ((), ())
    assert (request.duration_filter, request.transactional_id_pattern) == (-1, None)


def test_filters_are_part_of_the_request(world: Operator) -> None:
    world.run(list_transactions(TransactionFilters(("Ongoing",), (7,), 5_000, "a.*")))
    request = world.cluster.of(Api.LIST_TRANSACTIONS)[0]
    assert (request.state_filters, request.producer_id_filters) == (("Ongoing",), (7,))
    assert (request.duration_filter, request.transactional_id_pattern) == (5_000, "a.*")


@pytest.mark.parametrize(
    ("newest", "filters"), [(0, TransactionFilters(duration_ms=0)), (1, TransactionFilters(transactional_id_pattern="a"))]
)
def test_a_filter_that_the_broker_lacks_is_an_error(newest: int, filters: TransactionFilters) -> None:
    world = Operator({Api.LIST_TRANSACTIONS: VersionRange(0, newest)})
    assert isinstance(world.error(list_transactions(filters)), UnsupportedApiError)
    assert len(world.run(list_transactions(TransactionFilters(("Ongoing",), (1,))))) == 2


def test_a_state_that_no_broker_knows_is_an_error(world: Operator) -> None:
    world.cluster.unknown_states = ("Open",)
    error = world.error(list_transactions(TransactionFilters(("Open",))))
    assert type(error) is InvalidRequestError
    assert "'Open'" in str(error)


def test_producers_are_described_by_the_leaders(world: Operator) -> None:
    assert world.run(describe_producers([T1, T0])) == {
        T1: (ProducerState(1, 2, 3, 4, 5, 7),),
        T0: (ProducerState(1, 2, 3, 4, None, None),),
    }


# -- transactions that hang -------------------------------------------------------------------------------------------------


def test_fencing_waits_until_the_transactions_have_ended(world: Operator) -> None:
    world.cluster.errors[Api.INIT_PRODUCER_ID, "b"] = [ErrorCode.concurrent_transactions, ErrorCode.none]
    world.run(fence_producers(["a", "b"], 30_000))
    requests = world.cluster.of(Api.INIT_PRODUCER_ID)
    assert [message.transactional_id for message in requests] == ["a", "b", "b"]
    assert {(message.producer_id, message.producer_epoch) for message in requests} == {(-1, -1)}


def test_what_is_fenced_is_not_fenced_again_if_another_answer_is_lost(world: Operator) -> None:
    world.cluster.coordinators["a"] = 1
    world.cluster.lost = [(Api.INIT_PRODUCER_ID, "b")]
    world.run(fence_producers(["a", "b"], 30_000))
    assert [message.transactional_id for message in world.cluster.of(Api.INIT_PRODUCER_ID)] == ["a", "b", "b"]


def test_a_refusal_to_fence_names_the_id(world: Operator) -> None:
    world.cluster.errors[Api.INIT_PRODUCER_ID, "b"] = [ErrorCode.transactional_id_authorization_failed]
    world.cluster.errors[Api.INIT_PRODUCER_ID, "a"] = [ErrorCode.concurrent_transactions]
    error = world.error(fence_producers(["a", "b"], 30_000))
    assert type(error) is TransactionalIdAuthorizationFailedError
    assert "'b'" in str(error)


def test_a_marker_goes_to_the_leader(world: Operator) -> None:
    world.cluster.errors[Api.WRITE_TXN_MARKERS, "1"] = [ErrorCode.not_leader_or_follower, ErrorCode.none]
    world.run(abort_transaction(T1, ProducerState(5, 6)))
    assert [node for node, api, _ in world.cluster.asked if api is Api.WRITE_TXN_MARKERS] == [2, 2]
    (marker,) = world.cluster.of(Api.WRITE_TXN_MARKERS)[0].markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.transaction_result) == (5, 6, 0, False)


def test_a_newer_epoch_refuses_the_marker(world: Operator) -> None:
    world.cluster.errors[Api.WRITE_TXN_MARKERS, "0"] = [ErrorCode.invalid_producer_epoch]
    assert type(world.error(abort_transaction(T0, ProducerState(5, 6, coordinator_epoch=3)))) is InvalidProducerEpochError
    (marker,) = world.cluster.of(Api.WRITE_TXN_MARKERS)[0].markers
    assert marker.coordinator_epoch == 3
