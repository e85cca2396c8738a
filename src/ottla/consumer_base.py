"""The common part of all consumers: settings, the network thread, the queries that need no waiting, and the code that polled last.

Owns the start of the network thread, ``wakeup``, the queries that are answered from the latest snapshot, the calls that other
threads may make, and the rule by which ``close()`` counts the records of the last poll as processed (docs/consumer.md has it as a
table). Must not know how a call waits: ``Consumer`` blocks its thread, ``AsyncConsumer`` its task. Invariants: it opens nothing,
and starts no thread, before the first call that needs it; if the interpreter, asyncio or the call stack shows that a record may be
unprocessed, it does not count as processed and is delivered again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from datetime import timedelta
from inspect import CO_VARARGS
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, Unpack

from ottla.arguments import LONGEST_POLL, Timeout, duration, milliseconds
from ottla.client.assembly import ConsumerAssembly
from ottla.client.calls.calls import ConsumerCalls, ProcessingJob
from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.delivery import Delivery
from ottla.client.calls.listeners import Listener
from ottla.client.calls.shared_state import SharedState
from ottla.client.events import WakeupRequested
from ottla.client.groups.rebalances import Rebalance
from ottla.client.health.metrics import MetricName
from ottla.client.health.verdicts import STUCK_AFTER, Assessor, Health, NetworkView
from ottla.client.subscription import Mode
from ottla.config import ConsumerConfig, OttlaConfigWarning
from ottla.errors import ClosedError, ForkedError, IllegalStateError
from ottla.runtime.network_thread import NetworkThread, NotificationQueue, host_name, random_source, zookeeper_client
from ottla.types import ConsumerGroupMetadata, K_co, OffsetAndMetadata, TopicPartition, V_co, short_repr

if TYPE_CHECKING:
    from ottla.settings import ConsumerSettings

OffsetsOfMember = tuple[ConsumerGroupMetadata, dict[TopicPartition, OffsetAndMetadata]]
"""A member of a group, and offsets that it commits in a producer's transaction."""

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 5.0
"""Seconds. With Kafka's 30 a consumer whose brokers are down would still be closing when Kubernetes kills its process."""

END_GRACE = 0.05
"""Seconds that the network thread has to end when ``close()`` has no time left."""


