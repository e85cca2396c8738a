"""A broker with scripted responses: other versions of APIs, partitions without leaders, frames that are too large.

Owns the socket and its threads. Must not know what is tested. Invariant: what is not asked for otherwise is answered as a healthy,
empty cluster of one broker would.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import SPOKEN, Api, VersionRange
from ottla.protocol.codec import RequestHeader, decode_request, encode_response
from ottla.protocol.framing import FrameReader
from ottla.protocol.messages import api_versions_response, find_coordinator_response, join_group_response, metadata_response
from tests.simulation.files import content

ZERO = timedelta(0)
TOPIC = "without-a-leader"
FAR_TOO_LARGE = struct.pack(">i", 200_000_000)


@contextmanager
def pretending(
    versions: Mapping[Api, VersionRange] = SPOKEN,
    instead: Mapping[Api, bytes] | None = None,
    answers: Mapping[Api, Callable[[Any], Any]] | None = None,
) -> Iterator[str]:
    """Run a broker that supports ``versions``; yield its address.

    It answers some requests with these bytes ``instead``, and some as ``answers`` makes a response of a request.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve(peer: socket.socket) -> None:
            reader = FrameReader()
            with peer, contextlib.suppress(OSError):
                while data := peer.recv(65_536):
                    for frame in reader.feed(data):
                        header, message = decode_request(bytes(frame))
                        if instead is not None and header.api in instead:
                            peer.sendall(instead[header.api])
                        elif answers is not None and header.api in answers:
                            peer.sendall(_bytes_of(header, answers[header.api](message)))
                        elif header.api in _ANSWERS:
                            peer.sendall(_bytes_of(header, _ANSWERS[header.api](port, versions)))

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{port}"
        server.shutdown(socket.SHUT_RDWR)


def _bytes_of(header: RequestHeader, answer: Any) -> bytes:
    return b"".join(map(content, encode_response(header, answer)))


def _versions(port: int, versions: Mapping[Api, VersionRange]) -> Any:
    del port
    keys = tuple(
        api_versions_response.ApiVersion(api_key=int(api), min_version=low, max_version=high)
        for api, (low, high) in versions.items()
    )
    return api_versions_response.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys, throttle_time=ZERO)


def _metadata(port: int, versions: Mapping[Api, VersionRange]) -> Any:
    del versions
    return _cluster("127.0.0.1", port, leader_id=-1, error_code=ErrorCode.leader_not_available)


def _coordinator(port: int, versions: Mapping[Api, VersionRange]) -> Any:
    del versions
    return _coordinated("127.0.0.1", port)


def _coordinated(host: str, port: int) -> Any:
    one = find_coordinator_response.Coordinator(
        key="g", node_id=1, host=host, port=port, error_code=ErrorCode.none, error_message=None
    )
    return find_coordinator_response.FindCoordinatorResponse(throttle_time=ZERO, coordinators=(one,))


def elsewhere(host: str, port: int) -> Mapping[Api, Callable[[Any], Any]]:
    """Responses with another address of the only broker, leader and coordinator."""
    return {
        Api.METADATA: lambda _: _cluster(host, port, leader_id=1, error_code=ErrorCode.none),
        Api.FIND_COORDINATOR: lambda _: _coordinated(host, port),
    }


def loading(_: Any) -> Any:
    """The response to JoinGroup of a coordinator that still loads its groups."""
    return join_group_response.JoinGroupResponse(
        throttle_time=ZERO,
        error_code=ErrorCode.coordinator_load_in_progress,
        protocol_name=None,
        leader="",
        member_id="",
        members=(),
    )


def _cluster(host: str, port: int, leader_id: int, error_code: ErrorCode) -> Any:
    partition = metadata_response.MetadataResponsePartition(
        error_code=error_code,
        partition_index=0,
        leader_id=leader_id,
        replica_nodes=(2,),
        isr_nodes=(),
        offline_replicas=(2,),
    )
    topic = metadata_response.MetadataResponseTopic(
        error_code=ErrorCode.none, name=TOPIC, topic_id=uuid.UUID(int=7), is_internal=False, partitions=(partition,)
    )
    broker = metadata_response.MetadataResponseBroker(node_id=1, host=host, port=port)
    return metadata_response.MetadataResponse(throttle_time=ZERO, brokers=(broker,), topics=(topic,), error_code=ErrorCode.none)


_ANSWERS: Mapping[Api, Callable[[int, Mapping[Api, VersionRange]], Any]] = {
    Api.API_VERSIONS: _versions,
    Api.METADATA: _metadata,
    Api.FIND_COORDINATOR: _coordinator,
}
