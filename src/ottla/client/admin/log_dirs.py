"""``Admin.describe_log_dirs``.

Owns the requests and the meaning of their responses. Must not know time, retries or connections. Invariant: each broker gets a
request about its own directories only, since no other broker knows them.
"""

from __future__ import annotations

from collections.abc import Collection

from ottla.client.admin.calls import Call, CallAttempt, PermanentFailure, ask_each, check, cluster
from ottla.client.admin.results import LogDirDescription
from ottla.errors import BrokerIdNotRegisteredError, broker_error
from ottla.protocol import rpcs
from ottla.protocol.messages import describe_log_dirs_request, describe_log_dirs_response
from ottla.types import TopicPartition

_UNKNOWN_SIZE = -1


def describe_log_dirs(brokers: Collection[int] | None) -> Call[dict[int, dict[str, LogDirDescription]]]:
    """Return the log directories of these brokers, or of all, by node id and path."""

    def attempt() -> CallAttempt[dict[int, dict[str, LogDirDescription]]]:
        _, nodes = yield from cluster()
        ids = sorted(nodes) if brokers is None else list(dict.fromkeys(brokers))
        missing = [node_id for node_id in ids if node_id not in nodes]
        if missing:
            existing = ", ".join(map(str, sorted(nodes)))
            raise PermanentFailure(BrokerIdNotRegisteredError(f"there is no broker {missing[0]}, only {existing}"))
        message = describe_log_dirs_request.DescribeLogDirsRequest(topics=None)
        answers = yield from ask_each(rpcs.DESCRIBE_LOG_DIRS, [(message, nodes[node_id]) for node_id in ids])
        for node_id, answer in zip(ids, answers, strict=True):
            check(answer.error_code, f"the log directories of broker {node_id}")
        return {
            node_id: {result.log_dir: _described(result) for result in answer.results}
            for node_id, answer in zip(ids, answers, strict=True)
        }

    return attempt


def _described(result: describe_log_dirs_response.DescribeLogDirsResult) -> LogDirDescription:
    return LogDirDescription(
        path=result.log_dir,
        error=broker_error(int(result.error_code), result.log_dir) if result.error_code else None,
        total_bytes=None if result.total_bytes == _UNKNOWN_SIZE else result.total_bytes,
        usable_bytes=None if result.usable_bytes == _UNKNOWN_SIZE else result.usable_bytes,
        sizes={
            TopicPartition(topic.name, part.partition_index): part.partition_size
            for topic in result.topics
            for part in topic.partitions
            if not part.is_future_key
        },
    )