class ConsumerBase(Generic[K_co, V_co]):
    """See the module."""

    _network: NetworkThread | None = None
    _started = False

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *too_many: Never,
        key_deserializer: Callable[[bytes], K_co] | None = None,
        value_deserializer: Callable[[bytes], V_co] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        if too_many:
            name = type(self).__name__
            raise TypeError(f"{name}() takes one mapping of settings, or settings by name: {name}(bootstrap_servers=...)")
        self._pid = os.getpid()
        deserializers = {"key_deserializer": key_deserializer, "value_deserializer": value_deserializer}
        given = {name: value for name, value in deserializers.items() if value is not None}
        self._config = ConsumerConfig.parse(config, **given, **settings)
        self._notifications = NotificationQueue()
        self._calls = ConsumerCalls(self._config, _weakly(self._submit), self._notifications.news)
        self._shared = self._calls.shared
        self._zookeeper = zookeeper_client(self._config)
        self._assembly = ConsumerAssembly(self._config, random_source(), self._shared, host_name())
        self._monitor = _Monitor(self._config, self._shared)
        self._last_poll = _LastPoll(self._calls.collector)
        self._warned_of_wait = False
        self._left_open: Any = None
        """What the latest loop of ``ottla.transactions()`` has left to be done."""
        self._prepare()

    def _prepare(self) -> None:
        """Initialize the attributes of the subclass."""

    def __repr__(self) -> str:
        group = f"group {self._config.group_id!r}" if self._config.group_id is not None else "no group"
        state = "closed" if self._shared.closed else f"{len(self._calls.snapshot.partitions)} partitions"
        return f"<{type(self).__name__} {group}, {state}>"

    def __reduce__(self) -> NoReturn:
        # A copy would share the threads, and stop them when it is closed or garbage collected.
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: create one where it is used")

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if self._network is not None and self._network.running:
            warn(f"{self!r} was not closed: its group notices when its session expires", ResourceWarning, source=self)
            self._network.close(0)

    def assignment(self) -> set[TopicPartition]:
        """The partitions this consumer reads now: those given to ``assign()``, or those that ``on_assign`` got."""
        self._check_open()
        if self._calls.snapshot.mode is Mode.MANUAL:
            return set(self._calls.snapshot.partitions)
        return set(self._calls.owned)

    def subscription(self) -> set[str]:
        """The topics subscribed to."""
        self._check_open()
        snapshot = self._calls.snapshot
        return set(snapshot.topics) if snapshot.mode is Mode.TOPICS else set()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        self._check_open()
        return {tp for tp, view in self._calls.snapshot.partitions.items() if view.paused}

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The identity of this consumer in its group, for a producer's transactions (KIP-447).

        Raises ``InvalidGroupIdError`` without a group.
        """
        self._check_open()
        return self._calls.group_metadata()

    @property
    def rebalances(self) -> tuple[Rebalance, ...]:
        """The latest rebalances of this member, oldest first, at most a hundred. May be read from any thread."""
        self._check_process()
        return self._shared.rebalances

    def health(self, stuck_after: float | timedelta = STUCK_AFTER) -> Health:
        """The health of the consumer, as a whole and by partition. May be called from any thread; costs nothing unless called.

        ``stuck_after``: seconds for which a partition may make no progress before the consumer counts as unhealthy. This is
        detected between calls, so call this regularly, as a probe does. ``ottla.health.serve`` is a server for probes.
        """
        self._check_process()
        # A network thread that is still being started does not answer, but nothing is wrong with it.
        return self._monitor.health(self._network if self._started else None, duration(stuck_after, "stuck_after"))

    def metrics(self) -> dict[MetricName, float]:
        """The metrics of the consumer, with the names of Kafka's own consumer. May be called from any thread.

        Times are milliseconds, as Kafka's are, except names that end in ``seconds-ago``.
        """
        self._check_process()
        return self._monitor.metrics(self._network)

    def processing(self, *, limit: float | timedelta) -> ProcessingJob:
        """A block in which the application may process records for longer than ``max_poll_interval`` and remain a member.

        ::

            with consumer.processing(limit=3600) as job:
                for record in records:
                    handle(record)      # minutes
                    job.progress()      # the limit counts from here

        Heartbeats continue, no other records are returned, and prefetched records are kept. A job that is silent for ``limit``
        (seconds), counted from its beginning or its latest ``job.progress()``, counts as hung: the member leaves the group, one
        line in the log says so, and a commit raises ``CommitFailedError``. A rebalance waits for the end of the block, but not
        longer than the group does, which is ``max_poll_interval``; ``job.rebalancing`` is true meanwhile. Raises
        ``IllegalStateError`` for a block inside another, as ``poll()`` does inside a block.
        """
        self._check_open()
        self._calls.check_no_streams("processing()")
        silent = duration(limit, "limit")
        if not silent:
            raise ValueError("limit=0: it must be positive")
        return self._calls.jobs.job(silent)

    def wakeup(self) -> None:
        """Make the waiting call of the consumer, or its next one, raise ``WakeupError``.

        May be called from any thread, and from a signal handler.
        """
        self._check_process()
        self._notifications.put_all([WakeupRequested()])

    def _network_thread(self) -> NetworkThread:
        """The network thread. The first call that needs it starts it."""
        if self._network is None:
            name = f"ottla-{self._config.client_id}"
            self._network = NetworkThread(
                self._assembly.core,
                notifications=self._notifications,
                shared=self._shared,
                name=name,
                zookeeper=self._zookeeper,
            )
        if not self._started:
            self._network.start()
            self._started = True
        return self._network

    def _submit(self, command: object) -> None:
        self._network_thread().submit(command)

    def _bound(self, listener: Callable[[Any, list[TopicPartition]], object] | None) -> Listener | None:
        """A listener that is called with this consumer, and does not keep it alive."""
        this = weakref.ref(self)
        return None if listener is None else lambda partitions: listener(this(), partitions)

    def _poll_timeout(self, timeout: float | timedelta) -> int:
        """Milliseconds that a poll may wait. Warns of a very large number of seconds, which may be meant as milliseconds."""
        wait = duration(timeout)
        if wait > LONGEST_POLL and not self._warned_of_wait and isinstance(timeout, int | float) and timeout != math.inf:
            self._warned_of_wait = True
            given = short_repr(timeout)
            message = f"poll({given}) may wait for {given} seconds: timeouts are in seconds, as a number or a timedelta"
            warnings.warn(message, OttlaConfigWarning, stacklevel=3)
        return wait

    def _timeout(self, timeout: Timeout) -> int:
        return milliseconds(timeout, self._config.default_api_timeout_ms)

    def _check_process(self) -> None:
        """Raise ``ForkedError`` in a forked child: it has no network thread, and no thread that would release a held lock."""
        if os.getpid() != self._pid:
            raise ForkedError(f"this consumer belongs to process {self._pid}, this is process {os.getpid()}")

    def _check_running(self, network: NetworkThread) -> None:
        if not network.running:
            self._check_open()
            raise IllegalStateError("the network thread of this consumer has ended", hint="create a new consumer")

    def _check_open(self) -> None:
        self._check_process()
        if self._shared.closed:
            raise ClosedError("the consumer is closed")


class _Monitor:
    """The health and the metrics of a consumer, for any thread. It costs nothing unless it is called.

    It reads ``SharedState`` and sends the network thread an ``Inspect`` for the rest.
    """

    def __init__(self, config: ConsumerConfig, shared: SharedState) -> None:
        self.assessing = threading.Lock()
        """Held during an assessment: several threads may ask, and the assessor remembers the last progress of each partition."""
        self._group_id = config.group_id
        self._shared = shared
        self._assessor = Assessor(config.group_id, config.session_timeout_ms)

    def health(self, network: NetworkThread | None, stuck_after: int) -> Health:
        view = _view(network)
        if view is None:
            closed = self._shared.closed
            dead = closed or network is not None
            reason = "no call was made yet"
            if dead:
                reason = "the consumer is closed" if closed else "its network thread does not answer"
            return Health(live=not dead, ready=False, healthy=False, reasons=(reason,), group_id=self._group_id)
        with self.assessing:
            return self._assessor.assess(view, self._shared.consumed(), stuck_after)

    def metrics(self, network: NetworkThread | None) -> dict[MetricName, float]:
        view = _view(network)
        return {} if view is None else {**view.metrics, **self._shared.metrics(view.at)}


def _weakly(method: Callable[[object], None]) -> Callable[[object], None]:
    """A method of a consumer, which does not keep the consumer alive: the thread that runs its calls may be another one's."""
    reference = weakref.WeakMethod(method)

    def call(argument: object) -> None:
        bound = reference()
        if bound is None:
            raise ClosedError("the consumer was garbage collected")
        bound(argument)

    return call


