"""The same transactional requests to Ottla's broker and to Apache Kafka: the same error codes and epochs."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ottla import Broker
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    add_offsets_to_txn_request,
    add_partitions_to_txn_request,
    end_txn_request,
    find_coordinator_request,
    init_producer_id_request,
    list_transactions_request,
    txn_offset_commit_request,
)
from tests.interop.other_clients import create_topic
from tests.raw_client import RawClient

NOT_YET = ("coordinator_load_in_progress", "not_coordinator", "coordinator_not_available")
Answer = tuple[object, ...]


class TransactionalClient:
    """One transactional id on one broker; keeps what was answered, with producer ids by the order in which they appeared."""

    def __init__(self, client: RawClient, topic: str, transactional_id: str) -> None:
        self._client, self.topic, self.transactional_id = client, topic, transactional_id
        self._names: dict[int, str] = {-1: "none"}
        self.heard: list[Answer] = []
        self.producer_id, self.epoch = -1, -1
        for kind in (0, 1):  # a commit in a transaction does not make the topic of offsets, as this does
            wanted = find_coordinator_request.FindCoordinatorRequest(key_type=kind, coordinator_keys=(transactional_id,))
            self._until_ready(lambda wanted=wanted: client.ask(Api.FIND_COORDINATOR, wanted).coordinators[0])

    def _until_ready(self, ask: Callable[[], Any]) -> Any:
        for _ in range(600):
            answer = ask()
            if answer.error_code.name not in NOT_YET:
                return answer
            time.sleep(0.1)
        raise TimeoutError("the coordinator was not ready within 60 s")

    def _hear(self, what: str, answer: Any) -> None:
        name = self._names.setdefault(answer.producer_id, f"producer {len(self._names)}")
        self.heard.append((what, answer.error_code.name, name, answer.producer_epoch))
        if answer.producer_id >= 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def init(self, known: tuple[int, int] = (-1, -1), *, timeout_ms: int = 60_000, version: int = 5) -> None:
        message = init_producer_id_request.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout=timedelta(milliseconds=timeout_ms),
            producer_id=known[0],
            producer_epoch=known[1],
        )
        self._hear("init", self._until_ready(lambda: self._client.ask(Api.INIT_PRODUCER_ID, message, version)))

    def add(
        self,
        epoch: int,
        *,
        partitions: tuple[int, ...] = (0,),
        version: int = 3,
        verify: bool = False,
        other: int = 0,
        beside: str | None = None,
    ) -> None:
        part = add_partitions_to_txn_request.AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id + other,
            producer_epoch=epoch,
            verify_only=verify,
            topics=tuple(
                add_partitions_to_txn_request.AddPartitionsToTxnTopic(name=name, partitions=partitions)
                for name in (self.topic, beside)
                if name is not None
            ),
        )
        message = add_partitions_to_txn_request.AddPartitionsToTxnRequest(transactions=(part,))
        answer = self._client.ask(Api.ADD_PARTITIONS_TO_TXN, message, version)
        results = answer.results_by_transaction[0].topic_results
        codes = sorted(
            (one.partition_index, one.partition_error_code.name) for topic in results for one in topic.results_by_partition
        )
        self.heard.append(("add", *codes))

    def add_offsets(self, epoch: int, *, group: str = "g", version: int = 3) -> None:
        message = add_offsets_to_txn_request.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id, producer_id=self.producer_id, producer_epoch=epoch, group_id=group
        )
        self.heard.append(("add offsets", self._client.ask(Api.ADD_OFFSETS_TO_TXN, message, version).error_code.name))

    def commit_offset(
        self,
        epoch: int,
        *,
        version: int = 5,
        other: int = 0,
        generation: int = -1,
        member: str = "",
        partitions: tuple[int, ...] = (0,),
        group: str | None = None,
    ) -> None:
        wanted = tuple(
            txn_offset_commit_request.TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=5, committed_metadata=""
            )
            for index in partitions
        )
        message = txn_offset_commit_request.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=f"group-{self.transactional_id}" if group is None else group,
            producer_id=self.producer_id + other,
            producer_epoch=epoch,
            generation_id=generation,
            member_id=member,
            topics=(txn_offset_commit_request.TxnOffsetCommitRequestTopic(name=self.topic, partitions=wanted),),
        )
        answers: dict[int, str] = {}

        def ask() -> Any:
            results = self._client.ask(Api.TXN_OFFSET_COMMIT, message, version).topics[0].partitions
            answers.update((one.partition_index, one.error_code.name) for one in results)
            return results[0]

        self._until_ready(ask)
        self.heard.append(("commit offset", *sorted(answers.items())))

    def end(self, epoch: int, *, commit: bool = True, version: int = 5, producer_id: int | None = None) -> None:
        message = end_txn_request.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        self._hear("end", self._client.ask(Api.END_TXN, message, version))

    def settle(self) -> None:
        """Wait until markers are written, and note the state."""
        message = list_transactions_request.ListTransactionsRequest(
            state_filters=(), producer_id_filters=(), duration_filter=-1, transactional_id_pattern=self.transactional_id
        )
        for _ in range(3_000):
            (one,) = self._client.ask(Api.LIST_TRANSACTIONS, message).transaction_states
            if not one.transaction_state.startswith("Prepare"):
                self.heard.append(("state", one.transaction_state))
                return
            time.sleep(0.02)
        raise TimeoutError("markers were not written within 60 s")


def identity(talk: TransactionalClient) -> None:
    """Who is who: epochs go up, the stale are fenced, who asks again hears the same."""
    talk.init()
    talk.init()
    known = talk.producer_id
    talk.init((known, 0))
    talk.init((known, 1))
    talk.init((known, 1))
    talk.init((known + 777_777, 0))
    talk.init((known, -1))
    talk.init(timeout_ms=0)
    talk.init(timeout_ms=900_001)
    talk.init((known, 0), version=3)
    talk.add(1)
    talk.add(1, version=1)
    talk.add(3)
    talk.add(2, other=777_777)
    talk.add(2, partitions=(0, 99))
    talk.settle()


def first_version(talk: TransactionalClient) -> None:
    """Transactions whose partitions are added by asking, and whose epoch stays."""
    talk.init()
    talk.end(0, version=4)
    talk.end(0, commit=False, version=4)
    talk.add(0)
    talk.add(0, partitions=(0, 1), version=5, verify=True)
    talk.add(0, partitions=(1,), version=5)
    talk.add(0, beside="__transaction_state")
    talk.add(0, beside="__transaction_state", partitions=(0, 99), version=0)
    talk.add(0, beside="__transaction_state", version=4)
    talk.add_offsets(0)
    talk.add_offsets(7)
    talk.add_offsets(7, version=1)
    talk.add_offsets(0, group="")
    talk.commit_offset(0, version=3)
    talk.commit_offset(0, version=3, generation=3, member="x")
    talk.commit_offset(7, version=3)
    talk.commit_offset(0, version=3, other=777_777, partitions=(0, 99, -1))
    talk.commit_offset(0, version=3, group="")
    talk.commit_offset(0, version=3, group="", partitions=(0, 99))
    talk.end(0, version=4)
    talk.settle()
    talk.end(0, version=4)
    talk.end(0, commit=False, version=4)
    talk.end(7, version=4)
    talk.end(7, version=1)
    talk.commit_offset(0, version=4)
    talk.commit_offset(0, version=3)


def second_version(talk: TransactionalClient) -> None:
    """KIP-890: an epoch for each transaction, and answers that were lost can be asked for again."""
    talk.init()
    talk.end(0)
    talk.end(0, commit=False)
    talk.settle()
    talk.end(0, commit=False)
    talk.end(0)
    talk.end(1, commit=False)
    talk.settle()
    talk.commit_offset(2)
    talk.commit_offset(1)
    talk.commit_offset(2, other=777_777)
    talk.commit_offset(9, partitions=(0, 99))
    talk.commit_offset(-1)
    talk.add(2, version=5)
    talk.end(2)
    talk.settle()
    talk.end(2)
    talk.end(2, commit=False)
    talk.end(3)
    talk.end(1)
    talk.end(9)
    talk.end(3, commit=False)
    talk.settle()
    talk.init()
    talk.end(4)
    talk.end(4, commit=False)


def fencing(talk: TransactionalClient) -> None:
    """A producer that comes while another's transaction is open."""
    for open_one in (talk.commit_offset, talk.add):
        talk.init()
        open_one(talk.epoch)
        before = talk.epoch
        talk.init()
        talk.settle()
        talk.init()
        talk.end(before)
        talk.end(before, version=4)
        talk.end(before, version=1)
        talk.add(before)
    talk.add(talk.epoch)
    known = (talk.producer_id, talk.epoch)
    talk.init(known)
    talk.settle()
    talk.init(known)


