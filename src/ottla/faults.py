"""``broker.faults``: a test scripts the failures of an embedded broker.

Owns the public names of faults, their spelling, and how often each has struck. Must not know how a fault is carried out.
Invariants: when a method returns, the fault is set, so that every later request meets it; when ``clear`` returns, the broker works
normally again.
"""

from __future__ import annotations

import difflib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from ottla import arguments
from ottla.broker.effects import NodeEndpoint
from ottla.broker.faults import rules
from ottla.broker.faults.rules import Match, Moment
from ottla.errors import ERROR_CODES, BrokerError, ConfigError, IllegalStateError, OttlaTimeoutError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import as_integer, short_repr

if TYPE_CHECKING:
    from ottla.runtime.broker_node import BrokerNode

Apis = str | Iterable[str]
"""One API or several, in Kafka's spelling: ``"Fetch"``, ``["JoinGroup", "SyncGroup"]``."""

Error = str | int | type[BrokerError]
"""``"NOT_COORDINATOR"``, ``16`` or ``errors.NotCoordinatorError``."""

_APIS = {api.name.replace("_", "").lower(): api for api in Api}
_CODES = {name: code for code, (name, _) in ERROR_CODES.items()}


class Fault:
    """One fault. As a context manager it ends with the block."""

    def __init__(self, faults: Faults, number: int, what: str) -> None:
        self._faults = faults
        self._number = number
        self._what = what
        self._struck = 0

    def __repr__(self) -> str:
        return f"<Fault {self._what}, struck {self._struck} times>"

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.clear()

    @property
    def struck(self) -> int:
        """How often it has struck so far."""
        return self._struck

    def wait(self, times: int = 1, timeout: float | timedelta = 10.0) -> None:
        """Return when it has struck ``times`` times; raises ``OttlaTimeoutError`` after ``timeout`` seconds."""
        wanted, seconds = arguments.integer(times, "times"), arguments.duration(timeout) / 1000
        with self._faults._changed:
            if not self._faults._changed.wait_for(lambda: self._struck >= wanted, min(seconds, threading.TIMEOUT_MAX)):
                raise OttlaTimeoutError(f"{self._what} has struck {self._struck} times within {seconds:g} s, not {wanted}")

    def clear(self) -> None:
        """End it. Delayed requests are answered; connections whose answer was lost are closed."""
        self._faults._clear(self)


