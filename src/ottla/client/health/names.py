"""The metrics of a consumer, by name: those of Kafka's own consumer, and a few more, with their meanings.

Owns this table, from which the page of the docs and the help texts for Prometheus are made. Must not know how anything is
counted. Invariant: each metric of a consumer is a row here, and each metric of Kafka's is here or in ``LEFT_OUT`` with the reason.

Source: what ``KafkaConsumer.metrics()`` of Apache Kafka 4.3 returns, in both group protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.client.health.metrics import CONSUMER, COORDINATOR, FETCH, MetricName

CLIENT, TOPIC, PARTITION = (), ("topic",), ("topic", "partition")
"""The level of a metric: its tags, besides the client's own."""


class Meaning(NamedTuple):
    """A row: the meaning of a metric, and its levels. ``ours``: Kafka's consumer does not have it."""

    text: str
    levels: tuple[tuple[str, ...], ...] = (CLIENT,)
    ours: bool = False


NAMES: Mapping[str, Mapping[str, Meaning]] = {
    COORDINATOR: {
        "assigned-partitions": Meaning("partitions that the consumer has now"),
        "commit-latency-avg": Meaning("milliseconds until a commit was answered, on average"),
        "commit-latency-max": Meaning("the longest of them"),
        "commit-rate": Meaning("commits per second"),
        "commit-total": Meaning("commits that were answered"),
        "failed-rebalance-rate-per-hour": Meaning("failed rebalances in the last hour, at most a hundred"),
        "failed-rebalance-total": Meaning("failed rebalances"),
        "heartbeat-rate": Meaning("heartbeats per second"),
        "heartbeat-response-time-max": Meaning("the longest time until a heartbeat was answered, in milliseconds"),
        "heartbeat-total": Meaning("heartbeats that were answered"),
        "join-rate": Meaning("joins per second (`classic`)"),
        "join-time-avg": Meaning("milliseconds until a JoinGroup was answered, on average"),
        "join-time-max": Meaning("the longest of them"),
        "join-total": Meaning("joins that were answered"),
        "last-heartbeat-seconds-ago": Meaning("seconds since the coordinator last accepted a heartbeat; -1: never"),
        "last-rebalance-seconds-ago": Meaning("seconds since the latest rebalance, or end of a membership; -1: never"),
        "partition-assigned-latency-avg": Meaning("milliseconds that `on_assign` took, on average"),
        "partition-assigned-latency-max": Meaning("the longest of them"),
        "partition-lost-latency-avg": Meaning("milliseconds that `on_lost` took, on average"),
        "partition-lost-latency-max": Meaning("the longest of them"),
        "partition-revoked-latency-avg": Meaning("milliseconds that `on_revoke` took, on average"),
        "partition-revoked-latency-max": Meaning("the longest of them"),
        "rebalance-latency-avg": Meaning("milliseconds that a rebalance took, on average over the latest hundred"),
        "rebalance-latency-max": Meaning("the longest of them"),
        "rebalance-latency-total": Meaning("all of them together"),
        "rebalance-rate-per-hour": Meaning("rebalances in the last hour, at most a hundred"),
        "rebalance-total": Meaning("rebalances"),
        "sync-rate": Meaning("syncs per second (`classic`)"),
        "sync-time-avg": Meaning("milliseconds until a SyncGroup was answered, on average"),
        "sync-time-max": Meaning("the longest of them"),
        "sync-total": Meaning("syncs that were answered"),
    },
    FETCH: {
        "bytes-consumed-rate": Meaning("decompressed bytes of records returned by polls, per second", (CLIENT, TOPIC)),
        "bytes-consumed-total": Meaning("all of them", (CLIENT, TOPIC)),
        "bytes-fetched-total": Meaning("bytes of records that brokers sent, as sent (compressed)", ours=True),
        "fetch-latency-avg": Meaning("milliseconds until a Fetch was answered, on average; a broker without records waits"),
        "fetch-latency-max": Meaning("the longest of them"),
        "fetch-rate": Meaning("fetches per second"),
        "fetch-size-avg": Meaning(
            "bytes of records in an answer, as sent (compressed); Kafka counts them decompressed", (CLIENT, TOPIC)
        ),
        "fetch-size-max": Meaning("the most of them", (CLIENT, TOPIC)),
        "fetch-throttle-time-avg": Meaning("milliseconds for which a broker throttled the client, on average"),
        "fetch-throttle-time-max": Meaning("the longest of them"),
        "fetch-total": Meaning("fetches that were answered"),
        "preferred-read-replica": Meaning("the replica that is read instead of the leader; -1: none", (PARTITION,)),
        "records-consumed-rate": Meaning("records returned by polls, per second", (CLIENT, TOPIC)),
        "records-consumed-total": Meaning("all of them", (CLIENT, TOPIC)),
        "records-lag": Meaning("records from the position to the end that a broker last reported", (PARTITION,)),
        "records-lag-avg": Meaning("the same when records arrived, on average", (PARTITION,)),
        "records-lag-max": Meaning(
            "of a partition, the largest value, including the current one; of the client, the largest current lag, including"
            " partitions that make no progress",
            (CLIENT, PARTITION),
        ),
        "records-lead": Meaning("records from the beginning of the log to the position", (PARTITION,)),
        "records-lead-avg": Meaning("the same when records arrived, on average", (PARTITION,)),
        "records-lead-min": Meaning(
            "of a partition, the smallest value, including the current one; of the client, the smallest current lead: near 0,"
            " records may be deleted before they are read",
            (CLIENT, PARTITION),
        ),
        "records-per-request-avg": Meaning("records in an answer that was consumed", (CLIENT, TOPIC)),
    },
    CONSUMER: {
        "commit-sync-time-ns-total": Meaning("nanoseconds in `commit()`"),
        "committed-time-ns-total": Meaning("nanoseconds in `committed()`"),
        "connection-close-total": Meaning("connections that ended"),
        "connection-count": Meaning("connections that are ready for use"),
        "connection-creation-total": Meaning("connections that were established, including TLS and login"),
        "last-poll-seconds-ago": Meaning(
            "seconds since `poll()`, or since the last record of an iteration over the consumer; -1: never"
        ),
        "poll-idle-ratio-avg": Meaning("the fraction of time spent waiting in `poll()`; near 0: the application is overloaded"),
        "request-latency-avg": Meaning("milliseconds until a request was answered, on average; Kafka reports it per broker"),
        "request-latency-max": Meaning("the longest of them"),
        "request-total": Meaning("requests that were sent"),
        "response-rate": Meaning("answers per second"),
        "response-total": Meaning("answers"),
        "time-between-poll-avg": Meaning("milliseconds from one `poll()` to the next, on average"),
        "time-between-poll-max": Meaning("the longest of them: keep it below `max_poll_interval`"),
    },
}
"""Group -> name -> its meaning."""

LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    CONSUMER: {
        "connection-close-rate": "the rate of `connection-close-total`",
        "connection-creation-rate": "the rate of `connection-creation-total`",
        "request-rate": "see `response-rate`",
        "select-*": "an internal detail of the network thread",
        "io-*": "an internal detail of the network thread",
        "incoming-byte-*": "the operating system counts them: `ss -ti`; for records see `bytes-fetched-total`",
        "outgoing-byte-*": "the operating system counts them: `ss -ti`",
        "network-io-*": "the operating system counts them: `ss -ti`",
        "request-size-*": "the operating system counts them: `ss -ti`",
        "*authentication-*": "a login that fails is raised by the call that waits, and logged; see `connection-creation-total`",
        "application-event*": "a queue inside Kafka's consumer",
        "background-event-*": "a queue inside Kafka's consumer",
        "unsent-requests-queue-*": "a queue inside Kafka's consumer",
        "time-between-network-thread-poll-*": "`health()` asks the network thread itself",
    },
    "consumer-node-metrics": {"*": "slow and failed brokers are in the log, and in `health()` by partition"},
    "app-info": {"*": "`ottla.__version__`"},
    "kafka-metrics-count": {"*": "`len(consumer.metrics())`"},
}
"""Group -> name, or pattern of names -> why Ottla does not count it."""


def meaning(metric: MetricName) -> str:
    """The meaning of a metric."""
    return NAMES[metric.group][metric.name].text
