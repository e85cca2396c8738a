"""A consumer's metrics, with the names of Kafka's own consumer.

Owns the meters: ``Meters`` counts requests, on the network thread; ``PollMetrics`` and ``Consumption`` count the application's
calls and records, on its thread. Must not know why a request was sent, what a poll does, nor clocks. Invariant: the cost of a
response or a poll depends only on the number of its partitions; a record costs nothing.

Averages, maxima and rates are those of the last 30 to 60 s, as in Kafka (two samples of 30 s).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from ottla.client.connections.connections import Connections
from ottla.client.connections.node_connections import ESTABLISHED_STATES
from ottla.client.effects import CompletedRequest
from ottla.client.events import FetchedResponse
from ottla.client.subscription import Consumed
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.apis import Api
from ottla.types import Now, TopicPartition

WINDOW = 30_000
SAMPLES = 2

COORDINATOR, FETCH, CONSUMER = "consumer-coordinator-metrics", "consumer-fetch-manager-metrics", "consumer-metrics"
"""The groups of metrics."""

_ALIVE = (ErrorCode.none, ErrorCode.rebalance_in_progress)
"""The error codes of a heartbeat that the coordinator has accepted."""


class MetricName(NamedTuple):
    """The name of a metric, as in Kafka. ``tags`` are pairs of name and value, for example of its partition."""

    name: str
    group: str
    tags: tuple[tuple[str, str], ...] = ()


_Sample = tuple[int, int, float, float, float]
"""When a window began, and its values: number, sum, minimum, maximum. A plain tuple, since each value creates one."""


class Meter:
    """The count and the total of a value, and its average, extremes and rate in the latest samples.

    One thread records. Others may read: each value replaces the tuple of samples, whose items never change.
    """

    __slots__ = ("_samples", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._samples: tuple[_Sample, ...] = ()

    def record(self, value: float, now: Now) -> None:
        """Record one value."""
        self.count += 1
        self.total += value
        samples = self._samples
        if samples and now.mono < samples[-1][0] + WINDOW:
            begins, count, total, least, most = samples[-1]
            latest = (begins, count + 1, total + value, value if value < least else least, value if value > most else most)
            self._samples = (*samples[:-1], latest)
        else:
            self._samples = (*samples[1 - SAMPLES :], (now.mono, 1, 0.0 + value, value, max(0.0, value)))

    def average(self, now: Now) -> float:
        """The average of recent values; 0 if there is none."""
        recent = self._recent(now)
        return sum(total for _, _, total, _, _ in recent) / max(1, sum(count for _, count, _, _, _ in recent))

    def maximum(self, now: Now) -> float:
        """The maximum of recent values; 0 if there is none."""
        return max((most for *_, most in self._recent(now)), default=0.0)

    def minimum(self, now: Now) -> float | None:
        """The minimum of recent values; ``None`` if there is none."""
        return min((least for *_, least, _ in self._recent(now)), default=None)

    def rate(self, now: Now) -> float:
        """The number of recent values per second."""
        return self._per_second(1, now)

    def sum_rate(self, now: Now) -> float:
        """The sum of recent values per second."""
        return self._per_second(2, now)

    def _per_second(self, place: int, now: Now) -> float:
        """The recent sum, per second, of the values at a place of the samples."""
        recent = self._recent(now)
        since = max(now.mono - recent[0][0], WINDOW) if recent else WINDOW
        return sum(sample[place] for sample in recent) * 1000 / since

    def _recent(self, now: Now) -> list[_Sample]:
        return [sample for sample in self._samples if now.mono < sample[0] + SAMPLES * WINDOW]


_METERS: Mapping[Api, str] = {
    Api.HEARTBEAT: "heartbeat",
    Api.CONSUMER_GROUP_HEARTBEAT: "heartbeat",
    Api.OFFSET_COMMIT: "commit",
    Api.JOIN_GROUP: "join",
    Api.SYNC_GROUP: "sync",
    Api.FETCH: "fetch",
}
"""Requests with a meter of their own, for the milliseconds until the response."""


class Meters:
    """Counts requests and their responses. The core calls ``on_completion`` for each request that was answered or has failed."""

    def __init__(self) -> None:
        self.heartbeat_at: int | None = None
        """When the coordinator last accepted a heartbeat (monotonic ms)."""
        self.accepted_at: int | None = None
        """When it last accepted a heartbeat or a join (monotonic ms): the time without a response counts from then."""
        self.fetch_at: dict[int, int] = {}
        """When each node last answered a Fetch (monotonic ms)."""
        self._requests = Meter()
        self._by_name = {name: Meter() for name in _METERS.values()}
        self._fetched = Meter()
        self._throttled = Meter()

    def on_completion(self, completion: CompletedRequest, now: Now) -> None:
        """Count a request that was answered or has failed."""
        if completion.error is not None:
            return
        latency = now.mono - completion.request.sent_at
        self._requests.record(latency, now)
        name = _METERS.get(completion.request.send.api)
        if name is not None:
            self._by_name[name].record(latency, now)
        if name == "heartbeat" and completion.message.error_code in _ALIVE:
            self.heartbeat_at = self.accepted_at = now.mono
        elif name == "join" and not completion.message.error_code:
            self.accepted_at = now.mono
        elif name == "fetch":
            self._on_fetch(completion, now)

    def _on_fetch(self, completion: CompletedRequest, now: Now) -> None:
        message = completion.message
        self.fetch_at[getattr(completion.request.send.target, "node_id", -1)] = now.mono
        self._throttled.record(milliseconds(message.throttle_time), now)
        size = sum(len(data.records or b"") for topic in message.responses for data in topic.partitions)
        if size:
            self._fetched.record(size, now)

    def read(self, now: Now) -> dict[MetricName, float]:
        """Return the current values; times are milliseconds."""
        metrics: dict[MetricName, float] = {}

        def put(group: str, **values: float) -> None:
            metrics.update({MetricName(name.replace("_", "-"), group): float(value) for name, value in values.items()})

        heartbeat, commit, fetch = (self._by_name[name] for name in ("heartbeat", "commit", "fetch"))
        put(
            COORDINATOR,
            heartbeat_total=heartbeat.count,
            heartbeat_rate=heartbeat.rate(now),
            heartbeat_response_time_max=heartbeat.maximum(now),
            last_heartbeat_seconds_ago=-1 if self.heartbeat_at is None else (now.mono - self.heartbeat_at) / 1000,
            commit_total=commit.count,
            commit_rate=commit.rate(now),
            commit_latency_avg=commit.average(now),
            commit_latency_max=commit.maximum(now),
        )
        for name in ("join", "sync"):
            meter = self._by_name[name]
            values = {"total": meter.count, "rate": meter.rate(now), "time_avg": meter.average(now), "time_max": meter.maximum(now)}
            put(COORDINATOR, **{f"{name}_{what}": value for what, value in values.items()})
        put(
            FETCH,
            fetch_total=fetch.count,
            fetch_rate=fetch.rate(now),
            fetch_latency_avg=fetch.average(now),
            fetch_latency_max=fetch.maximum(now),
            fetch_size_avg=self._fetched.average(now),
            fetch_size_max=self._fetched.maximum(now),
            bytes_fetched_total=self._fetched.total,
            fetch_throttle_time_avg=self._throttled.average(now),
            fetch_throttle_time_max=self._throttled.maximum(now),
        )
        put(
            CONSUMER,
            response_total=self._requests.count,
            response_rate=self._requests.rate(now),
            request_latency_avg=self._requests.average(now),
            request_latency_max=self._requests.maximum(now),
        )
        return metrics


def of_connections(connections: Connections, group: str) -> dict[MetricName, float]:
    """Return the metrics of the connections, and of requests, in a group of metrics."""
    count = sum(connection.state in ESTABLISHED_STATES for connection in connections.brokers)
    values = {
        "connection-count": count,
        "connection-creation-total": connections.opened,
        "connection-close-total": connections.opened - count,
        "request-total": connections.sent,
    }
    return {MetricName(name, group): float(value) for name, value in values.items()}


# -- the application's thread --------------------------------------------------------------------------------------------

_NANOSECONDS = 1_000_000
"""In a millisecond: Kafka reports the commit times in nanoseconds."""

_Tags = tuple[tuple[str, str], ...]

KEPT_MARKS = SAMPLES + 1
"""Marks after which a topic that is not read any more is removed: a rebalance may assign it again before that."""


class ListenerCall(enum.Enum):
    """What has happened to the partitions of a listener's call."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


