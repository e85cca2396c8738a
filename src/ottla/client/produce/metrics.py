"""A producer's metrics, with the names of Kafka's own producer and their meanings.

Owns the numbers that the network thread counts, and the table of names. Must not know why a batch is sent, nor clocks. Invariants:
the cost of a batch does not depend on its records; each metric of a producer is a row of ``NAMES``, and each one of Kafka's is
there or in ``LEFT_OUT`` with the reason.

Averages, maxima and rates are those of the last 30 to 60 s, as in Kafka. Source: what ``KafkaProducer.metrics()`` of Apache Kafka
4.3 returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.client.effects import CompletedRequest
from ottla.client.health.metrics import Meter, MetricName
from ottla.protocol import milliseconds
from ottla.protocol.apis import Api
from ottla.records.accumulator import RecordAccumulator
from ottla.records.producer_queues import ProducerBatch
from ottla.types import Now

PRODUCER, TOPIC = "producer-metrics", "producer-topic-metrics"
"""The groups of metrics."""

NAMES: Mapping[str, Mapping[str, str]] = {
    PRODUCER: {
        "batch-size-avg": "bytes of a batch as sent (compressed), on average",
        "batch-size-max": "the most of them",
        "batch-split-rate": "batches per second that were too large for the broker, and were divided",
        "batch-split-total": "all of them",
        "buffer-available-bytes": "bytes of `buffer.memory` that are free",
        "buffer-total-bytes": "`buffer.memory`",
        "compression-rate-avg": "bytes of a batch as sent, by its bytes before compression, on average",
        "connection-close-total": "connections that ended",
        "connection-count": "connections that are ready for use",
        "connection-creation-total": "connections that were established, including TLS and login",
        "produce-throttle-time-avg": "milliseconds for which a broker throttled the client, on average",
        "produce-throttle-time-max": "the longest of them",
        "record-error-rate": "records per second that failed",
        "record-error-total": "all of them",
        "record-queue-time-avg": "milliseconds from the first record of a batch until the batch was sent, on average",
        "record-queue-time-max": "the longest of them",
        "record-retry-rate": "records per second that were sent again",
        "record-retry-total": "all of them",
        "record-send-rate": "records per second that were sent",
        "record-send-total": "all of them",
        "records-per-request-avg": "records in a request, on average",
        "request-latency-avg": "milliseconds until a request was answered, on average",
        "request-latency-max": "the longest of them",
        "request-total": "requests that were sent",
        "requests-in-flight": "Produce requests without a response",
        "response-rate": "answers per second",
        "response-total": "answers",
        "txn-abort-time-ns-total": "nanoseconds in `abort()`; these six are 0 without `transactional_id`",
        "txn-begin-time-ns-total": "nanoseconds in `begin()`, or at the start of the `with` block, the first with `init`",
        "txn-commit-time-ns-total": "nanoseconds in `commit()`, or at the end of the `with` block",
        "txn-init-time-ns-total": "nanoseconds in `initialize()`",
        "txn-prepare-time-ns-total": "nanoseconds in `prepare()`",
        "txn-send-offsets-time-ns-total": "nanoseconds in `commit_offsets()`",
    },
    TOPIC: {
        "byte-rate": "bytes per second that were sent, as sent",
        "byte-total": "all of them",
        "record-error-rate": "records per second that failed",
        "record-error-total": "all of them",
        "record-retry-rate": "records per second that were sent again",
        "record-retry-total": "all of them",
        "record-send-rate": "records per second that were sent",
        "record-send-total": "all of them",
    },
}
"""Group -> name -> its meaning."""

LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    PRODUCER: {
        "buffer-exhausted-*": "`send` raises when it has waited for memory in vain",
        "bufferpool-*": "see `buffer-available-bytes`",
        "waiting-threads": "see `buffer-available-bytes`",
        "flush-time-ns-total": "the program can measure it",
        "metadata-*": "an internal detail",
        "record-size-*": "see `byte-total` and `record-send-total`",
        "*authentication-*": "a login that fails is raised by the call that waits, and logged",
        "select-*": "an internal detail of the network thread",
        "io-*": "an internal detail of the network thread",
        "incoming-byte-*": "the operating system counts them: `ss -ti`",
        "outgoing-byte-*": "the operating system counts them: `ss -ti`",
        "network-io-*": "the operating system counts them: `ss -ti`",
        "request-size-*": "the operating system counts them: `ss -ti`",
        "request-rate": "see `response-rate`",
        "connection-close-rate": "the rate of `connection-close-total`",
        "connection-creation-rate": "the rate of `connection-creation-total`",
    },
    TOPIC: {"compression-rate": "see `compression-rate-avg` of the client"},
    "producer-node-metrics": {"*": "slow and failed brokers are in the log, and in `health()`"},
    "app-info": {"*": "`ottla.__version__`"},
    "kafka-metrics-count": {"*": "`len(producer.metrics())`"},
}
"""Group -> name, or pattern of names -> why Ottla does not count it."""


class _Records:
    """Records of one topic, or of all, each meter with a value for each batch."""

    def __init__(self) -> None:
        self.sent, self.retried, self.failed, self.bytes = Meter(), Meter(), Meter(), Meter()

    def read(self, now: Now) -> dict[str, float]:
        values = {}
        for name, meter in (("send", self.sent), ("retry", self.retried), ("error", self.failed)):
            values[f"record-{name}-total"] = meter.total
            values[f"record-{name}-rate"] = meter.sum_rate(now)
        return values


class ProducerMeters:
    """Counts batches and requests."""

    def __init__(self) -> None:
        self._all = _Records()
        self._topics: dict[str, _Records] = {}
        self._compression, self._queued, self._split = Meter(), Meter(), Meter()
        self._requests, self._throttled, self._per_request = Meter(), Meter(), Meter()

    def drained(self, batches: Iterable[tuple[ProducerBatch, int]], now: Now) -> None:
        """Count the batches of a request, each with its bytes as sent."""
        records = 0
        for batch, size in batches:
            records += batch.count
            self._compression.record(size / batch.size, now)
            for one in self._of(batch):
                one.bytes.record(size, now)
                (one.retried if batch.attempts else one.sent).record(batch.count, now)
            if not batch.attempts:
                self._queued.record(now.mono - batch.created_at, now)
        self._per_request.record(records, now)

    def failed(self, batch: ProducerBatch, now: Now) -> None:
        """Count a batch that will not be sent again."""
        for one in self._of(batch):
            one.failed.record(batch.count, now)

    def divided(self, now: Now) -> None:
        """Count a batch that was too large."""
        self._split.record(1, now)

    def on_completion(self, completion: CompletedRequest, now: Now) -> None:
        """Count a request that was answered or has failed."""
        if completion.error is not None:
            return
        self._requests.record(now.mono - completion.request.sent_at, now)
        if completion.request.send.api is Api.PRODUCE:
            self._throttled.record(milliseconds(completion.message.throttle_time), now)

    def _of(self, batch: ProducerBatch) -> tuple[_Records, _Records]:
        topic = batch.queue.topic.name
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _Records()
        return self._all, found

    def read(self, accumulator: RecordAccumulator, limit: int, now: Now) -> dict[MetricName, float]:
        """Return the current values; times are milliseconds. ``limit`` is ``buffer.memory``."""
        values = {
            **self._all.read(now),
            "batch-size-avg": self._all.bytes.average(now),
            "batch-size-max": self._all.bytes.maximum(now),
            "batch-split-rate": self._split.rate(now),
            "batch-split-total": float(self._split.count),
            "buffer-available-bytes": float(max(0, limit - accumulator.used)),
            "buffer-total-bytes": float(limit),
            "compression-rate-avg": self._compression.average(now),
            "produce-throttle-time-avg": self._throttled.average(now),
            "produce-throttle-time-max": self._throttled.maximum(now),
            "record-queue-time-avg": self._queued.average(now),
            "record-queue-time-max": self._queued.maximum(now),
            "records-per-request-avg": self._per_request.average(now),
            "request-latency-avg": self._requests.average(now),
            "request-latency-max": self._requests.maximum(now),
            "response-rate": self._requests.rate(now),
            "response-total": float(self._requests.count),
        }
        metrics = {MetricName(name, PRODUCER): value for name, value in values.items()}
        for topic, records in self._topics.items():
            tags = (("topic", topic),)
            metrics.update({MetricName(name, TOPIC, tags): value for name, value in records.read(now).items()})
            metrics[MetricName("byte-total", TOPIC, tags)] = records.bytes.total
            metrics[MetricName("byte-rate", TOPIC, tags)] = records.bytes.sum_rate(now)
        return metrics
