"""Invariants of responses: there is one to each request, in time, and it is true.

Owns the requests and the responses. Must not know their causes. Invariant: each response is checked once, when it arrives.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.classic.group import ClassicGroup
from ottla.protocol import ErrorCode
from ottla.protocol.messages import (
    consumer_group_heartbeat_request,
    delete_groups_request,
    join_group_request,
    offset_commit_request,
    sync_group_request,
    txn_offset_commit_request,
)
from tests.property.coordinator.oracle.log import LogOfGroups
from tests.unit.coordinator.harness import Harness

SLACK = 5_000
"""What appends that failed and an initial delay may add to a wait (milliseconds)."""


def commit_error(answer: Any) -> ErrorCode:
    """The error code in the response to a commit of one partition."""
    error = answer.topics[0].partitions[0].error_code
    assert isinstance(error, ErrorCode)
    return error


class Answers:
    """The responses of one harness. Each commit must be of one partition, with a unique offset."""

    def __init__(self, harness: Harness, log: LogOfGroups) -> None:
        self.harness = harness
        self.log = log
        self.stale: set[int] = set()
        """Commits of someone who was no member when they were asked, or one of another epoch or generation."""
        self._refused: set[int] = set()
        self._memberships: dict[tuple[str, int, str], frozenset[str]] = {}
        self._looked_at: set[int] = set()
        self._held_up_until = 0

    def forget(self) -> None:
        """Allow repeated generations: a coordinator that was loaded may reuse a number that was never in the log."""
        self._memberships.clear()

    def unanswered_requests_are_parked(self) -> None:
        """No response is lost: an unanswered request is parked in a group, unless an append is open."""
        waiting = self.harness.asked - self.harness.replies.keys()
        parked = self._parked()
        assert len(parked) == len(set(parked))
        assert waiting >= set(parked)
        if not self.harness.open:
            assert waiting == set(parked)

    def rebalances_end(self) -> None:
        """A rebalance ends even if members do not take part in it."""
        if self.harness.open:
            self._held_up_until = self.harness.mono
        for group in self._classic_groups():
            longest = max(group.rebalance_timeout, self.harness.config.expected_member_wait_ms) + SLACK
            for member in group.members.values():
                for ticket in (member.join, member.sync):
                    if ticket is not None:
                        _, asked_at = self.harness.requests[ticket]
                        assert self.harness.mono - max(asked_at, self._held_up_until) <= longest

    def acknowledged_writes_are_in_the_log(self) -> None:
        """Acknowledged commits, memberships, assignments and deletions are in the log."""
        self.log.read_on()
        for ticket in self.harness.replies.keys() - self._looked_at:
            answer = self.harness.replies[ticket]
            match self.harness.requests[ticket][0]:
                case offset_commit_request.OffsetCommitRequest() | txn_offset_commit_request.TxnOffsetCommitRequest() as request:
                    offset = request.topics[0].partitions[0].committed_offset
                    if commit_error(answer) is ErrorCode.none:
                        assert ticket not in self.stale
                        assert offset in self.log.written_offsets
                    else:
                        self._refused.add(offset)
                case consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest(group_id=group_id, member_id=member_id):
                    reached = (group_id, member_id, answer.member_epoch)
                    assert answer.error_code is not ErrorCode.none or answer.member_epoch < 0 or reached in self.log.reached
                case sync_group_request.SyncGroupRequest(group_id=group_id, generation_id=generation, member_id=member_id):
                    given = (group_id, generation, answer.assignment)
                    is_consumer = (group_id, member_id, generation) in self.log.reached
                    assert answer.error_code is not ErrorCode.none or is_consumer or given in self.log.assigned
                case delete_groups_request.DeleteGroupsRequest():
                    deleted = {one.group_id for one in answer.results if one.error_code is ErrorCode.none}
                    assert all(self.log.deletions[group_id] for group_id in deleted)

    def refused_commits_are_not_in_the_log(self) -> None:
        """A commit that was refused is not in the log."""
        self.log.read_on()
        assert self._refused.isdisjoint(self.log.written_offsets)

    def a_generation_has_one_membership(self) -> None:
        """All responses of a generation have the same members; a static member counts by its instance id.

        A deleted group may have had the same generation with another leader."""
        for request, answer in self._joined():
            if answer.members and not answer.skip_assignment:
                names = frozenset(member.group_instance_id or member.member_id for member in answer.members)
                known = self._memberships.setdefault((request.group_id, answer.generation_id, answer.leader), names)
                assert known == names

    def generations_are_not_skipped(self) -> None:
        """Each generation in a response is one more than one in an earlier response or in the log."""
        self.log.read_on()
        for request, answer in self._joined():
            known = self.log.generations.setdefault(request.group_id, set())
            assert answer.generation_id == 1 or {answer.generation_id, answer.generation_id - 1} & known
            known.add(answer.generation_id)
        self._looked_at |= self.harness.replies.keys()

    def _joined(self) -> list[tuple[Any, Any]]:
        """The members that have joined since, by generation."""
        new = [(self.harness.requests[one][0], self.harness.replies[one]) for one in self.harness.replies.keys() - self._looked_at]
        joined = [
            (request, answer)
            for request, answer in new
            if isinstance(request, join_group_request.JoinGroupRequest) and answer.error_code is ErrorCode.none
        ]
        return sorted(joined, key=lambda one: int(one[1].generation_id))

    def _parked(self) -> list[int]:
        members = [member for group in self._classic_groups() for member in group.members.values()]
        return [ticket for member in members for ticket in (member.join, member.sync) if ticket is not None]

    def _classic_groups(self) -> list[ClassicGroup]:
        return [group for group in self.harness.coordinator.groups().values() if isinstance(group, ClassicGroup)]