class PollMetrics:
    """How the application spends its time, in milliseconds: between polls, inside them, in listeners, in commits.

    The names are those of KIP-517 (polls) and KIP-761 (commits).
    """

    def __init__(self) -> None:
        self.in_commit = self.in_committed = 0
        """The total time in ``commit()`` and ``committed()``."""
        self._polled_at: int | None = None
        self._waited = 0
        self._between, self._inside = Meter(), Meter()
        self._in_listeners = {call: Meter() for call in ListenerCall}

    def poll_began(self, now: Now) -> None:
        """Note that the application polls, or requests the next record of an iteration."""
        if self._polled_at is not None:
            self._between.record(now.mono - self._polled_at, now)
            self._inside.record(self._waited, now)
        self._polled_at, self._waited = now.mono, 0

    def poll_ended(self, now: Now) -> None:
        """Note that a poll returns."""
        if self._polled_at is not None:
            self._waited = now.mono - self._polled_at

    def listened(self, call: ListenerCall, milliseconds: int, now: Now) -> None:
        """Record the duration of a listener."""
        self._in_listeners[call].record(milliseconds, now)

    def metrics(self, now: Now) -> dict[MetricName, float]:
        """Return the current values. May be called from any thread."""
        polled_at, between = self._polled_at, self._between.average(now)
        metrics = {
            MetricName("last-poll-seconds-ago", CONSUMER): -1.0 if polled_at is None else max(0, now.mono - polled_at) / 1000,
            MetricName("time-between-poll-avg", CONSUMER): between,
            MetricName("time-between-poll-max", CONSUMER): self._between.maximum(now),
            MetricName("poll-idle-ratio-avg", CONSUMER): min(1.0, self._inside.average(now) / between) if between else 0.0,
            MetricName("commit-sync-time-ns-total", CONSUMER): float(self.in_commit * _NANOSECONDS),
            MetricName("committed-time-ns-total", CONSUMER): float(self.in_committed * _NANOSECONDS),
        }
        for call, meter in self._in_listeners.items():
            metrics[MetricName(f"partition-{call.value}-latency-avg", COORDINATOR)] = meter.average(now)
            metrics[MetricName(f"partition-{call.value}-latency-max", COORDINATOR)] = meter.maximum(now)
        return metrics


