"""The common part of ``Producer`` and ``AsyncProducer``: settings, the network thread, serializers, and what needs no waiting.

Owns the start and the end of the network thread, and the check of arguments. Must not know how a call waits. Invariants: the
constructor does no I/O and starts no thread; nothing that runs without the producer, such as the network thread, keeps it alive.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Never, NoReturn, Unpack

from ottla import arguments
from ottla.arguments import duration
from ottla.client.backoff import RandomPort
from ottla.client.calls.shared_state import SharedState
from ottla.client.health.metrics import MetricName
from ottla.client.produce.calls import Abandon, Drain, ProducerCalls
from ottla.client.produce.health import STUCK_AFTER, ProducerHealth, ProducerView, assess, without_thread
from ottla.client.produce.metrics import PRODUCER
from ottla.client.produce.outcome import Call
from ottla.client.produce.transactions.calls import WAITS, TransactionCalls
from ottla.client.producer_assembly import ProducerAssembly
from ottla.config.producer import ProducerConfig
from ottla.errors import ClosedError, ForkedError, IllegalStateError
from ottla.records.accumulator import RecordAccumulator
from ottla.records.producer_queues import Delivery, ProducerBatch
from ottla.runtime import clock
from ottla.runtime.forks import call_in_child
from ottla.runtime.network_thread import NetworkThread, random_source

if TYPE_CHECKING:
    from ottla.settings import ProducerSettings

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 30.0
"""Seconds. Shorter than ``delivery.timeout``, after which no record would be left."""

END_GRACE = 1.0
"""Seconds that the network thread has to end."""

_DRAIN = Drain()

DeliveryCallback = Callable[[Delivery], object]
"""Called with the ``Delivery`` of a record once it has an outcome."""


class ProducerNetwork:
    """The network thread of a producer, which the first call that needs it starts. Any thread may call it."""

    def __init__(self, config: ProducerConfig, random: RandomPort) -> None:
        self.shared = SharedState()
        self.accumulator = RecordAccumulator(
            batch_size=config.batch_size,
            memory=config.buffer_memory,
            max_record=min(config.max_request_size, config.buffer_memory),
            lock=threading.Lock(),
            nanoseconds=time.time_ns,
            mono=clock.monotonic_milliseconds,
            random=random,
            wake=self.wake,
            settled=lambda batch: self.calls.settled(batch),
            # The end of a transaction reports what has failed in it.
            unseen=_log_unseen if config.transactional_id is None else lambda batch: None,
            partitioner=config.partitioner,
            ignores_keys=config.partitioner_ignore_keys,
        )
        self.calls = ProducerCalls(config, self.accumulator, self.submit, threading.get_ident)
        self.transactions = None if config.transactional_id is None else TransactionCalls(config, self.submit)
        self.left_open: Any = None
        """The latest turn of a loop of ``ottla.transactions``, until it is certain whether it was committed."""
        self._config = config
        self._pid = os.getpid()
        self._assembly = ProducerAssembly(config, random, self.accumulator, self.calls)
        self._starting = threading.RLock()
        """Held while the thread is created and started. Re-entrant, since a signal handler may send a record."""
        self._thread: NetworkThread | None = None
        self._has_started = False
        call_in_child(self._forked)

    def _forked(self) -> None:
        """Accept no records in a forked child: another thread may have held the accumulator's lock."""
        self.accumulator.accepts = False

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster; ``None`` until a broker has sent it."""
        return self._assembly.core.metadata.cluster_id

    @property
    def started(self) -> bool:
        """Whether there is a network thread, or was one."""
        return self._thread is not None

    @property
    def running(self) -> bool:
        """Whether the network thread handles commands."""
        return self._thread is not None and self._thread.running

    def wake(self) -> None:
        """Have the network thread look at the batches."""
        if self._thread is not None:
            self._thread.submit(_DRAIN)

    def remind(self) -> None:
        """Wake the network thread, in case that Ctrl-C came between the change that a call waits for and the wake-up."""
        if self._thread is not None and self._thread.running:
            with suppress(ClosedError):
                self._thread.submit(_DRAIN)

    def submit(self, command: object) -> None:
        """Have the network thread handle a command. Raises ``ClosedError`` once closed, ``ForkedError`` in a forked child."""
        self.check_process()
        thread = self._thread
        if thread is None or not self._has_started:
            with self._starting:
                if self._thread is None:
                    self._thread = NetworkThread(self._assembly.core, shared=self.shared, name=f"ottla-{self._config.client_id}")
                thread = self._thread
                thread.start()  # if a signal handler raises in there, the next command starts the same thread
                self._has_started = True
        thread.submit(command)

    def closing(self, until: int) -> Call[None]:
        """Abort an open transaction, and send what can be sent until then (monotonic ms)."""
        if self.transactions is not None and self.started:
            yield from self.transactions.close(until)
        yield from self.calls.close(until)
        if self.transactions is not None:
            self.calls.forget_failure()  # what was not committed was not written, whatever the reason

    def close(self, timeout: float) -> None:
        """End the network thread: records without an outcome fail."""
        thread = self._thread
        if thread is not None and thread.running:
            thread.submit(Abandon(ClosedError("the producer was closed before the record was acknowledged")))
            thread.close(timeout)

    def view(self) -> ProducerView | None:
        """Return the network thread's view of the producer; ``None`` if it is not running, or does not answer."""
        return None if self._thread is None else self._thread.inspect()

    def check_process(self) -> None:
        """Raise ``ForkedError`` in a forked child: it has no network thread, and perhaps a lock that no thread will release."""
        if os.getpid() != self._pid:
            raise ForkedError(f"this producer belongs to process {self._pid}, this is process {os.getpid()}")

    def check_running(self) -> None:
        """Raise if the network thread has ended, or is the caller: no call may wait for it."""
        if self._thread is not None and self._thread.is_current:
            # For example, the garbage collector runs there, and closes the generator of a loop that was left: that aborts.
            raise IllegalStateError("the network thread of a producer cannot wait for itself")
        if self._thread is not None and not self._thread.running:
            if self.shared.closed:
                raise ClosedError("the producer is closed")
            raise IllegalStateError("the network thread of this producer has ended", hint="create a new producer")


