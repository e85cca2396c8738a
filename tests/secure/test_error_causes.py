"""Errors of ``docs/errors.md`` in calls other than ``poll``: they raise within their timeout, with the cause and the hint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Set as AbstractSet
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from ottla import AsyncConsumer, Consumer, OttlaError, TopicPartition, errors
from tests.closed_ports import closed_port
from tests.secure.broken_settings import NO_TOPIC, PATIENCE, Settings, only_the_cluster, sasl
from tests.secure.kafka import READER, STRANGER, Secured
from tests.secure.scripted_broker import TOPIC

pytestmark = pytest.mark.slow

TIMEOUT = 0.6
"""Seconds that a call gets where the trouble may pass; on a busy machine it may take more to find out what is wrong.

What is refused comes as soon as it is refused.
"""

Call = Callable[[Any, TopicPartition, float], Any]
CALLS: dict[str, Call] = {
    "commit": lambda consumer, tp, timeout: consumer.commit({tp: 1}, timeout=timeout),
    "committed": lambda consumer, tp, timeout: consumer.committed(tp, timeout=timeout),
    "position": lambda consumer, tp, timeout: consumer.position(tp, timeout=timeout),
    "lag": lambda consumer, tp, timeout: consumer.lag(tp, timeout=timeout),
    "end_offsets": lambda consumer, tp, timeout: consumer.end_offsets([tp], timeout=timeout),
    "offsets_for_times": lambda consumer, tp, timeout: consumer.offsets_for_times({tp: 0}, timeout=timeout),
    "partitions_for": lambda consumer, tp, timeout: consumer.partitions_for(tp.topic, timeout=timeout),
    "list_topics": lambda consumer, tp, timeout: consumer.list_topics(timeout=timeout),
}
OF_THE_GROUP = {"commit", "committed", "position", "lag"}
OF_LEADERS = {"position", "lag", "end_offsets", "offsets_for_times"}


class Trouble(NamedTuple):
    """The class of the error or of its cause; its text; the calls that raise it."""

    error: str
    says: str
    calls: AbstractSet[str] = CALLS.keys()


TROUBLES = {
    "refused": Trouble("ConnectionFailedError", "Connection refused"),
    "a wrong password": Trouble("AuthenticationError", "login was refused"),
    "TLS to a port without it": Trouble("ConnectionFailedError", "does this port speak TLS?"),
    "an unknown topic": Trouble("UnknownTopicOrPartitionError", NO_TOPIC, {"commit", "partitions_for", *OF_LEADERS}),
    "a topic that is not yours": Trouble(
        "TopicAuthorizationFailedError", "DESCRIBE and READ", {"end_offsets", "offsets_for_times", "partitions_for"}
    ),
    "a group that is not yours": Trouble("GroupAuthorizationFailedError", "READ the group", OF_THE_GROUP),
    "a broker that only the cluster can reach": Trouble("ConnectionFailedError", "advertised.listeners", OF_THE_GROUP | OF_LEADERS),
}


def settings_for(trouble: str, secured: Secured, stack: ExitStack) -> Settings:
    at = secured.addresses
    tls = {"security_protocol": "SSL", "ssl_truststore_location": secured.authority.file}
    makers: dict[str, Callable[[], Settings]] = {
        "refused": lambda: {"bootstrap_servers": f"127.0.0.1:{stack.enter_context(closed_port())}"},
        "a wrong password": lambda: {"bootstrap_servers": at["LOGIN"], **sasl("SCRAM-SHA-256", password="wrong")},
        "TLS to a port without it": lambda: {"bootstrap_servers": at["PLAINTEXT"], **tls},
        "an unknown topic": lambda: {"bootstrap_servers": at["PLAINTEXT"], "allow_auto_create_topics": False},
        "a topic that is not yours": lambda: {"bootstrap_servers": at["LOGIN"], **sasl(user=STRANGER)},
        "a group that is not yours": lambda: {"bootstrap_servers": at["LOGIN"], **sasl(user=READER)},
        "a broker that only the cluster can reach": lambda: {"bootstrap_servers": only_the_cluster(stack)["bootstrap_servers"]},
    }
    assert makers.keys() == TROUBLES.keys()
    return {"group_id": "g", "auto_offset_reset": "earliest", **makers[trouble]()}


def partition_for(trouble: str, topic: str) -> TopicPartition:
    names = {"an unknown topic": NO_TOPIC, "a broker that only the cluster can reach": TOPIC}
    return TopicPartition(names.get(trouble, topic), 0)


def names(trouble: Trouble, error: OttlaError) -> bool:
    """Whether the error, or its cause, is the one of the page, and has the hint once."""
    expected = getattr(errors, trouble.error)
    is_it = isinstance(error, expected) or (isinstance(error, errors.OttlaTimeoutError) and isinstance(error.cause, expected))
    return is_it and trouble.says in str(error) and str(error).count(str(error.hint)) == 1


def timeouts(trouble: Trouble) -> Iterator[float]:
    timeout = TIMEOUT if getattr(errors, trouble.error).retriable else PATIENCE
    while timeout <= PATIENCE:
        yield timeout
        timeout *= 4


@pytest.mark.parametrize(("name", "call"), [(name, call) for name in TROUBLES for call in sorted(TROUBLES[name].calls)])
def test_a_call_names_the_cause(name: str, call: str, secured: Secured, topic: str) -> None:
    trouble, tp = TROUBLES[name], partition_for(name, topic)
    with ExitStack() as stack:
        settings = settings_for(name, secured, stack)
        for timeout in timeouts(trouble):
            consumer = Consumer(settings)
            stack.callback(consumer.close, 0)
            consumer.assign([tp])
            began = time.monotonic()
            with pytest.raises(OttlaError) as raised:
                CALLS[call](consumer, tp, timeout)
            assert time.monotonic() - began < (timeout + 10 if timeout < PATIENCE else PATIENCE / 2)
            if names(trouble, raised.value):
                return
        pytest.fail(f"{type(raised.value).__name__}, behind it {raised.value.cause!r}: {raised.value}")


@pytest.mark.parametrize("name", ["a wrong password", "a broker that only the cluster can reach"])
def test_a_call_of_an_async_consumer_names_the_cause(name: str, secured: Secured, topic: str) -> None:
    trouble, tp = TROUBLES[name], partition_for(name, topic)

    async def ask(call: str, settings: Settings) -> OttlaError:
        async with AsyncConsumer(settings) as consumer:
            await consumer.assign([tp])
            for timeout in timeouts(trouble):
                with pytest.raises(OttlaError) as raised:
                    await CALLS[call](consumer, tp, timeout)
                if names(trouble, raised.value):
                    break
        return raised.value

    with ExitStack() as stack:
        settings = settings_for(name, secured, stack)
        for call in sorted(trouble.calls):
            assert names(trouble, asyncio.run(ask(call, settings)))