class _Amount:
    """Records and bytes of one topic, or of all. Rates are computed between two marks, which are set every ``WINDOW``."""

    __slots__ = ("_marks", "bytes", "fetched", "records", "requests")

    def __init__(self) -> None:
        self.records = self.bytes = 0
        self.fetched = Meter()
        """Bytes of each response, as received."""
        self.requests = Meter()
        """Records of each response, recorded once all of it is consumed."""
        self._marks: tuple[tuple[int, int, int], ...] = ()

    def mark(self, now: Now) -> None:
        self._marks = (*self._marks[1 - KEPT_MARKS :], (now.mono, self.records, self.bytes))

    @property
    def is_idle(self) -> bool:
        """Whether no records arrived for as long as marks are kept."""
        return len(self._marks) == KEPT_MARKS and self._marks[0][1] == self.records

    def rates(self, now: Now) -> tuple[float, float]:
        """The recent records and bytes per second."""
        marks = self._marks[-SAMPLES:]
        if not marks:
            return 0.0, 0.0
        at, records, size = marks[0]
        seconds = max(now.mono - at, WINDOW) / 1000
        return (self.records - records) / seconds, (self.bytes - size) / seconds


class _Distances:
    """The distances of the application from both ends of a partition, recorded when records arrive."""

    __slots__ = ("lag", "lead")

    def __init__(self) -> None:
        self.lag, self.lead = Meter(), Meter()