class Faults:
    """The scripted failures of an embedded broker::

        with broker.faults.fail("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=3, group="billing") as fault:
            consumer.commit()
        assert fault.struck == 3

    Thread-safe. ``api`` is one of Kafka's names or several; without it any request matches. ``client_id``, ``group``, ``topic``
    and ``transactional_id`` select requests. ``times``: how many requests it strikes (``None``: all until it is cleared),
    ``after``: how many it spares first. If several faults match a request the oldest strikes, so faults set one after the other
    form a sequence; a delay can be combined with another fault. All of them end with ``clear()`` and when the broker is closed.
    """

    def __init__(self, running: Callable[[], BrokerNode]) -> None:
        self._running = running
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._set: dict[int, Fault] = {}

    def __repr__(self) -> str:
        return f"<Faults {list(self)}>"

    def __iter__(self) -> Iterator[Fault]:
        """The faults that were set and not cleared, oldest first, including those that have struck for the last time."""
        return iter(tuple(self._set.values()))

    # Requests and answers

    def fail(
        self,
        api: Apis,
        error: Error,
        *,
        times: int | None = 1,
        after: int = 0,
        client_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        transactional_id: str | None = None,
    ) -> Fault:
        """Reply with ``error`` instead of serving the request, if the API's response has a field for errors.

        With ``topic`` only the part for that topic fails; the rest of the request is served.
        """
        match = _match(_apis(api), client_id, group, topic, transactional_id)
        return self._add(f"fail {api} with {error}", rules.Fail(_error(error)), match, times, after)

    def delay(
        self,
        api: Apis | None,
        seconds: float | timedelta,
        *,
        times: int | None = 1,
        after: int = 0,
        client_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        transactional_id: str | None = None,
    ) -> Fault:
        """Serve the request at once and reply ``seconds`` later. Later replies on that connection wait as well."""
        match = _match(_apis_or_any(api), client_id, group, topic, transactional_id)
        return self._add(f"delay {api or 'everything'}", rules.Delay(arguments.duration(seconds, "seconds")), match, times, after)

    def drop(
        self,
        api: Apis | None = None,
        *,
        at: Literal["request", "reply", "halfway"] = "request",
        times: int | None = 1,
        after: int = 0,
        client_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        transactional_id: str | None = None,
    ) -> Fault:
        """Close the connection: at the ``"request"``, with nothing done; before the ``"reply"``, with all done; ``"halfway"``
        through the bytes of the reply."""
        match = _match(_apis_or_any(api), client_id, group, topic, transactional_id)
        moment = Moment(arguments.one_of(at, [moment.value for moment in Moment], "at"))
        return self._add(f"drop the connection of {api or 'anything'}", rules.Drop(moment), match, times, after)

    def lose_reply(
        self,
        api: Apis,
        *,
        times: int | None = 1,
        after: int = 0,
        client_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        transactional_id: str | None = None,
    ) -> Fault:
        """Serve the request and never reply. The connection stays open, without replies, until its client or ``clear`` closes
        it."""
        match = _match(_apis(api), client_id, group, topic, transactional_id)
        return self._add(f"lose the reply to {api}", rules.LoseReply(), match, times, after)

    def disconnect(self, client_id: str | None = None) -> int:
        """Close the connections of a client, or all, now; return their number."""
        return self._running().close_connections(arguments.optional_text(client_id, "client_id"))

    # Groups and transactions

    def move_coordinator(
        self,
        group: str | None = None,
        *,
        transactional_id: str | None = None,
        to: str | None = None,
        seconds: float | timedelta | None = None,
    ) -> Fault:
        """Stop coordinating a group, a transactional id, or (neither named) all, until cleared or ``seconds`` have passed.

        Requests are answered with NOT_COORDINATOR, and FindCoordinator returns ``to`` ("host:port") or COORDINATOR_NOT_AVAILABLE. A
        producer that writes to a partition for the first time in its transaction has to try again. Afterwards all are loaded
        from their log, as by a broker that takes them over. As in Kafka, they move together with the others in their partition of
        ``__consumer_offsets`` or ``__transaction_state``.
        """
        name = arguments.optional_text(group, "group")
        transaction = arguments.optional_text(transactional_id, "transactional_id")
        action = rules.MoveCoordinator(name, _endpoint(arguments.text(to, "to")) if to is not None else None, transaction)
        return self._add("move the coordinator", action, Match(), None, 0, seconds)

    def expire_member(
        self, group: str, *, member_id: str | None = None, client_id: str | None = None, instance_id: str | None = None
    ) -> int:
        """Expire the sessions of the members of a group that match all given names; return their number.

        Raises ``IllegalStateError`` if there is none. As in Kafka, a member that waits in a rebalance cannot expire.
        """
        wanted = {"member_id": member_id, "client_id": client_id, "instance_id": instance_id}
        for name, value in wanted.items():
            arguments.optional_text(value, name)
        expire = rules.ExpireMember(arguments.text(group, "group"), member_id, client_id, instance_id)
        count = self._running().command(expire)
        if not count:
            named = ", ".join(f"{name}={value!r}" for name, value in wanted.items() if value is not None)
            raise IllegalStateError(f"group {group!r} has no member{' with ' + named if named else ''}")
        return count

    # The broker

    def freeze(self, seconds: float | timedelta | None = None) -> Fault:
        """Freeze the broker: nothing is answered and no timer runs until the fault is cleared or ``seconds`` have passed.

        Connections stay open and new ones are accepted, as with a broker under SIGSTOP. Requests are then served in order of
        arrival. ``struck`` counts the requests that wait.
        """
        return self._add("freeze", rules.Freeze(), Match(), None, 0, seconds)

    def fill_disk(
        self,
        topic: str,
        partition: int | None = None,
        *,
        times: int | None = None,
        after: int = 0,
        seconds: float | timedelta | None = None,
    ) -> Fault:
        """Let appends to a topic, or one partition of it, fail as on a full disk: producers get KAFKA_STORAGE_ERROR.

        ``topic="__consumer_offsets"`` makes commits and groups fail.
        """
        number = None if partition is None else arguments.integer(partition, "partition")
        action = rules.FailAppends(arguments.text(topic, "topic"), number)
        return self._add(f"fill the disk of {topic}", action, Match(), times, after, seconds)

    def clear(self) -> None:
        """End all faults. Delayed requests are answered; connections whose answer was lost are closed."""
        if self._set:
            with self._changed:
                self._set.clear()
            self._running().command(rules.RemoveFaults())

    # From the broker

    def on_strike(self, number: int) -> None:
        """Count a strike of a fault; called on the broker's thread."""
        with self._changed:
            fault = self._set.get(number)
            if fault is not None:
                fault._struck += 1
                self._changed.notify_all()

    def forget(self) -> None:
        """Remove all faults: the broker is closed."""
        with self._changed:
            self._set.clear()

    def _add(
        self,
        what: str,
        action: rules.Action,
        match: Match,
        times: int | None,
        after: int,
        seconds: float | timedelta | None = None,
    ) -> Fault:
        times = None if times is None else arguments.integer(times, "times", 1)
        after = arguments.integer(after, "after")
        lasts = None if seconds is None else arguments.duration(seconds, "seconds")
        node = self._running()
        number = next(self._numbers)
        fault = Fault(self, number, what)
        with self._changed:
            self._set[number] = fault
        node.command(rules.AddFault(rules.Rule(number, action, match, times, after, lasts)))
        return fault

    def _clear(self, fault: Fault) -> None:
        with self._changed:
            known = self._set.pop(fault._number, None)
        if known is not None:
            self._running().command(rules.RemoveFaults(fault._number))


