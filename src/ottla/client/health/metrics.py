"""What a consumer counts of its own doing, under the names that Kafka's own consumer gives it.

Owns the meters and their names. Must not know who asked for what: it sees each request that came to an end. Invariant: an answer
costs the same whatever it holds, but for a Fetch, which costs by its partitions; no record costs anything.

Averages, maxima and rates are those of the last half to whole minute, as Kafka's are (two samples of 30 s).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client.connections.effects import Completion
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.apis import Api
from ottla.types import Now

WINDOW = 30_000
SAMPLES = 2

COORDINATOR, FETCH, CONSUMER = "consumer-coordinator-metrics", "consumer-fetch-manager-metrics", "consumer-metrics"
"""The groups of metrics."""

_ALIVE = (ErrorCode.none, ErrorCode.rebalance_in_progress)
"""What a coordinator that accepts a heartbeat answers."""


class MetricName(NamedTuple):
    """A metric, as Kafka names it: ``tags`` are pairs, of the partition it is about for example."""

    name: str
    group: str
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Sample:
    begins: int
    count: int = 0
    sum: float = 0.0
    min: float = math.inf
    max: float = 0.0


class Meter:
    """Something that happens: how often, how much of it altogether, and lately.

    One thread records; others may read, and find the samples replaced, never changed in number.
    """

    __slots__ = ("_samples", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._samples: tuple[_Sample, ...] = ()

    def record(self, value: float, now: Now) -> None:
        """It happened once, and took, or was, so much."""
        self.count += 1
        self.total += value
        if not self._samples or now.mono >= self._samples[-1].begins + WINDOW:
            self._samples = (*self._samples[1 - SAMPLES :], _Sample(now.mono))
        sample = self._samples[-1]
        sample.count += 1
        sample.sum += value
        if value < sample.min:
            sample.min = value
        if value > sample.max:
            sample.max = value

    def average(self, now: Now) -> float:
        """Of the recent ones; 0 where there was none."""
        recent = self._recent(now)
        return sum(sample.sum for sample in recent) / max(1, sum(sample.count for sample in recent))

    def maximum(self, now: Now) -> float:
        """Of the recent ones."""
        return max((sample.max for sample in self._recent(now)), default=0.0)

    def minimum(self, now: Now) -> float | None:
        """Of the recent ones; ``None`` where there was none."""
        return min((sample.min for sample in self._recent(now)), default=None)

    def rate(self, now: Now) -> float:
        """How often a second, lately."""
        recent = self._recent(now)
        since = max(now.mono - recent[0].begins, WINDOW) if recent else WINDOW
        return sum(sample.count for sample in recent) * 1000 / since

    def _recent(self, now: Now) -> list[_Sample]:
        return [sample for sample in self._samples if now.mono < sample.begins + SAMPLES * WINDOW]


_METERS: Mapping[Api, str] = {
    Api.HEARTBEAT: "heartbeat",
    Api.CONSUMER_GROUP_HEARTBEAT: "heartbeat",
    Api.OFFSET_COMMIT: "commit",
    Api.JOIN_GROUP: "join",
    Api.SYNC_GROUP: "sync",
    Api.FETCH: "fetch",
}
"""Requests that have a meter of their own, of the milliseconds until they were answered."""


class Meters:
    """See the module. ``on_completion`` is called for each request that was answered or failed."""

    def __init__(self) -> None:
        self.heartbeat_at: int | None = None
        """When the coordinator last accepted a heartbeat (monotonic ms)."""
        self.accepted_at: int | None = None
        """When it last accepted a heartbeat or a join: its silence is measured from then."""
        self.fetch_at: dict[int, int] = {}
        """When each node last answered a Fetch (monotonic ms)."""
        self._requests = Meter()
        self._by_name = {name: Meter() for name in _METERS.values()}
        self._fetched = Meter()
        self._throttled = Meter()

    def on_completion(self, completion: Completion, now: Now) -> None:
        """A request came to its end."""
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

    def _on_fetch(self, completion: Completion, now: Now) -> None:
        message = completion.message
        self.fetch_at[getattr(completion.request.send.target, "node_id", -1)] = now.mono
        self._throttled.record(milliseconds(message.throttle_time), now)
        size = sum(len(data.records or b"") for topic in message.responses for data in topic.partitions)
        if size:
            self._fetched.record(size, now)

    def read(self, now: Now) -> dict[MetricName, float]:
        """What they say now; times are milliseconds."""
        found: dict[MetricName, float] = {}

        def put(group: str, **values: float) -> None:
            found.update({MetricName(name.replace("_", "-"), group): float(value) for name, value in values.items()})

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
        return found