class ProducerBase:
    """See the module."""

    def __init__(self, config: Mapping[str, Any] | None = None, /, *too_many: Never, **settings: Unpack[ProducerSettings]) -> None:
        if too_many:
            name = type(self).__name__
            raise TypeError(f"{name}() takes one mapping of settings, or settings by name: {name}(bootstrap_servers=...)")
        self._config = ProducerConfig.parse(config, **settings)
        self._network = network = ProducerNetwork(self._config, random_source())
        self._calls = network.calls
        self._accumulator = network.accumulator
        self._append = self._accumulator.append
        self._delivered = self._calls.delivered
        self._serialize = self._config.key_serializer is not None or self._config.value_serializer is not None
        self._prepare()

    def _prepare(self) -> None:
        """Initialize the attributes of the subclass."""

    def __repr__(self) -> str:
        state = "closed" if self._network.shared.closed else f"{len(self._accumulator.incomplete)} batches without an outcome"
        return f"<{type(self).__name__} {','.join(map(str, self._config.bootstrap_servers))}, {state}>"

    def __reduce__(self) -> NoReturn:
        # A copy would share the thread, and stop it when it is closed or garbage collected.
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: create one where it is used")

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        network = self.__dict__.get("_network")  # missing if the settings were refused
        if network is not None and network.running:
            warn(f"{self!r} was not closed: records may not have been written", ResourceWarning, source=self)
            network.close(0)

    def health(self, stuck_after: float | timedelta = STUCK_AFTER) -> ProducerHealth:
        """The health of the producer. May be called from any thread; costs nothing unless called.

        ``stuck_after``: seconds for which a record may have no outcome before the producer counts as unhealthy.
        """
        self._network.check_process()
        limit = duration(stuck_after, "stuck_after")
        view = self._network.view()
        if view is not None:
            return assess(view, limit)
        if self._network.shared.closed:
            return without_thread("the producer is closed", live=False)
        if self._network.started:
            return without_thread("its network thread does not answer", live=False)
        return without_thread("no record was sent yet", live=True)

    def metrics(self) -> dict[MetricName, float]:
        """The metrics of the producer, with the names of Kafka's own. May be called from any thread.

        Times are milliseconds. Empty before the first call that needs a connection, and once closed.
        """
        self._network.check_process()
        view = self._network.view()
        if view is None:
            return {}
        waited = dict.fromkeys(WAITS, 0) if self._network.transactions is None else self._network.transactions.waited
        # Kafka counts nanoseconds here, and milliseconds elsewhere.
        times = {MetricName(f"txn-{what}-time-ns-total", PRODUCER): spent * 1e6 for what, spent in waited.items()}
        return {**view.metrics, **times}

    def _waiting_send(self, topic: Any, value: Any, key: Any, partition: Any, *others: Any) -> Call[Delivery]:
        """The call for a record that has to wait for memory or for its topic. Raises for a topic or partition that cannot be."""
        name = arguments.topic(topic)
        number = None if partition is None else arguments.integer(partition, "partition", 0, 2**31 - 1)
        return self._calls.send(name, (value, key, number, *others), clock.now())

    def _serialized(self, key: Any, value: Any) -> tuple[Any, Any]:
        """The results of the serializers, which are not called for ``None``: it is a null, as for a consumer's deserializers."""
        config = self._config
        if config.key_serializer is not None and key is not None:
            key = config.key_serializer(key)
        if config.value_serializer is not None and value is not None:
            value = config.value_serializer(value)
        return key, value

    def _transaction_calls(self) -> TransactionCalls:
        self._check_open()
        if self._network.transactions is None:
            raise IllegalStateError("the producer is not transactional", hint='Producer(transactional_id="...")')
        return self._network.transactions

    def _check_open(self) -> None:
        self._network.check_process()
        if self._network.shared.closed:
            raise ClosedError("the producer is closed")


def _log_unseen(batch: ProducerBatch) -> None:
    records = "1 record" if batch.count == 1 else f"{batch.count} records"
    _log.error("%s for %s failed, and nothing has looked at the outcome: %s", records, batch.queue.tp, batch.error)
