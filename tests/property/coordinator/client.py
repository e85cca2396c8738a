"""A well-behaved member of a classic group, as the coordinator sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.consumer_protocol import Assignment, decode_assignment, encode_assignment
from ottla.types import TopicPartition
from tests.unit.coordinator.harness import Harness, share

BEGIN_ANEW = {ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id, ErrorCode.group_max_size_reached}
"""Errors after which a client forgets its member id."""


class Client:
    """Sends a request, waits for the response, and follows it; ``step`` does one of these and never blocks."""

    def __init__(self, harness: Harness, name: str, group: str, instance: str | None, protocols: dict[str, bytes]) -> None:
        self.harness, self.name, self.group, self.instance = harness, name, group, instance
        self.protocols = protocols
        self.member_id = ""
        self.generation = -1
        self.assignment: bytes | None = None
        self._ticket: int | None = None
        self._on_answer: Callable[[Any], None] = self._joined

    @property
    def waiting(self) -> bool:
        return self._ticket is not None and self.harness.waits(self._ticket)

    def step(self) -> None:
        """Handle a response, or send the next request."""
        if self.waiting:
            return
        if self._ticket is not None:
            answer, self._ticket = self.harness.answer(self._ticket), None
            self._on_answer(answer)
        elif self.assignment is None:
            self.send_join()
        else:
            self.send_heartbeat()

    def connection_lost(self) -> None:
        """Drop the response to the last request."""
        self._ticket = None

    def send_join(self) -> None:
        self.assignment = None
        self._ask(
            self.harness.join(self.member_id, client=self.name, group=self.group, instance=self.instance, protocols=self.protocols),
            self._joined,
        )

    def send_heartbeat(self) -> None:
        self._ask(self.harness.beat(self.member_id, self.generation, self.group, self.instance), self._beaten)

    def send_leave(self) -> None:
        self.harness.leave((self.member_id, self.instance), group=self.group)
        self.forget()

    def forget(self) -> None:
        self.member_id, self.generation, self.assignment, self._ticket = "", -1, None, None

    def shares(self, member_ids: list[str]) -> dict[str, bytes]:
        """The assignment of each member, if this client leads."""
        return {member_id: share(member_id) for member_id in member_ids}

    def _ask(self, ticket: int, then: Callable[[Any], None]) -> None:
        self._ticket, self._on_answer = ticket, then

    def _joined(self, answer: Any) -> None:
        if answer.error_code is ErrorCode.none:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            leads = answer.leader == self.member_id and not answer.skip_assignment
            given = self.shares([member.member_id for member in answer.members]) if leads else None
            self._ask(
                self.harness.sync(self.member_id, self.generation, given, group=self.group, instance=self.instance), self._synced
            )
        elif answer.error_code is ErrorCode.member_id_required:
            self.member_id = answer.member_id
            self.send_join()
        else:
            self._failed(answer.error_code)

    def _synced(self, answer: Any) -> None:
        if answer.error_code is ErrorCode.none:
            self.assignment = answer.assignment
        else:
            self._failed(answer.error_code)

    def _beaten(self, answer: Any) -> None:
        if answer.error_code is not ErrorCode.none:
            self._failed(answer.error_code)

    def _failed(self, error: ErrorCode) -> None:
        self.assignment = None
        if error in BEGIN_ANEW:
            self.forget()


class ReadingClient(Client):
    """A client that reads its assignment: the partitions of ``orders``, round robin."""

    _gone: frozenset[str] = frozenset()

    def send_join(self) -> None:
        self._gone = frozenset()
        super().send_join()

    def reads(self) -> frozenset[TopicPartition]:
        """Its assignment without deleted topics; a recreated topic of the same name is another topic."""
        assigned = decode_assignment(self.assignment).partitions if self.assignment else ()
        self._gone |= {one.topic for one in assigned if not self.harness.topics.partition_count(one.topic)}
        return frozenset(one for one in assigned if one.topic not in self._gone)

    def shares(self, member_ids: list[str]) -> dict[str, bytes]:
        count = self.harness.topics.partition_count("orders") or 0
        numbers = {member_id: range(place, count, len(member_ids)) for place, member_id in enumerate(sorted(member_ids))}
        return {
            member_id: encode_assignment(Assignment(tuple(TopicPartition("orders", number) for number in of_member)))
            for member_id, of_member in numbers.items()
        }
