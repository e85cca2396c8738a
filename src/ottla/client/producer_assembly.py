"""Assembles the managers of a producer: their references to each other, the order of polling, and the handlers of commands.

Owns the wiring. Must not know sockets or threads. Invariant: managers are polled in an order in which each acts on the decisions of
the earlier ones in the same pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.backoff import ExponentialBackoff, RandomPort
from ottla.client.cluster.coordinator import CoordinatorKind, CoordinatorManager
from ottla.client.connections.node_connections import NodeState
from ottla.client.core import ClientCore
from ottla.client.effects import ToCoordinator, ToNode
from ottla.client.events import Inspect
from ottla.client.health.metrics import MetricName, of_connections
from ottla.client.produce.calls import Abandon, Drain, ProducerCalls
from ottla.client.produce.health import ProducerView, Waiting
from ottla.client.produce.metrics import PRODUCER, ProducerMeters
from ottla.client.produce.producer_id import ProducerIdManager
from ottla.client.produce.sender import Sender
from ottla.client.produce.sequences import Sequences
from ottla.client.produce.topics import AwaitTopic, ProducerTopics
from ottla.client.produce.transactions.commands import (
    Begin,
    CloseTransaction,
    CommitOffsets,
    EndTransaction,
    Initialize,
    Prepare,
)
from ottla.client.produce.transactions.manager import TransactionManager
from ottla.client.produce.transactions.states import TransactionState
from ottla.config.producer import ProducerConfig
from ottla.errors import OttlaError
from ottla.records.accumulator import RecordAccumulator
from ottla.types import FrozenMapping, Now, TopicPartition

_DRAINS: frozenset[type[object]] = frozenset({Drain})


class ProducerAssembly:
    """A ``ClientCore`` that is a producer. A shell runs ``core``; the other attributes are for tests."""

    def __init__(self, config: ProducerConfig, random: RandomPort, accumulator: RecordAccumulator, calls: ProducerCalls) -> None:
        self.core = core = ClientCore(config, random, allow_auto_create=True)
        backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        self._config = config
        self._accumulator = accumulator
        self.meters = ProducerMeters()
        core.observe = self.meters.on_completion
        self.topics = ProducerTopics(config, core.metadata_manager, accumulator, core.connections.brokers.unreachable)
        is_transactional = config.transactional_id is not None
        self.sequences = Sequences(begins_epochs=not is_transactional) if config.enable_idempotence else None
        self.transactions = self._transactions(backoff) if is_transactional else None
        self.sender = Sender(
            config,
            accumulator,
            core.metadata_manager,
            self.sequences,
            backoff,
            core.learn_node,
            self._is_connected,
            self._reason,
            self.meters,
            self.transactions,
        )
        core.add_manager(self.topics)
        self.ids: ProducerIdManager | None = None
        if self.sequences is not None and self.transactions is None:
            self.ids = ProducerIdManager(config, self.sequences, backoff, self._has_batches, self.sender.abort_without_id)
            core.add_manager(self.ids)
        core.add_manager(self.sender)
        if self.transactions is not None:
            self.transactions.batches = self.sender
            core.add_manager(self.transactions)
            self._register(core, self.transactions)
            calls.refusal, calls.transaction = self.transactions.refusal, self.transactions.current
        core.before_notifications = core.drop_notifications
        core.deferrable_commands = self._deferrable_commands
        core.register(AwaitTopic, self.topics.wait)
        core.register(Drain, self._drain)
        core.register(Abandon, self._abandon)
        core.register(Inspect, lambda command, now: command.reply(self.view(now)))

    def _transactions(self, backoff: ExponentialBackoff) -> TransactionManager:
        core, config = self.core, self._config

        def coordinator_of(kind: CoordinatorKind, key: str) -> CoordinatorManager:
            return core.coordinator_of(kind, key, backoff)

        def features(target: ToCoordinator) -> Mapping[str, int] | None:
            broker = core.connections.brokers.get(target)
            if broker is None or broker.connection is None or broker.state is not NodeState.READY:
                return None
            return broker.connection.features

        assert self.sequences is not None
        unreachable = core.connections.brokers.unreachable
        return TransactionManager(config, self._accumulator, self.sequences, backoff, coordinator_of, features, unreachable)

    @staticmethod
    def _register(core: ClientCore, transactions: TransactionManager) -> None:
        core.register(Initialize, transactions.initialize)
        core.register(Begin, transactions.begin)
        core.register(CommitOffsets, transactions.commit_offsets)
        core.register(Prepare, transactions.prepare)
        core.register(EndTransaction, transactions.end)
        core.register(CloseTransaction, transactions.close)

    def _deferrable_commands(self) -> frozenset[type[object]]:
        """``Drain``, while it would have no effect: every batch that is completed meanwhile would cost a pass."""
        return _DRAINS if self.sender.is_saturated else frozenset()

    def _is_connected(self, node_id: int) -> bool:
        broker = self.core.connections.brokers.get(ToNode(node_id))
        return broker is not None and broker.state is NodeState.READY

    def _reason(self, node_id: int | None) -> OttlaError | None:
        if self.ids is not None and self.ids.failure is not None:
            return self.ids.failure
        targets = () if node_id is None else (ToNode(node_id),)
        return self.core.connections.brokers.unreachable("", targets)

    def _has_batches(self) -> bool:
        return bool(self._accumulator.incomplete)

    def view(self, now: Now) -> ProducerView:
        """Return the state of the producer."""
        problem = self.core.connections.brokers.unreachable()
        waiting: dict[TopicPartition, Waiting] = {}
        for batch in list(self._accumulator.incomplete):  # the oldest first
            tp = batch.queue.tp
            before = waiting.get(tp)
            if before is None:
                error = None if batch.last_error is None else str(batch.last_error)
                waiting[tp] = Waiting(batch.count, batch.created_at, error)
            else:
                waiting[tp] = before._replace(records=before.records + batch.count)
        metrics = {
            **self.meters.read(self._accumulator, self._config.buffer_memory, now),
            **of_connections(self.core.connections, PRODUCER),
            MetricName("requests-in-flight", PRODUCER): float(self.sender.in_flight),
        }
        view = ProducerView(now, None if problem is None else str(problem), FrozenMapping(waiting), FrozenMapping(metrics))
        if self.transactions is None:
            return view
        fatal = str(self.transactions.error) if self.transactions.state is TransactionState.FATAL_ERROR else None
        return view._replace(transaction=self.transactions.state.name, fatal=fatal)

    def _drain(self, command: Drain, now: Now) -> None:
        """Nothing but the pass that follows is needed, unless batches are to leave before their time."""
        del now
        self.sender.urgent = self.sender.urgent or command.is_urgent

    def _abandon(self, command: Abandon, now: Now) -> None:
        self.sender.abort_all(command.error, now)