def _match(
    apis: frozenset[Api], client_id: str | None, group: str | None, topic: str | None, transactional_id: str | None
) -> Match:
    return Match(
        apis,
        arguments.optional_text(client_id, "client_id"),
        arguments.optional_text(group, "group"),
        arguments.optional_text(topic, "topic"),
        arguments.optional_text(transactional_id, "transactional_id"),
    )


def _apis(api: Apis) -> frozenset[Api]:
    return frozenset(map(_api, arguments.names([api] if isinstance(api, str) else api, "api")))


def _apis_or_any(api: Apis | None) -> frozenset[Api]:
    """``None`` means any API."""
    return frozenset() if api is None else _apis(api)


def _api(name: str) -> Api:
    found = _APIS.get(name.replace("_", "").lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), _APIS, 1)
        hint = f"did you mean {_APIS[near[0]].name.title().replace('_', '')!r}?" if near else "use Kafka's name, such as 'Fetch'"
        raise ConfigError(f"there is no API {name!r}", hint=hint)
    return found


def _error(error: Error) -> ErrorCode:
    if isinstance(error, type) and issubclass(error, BrokerError):
        return ErrorCode(error.code)
    code = _CODES.get(error) if isinstance(error, str) else as_integer(error)
    if code is None and not isinstance(error, str):
        raise TypeError(f"error is a name such as 'NOT_COORDINATOR', a number or a class of ottla.errors, not {short_repr(error)}")
    if code is None or code not in ERROR_CODES:
        near = difflib.get_close_matches(str(error).upper(), _CODES, 1)
        raise ConfigError(f"there is no error {error!r}", hint=f"did you mean {near[0]!r}?" if near else None)
    return ErrorCode(code)


def _endpoint(address: str) -> NodeEndpoint:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"to={address!r} must be HOST:PORT")
    return NodeEndpoint(_MOVED_TO_ID, host.strip("[]"), int(port))


_MOVED_TO_ID = 1_000
"""The id of a broker that exists only for ``move_coordinator``."""
