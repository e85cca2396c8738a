"""A member of a central group on a bare socket: it registers, obeys, and reports what it holds after a failover.

Owns its thread and its connection. Must not know what a broker decides. Invariant: it gives up what it holds before it answers a
Stop, and takes over what a Start gives it before it answers that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.codec import RequestHeader, decode_pushed, encode_answer
from ottla.protocol.messages import (
    consult_request,
    consult_response,
    leave_request,
    ping_response,
    register_request,
    start_response,
    stop_response,
)
from ottla.types import TopicPartition
from tests.raw_client import RawClient
from tests.simulation.files import content

_ANSWERS = {
    Api.PING: ping_response.PingResponse,
    Api.STOP: stop_response.StopResponse,
    Api.START: start_response.StartResponse,
}


def consult(bootstrap_servers: Callable[[], Sequence[str]]) -> consult_response.ConsultResponse | None:
    """Ask the first broker that answers; ``None`` if no coordinator is known."""
    for address in bootstrap_servers():
        with suppress(OSError), RawClient(address) as client:
            found: consult_response.ConsultResponse = client.ask(Api.CONSULT, consult_request.ConsultRequest())
            if found.error_code is ErrorCode.none:
                return found
    return None


class RawMember:
    """See the module. ``brokers`` returns the addresses of the brokers that run."""

    def __init__(self, brokers: Callable[[], Sequence[str]], member_id: str, topic: str, group_id: str = "g") -> None:
        self.group_id, self.member_id, self.topic = group_id, member_id, topic
        self.epoch = self.generation = -1
        self.held: dict[TopicPartition, int] = {}
        self.stops = 0
        self.errors: list[ErrorCode] = []
        """The answers to Registers that were none."""
        self._brokers = brokers
        self._client: RawClient | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the group."""
        self._closing = True
        if self._client is not None:
            message = leave_request.LeaveRequest(
                group_id=self.group_id, member_id=self.member_id, coordinator_epoch=self.epoch, generation=self.generation
            )
            with suppress(OSError):
                self._client.send(Api.LEAVE, message)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closing:
            found = consult(self._brokers)
            if found is not None:
                (coordinator,) = [one for one in found.brokers if one.broker_id == found.coordinator_id]
                with suppress(OSError), RawClient(f"{coordinator.host}:{coordinator.port}") as client:
                    self._serve(client)
                self._client = None
            time.sleep(0.05)

    def _serve(self, client: RawClient) -> None:
        response = client.ask(Api.REGISTER, self._register())
        if response.error_code is not ErrorCode.none:
            self.errors.append(response.error_code)
            return
        self._client = client
        while True:
            frame = client.receive_frame()
            if frame[:2] == b"\0\0":  # the response to Leave: a small correlation id
                return
            header, message = decode_pushed(frame)
            self._obey(header.api, message)
            answer: Any = _ANSWERS[header.api](
                error_code=ErrorCode.none,
                group_id=self.group_id,
                member_id=self.member_id,
                coordinator_epoch=message.coordinator_epoch,
                generation=message.generation,
            )
            pieces = encode_answer(RequestHeader(header.api, 0, header.correlation_id, "raw"), answer)
            client.sock.sendall(b"".join(map(content, pieces)))

    def _obey(self, api: Api, message: Any) -> None:
        if api is Api.STOP:
            self.held, self.stops = {}, self.stops + 1
        elif api is Api.START:
            held = {TopicPartition(topic.topic, one.partition): one.thread for topic in message.topics for one in topic.partitions}
            self.held, self.epoch, self.generation = held, message.coordinator_epoch, message.generation

    def _register(self) -> register_request.RegisterRequest:
        owned = tuple(register_request.OwnedPartition(partition=tp.partition, thread=one) for tp, one in self.held.items())
        return register_request.RegisterRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            incarnation=self.member_id,
            session_timeout_ms=6000,
            rebalance_timeout_ms=6000,
            assignor="range",
            topics=(register_request.Subscription(topic=self.topic, streams=1),),
            coordinator_epoch=self.epoch,
            generation=self.generation,
            own_generation=self.generation,
            owned_topics=(register_request.OwnedTopic(topic=self.topic, partitions=owned),) if owned else (),
        )
