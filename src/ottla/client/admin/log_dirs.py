"""What brokers say of the directories that they keep their logs in: a call of an ``Admin``.

Owns which broker gets which request and what an answer means. Must not know time, retries or connections. Invariant: each broker is
asked about its own directories only, since only it knows them.
"""

from __future__ import annotations

from collections.abc import Collection

from ottla.client.admin.calls import Call, Dialogue, Refused, ask_each, check, cluster
from ottla.client.admin.results import LogDirDescription
from ottla.errors import BrokerIdNotRegisteredError, broker_error
from ottla.protocol import rpcs
from ottla.protocol.messages import describe_log_dirs_request, describe_log_dirs_response
from ottla.types import TopicPartition

_UNKNOWN_SIZE = -1


def describe_log_dirs(brokers: Collection[int] | None) -> Call[dict[int, dict[str, LogDirDescription]]]:
    """The log directories of these brokers, or of all, by node id and path."""

    def dialogue() -> Dialogue[dict[int, dict[str, LogDirDescription]]]:
        _, nodes = yield from cluster()
        asked = sorted(nodes) if brokers is None else list(dict.fromkeys(brokers))
        missing = [number for number in asked if number not in nodes]
        if missing:
            known = ", ".join(map(str, sorted(nodes)))
            raise Refused(BrokerIdNotRegisteredError(f"there is no broker {missing[0]}, only {known}"))
        message = describe_log_dirs_request.DescribeLogDirsRequest(topics=None)
        answers = yield from ask_each(rpcs.DESCRIBE_LOG_DIRS, [(message, nodes[number]) for number in asked])
        for number, answer in zip(asked, answers, strict=True):
            check(answer.error_code, f"the log directories of broker {number}")
        return {
            number: {result.log_dir: _described(result) for result in answer.results}
            for number, answer in zip(asked, answers, strict=True)
        }

    return dialogue


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