def _view(network: NetworkThread | None) -> NetworkView | None:
    """The network thread's view of the consumer; ``None`` if no network thread is running, or it does not answer."""
    return None if network is None else network.inspect()


class _LastPoll:
    """Whether the records of the last poll count as processed.

    The code that closes the consumer, or calls it, calls these methods itself, since the answer depends on the calling code: see
    ``Caller``.
    """

    def __init__(self, collector: FetchCollector) -> None:
        self._collector = collector

    def processed(self, error: BaseException | None = None) -> Delivery | None:
        """The last delivery, if ``close()`` may count it as processed; ``error``: the exception that left the ``with`` block."""
        delivery = self._collector.delivery
        if delivery is None or delivery.caller is None:
            return delivery
        reason = delivery.caller.unfinished() if error is None else f"{type(error).__name__} has left the with block"
        if reason is not None:
            _log.info("the records of the last poll do not count as processed: %s", reason)
            return None
        return delivery

    def is_processed(self, error: BaseException | None = None) -> bool:
        """Whether ``close()`` may count the records as processed."""
        return self._collector.delivery is self.processed(error)

    def on_interrupted(self, reason: str) -> None:
        """Note that a call was interrupted: the processing of the records may have been interrupted with it."""
        delivery = self._collector.delivery
        if delivery is not None and delivery.caller is not None and delivery.caller.is_running():
            delivery.caller.interrupted = reason


_polled: ContextVar[None] = ContextVar("ottla_polled")
"""Never read. A ``Token`` of it can only be reset in the ``Context`` that created it, so it distinguishes contexts."""


