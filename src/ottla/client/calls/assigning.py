"""The assignors of a consumer, on the application's thread: what they tell the leader, what they assign as leader, what they
learn.

Owns the consumer's instances of assignors, Ottla's own and the user's: their methods run here and nowhere else. Must not know
states or requests. Invariant: whatever an assignor raises, the rebalance is answered, and the error comes out of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla.assignors import MemberAssignment, Strategy, strategy
from ottla.client import commands
from ottla.client.notifications import AssignmentNeeded, AssignmentReceived
from ottla.config import ConsumerConfig
from ottla.errors import AssignmentError, OttlaError
from ottla.types import TopicPartition


class Assigning:
    """See the module. ``report`` takes errors for the application. Raises ``ConfigError`` for assignors that do not go together."""

    def __init__(self, config: ConsumerConfig, report: Callable[[OttlaError], None]) -> None:
        self._strategy: Strategy = strategy(config.partition_assignment_strategy)
        self._report = report

    def user_data(self, topics: frozenset[str]) -> commands.UserData:
        """What each assignor wants to tell the leader, for the next join."""
        told: dict[str, bytes | None] = {}
        for name, assignor in self._strategy.assignors.items():
            try:
                told[name] = assignor.subscription_user_data(topics)
            except Exception as error:
                self._report(_failed(name, "subscription_user_data", error))
        return commands.UserData(told)

    def assign(self, question: AssignmentNeeded) -> commands.Assigned:
        """The answer of the assignor that the group uses, or why there is none."""
        try:
            answer = self._strategy.assignors[question.assignor].assign(question.cluster, question.members)
            return commands.Assigned(question.generation, _plain(answer))
        except Exception as error:
            return commands.Assigned(question.generation, {}, _failed(question.assignor, "assign", error))

    def on_assignment(self, item: AssignmentReceived) -> None:
        """Tell the assignor that the group uses what has come of it."""
        if item.assignment is None or item.group is None or item.assignor not in self._strategy.assignors:
            return
        try:
            self._strategy.assignors[item.assignor].on_assignment(item.assignment, item.group)
        except Exception as error:
            self._report(_failed(item.assignor, "on_assignment", error))


def _plain(answer: Mapping[str, object]) -> dict[str, MemberAssignment]:
    """An assignor's answer in one form. Raises ``TypeError`` and ``ValueError`` for what is none."""
    plain = {}
    for member_id, share in answer.items():
        partitions, user_data = (share.partitions, share.user_data) if isinstance(share, MemberAssignment) else (share, None)
        plain[member_id] = MemberAssignment(tuple(TopicPartition(*one) for one in partitions), user_data)  # type: ignore[attr-defined]
    return plain


def _failed(name: str, method: str, error: Exception) -> AssignmentError:
    return AssignmentError(f"the assignor {name!r} failed in {method}(): {error!r}", cause=error)
