"""``Admin``: topics, configurations, groups and offsets, for operators, tests and the command line.

Owns the signatures and the wait for a result; a network thread does the I/O. Must not know requests, retries or sockets. Invariant:
a call ends within its timeout, with a result or with an error that says why there is none.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack, cast

from ottla import arguments
from ottla.arguments import Timeout
from ottla.client.admin import calls, transactions
from ottla.client.admin.calls import ResultT
from ottla.client.admin.groups import describe_groups
from ottla.client.admin.log_dirs import describe_log_dirs
from ottla.client.admin.manager import AdminManager, BeginCall, CallEnded
from ottla.client.admin.results import (
    ClusterDescription,
    ConfigEntry,
    GroupDescription,
    GroupListing,
    GroupMember,
    LogDirDescription,
    ProducerState,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from ottla.client.calls.shared_state import SharedState
from ottla.client.core import ClientCore
from ottla.client.produce.transactions.prepared import Prepared
from ottla.config import AdminConfig
from ottla.errors import ClosedError, ConcurrentAccessError, OttlaError, OttlaTimeoutError
from ottla.runtime import clock
from ottla.runtime.network_thread import NetworkThread, random_source
from ottla.types import IsolationLevel, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from ottla.settings import AdminSettings

__all__ = [
    "Admin",
    "ClusterDescription",
    "ConfigEntry",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "LogDirDescription",
    "ProducerState",
    "TopicDescription",
    "TransactionDescription",
    "TransactionListing",
]

_CLOSE_TIMEOUT = 5.0

_REPORT_GRACE = 1000
"""Milliseconds beyond the deadline of a call in which the network thread may report why it failed. Longer than in a ``Consumer``:
for an administration tool the reason matters more than a tenth of a second."""

_MAX_REPLICAS = 2**15 - 1

_SPECIAL_TIMES: Mapping[str, int] = {"earliest": calls.EARLIEST, "latest": calls.LATEST}


class Admin:
    """A client for administration, with the settings of Kafka's own admin client: ``Admin(bootstrap_servers="localhost:9092")``.

    The constructor does no I/O. Several threads may use an ``Admin``: its calls run one after the other, and the timeout of a call
    includes the wait for its turn. A signal handler that interrupts a call may only call ``close()``. ``timeout`` is in seconds or
    a ``timedelta``; ``None`` means ``default_api_timeout``. An invalid argument raises a ``TypeError`` or a ``ValueError``. All
    calls raise:

    * ``ConnectionFailedError`` if no broker can be reached, with every address that was tried and why it failed;
    * ``OttlaTimeoutError`` if the call did not succeed in time, with the last error as its cause;
    * a ``BrokerError`` if a broker refuses the request.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **keywords: Unpack[AdminSettings]) -> None:
        self._config = AdminConfig.parse(settings, **keywords)
        self._condition = threading.Condition()
        self._running_call: tuple[int, object] | None = None
        """The id of the thread that makes a call, and an object that identifies the call."""
        self._ids = itertools.count(1)
        self._thread: NetworkThread | None = None
        self._shared = SharedState()

    def __repr__(self) -> str:
        servers = ",".join(map(str, self._config.bootstrap_servers))
        return f"<Admin {servers}{', closed' if self._shared.closed else ''}>"

    def __reduce__(self) -> NoReturn:
        # A copy would share the thread, and close it when it is closed.
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: create one where it is used")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Closing twice does no harm."""
        self._shared.closed = True
        if self._thread is not None:
            self._thread.close(_CLOSE_TIMEOUT)

    # -- topics -----------------------------------------------------------------------------------------------------------

    def create_topics(
        self,
        topics: Mapping[str, int],
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Create topics, given as name -> number of partitions, all with the same ``configs``, and wait until they have leaders.

        -1 lets the broker choose the number of partitions or the replication factor. Raises ``TopicAlreadyExistsError`` and
        similar errors; the message names each topic that failed, the others are created.
        """
        wanted = arguments.counts(topics, "topics", broker_may_choose=True)
        replicas = -1 if replication_factor == -1 else arguments.integer(replication_factor, "replication_factor", 1, _MAX_REPLICAS)
        settings = cast("dict[str, str]", arguments.settings(configs, "configs"))
        only_check = arguments.boolean(validate_only, "validate_only")
        call = calls.create_topics(wanted, replicas, settings, only_check, self._config.request_timeout_ms)
        self._call_unless_empty(wanted, "create_topics", call, timeout)

    def delete_topics(self, topics: Iterable[str], *, timeout: Timeout = None) -> None:
        """Delete topics and their records, and wait until they are deleted.

        Raises ``UnknownTopicOrPartitionError`` and similar errors; the other topics are deleted.
        """
        names = arguments.names(topics, "topics")
        self._call_unless_empty(names, "delete_topics", calls.delete_topics(names, self._config.request_timeout_ms), timeout)

    def list_topics(self, *, include_internal: bool = False, timeout: Timeout = None) -> dict[str, TopicDescription]:
        """All topics that the principal may see, by name."""
        call = calls.list_topics(arguments.boolean(include_internal, "include_internal"))
        return self._call("list_topics", call, timeout)

    def describe_topics(self, topics: Iterable[str], *, timeout: Timeout = None) -> dict[str, TopicDescription]:
        """The given topics, by name. Raises ``UnknownTopicOrPartitionError`` if one does not exist."""
        call = calls.describe_topics(arguments.names(topics, "topics"))
        return self._call("describe_topics", call, timeout)

    def describe_cluster(self, *, timeout: Timeout = None) -> ClusterDescription:
        """The cluster's id, its brokers and its controller."""
        return self._call("describe_cluster", calls.describe_cluster(), timeout)

    def describe_log_dirs(
        self, brokers: Collection[int] | None = None, *, timeout: Timeout = None
    ) -> dict[int, dict[str, LogDirDescription]]:
        """The log directories of brokers (``None``: of all), by node id and path, with their space and the size of each partition.

        Raises ``BrokerIdNotRegisteredError`` for a broker that does not exist.
        """
        wanted = None if brokers is None else arguments.integers(brokers, "brokers")
        return self._call("describe_log_dirs", describe_log_dirs(wanted), timeout)

    def describe_configs(self, kind: str, name: str, *, timeout: Timeout = None) -> dict[str, ConfigEntry]:
        """All settings of a ``"topic"``, a ``"broker"`` (by its node id) or a ``"group"``, by name."""
        call = calls.describe_configs(*_resource(kind, name))
        return self._call("describe_configs", call, timeout)

    def alter_configs(
        self,
        kind: str,
        name: str,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Change settings of a ``"topic"``, a ``"broker"`` or a ``"group"``; ``None`` restores the default.

        The other settings stay as they are. Raises ``InvalidConfigError`` and similar errors, and then nothing has changed.
        """
        wanted = arguments.settings(changes, "changes", may_be_none=True)
        call = calls.alter_configs(*_resource(kind, name), wanted, arguments.boolean(validate_only, "validate_only"))
        self._call_unless_empty(wanted, "alter_configs", call, timeout)

    def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False, timeout: Timeout = None) -> None:
        """Increase topics to these total numbers of partitions, and wait until the new ones have leaders.

        Raises ``InvalidPartitionsError`` for a number that is not an increase; the other topics get theirs.
        """
        wanted = arguments.counts(counts, "counts")
        only_check = arguments.boolean(validate_only, "validate_only")
        call = calls.create_partitions(wanted, only_check, self._config.request_timeout_ms)
        self._call_unless_empty(wanted, "create_partitions", call, timeout)

    def delete_records(self, offsets: Mapping[TopicPartition, int | str], *, timeout: Timeout = None) -> dict[TopicPartition, int]:
        """Delete all records before an offset (``"latest"``: all records); return the new first offset of each partition.

        Raises ``OffsetOutOfRangeError`` for an offset beyond the end, ``PolicyViolationError`` for a compacted topic.
        """
        wanted = arguments.ends(offsets, calls.LATEST)
        call = calls.delete_records(wanted, self._config.request_timeout_ms)
        return self._call_unless_empty(wanted, "delete_records", call, timeout) or {}

    # -- groups -----------------------------------------------------------------------------------------------------------

    def list_groups(self, *, timeout: Timeout = None) -> tuple[GroupListing, ...]:
        """All groups, in the order of their ids."""
        return self._call("list_groups", calls.list_groups(), timeout)

    def describe_groups(self, groups: Iterable[str], *, timeout: Timeout = None) -> dict[str, GroupDescription]:
        """The given groups of either protocol and their members, by id. Raises ``GroupIdNotFoundError`` if one does not exist."""
        call = describe_groups(arguments.names(groups, "groups"))
        return self._call("describe_groups", call, timeout)

    def delete_groups(self, groups: Iterable[str], *, timeout: Timeout = None) -> None:
        """Delete groups and their offsets. Raises ``NonEmptyGroupError`` for groups with members; the others are deleted."""
        names = arguments.names(groups, "groups")
        self._call_unless_empty(names, "delete_groups", calls.delete_groups(names), timeout)

    def group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout: Timeout = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group, or those of some partitions: for each the next offset to read.

        Empty if there is no such group.

        With ``require_stable`` the call waits while a transaction that has offsets of the group is open or ending, as a consumer
        does that starts (brokers from 2.5 on). Without ``partitions`` Kafka waits only for those that have a committed offset
        already, so not for the first transaction of a group.
        """
        wanted = None if partitions is None else arguments.partitions([partitions])
        stable = arguments.boolean(require_stable, "require_stable")
        call = calls.group_offsets(arguments.text(group, "group"), wanted, require_stable=stable)
        if wanted is None:
            return self._call("group_offsets", call, timeout)
        return self._call_unless_empty(wanted, "group_offsets", call, timeout) or {}

    def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        retention: float | timedelta | None = None,
        timeout: Timeout = None,
    ) -> None:
        """Commit offsets for a group, which must have no members (it raises ``UnknownMemberIdError`` if there are any).

        ``retention``: when they expire, in seconds or a ``timedelta``, instead of what the brokers have in
        ``offsets.retention.minutes``.
        """
        name, wanted = arguments.text(group, "group"), arguments.positions(offsets)
        kept = None if retention is None else arguments.duration(retention, "retention")
        self._call_unless_empty(wanted, "alter_group_offsets", calls.alter_group_offsets(name, wanted, kept), timeout)

    # -- offsets ----------------------------------------------------------------------------------------------------------

    def list_offsets(
        self,
        times: Mapping[TopicPartition, int | str],
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout: Timeout = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after a time, for each partition; ``None`` if there is no such record.

        A time is ``"earliest"``, ``"latest"`` (the end: one after the last record; with ``READ_COMMITTED``, the last stable
        offset) or milliseconds since 1970.
        """
        wanted = arguments.times(times, _SPECIAL_TIMES)
        call = calls.list_offsets(wanted, arguments.isolation_level(isolation_level))
        return self._call_unless_empty(wanted, "list_offsets", call, timeout) or {}

    # -- transactions -----------------------------------------------------------------------------------------------------

    def end_transactions(self, prepared: Prepared | Iterable[Prepared], *, commit: bool, timeout: Timeout = None) -> None:
        """Commit or abort what ``Transaction.prepare()`` returned: ``ottla.finish`` for many, over the connections that are open.

        All are tried; the error names those that failed. See ``ottla.finish`` for the errors.
        """
        wanted = [one for one in arguments.prepared(prepared) if not one.is_empty]
        call = transactions.end_transactions(wanted, arguments.boolean(commit, "commit"))
        self._call_unless_empty(wanted, "end_transactions", call, timeout)

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout: Timeout = None
    ) -> dict[str, TransactionDescription]:
        """Transactional ids and their latest transactions, by id (brokers from 3.0 on).

        Raises ``TransactionalIdNotFoundError`` if there is no such id: none ever, or it has expired.
        """
        names = arguments.names(transactional_ids, "transactional_ids")
        call = transactions.describe_transactions(names)
        return self._call_unless_empty(names, "describe_transactions", call, timeout) or {}

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration: float | timedelta | None = None,
        transactional_id_pattern: str | None = None,
        timeout: Timeout = None,
    ) -> tuple[TransactionListing, ...]:
        """All transactional ids, in order, or those that pass each filter that is given (brokers from 3.0 on).

        ``duration``: the latest transaction began longer ago than this (brokers from 3.8 on), or the producer has begun none; with
        ``states=["Ongoing"]`` only those that are open. ``transactional_id_pattern`` is a regular expression for the whole id, in
        the syntax of the broker (from 4.1 on). Raises ``InvalidRequestError`` for a state that the brokers do not know.
        """
        filters = transactions.TransactionFilters(
            tuple(arguments.names(states, "states")),
            tuple(arguments.producer_ids(producer_ids)),
            None if duration is None else arguments.duration(duration, "duration"),
            None if transactional_id_pattern is None else arguments.text(transactional_id_pattern, "transactional_id_pattern"),
        )
        return self._call("list_transactions", transactions.list_transactions(filters), timeout)

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout: Timeout = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that have written to partitions lately, and their open transactions (brokers from 2.8 on)."""
        wanted = arguments.partitions([partitions])
        call = transactions.describe_producers(wanted)
        return self._call_unless_empty(wanted, "describe_producers", call, timeout) or {}

    def fence_producers(self, transactional_ids: Iterable[str], *, timeout: Timeout = None) -> None:
        """Fence the producers of transactional ids, and abort their open transactions, prepared ones too.

        A producer that is fenced gets ``ProducerFencedError`` from its next request. An id that does not exist is created.
        """
        names = arguments.names(transactional_ids, "transactional_ids")
        call = transactions.fence_producers(names, self._config.request_timeout_ms)
        self._call_unless_empty(names, "fence_producers", call, timeout)

    def abort_transaction(self, partition: TopicPartition, producer: ProducerState, *, timeout: Timeout = None) -> None:
        """Abort a transaction in one partition that no coordinator knows any more, so that it would never end.

        ``producer`` is what ``describe_producers`` returns for it. For any other transaction use ``fence_producers``: its
        coordinator would not notice this. Raises ``InvalidProducerEpochError`` if the producer has a newer epoch there. Brokers
        with authorization ask for the right to alter the cluster.
        """
        tp, state = arguments.partition(partition), arguments.producer_state(producer)
        self._call("abort_transaction", transactions.abort_transaction(tp, state), timeout)

    # -- the wait ---------------------------------------------------------------------------------------------------------

    def _call_unless_empty(
        self, argument: Collection[object], name: str, call: calls.Call[ResultT], timeout: Timeout
    ) -> ResultT | None:
        """The result of a call; ``None`` without a request if its argument is empty."""
        if argument:
            return self._call(name, call, timeout)
        arguments.milliseconds(timeout, self._config.default_api_timeout_ms)
        return None

    def _call(self, name: str, call: calls.Call[ResultT], timeout: Timeout) -> ResultT:
        milliseconds = arguments.milliseconds(timeout, self._config.default_api_timeout_ms)
        started, this_call = clock.now().mono, (threading.get_ident(), object())
        try:
            with self._condition:
                if self._running_call is not None and self._running_call[0] == this_call[0]:
                    raise ConcurrentAccessError(
                        f"{name} was called during another call of the same thread, for example by a signal handler",
                        hint="use a separate Admin in the handler",
                    )
                seconds = milliseconds / 1000
                if not self._condition.wait_for(lambda: self._running_call is None, min(seconds, threading.TIMEOUT_MAX)):
                    raise OttlaTimeoutError(
                        f"{name} did not start within {seconds:g} s: a call of another thread is running",
                        hint="use an Admin for each thread",
                    )
                self._running_call = this_call
            thread = self._network_thread()
            call_id = next(self._ids)
            waited = min(clock.now().mono - started, milliseconds)
            thread.submit(BeginCall(call_id, name, call, started + milliseconds, milliseconds, waited))
            outcome: ResultT = self._outcome(thread, call_id, name, started + milliseconds + _REPORT_GRACE)
            return outcome
        finally:
            with self._condition:
                if self._running_call is this_call:
                    self._running_call = None
                # Also if this call never ran: 1. Another call ends and notifies this one. 2. Ctrl-C interrupts this one before it
                # runs. So this one has to notify the next one that waits.
                if self._running_call is None:
                    self._condition.notify()

    def _network_thread(self) -> NetworkThread:
        if self._shared.closed:
            raise ClosedError("the Admin is closed")
        if self._thread is None:
            core = ClientCore(self._config, random_source())
            manager = AdminManager(self._config, core.random, core.notify, core.learn_node)
            core.add_manager(manager)
            core.register(BeginCall, manager.begin)
            self._thread = NetworkThread(core, shared=self._shared, name="ottla-admin")
            self._thread.start()
            # An Admin that was not closed stops its thread when it is garbage collected or the process ends.
            weakref.finalize(self, self._thread.close, 0)
        return self._thread

    def _outcome(self, thread: NetworkThread, call_id: int, name: str, give_up_at: float) -> Any:
        while True:
            for notification in thread.notifications.drain():
                if isinstance(notification, CallEnded) and notification.call_id == call_id:
                    if notification.error is not None:
                        raise notification.error.afresh()
                    return notification.value
            if not thread.running:
                raise OttlaError(f"{name} was interrupted: the network thread ended")
            left = give_up_at - clock.now().mono
            if left <= 0:
                raise OttlaTimeoutError(
                    f"{name} did not finish in time, and the network thread did not report why: does this process get CPU time?"
                )
            thread.notifications.wait(left / 1000)


def _resource(kind: str, name: str | int) -> tuple[str, str]:
    """Check the type and the name of a resource; the name of a broker may be an ``int``."""
    return arguments.one_of(kind, calls.RESOURCES, "kind"), arguments.text(str(name) if isinstance(name, int) else name, "name")
