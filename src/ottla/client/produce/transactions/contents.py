"""What the coordinators know of the open transaction: its partitions, its groups and their offsets.

Owns AddPartitionsToTxn, AddOffsetsToTxn and TxnOffsetCommit. Must not know the states of the producer. Invariant: in version 1 a
partition, or a group, is registered with the coordinator before anything is written to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from ottla.client.produce.transactions import requests
from ottla.client.produce.transactions.commands import CommitOffsets
from ottla.client.produce.transactions.coordinators import CoordinatorRequest, CoordinatorRequests
from ottla.client.produce.transactions.requests import Identity, TransactionReaction, reaction_to
from ottla.errors import OttlaError
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import (
    add_offsets_to_txn_response,
    add_partitions_to_txn_response,
    txn_offset_commit_request,
    txn_offset_commit_response,
)
from ottla.records.accumulator import RecordAccumulator
from ottla.types import Now, TopicPartition

_NOT_ATTEMPTED = ErrorCode.operation_not_attempted


class Refused(Protocol):
    """Called with an error code, with what it refused, and the group that this was about."""

    def __call__(self, code: int, what: str, group_id: str | None, now: Now, /) -> None:
        """React to the error code."""


class TransactionContents:
    """``version`` is the version of transactions; ``who`` returns the producer."""

    def __init__(
        self, accumulator: RecordAccumulator, coordinators: CoordinatorRequests, who: Callable[[], Identity], refused: Refused
    ) -> None:
        self.version = 1
        self.partitions: set[TopicPartition] = set()
        """The partitions that may be written to (version 1), or that were written to."""
        self.is_registered = False
        """Whether the coordinator may know of the transaction."""
        self.is_confirmed = False
        """Whether it has said so (version 1)."""
        self.offsets: deque[CommitOffsets] = deque()
        """The offsets that are not acknowledged yet."""
        self._groups: set[str] = set()
        self._accumulator = accumulator
        self._coordinators = coordinators
        self._who = who
        self._refused = refused

    def begin(self) -> None:
        """Begin another transaction."""
        self.partitions, self._groups, self.is_registered, self.is_confirmed = set(), set(), False, False

    def sent(self, tp: TopicPartition) -> None:
        """Note that a batch becomes part of a request."""
        self.partitions.add(tp)
        self.is_registered = True

    def settle_offsets(self, error: OttlaError) -> None:
        """Fail the offsets that are not acknowledged."""
        offsets, self.offsets = self.offsets, deque()
        for command in offsets:
            command.outcome.settle(error=error)

    @property
    def is_acknowledged(self) -> bool:
        """Whether nothing of the transaction waits for an answer."""
        return not self._accumulator.incomplete and not self.offsets

    def ask(self) -> bool:
        """Make the next request; return ``False`` if none is needed."""
        missing = self._missing_partitions() if self.version == 1 else set()
        if missing:
            return self._ask(
                CoordinatorRequest(
                    rpcs.ADD_PARTITIONS_TO_TXN,
                    requests.add_partitions(self._who(), missing),
                    partial(self._on_partitions, missing),
                    "adding partitions to the transaction",
                    excludes=VersionRule.FROM_BROKER,
                )
            )
        if not self.offsets:
            return False
        group_id = self.offsets[0].group.group_id
        if self.version == 1 and group_id not in self._groups:
            message, on_response = requests.add_offsets(self._who(), group_id), partial(self._on_group, group_id)
            return self._ask(CoordinatorRequest(rpcs.ADD_OFFSETS_TO_TXN, message, on_response, f"adding group {group_id!r}"))
        return self._ask(self._offsets_request(self.offsets[0]))

    def _ask(self, request: CoordinatorRequest[rpcs.RequestT, rpcs.ResponseT]) -> bool:
        self.is_registered = self._coordinators.ask(request) or self.is_registered
        return True

    def _missing_partitions(self) -> set[TopicPartition]:
        queues = self._accumulator.active()
        return {queue.tp for queue in queues if queue.closed or queue.open is not None} - self.partitions

    def _offsets_request(
        self, command: CommitOffsets
    ) -> CoordinatorRequest[txn_offset_commit_request.TxnOffsetCommitRequest, txn_offset_commit_response.TxnOffsetCommitResponse]:
        group = command.group
        is_member = bool(group.member_id) or group.generation_id >= 0
        rule = VersionRule.TRANSACTION_V2
        return CoordinatorRequest(
            rpcs.TXN_OFFSET_COMMIT,
            requests.commit_offsets(self._who(), group, command.offsets),
            partial(self._on_offsets, command),
            f"committing offsets of group {group.group_id!r}",
            group.group_id,
            requires=rule if self.version > 1 else VersionRule.NAMES_MEMBER if is_member else None,
            excludes=rule if self.version == 1 else None,
        )

    def _on_partitions(
        self, asked: set[TopicPartition], response: add_partitions_to_txn_response.AddPartitionsToTxnResponse, now: Now
    ) -> None:
        codes = requests.codes_of_partitions(response)
        added = {tp for tp, code in codes.items() if not code}
        self.partitions |= added
        self.is_confirmed = self.is_confirmed or bool(added)
        failed = _first_failure(codes, asked)
        if failed is not None:
            tp, code = failed
            self._refused(code, f"adding {tp} to the transaction", None, now)
        else:
            self._coordinators.succeeded()

    def _on_group(self, group_id: str, response: add_offsets_to_txn_response.AddOffsetsToTxnResponse, now: Now) -> None:
        if response.error_code:
            self._refused(int(response.error_code), f"adding group {group_id!r} to the transaction", None, now)
        else:
            self._groups.add(group_id)
            self.is_confirmed = True
            self._coordinators.succeeded()

    def _on_offsets(self, command: CommitOffsets, response: txn_offset_commit_response.TxnOffsetCommitResponse, now: Now) -> None:
        failed = _first_failure(requests.codes_of_offsets(response), command.offsets)
        if failed is not None:
            tp, code = failed
            group_id = command.group.group_id
            self._refused(code, f"committing {tp} for group {group_id!r}", group_id, now)
        else:
            self._coordinators.succeeded()
            self.offsets.remove(command)
            command.outcome.settle()


def _first_failure(codes: Mapping[TopicPartition, int], asked: Iterable[TopicPartition]) -> tuple[TopicPartition, int] | None:
    """The worst error code of the partitions in a request. A response without one of them says nothing about it."""
    found = {tp: codes.get(tp, ErrorCode.unknown_server_error) for tp in asked}
    failed = {tp: code for tp, code in found.items() if code}
    if not failed:
        return None
    # Where one partition is refused, the others are not attempted.
    tp = min(failed, key=lambda tp: (reaction_to(failed[tp]) is TransactionReaction.RETRY, failed[tp] == _NOT_ATTEMPTED, tp))
    return tp, failed[tp]
