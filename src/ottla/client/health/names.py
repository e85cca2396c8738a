"""The metrics of a consumer, by name: the ones that Kafka's own consumer has, and a few more, with what each says.

Owns this table, from which the page of the docs is written and Prometheus is told what a number means. Must not know how anything
is counted. Invariant: a metric that a consumer gives is a row here, and one of Kafka's is here or in ``LEFT_OUT`` with the reason.

Source: what ``KafkaConsumer.metrics()`` of Apache Kafka 4.3 gives, in both group protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.client.health.metrics import CONSUMER, COORDINATOR, FETCH, MetricName

CLIENT, TOPIC, PARTITION = (), ("topic",), ("topic", "partition")
"""What a metric is about: its tags, besides the client's own."""


class Meaning(NamedTuple):
    """A row: what a metric says, and of what it is said. ``ours``: Kafka's consumer has none of the name."""

    text: str
    levels: tuple[tuple[str, ...], ...] = (CLIENT,)
    ours: bool = False


NAMES: Mapping[str, Mapping[str, Meaning]] = {
    COORDINATOR: {
        "assigned-partitions": Meaning("partitions that the consumer has now"),
        "commit-latency-avg": Meaning("milliseconds until a commit was answered, on average"),
        "commit-latency-max": Meaning("the longest of them"),
        "commit-rate": Meaning("commits a second"),
        "commit-total": Meaning("commits that were answered"),
        "failed-rebalance-rate-per-hour": Meaning("rebalances in the last hour that came to nothing, a hundred at most"),
        "failed-rebalance-total": Meaning("rebalances that came to nothing"),
        "heartbeat-rate": Meaning("heartbeats a second"),
        "heartbeat-response-time-max": Meaning("the longest time until a heartbeat was answered, in milliseconds"),
        "heartbeat-total": Meaning("heartbeats that were answered"),
        "join-rate": Meaning("joins a second (`classic`)"),
        "join-time-avg": Meaning("milliseconds until a JoinGroup was answered, on average"),
        "join-time-max": Meaning("the longest of them"),
        "join-total": Meaning("joins that were answered"),
        "last-heartbeat-seconds-ago": Meaning("since the coordinator last accepted a heartbeat; -1: never"),
        "last-rebalance-seconds-ago": Meaning("since the latest rebalance, or end of a membership; -1: never"),
        "partition-assigned-latency-avg": Meaning("milliseconds that `on_assign` took, on average"),
        "partition-assigned-latency-max": Meaning("the longest of them"),
        "partition-lost-latency-avg": Meaning("milliseconds that `on_lost` took, on average"),
        "partition-lost-latency-max": Meaning("the longest of them"),
        "partition-revoked-latency-avg": Meaning("milliseconds that `on_revoke` took, on average"),
        "partition-revoked-latency-max": Meaning("the longest of them"),
        "rebalance-latency-avg": Meaning("milliseconds that a rebalance took, on average of the latest hundred"),
        "rebalance-latency-max": Meaning("the longest of them"),
        "rebalance-latency-total": Meaning("all of them together"),
        "rebalance-rate-per-hour": Meaning("rebalances in the last hour, a hundred at most"),
        "rebalance-total": Meaning("rebalances"),
        "sync-rate": Meaning("syncs a second (`classic`)"),
        "sync-time-avg": Meaning("milliseconds until a SyncGroup was answered, on average"),
        "sync-time-max": Meaning("the longest of them"),
        "sync-total": Meaning("syncs that were answered"),
    },
    FETCH: {
        "bytes-consumed-rate": Meaning("bytes of records, inflated, that were handed out, a second", (CLIENT, TOPIC)),
        "bytes-consumed-total": Meaning("all of them", (CLIENT, TOPIC)),
        "bytes-fetched-total": Meaning("bytes of records that brokers sent, as they were sent", ours=True),
        "fetch-latency-avg": Meaning("milliseconds until a Fetch was answered, on average; a broker without records waits"),
        "fetch-latency-max": Meaning("the longest of them"),
        "fetch-rate": Meaning("fetches a second"),
        "fetch-size-avg": Meaning("bytes of records in an answer, as they were sent; Kafka counts them inflated", (CLIENT, TOPIC)),
        "fetch-size-max": Meaning("the most of them", (CLIENT, TOPIC)),
        "fetch-throttle-time-avg": Meaning("milliseconds for which a broker wanted to be left alone"),
        "fetch-throttle-time-max": Meaning("the longest of them"),
        "fetch-total": Meaning("fetches that were answered"),
        "preferred-read-replica": Meaning("the replica that is read from in place of the leader; -1: none", (PARTITION,)),
        "records-consumed-rate": Meaning("records that were handed out, a second", (CLIENT, TOPIC)),
        "records-consumed-total": Meaning("all of them", (CLIENT, TOPIC)),
        "records-lag": Meaning("records from the position to the end that a broker told last", (PARTITION,)),
        "records-lag-avg": Meaning("the same when records came, on average", (PARTITION,)),
        "records-lag-max": Meaning(
            "of a partition the most of them, now included; of the client the largest lag now, which goes on being told of a"
            " partition that stands still",
            (CLIENT, PARTITION),
        ),
        "records-lead": Meaning("records from the beginning of the log to the position", (PARTITION,)),
        "records-lead-avg": Meaning("the same when records came, on average", (PARTITION,)),
        "records-lead-min": Meaning(
            "the fewest of them, now included; of the client the smallest lead now: near 0, records may go unread",
            (CLIENT, PARTITION),
        ),
        "records-per-request-avg": Meaning("records in an answer that was consumed", (CLIENT, TOPIC)),
    },
    CONSUMER: {
        "commit-sync-time-ns-total": Meaning("nanoseconds in `commit()`"),
        "committed-time-ns-total": Meaning("nanoseconds in `committed()`"),
        "connection-close-total": Meaning("connections that ended"),
        "connection-count": Meaning("connections that are of use now"),
        "connection-creation-total": Meaning("connections that were made, TLS and login included"),
        "last-poll-seconds-ago": Meaning("since `poll()`, or since a record was asked for in a loop over the consumer; -1: never"),
        "poll-idle-ratio-avg": Meaning("the part of the time that is spent waiting in `poll()`; near 0: too much to do"),
        "request-latency-avg": Meaning("milliseconds until a request was answered, on average; Kafka has it by broker"),
        "request-latency-max": Meaning("the longest of them"),
        "request-total": Meaning("requests that left"),
        "response-rate": Meaning("answers a second"),
        "response-total": Meaning("answers"),
        "time-between-poll-avg": Meaning("milliseconds from one `poll()` to the next, on average"),
        "time-between-poll-max": Meaning("the longest of them: keep it below `max_poll_interval`"),
    },
}
"""Group -> name -> what it says."""

LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    CONSUMER: {
        "connection-close-rate": "the rate of `connection-close-total`",
        "connection-creation-rate": "the rate of `connection-creation-total`",
        "request-rate": "see `response-rate`",
        "select-*": "how a network thread sleeps is its own affair",
        "io-*": "how a network thread sleeps is its own affair",
        "incoming-byte-*": "sockets are the operating system's: `ss -ti`; of records see `bytes-fetched-total`",
        "outgoing-byte-*": "sockets are the operating system's: `ss -ti`",
        "network-io-*": "sockets are the operating system's: `ss -ti`",
        "request-size-*": "sockets are the operating system's: `ss -ti`",
        "*authentication-*": "a login that fails is raised by the call that waits, and logged; see `connection-creation-total`",
        "application-event*": "a queue inside Kafka's consumer",
        "background-event-*": "a queue inside Kafka's consumer",
        "unsent-requests-queue-*": "a queue inside Kafka's consumer",
        "time-between-network-thread-poll-*": "`health()` asks the network thread itself",
    },
    "consumer-node-metrics": {"*": "what is slow or broken is in the log, and in `health()` by partition"},
    "app-info": {"*": "`ottla.__version__`"},
    "kafka-metrics-count": {"*": "`len(consumer.metrics())`"},
}
"""Group -> name, or pattern of names -> why Ottla does not count it."""


def meaning(metric: MetricName) -> str:
    """What a metric says."""
    return NAMES[metric.group][metric.name].text
