"""The network thread on real sockets, against a minimal broker."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from ottla.client.core import ClientCore
from ottla.client.effects import AnyNode, AnySend, Poll, Send
from ottla.client.events import ErrorNotification
from ottla.config import ClientConfig
from ottla.errors import ForkedError, IllegalStateError, OttlaError
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import decode_request, encode_response
from ottla.protocol.framing import FrameReader
from ottla.protocol.messages import (
    api_versions_response,
    find_coordinator_request,
    find_coordinator_response,
    metadata_response,
)
from ottla.runtime.network_thread import NetworkThread
from ottla.types import Now
from tests.simulation.files import content

ZERO = timedelta(0)


@dataclass(frozen=True)
class Begin:
    """A command: the manager sends a request whose response has so many bytes."""

    tag: int
    size: int = 1


@dataclass(frozen=True)
class Report:
    """A command that causes no request."""

    number: int


class Manager:
    """Sends FindCoordinator with keys of the wanted length; its notifications have the lengths of the response."""

    def __init__(self, core: ClientCore) -> None:
        self.core = core
        self.wanted: list[Begin] = []
        self.break_next_poll = False

    def begin(self, command: Begin, now: Now) -> None:
        self.wanted.append(command)

    def poll(self, now: Now) -> Poll:
        if self.break_next_poll:
            self.break_next_poll = False
            raise ZeroDivisionError
        wanted, self.wanted = self.wanted, []
        return Poll(tuple(self.look_up(command.tag, command.size) for command in wanted))

    def look_up(self, tag: int, size: int) -> AnySend:
        def on_response(response: find_coordinator_response.FindCoordinatorResponse, now: Now) -> None:
            self.core.notify((tag, sum(len(item.key) for item in response.coordinators)))

        def on_failure(error: OttlaError, now: Now) -> None:
            self.core.notify((tag, error))

        message = find_coordinator_request.FindCoordinatorRequest(coordinator_keys=("k" * size,))
        return Send(rpcs.FIND_COORDINATOR, message, AnyNode(), 5_000, on_response, on_failure)


def respond(header: Any, message: Any, port: int) -> Any:
    match header.api:
        case Api.API_VERSIONS:
            keys = tuple(
                api_versions_response.ApiVersion(api_key=int(api), min_version=low, max_version=high)
                for api, (low, high) in SPOKEN.items()
            )
            return api_versions_response.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys, throttle_time=ZERO)
        case Api.METADATA:
            broker = metadata_response.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)
            return metadata_response.MetadataResponse(throttle_time=ZERO, brokers=(broker,), topics=(), error_code=ErrorCode.none)
        case _:
            found = tuple(
                find_coordinator_response.Coordinator(
                    key=key, node_id=1, host="h", port=1, error_code=ErrorCode.none, error_message=None
                )
                for key in message.coordinator_keys
            )
            return find_coordinator_response.FindCoordinatorResponse(throttle_time=ZERO, coordinators=found)


@contextmanager
def serving() -> Iterator[str]:
    """Run a broker that answers FindCoordinator; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve(peer: socket.socket) -> None:
            reader = FrameReader()
            with peer, contextlib.suppress(OSError):
                while data := peer.recv(65_536):
                    for frame in reader.feed(data):
                        header, message = decode_request(bytes(frame))
                        peer.sendall(b"".join(map(content, encode_response(header, respond(header, message, port)))))

        def accept() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(peer,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{port}"
        server.shutdown(socket.SHUT_RDWR)


class Client:
    def __init__(self, servers: str) -> None:
        self.core = ClientCore(ClientConfig.parse(bootstrap_servers=servers, retry_backoff_max=0.05), random.Random(1))
        self.manager = Manager(self.core)
        self.core.add_manager(self.manager)
        self.core.register(Begin, self.manager.begin)
        self.thread = NetworkThread(self.core)
        self.seen: list[Any] = []

    def until(self, condition: Callable[[list[Any]], bool]) -> list[Any]:
        """Return all notifications, once ``condition`` holds for them."""
        deadline = time.monotonic() + 60
        while not condition(self.seen):
            assert time.monotonic() < deadline, self.seen
            self.thread.notifications.wait(0.5)
            self.seen += self.thread.notifications.drain()
        return self.seen


@pytest.fixture
def client() -> Iterator[Client]:
    with serving() as servers:
        client = Client(servers)
        client.thread.start()
        yield client
        assert client.thread.close(60)


def test_commands_are_handled_and_responses_arrive(client: Client) -> None:
    for tag in range(5):
        client.thread.submit(Begin(tag))
    assert client.until(lambda seen: len(seen) == 5) == [(tag, 1) for tag in range(5)]


def test_requests_larger_than_the_socket_buffers_are_sent_in_pieces(client: Client) -> None:
    client.thread.submit(Begin(1, 30_000))
    for tag in range(2, 102):
        client.thread.submit(Begin(tag, 30_000))
    assert client.until(lambda seen: len(seen) == 101) == [(tag, 30_000) for tag in range(1, 102)]


def test_no_wake_up_is_lost(client: Client) -> None:
    for tag in range(300):
        began = time.monotonic()
        client.thread.submit(Begin(tag))
        client.until(lambda seen, tag=tag: len(seen) == tag + 1)  # type: ignore[misc]
        assert time.monotonic() - began < 20


def test_a_deferrable_command_does_not_end_a_sleep(client: Client) -> None:
    client.core.register(Report, lambda command, now: client.core.notify(command.number))
    client.core.deferrable_commands = lambda: frozenset({Report})
    client.thread.submit(Begin(1))
    client.until(lambda seen: len(seen) == 1)
    client.thread.submit(Report(2))
    assert not client.thread.notifications.wait(0.2)
    client.thread.submit(Begin(3))
    assert client.until(lambda seen: len(seen) == 3) == [(1, 1), 2, (3, 1)]


def test_a_command_that_is_not_deferrable_ends_a_sleep(client: Client) -> None:
    client.core.register(Report, lambda command, now: client.core.notify(command.number))
    client.core.deferrable_commands = frozenset
    client.thread.submit(Begin(1))
    client.until(lambda seen: len(seen) == 1)
    client.thread.submit(Report(2))
    assert client.until(lambda seen: len(seen) == 2) == [(1, 1), 2]


def test_no_command_of_many_threads_is_lost(client: Client) -> None:
    def submit(first: int) -> None:
        for tag in range(first, first + 100):
            client.thread.submit(Begin(tag))

    threads = [threading.Thread(target=submit, args=(first,)) for first in range(0, 400, 100)]
    for thread in threads:
        thread.start()
    assert sorted(tag for tag, _ in client.until(lambda seen: len(seen) == 400)) == list(range(400))
    for thread in threads:
        thread.join()


def test_an_exception_of_a_manager_is_a_notification_and_the_thread_continues(client: Client) -> None:
    client.manager.break_next_poll = True
    client.thread.submit(Begin(1))
    first, second = client.until(lambda seen: len(seen) == 2)
    assert isinstance(first, ErrorNotification)
    assert isinstance(first.error.cause, ZeroDivisionError)
    assert second == (1, 1)


def test_an_exception_of_the_core_is_a_notification_and_the_thread_continues(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(now: Now) -> Any:
        monkeypatch.undo()
        raise ZeroDivisionError

    monkeypatch.setattr(client.core, "poll", broken)
    client.thread.submit(Begin(1))
    first, second = client.until(lambda seen: len(seen) == 2)
    assert isinstance(first, ErrorNotification)
    assert second == (1, 1)
    assert "the network thread of a client failed" in caplog.text


def test_close_handles_submitted_commands_and_refuses_later_ones(client: Client) -> None:
    client.thread.submit(Begin(1))
    client.until(lambda seen: len(seen) == 1)
    client.thread.submit(Begin(2))
    assert client.thread.close(60)
    assert not client.thread.running
    (tag, outcome) = client.until(lambda seen: len(seen) == 2)[1]
    assert tag == 2
    assert outcome == 1 or isinstance(outcome, IllegalStateError)
    with pytest.raises(IllegalStateError, match="closed"):
        client.thread.submit(Begin(3))


def test_close_before_start_and_twice() -> None:
    client = Client("127.0.0.1:1")
    assert client.thread.close(1)
    assert client.thread.close(1)


def test_close_closes_all_descriptors() -> None:
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    if before is None:
        pytest.skip("no /proc to count open files in")
    with serving() as servers:
        client = Client(servers)
        client.thread.start()
        client.thread.submit(Begin(1))
        client.until(lambda seen: len(seen) == 1)
        assert client.thread.close(60)
    deadline = time.monotonic() + 60
    while len(os.listdir("/proc/self/fd")) > len(before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_wait_ends_by_a_notification_a_wake_up_or_its_timeout(client: Client) -> None:
    queue = client.thread.notifications
    assert not queue.wait(0.01)
    queue.wake()
    assert not queue.wait(60)
    threading.Timer(0.05, queue.put_all, [["hello"]]).start()
    assert queue.wait(60)
    assert queue.drain() == ["hello"]
    assert queue.drain() == []


def test_in_a_forked_child_submit_raises_and_close_does_nothing(client: Client) -> None:
    child = os.fork()
    if not child:
        try:
            closed = client.thread.close(1)
            client.thread.submit(Begin(1))
        except ForkedError:
            os._exit(0 if closed else 3)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.thread.submit(Begin(2))
    assert client.until(lambda seen: len(seen) == 1) == [(2, 1)]


def test_an_interrupted_start_can_be_repeated_and_only_one_thread_runs() -> None:
    """``Thread.start`` waits until the thread runs. If Ctrl-C interrupts that wait, the thread runs nevertheless."""
    with serving() as servers:
        client = Client(servers)
        network = client.thread
        interrupted: list[bool] = []
        begin = network._thread.start

        def start() -> None:
            begin()
            if not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt

        network._thread.start = start  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            network.start()
        assert network._begun.wait(5)
        assert network.running
        network.start()
        threading.Thread(target=network._run).start()
        network.submit(Begin(1))
        assert client.until(lambda seen: len(seen) == 1) == [(1, 1)]
        assert network.close(5)