def mixed_versions(talk: TransactionalClient) -> None:
    """A producer of the second version, fenced by one of the first, asks for the end of a transaction."""
    for commit in (False, True):
        talk.init()
        stale = talk.epoch
        talk.init()
        epoch = talk.epoch
        talk.end(stale, commit=commit)
        talk.add(epoch)
        talk.end(stale, commit=commit)
        talk.end(epoch, commit=commit, version=4)
        talk.settle()
        talk.end(stale, commit=not commit)
        talk.end(stale, commit=commit)
        talk.end(stale, commit=commit, version=4)
        talk.add(epoch)
        talk.end(epoch, commit=commit, version=4)
        talk.settle()


def used_up(talk: TransactionalClient) -> None:
    """The last epochs of a producer id, and the next id."""
    talk.init()
    while talk.epoch < 32_765:
        talk.init()
        del talk.heard[:-1]
    talk.add(talk.epoch)
    talk.end(talk.epoch)
    talk.settle()
    talk.end(32_765)
    before = talk.producer_id
    talk.add(talk.epoch)
    talk.end(talk.epoch)
    talk.settle()
    talk.end(32_766, producer_id=before)
    talk.end(32_766, commit=False, producer_id=before)
    talk.init()


DIALOGUES = (identity, first_version, second_version, fencing, mixed_versions, used_up)


@pytest.fixture(scope="module")
def name() -> str:
    """What nothing on a shared broker is called yet."""
    return f"t{time.time_ns()}"


def heard(servers: str, name: str, dialogue: Callable[[TransactionalClient], None]) -> list[Answer]:
    topic = f"{name}-{dialogue.__name__}"
    create_topic(servers, topic, 3)
    with RawClient(servers) as client:
        talk = TransactionalClient(client, topic, topic)
        dialogue(talk)
        return talk.heard


@pytest.mark.interop
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda one: one.__name__)
def test_a_real_kafka_answers_the_same(real_kafka: str, name: str, dialogue: Callable[[TransactionalClient], None]) -> None:
    with Broker(
        settings={"offsets.topic.num.partitions": 5}
    ) as broker:  # as the other: groups that share a partition there do here
        ours = heard(broker.bootstrap_servers, name, dialogue)
    assert len(ours) > 5
    assert ours == heard(real_kafka, name, dialogue)
