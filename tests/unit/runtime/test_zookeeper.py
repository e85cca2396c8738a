"""``ZooKeeperClient`` without a server: what kazoo gets, and when."""

from __future__ import annotations

import collections
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.protocol.states import KeeperState

from ottla.errors import KeeperCode, ZooKeeperError
from ottla.runtime.zookeeper import MOST_OUTSTANDING, ZooKeeperClient
from ottla.types import Now
from ottla.zookeeper.operations import Exists, GetData, Operation
from ottla.zookeeper.session import Perform

LIMIT = 30.0
"""Seconds for what takes none."""

SOME = Exists("/some")


class Client:
    """A client, and kazoo as the test plays it."""

    def __init__(self, *, connected: bool = True) -> None:
        self.client = ZooKeeperClient("127.0.0.1:1", 6_000, lambda report: report.apply(self, Now(0, 0)))
        self.client._kazoo = SimpleNamespace(connected=connected)
        self.client._send = self._send  # type: ignore[method-assign]
        self.on_send: Callable[[], None] = lambda: None
        self.sent: list[Operation[Any]] = []
        self.links: list[Callable[[Any], None]] = []
        """What to call with the outcome of each operation that was sent."""
        self.answered: list[int] = []
        self.failed: dict[int, KeeperCode] = {}

    def _send(self, operation: Operation[Any]) -> Any:
        self.on_send()
        self.sent.append(operation)
        return SimpleNamespace(rawlink=self.links.append)

    def perform(self, number: int, operation: Operation[Any] = SOME) -> None:
        self.client.perform(Perform(number, operation))

    def answer(self, value: object = None) -> None:
        """Answer the first operation that has no answer."""
        self.links.pop(0)(SimpleNamespace(exception=None, value=value))

    # What a session gets.

    def on_answered(self, number: int, value: object, now: Now) -> None:
        self.answered.append(number)

    def on_failed(self, number: int, error: ZooKeeperError, now: Now) -> None:
        assert number not in self.failed
        self.failed[number] = error.code


def test_kazoo_wakes_its_thread_without_waiting_for_it() -> None:
    """Kazoo's thread reads nothing while it connects, and wake-ups of operations that it has dropped remain."""
    client = ZooKeeperClient("127.0.0.1:1", 6_000, lambda report: None)
    reader, writer = client._handler.create_socket_pair()

    def wake() -> None:
        for _ in range(10_000):
            assert writer.send(b"\0") == 1
        done.set()

    done = threading.Event()
    threading.Thread(target=wake, daemon=True).start()
    try:
        assert done.wait(LIMIT)
        kept = len(reader.recv(10_000, socket.MSG_PEEK))
        assert kept > MOST_OUTSTANDING, "each operation that kazoo has is sent, whatever was left out"
        assert len(reader.recv(kept)) == kept
        assert writer.send(b"\0") == 1
        assert reader.recv(2) == b"\0"
    finally:
        reader.close()
        writer.close()


def test_a_pair_holds_the_wake_ups_of_all_operations_whatever_the_kernel_gives_to_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is a setting of the machine."""
    original = socket.socketpair

    def small() -> tuple[socket.socket, socket.socket]:
        reader, writer = original()
        writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return reader, writer

    monkeypatch.setattr(socket, "socketpair", small)
    reader, writer = ZooKeeperClient("127.0.0.1:1", 6_000, lambda report: None)._handler.create_socket_pair()
    with reader, writer:
        for _ in range(2 * MOST_OUTSTANDING):
            writer.send(b"\0")
        assert len(reader.recv(10_000)) == 2 * MOST_OUTSTANDING


def test_kazoo_has_a_limited_number_of_operations() -> None:
    client = Client()
    for number in range(3 * MOST_OUTSTANDING):
        client.perform(number)
    assert len(client.sent) == MOST_OUTSTANDING
    for _ in range(3 * MOST_OUTSTANDING):
        client.answer()
    assert client.answered == [*range(3 * MOST_OUTSTANDING)]


def test_thousands_of_operations_fail_in_order_without_a_connection() -> None:
    client = Client(connected=False)
    for number in range(3_000):
        client.perform(number)
    assert list(client.failed) == [*range(3_000)]
    assert set(client.failed.values()) == {KeeperCode.CONNECTIONLOSS}
    assert client.sent == []


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_while_an_operation_is_sent_fails_that_one_only() -> None:
    """With Ctrl-C, or any signal handler that raises, in a thread that goes on with the same client."""
    client = Client()
    client.on_send = interrupt
    for number in range(MOST_OUTSTANDING):
        with pytest.raises(KeyboardInterrupt):
            client.perform(number)
    client.on_send = lambda: None
    client.perform(1_000)
    assert client.failed == dict.fromkeys(range(MOST_OUTSTANDING), KeeperCode.CONNECTIONLOSS)
    client.answer()
    assert client.answered == [1_000]


class QueueWithSignal(collections.deque[Any]):
    """Kazoo's queue, at whose next append a signal handler raises. Python runs it after the append."""

    strikes = False

    def append(self, item: Any) -> None:
        super().append(item)
        if self.strikes:
            self.strikes = False
            interrupt()


def test_after_an_interrupt_before_kazoo_is_woken_up_no_later_operation_waits_for_the_one_after_it() -> None:
    client = ZooKeeperClient("127.0.0.1:1", 6_000, lambda report: None)
    kazoo = client._kazoo
    kazoo._queue = queue = QueueWithSignal()
    kazoo._state = KeeperState.CONNECTED
    kazoo._live.set()
    reader, kazoo._connection._write_sock = client._handler.create_socket_pair()
    with reader, kazoo._connection._write_sock:
        client.perform(Perform(1, GetData("/one")))
        queue.strikes = True
        with pytest.raises(KeyboardInterrupt):
            client.perform(Perform(2, GetData("/two")))
        client.perform(Perform(3, GetData("/three")))
        assert [request.path for request, _ in queue] == ["/one", "/two", "/three"]
        assert len(reader.recv(100)) == 3, "kazoo sends one operation for each byte"


def test_an_interrupt_after_the_client_was_closed_is_the_only_error() -> None:
    client = Client()
    reader, writer = client.client._handler.create_socket_pair()
    reader.close()
    writer.close()
    client.on_send = interrupt
    with pytest.raises(KeyboardInterrupt):
        client.perform(1)
    assert client.failed == {1: KeeperCode.CONNECTIONLOSS}


class LockWithSignal:
    """A lock at whose release a signal handler raises, once. Python runs it after the release."""

    def __init__(self, lock: Any, releases: int) -> None:
        self.lock, self.releases = lock, releases

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        self.releases -= 1
        if not self.releases:
            interrupt()


@pytest.mark.parametrize("releases", [1, 2, 3, 4])
def test_an_interrupt_between_two_operations_loses_none(releases: int) -> None:
    client = Client()
    client.client._lock = LockWithSignal(client.client._lock, releases)  # type: ignore[assignment]
    raised = 0
    for number in range(4):
        try:
            client.perform(number)
        except KeyboardInterrupt:
            raised += 1
    assert raised == 1
    assert len(client.sent) == 4
    while client.links:
        client.answer()
    assert client.answered == [0, 1, 2, 3]


def test_an_answer_that_is_not_understood_is_an_error_and_makes_room_for_the_next_operation() -> None:
    client = Client()
    for number in range(MOST_OUTSTANDING + 1):
        client.perform(number, GetData("/some"))
    client.answer("no node")
    assert client.failed == {0: KeeperCode.APIERROR}
    assert len(client.sent) == MOST_OUTSTANDING + 1