class Consumption:
    """Records and bytes by topic, responses, lags and leads."""

    def __init__(self) -> None:
        self._all = _Amount()
        self._topics: dict[str, _Amount] = {}
        self._distances: dict[TopicPartition, _Distances] = {}
        self._open: dict[int, dict[str, int]] = {}
        """The returned records of each response that is not consumed yet, by topic."""
        self._mark_at: int | None = None
        self._assigned: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<Consumption {self._all.records} records of {len(self._topics)} topics>"

    # -- counting ---------------------------------------------------------------------------------------------------------

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Keep the numbers of the assigned partitions and drop those of others, as Kafka's consumer does."""
        self._assigned = frozenset(tp.topic for tp in partitions)
        for tp in [tp for tp in self._distances if tp not in partitions]:
            del self._distances[tp]

    def arrived(self, response: FetchedResponse, position: Callable[[TopicPartition], int | None], now: Now) -> None:
        """Count a response. ``position`` returns the offset after the returned records."""
        sizes: dict[str, int] = {}
        for part in response.partitions:
            if not part.data:
                continue
            sizes[part.tp.topic] = sizes.get(part.tp.topic, 0) + len(part.data)
            at = position(part.tp)
            if at is not None:
                distances = self._distances.get(part.tp) or self._distances.setdefault(part.tp, _Distances())
                distances.lag.record(max(0, part.end - at), now)
                if part.begin >= 0:
                    distances.lead.record(max(0, at - part.begin), now)
        for topic, size in sizes.items():
            self._topic(topic, now).fetched.record(size, now)
        if sizes:
            self._open[response.number] = dict.fromkeys(sizes, 0)

    def read(self, number: int, topic: str, records: int, size: int) -> None:
        """Count records of a response that are returned, with ``size`` bytes."""
        for amount in (self._all, self._topics.get(topic)):
            if amount is not None:
                amount.records += records
                amount.bytes += size
        opened = self._open.get(number)
        if opened is not None:
            opened[topic] += records

    def settle(self, holds: Callable[[int], bool], now: Now) -> None:
        """Count the responses that are completely consumed."""
        for number in [number for number in self._open if not holds(number)]:
            by_topic = self._open.pop(number)
            self._all.requests.record(sum(by_topic.values()), now)
            for topic, records in by_topic.items():
                self._topic(topic, now).requests.record(records, now)

    def mark_when_due(self, now: Now) -> None:
        """Set the marks between which rates are computed, if that is due. Called with each poll."""
        if self._mark_at is not None and now.mono < self._mark_at:
            return
        self._mark_at = now.mono + WINDOW
        self._all.mark(now)
        for topic, amount in list(self._topics.items()):
            amount.mark(now)
            if amount.is_idle and topic not in self._assigned:
                del self._topics[topic]

    def _topic(self, topic: str, now: Now) -> _Amount:
        amount = self._topics.get(topic)
        if amount is None:
            amount = self._topics[topic] = _Amount()
            amount.mark(now)
        return amount

    # -- reading ----------------------------------------------------------------------------------------------------------

    def metrics(self, consumed: Mapping[TopicPartition, Consumed], now: Now) -> dict[MetricName, float]:
        """Return the current values. ``consumed``: the application's positions. May be called from any thread."""
        metrics = dict(self._of_amount(self._all, (), now))
        for topic, amount in self._topics.copy().items():
            tags: _Tags = (("topic", topic),)
            metrics.update(self._of_amount(amount, tags, now))
            metrics[MetricName("fetch-size-avg", FETCH, tags)] = amount.fetched.average(now)
            metrics[MetricName("fetch-size-max", FETCH, tags)] = amount.fetched.maximum(now)
        lags, leads = [0.0], []
        for tp, part in consumed.items():
            tags = (("topic", tp.topic), ("partition", str(tp.partition)))
            distances = self._distances.get(tp) or _Distances()
            if part.position is not None and part.end is not None:
                lags.append(float(max(0, part.end - part.position)))
                metrics.update(self._of_lag(distances.lag, lags[-1], tags, now))
            if part.position is not None and part.begin is not None:
                lead = float(max(0, part.position - part.begin))
                metrics.update(self._of_lead(distances.lead, lead, tags, now))
                if part.end is not None and part.end > part.begin:  # an empty log has no records that retention could delete
                    leads.append(lead)
        metrics[MetricName("records-lag-max", FETCH)] = max(lags)
        if leads:
            metrics[MetricName("records-lead-min", FETCH)] = min(leads)
        return metrics

    def _of_amount(self, amount: _Amount, tags: _Tags, now: Now) -> Iterator[tuple[MetricName, float]]:
        records, size = amount.rates(now)
        yield MetricName("records-consumed-total", FETCH, tags), float(amount.records)
        yield MetricName("records-consumed-rate", FETCH, tags), records
        yield MetricName("bytes-consumed-total", FETCH, tags), float(amount.bytes)
        yield MetricName("bytes-consumed-rate", FETCH, tags), size
        yield MetricName("records-per-request-avg", FETCH, tags), amount.requests.average(now)

    def _of_lag(self, meter: Meter, lag: float, tags: _Tags, now: Now) -> Iterator[tuple[MetricName, float]]:
        yield MetricName("records-lag", FETCH, tags), lag
        yield MetricName("records-lag-avg", FETCH, tags), meter.average(now) if meter.minimum(now) is not None else lag
        yield MetricName("records-lag-max", FETCH, tags), max(lag, meter.maximum(now))

    def _of_lead(self, meter: Meter, lead: float, tags: _Tags, now: Now) -> Iterator[tuple[MetricName, float]]:
        least = meter.minimum(now)
        yield MetricName("records-lead", FETCH, tags), lead
        yield MetricName("records-lead-avg", FETCH, tags), meter.average(now) if least is not None else lead
        yield MetricName("records-lead-min", FETCH, tags), lead if least is None else min(lead, least)
