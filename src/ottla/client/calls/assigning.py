"""The assignors of a consumer, on the application's thread: their user data, their assignments, and their ``on_assignment``.

Owns the consumer's instances of assignors, Ottla's own and the user's: their methods run only here, except those of Ottla's own
that are pure. Must not know states or requests. Invariant: whatever an assignor raises, the rebalance is answered, and the call
raises the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla.assignors import Strategy, client_strategy, strategy
from ottla.assignors.asking import UnusableAnswer, assign, assign_whole, user_data_of
from ottla.client import commands
from ottla.client.notifications import AssignmentNeeded, AssignmentReceived
from ottla.config import ConsumerConfig
from ottla.errors import AssignmentError, OttlaError


class Assigning:
    """See the module. ``report`` takes errors for the application. Raises ``ConfigError`` for assignors that do not go together."""

    def __init__(self, config: ConsumerConfig, report: Callable[[OttlaError], None]) -> None:
        self._strategies: Mapping[str, Strategy] = {
            "classic": strategy(config.partition_assignment_strategy),
            "consumer": client_strategy(config.group_client_assignors),
        }
        self._report = report

    def user_data(self, topics: frozenset[str], protocol: str = "classic") -> commands.UserData:
        """The user data of each assignor of a group protocol for the member that assigns.

        Ottla's own have none in a consumer group: the coordinator knows the members' partitions.
        """
        told: dict[str, bytes | None] = {}
        chosen = self._strategies[protocol]
        for name, assignor in chosen.assignors.items():
            if protocol == "consumer" and name not in chosen.foreign:
                continue
            try:
                told[name] = user_data_of(assignor.subscription_user_data(topics))
            except Exception as error:
                self._report(_failed(name, "subscription_user_data", error))
        return commands.UserData(told, protocol)

    def assign(self, question: AssignmentNeeded) -> commands.Assigned:
        """The answer of the assignor that the group uses, or why there is none."""
        ask = assign_whole if question.protocol == "consumer" else assign
        try:
            assignor = self._strategies[question.protocol].assignors[question.assignor]
            shares = ask(assignor, question.cluster, question.members)
        except Exception as error:
            failure = _failed(question.assignor, "assign", error)
            return commands.Assigned(question.generation, {}, failure, question.protocol)
        return commands.Assigned(question.generation, shares, protocol=question.protocol)

    def on_assignment(self, item: AssignmentReceived) -> None:
        """Tell the assignor that the group uses what has come of it."""
        assignor = self._strategies[item.protocol].assignors.get(item.assignor)
        if item.assignment is None or item.group is None or assignor is None:
            return
        try:
            assignor.on_assignment(item.assignment, item.group)
        except Exception as error:
            self._report(_failed(item.assignor, "on_assignment", error))


def _failed(name: str, method: str, error: Exception) -> AssignmentError:
    if isinstance(error, UnusableAnswer):
        return AssignmentError(f"the assignor {name!r} {error}")
    return AssignmentError(f"the assignor {name!r} failed in {method}(): {error!r}", cause=error)