class Caller:
    """The code that a poll returned to. ``task``: its asyncio task, for an ``AsyncConsumer``."""

    __slots__ = ("_cancelling", "_context", "_handling", "_task", "_uncaught", "interrupted")

    def __init__(self, task: asyncio.Task[Any] | None = None) -> None:
        self.interrupted: str | None = None
        """What interrupted a call that this code made while it processed the records; ``None``: nothing."""
        self._task = task
        # Only a cancellation request after the poll means that the records may be unprocessed. Older ones are counted here, since
        # before Python 3.13 a failed TaskGroup leaves its own request on the task for ever.
        self._cancelling = 0 if task is None else task.cancelling()
        # A thread has its own context, and so has each call of asyncio.to_thread(), whichever thread runs it.
        self._context: Token[None] | None = _polled.set(None) if task is None else None
        self._handling = sys.exception()
        self._uncaught = _uncaught()

    def is_running(self) -> bool:
        """Whether this is the current task, or no task is known."""
        return self._task is None or self._task is _current_task()

    def unfinished(self) -> str | None:
        """Why the records may be unprocessed; ``None``: there is no indication. The code that closes the consumer calls this."""
        handling, uncaught = sys.exception(), _uncaught()
        if handling is not None and handling is not self._handling:
            return f"{type(handling).__name__} is being handled"
        if uncaught is not None and uncaught is not self._uncaught:
            return f"{type(uncaught).__name__} was not caught"
        if _at_exit():
            return "the program has ended, perhaps by sys.exit() while they were processed"
        if self.interrupted is not None:
            return self.interrupted
        if _in_signal_handler():
            return "a signal handler closes, perhaps while they are processed"
        if self._task is not None:
            return _unfinished(self._task, self._cancelling)
        return None if self._is_same_context() else "another thread, or another context, polled"

    def _is_same_context(self) -> bool:
        if self._context is None:
            return True
        try:
            _polled.reset(self._context)
        except (ValueError, RuntimeError):  # created in another context; or already used, by an interrupted close()
            return False
        return True


def _unfinished(task: asyncio.Task[Any], cancelling: int) -> str | None:
    """Why the records of a task that polled last may be unprocessed; ``cancelling``: its earlier cancellation requests."""
    name = f"task {task.get_name()!r}, which polled last,"
    if task.done() and not task.cancelled():
        error = task.exception()
        if error is not None:
            # asyncio does not report an exception that was retrieved, so it is reported here.
            _log.warning("%s has failed", name, exc_info=error)
            return f"{name} has failed with {type(error).__name__}"
    if task.cancelled() or task.cancelling() > cancelling:
        return f"{name} was cancelled"
    if not task.done() and task is not _current_task():
        return f"{name} is not done"
    return None


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop is running in this thread
        return None


def _uncaught() -> BaseException | None:
    """The latest uncaught exception: the interactive shell, pytest and the end of the interpreter store it here."""
    attributes = vars(sys)  # getattr() takes microseconds if the attribute is missing, and each poll does this
    error: BaseException | None = attributes.get("last_exc") or attributes.get("last_value")
    return error


def _at_exit() -> bool:
    """Whether this thread runs functions that were registered with ``atexit``.

    The interpreter stores an uncaught exception, but not a ``SystemExit``. So a program that raised ``SystemExit`` in the middle of
    its records, in a SIGTERM handler for example, cannot be distinguished from one that has reached its end.
    """
    main = threading.main_thread()
    return threading.current_thread() is main and not main.is_alive()


def _in_signal_handler() -> bool:
    """Whether this thread runs a signal handler.

    Python calls a handler with the interrupted frame as an argument, and that frame is also the one below the handler's own.
    ``signal.getsignal()`` would not find a handler that has replaced itself, as many do in their first line.
    """
    if threading.current_thread() is not threading.main_thread():
        return False  # Python runs signal handlers only on the main thread
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_called_with(frame, frame.f_back):
            return True
        frame = frame.f_back
    return False


def _is_called_with(frame: FrameType, wanted: object) -> bool:
    """Whether ``wanted`` is among the positional arguments of this call."""
    code = frame.f_code
    more = bool(code.co_flags & CO_VARARGS)
    if wanted is None or (code.co_argcount < 2 and not more):
        return False  # no signal handler; before Python 3.13 ``f_locals`` is a copy that lives as long as the frame
    given = frame.f_locals
    arguments = [given.get(name) for name in code.co_varnames[: code.co_argcount]]
    if more:
        arguments += given.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
    return any(argument is wanted for argument in arguments)
